//! Files of a sandbox.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Entry {
    pub name: String,
    pub path: String,
    /// Where `path` is not valid UTF-8: the real one, percent-encoded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_encoded: Option<String>,
    #[serde(rename = "type")]
    pub kind: EntryKind,
    pub size: u64,
    /// Permission bits in octal.
    #[schema(example = "0644")]
    pub mode: String,
    /// Seconds since 1970.
    pub mtime: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    File,
    Directory,
    Symlink,
    Other,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Listing {
    pub path: String,
    pub entries: Vec<Entry>,
    /// Whether there is more than was listed.
    pub truncated: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Move {
    #[schema(min_length = 1, pattern = r"^[^\x00]+$")]
    pub from: String,
    #[schema(min_length = 1, pattern = r"^[^\x00]+$")]
    pub to: String,
    /// Whether a file that is there already may be replaced.
    #[serde(default)]
    pub replace: bool,
}

/// What came of an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Unpacked {
    pub files: u64,
    pub directories: u64,
    pub links: u64,
    pub bytes: u64,
}
