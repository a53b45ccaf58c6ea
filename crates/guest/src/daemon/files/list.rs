//! Saying what is there.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{self, FileType, Stat};
use serde::Serialize;

use super::failure::{Failure, Trouble};
use super::path::{Query, SandboxPath};
use super::root::{Root, is_directory};
use super::walk::{Step, Walk};
use super::{Connection, KeepAlive, reply, write};

const MOST_ENTRIES: usize = 10_000;

#[derive(Serialize)]
struct Entry {
    name: String,
    path: String,
    /// The percent-encoded path, where it is not valid UTF-8 and `path` therefore is only for the eye.
    #[serde(skip_serializing_if = "Option::is_none")]
    path_encoded: Option<String>,
    #[serde(rename = "type")]
    kind: &'static str,
    size: u64,
    mode: String,
    /// Seconds since 1970, with microseconds.
    mtime: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
}

#[derive(Serialize)]
struct Listing {
    path: String,
    entries: Vec<Entry>,
    truncated: bool,
}

pub(super) fn list(
    root: &Root,
    query: &Query,
    path: &SandboxPath,
    connection: &mut dyn Connection,
) -> Result<KeepAlive, Trouble> {
    let recursive = query.flag("recursive")?;
    let refuse = |errno| Failure::of(errno, path);
    let mut walk = Walk::new(root, root.open_directory(path)?).map_err(refuse)?;
    let mut entries = Vec::new();
    let mut truncated = false;
    while let Some(step) = walk.next().map_err(refuse)? {
        let Step::Entry { name, stat } = step else { continue };
        if write::is_unfinished(&name) {
            continue;
        }
        if entries.len() == MOST_ENTRIES {
            truncated = true;
            break;
        }
        let full = path.join(&walk.path_of(&name));
        entries.push(entry(walk.directory(), &name, &full, &stat));
        if recursive && is_directory(&stat) {
            // What the user may not look into is listed, without what it has.
            match walk.enter(&name) {
                Ok(_) | Err(rustix::io::Errno::ACCESS) => {}
                Err(errno) => return Err(refuse(errno).into()),
            }
        }
    }
    Ok(reply::json(connection, 200, &Listing { path: shown(path.as_bytes()), entries, truncated })?)
}

/// Looks at the name itself: a symbolic link is described as one.
pub(super) fn stat(
    root: &Root,
    path: &SandboxPath,
    connection: &mut dyn Connection,
) -> Result<KeepAlive, Trouble> {
    let place = root.place(path)?;
    let stat = place.stat().map_err(|errno| Failure::of(errno, path))?;
    let (_, name) = path.split();
    let shown_name = name.unwrap_or(OsStr::new("/"));
    let mut entry = entry(place.dir.as_fd(), &place.name, path.as_bytes(), &stat);
    entry.name = shown_name.to_string_lossy().into_owned();
    Ok(reply::json(connection, 200, &entry)?)
}

fn entry(dir: BorrowedFd<'_>, name: &OsStr, path: &[u8], stat: &Stat) -> Entry {
    let kind = FileType::from_raw_mode(stat.st_mode);
    let target = (kind == FileType::Symlink).then(|| fs::readlinkat(dir, name, Vec::new()).ok()).flatten();
    Entry {
        name: name.to_string_lossy().into_owned(),
        path: shown(path),
        path_encoded: std::str::from_utf8(path).is_err().then(|| percent_encoded(path)),
        kind: kind_name(stat),
        size: u64::try_from(stat.st_size).unwrap_or(0),
        mode: octal_mode(stat),
        mtime: mtime(stat),
        target: target.map(|target| shown(target.as_bytes())),
    }
}

pub(super) fn kind_name(stat: &Stat) -> &'static str {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "symlink",
        _ => "other",
    }
}

pub(super) fn octal_mode(stat: &Stat) -> String {
    format!("{:04o}", stat.st_mode & 0o7777)
}

/// Seconds since 1970, with microseconds.
pub(super) fn mtime(stat: &Stat) -> f64 {
    stat.st_mtime as f64 + (stat.st_mtime_nsec / 1000) as f64 / 1e6
}

/// The same as text.
pub(super) fn modified(stat: &Stat) -> String {
    format!("{}.{:06}", stat.st_mtime, stat.st_mtime_nsec / 1000)
}

pub(super) fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

fn percent_encoded(path: &[u8]) -> String {
    use std::fmt::Write;
    let mut encoded = String::with_capacity(path.len() * 2);
    for byte in path {
        if byte.is_ascii_alphanumeric() || b"/-_.~".contains(byte) {
            encoded.push(char::from(*byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}
