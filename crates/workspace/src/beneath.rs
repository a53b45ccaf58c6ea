//! Opening what is below a directory, and nothing else.

use std::ffi::OsStr;
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, RawDir, ResolveFlags, Stat};
use rustix::io::Errno;

const BENEATH: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);
const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const PLACE: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// `openat2` gives up with EAGAIN when somebody renames a directory meanwhile.
const ATTEMPTS: usize = 64;
const DIRECTORY_MODE: Mode = Mode::from_raw_mode(0o755);

/// A directory by its descriptor. Paths are relative to it and cannot leave it, whatever anybody puts there meanwhile.
#[derive(Debug)]
pub(crate) struct Directory(OwnedFd);

impl Directory {
    /// Of a path that only the server's owner can change.
    pub(crate) fn at(path: &Path) -> Result<Self, Errno> {
        fs::open(path, DIRECTORY, Mode::empty()).map(Self)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// A directory below this one. Empty means this one.
    pub(crate) fn directory(&self, path: &str) -> Result<Self, Errno> {
        self.resolve(if path.is_empty() { "." } else { path }, DIRECTORY).map(Self)
    }

    /// A directory below this one, with what is missing above it. Where it cannot be made, what was made on the way stays.
    pub(crate) fn make_directory(&self, path: &str) -> Result<Self, Errno> {
        self.make(path, |_| Ok(()))
    }

    /// The same, on the disk: a file that is said to be there is there with all that is above it.
    pub(crate) fn make_lasting_directory(&self, path: &str) -> Result<Self, Errno> {
        self.make(path, Self::sync)
    }

    fn make(&self, path: &str, made: impl Fn(&Self) -> Result<(), Errno>) -> Result<Self, Errno> {
        match self.directory(path) {
            Err(Errno::NOENT) => {}
            found => return found,
        }
        let mut here = self.directory("")?;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            match fs::mkdirat(&here.0, name, DIRECTORY_MODE) {
                Ok(()) => made(&here)?,
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
            here = here.directory(name)?;
        }
        Ok(here)
    }

    /// What a name of this directory is, without following it.
    pub(crate) fn stat(&self, name: impl AsRef<OsStr>) -> Result<Stat, Errno> {
        fs::statat(&self.0, name.as_ref(), AtFlags::SYMLINK_NOFOLLOW)
    }

    /// A regular file below this directory, for reading. Anything else is EINVAL, and a directory is EISDIR.
    pub(crate) fn file(&self, path: &str) -> Result<(File, Stat), Errno> {
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        let above = self.place(above)?;
        // A pipe would act on being opened, so the name is looked at first. It may be another one by now: then it is opened without
        // waiting, looked at again, and closed.
        regular(&above.stat(name)?)?;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = above.resolve(name, flags)?;
        let stat = fs::fstat(&file)?;
        regular(&stat)?;
        Ok((file.into(), stat))
    }

    /// All names, at most so many; whether there are more.
    pub(crate) fn names(&self, most: usize) -> Result<(Vec<std::ffi::OsString>, bool), Errno> {
        // A descriptor of its own, because reading moves its position.
        let again = self.directory("")?;
        let mut names = Vec::new();
        let mut buffer = vec![MaybeUninit::uninit(); 32 * 1024];
        let mut entries = RawDir::new(&again.0, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            if names.len() == most {
                return Ok((names, true));
            }
            names.push(std::ffi::OsString::from_vec(name.to_vec()));
        }
        Ok((names, false))
    }

    /// A directory to look at and to change names in; it need not be readable.
    fn place(&self, path: &str) -> Result<Self, Errno> {
        self.resolve(if path.is_empty() { "." } else { path }, PLACE).map(Self)
    }

    /// A directory of this one, by a name that may be anything.
    pub(crate) fn child(&self, name: &OsStr) -> Result<Self, Errno> {
        self.resolve(OsStr::from_bytes(name.as_bytes()), DIRECTORY).map(Self)
    }

    fn resolve(&self, path: impl AsRef<OsStr>, flags: OFlags) -> Result<OwnedFd, Errno> {
        for _ in 0..ATTEMPTS {
            match fs::openat2(&self.0, path.as_ref(), flags, Mode::empty(), BENEATH) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                result => return result,
            }
        }
        Err(Errno::AGAIN)
    }

    /// Everything that was renamed in this directory is on the disk.
    pub(crate) fn sync(&self) -> Result<(), Errno> {
        match fs::fsync(&self.0) {
            // Some file systems have nothing to do for a directory and say it so.
            Err(Errno::INVAL) => Ok(()),
            result => result,
        }
    }
}

pub(crate) fn is_file(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

pub(crate) fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

pub(crate) fn size(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

fn regular(stat: &Stat) -> Result<(), Errno> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(()),
        FileType::Directory => Err(Errno::ISDIR),
        FileType::Symlink => Err(Errno::LOOP),
        _ => Err(Errno::INVAL),
    }
}
