//! Tasks: AI workers that were given a prompt.

use std::collections::BTreeMap;

use cubicle_model::task::TaskStatus;
use cubicle_model::{Isolation, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Bill, BytesText, schema};

/// What a worker is to do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateTask {
    /// The prompt.
    #[schema(
        min_length = 1,
        max_length = 1048576,
        pattern = r"\S",
        example = "Analyse data/spending.csv and draw a chart"
    )]
    pub task_description: String,
    /// Paths in the shared workspace; copied to the task's `context/`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 1000, example = json!(["data/spending.csv"]))]
    pub context_files: Vec<String>,
    /// The agent: `claude`, `gemini`, or `custom`, which is any command.
    #[serde(default = "claude")]
    #[schema(pattern = "^(claude|gemini|custom)$", example = "claude")]
    pub model: String,
    /// 30 when absent, unless the operator says otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 120)]
    pub timeout_minutes: Option<u32>,
    /// Copy what a success made to the shared workspace, below `tasks/`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub save_to_shared: bool,
    /// Workers are shared fairly between conversations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 255)]
    pub conversation_id: Option<String>,
    /// Where the conversation is held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 50)]
    pub interface_type: Option<String>,
    /// Whom the conversation is with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 255)]
    pub user_name: Option<String>,
    /// A git repository, as `https://host/path` or `https://host/path@ref`: it is cloned first, and the changes come back as a patch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 2048)]
    pub repo: Option<String>,
    /// Of a custom agent: the program and its arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 1000)]
    pub command: Vec<String>,
    /// The template of its sandbox; `worker` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// The provider's model; absent takes the agent's own default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 255)]
    pub provider_model: Option<String>,
    /// The worker is ended when it has used so much.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub max_turns: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub max_tokens: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(exclusive_minimum = 0)]
    pub max_cost_usd: Option<f64>,
    /// Called when the task has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 2048)]
    pub notify_url: Option<String>,
}

fn claude() -> String {
    "claude".into()
}

impl CreateTask {
    pub fn new(task_description: impl Into<String>) -> Self {
        Self {
            task_description: task_description.into(),
            context_files: Vec::new(),
            model: claude(),
            timeout_minutes: None,
            save_to_shared: false,
            conversation_id: None,
            interface_type: None,
            user_name: None,
            repo: None,
            command: Vec::new(),
            template: None,
            provider_model: None,
            max_turns: None,
            max_tokens: None,
            max_cost_usd: None,
            notify_url: None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Task {
    #[schema(example = "task-aaaaaaaaaaaaaaaaaaaaaaaaaa")]
    pub task_id: String,
    #[schema(value_type = schema::TaskStatus)]
    pub status: TaskStatus,
    /// Only while it waits: its place, counted from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<u64>,
    pub conversation_id: String,
    pub interface_type: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_name: Option<String>,
    pub model: String,
    pub task_description: String,
    /// Files that were copied for it.
    pub context_files: Vec<String>,
    /// What was asked for and is not in the shared workspace.
    pub missing_context_files: Vec<String>,
    pub timeout_minutes: u32,
    pub save_to_shared: bool,
    /// Where its files are in the shared workspace, if they were saved there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub saved_files: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<String>,
    /// Its worker; the output of this exec is what the worker does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Isolation>)]
    pub isolation: Option<Isolation>,
    /// The task that this one repeats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_of: Option<String>,
    pub attempt: u32,
    /// Somebody asked for its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub cancelled_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub started_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub completed_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_seconds: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_files: Option<Vec<TaskFile>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// Why it is not a success, and what helps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_message: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<TaskUsage>,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub updated_at: Option<Timestamp>,
}

/// A file that a task made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TaskFile {
    #[schema(example = "chart.png")]
    pub name: String,
    pub size: u64,
    #[serde(rename = "type")]
    #[schema(example = "image/png")]
    pub kind: String,
}

/// What the agent says that it used.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct TaskUsage {
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub cached_tokens: u64,
    pub turns: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
}

/// What came of a task, as far as it has come.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TaskResult {
    pub task_id: String,
    #[schema(value_type = schema::TaskStatus)]
    pub status: TaskStatus,
    pub duration_seconds: Option<u64>,
    pub exit_code: Option<i32>,
    pub output_files: Vec<TaskFile>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub saved_files: Vec<String>,
    pub missing_context_files: Vec<String>,
    pub summary: Option<String>,
    pub error_message: Option<String>,
    pub usage: Option<TaskUsage>,
    /// What it reached outside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<Bill>,
    /// Of a task with a repository: what it changed there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patch: Option<String>,
    /// The files that were asked for, by their names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub contents: BTreeMap<String, TaskFileContent>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TaskFileContent {
    #[serde(rename = "type")]
    pub kind: String,
    pub size: u64,
    #[serde(flatten)]
    pub content: BytesText,
    /// Only the beginning: the whole is at `/files/{path}`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TaskFiles {
    pub files: Vec<TaskFile>,
}
