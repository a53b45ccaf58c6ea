//! Removing files and trees.

use std::os::fd::OwnedFd;

use rustix::fs::{self, AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::failure::{Failure, Trouble};
use super::path::{Query, SandboxPath};
use super::root::{Place, Root, is_directory};
use super::walk::{Step, Walk};
use super::{Connection, KeepAlive, reply};

/// Removes a name; a link goes, what it points to stays.
pub(super) fn remove(
    root: &Root,
    query: &Query,
    path: &SandboxPath,
    connection: &mut dyn Connection,
) -> Result<KeepAlive, Trouble> {
    let recursive = query.flag("recursive")?;
    let place = root.place(path)?;
    if place.is_directory_itself() {
        return Err(
            Failure::invalid_path(format!("{path} cannot be removed: name the directory itself")).into()
        );
    }
    remove_place(root, &place, recursive).map_err(|errno| match errno {
        Errno::NOTEMPTY => Failure::of(errno, path).hint("add ?recursive=true to remove it with all it has"),
        _ => Failure::of(errno, path),
    })?;
    Ok(reply::empty(connection, 204, &[])?)
}

pub(super) fn remove_place(root: &Root, place: &Place, recursive: bool) -> Result<(), Errno> {
    if !is_directory(&place.stat()?) {
        return fs::unlinkat(&place.dir, &place.name, AtFlags::empty());
    }
    match fs::unlinkat(&place.dir, &place.name, AtFlags::REMOVEDIR) {
        Err(Errno::NOTEMPTY | Errno::EXIST) if recursive => {}
        Err(Errno::EXIST) => return Err(Errno::NOTEMPTY),
        result => return result,
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = fs::openat(&place.dir, &place.name, flags, Mode::empty())?;
    empty(root, directory)?;
    fs::unlinkat(&place.dir, &place.name, AtFlags::REMOVEDIR)
}

fn empty(root: &Root, directory: OwnedFd) -> Result<(), Errno> {
    let mut walk = Walk::new(root, directory)?;
    while let Some(step) = walk.next()? {
        let result = match step {
            Step::Entry { name, stat } if is_directory(&stat) => match walk.enter(&name)? {
                true => Ok(()),
                false => Err(Errno::BUSY),
            },
            Step::Entry { name, .. } => fs::unlinkat(walk.directory(), &name, AtFlags::empty()),
            Step::Left { name } => fs::unlinkat(walk.directory(), &name, AtFlags::REMOVEDIR),
        };
        match result {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
