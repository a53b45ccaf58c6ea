//! Code in some language, the environments it runs in, and what came of it.

use std::collections::BTreeMap;

use cubicle_model::{LimitRequest, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::lease::is_default;
use crate::{Bill, GivenSecrets, LeaseEgress, schema};

/// Code to run in a sandbox.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Execute {
    /// A label. With `POST /execute` it also chooses the template, where the server's settings map tools to templates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 256, example = "python_execute")]
    pub tool_name: Option<String>,
    #[schema(example = "print(6 * 7)")]
    pub code: String,
    /// `python` (default), `bash`, `javascript`, or one that the template brings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 64)]
    pub language: Option<String>,
    /// Python packages, as in a requirements file but without options and addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(example = json!(["pandas>=2.0", "numpy"]))]
    pub requirements: Vec<String>,
    /// The name of an environment that is there, or that the one for `requirements` gets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 63)]
    pub env_name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(exclusive_minimum = 0, maximum = 604800)]
    pub timeout_seconds: Option<f64>,
    /// Files for the working directory: relative names, contents in base64.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, String>,
    /// Where packages come from, if the egress policy of the sandbox allows it. Without it the server's own index is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 2048)]
    pub python_index: Option<String>,
    /// Absolute; `/workspace` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^/")]
    pub cwd: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// What it reads from standard input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// A repeated id is the same execution.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^exec-[a-z2-7]{26}$")]
    pub exec_id: Option<String>,
    /// Report also files that are hidden, caches or dependencies.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all_files: bool,
    /// How much of each stream the answer holds; the rest is in the output stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 16777216)]
    pub output_limit_bytes: Option<u32>,
    /// Of the sandbox that is found or made for it. Refused where the address names one.
    #[serde(default, skip_serializing_if = "is_default")]
    pub place: ExecutePlace,
}

impl Execute {
    pub fn new(code: impl Into<String>) -> Self {
        Self { code: code.into(), ..Self::default() }
    }
}

/// The sandbox of code that names none: one that is kept and has what it needs, or a fresh one.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ExecutePlace {
    /// Without it, the template that the settings name for `tool_name`, or `default`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "default")]
    pub template: Option<String>,
    /// Whom it is for, where the key may act for others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(skip_serializing_if = "is_default")]
    #[schema(value_type = schema::Limits)]
    pub limits: LimitRequest,
    /// What its sandbox may reach.
    #[serde(skip_serializing_if = "is_default")]
    pub egress: LeaseEgress,
    #[serde(skip_serializing_if = "is_default")]
    pub secrets: GivenSecrets,
}

/// What came of code.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Executed {
    pub status: ExecuteStatus,
    /// The same as `stdout`.
    pub output: String,
    pub stdout: String,
    pub stderr: String,
    /// The exact bytes in base64, where they are not UTF-8: the text has a replacement character for each byte that is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout_base64: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr_base64: Option<String>,
    /// Whether more was written than the answer holds.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stdout_truncated: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stderr_truncated: bool,
    /// As a shell would show it: 124 on timeout, 137 when out of memory, 125 when it is not known.
    pub exit_code: i32,
    pub timed_out: bool,
    pub execution_time_ms: f64,
    /// New and changed files under the working directory and the output directory, in base64.
    pub files_produced: BTreeMap<String, String>,
    /// Those that are too large for the answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files_referenced: Vec<FileReference>,
    /// More files were made than an answer names, or they could not be looked at.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub files_incomplete: bool,
    /// The environment that it ran in; absent where that is the template's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<EnvironmentUsed>,
    pub exec_id: String,
    pub sandbox_id: String,
    /// Places of `stdout` and `stderr` where a secret is masked.
    #[serde(default, skip_serializing_if = "is_default")]
    pub redacted: u64,
    /// What it reached; absent where that is nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<Bill>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExecuteStatus {
    Success,
    Error,
    Timeout,
}

/// A file that is too large for an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileReference {
    pub name: String,
    pub bytes: u64,
    /// Where it can be read.
    pub url: String,
    /// Of a sandbox that is gone by now: what was kept of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_id: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EnvironmentUsed {
    pub name: String,
    pub cache: CacheUse,
    /// 0 for a hit.
    pub build_ms: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CacheUse {
    Hit,
    Miss,
}

/// A Python environment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Environment {
    pub name: String,
    #[schema(example = json!(["pandas==2.2.0", "numpy==1.26.4"]))]
    pub packages: Vec<String>,
    #[schema(example = "3.12")]
    pub python_version: String,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    pub last_used_at: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Environments {
    pub environments: Vec<Environment>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateEnvironment {
    #[schema(min_length = 1, max_length = 63)]
    pub name: String,
    #[schema(min_items = 1, example = json!(["pandas>=2.0"]))]
    pub requirements: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 2048)]
    pub python_index: Option<String>,
}

/// How a sandbox is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SandboxHealth {
    #[schema(example = "healthy")]
    pub status: String,
    /// `idle`, `busy`, or `warming` while an interpreter or an environment is made ready.
    pub state: String,
    pub environments: Vec<Environment>,
    /// How much code may run at once.
    pub capacity: u64,
    pub current_load: u64,
    pub uptime_seconds: u64,
}
