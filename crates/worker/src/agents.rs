//! The agents: one file each, which knows an agent's command line, its configuration, what it says, and when it has failed.

mod claude;
mod custom;
mod gemini;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::Assignment;
use crate::event::What;
use crate::process::{Launch, Stream};
use crate::status::Usage;

/// What can be named as `TASK_AGENT`.
pub const AGENTS: &[&str] = &["claude", "gemini", "custom"];

pub(crate) trait Agent {
    /// What is to be started, and the files it wants to find.
    fn prepare(&self, job: &Job<'_>) -> Result<Plan, String>;

    /// Asks what is in a file, in the conversation that was just had. None where the agent has no memory.
    fn ask_again(&self, job: &Job<'_>, told: &Told, question: PathBuf) -> Option<Launch>;

    /// Where it looks for skills, below the state directory.
    fn skills(&self) -> Option<PathBuf>;

    /// Understands one line. What it means for the verdict goes into `told`, what it means for a reader comes back.
    fn hear(&self, stream: Stream, line: &[u8], told: &mut Told) -> Vec<What>;

    /// Whether only a final word of the agent makes a success. An exit code does not tell what was done.
    fn must_have_the_last_word(&self) -> bool;
}

pub(crate) fn find(name: &str) -> Result<Box<dyn Agent>, String> {
    match name {
        "claude" => Ok(Box::new(claude::Claude)),
        "gemini" => Ok(Box::new(gemini::Gemini)),
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
    /// Whether the last event was part of an answer of the model.
    pub(crate) in_answer: bool,
    /// Names of the tools that were called, by the id of the call.
    pub(crate) calls: BTreeMap<String, String>,
    /// Of runs before the one that is heard.
    pub(crate) before: Usage,
}

impl Told {
    /// What a run tells of itself at its end replaces what was counted while it went.
    fn finish_run(&mut self, of_run: Usage) {
        self.usage = sum(self.before, of_run);
    }

    /// What an agent tells of the whole conversation, which may be more than was counted.
    fn finish_conversation(&mut self, of_all: Usage) {
        let counted = self.usage;
        self.usage = Usage {
            input_tokens: counted.input_tokens.max(of_all.input_tokens),
            output_tokens: counted.output_tokens.max(of_all.output_tokens),
            cached_tokens: counted.cached_tokens.max(of_all.cached_tokens),
            turns: counted.turns.max(of_all.turns),
            cost_usd: of_all.cost_usd.or(counted.cost_usd),
        };
    }

    /// What is heard from now on is another run of the same agent.
    pub(crate) fn begin_another_run(&mut self) {
        self.before = self.usage;
        self.in_answer = false;
    }
}

fn sum(a: Usage, b: Usage) -> Usage {
    Usage {
        input_tokens: a.input_tokens + b.input_tokens,
        output_tokens: a.output_tokens + b.output_tokens,
        cached_tokens: a.cached_tokens + b.cached_tokens,
        turns: a.turns + b.turns,
        cost_usd: a.cost_usd.into_iter().chain(b.cost_usd).reduce(|a, b| a + b),
    }
}

/// An agent's last word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done { text: String },
    Failed { why: String },
}

/// Where an agent's program is when nobody says otherwise.
fn default_home(job: &Job<'_>, agent: &str) -> PathBuf {
    job.assignment.agent_home.clone().map_or_else(|| Path::new("/mnt/agents").join(agent), PathBuf::from)
}

fn missing(title: &str, agent: &str, program: &Path) -> String {
    format!(
        "{title} is not installed at {}: run 'cubicle agents install {agent}' on the host",
        program.display()
    )
}

/// What helps against a refusal of the model's service.
fn advice(status: Option<u64>) -> &'static str {
    match status {
        Some(401 | 403) => "the service refused the key: see 'cubicle secrets list' and what the key may do",
        Some(429 | 529) => "the service has no room now, or the account's limit is reached: try again later",
        Some(400 | 404 | 413 | 422) => "the service did not accept the request: is the model's name right?",
        Some(500..) => "the service fails: try again later",
        _ => "the transcript has the details",
    }
}

fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value[key].as_str().unwrap_or_default()
}

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_default()
}
