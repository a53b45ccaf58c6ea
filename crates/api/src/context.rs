//! Contexts: interpreters that keep their state.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateContext {
    /// `python` (default) or what else this server's sandboxes have contexts for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 64)]
    pub language: Option<String>,
    /// Absolute; `/workspace` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^/")]
    pub cwd: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requirements: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 63)]
    pub env_name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 2048)]
    pub python_index: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Context {
    /// Also that of the exec which was its first process.
    #[schema(example = "exec-aaaaaaaaaaaaaaaaaaaaaaaaaa")]
    pub context_id: String,
    /// The exec that its process is now; a restart makes another one.
    pub exec_id: String,
    pub sandbox_id: String,
    pub language: String,
    pub cwd: String,
    /// `idle`, `busy` or `dead`.
    pub state: String,
    /// How many cells have been run.
    pub execution_count: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env_name: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Contexts {
    pub contexts: Vec<Context>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecuteCell {
    #[schema(example = "1 + 1")]
    pub code: String,
    /// Seconds until it is interrupted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(exclusive_minimum = 0, maximum = 604800)]
    pub timeout_seconds: Option<f64>,
}

/// A cell that has ended, for whoever does not want it as a stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CellResult {
    /// `success`, `error`, `interrupted`, `timeout` or `died`.
    pub status: String,
    pub execution_count: u64,
    pub stdout: String,
    pub stderr: String,
    /// Results and what was shown, each by media type, in order.
    pub results: Vec<CellOutput>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<CellError>,
    /// More was printed or shown than an answer holds; the stream has all of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
    /// Of its first frame: where the stream of this cell begins.
    pub seq: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CellOutput {
    /// The value of the last expression, and not something that was shown on the way.
    pub is_result: bool,
    /// `text/plain`, `text/html`, `image/png` (in base64), …
    #[schema(value_type = Object)]
    pub data: BTreeMap<String, serde_json::Value>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CellError {
    pub name: String,
    pub value: String,
    pub traceback: Vec<String>,
}
