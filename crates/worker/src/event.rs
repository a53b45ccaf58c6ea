//! What an agent does, in words that are the same for all agents. One line of JSON each, in `/task/events.jsonl` and on the
//! worker's standard output.

use cubicle_model::Timestamp;
use cubicle_model::task::TaskStatus;
use serde::{Deserialize, Serialize};

use crate::status::Usage;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    pub time: Timestamp,
    #[serde(flatten)]
    pub what: What,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum What {
    Started {
        agent: String,
        version: Option<String>,
        model: Option<String>,
    },
    /// Words of the agent.
    Text {
        text: String,
    },
    ToolCall {
        id: String,
        name: String,
        input: serde_json::Value,
    },
    ToolResult {
        id: String,
        output: String,
        is_error: bool,
    },
    Usage {
        usage: Usage,
    },
    /// The agent asked a person. Nobody answers, which it is told.
    Question {
        text: String,
    },
    /// The provider refused for now, and the agent tries again.
    Retry {
        reason: String,
        after_ms: Option<u64>,
    },
    /// Something that the worker itself has to say.
    Note {
        text: String,
    },
    /// The last one.
    Result {
        status: TaskStatus,
        text: String,
    },
}
