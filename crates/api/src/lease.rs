//! Leases.

use std::collections::BTreeMap;

use cubicle_model::lease::{Admission, LeaseEnd, LeaseStatus};
use cubicle_model::{LimitRequest, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{BytesText, GivenSecrets, LeaseEgress, schema};

/// What a lease is asked to be. Everything has a default.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CreateLease {
    /// The template of the sandbox.
    #[schema(example = "default")]
    pub template: String,
    /// Whom it is for, where the key may act for others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// With `request`, what makes a repeated call the same one. Without `request` every call is a new one.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schema(max_length = 256)]
    pub workflow: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 256)]
    pub request: Option<String>,
    /// Seconds it lives without a heartbeat.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 604800)]
    pub ttl_seconds: Option<u32>,
    /// How often its owner means to send heartbeats.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 604800)]
    pub heartbeat_seconds: Option<u32>,
    /// Over the template's environment.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Written before the lease is handed out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<NewFile>,
    /// Over the template's limits.
    #[serde(skip_serializing_if = "is_default")]
    #[schema(value_type = schema::Limits)]
    pub limits: LimitRequest,
    /// What its sandbox may reach.
    #[serde(skip_serializing_if = "is_default")]
    pub egress: LeaseEgress,
    #[serde(skip_serializing_if = "is_default")]
    pub secrets: GivenSecrets,
    /// Whether to wait in the queue where there is no room. Otherwise the answer is `full`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub queue: bool,
}

impl Default for CreateLease {
    fn default() -> Self {
        Self {
            template: "default".into(),
            user: None,
            workflow: String::new(),
            request: None,
            ttl_seconds: None,
            heartbeat_seconds: None,
            env: BTreeMap::new(),
            files: Vec::new(),
            limits: LimitRequest::default(),
            egress: LeaseEgress::default(),
            secrets: GivenSecrets::default(),
            queue: false,
        }
    }
}

pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// A file that is put into a sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewFile {
    /// Absolute, or in `/workspace`.
    #[schema(example = "/workspace/main.py")]
    pub path: String,
    #[serde(flatten)]
    pub content: BytesText,
    /// Permission bits.
    #[serde(default = "ordinary_mode")]
    #[schema(example = 420)]
    pub mode: u32,
}

fn ordinary_mode() -> u32 {
    0o644
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Lease {
    #[schema(example = "lease-aaaaaaaaaaaaaaaaaaaaaaaaaa")]
    pub lease_id: String,
    /// Absent while it waits in the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<String>,
    #[schema(value_type = schema::LeaseStatus, example = "ACTIVE")]
    pub status: LeaseStatus,
    /// How it came to its sandbox.
    #[schema(value_type = schema::Admission, example = "warm")]
    pub admission: Admission,
    pub tenant: String,
    pub user: String,
    pub template: String,
    pub workflow: String,
    pub request: String,
    pub ttl_seconds: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heartbeat_seconds: Option<u32>,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    pub expires_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub ended_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::LeaseEnd>, example = "released")]
    pub ended_because: Option<LeaseEnd>,
    /// Only while it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueuePlace>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct QueuePlace {
    /// Counted from 1.
    pub position: u64,
    /// From how long leases lasted of late; absent where nothing is known yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimated_seconds: Option<u64>,
}
