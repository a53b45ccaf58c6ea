//! What a file was before it was written or deleted.

use cubicle_model::{Fault, Timestamp};
use rustix::fs::{self, AtFlags, Mode, OFlags};
use rustix::io::Errno;
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::beneath::{Directory, size};
use crate::fault;
use crate::path::RelativePath;
use crate::remove::remove;
use crate::shared::modified;

/// Versions of one file that are kept, and how many bytes they may have together. The last one is always kept.
const MOST_VERSIONS: usize = 10;
const MOST_BYTES: u64 = 256 * 1024 * 1024;
/// Files whose versions are kept. Of more than these, the ones that changed longest ago are forgotten.
const MOST_FILES: usize = 10_000;
const FORGOTTEN_AT_ONCE: usize = 500;

/// An earlier state of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Version {
    /// Grows with every change of the file.
    pub version: u64,
    pub size: u64,
    /// When this state was written.
    pub modified: Timestamp,
}

/// Keeps what a name is now as the last version. The kept file and the named one are the same until the name gets another one.
pub(crate) fn keep(
    history: &Directory,
    path: &RelativePath,
    above: &Directory,
    name: &str,
) -> Result<(), Errno> {
    let place = key(path);
    let versions = match history.directory(&place) {
        Err(Errno::NOENT) => {
            forget_oldest(history)?;
            history.make_directory(&place)?
        }
        found => found?,
    };
    let numbers = numbers(&versions)?;
    let now = above.stat(name)?;
    let last = numbers.last().copied().unwrap_or(0);
    // Whoever was killed between keeping and replacing has kept it already.
    let kept = versions.stat(number_name(last)).is_ok_and(|kept| kept.st_ino == now.st_ino);
    if !kept {
        let next = number_name(last + 1);
        match fs::linkat(above.fd(), name, versions.fd(), &next, AtFlags::empty()) {
            // A file that another user put there, or one with too many names.
            Err(Errno::PERM | Errno::ACCESS | Errno::MLINK | Errno::OPNOTSUPP) => {
                copy(above, name, &versions, &next)?;
            }
            result => result?,
        }
    }
    prune(&versions)
}

pub(crate) fn list(
    history: &Directory,
    path: &RelativePath,
    current: Option<u64>,
) -> Result<Vec<Version>, Errno> {
    let versions = match history.directory(&key(path)) {
        Err(Errno::NOENT) => return Ok(Vec::new()),
        found => found?,
    };
    let mut found = Vec::new();
    for number in numbers(&versions)? {
        match versions.stat(number_name(number)) {
            Ok(stat) if Some(stat.st_ino) == current => {}
            Ok(stat) => found.push(Version { version: number, size: size(&stat), modified: modified(&stat) }),
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
    }
    found.reverse();
    Ok(found)
}

pub(crate) fn open(
    history: &Directory,
    path: &RelativePath,
    version: u64,
) -> Result<(std::fs::File, fs::Stat), Fault> {
    history.file(&format!("{}/{}", key(path), number_name(version))).map_err(|errno| match errno {
        Errno::NOENT => {
            let what = format!("there is no version {version} of {}", fault::shown(path.as_str()));
            Fault::new(cubicle_model::Kind::NotFound, what).hint("its versions are listed with its history")
        }
        _ => fault::of(errno, path.as_str()),
    })
}

/// One directory per path, whatever the path looks like.
fn key(path: &RelativePath) -> String {
    Sha256::digest(path.as_str()).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn number_name(number: u64) -> String {
    format!("{number:020}")
}

fn numbers(versions: &Directory) -> Result<Vec<u64>, Errno> {
    let (names, _) = versions.names(1000)?;
    let mut numbers: Vec<u64> = names.iter().filter_map(|name| name.to_str()?.parse().ok()).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

fn prune(versions: &Directory) -> Result<(), Errno> {
    let mut bytes = 0;
    for (position, number) in numbers(versions)?.into_iter().rev().enumerate() {
        let name = number_name(number);
        bytes += versions.stat(&name).map(|stat| size(&stat)).unwrap_or(0);
        if position > 0 && (position >= MOST_VERSIONS || bytes > MOST_BYTES) {
            fs::unlinkat(versions.fd(), &name, AtFlags::empty())?;
        }
    }
    Ok(())
}

fn forget_oldest(history: &Directory) -> Result<(), Errno> {
    let (names, _) = history.names(2 * MOST_FILES)?;
    if names.len() < MOST_FILES {
        return Ok(());
    }
    let mut by_age: Vec<_> =
        names.into_iter().filter_map(|name| Some((history.stat(&name).ok()?.st_mtime, name))).collect();
    by_age.sort_unstable();
    by_age.iter().take(FORGOTTEN_AT_ONCE).try_for_each(|(_, name)| remove(history, name))
}

fn copy(above: &Directory, name: &str, into: &Directory, as_name: &str) -> Result<(), Errno> {
    let (mut from, _) = above.file(name)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let to = fs::openat(into.fd(), as_name, flags, Mode::from_raw_mode(0o644))?;
    std::io::copy(&mut from, &mut std::fs::File::from(to))
        .map(drop)
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}
