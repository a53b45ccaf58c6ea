//! Execs and their output.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cubicle_model::egress::Policy;
use cubicle_model::{Command, Exit, LimitRequest, Stdin, Timestamp, TtySize};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::lease::is_default;
use crate::schema;
use crate::{Bill, GivenSecrets, LeaseEgress, NewFile};

/// What to run in a sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateExec {
    /// One string for the shell, or a list: a program and its arguments.
    #[schema(value_type = schema::Command, example = json!(["python3", "-c", "print(6*7)"]))]
    pub command: Command,
    /// Absolute; `/workspace` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^/")]
    pub cwd: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// `"closed"` (default), `{"text": "…"}`, or `"stream"` for what is sent later.
    #[serde(default, skip_serializing_if = "is_default")]
    #[schema(value_type = schema::Stdin)]
    pub stdin: Stdin,
    /// A terminal of this size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Resize>)]
    pub tty: Option<TtySize>,
    /// Seconds until the whole tree is ended and reported as timed out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(exclusive_minimum = 0, maximum = 604800)]
    pub timeout_seconds: Option<f64>,
    /// A repeated id attaches to what runs or ran under it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^exec-[a-z2-7]{26}$")]
    pub exec_id: Option<String>,
    /// Answer as soon as it has started.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub background: bool,
    /// How much of each stream the answer holds; the rest is in the output stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 16777216)]
    pub output_limit_bytes: Option<u32>,
    /// A policy that holds while it runs, for everything in its sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "allow @python")]
    pub policy: Option<Policy>,
}

impl CreateExec {
    pub fn new(command: Command) -> Self {
        Self {
            command,
            cwd: None,
            env: BTreeMap::new(),
            stdin: Stdin::Closed,
            tty: None,
            timeout_seconds: None,
            exec_id: None,
            background: false,
            output_limit_bytes: None,
            policy: None,
        }
    }
}

/// An exec in a sandbox of its own: lease, exec and release in one call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateOneShot {
    #[serde(default = "default_template")]
    #[schema(example = "default")]
    pub template: String,
    /// Whom it is for, where the key may act for others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// One string for the shell, or a list: a program and its arguments.
    #[schema(value_type = schema::Command, example = json!("echo hello"))]
    pub command: Command,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^/")]
    pub cwd: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// `"closed"` (default) or `{"text": "…"}`.
    #[serde(default, skip_serializing_if = "is_default")]
    #[schema(value_type = schema::Stdin)]
    pub stdin: Stdin,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(exclusive_minimum = 0, maximum = 604800)]
    pub timeout_seconds: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^exec-[a-z2-7]{26}$")]
    pub exec_id: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub background: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 16777216)]
    pub output_limit_bytes: Option<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<NewFile>,
    #[serde(default, skip_serializing_if = "is_default")]
    #[schema(value_type = schema::Limits)]
    pub limits: LimitRequest,
    /// What its sandbox may reach.
    #[serde(default, skip_serializing_if = "is_default")]
    pub egress: LeaseEgress,
    #[serde(default, skip_serializing_if = "is_default")]
    pub secrets: GivenSecrets,
}

fn default_template() -> String {
    "default".into()
}

