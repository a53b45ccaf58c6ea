//! Tenants, keys, audit, health.

use std::collections::BTreeSet;

use cubicle_model::{Quota, Scope, Timestamp, Usage};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::schema;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateTenant {
    #[schema(example = "acme", pattern = "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
    pub name: String,
    #[serde(default)]
    #[schema(value_type = schema::Quota)]
    pub quota: Quota,
    #[serde(default = "one")]
    #[schema(minimum = 1, maximum = 1000)]
    pub weight: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplaceTenant {
    #[serde(default)]
    #[schema(value_type = schema::Quota)]
    pub quota: Quota,
    #[serde(default = "one")]
    #[schema(minimum = 1, maximum = 1000)]
    pub weight: u32,
}

fn one() -> u32 {
    1
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Tenant {
    pub name: String,
    #[schema(value_type = schema::Quota)]
    pub quota: Quota,
    pub weight: u32,
    /// What it has now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Usage>)]
    pub usage: Option<Usage>,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// The ETag, for `If-Match`.
    pub version: i64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateKey {
    /// What you call it.
    #[schema(example = "ci", min_length = 1, max_length = 256)]
    pub label: String,
    /// The own tenant when absent; another one only for administrators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Yourself when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// `read`, `run`, `manage`, `act_for_others`, `admin`; never more than your own.
    #[schema(value_type = Vec<schema::Scope>, min_items = 1, example = json!(["read", "run"]))]
    pub scopes: BTreeSet<Scope>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub requests_per_second: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Key {
    #[schema(example = "key-aaaaaaaaaaaaaaaaaaaaaaaaaa")]
    pub key_id: String,
    pub label: String,
    pub tenant: String,
    pub user: String,
    #[schema(value_type = Vec<schema::Scope>)]
    pub scopes: BTreeSet<Scope>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_per_second: Option<u32>,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub revoked_at: Option<Timestamp>,
}

/// A key with its secret, which is shown this once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NewKey {
    #[serde(flatten)]
    pub key: Key,
    pub secret: String,
}

/// Who the server takes you for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WhoAmI {
    pub tenant: String,
    pub user: String,
    #[schema(value_type = Vec<schema::Scope>)]
    pub scopes: BTreeSet<Scope>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<ShownToken>,
}

/// The token that you came with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ShownToken {
    pub issuer: String,
    #[schema(value_type = String, format = DateTime)]
    pub expires_at: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AuditEntry {
    pub node: String,
    pub seq: i64,
    #[schema(value_type = String, format = DateTime)]
    pub time: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    pub actor: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[schema(example = "exec.create")]
    pub action: String,
    pub subject: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    pub outcome: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Of the detail as it was written, where something in it is masked above: what the hash covers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail_sha256: Option<String>,
    /// Of this entry and all before it on its node.
    pub hash: String,
}

/// The newest entry of a node's log. Keep a copy elsewhere, and a cut tail is noticed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AuditHead {
    pub node: String,
    pub seq: i64,
    pub hash: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    #[schema(example = "ok")]
    pub status: String,
    pub version: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Readiness {
    pub ready: bool,
    pub checks: Vec<ReadinessCheck>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReadinessCheck {
    #[schema(example = "store")]
    pub name: String,
    pub ok: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub because: Option<String>,
}
