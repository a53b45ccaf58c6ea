//! Contexts: interpreters that keep their state from one piece of code to the next.

use std::collections::BTreeMap;

use cubicle_model::ExecId;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The body of `POST /contexts`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateContext {
    /// The context's id: that of the exec which is its first interpreter. A repeated one is the same context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec_id: Option<ExecId>,
    /// `python` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
    /// Absolute; `/workspace` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// An environment that is attached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env_name: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Context {
    /// Its own, also after a restart.
    pub context_id: ExecId,
    /// Of its interpreter: a restarted context has another one.
    pub exec_id: ExecId,
    pub language: String,
    pub cwd: String,
    pub state: ContextState,
    /// How many cells this interpreter has been given. An empty one does not count.
    pub execution_count: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env_name: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContextState {
    Idle,
    Busy,
    /// Its process ended. Restart it or delete it.
    Dead,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ContextList {
    pub contexts: Vec<Context>,
}

/// The body of `POST /contexts/{id}/execute`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cell {
    pub code: String,
    /// Seconds until it is interrupted, and its context ended if that does not help.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<f64>,
}

/// Payload of a `cell` record: what a context tells beside what it prints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum CellEvent {
    /// A cell begins. Records up to its `end` are its own. The daemon writes it before the interpreter gets the code.
    Begin { execution_count: u64 },
    /// The value of the last expression, by media type.
    Result { execution_count: u64, data: BTreeMap<String, Value> },
    /// Something was shown, as by `display` or `plt.show`.
    Display { data: BTreeMap<String, Value> },
    /// The code raised.
    Error { name: String, value: String, traceback: Vec<String> },
    /// A piece of an event that is longer than a record can be: the texts of all pieces up to the last one are the event
    /// as JSON. Nothing else of the same cell comes in between.
    Part { text: String, last: bool },
    /// Something was told that the journal has no room for.
    Omitted {
        /// `result`, `display` or `error`.
        what: String,
        bytes: u64,
    },
    /// Always the last of a cell, and always written by the daemon, also when the interpreter has died.
    End { execution_count: u64, status: CellStatus },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CellStatus {
    Success,
    /// The code raised, or a shell's last command failed.
    Error,
    /// It was interrupted on request.
    Interrupted,
    /// Its time was over. Whether its context went on is in the context's state.
    Timeout,
    /// The process ended under it.
    Died,
}

/// A longer piece of code is refused.
pub const LONGEST_CELL: usize = 2 * 1024 * 1024;
/// An event up to this length is kept whole, in parts where it must be; an interpreter that tells more is ended.
pub const LONGEST_EVENT: usize = 8 * 1024 * 1024;
/// So many contexts a sandbox has at once, those that have died and were not deleted among them.
pub const MOST_CONTEXTS: usize = 32;
