//! Small things about files.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// Replaces the file at once: whoever reads it sees the old text or the new one. After a crash of the host it may be neither,
/// which every reader finds out.
pub(crate) fn write(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let fresh = path.with_file_name(format!(".{name}.{}", std::process::id()));
    let written = (|| {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&fresh)?;
        file.write_all(bytes)?;
        fs::rename(&fresh, path)
    })();
    if written.is_err() {
        _ = fs::remove_file(&fresh);
    }
    written
}

/// The text of a regular file that is not too long.
pub(crate) fn read(path: &Path, longest: u64) -> io::Result<String> {
    let about = fs::symlink_metadata(path)?;
    if !about.is_file() || about.len() > longest {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not a file of the expected size"));
    }
    let mut text = String::new();
    File::open(path)?.take(longest).read_to_string(&mut text)?;
    Ok(text)
}

pub(crate) fn make_directory(path: &Path, mode: u32) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(mode).create(path)?;
    // The mode above is subject to the umask.
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

/// Removes a tree whose directories may be read-only. What is gone already is fine.
pub(crate) fn remove_tree(path: &Path) -> io::Result<()> {
    let about = match fs::symlink_metadata(path) {
        Ok(about) => about,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !about.is_dir() {
        return fs::remove_file(path);
    }
    make_writable(path);
    fs::remove_dir_all(path)
}

/// Whether it worked shows when the tree is removed.
fn make_writable(directory: &Path) {
    _ = fs::set_permissions(directory, fs::Permissions::from_mode(0o700));
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            make_writable(&entry.path());
        }
    }
}

/// A lock on a file or a directory, held until it is dropped, also across processes.
#[derive(Debug)]
pub(crate) struct Locked {
    _file: File,
}

impl Locked {
    /// None when somebody else has it.
    pub(crate) fn try_exclusive(path: &Path) -> io::Result<Option<Self>> {
        Self::try_lock(path, FlockOperation::NonBlockingLockExclusive)
    }

    /// None when somebody has it for himself.
    pub(crate) fn try_shared(path: &Path) -> io::Result<Option<Self>> {
        Self::try_lock(path, FlockOperation::NonBlockingLockShared)
    }

    fn try_lock(path: &Path, how: FlockOperation) -> io::Result<Option<Self>> {
        let file = if path.is_dir() {
            File::open(path)?
        } else {
            OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path)?
        };
        match flock(&file, how) {
            Ok(()) => Ok(Some(Self { _file: file })),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// Everything that is directly in the directory, without what is being written.
pub(crate) fn entries(directory: &Path) -> Vec<PathBuf> {
    let is_visible = |path: &PathBuf| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| !name.starts_with('.'))
    };
    let mut all: Vec<PathBuf> = fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(is_visible)
        .collect();
    all.sort();
    all
}
