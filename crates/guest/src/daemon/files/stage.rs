//! What code needs before it runs: its files in the working directory, its own text in a private place.

use std::os::fd::AsFd;

use rustix::fs::{self, AtFlags, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::failure::Failure;
use super::path::SandboxPath;
use super::root::Root;
use super::write;
use crate::daemon::execute::check::Given;
use crate::daemon::http::Refusal;

/// Where to put what.
#[derive(Debug)]
pub(in crate::daemon) struct Staging {
    pub(in crate::daemon) cwd: String,
    pub(in crate::daemon) files: Vec<Given>,
    /// Made when it is missing and can be made.
    pub(in crate::daemon) output: String,
    /// A directory that only the workload can enter, for the code.
    pub(in crate::daemon) private: String,
    pub(in crate::daemon) code_name: &'static str,
    pub(in crate::daemon) code: String,
}

/// What was there when the code began.
#[derive(Debug, Default)]
pub(in crate::daemon) struct Staged {
    /// The files that came with it, as they were then.
    pub(in crate::daemon) given: Vec<Fingerprint>,
    /// The file system's time, just before.
    pub(in crate::daemon) moment: Moment,
}

/// By the clock that stamps files. It ticks too slowly to tell what happened before from what happened after, so that
/// the moment itself belongs to both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(in crate::daemon) struct Moment {
    seconds: i64,
    nanos: i64,
}

impl Moment {
    /// When a file was changed, in contents or otherwise. Nobody can set it.
    pub(super) fn of_change(stat: &Stat) -> Self {
        Self { seconds: stat.st_ctime, nanos: stat.st_ctime_nsec as i64 }
    }

    pub(in crate::daemon) fn is_within_second_before(self, later: Self) -> bool {
        later.seconds - self.seconds <= 1
    }
}

/// A file at one moment of its life.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::daemon) struct Fingerprint {
    device: u64,
    inode: u64,
    bytes: u64,
    pub(in crate::daemon) changed: Moment,
}

impl Fingerprint {
    pub(super) fn of(stat: &Stat) -> Self {
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
            bytes: stat.st_size as u64,
            changed: Moment::of_change(stat),
        }
    }
}

/// Puts everything in its place, with the rights of the calling thread. After a refusal the code is not there; files
/// that were written before it stay.
pub(in crate::daemon) fn stage(staging: &Staging) -> Result<Staged, Refusal> {
    let root = Root::of_this_process().map_err(super::refusal)?;
    stage_in(root, staging)
}

pub(super) fn stage_in(root: &Root, staging: &Staging) -> Result<Staged, Refusal> {
    let cwd = SandboxPath::from_bytes(staging.cwd.as_bytes()).map_err(super::refusal)?;
    root.open_directory(&cwd).map_err(|failure| {
        let message = format!("cannot enter the working directory {:?}: {}", staging.cwd, failure.message);
        Refusal::new(422, "cwd_missing", message).hint("make the directory first, or name another one")
    })?;
    let mut given = Vec::with_capacity(staging.files.len());
    for file in &staging.files {
        let path = String::from_utf8_lossy(&cwd.join(file.name.as_bytes())).into_owned();
        let stat = write::put_whole(root, &path, 0o644, &file.bytes).map_err(super::refusal)?;
        given.push(Fingerprint::of(&stat));
    }
    if let Ok(output) = SandboxPath::from_bytes(staging.output.as_bytes()) {
        // Code that does not use it does not miss it.
        let _ = root.make_directories(&output, None);
    }
    let moment = write_code(root, staging).map_err(super::refusal)?;
    Ok(Staged { given, moment })
}

fn write_code(root: &Root, staging: &Staging) -> Result<Moment, Failure> {
    let path = SandboxPath::from_bytes(staging.private.as_bytes())?;
    let of = |errno| Failure::of(errno, &path);
    let (directory, _) = root.make_directories(&path, Some(0o700))?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file =
        fs::openat(directory.as_fd(), staging.code_name, flags, Mode::RUSR | Mode::WUSR).map_err(of)?;
    let mut rest = staging.code.as_bytes();
    // The time of a change is that of the last one, so that even no code is written as such.
    fs::fchmod(&file, Mode::RUSR | Mode::WUSR).map_err(of)?;
    while !rest.is_empty() {
        match rustix::io::write(&file, rest) {
            Ok(written) => rest = &rest[written..],
            Err(Errno::INTR) => {}
            Err(errno) => {
                remove_in(root, &staging.private, staging.code_name);
                return Err(of(errno));
            }
        }
    }
    fs::fstat(&file).map(|stat| Moment::of_change(&stat)).map_err(of)
}

/// Takes the code away again, with the rights of the calling thread. What the workload put beside it stays.
pub(in crate::daemon) fn unstage(private: &str, code_name: &str) {
    if let Ok(root) = Root::of_this_process() {
        remove_in(root, private, code_name);
    }
}

fn remove_in(root: &Root, private: &str, code_name: &str) {
    let Ok(path) = SandboxPath::from_bytes(private.as_bytes()) else { return };
    let Ok(place) = root.place(&path) else { return };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    if let Ok(directory) = fs::openat(&place.dir, &place.name, flags, Mode::empty()) {
        let _ = fs::unlinkat(&directory, code_name, AtFlags::empty());
    }
    let _ = fs::unlinkat(&place.dir, &place.name, AtFlags::REMOVEDIR);
}
