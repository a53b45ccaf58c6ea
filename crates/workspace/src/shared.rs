//! The files in `shared/`.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;

use cubicle_model::{Fault, Kind, Timestamp};
use rustix::fs::{self, AtFlags, Mode, RenameFlags, Stat};
use rustix::io::Errno;
use serde::Serialize;

use crate::beneath::{Directory, is_directory, is_file, size};
use crate::fault;
use crate::glob::Pattern;
use crate::history::{self, Version};
use crate::kind::{kind_of, kind_of_name};
use crate::path::{DEEPEST, RelativePath};
use crate::staging::{Staged, unlink};
use crate::tree::{Parts, Tree};
use crate::walk::{Caps, Found, walk};

/// What one call of [`Tree::read`] gives at most.
pub const MOST_READ: u64 = 16 * 1024 * 1024;
/// What a file may have.
pub const LARGEST_FILE: u64 = 1024 * 1024 * 1024;
const MOST_LISTED: usize = 10_000;
const MOST_SEARCHED: usize = 200_000;
const LISTED: Caps = Caps { entries: MOST_LISTED, depth: DEEPEST };
const SEARCHED: Caps = Caps { entries: MOST_SEARCHED, depth: DEEPEST };

/// A part of a file, with what is known of the whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    pub bytes: Vec<u8>,
    /// Of the whole file.
    pub size: u64,
    /// A MIME type.
    pub kind: String,
    pub etag: String,
    pub modified: Timestamp,
}

