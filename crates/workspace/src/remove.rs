//! Removing trees that somebody may have made to be hard to remove: too deep for a path or for recursion, too wide for memory, or
//! without permissions.

use std::ffi::OsStr;
use std::os::fd::AsRawFd;

use rustix::fs::{self, AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::beneath::{Directory, is_directory};
use crate::staging::unique_name;

const AT_A_TIME: usize = 10_000;

/// Removes whatever has this name in the directory, which only this process writes to. Directories in it are first moved beside it,
/// so that one descriptor is enough however deep they are.
pub(crate) fn remove(trash: &Directory, name: &OsStr) -> Result<(), Errno> {
    let mut waiting = vec![name.to_owned()];
    while let Some(name) = waiting.pop() {
        match trash.stat(&name) {
            Ok(stat) if is_directory(&stat) => {}
            Ok(_) => {
                fs::unlinkat(trash.fd(), &name, AtFlags::empty())?;
                continue;
            }
            Err(Errno::NOENT) => continue,
            Err(errno) => return Err(errno),
        }
        open_up(trash, &name)?;
        let directory = trash.child(&name)?;
        loop {
            let (names, _) = directory.names(AT_A_TIME)?;
            if names.is_empty() {
                break;
            }
            for below in names {
                match directory.stat(&below) {
                    Ok(stat) if is_directory(&stat) => {
                        open_up(&directory, &below)?;
                        let moved = std::ffi::OsString::from(unique_name());
                        let flags = RenameFlags::NOREPLACE;
                        fs::renameat_with(directory.fd(), &below, trash.fd(), &moved, flags)?;
                        waiting.push(moved);
                    }
                    Ok(_) => fs::unlinkat(directory.fd(), &below, AtFlags::empty())?,
                    Err(Errno::NOENT) => {}
                    Err(errno) => return Err(errno),
                }
            }
        }
        fs::unlinkat(trash.fd(), &name, AtFlags::REMOVEDIR)?;
    }
    Ok(())
}

/// Gives the owner all rights on a directory, which moving and emptying it needs.
pub(crate) fn open_up(above: &Directory, name: &OsStr) -> Result<(), Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let place = fs::openat(above.fd(), name, flags, Mode::empty())?;
    // A descriptor that cannot be read cannot be changed either, but the name that the kernel has for it can.
    fs::chmod(format!("/proc/self/fd/{}", place.as_raw_fd()), Mode::from_raw_mode(0o700))
}
