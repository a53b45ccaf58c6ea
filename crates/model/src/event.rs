//! Something that happened to an object of a tenant.

use serde::{Deserialize, Serialize};

use crate::{EventId, Timestamp};

/// `seq` counts per tenant without gaps, and is what a reader resumes at.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event<Data> {
    pub id: EventId,
    pub seq: i64,
    /// As in `lease.active`: the kind of object and what became of it.
    #[serde(rename = "type")]
    pub kind: String,
    /// The id of the object.
    pub subject: String,
    pub time: Timestamp,
    pub data: Data,
}
