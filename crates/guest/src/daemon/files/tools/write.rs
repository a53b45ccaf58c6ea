//! Writing and deleting whole files.

use std::io::Write;

use rustix::fs::Mode;
use rustix::io::Errno;

use super::super::failure::Failure;
use super::super::list::{kind_name, shown};
use super::super::path::SandboxPath;
use super::super::remove::remove_place;
use super::super::root::{Place, Root, is_directory, is_file};
use super::super::write::{Unfinished, exists_already, place_for_writing};
use super::{path, text};
use crate::wire::tools::{DeleteFile, FileDeleted, FileWritten, LARGEST_FILE, WriteFile};

pub(super) fn write(root: &Root, asked: &WriteFile) -> Result<FileWritten, Failure> {
    let path = path(&asked.path)?;
    let mode = asked.mode.as_deref().map(mode).transpose()?;
    let bytes = text::encode(&asked.content, asked.encoding)?;
    let target = Target::find(root, path)?;
    if asked.must_be_new && !target.is_new() {
        return Err(exists_already(&target.path, false));
    }
    let created = target.is_new();
    let path = shown(target.path.as_bytes());
    target.stage(&bytes, mode)?.finish(asked.must_be_new)?;
    Ok(FileWritten { path, size: bytes.len() as u64, created })
}

pub(super) fn delete(root: &Root, asked: &DeleteFile) -> Result<FileDeleted, Failure> {
    let path = path(&asked.path)?;
    let place = root.place(&path)?;
    if place.is_directory_itself() {
        return Err(Failure::invalid_path(format!("{path} cannot be deleted: name the directory itself")));
    }
    let stat = place.stat().map_err(|errno| Failure::of(errno, &path))?;
    remove_place(root, &place, asked.recursive).map_err(|errno| match errno {
        Errno::NOTEMPTY => Failure::of(errno, &path).hint("say 'recursive' to delete it with all it has"),
        _ => Failure::of(errno, &path),
    })?;
    Ok(FileDeleted { path: shown(path.as_bytes()), kind: kind_name(&stat).into() })
}

fn mode(given: &str) -> Result<u32, Failure> {
    let mode = u32::from_str_radix(given, 8).ok().filter(|mode| *mode <= 0o777 && given.len() <= 4);
    mode.ok_or_else(|| Failure::invalid_argument("'mode' is octal, from 0 to 777, as in 0644"))
}

/// A file that is to be written: where it really is, behind links, and what was there.
pub(super) struct Target {
    pub(super) path: SandboxPath,
    place: Place,
    /// The permission bits of what is there.
    mode: Option<u32>,
}

impl Target {
    /// Directories that are missing are made.
    pub(super) fn find(root: &Root, path: SandboxPath) -> Result<Self, Failure> {
        let place = match root.follow(&path) {
            Err(failure) if failure.code == "not_found" => place_for_writing(root, &path, true)?,
            found => found?,
        };
        let mode = match place.stat() {
            Ok(stat) if is_directory(&stat) => return Err(Failure::of(Errno::ISDIR, &path)),
            Ok(stat) if is_file(&stat) => Some(stat.st_mode & 0o777),
            // A link that points nowhere is replaced.
            Ok(_) | Err(Errno::NOENT) => None,
            Err(errno) => return Err(Failure::of(errno, &path)),
        };
        Ok(Self { path, place, mode })
    }

    pub(super) fn is_new(&self) -> bool {
        self.mode.is_none()
    }

    /// Writes the contents beside the file, which stays as it is until it is finished.
    pub(super) fn stage(self, bytes: &[u8], mode: Option<u32>) -> Result<Staged, Failure> {
        if bytes.len() > LARGEST_FILE {
            return Err(Failure::too_large(&self.path, LARGEST_FILE));
        }
        let mut unfinished = Unfinished::create(&self.place, &self.path)?;
        unfinished.file.write_all(bytes).map_err(|error| Failure::of_io(&error, &self.path))?;
        let mode = Mode::from_raw_mode(mode.or(self.mode).unwrap_or(0o644));
        Ok(Staged { unfinished, mode, path: self.path })
    }
}

pub(super) struct Staged {
    unfinished: Unfinished,
    mode: Mode,
    pub(super) path: SandboxPath,
}

impl Staged {
    pub(super) fn finish(self, must_be_new: bool) -> Result<(), Failure> {
        self.unfinished.finish(self.mode, must_be_new, &self.path).map(drop)
    }
}
