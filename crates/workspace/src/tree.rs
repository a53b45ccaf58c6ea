//! Where the trees are.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use cubicle_model::{Fault, Kind, Name};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::beneath::Directory;
use crate::{fault, staging};

const PARTS: [&str; 7] =
    ["shared/scripts", "shared/data", "shared/skills", "tasks", "history", "staging", "shared"];

/// The shared workspaces of all tenants, in a directory of this host.
#[derive(Debug, Clone)]
pub struct SharedWorkspace {
    root: PathBuf,
}

impl SharedWorkspace {
    /// Makes the directory unless it is there, and removes what a killed process was writing a day ago or longer.
    pub fn open(root: PathBuf) -> Result<Self, Fault> {
        let unusable = |error: std::io::Error| {
            Fault::new(Kind::Denied, format!("the shared workspace cannot be kept in {}", root.display()))
                .hint("the server's user must be able to write there; server.shared_dir names another place")
                .because(error)
        };
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&root).map_err(unusable)?;
        // Mounts are allowed by comparing paths, so this one has no links in it.
        let root = root.canonicalize().map_err(unusable)?;
        let found = Self { root };
        found.sweep().map_err(|errno| unusable(errno.into()))?;
        Ok(found)
    }

    /// The tree of a tenant. Its directories are made at the first use.
    pub fn of(&self, tenant: &Name) -> Tree {
        Tree { path: self.root.join(tenant.as_str()) }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    fn sweep(&self) -> Result<(), Errno> {
        let root = Directory::at(&self.root)?;
        for tenant in root.names(100_000)?.0 {
            match root.child(&tenant).and_then(|tree| tree.directory("staging")) {
                Ok(directory) => staging::sweep(&directory)?,
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}

/// What one tenant has.
#[derive(Debug, Clone)]
pub struct Tree {
    path: PathBuf,
}

/// The parts of a tree, open.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) tree: Directory,
    pub(crate) shared: Directory,
    pub(crate) tasks: Directory,
    pub(crate) history: Directory,
    pub(crate) staging: Directory,
}

/// Nobody else changes names in the tree meanwhile, in this process or another.
#[derive(Debug)]
pub(crate) struct Locked {
    _directory: Directory,
}

impl Tree {
    /// To be mounted read-only at `/workspace/shared`. It exists as soon as anything of the tree was used.
    pub fn shared_path(&self) -> PathBuf {
        self.path.join("shared")
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the parts, and makes them where they are not there.
    pub(crate) fn parts(&self) -> Result<Parts, Fault> {
        let open = || -> Result<Parts, Errno> {
            let tree = Directory::at(&self.path)?;
            let part = |name| tree.directory(name);
            let (shared, tasks) = (part("shared")?, part("tasks")?);
            let (history, staging) = (part("history")?, part("staging")?);
            Ok(Parts { shared, tasks, history, staging, tree })
        };
        match open() {
            Err(Errno::NOENT) => {
                self.make().map_err(|errno| fault::of(errno, ""))?;
                open()
            }
            found => found,
        }
        .map_err(|errno| fault::of(errno, ""))
    }

    fn make(&self) -> Result<(), Errno> {
        match rustix::fs::mkdir(&self.path, rustix::fs::Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
        let tree = Directory::at(&self.path)?;
        PARTS.iter().try_for_each(|part| tree.make_directory(part).map(drop))
    }
}

impl Parts {
    pub(crate) fn lock(&self) -> Result<Locked, Fault> {
        let lock = || {
            let directory = self.tree.directory("")?;
            loop {
                match flock(directory.fd(), FlockOperation::LockExclusive) {
                    Err(Errno::INTR) => {}
                    result => return result.map(|()| Locked { _directory: directory }),
                }
            }
        };
        lock().map_err(|errno| fault::of(errno, ""))
    }
}
