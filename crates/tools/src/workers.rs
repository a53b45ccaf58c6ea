//! What tools for AI workers are told.

use cubicle_model::{TaskId, TaskStatus};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::call::parsed;
use crate::error::ToolError;

/// A call of one of the tools of [`crate::definitions::workers`].
#[derive(Debug, Clone, PartialEq)]
pub enum WorkerCall {
    Spawn(SpawnWorker),
    Result(ReadTaskResult),
    List(ListWorkerTasks),
    Cancel(CancelWorkerTask),
}

impl WorkerCall {
    pub fn read(tool: &str, arguments: Value) -> Result<Self, ToolError> {
        match tool {
            "spawn_worker" => parsed(arguments).map(Self::Spawn),
            "read_task_result" => parsed(arguments).map(Self::Result),
            "list_worker_tasks" => parsed(arguments).map(Self::List),
            "cancel_worker_task" => parsed(arguments).map(Self::Cancel),
            _ => Err(crate::call::no_such_tool()),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpawnWorker {
    pub task_description: String,
    #[serde(default)]
    pub context_files: Vec<String>,
    #[serde(default)]
    pub model: Option<String>,
    #[serde(default)]
    pub timeout_minutes: Option<u32>,
    #[serde(default)]
    pub save_to_shared: bool,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadTaskResult {
    #[serde(deserialize_with = "id")]
    pub task_id: TaskId,
    #[serde(default)]
    pub include_file_contents: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListWorkerTasks {
    #[serde(default)]
    pub conversation_id: Option<String>,
    #[serde(default)]
    pub status: Option<TaskStatus>,
    #[serde(default = "usual_limit")]
    pub limit: u32,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CancelWorkerTask {
    #[serde(deserialize_with = "id")]
    pub task_id: TaskId,
}

fn usual_limit() -> u32 {
    10
}

/// Models write ids with space around them.
fn id<'de, D: Deserializer<'de>>(from: D) -> Result<TaskId, D::Error> {
    String::deserialize(from)?.trim().parse().map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_left_out_has_its_usual_value() {
        let WorkerCall::Spawn(spawn) =
            WorkerCall::read("spawn_worker", json!({ "task_description": "x" })).unwrap()
        else {
            panic!("another call");
        };
        assert_eq!((spawn.model, spawn.timeout_minutes, spawn.save_to_shared), (None, None, false));
        let WorkerCall::List(list) = WorkerCall::read("list_worker_tasks", json!({})).unwrap() else {
            panic!("another call");
        };
        assert_eq!(list.limit, 10);
        assert!(WorkerCall::read("spawn_worker", json!({})).is_err());
        assert!(WorkerCall::read("read_task_result", json!({ "task_id": "task-1" })).is_err());
    }
}