/// An open file, which stays as it is whatever is written in its place.
#[derive(Debug)]
pub struct Content {
    pub file: File,
    pub size: u64,
    pub kind: String,
    pub etag: String,
    pub modified: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Listing {
    pub entries: Vec<Entry>,
    /// Whether there is more than is listed.
    pub truncated: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// Relative to `shared/`.
    pub path: String,
    #[serde(rename = "type")]
    pub kind: EntryKind,
    pub size: u64,
    pub modified: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mime: Option<&'static str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    File,
    Directory,
}

/// When a file is written or deleted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Condition {
    #[default]
    Always,
    /// Only as long as it is this state of it.
    Unchanged(String),
    MustBeNew,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Written {
    pub path: String,
    pub size: u64,
    /// Whether there was no such file before.
    pub created: bool,
    pub etag: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Deleted {
    pub path: String,
    /// Files that are gone, and whose last versions were kept.
    pub files: usize,
}

impl Tree {
    /// From an offset on, at most [`MOST_READ`] bytes.
    pub fn read(&self, path: &str, offset: u64, limit: Option<u64>) -> Result<Piece, Fault> {
        let content = self.open(path)?;
        piece(content, path, offset, limit)
    }

    pub fn open(&self, path: &str) -> Result<Content, Fault> {
        let path = file_path(path)?;
        let (file, stat) = open_file(&self.parts()?.shared, path.as_str())?;
        Ok(content(path.as_str(), file, &stat))
    }

    /// Replaces the file in one step, with what is missing above it. What it was before is kept.
    pub fn write(&self, path: &str, bytes: &[u8]) -> Result<Written, Fault> {
        self.write_from(path, &mut &bytes[..], &Condition::Always, None)
    }

    /// The same from a stream. Whether it can be run stays as it was unless it is said.
    pub fn write_from(
        &self,
        path: &str,
        bytes: &mut dyn Read,
        condition: &Condition,
        executable: Option<bool>,
    ) -> Result<Written, Fault> {
        let path = file_path(path)?;
        let (above, name) = path.split().ok_or_else(|| fault::is_a_directory(""))?;
        let parts = self.parts()?;
        let refuse = |errno| fault::of(errno, path.as_str());
        // Refused before anything is received, where it is clear already.
        parts.before(&path, condition)?;
        let (staged, file) = Staged::file(&parts.staging).map_err(refuse)?;
        let written = receive(bytes, file, path.as_str())?;

        let _locked = parts.lock()?;
        let before = parts.before(&path, condition)?;
        let runs =
            executable.unwrap_or_else(|| before.as_ref().is_some_and(|stat| stat.st_mode & 0o100 != 0));
        fs::fchmod(&written, Mode::from_raw_mode(if runs { 0o755 } else { 0o644 })).map_err(refuse)?;
        let directory = parts.shared.make_lasting_directory(above.as_str()).map_err(refuse)?;
        if before.is_some() {
            history::keep(&parts.history, &path, &directory, name).map_err(refuse)?;
        }
        staged.finish(&directory, name, before.is_none()).map_err(refuse)?;
        let stat = fs::fstat(&written).map_err(refuse)?;
        Ok(Written {
            path: path.as_str().into(),
            size: size(&stat),
            created: before.is_none(),
            etag: etag(&stat),
        })
    }

    /// Files and directories, in order.
    pub fn list(&self, path: &str, recursive: bool) -> Result<Listing, Fault> {
        let path = RelativePath::in_shared(path)?;
        let directory = self.parts()?.shared.directory(path.as_str()).map_err(|errno| match errno {
            Errno::NOTDIR => {
                Fault::new(Kind::Invalid, format!("{} is not a directory", fault::shown(path.as_str())))
                    .hint("read_workspace reads a file")
            }
            _ => fault::of(errno, path.as_str()),
        })?;
        let (found, truncated) =
            walk(&directory, recursive, LISTED).map_err(|errno| fault::of(errno, path.as_str()))?;
        let entries = found.into_iter().map(|found| entry(&path, found)).collect();
        Ok(Listing { entries, truncated })
    }

    /// Files whose path matches, in order.
    pub fn glob(&self, pattern: &str) -> Result<Listing, Fault> {
        let pattern = Pattern::parse(pattern)?;
        let shared = self.parts()?.shared;
        let (found, mut truncated) = walk(&shared, true, SEARCHED).map_err(|errno| fault::of(errno, ""))?;
        let matching = found.into_iter().filter(|found| is_file(&found.stat) && pattern.matches(&found.path));
        let root = RelativePath::parse("")?;
        let mut entries: Vec<Entry> = matching.map(|found| entry(&root, found)).collect();
        truncated |= entries.len() > MOST_LISTED;
        entries.truncate(MOST_LISTED);
        Ok(Listing { entries, truncated })
    }

    /// Deletes a file, or a directory with everything in it where that is said. Last versions of files are kept.
    pub fn delete(&self, path: &str, recursive: bool, condition: &Condition) -> Result<Deleted, Fault> {
        let path = RelativePath::in_shared(path)?;
        let Some((above, name)) = path.split() else {
            return Err(Fault::new(Kind::Invalid, "the shared workspace itself cannot be deleted"));
        };
        let refuse = |errno| fault::of(errno, path.as_str());
        let parts = self.parts()?;
        let _locked = parts.lock()?;
        let directory = parts.shared.directory(above.as_str()).map_err(refuse)?;
        let stat = directory.stat(name).map_err(refuse)?;
        if let Condition::Unchanged(expected) = condition {
            unchanged(&path, Some(&stat), expected)?;
        }
        if is_directory(&stat) {
            let files = delete_directory(&parts, &path, &directory, name, recursive)?;
            return Ok(Deleted { path: path.as_str().into(), files });
        }
        if is_file(&stat) {
            history::keep(&parts.history, &path, &directory, name).map_err(refuse)?;
        }
        unlink(&directory, name).map_err(refuse)?;
        directory.sync().map_err(refuse)?;
        Ok(Deleted { path: path.as_str().into(), files: 1 })
    }

    /// Gives a file or a directory another path. A file that is there already is replaced only where that is said, and is kept.
    pub fn rename(&self, from: &str, to: &str, replace: bool) -> Result<(), Fault> {
        let (from, to) = (RelativePath::in_shared(from)?, RelativePath::in_shared(to)?);
        let (Some((from_above, from_name)), Some((to_above, to_name))) = (from.split(), to.split()) else {
            return Err(Fault::new(Kind::Invalid, "the shared workspace itself cannot be moved"));
        };
        if to.is_below(&from) && to != from {
            return Err(Fault::new(
                Kind::Invalid,
                format!("{} is in what would be moved", fault::shown(to.as_str())),
            ));
        }
        let parts = self.parts()?;
        let _locked = parts.lock()?;
        let of_source = |errno| fault::of(errno, from.as_str());
        let of_target = |errno| fault::of(errno, to.as_str());
        let source = parts.shared.directory(from_above.as_str()).map_err(of_source)?;
        source.stat(from_name).map_err(of_source)?;
        let target = parts.shared.make_lasting_directory(to_above.as_str()).map_err(of_target)?;
        if replace && from != to && target.stat(to_name).is_ok_and(|stat| is_file(&stat)) {
            history::keep(&parts.history, &to, &target, to_name).map_err(of_target)?;
        }
        let flags = if replace { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
        fs::renameat_with(source.fd(), from_name, target.fd(), to_name, flags).map_err(
            |errno| match errno {
                Errno::EXIST => {
                    Fault::new(Kind::Conflict, format!("{} exists already", fault::shown(to.as_str())))
                        .hint("say overwrite to replace it; what it is now is kept in its history")
                }
                _ => of_target(errno),
            },
        )?;
        target.sync().and_then(|()| source.sync()).map_err(of_target)
    }

    /// What the file was before, the newest first.
    pub fn versions(&self, path: &str) -> Result<Vec<Version>, Fault> {
        let path = file_path(path)?;
        let parts = self.parts()?;
        let refuse = |errno| fault::of(errno, path.as_str());
        let current = parts.stat(&path).map_err(refuse)?;
        let versions =
            history::list(&parts.history, &path, current.as_ref().map(|stat| stat.st_ino)).map_err(refuse)?;
        if versions.is_empty() && current.is_none() {
            return Err(fault::not_found(path.as_str()));
        }
        Ok(versions)
    }

    pub fn read_version(
        &self,
        path: &str,
        version: u64,
        offset: u64,
        limit: Option<u64>,
    ) -> Result<Piece, Fault> {
        piece(self.open_version(path, version)?, path, offset, limit)
    }

    pub fn open_version(&self, path: &str, version: u64) -> Result<Content, Fault> {
        let path = file_path(path)?;
        let (file, stat) = history::open(&self.parts()?.history, &path, version)?;
        Ok(content(path.as_str(), file, &stat))
    }
}

impl Parts {
    /// The file that is to be replaced, where the condition allows it.
    fn before(&self, path: &RelativePath, condition: &Condition) -> Result<Option<Stat>, Fault> {
        let before = self.stat(path).map_err(|errno| fault::of(errno, path.as_str()))?;
        match (condition, &before) {
            (_, Some(stat)) if is_directory(stat) => return Err(fault::is_a_directory(path.as_str())),
            (_, Some(stat)) if !is_file(stat) => return Err(fault::not_a_file(path.as_str())),
            (Condition::MustBeNew, Some(_)) => {
                return Err(Fault::new(
                    Kind::Conflict,
                    format!("{} exists already", fault::shown(path.as_str())),
                ));
            }
            (Condition::Unchanged(expected), before) => unchanged(path, before.as_ref(), expected)?,
            _ => {}
        }
        Ok(before)
    }

    fn stat(&self, path: &RelativePath) -> Result<Option<Stat>, Errno> {
        let Some((above, name)) = path.split() else { return Ok(None) };
        match self.shared.directory(above.as_str()).and_then(|above| above.stat(name)) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }
}

fn unchanged(path: &RelativePath, now: Option<&Stat>, expected: &str) -> Result<(), Fault> {
    if now.is_some_and(|stat| etag(stat) == expected) {
        return Ok(());
    }
    Err(Fault::new(Kind::Conflict, format!("{} was changed meanwhile", fault::shown(path.as_str())))
        .hint("read it again, and write what becomes of the new contents"))
}

fn delete_directory(
    parts: &Parts,
    path: &RelativePath,
    above: &Directory,
    name: &str,
    recursive: bool,
) -> Result<usize, Fault> {
    let refuse = |errno| fault::of(errno, path.as_str());
    if !recursive {
        return match fs::unlinkat(above.fd(), name, AtFlags::REMOVEDIR) {
            Ok(()) => above.sync().map(|()| 0).map_err(refuse),
            Err(Errno::NOTEMPTY | Errno::EXIST) => {
                let what = format!("the directory {} is not empty", fault::shown(path.as_str()));
                Err(Fault::new(Kind::Conflict, what).hint("say recursive to delete everything in it"))
            }
            Err(errno) => Err(refuse(errno)),
        };
    }
    let directory = above.child(name.as_ref()).map_err(refuse)?;
    let (found, truncated) = walk(&directory, true, SEARCHED).map_err(refuse)?;
    if truncated {
        let what = format!("{} has more than is deleted at once", fault::shown(path.as_str()));
        return Err(Fault::new(Kind::Invalid, what).hint("delete the directories in it one by one"));
    }
    let files: Vec<&Found> = found.iter().filter(|found| is_file(&found.stat)).collect();
    for file in &files {
        let (inside, file_name) = file.path.rsplit_once('/').unwrap_or(("", &file.path));
        // What was written by other means may be deeper than a path that can be asked for; nobody could read its history.
        let Ok(of_file) = RelativePath::parse(&format!("{}/{}", path.as_str(), file.path)) else { continue };
        let inside = directory.directory(inside).map_err(refuse)?;
        history::keep(&parts.history, &of_file, &inside, file_name).map_err(refuse)?;
    }
    let taken = Staged::take(&parts.staging, above, name).map_err(refuse)?;
    above.sync().map_err(refuse)?;
    taken.remove().map_err(refuse)?;
    Ok(files.len())
}

fn file_path(given: &str) -> Result<RelativePath, Fault> {
    let path = RelativePath::in_shared(given)?;
    match path.is_root() {
        true => Err(fault::is_a_directory("")),
        false => Ok(path),
    }
}

pub(crate) fn open_file(directory: &Directory, path: &str) -> Result<(File, Stat), Fault> {
    directory.file(path).map_err(|errno| match errno {
        Errno::INVAL => fault::not_a_file(path),
        errno => fault::of(errno, path),
    })
}

pub(crate) fn content(path: &str, file: File, stat: &Stat) -> Content {
    Content { kind: kind_of(path, &file), size: size(stat), etag: etag(stat), modified: modified(stat), file }
}

pub(crate) fn piece(content: Content, path: &str, offset: u64, limit: Option<u64>) -> Result<Piece, Fault> {
    let Content { file, size, kind, etag, modified } = content;
    let wanted = limit.unwrap_or(MOST_READ).min(MOST_READ).min(size.saturating_sub(offset));
    let mut bytes = vec![0; usize::try_from(wanted).unwrap_or(0)];
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read_at(&mut bytes[filled..], offset + filled as u64) {
            // Somebody made it shorter meanwhile.
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(fault::of_io(error, path)),
        }
    }
    bytes.truncate(filled);
    Ok(Piece { bytes, size, kind, etag, modified })
}

/// Copies a stream into a new file, and has it on the disk.
pub(crate) fn receive(bytes: &mut dyn Read, mut file: File, path: &str) -> Result<File, Fault> {
    let refuse = |error| fault::of_io(error, path);
    let size = std::io::copy(&mut bytes.take(LARGEST_FILE + 1), &mut file).map_err(refuse)?;
    if size > LARGEST_FILE {
        return Err(fault::too_large(path, size, LARGEST_FILE));
    }
    file.flush().and_then(|()| file.sync_all()).map_err(refuse)?;
    Ok(file)
}

fn entry(below: &RelativePath, found: Found) -> Entry {
    let directory = is_directory(&found.stat);
    let path = if below.is_root() { found.path } else { format!("{}/{}", below.as_str(), found.path) };
    Entry {
        mime: if directory { None } else { kind_of_name(&path) },
        path,
        kind: if directory { EntryKind::Directory } else { EntryKind::File },
        size: if directory { 0 } else { size(&found.stat) },
        modified: modified(&found.stat),
    }
}

/// Another one after every write: a write makes a new file.
fn etag(stat: &Stat) -> String {
    format!("{:x}-{:x}-{:x}-{:x}", stat.st_ino, stat.st_mtime, stat.st_mtime_nsec, stat.st_size)
}

pub(crate) fn modified(stat: &Stat) -> Timestamp {
    let nanoseconds = i32::try_from(stat.st_mtime_nsec).unwrap_or(0);
    Timestamp::new(stat.st_mtime, nanoseconds).unwrap_or(Timestamp::UNIX_EPOCH)
}
