//! Sandboxes.

use cubicle_model::{Isolation, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::schema;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Sandbox {
    #[schema(example = "sbx-aaaaaaaaaaaaaaaaaaaaaaaaaa")]
    pub sandbox_id: String,
    /// `creating`, `idle`, `leased`, `running`, `teardown` or `gone`.
    #[schema(example = "leased")]
    pub state: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    pub template: String,
    #[schema(value_type = schema::Isolation, example = "namespaces")]
    pub isolation: Isolation,
    pub node: String,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub ready_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub ended_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_because: Option<String>,
}

/// What a sandbox uses. What its host does not count is absent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SandboxMetrics {
    pub sandbox_id: String,
    pub execs_running: u64,
    /// As the kernel counts it, caches included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Of everything that ran in it so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_seconds: Option<f64>,
    /// With threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<u64>,
    pub journal_bytes: u64,
    pub journal_limit_bytes: u64,
    /// The seq that the next record of its journal will have.
    pub journal_next_seq: u64,
    /// Until it ends itself, unless its lease is renewed.
    pub deadline_seconds: u64,
}

/// An address at which a port of a sandbox can be reached without a key, for some time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PortLink {
    pub url: String,
    #[schema(value_type = String, format = DateTime)]
    pub expires_at: Timestamp,
}
