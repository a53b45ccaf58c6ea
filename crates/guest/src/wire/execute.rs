//! `POST /execute`: code in some language, with what it needs, and what came of it.

use std::collections::BTreeMap;

use cubicle_model::{ExecId, Timestamp};
use serde::{Deserialize, Serialize};

/// The body of `POST /execute`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Execute {
    /// A label for whoever reads the journal; it changes nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_name: Option<String>,
    pub code: String,
    /// `python` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requirements: Vec<String>,
    /// An environment that is attached, or the name that the one for `requirements` gets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env_name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<f64>,
    /// Relative paths below the working directory, with contents in base64.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub python_index: Option<String>,
    /// Absolute; `/workspace` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// A repeated id attaches to what runs or ran under it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec_id: Option<ExecId>,
    /// Also files and directories that are hidden, caches or dependencies.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all_files: bool,
    /// What only a host knows.
    #[serde(default, skip_serializing_if = "HostSide::is_default")]
    pub host: HostSide,
}

/// What the host that manages a sandbox adds to a request.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HostSide {
    /// The command of a language that the template brings, with `{file}` where the code's file goes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interpreter: Option<Vec<String>>,
    /// Use an interpreter that is ready, and have one ready for the next time.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub warm: bool,
}

impl HostSide {
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// The answer to `POST /execute` for whoever wants JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Executed {
    pub status: Status,
    /// The same as `stdout`.
    pub output: String,
    pub stdout: String,
    pub stderr: String,
    /// The exact bytes in base64, where they are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout_base64: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr_base64: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stdout_truncated: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stderr_truncated: bool,
    pub exit_code: i32,
    pub timed_out: bool,
    pub execution_time_ms: f64,
    #[serde(flatten)]
    pub produced: Produced,
    pub env: Option<EnvUsed>,
    pub exec_id: ExecId,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Success,
    Error,
    Timeout,
}

/// What is new or changed under the working directory and the output directory.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Produced {
    /// Contents in base64, up to the caps below.
    pub files_produced: BTreeMap<String, String>,
    /// Files beyond the caps; they are in the sandbox.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files_referenced: Vec<FileReference>,
    /// More files than an answer names.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub files_incomplete: bool,
}

/// A produced file up to this size is in the answer itself, as long as all of them together are not larger than the second.
pub const LARGEST_INLINE_FILE: u64 = 4 * 1024 * 1024;
pub const LARGEST_INLINE_FILES: u64 = 8 * 1024 * 1024;
/// An answer names at most so many produced files.
pub const MOST_PRODUCED_FILES: usize = 1000;
/// A request brings at most so many files, of so many bytes together once decoded.
pub const MOST_GIVEN_FILES: usize = 1000;
pub const GIVEN_FILES_BYTES: u64 = 32 * 1024 * 1024;
pub const LONGEST_CODE: usize = 4 * 1024 * 1024;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileReference {
    pub name: String,
    /// Absolute, in the sandbox.
    pub path: String,
    pub bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EnvUsed {
    pub name: String,
    pub cache: Cache,
    pub build_ms: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cache {
    Hit,
    Miss,
}

/// An environment that a sandbox has: one entry of `GET /envs` and of `/health`, and the body of `PUT /envs/{name}`, by
/// which the host says that it has attached one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Environment {
    pub name: String,
    /// As in `pandas==2.2.0`.
    pub packages: Vec<String>,
    /// As in `3.12`.
    pub python_version: String,
    pub created_at: Timestamp,
    pub last_used_at: Timestamp,
    /// Where its interpreter is, in the sandbox.
    pub python: String,
    /// What a warm interpreter has imported.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub modules: Vec<String>,
    /// Which contents it has; the same key is the same tree.
    pub key: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct EnvironmentList {
    pub environments: Vec<Environment>,
}

/// The body of `POST /envs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateEnvironment {
    pub name: String,
    #[serde(default)]
    pub requirements: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub python_index: Option<String>,
}

/// The body of `POST /warm`: have an interpreter ready.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WarmRequest {
    /// The environment whose interpreter it is; without one the sandbox's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<String>,
    /// Answer when it is ready instead of at once.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub wait: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warmed {
    pub ready: bool,
    /// Why there will be none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub because: Option<String>,
}
