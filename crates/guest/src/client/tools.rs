//! Tools that work near the files of a sandbox.

use serde_json::Value;

use super::error::ClientError;
use super::exec::to_json;
use super::{Guest, Repeat};

impl Guest {
    /// Has a tool done inside, with its arguments and its answer as `wire::tools` has them.
    pub async fn tool(&self, name: &str, arguments: &Value) -> Result<Value, ClientError> {
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_') {
            return Err(ClientError::Invalid("a tool has a name of small letters"));
        }
        // A second time an edit would not find what it has replaced.
        let line = format!("POST /tools/{name}");
        self.call_json(&line, &to_json(arguments)?, Repeat::Never).await
    }
}
