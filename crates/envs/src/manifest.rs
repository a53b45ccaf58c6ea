//! What is known of a finished tree. It stands beside the tree and came into place together with it.

use std::path::{Path, PathBuf};

use cubicle_model::{Name, Timestamp};
use serde::{Deserialize, Serialize};

use crate::tree::{self, SecondNames, Shape};
use crate::{EnvKey, Interpreter, files};

const FORMAT: u32 = 1;
const FILE: &str = "manifest.json";
const LONGEST: u64 = 4 * 1024 * 1024;
/// The tree itself, which sandboxes see.
pub(crate) const TREE: &str = "env";
/// The one link of a tree that leads out of it.
pub(crate) const PYTHON: &str = "bin/python";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) format: u32,
    pub(crate) key: EnvKey,
    pub(crate) python: Interpreter,
    /// As in `pandas==2.2.0`.
    pub(crate) packages: Vec<String>,
    /// Top-level names that can be imported of every package, by the package's name.
    pub(crate) modules: std::collections::BTreeMap<String, Vec<String>>,
    pub(crate) created_at: Timestamp,
    /// Whose it is, where it must not be shared.
    pub(crate) tenant: Option<Name>,
    pub(crate) shape: Shape,
    #[serde(default)]
    pub(crate) second_names: SecondNames,
}

impl Manifest {
    pub(crate) const FORMAT: u32 = FORMAT;

    pub(crate) fn write(&self, directory: &Path) -> std::io::Result<()> {
        let text = serde_json::to_vec_pretty(self)?;
        files::write(&directory.join(FILE), &text, 0o644)
    }

    /// The manifest of the directory, when it belongs there and the tree is the one that was made.
    pub(crate) fn load(directory: &Path) -> Option<Self> {
        let text = files::read(&directory.join(FILE), LONGEST).ok()?;
        let manifest: Self = serde_json::from_str(&text).ok()?;
        let named = directory.file_name().and_then(|name| name.to_str()) == Some(manifest.key.as_str());
        let shape = || tree::shape(&directory.join(TREE), Path::new(PYTHON), manifest.second_names);
        let whole = || shape().is_ok_and(|now| now == manifest.shape);
        (manifest.format == FORMAT && named && whole()).then_some(manifest)
    }
}

/// Where things are kept.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    pub(crate) root: PathBuf,
}

impl Layout {
    /// Finished trees, each below its key.
    pub(crate) fn trees(&self) -> PathBuf {
        self.root.join("trees")
    }

    pub(crate) fn tree(&self, key: &EnvKey) -> PathBuf {
        self.trees().join(key.as_str())
    }

    /// What is being made or removed.
    pub(crate) fn work(&self) -> PathBuf {
        self.root.join("work")
    }

    /// What requirements were resolved to.
    pub(crate) fn locks(&self) -> PathBuf {
        self.root.join("locks")
    }

    /// Names that tenants gave.
    pub(crate) fn names(&self) -> PathBuf {
        self.root.join("names")
    }

    /// When trees were last used.
    pub(crate) fn used(&self) -> PathBuf {
        self.root.join("used")
    }

    /// Who makes a tree has this lock.
    pub(crate) fn making(&self, key: &EnvKey) -> PathBuf {
        self.root.join("making").join(key.as_str())
    }

    /// Who uses a tree shares this lock.
    pub(crate) fn holding(&self, key: &EnvKey) -> PathBuf {
        self.root.join("holding").join(key.as_str())
    }

    /// Packages that trees have files of.
    pub(crate) fn parts(&self) -> PathBuf {
        self.root.join("parts")
    }

    /// Who makes a part has this lock.
    pub(crate) fn making_part(&self, key: &str) -> PathBuf {
        self.root.join("making").join(format!("part-{key}"))
    }

    /// Who puts a tree together shares this lock, who removes parts has it alone.
    pub(crate) fn keeping_parts(&self) -> PathBuf {
        self.root.join("holding").join("parts")
    }

    /// What uv has downloaded.
    pub(crate) fn cache(&self) -> PathBuf {
        self.root.join("cache")
    }

    /// Wheels that were built in sandboxes, by tenant.
    pub(crate) fn wheels(&self, tenant: &Name) -> PathBuf {
        self.root.join("wheels").join(tenant.as_str())
    }

    /// uv, where its user cannot reach the host's own.
    pub(crate) fn programs(&self) -> PathBuf {
        self.root.join("bin")
    }

    /// Everybody may see the trees; names and locks are of tenants.
    pub(crate) fn make(&self) -> std::io::Result<()> {
        files::make_directory(&self.root, 0o755)?;
        for name in OPEN {
            files::make_directory(&self.root.join(name), 0o755)?;
        }
        for name in CLOSED {
            files::make_directory(&self.root.join(name), 0o700)?;
        }
        Ok(())
    }

    pub(crate) fn directories(&self) -> Vec<PathBuf> {
        let below = OPEN.iter().chain(&CLOSED).map(|name| self.root.join(name));
        std::iter::once(self.root.clone()).chain(below).collect()
    }
}

const OPEN: [&str; 5] = ["trees", "work", "bin", "wheels", "cache"];
const CLOSED: [&str; 6] = ["locks", "names", "used", "making", "holding", "parts"];
