//! Contexts: interpreters that keep their state from one piece of code to the next.

use std::collections::BTreeMap;

use cubicle_model::ExecId;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The body of `POST /contexts`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateContext {
    /// The context's id: that of the exec which is its interpreter. A repeated one is the same context.
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
    /// Of its interpreter: a restarted context has another one.
    pub exec_id: ExecId,
    pub language: String,
    pub cwd: String,
    pub state: ContextState,
    /// How many cells have been run.
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
    /// A cell begins. Records up to its `end` are its own.
    Begin {
        execution_count: u64,
    },
    /// The value of the last expression, by media type.
    Result {
        execution_count: u64,
        data: BTreeMap<String, Value>,
    },
    /// Something was shown, as by `display` or `plt.show`.
    Display {
        data: BTreeMap<String, Value>,
    },
    /// The code raised.
    Error {
        name: String,
        value: String,
        traceback: Vec<String>,
    },
    End {
        execution_count: u64,
        status: CellStatus,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CellStatus {
    Success,
    Error,
    Interrupted,
    Timeout,
    /// The process ended under it.
    Died,
}
