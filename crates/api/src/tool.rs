//! Tools for agents.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// Definitions of tools, in the form that was asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Tools {
    #[schema(value_type = Vec<Object>)]
    pub tools: Vec<Value>,
}

/// What a tool is asked, as its `input_schema` says.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[schema(value_type = Object)]
pub struct ToolArguments(pub Map<String, Value>);

/// What a tool answers, as its `output_schema` says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(value_type = Object)]
pub struct ToolAnswer(pub Map<String, Value>);

/// Where a client gets a token for this server, as in RFC 9728.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ResourceMetadata {
    pub resource: String,
    /// Issuers of tokens that are accepted; none where there are only keys.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub authorization_servers: Vec<String>,
    pub bearer_methods_supported: Vec<String>,
    pub scopes_supported: Vec<String>,
    pub resource_name: String,
}
