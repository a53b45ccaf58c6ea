//! What a place is asked to be, and what it is given later.

mod listener;
mod secrets;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{Isolation, LimitRequest, Limits, SandboxId, Trust};

pub use listener::{ListenAddress, Listener, Protocol};
pub use secrets::{NotASecretFileName, SECRETS_DIRECTORY, SecretFile, SecretFileName, SecretsToGive};

/// Everything a backend needs to know to make one sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    pub id: SandboxId,
    pub lifetime: Lifetime,
    pub isolation: Isolation,
    pub trust: Trust,
    pub root: Root,
    pub workspace: Medium,
    pub limits: Limits,
    /// The environment of every exec, over the sandbox's own defaults.
    pub env: BTreeMap<String, String>,
    /// Kept with the sandbox and shown by `list`; the backend does not read them.
    pub labels: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lifetime {
    /// Ends with the process that asked for it.
    Bound,
    /// Outlives its maker; found again by `list`, ended by `destroy` or its deadline.
    Durable,
}

/// Where the read-only root filesystem comes from.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Root {
    /// The host's `/usr` and friends, with an `/etc` made for the sandbox.
    Host,
    /// A directory that holds a root filesystem; its `/etc` is kept.
    Directory(PathBuf),
}

/// What `/workspace` is made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Medium {
    /// A tmpfs of the workspace limit's size.
    Memory,
    /// A directory of the host. Its size is not limited, so a workspace limit that was asked for is refused.
    Directory(PathBuf),
}

/// What a ready sandbox is given when it gets its user.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Binding {
    pub env: BTreeMap<String, String>,
    pub files: Vec<FileToWrite>,
    pub limits: LimitRequest,
    pub mounts: Vec<Mount>,
    pub listeners: Vec<Listener>,
    /// Told to the sandbox and to nobody else.
    #[serde(skip)]
    pub secrets: SecretsToGive,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileToWrite {
    /// Absolute path inside the sandbox; missing parents are made.
    pub path: String,
    pub bytes: Vec<u8>,
    pub mode: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mount {
    /// A directory of the host.
    pub source: PathBuf,
    /// `/workspace`, `/task`, or a path below `/workspace` or `/mnt`.
    pub target: PathBuf,
    #[serde(default)]
    pub read_only: bool,
}
