//! The trees of tenants, on a real file system.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

mod hostile;
mod shared;
mod skills;
mod tasks;

use cubicle_model::{Name, TaskId};
use cubicle_workspace::{SharedWorkspace, Tree};
use tempfile::TempDir;

pub(crate) struct World {
    pub(crate) directory: TempDir,
    pub(crate) tree: Tree,
}

pub(crate) fn world() -> World {
    let directory = TempDir::new().unwrap();
    let workspace = SharedWorkspace::open(directory.path().join("shared")).unwrap();
    let tree = workspace.of(&name("default"));
    World { directory, tree }
}

pub(crate) fn name(text: &str) -> Name {
    text.parse().unwrap()
}

pub(crate) fn task(number: u8) -> TaskId {
    TaskId::from_random([number; 16])
}

impl World {
    /// Nothing that was being made is left.
    pub(crate) fn staging_is_empty(&self) -> bool {
        let staging = self.directory.path().join("shared/default/staging");
        std::fs::read_dir(staging).unwrap().next().is_none()
    }
}
