//! The agents: one file each, which knows an agent's command line, its configuration, what it says, and when it has failed.

mod custom;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use crate::Assignment;
use crate::event::What;
use crate::process::{Launch, Stream};
use crate::status::Usage;

/// What can be named as `TASK_AGENT`.
pub const AGENTS: &[&str] = &["claude", "gemini", "custom"];

pub(crate) trait Agent {
    /// What is to be started, and the files it wants to find.
    fn prepare(&self, job: &Job<'_>) -> Result<Plan, String>;

    /// Asks something else in the conversation that was just had. None where the agent has no memory.
    fn ask_again(&self, job: &Job<'_>, told: &Told, question: &str) -> Option<Launch>;

    /// Understands one line. What it means for the verdict goes into `told`, what it means for a reader comes back.
    fn hear(&self, stream: Stream, line: &[u8], told: &mut Told) -> Vec<What>;

    /// Whether only a final word of the agent makes a success. An exit code does not tell what was done.
    fn must_have_the_last_word(&self) -> bool;
}

pub(crate) fn find(name: &str) -> Result<Box<dyn Agent>, String> {
    match name {
        "custom" => Ok(Box::new(custom::Custom)),
        other => Err(format!("there is no agent '{other}': known are {}", AGENTS.join(", "))),
    }
}

/// What an agent is started for.
#[derive(Debug)]
pub(crate) struct Job<'a> {
    pub(crate) assignment: &'a Assignment,
    /// The prompt with its frame.
    pub(crate) prompt: String,
    /// Where the agent works.
    pub(crate) directory: PathBuf,
    /// The agent's own, outside of the task's directory.
    pub(crate) state: PathBuf,
    /// What the worker itself was given, without its secrets.
    pub(crate) variables: BTreeMap<String, String>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Paths below the state directory.
    pub(crate) files: Vec<(PathBuf, String)>,
    pub(crate) launch: Launch,
}

/// What an agent has said so far, as far as it decides something.
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(crate) session: Option<String>,
    pub(crate) last_text: String,
    pub(crate) outcome: Option<Outcome>,
    /// Tools that were denied.
    pub(crate) denied: BTreeSet<String>,
    pub(crate) usage: Usage,
    /// Answers of the model whose usage has been counted.
    pub(crate) counted: BTreeSet<String>,
}

/// An agent's last word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done { text: String },
    Failed { why: String },
}
