//! What is to be made, as values. The launcher carries them out and adds nothing.

use std::collections::BTreeMap;
use std::path::PathBuf;

use cubicle_model::receipt::{Cgroups, Enforcement, Expected, LimitInForce};
use cubicle_model::{Isolation, Lifetime, SandboxId};
use serde::{Deserialize, Serialize};

/// The user that commands run as, inside.
pub const WORKLOAD_ID: u32 = 1000;

/// A read-only root filesystem, built once and shared by every sandbox made from it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplatePlan {
    pub steps: Vec<RootStep>,
}

/// One step in building a root. Targets are relative to it; each parent is made by an earlier step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RootStep {
    Directory {
        path: PathBuf,
        mode: u32,
    },
    File {
        path: PathBuf,
        text: String,
    },
    Symlink {
        path: PathBuf,
        target: PathBuf,
    },
    /// A file of the host, copied so that later changes on the host do not show.
    Copy {
        from: PathBuf,
        path: PathBuf,
    },
    /// A tree of the host, read-only and without setuid programs or devices.
    Bind {
        from: PathBuf,
        path: PathBuf,
    },
    /// A file system of its own for device nodes; read-only once everything is in it.
    DeviceFilesystem {
        path: PathBuf,
    },
    /// A device node in it, made as the host's is. Only root can.
    DeviceNode {
        name: String,
    },
    /// A device node of the host.
    Device {
        name: String,
    },
    /// The host's `/proc`, which must be visible for an unprivileged user to mount a new one. Taken away again in every
    /// sandbox.
    HostProc {
        path: PathBuf,
    },
}

/// One sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SandboxPlan {
    pub id: SandboxId,
    pub isolation: Isolation,
    pub lifetime: Lifetime,
    pub hostname: String,
    /// By the names of `getrlimit(2)` in lower case, soft and hard alike.
    pub rlimits: BTreeMap<String, u64>,
    pub cgroup: CgroupLimits,
    pub two_uids: bool,
    pub env: BTreeMap<String, String>,
    pub deadline_seconds: u64,
    pub journal_limit: u64,
    /// Kept as the first record of the journal.
    pub place: serde_json::Value,
    pub expected: Expected,
    pub limits: Vec<PlannedLimit>,
    /// Which attempts were made in a sandbox of the same template, boot and binary. Their outcomes are kept once, beside
    /// the sandboxes.
    pub attempts_made_with: Option<String>,
}

/// What a sandbox has for files. It says nothing of whose sandbox it is, so that it can be made before it is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Furnishing {
    /// The name of a template.
    pub root: String,
    /// In the order in which they are made. A workspace that is a directory of the host comes on top.
    pub mounts: Vec<PrivateMount>,
}

/// A mount that belongs to one sandbox alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PrivateMount {
    /// One tmpfs on `/run` for everything small that is writable; its directories are shown where programs look for them.
    Scratch {
        size: u64,
        inodes: u64,
        directories: Vec<ScratchDirectory>,
    },
    /// A workspace in memory.
    Workspace {
        size: u64,
        inodes: u64,
    },
    /// `/proc` of the new pid namespace, with what tells of the host covered.
    Proc {
        covered_files: Vec<String>,
        covered_directories: Vec<String>,
        read_only: Vec<String>,
    },
    Terminals,
    /// Detaches what only the making of the sandbox needed.
    Remove {
        path: PathBuf,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScratchDirectory {
    pub name: String,
    /// Where it is shown, too.
    pub target: Option<PathBuf>,
    pub mode: u32,
    pub owner: Owner,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Owner {
    Workload,
    /// Pid 1, which is the same user as the workload where there is but one.
    Init,
    /// Nobody inside.
    Host,
}

/// What is written to the sandbox's cgroups; `None` leaves a limit to something else or to nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CgroupLimits {
    pub memory: Option<u64>,
    pub millicpus: Option<u64>,
    pub pids: Option<u64>,
}

/// A limit as it will stand in the receipt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedLimit {
    pub name: String,
    pub value: u64,
    pub asked: bool,
    pub by: Enforcer,
}

impl PlannedLimit {
    pub fn in_force(&self, enforced: Enforcement) -> LimitInForce {
        LimitInForce { name: self.name.clone(), value: self.value, asked: self.asked, enforced }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Enforcer {
    Cgroup,
    Rlimit { name: String },
    TmpfsSize { target: PathBuf },
    Guest,
    Nobody { because: String },
}

/// What the launcher found on the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostFacts {
    pub kernel: String,
    pub privileged: bool,
    pub cgroups: Cgroups,
    /// Why there are no cgroup limits, where there are none.
    pub no_cgroups_because: Option<String>,
    /// The user that the caller should drop to, where the launcher is root.
    pub service_uid: Option<u32>,
}
