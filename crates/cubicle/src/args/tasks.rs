//! `cubicle task`: work for AI workers.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum, ValueHint};
use cubicle_model::{TaskId, TaskStatus};

use super::local::Shape;
use super::texts;
use crate::values::Span;

#[derive(Debug, Subcommand)]
pub(crate) enum Task {
    /// Give a worker something to do, and follow it to its end
    #[command(override_usage = "cubicle task run [OPTIONS] [PROMPT] [-- <CMD>...]", after_help = texts::TASK_RUN)]
    Run(Box<TaskRun>),
    /// List tasks
    #[command(visible_alias = "ls")]
    List(TaskList),
    /// Show what came of a task
    Show(OneTask),
    /// Show what a worker does
    Logs(TaskLogs),
    /// End tasks
    Cancel(Tasks),
    /// Do a task that has ended once more
    Retry(OneTask),
    /// List the files that a task made, or print one of them
    Files(TaskFiles),
}

/// Who does the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Agent {
    /// Claude Code
    Claude,
    /// Gemini CLI
    Gemini,
    /// The command after --
    Custom,
}

impl Agent {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Claude => "claude",
            Self::Gemini => "gemini",
            Self::Custom => "custom",
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct TaskRun {
    #[command(flatten)]
    pub(crate) shape: Shape,

    /// What is to be done; - reads it from standard input
    #[arg(value_name = "PROMPT", required_unless_present = "command")]
    pub(crate) prompt: Option<String>,

    /// Who does it [default: claude, or custom where a command is given]
    #[arg(long, value_name = "AGENT")]
    pub(crate) agent: Option<Agent>,

    /// A file of the shared workspace that the worker gets a copy of; may be repeated
    #[arg(long = "context", value_name = "PATH")]
    pub(crate) context_files: Vec<String>,

    /// How long it may take [default: 30m]
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<Span>,

    /// Copy what a success made to the shared workspace
    #[arg(long)]
    pub(crate) save: bool,

    /// A repository that is cloned first, as https://host/path or https://host/path@ref; the changes come back as a patch
    #[arg(long, value_name = "URL[@REF]")]
    pub(crate) repo: Option<String>,

    /// The provider's model [default: the agent's own]
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,

    /// Turns that the agent may take
    #[arg(long, value_name = "N")]
    pub(crate) max_turns: Option<u64>,

    /// Tokens that it may use
    #[arg(long, value_name = "N")]
    pub(crate) max_tokens: Option<u64>,

    /// What it may cost, in US dollars
    #[arg(long, value_name = "USD")]
    pub(crate) max_cost: Option<f64>,

    /// The conversation it belongs to
    #[arg(long, value_name = "ID")]
    pub(crate) conversation: Option<String>,

    /// An address that is called when it has ended
    #[arg(long, value_name = "URL")]
    pub(crate) notify: Option<String>,

    /// The template of its sandbox [default: worker]
    #[arg(long, value_name = "NAME")]
    pub(crate) template: Option<String>,

    /// Print its id and do not wait for it
    #[arg(long, short = 'd')]
    pub(crate) detach: bool,

    /// The command of a custom agent and its arguments
    #[arg(value_name = "CMD", last = true, value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct TaskList {
    #[command(flatten)]
    pub(crate) shape: Shape,

    /// Only of this conversation
    #[arg(long, value_name = "ID")]
    pub(crate) conversation: Option<String>,

    /// Only with this status
    #[arg(long, value_name = "STATUS", value_parser = status)]
    pub(crate) status: Option<TaskStatus>,

    /// Print ids only
    #[arg(long, short, conflicts_with = "json")]
    pub(crate) quiet: bool,
}

fn status(given: &str) -> Result<TaskStatus, String> {
    let known = TaskStatus::ALL.into_iter().find(|status| status.name() == given);
    known.ok_or_else(|| format!("expected one of {}", TaskStatus::ALL.map(TaskStatus::name).join(", ")))
}

#[derive(Debug, Args)]
pub(crate) struct OneTask {
    #[command(flatten)]
    pub(crate) shape: Shape,

    #[arg(value_name = "TASK")]
    pub(crate) id: TaskId,
}

#[derive(Debug, Args)]
pub(crate) struct Tasks {
    #[arg(value_name = "TASK", required = true)]
    pub(crate) ids: Vec<TaskId>,
}

#[derive(Debug, Args)]
pub(crate) struct TaskLogs {
    #[arg(value_name = "TASK")]
    pub(crate) id: TaskId,

    /// Follow what comes until the task has ended
    #[arg(long, short)]
    pub(crate) follow: bool,

    /// Print every event as a line of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TaskFiles {
    #[command(flatten)]
    pub(crate) shape: Shape,

    #[arg(value_name = "TASK")]
    pub(crate) id: TaskId,

    /// The file that is wanted
    #[arg(value_name = "NAME", conflicts_with = "json")]
    pub(crate) name: Option<String>,

    /// Where it goes [default: standard output]
    #[arg(long, short, value_name = "FILE", requires = "name", value_hint = ValueHint::FilePath)]
    pub(crate) output: Option<PathBuf>,
}
