//! Tools for AI workers.

use async_trait::async_trait;
use cubicle_store::Page;
use cubicle_tools::workers::{ListWorkerTasks, ReadTaskResult, SpawnWorker, WorkerCall};
use cubicle_tools::{ToolError, Workers};
use serde_json::{Map, Value, json};

use super::{Options, Spawned, TaskRequest};
use crate::app::tools::CallersBench;

const LONGEST_LIST: u32 = 100;
/// Of a prompt in a list.
const LONGEST_SHOWN: usize = 300;

/// What a client says about the conversation in which it calls tools.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Conversation {
    pub(crate) id: Option<String>,
    pub(crate) interface: Option<String>,
    pub(crate) user_name: Option<String>,
}

impl Conversation {
    /// From `_meta` of a call: `conversation_id`, `interface_type`, `user_name`, or the same after `cubicle/`.
    pub(crate) fn of(meta: &Map<String, Value>) -> Self {
        let said = |name: &str| {
            let value = meta.get(name).or_else(|| meta.get(&format!("cubicle/{name}")));
            value.and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned)
        };
        Self { id: said("conversation_id"), interface: said("interface_type"), user_name: said("user_name") }
    }
}

#[async_trait]
impl Workers for CallersBench {
    async fn work(&self, tool: &str, arguments: Value) -> Result<Value, ToolError> {
        let outcome = match WorkerCall::read(tool, arguments)? {
            WorkerCall::Spawn(asked) => self.spawn(asked).await,
            WorkerCall::Result(asked) => self.result(asked).await,
            WorkerCall::List(asked) => self.list_tasks(asked).await,
            WorkerCall::Cancel(asked) => {
                let Spawned { task, .. } = self.app.cancel_task(&self.caller, asked.task_id).await?;
                Ok(json!({ "task_id": task.id, "status": task.status }))
            }
        };
        self.masked(outcome).await
    }
}

impl CallersBench {
    fn conversation_id(&self) -> String {
        let said = self.conversation.id.as_ref().or(self.session.as_ref());
        said.map_or_else(|| "default".into(), Clone::clone)
    }

    async fn spawn(&self, asked: SpawnWorker) -> Result<Value, ToolError> {
        let request = TaskRequest {
            task_description: asked.task_description,
            context_files: asked.context_files,
            model: asked.model.unwrap_or_else(|| "claude".into()),
            timeout_minutes: asked.timeout_minutes,
            save_to_shared: asked.save_to_shared,
            conversation_id: self.conversation_id(),
            interface_type: self.conversation.interface.clone().unwrap_or_else(|| "tool".into()),
            user_name: self.conversation.user_name.clone(),
            notify_url: None,
            options: Options::default(),
        };
        let Spawned { task, position, .. } = self.app.spawn_task(&self.caller, request, None).await?;
        let mut answer = json!({
            "task_id": task.id,
            "status": task.status,
            "context_files": task.context_files,
            "missing_context_files": task.missing_context_files,
        });
        if let Some(position) = position {
            answer["position"] = position.into();
        }
        Ok(answer)
    }

    async fn result(&self, asked: ReadTaskResult) -> Result<Value, ToolError> {
        let include = asked.include_file_contents;
        let found = self.app.task_result(&self.caller, asked.task_id, include).await?;
        let task = found.task;
        let mut answer = json!({
            "task_id": task.id,
            "status": task.status,
            "duration_seconds": task.duration_seconds,
            "exit_code": task.exit_code,
            "output_files": found.files,
            "saved_files": task.saved_files,
            "missing_context_files": task.missing_context_files,
            "summary": task.summary,
            "error_message": task.error_message,
            "usage": task.usage,
        });
        if let Some(patch) = found.patch {
            answer["patch"] = patch.into();
        }
        if !found.contents.is_empty() {
            let contents = found.contents.into_iter().map(|(name, file)| {
                let is_whole = file.bytes.len() as u64 == file.size;
                let text = cubicle_api::BytesText::of(file.bytes);
                let mut shown = serde_json::to_value(text).unwrap_or_default();
                shown["type"] = file.kind.into();
                shown["size"] = file.size.into();
                if !is_whole {
                    shown["truncated"] = true.into();
                }
                (name, shown)
            });
            answer["contents"] = Value::Object(contents.collect());
        }
        Ok(answer)
    }

    async fn list_tasks(&self, asked: ListWorkerTasks) -> Result<Value, ToolError> {
        let conversation = asked.conversation_id.unwrap_or_else(|| self.conversation_id());
        let page = Page { after: None, limit: asked.limit.clamp(1, LONGEST_LIST) };
        let mut tasks =
            self.app.task_list(&self.caller, Some(conversation), asked.status, page.clone()).await?;
        tasks.truncate(page.limit as usize);
        let shown = tasks.into_iter().map(|task| {
            let mut shown = json!({
                "task_id": task.id,
                "status": task.status,
                "model": task.model,
                "task_description": task.task_description.chars().take(LONGEST_SHOWN).collect::<String>(),
                "created_at": task.created_at,
            });
            let mut put = |name: &str, value: Option<Value>| {
                if let Some(value) = value {
                    shown[name] = value;
                }
            };
            put("completed_at", task.completed_at.map(|at| json!(at)));
            put("summary", task.summary.map(Value::from));
            put("error_message", task.error_message.map(Value::from));
            shown
        });
        Ok(json!({ "tasks": shown.collect::<Vec<_>>() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation_is_read_from_what_a_client_says_beside_its_arguments() {
        let of = |meta: Value| Conversation::of(meta.as_object().expect("an object"));
        let said =
            of(json!({ "conversation_id": "c1", "cubicle/interface_type": "telegram", "user_name": "" }));
        let expected =
            Conversation { id: Some("c1".into()), interface: Some("telegram".into()), user_name: None };
        assert_eq!(said, expected);
        assert_eq!(of(json!({ "conversation_id": 7, "progressToken": "x" })), Conversation::default());
    }
}
