//! Walking down a tree that somebody else may be changing, without following a link and with two descriptors.

use std::ffi::{OsStr, OsString};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{self, AtFlags, Mode, OFlags, RawDir, Stat};
use rustix::io::Errno;

use super::root::{Identity, Root, identity, is_directory, name_of};

/// Names of one directory that are held in memory.
const MOST_NAMES: usize = 1_000_000;
const DEEPEST: usize = 2048;

/// A walk from one directory down, every directory's names in order.
pub(super) struct Walk<'a> {
    root: &'a Root,
    current: OwnedFd,
    levels: Vec<Level>,
    /// The path from where the walk began to the current directory, with a slash behind every name.
    path: Vec<u8>,
}

struct Level {
    identity: Identity,
    name: OsString,
    names: std::vec::IntoIter<OsString>,
}

pub(super) enum Step {
    /// A name in the current directory. [`Walk::enter`] goes into it.
    Entry { name: OsString, stat: Stat },
    /// A directory was left; the current one is the one above it.
    Left { name: OsString },
}

impl<'a> Walk<'a> {
    pub(super) fn new(root: &'a Root, directory: OwnedFd) -> Result<Self, Errno> {
        let level = Level::read(directory.as_fd(), OsString::new())?;
        Ok(Self { root, current: directory, levels: vec![level], path: Vec::new() })
    }

    pub(super) fn directory(&self) -> BorrowedFd<'_> {
        self.current.as_fd()
    }

    /// The path of a name in the current directory, from where the walk began.
    pub(super) fn path_of(&self, name: &OsStr) -> Vec<u8> {
        [&self.path, name.as_bytes()].concat()
    }

    /// The next step; none when everything was seen.
    pub(super) fn next(&mut self) -> Result<Option<Step>, Errno> {
        loop {
            let Some(level) = self.levels.last_mut() else { return Ok(None) };
            if let Some(name) = level.names.next() {
                match fs::statat(&self.current, &name, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(stat) => return Ok(Some(Step::Entry { name, stat })),
                    // It was removed meanwhile.
                    Err(Errno::NOENT) => continue,
                    Err(errno) => return Err(errno),
                }
            }
            let Some(left) = self.levels.pop() else { return Ok(None) };
            let Some(above) = self.levels.last() else { return Ok(None) };
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let up = fs::openat(&self.current, "..", flags, Mode::empty())?;
            // Whoever moved the directory away meanwhile must not lead the walk to another place.
            if identity(&up)? != above.identity {
                return Err(Errno::BUSY);
            }
            self.current = up;
            self.path.truncate(self.path.len() - left.name.len() - 1);
            return Ok(Some(Step::Left { name: left.name }));
        }
    }

    /// Goes into a directory of the current one. `false` when it is none any more or is not for files.
    pub(super) fn enter(&mut self, name: &OsStr) -> Result<bool, Errno> {
        if self.levels.len() >= DEEPEST {
            return Err(Errno::NAMETOOLONG);
        }
        // `/proc`, `/sys` and `/dev` are known by what they are, before they are opened.
        match fs::statat(&self.current, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if is_directory(&stat) && !self.root.is_closed_identity(Identity::from(&stat)) => {}
            Ok(_) | Err(Errno::NOENT) => return Ok(false),
            Err(errno) => return Err(errno),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let down = match fs::openat(&self.current, name, flags, Mode::empty()) {
            Ok(down) => down,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(false),
            Err(errno) => return Err(errno),
        };
        if self.root.is_closed(down.as_fd())? {
            return Ok(false);
        }
        self.levels.push(Level::read(down.as_fd(), name.to_owned())?);
        self.path.extend_from_slice(name.as_bytes());
        self.path.push(b'/');
        self.current = down;
        Ok(true)
    }
}

impl Level {
    fn read(directory: BorrowedFd<'_>, name: OsString) -> Result<Self, Errno> {
        let mut names = Vec::new();
        let mut buffer = vec![MaybeUninit::uninit(); 32 * 1024];
        let mut entries = RawDir::new(directory, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let entry = entry.file_name().to_bytes();
            if entry == b"." || entry == b".." {
                continue;
            }
            if names.len() == MOST_NAMES {
                return Err(Errno::FBIG);
            }
            names.push(name_of(entry));
        }
        names.sort_unstable();
        Ok(Self { identity: identity(directory)?, name, names: names.into_iter() })
    }
}
