//! Tasks of AI workers.

use std::time::Duration;

use cubicle_model::{TaskId, TaskStatus};
use hyper::Method;

use super::query::{Query, encoded};
use super::{ANSWERING, Call, Client, ClientError, Download};
use crate::{CreateTask, Task, TaskFile, TaskFiles, TaskResult};

/// Which tasks are listed.
#[derive(Debug, Clone, Default)]
pub struct TaskQuery {
    pub conversation: Option<String>,
    pub status: Option<TaskStatus>,
}

impl Client {
    pub async fn create_task(&self, asked: &CreateTask) -> Result<Task, ClientError> {
        self.answer(Call::json(Method::POST, "/api/v1/tasks", asked).repeatable(self.idempotency_key())).await
    }

    pub async fn tasks(&self, query: &TaskQuery, most: usize) -> Result<Vec<Task>, ClientError> {
        let query = Query::default()
            .maybe("conversation_id", query.conversation.as_ref())
            .maybe("status", query.status.map(TaskStatus::name));
        self.pages("/api/v1/tasks", query, most).await
    }

    pub async fn task(&self, id: TaskId) -> Result<Task, ClientError> {
        self.get(format!("/api/v1/tasks/{id}")).await
    }

    /// The task when it has ended, or as it is after so many seconds.
    pub async fn wait_for_task(&self, id: TaskId, seconds: u32) -> Result<Task, ClientError> {
        let path = Query::default().with("wait", seconds).on(&format!("/api/v1/tasks/{id}"));
        let deadline = Some(ANSWERING + Duration::from_secs(seconds.into()));
        self.answer(Call { deadline, ..Call::new(Method::GET, path) }).await
    }

    /// With the contents of these files.
    pub async fn task_result(&self, id: TaskId, include: &[String]) -> Result<TaskResult, ClientError> {
        let names = (!include.is_empty()).then(|| include.join(","));
        let query = Query::default().maybe("include", names);
        self.get(query.on(&format!("/api/v1/tasks/{id}/result"))).await
    }

    pub async fn task_files(&self, id: TaskId) -> Result<Vec<TaskFile>, ClientError> {
        let files: TaskFiles = self.get(format!("/api/v1/tasks/{id}/files")).await?;
        Ok(files.files)
    }

    pub async fn task_file(&self, id: TaskId, name: &str) -> Result<Download, ClientError> {
        let name = name.split('/').map(encoded).collect::<Vec<_>>().join("/");
        self.download(format!("/api/v1/tasks/{id}/files/{name}")).await
    }

    pub async fn cancel_task(&self, id: TaskId) -> Result<Task, ClientError> {
        self.answer(Call::new(Method::POST, format!("/api/v1/tasks/{id}/cancel"))).await
    }

    pub async fn retry_task(&self, id: TaskId) -> Result<Task, ClientError> {
        let call = Call::new(Method::POST, format!("/api/v1/tasks/{id}/retry"));
        self.answer(call.repeatable(self.idempotency_key())).await
    }
}
