//! Files that outlive sandboxes, and skills.

use std::collections::BTreeMap;

use cubicle_model::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::Encoding;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SharedFiles {
    pub entries: Vec<SharedFile>,
    /// Whether there is more than was listed.
    pub truncated: bool,
}

/// A file or a directory of the shared workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SharedFile {
    /// Relative to `/workspace/shared`.
    pub path: String,
    #[serde(rename = "type")]
    pub kind: SharedFileKind,
    pub size: u64,
    #[schema(value_type = String, format = DateTime)]
    pub modified: Timestamp,
    /// By its name; absent where that does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mime: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SharedFileKind {
    File,
    Directory,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SharedWritten {
    pub path: String,
    pub size: u64,
    /// Whether there was no such file before.
    pub created: bool,
    /// As the header says it.
    pub etag: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SharedDeleted {
    pub path: String,
    /// Files that are gone, and whose last versions were kept.
    pub files: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveShared {
    #[schema(min_length = 1, max_length = 1024)]
    pub from: String,
    #[schema(min_length = 1, max_length = 1024)]
    pub to: String,
    /// Whether a file that is there already may be replaced. It is kept as a version.
    #[serde(default)]
    pub overwrite: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SharedVersions {
    pub path: String,
    /// What the file was before, the newest first.
    pub versions: Vec<SharedVersion>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SharedVersion {
    pub version: u64,
    pub size: u64,
    /// When this state was written.
    #[schema(value_type = String, format = DateTime)]
    pub modified: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Skills {
    pub skills: Vec<SkillShown>,
    /// What looks like a skill and cannot be used.
    pub refused: Vec<SkillRefused>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SkillShown {
    pub name: String,
    pub description: String,
    /// Of its `SKILL.md`, relative to `/workspace/shared`.
    pub path: String,
    /// What is against the rules of the format and was read all the same.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SkillRefused {
    pub path: String,
    pub why: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Skill {
    pub name: String,
    pub description: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub license: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compatibility: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_tools: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = Object)]
    pub metadata: BTreeMap<String, Value>,
    /// Of its `SKILL.md`, relative to `/workspace/shared`.
    pub path: String,
    /// The instructions.
    pub content: String,
    /// Its other files.
    pub files: Vec<SkillFile>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SkillFile {
    /// Relative to `/workspace/shared`.
    pub path: String,
    pub size: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateSkill {
    #[schema(min_length = 1, max_length = 64, pattern = "^[a-z0-9]+(-[a-z0-9]+)*$")]
    pub name: String,
    /// What it does and when to use it.
    #[schema(min_length = 1, max_length = 1024, pattern = r"\S")]
    pub description: String,
    /// The instructions, in Markdown.
    pub content: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 255)]
    pub files: Vec<NewSkillFile>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewSkillFile {
    /// Relative to the skill.
    #[schema(min_length = 1, max_length = 1024)]
    pub path: String,
    pub content: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encoding: Option<Encoding>,
}
