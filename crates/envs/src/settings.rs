//! What whoever opens the environments says.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cubicle_model::Timestamp;

use crate::{AllowedPackages, Budget, Indexes};

/// Everything has a default but the place and the clock.
#[derive(Clone)]
pub struct EnvSettings {
    /// Where environments are kept. Whoever runs uv must be able to come here.
    pub root: PathBuf,
    /// uv itself; else it is looked for in `path`.
    pub uv: Option<PathBuf>,
    /// The interpreter of all environments; else the best one is found.
    pub python: Option<PathBuf>,
    /// Where programs are looked for.
    pub path: Vec<PathBuf>,
    /// Directories in which uv keeps interpreters, each below a directory of its own.
    pub managed_pythons: Vec<PathBuf>,
    /// What uv gets of the environment: where certificates are, and proxies.
    pub variables: BTreeMap<String, String>,
    /// Whom uv runs as when this process is root; else it runs as whoever this is.
    pub service_user: Option<ServiceUser>,
    pub indexes: Indexes,
    pub allowed_packages: AllowedPackages,
    pub budget: Budget,
    /// How long the same requirements lead to the same versions.
    pub lock_ttl: Duration,
    pub resolve_timeout: Duration,
    pub build_timeout: Duration,
    pub clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
}

/// A user that owns nothing but downloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServiceUser {
    pub uid: u32,
    pub gid: u32,
}

impl ServiceUser {
    /// Above the users that Debian, systemd and useradd give out, and below the blocks of sandboxes.
    pub const DEFAULT: Self = Self { uid: 64_777, gid: 64_777 };

    /// Whom uv runs as: somebody else only where this process is root.
    pub(crate) fn of(settings: &EnvSettings) -> Option<Self> {
        rustix::process::geteuid().is_root().then(|| settings.service_user.unwrap_or(Self::DEFAULT))
    }
}

impl EnvSettings {
    pub fn new(root: PathBuf, clock: Arc<dyn Fn() -> Timestamp + Send + Sync>) -> Self {
        Self {
            root,
            uv: None,
            python: None,
            path: Vec::new(),
            managed_pythons: Vec::new(),
            variables: BTreeMap::new(),
            service_user: None,
            indexes: Indexes::default(),
            allowed_packages: AllowedPackages::default(),
            budget: Budget::default(),
            lock_ttl: Duration::from_secs(24 * 3600),
            resolve_timeout: Duration::from_secs(120),
            build_timeout: Duration::from_secs(600),
            clock,
        }
    }
}

impl fmt::Debug for EnvSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EnvSettings")
            .field("root", &self.root)
            .field("uv", &self.uv)
            .field("python", &self.python)
            .field("service_user", &self.service_user)
            .field("indexes", &self.indexes)
            .field("budget", &self.budget)
            .finish_non_exhaustive()
    }
}
