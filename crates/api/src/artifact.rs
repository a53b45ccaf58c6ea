//! Artifacts.

use cubicle_model::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Artifact {
    #[schema(example = "art-aaaaaaaaaaaaaaaaaaaaaaaaaa")]
    pub artifact_id: String,
    /// `journal` or `file`.
    pub kind: String,
    pub name: String,
    /// What it came from.
    pub subject: String,
    pub media_type: String,
    pub size: u64,
    pub sha256: String,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Timestamp>,
}

/// An address that needs no key, for some time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SignedUrl {
    pub url: String,
    #[schema(value_type = String, format = DateTime)]
    pub expires_at: Timestamp,
}
