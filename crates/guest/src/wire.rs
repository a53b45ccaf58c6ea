//! What goes over a connection after the hello, and into the journal: shared by both ends.

pub mod context;
pub mod execute;
pub mod tools;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddrV4;

use cubicle_model::receipt::Amendment;
use cubicle_model::{Command, ExecId, Exit, Listener, SandboxId, SecretFileName, SecretsToGive};
use serde::{Deserialize, Serialize};

use execute::Environment;

/// Raw journal records, as they are in the file.
pub const JOURNAL: &str = "application/x-cubicle-journal";
pub const EVENT_STREAM: &str = "text/event-stream";
pub const NDJSON: &str = "application/x-ndjson";
pub const JSON: &str = "application/json";

/// The body of every error response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    pub error: ErrorDetail,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorDetail {
    pub code: String,
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// Payload of a `start` record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    pub exec_id: ExecId,
    pub command: Command,
    /// Set when the command was too long to be kept whole.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub command_shortened: bool,
    pub cwd: String,
    pub tty: bool,
    /// As seen inside the sandbox.
    pub pid: i32,
    /// What whoever asked for it calls it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_name: Option<String>,
    /// An interpreter that was ready runs it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub warm: bool,
}

/// Payload of an `exit` record: what the kernel said about the first process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exited {
    pub exit: Exit,
    pub timed_out: bool,
    pub user_us: u64,
    pub sys_us: u64,
    pub max_rss_kb: u64,
}

/// Payload of `eof` (all bytes the process wrote) and `lost` (bytes that could not be kept) records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StreamBytes {
    pub stdout: u64,
    pub stderr: u64,
}

/// Payload of a `truncated` record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Truncated {
    /// `stdout` or `stderr`.
    pub stream: String,
    /// The journal's limit in bytes.
    pub limit: u64,
}

/// The answer to `POST /exec?background=true`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Started {
    pub exec_id: ExecId,
    /// The exec's number within its sandbox, as in its records.
    pub exec: u32,
    /// The seq of its `start` record.
    pub seq: u64,
}

/// One exec, in `GET /exec` and `GET /exec/{id}?wait=…`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecStatus {
    pub exec_id: ExecId,
    pub exec: u32,
    pub state: ExecState,
    /// The seq of its `start` record.
    pub seq: u64,
    /// Absent while the first process runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<Exit>,
    /// Bytes written so far, also those that were not kept.
    pub output: StreamBytes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecState {
    /// The first process runs.
    Running,
    /// The first process ended, something else still holds its output open.
    Exited,
    /// The first process ended and its output is closed.
    Ended,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecList {
    pub execs: Vec<ExecStatus>,
}

/// The answer to `GET /health`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// `healthy`.
    pub status: String,
    #[serde(default)]
    pub state: Activity,
    pub sandbox: SandboxId,
    #[serde(default)]
    pub environments: Vec<Environment>,
    /// How many pieces of code may run at once.
    #[serde(default)]
    pub capacity: usize,
    /// How many run now.
    #[serde(default)]
    pub current_load: usize,
    #[serde(default)]
    pub uptime_seconds: u64,
    pub execs_running: usize,
    /// Until the sandbox ends itself.
    pub deadline_seconds: u64,
    pub connections: usize,
    pub journal: JournalState,
}

/// What a sandbox is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activity {
    #[default]
    Idle,
    /// Something runs.
    Busy,
    /// Nothing runs, but an interpreter or an environment is being made ready.
    Warming,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalState {
    /// The seq that the next record will have.
    pub next_seq: u64,
    pub bytes: u64,
    pub limit: u64,
}

/// The body of `POST /exec/{id}/signal`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignalRequest {
    pub signal: SignalName,
}

/// A signal by its number or its name, with or without `SIG`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum SignalName {
    Number(i32),
    Name(String),
}

/// The body of `POST /deadline`: the sandbox ends that long after now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeadlineRequest {
    pub seconds: u64,
}

/// The body of `POST /bind`: everything that a ready sandbox is given by its guest, in one request.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BindRequest {
    /// Added to the environment of every later exec.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<SmallFile>,
    #[serde(default, skip_serializing_if = "GivenSecrets::is_empty")]
    pub secrets: GivenSecrets,
    /// The sandbox ends that long after now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_seconds: Option<u64>,
    /// What the sandbox has become, where binding changed that.
    #[serde(default, skip_serializing_if = "Amendment::is_empty")]
    pub amendment: Amendment,
}

/// All files of a `BindRequest` together may have so many bytes; larger ones are sent on their own.
pub const SMALL_FILES: usize = 64 * 1024;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SmallFile {
    /// Missing parents are made.
    pub path: String,
    pub mode: u32,
    /// In base64.
    #[serde(with = "base64_bytes")]
    pub bytes: Vec<u8>,
}

/// Secrets on their way into a sandbox. They are in no record; their names are in the amendment that comes with them.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GivenSecrets {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<GivenFile>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
}

impl GivenSecrets {
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && self.env.is_empty()
    }
}

/// Names are all that may be printed.
impl fmt::Debug for GivenSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&String> = self.env.keys().collect();
        f.debug_struct("GivenSecrets").field("files", &self.files).field("env", &names).finish()
    }
}

impl fmt::Debug for GivenFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("GivenFile").field(&self.name).finish()
    }
}

impl From<&SecretsToGive> for GivenSecrets {
    fn from(given: &SecretsToGive) -> Self {
        let file = |file: &cubicle_model::SecretFile| GivenFile {
            name: file.name.clone(),
            bytes: file.bytes.clone(),
        };
        Self { files: given.files.iter().map(file).collect(), env: given.env.clone() }
    }
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GivenFile {
    pub name: SecretFileName,
    /// In base64.
    #[serde(with = "base64_bytes")]
    pub bytes: Vec<u8>,
}

/// A sandbox is given at most so many secret files at once, of so many bytes together.
pub const MOST_SECRET_FILES: usize = 64;
pub const SECRET_BYTES: usize = 256 * 1024;

mod base64_bytes {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&STANDARD.encode(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(from)?;
        STANDARD.decode(text.as_bytes()).map_err(serde::de::Error::custom)
    }
}

/// As many listeners as one request may ask for: their descriptors go with one message.
pub const MOST_LISTENERS_AT_ONCE: usize = cubicle_sys::socket::MOST_DESCRIPTORS;

/// The body of `POST /listen`. Whoever asks again for the same listener gets the same socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListenRequest {
    pub listeners: Vec<Listener>,
    /// No descriptor is given away: the guest accepts connections itself and opens a parked connection for each.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub forward: bool,
}

/// The answer to it, with the ports that were chosen. The descriptors beside it are in the same order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listened {
    pub listeners: Vec<Listener>,
}

/// The body of `POST /accept/open`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpenRequest {
    pub name: String,
    /// The port on the sandbox's loopback that the opened stream is joined with.
    pub port: u16,
}

/// The one line that a guest-opened stream starts with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    pub open: String,
    /// There when the stream is a connection to a forwarded listener.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arrival: Option<Arrival>,
}

/// A connection that a program inside made to a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrival {
    pub listener: Listener,
    /// The address that the program meant, of those that the listener has.
    pub to: SocketAddrV4,
}

/// The answer to `POST /exec/{id}/stdin`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    pub written: u64,
}
