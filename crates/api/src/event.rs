use cubicle_model::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Something that happened. As SSE its type is the event and its seq the id.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    #[schema(example = "evt-aaaaaaaaaaaaaaaaaaaaaaaaaa")]
    pub id: String,
    /// Counts per tenant; where to resume.
    pub seq: i64,
    #[serde(rename = "type")]
    #[schema(example = "lease.active")]
    pub kind: String,
    /// The id of the object it happened to.
    pub subject: String,
    #[schema(value_type = String, format = DateTime)]
    pub time: Timestamp,
    pub data: serde_json::Value,
}
