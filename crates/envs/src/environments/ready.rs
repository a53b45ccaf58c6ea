//! What callers say and are told.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use cubicle_model::{Name, Timestamp};

use super::held::{InUse, Tree};
use crate::manifest::PYTHON;
use crate::{AllowedIndex, AllowedPackages, EnvKey, Requirements};

/// What somebody wants.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// What the tenant calls it; else it is called by its key.
    pub name: Option<Name>,
    pub requirements: Vec<String>,
    /// Instead of the operator's indexes.
    pub index: Option<AllowedIndex>,
}

/// An environment that is there and stays for as long as `in_use` does.
#[derive(Debug, Clone)]
pub struct Ready {
    pub key: EnvKey,
    pub name: Name,
    /// The tree, on the host; to be mounted read-only.
    pub path: PathBuf,
    /// Where it must be mounted.
    pub target: String,
    /// Its interpreter, in the sandbox.
    pub python: String,
    /// What has to be mounted besides, when it is no interpreter of `/usr`.
    pub prefix: Option<crate::Prefix>,
    /// As in `pandas==2.2.0`.
    pub packages: Vec<String>,
    /// As in `3.12`.
    pub python_version: String,
    /// What can be imported of the packages that were asked for.
    pub modules: Vec<String>,
    pub created_at: Timestamp,
    pub last_used_at: Timestamp,
    pub cache: Cache,
    /// How long the caller waited for it to be made.
    pub build: Duration,
    /// Whether only its tenant may have it: something of it was built from source, or came from an index of the tenant's.
    pub is_private: bool,
    pub in_use: InUse,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cache {
    Hit,
    Miss,
}

/// An environment as its tenant sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    pub name: Name,
    pub key: EnvKey,
    pub requirements: Vec<String>,
    pub packages: Vec<String>,
    pub python_version: String,
    pub created_at: Timestamp,
    pub last_used_at: Timestamp,
    pub bytes: u64,
}

/// What happened since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    pub hits: u64,
    pub misses: u64,
    pub resolutions: u64,
    pub builds: u64,
    pub failures: u64,
    pub evictions: u64,
}

pub(super) fn ready_from(
    tree: &Tree,
    name: Name,
    requested: &[String],
    cache: Cache,
    build: Duration,
    now: Timestamp,
    in_use: InUse,
) -> Ready {
    let manifest = &tree.manifest;
    let target = manifest.key.target();
    let modules: BTreeSet<&String> =
        requested.iter().filter_map(|name| manifest.modules.get(name)).flatten().collect();
    Ready {
        key: manifest.key.clone(),
        name,
        path: tree.path.clone(),
        python: format!("{target}/{PYTHON}"),
        target,
        prefix: manifest.python.prefix.clone(),
        packages: manifest.packages.clone(),
        python_version: manifest.python.short_version().to_owned(),
        modules: modules.into_iter().cloned().collect(),
        created_at: manifest.created_at,
        last_used_at: now,
        cache,
        build,
        is_private: manifest.tenant.is_some(),
        in_use,
    }
}

/// Names of what canonical requirements ask for.
pub(super) fn requested_of(requirements: &[String]) -> Vec<String> {
    Requirements::parse(requirements, &AllowedPackages::default())
        .map(|requirements| requirements.names().to_vec())
        .unwrap_or_default()
}