impl CreateOneShot {
    pub fn new(command: Command) -> Self {
        Self {
            template: default_template(),
            user: None,
            command,
            cwd: None,
            env: BTreeMap::new(),
            stdin: Stdin::Closed,
            timeout_seconds: None,
            exec_id: None,
            background: false,
            output_limit_bytes: None,
            files: Vec::new(),
            limits: LimitRequest::default(),
            egress: LeaseEgress::default(),
            secrets: GivenSecrets::default(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Exec {
    #[schema(example = "exec-aaaaaaaaaaaaaaaaaaaaaaaaaa")]
    pub exec_id: String,
    pub sandbox_id: String,
    pub lease_id: String,
    pub user: String,
    /// As it was asked for.
    #[schema(value_type = schema::Command)]
    pub command: Command,
    pub state: ExecState,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// Absent while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Result>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExecState {
    Running,
    Ended,
}

/// How an exec ended. An exit is what the kernel reported; `unknown` is a value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Result {
    /// `{"code": n}`, `{"signal": n}`, `"oom"`, `"timed_out"`, `"unknown"`, or `"not_started"` where there was no process.
    #[schema(value_type = schema::Exit, example = json!({"code": 0}))]
    pub exit: Exit,
    /// As a shell would show it: 124 on timeout, 125 when it is not known or was not started.
    pub exit_code: i32,
    #[schema(value_type = String, format = DateTime)]
    pub ended_at: Timestamp,
    pub duration_ms: f64,
    /// All bytes that were written.
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
    /// In the answer of whoever waited; otherwise it is in the output stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout: Option<BytesText>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr: Option<BytesText>,
    /// Whether more was written than the answer holds.
    #[serde(default)]
    pub stdout_truncated: bool,
    #[serde(default)]
    pub stderr_truncated: bool,
    /// Places of `stdout` and `stderr` where a secret is masked.
    #[serde(default, skip_serializing_if = "is_default")]
    pub redacted: u64,
    /// Why it was not started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// What it reached, for whoever waited; absent where that is nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<Bill>,
}

/// Bytes as text where they are text, otherwise as base64.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BytesText {
    pub content: String,
    #[serde(default, skip_serializing_if = "is_utf8")]
    pub encoding: Encoding,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub enum Encoding {
    #[default]
    #[serde(rename = "utf-8")]
    Utf8,
    #[serde(rename = "base64")]
    Base64,
}

fn is_utf8(encoding: &Encoding) -> bool {
    *encoding == Encoding::Utf8
}

impl BytesText {
    pub fn of(bytes: Vec<u8>) -> Self {
        match String::from_utf8(bytes) {
            Ok(content) => Self { content, encoding: Encoding::Utf8 },
            Err(error) => Self { content: STANDARD.encode(error.as_bytes()), encoding: Encoding::Base64 },
        }
    }

    pub fn bytes(&self) -> std::result::Result<Vec<u8>, base64::DecodeError> {
        match self.encoding {
            Encoding::Utf8 => Ok(self.content.clone().into_bytes()),
            Encoding::Base64 => STANDARD.decode(&self.content),
        }
    }
}

/// One frame of an output stream. As SSE its kind is the event and its seq the id.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OutputFrame {
    /// Where to resume: the frames after it have greater ones.
    pub seq: u64,
    /// `start`, `stdout`, `stderr`, `exit`, `eof`, `truncated` or `lost`.
    pub kind: String,
    #[schema(value_type = String, format = DateTime)]
    pub time: Timestamp,
    /// Of `stdout` and `stderr`: where the bytes are in the whole stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    #[serde(default, flatten, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<BytesText>,
    /// Of the other kinds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<serde_json::Value>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Signal {
    /// A name with or without `SIG`, or a number.
    #[schema(value_type = schema::SignalName, example = json!("TERM"))]
    pub signal: serde_json::Value,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Resize {
    #[schema(maximum = 65535)]
    pub rows: u16,
    #[schema(maximum = 65535)]
    pub columns: u16,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_text_and_bytes_become_base64() {
        for bytes in [b"hello".to_vec(), vec![0xff, 0, 0xfe], Vec::new()] {
            let text = BytesText::of(bytes.clone());
            let json = serde_json::to_string(&text).unwrap();
            assert_eq!(serde_json::from_str::<BytesText>(&json).unwrap().bytes().unwrap(), bytes);
        }
        assert_eq!(serde_json::to_string(&BytesText::of(b"hi".to_vec())).unwrap(), r#"{"content":"hi"}"#);
    }

    #[test]
    fn a_frame_is_flat() {
        let frame = OutputFrame {
            seq: 4,
            kind: "stdout".into(),
            time: Timestamp::UNIX_EPOCH,
            offset: Some(0),
            bytes: Some(BytesText::of(b"x".to_vec())),
            data: None,
        };
        let json = serde_json::to_string(&frame).unwrap();
        assert_eq!(
            json,
            r#"{"seq":4,"kind":"stdout","time":"1970-01-01T00:00:00Z","offset":0,"content":"x"}"#
        );
        assert_eq!(serde_json::from_str::<OutputFrame>(&json).unwrap(), frame);
    }
}
