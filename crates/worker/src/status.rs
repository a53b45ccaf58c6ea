//! `/task/status.json`: what came of a task, as the worker tells it.

use cubicle_model::Timestamp;
use cubicle_model::task::TaskStatus;
use serde::{Deserialize, Serialize};

/// Written whole or not at all. A server takes it for what a workload says: the exit is observed, not read here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// One of those that end a task.
    pub status: TaskStatus,
    pub started_at: Timestamp,
    pub completed_at: Timestamp,
    pub duration_seconds: u64,
    /// Of the agent. Absent when it did not exit by itself.
    pub exit_code: Option<i32>,
    #[serde(default)]
    pub output_files: Vec<OutputFile>,
    #[serde(default)]
    pub summary: String,
    /// Why it is not a success, and what helps.
    pub error_message: Option<String>,
    /// Whether the transcript in the task's directory lacks its middle.
    #[serde(default)]
    pub logs_truncated: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

/// A file below the task's `output/`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputFile {
    /// Relative to `output/`, with `/`.
    pub name: String,
    pub size: u64,
    /// A MIME type, as `image/png`.
    #[serde(rename = "type")]
    pub kind: String,
}

/// What the agent says that it used.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Usage {
    pub input_tokens: u64,
    pub output_tokens: u64,
    #[serde(default)]
    pub cached_tokens: u64,
    #[serde(default)]
    pub turns: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
}
