//! What only root can do for a server that is about to give up its rights, and what a host has.

use std::io;
use std::os::unix::fs::{MetadataExt, lchown};
use std::path::{Path, PathBuf};

use cubicle_model::Fault;

use crate::build::{blocking, io_fault};
use crate::manifest::Layout;
use crate::uv::{self, Uv};
use crate::{EnvSettings, Interpreter, ServiceUser, interpreter};

/// Makes the directory the owner's, and finds a uv and an interpreter that the owner can run: uv may be where only root can
/// look, and then the owner gets a copy. To be called as root, before its rights are given up. What is missing is said later,
/// to whoever wants an environment.
pub async fn prepare(settings: &mut EnvSettings, owner: ServiceUser) -> Result<(), Fault> {
    let layout = Layout { root: settings.root.clone() };
    let place = layout.clone();
    blocking(move || {
        place.make().map_err(io_fault)?;
        // Trees are many files, and have the same owner as their directory.
        let trees = std::fs::metadata(place.trees()).map_err(io_fault)?;
        for directory in place.directories() {
            if trees.uid() == owner.uid { give(&directory, owner) } else { give_all(&directory, owner) }
                .map_err(io_fault)?;
        }
        Ok(())
    })
    .await?;
    if let Ok(uv) = Uv::find(settings, &layout, Some(owner)).await {
        settings.uv = Some(uv.program().to_owned());
    }
    if let Ok(interpreter) = interpreter::find(settings, Some(owner)).await {
        settings.python = Some(interpreter.program);
    }
    Ok(())
}

fn give(path: &Path, owner: ServiceUser) -> io::Result<()> {
    lchown(path, Some(owner.uid), Some(owner.gid))
}

fn give_all(path: &Path, owner: ServiceUser) -> io::Result<()> {
    give(path, owner)?;
    if std::fs::symlink_metadata(path)?.is_dir() {
        for entry in std::fs::read_dir(path)? {
            give_all(&entry?.path(), owner)?;
        }
    }
    Ok(())
}

/// What a host has for environments, and what helps where it has not.
#[derive(Debug)]
pub struct Tools {
    pub python: Result<Interpreter, Fault>,
    pub uv: Result<PathBuf, Fault>,
}

/// Looks without changing anything.
pub async fn tools(settings: &EnvSettings) -> Tools {
    let user = ServiceUser::of(settings);
    Tools { python: interpreter::find(settings, user).await, uv: uv::located(settings) }
}
