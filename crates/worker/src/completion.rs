//! The body of the webhook that tells that a task has ended; the same for the worker's call and for calls to receivers.

use cubicle_model::TaskId;
use cubicle_model::task::TaskStatus;
use serde::{Deserialize, Serialize};

use crate::Status;

pub const EVENT_TYPE: &str = "worker_completed";
pub const SOURCE: &str = "kubernetes";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Completion {
    /// [`EVENT_TYPE`].
    pub event_type: String,
    /// [`SOURCE`], wherever the task ran: receivers compare it.
    pub source: String,
    pub task_id: TaskId,
    pub status: TaskStatus,
    pub duration_seconds: u64,
    pub exit_code: Option<i32>,
    /// Names only.
    pub output_files: Vec<String>,
    pub error_message: Option<String>,
}

impl Completion {
    pub fn of(task_id: TaskId, status: &Status) -> Self {
        Self {
            event_type: EVENT_TYPE.into(),
            source: SOURCE.into(),
            task_id,
            status: status.status,
            duration_seconds: status.duration_seconds,
            exit_code: status.exit_code,
            output_files: status.output_files.iter().map(|file| file.name.clone()).collect(),
            error_message: status.error_message.clone(),
        }
    }
}
