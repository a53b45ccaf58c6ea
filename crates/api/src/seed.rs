//! The sandbox manager's dialect: `/sandboxes/leases` in camelCase.

use cubicle_model::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AcquireLease {
    /// Must be the token's subject, unless the key may act for others.
    #[schema(min_length = 1, max_length = 256)]
    pub user_id: String,
    #[schema(max_length = 256)]
    pub workflow_id: String,
    #[schema(max_length = 256)]
    pub request_id: String,
    #[serde(default)]
    #[schema(minimum = 1, maximum = 604800)]
    pub ttl_seconds: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AcquiredLease {
    pub lease_id: String,
    pub sandbox_id: String,
    #[schema(value_type = String, format = DateTime)]
    pub expires_at: Timestamp,
}
