//! `POST /tools/{name}`: what agents do with files, as questions and answers.
//!
//! Paths are absolute or relative to `/workspace`. Lines are counted from 1.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A file that is edited, patched or written has at most so many bytes.
pub const LARGEST_FILE: usize = 16 * 1024 * 1024;
/// Of the text that one `read_file` answers with.
pub const LARGEST_TEXT: usize = 256 * 1024;
/// A body of a tool's request, where text may be written with escapes.
pub const LONGEST_REQUEST: usize = 3 * LARGEST_FILE;
pub const USUAL_LINES: u64 = 2000;
pub const USUAL_ENTRIES: usize = 1000;
pub const MOST_ENTRIES: usize = 10_000;
pub const USUAL_MATCHES: usize = 100;
pub const MOST_MATCHES: usize = 2000;
pub const MOST_CONTEXT: usize = 50;
pub const LONGEST_PATTERN: usize = 4096;
pub const MOST_PATCHED_FILES: usize = 200;

/// How the bytes of a file are text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Encoding {
    #[default]
    #[serde(rename = "utf-8")]
    Utf8,
    #[serde(rename = "latin-1")]
    Latin1,
    /// The byte order mark decides; little-endian without one.
    #[serde(rename = "utf-16")]
    Utf16,
    /// Not as text at all.
    #[serde(rename = "base64")]
    Base64,
}

impl Encoding {
    pub fn name(self) -> &'static str {
        match self {
            Self::Utf8 => "utf-8",
            Self::Latin1 => "latin-1",
            Self::Utf16 => "utf-16",
            Self::Base64 => "base64",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadFile {
    pub path: String,
    /// The first line; with base64, bytes to skip.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// Lines; with base64, bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    #[serde(default)]
    pub encoding: Encoding,
    #[serde(default)]
    pub line_numbers: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileText {
    pub path: String,
    pub content: String,
    pub encoding: Encoding,
    /// Of the whole file, in bytes.
    pub size: u64,
    /// The first line of `content`, and its last one; absent with base64 and where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_line: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_line: Option<u64>,
    /// Absent where the file was not read to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_lines: Option<u64>,
    /// Whether the file goes on behind `content`.
    pub truncated: bool,
    /// The `offset` that goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_offset: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WriteFile {
    pub path: String,
    pub content: String,
    #[serde(default)]
    pub encoding: Encoding,
    /// Permission bits in octal; those of the file that is replaced, or 0644, when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Whether a file that is there already is a refusal.
    #[serde(default)]
    pub must_be_new: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileWritten {
    pub path: String,
    pub size: u64,
    /// Whether there was no such file before.
    pub created: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EditFile {
    pub path: String,
    pub old_string: String,
    pub new_string: String,
    #[serde(default)]
    pub replace_all: bool,
    /// How often the old text must be there; all of them are replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_replacements: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEdited {
    pub path: String,
    pub replacements: u64,
    /// Where the first of them begin, by the lines of the file as it was.
    pub lines: Vec<u64>,
    pub size: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeleteFile {
    pub path: String,
    /// A directory with everything in it.
    #[serde(default)]
    pub recursive: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileDeleted {
    pub path: String,
    /// `file`, `directory`, `symlink` or `other`.
    #[serde(rename = "type")]
    pub kind: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListDir {
    #[serde(default = "workspace")]
    pub path: String,
    #[serde(default)]
    pub recursive: bool,
    /// Also names that begin with a dot.
    #[serde(default = "yes")]
    pub hidden: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DirListed {
    pub path: String,
    pub entries: Vec<DirEntry>,
    pub truncated: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DirEntry {
    pub path: String,
    /// `file`, `directory`, `symlink` or `other`.
    #[serde(rename = "type")]
    pub kind: String,
    pub size: u64,
    /// Seconds since 1970.
    pub mtime: f64,
    /// Where a link points to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Glob {
    pub pattern: String,
    #[serde(default = "workspace")]
    pub path: String,
    /// Also names that begin with a dot, where the pattern does not name them.
    #[serde(default)]
    pub hidden: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Globbed {
    /// Absolute, in order. A directory ends in a slash.
    pub paths: Vec<String>,
    pub truncated: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grep {
    pub pattern: String,
    /// A directory or a file.
    #[serde(default = "workspace")]
    pub path: String,
    /// Globs of files that are searched; all when there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub include: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
    #[serde(default)]
    pub ignore_case: bool,
    /// The pattern is a text, not a regular expression.
    #[serde(default)]
    pub literal: bool,
    /// Lines around each match.
    #[serde(default)]
    pub context: usize,
    /// Also files and directories whose names begin with a dot.
    #[serde(default)]
    pub hidden: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_results: Option<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Grepped {
    pub matches: Vec<Match>,
    pub files_searched: u64,
    /// Binary files, those that are too large, and those that cannot be read.
    pub files_skipped: u64,
    /// Whether there may be more matches.
    pub truncated: bool,
    /// Why: `max_results`, `size` or `time`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub truncated_by: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Match {
    pub path: String,
    pub line: u64,
    /// In characters, from 1.
    pub column: u64,
    pub text: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub before: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApplyPatch {
    /// A unified diff.
    pub patch: String,
    /// What names in the patch are relative to.
    #[serde(default = "workspace")]
    pub path: String,
    /// Directories to leave out at the beginning of names; `a/` and `b/` are left out when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strip: Option<usize>,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PatchApplied {
    pub files: Vec<PatchedFile>,
    pub dry_run: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PatchedFile {
    pub path: String,
    /// `modified`, `created`, `deleted` or `renamed`.
    pub action: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renamed_from: Option<String>,
    pub added: u64,
    pub removed: u64,
    /// Hunks that fitted at another line than they said, by their number, with by how many lines.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub moved_hunks: BTreeMap<usize, i64>,
}

fn workspace() -> String {
    "/workspace".into()
}

fn yes() -> bool {
    true
}
