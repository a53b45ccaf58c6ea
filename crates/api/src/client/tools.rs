//! Tools for agents.

use cubicle_model::SandboxId;
use hyper::Method;
use serde_json::Value;

use super::{Call, Client, ClientError};
use crate::Tools;

impl Client {
    /// Definitions of the tools.
    pub async fn tools(&self) -> Result<Tools, ClientError> {
        self.get("/api/v1/tools").await
    }

    /// Does a tool that needs no sandbox, however long it takes.
    pub async fn call_tool_anywhere(&self, tool: &str, arguments: &Value) -> Result<Value, ClientError> {
        let path = format!("/api/v1/tools/{tool}");
        self.answer(Call { deadline: None, ..Call::json(Method::POST, path, arguments) }).await
    }

    /// Does a tool in a sandbox, however long it takes.
    pub async fn call_tool(
        &self,
        sandbox: SandboxId,
        tool: &str,
        arguments: &Value,
    ) -> Result<Value, ClientError> {
        let path = format!("/api/v1/sandboxes/{sandbox}/tools/{tool}");
        self.answer(Call { deadline: None, ..Call::json(Method::POST, path, arguments) }).await
    }
}
