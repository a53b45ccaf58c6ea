//! Files and directories while they are being made: outside of what anybody sees, and gone again unless they are finished.

use std::ffi::OsString;
use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{self, AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::beneath::{Directory, is_directory};
use crate::remove::{open_up, remove};

/// What a process that was killed left is removed after so many seconds.
const FORGOTTEN_AFTER: i64 = 24 * 60 * 60;

/// A name that nothing else has: other processes of this host may stage in the same directory.
pub(crate) fn unique_name() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{:x}-{number:x}", std::process::id())
}

/// Something unfinished. Dropped, it is removed.
#[derive(Debug)]
pub(crate) struct Staged<'a> {
    staging: &'a Directory,
    name: OsString,
    finished: bool,
}

impl<'a> Staged<'a> {
    pub(crate) fn file(staging: &'a Directory) -> Result<(Self, File), Errno> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let (name, file) = named(|name| fs::openat(staging.fd(), name, flags, Mode::from_raw_mode(0o600)))?;
        Ok((Self { staging, name, finished: false }, file.into()))
    }

    pub(crate) fn directory(staging: &'a Directory) -> Result<(Self, Directory), Errno> {
        let (name, ()) = named(|name| fs::mkdirat(staging.fd(), name, Mode::from_raw_mode(0o755)))?;
        let staged = Self { staging, name, finished: false };
        let directory = staging.child(&staged.name)?;
        Ok((staged, directory))
    }

    /// Takes something that has a name elsewhere, to remove it.
    pub(crate) fn take(staging: &'a Directory, from: &Directory, name: &str) -> Result<Self, Errno> {
        if is_directory(&from.stat(name)?) {
            open_up(from, name.as_ref())?;
        }
        let flags = RenameFlags::NOREPLACE;
        let (taken, ()) = named(|taken| fs::renameat_with(from.fd(), name, staging.fd(), taken, flags))?;
        Ok(Self { staging, name: taken, finished: false })
    }

    /// Gives it its place in one step. What had the name before is gone, unless it must be new.
    pub(crate) fn finish(mut self, into: &Directory, name: &str, must_be_new: bool) -> Result<(), Errno> {
        let flags = if must_be_new { RenameFlags::NOREPLACE } else { RenameFlags::empty() };
        fs::renameat_with(self.staging.fd(), &self.name, into.fd(), name, flags)?;
        self.finished = true;
        into.sync()
    }

    /// Puts a directory in the place of another one in one step; the other one is removed.
    pub(crate) fn exchange(self, into: &Directory, name: &str) -> Result<(), Errno> {
        fs::renameat_with(self.staging.fd(), &self.name, into.fd(), name, RenameFlags::EXCHANGE)?;
        into.sync()
    }

    pub(crate) fn remove(mut self) -> Result<(), Errno> {
        self.finished = true;
        remove(self.staging, &self.name)
    }
}

impl Drop for Staged<'_> {
    fn drop(&mut self) {
        if !self.finished {
            // There is nobody to tell, and the sweep of the next start finds it.
            _ = remove(self.staging, &self.name);
        }
    }
}

fn named<T>(mut make: impl FnMut(&str) -> Result<T, Errno>) -> Result<(OsString, T), Errno> {
    for _ in 0..1000 {
        let name = unique_name();
        match make(&name) {
            Ok(made) => return Ok((name.into(), made)),
            // A process with the same number was killed here once.
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
    }
    Err(Errno::EXIST)
}

/// Removes what killed processes left here.
pub(crate) fn sweep(staging: &Directory) -> Result<(), Errno> {
    // The time is what the file system gives a new file.
    let (probe, file) = Staged::file(staging)?;
    let now = fs::fstat(&file)?.st_mtime;
    drop(probe);
    for name in staging.names(100_000)?.0 {
        if staging.stat(&name).is_ok_and(|stat| stat.st_mtime < now - FORGOTTEN_AFTER) {
            remove(staging, &name)?;
        }
    }
    Ok(())
}

/// Removes a name that is not a directory.
pub(crate) fn unlink(directory: &Directory, name: &str) -> Result<(), Errno> {
    fs::unlinkat(directory.fd(), name, AtFlags::empty())
}
