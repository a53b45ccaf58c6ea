//! Resolving paths inside the sandbox's root, and nowhere else.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::sync::OnceLock;

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use super::failure::Failure;
use super::path::SandboxPath;

/// Never through a link that the kernel resolves by itself (`/proc/self/root`, `/proc/self/fd/3`).
const INSIDE: ResolveFlags = ResolveFlags::IN_ROOT.union(ResolveFlags::NO_MAGICLINKS);
const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// As many symbolic links as the kernel follows in one path.
const MOST_LINKS: usize = 40;
/// A directory cannot be deeper than this in a path that the kernel takes.
const DEEPEST: usize = 2048;
/// `openat2` gives up with EAGAIN when somebody renames a directory while it climbs over `..`.
const ATTEMPTS: usize = 64;

/// File systems that show the kernel's own state. pid 1 is itself to them, whatever its file system ids are.
const KERNEL_FILE_SYSTEMS: [i64; 12] = [
    0x9fa0,      // proc
    0x6265_6572, // sysfs
    0x0027_e0eb, // cgroup
    0x6367_7270, // cgroup2
    0x1cd1,      // devpts
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x7363_6673, // securityfs
    0xcafe_4a11, // bpf
    0x4249_4e4d, // binfmt_misc
    0x6e73_6673, // nsfs
    0x1980_0202, // mqueue
];

/// A file or directory, whatever it is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    device: u64,
    inode: u64,
}

impl From<&Stat> for Identity {
    fn from(stat: &Stat) -> Self {
        Self { device: stat.st_dev, inode: stat.st_ino }
    }
}

pub(super) fn identity(fd: impl AsFd) -> Result<Identity, Errno> {
    fs::fstat(fd).map(|stat| Identity::from(&stat))
}

/// What all paths are resolved in.
#[derive(Debug)]
pub(super) struct Root {
    fd: OwnedFd,
    identity: Identity,
    /// `/proc`, `/sys` and `/dev`.
    closed: Vec<Identity>,
    /// `/dev/shm`, the one place in there that is for files.
    shared_memory: Option<Identity>,
}

/// Where a name is, or will be: a directory that was resolved and checked, and the name in it.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) dir: OwnedFd,
    /// `.` when the path can only mean the directory itself.
    pub(super) name: OsString,
}

impl Place {
    pub(super) fn is_directory_itself(&self) -> bool {
        self.name == "."
    }

    /// Looks at the name itself, also when it is a symbolic link.
    pub(super) fn stat(&self) -> Result<Stat, Errno> {
        fs::statat(&self.dir, &self.name, AtFlags::SYMLINK_NOFOLLOW)
    }
}

impl Root {
    /// The root of this process, which is the sandbox's. Taken once, before the workload can do anything about it.
    pub(super) fn of_this_process() -> Result<&'static Self, Failure> {
        static ROOT: OnceLock<Root> = OnceLock::new();
        if let Some(root) = ROOT.get() {
            return Ok(root);
        }
        let open = || Self::new(fs::open("/", DIRECTORY, Mode::empty())?);
        let root = open().map_err(|errno| {
            let text = std::io::Error::from(errno);
            Failure::new(500, "io_error", format!("the root directory cannot be opened: {text}"))
        })?;
        Ok(ROOT.get_or_init(|| root))
    }

    pub(super) fn new(fd: OwnedFd) -> Result<Self, Errno> {
        let id_of = |name: &str| {
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
            fs::openat2(&fd, name, DIRECTORY, Mode::empty(), resolve).and_then(identity)
        };
        let closed = ["proc", "sys", "dev"].into_iter().filter_map(|name| id_of(name).ok()).collect();
        let shared_memory = id_of("dev/shm").ok();
        Ok(Self { identity: identity(&fd)?, closed, shared_memory, fd })
    }

    /// Finds the directory that holds the last name of a path. The name itself is not looked at.
    pub(super) fn place(&self, path: &SandboxPath) -> Result<Place, Failure> {
        let (directory, name) = path.split();
        let dir = self.directory_at(directory).map_err(|errno| Failure::of(errno, path))?;
        self.check(dir.as_fd(), path)?;
        Ok(Place { dir, name: name.unwrap_or(OsStr::new(".")).to_owned() })
    }

    /// The same, following the last name as long as it is a symbolic link.
    pub(super) fn follow(&self, path: &SandboxPath) -> Result<Place, Failure> {
        let mut current = path.clone();
        for _ in 0..MOST_LINKS {
            let place = self.place(&current)?;
            let stat = place.stat().map_err(|errno| Failure::of(errno, path))?;
            if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
                return Ok(place);
            }
            let target = fs::readlinkat(&place.dir, &place.name, Vec::new());
            let target = target.map_err(|errno| Failure::of(errno, path))?.into_bytes();
            let next =
                if target.first() == Some(&b'/') { target } else { [current.split().0, &target].concat() };
            current = SandboxPath::from_bytes(&next)?;
        }
        Err(Failure::of(Errno::LOOP, path))
    }

    /// Opens a regular file for reading, following symbolic links inside the root.
    pub(super) fn open_file(&self, path: &SandboxPath) -> Result<(OwnedFd, Stat), Failure> {
        let place = self.follow(path)?;
        let refuse = |errno| Failure::of(errno, path);
        // A device or a pipe would act on being opened, so the name is looked at first. It may be another one by
        // now: then it is opened without waiting, looked at again, and closed.
        if !is_file(&place.stat().map_err(refuse)?) {
            return Err(Failure::not_a_file(path));
        }
        let file = open_for_reading(place.dir.as_fd(), &place.name).map_err(refuse)?;
        let stat = fs::fstat(&file).map_err(refuse)?;
        if !is_file(&stat) {
            return Err(Failure::not_a_file(path));
        }
        if shows_kernel_state(file.as_fd()).map_err(refuse)? {
            return Err(Failure::path_not_allowed(path));
        }
        Ok((file, stat))
    }

    /// Opens a directory for reading, following symbolic links inside the root.
    pub(super) fn open_directory(&self, path: &SandboxPath) -> Result<OwnedFd, Failure> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let opened = self.resolve(path.as_bytes(), flags).map_err(|errno| Failure::of(errno, path))?;
        self.check(opened.as_fd(), path)?;
        Ok(opened)
    }

    /// Makes a directory and all that is missing above it. The second value says whether it was there already.
    pub(super) fn make_directories(
        &self,
        path: &SandboxPath,
        mode: Option<u32>,
    ) -> Result<(OwnedFd, bool), Failure> {
        let refuse = |errno| Failure::of(errno, path);
        if let Ok(dir) = self.directory_at(path.as_bytes()) {
            self.check(dir.as_fd(), path)?;
            return Ok((dir, true));
        }
        let mut reached = Vec::with_capacity(path.as_bytes().len());
        let mut dir = self.directory_at(b"/").map_err(refuse)?;
        let mut existed = true;
        for name in path.components() {
            reached.push(b'/');
            reached.extend_from_slice(name);
            dir = match self.directory_at(&reached) {
                Ok(found) => found,
                Err(Errno::NOENT) => {
                    self.check(dir.as_fd(), path)?;
                    match fs::mkdirat(&dir, name, Mode::from_raw_mode(0o755)) {
                        Ok(()) => existed = false,
                        Err(Errno::EXIST) => {}
                        Err(errno) => return Err(refuse(errno)),
                    }
                    self.directory_at(&reached).map_err(refuse)?
                }
                Err(errno) => return Err(refuse(errno)),
            };
        }
        self.check(dir.as_fd(), path)?;
        if let (Some(mode), false) = (mode, existed) {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let made = fs::openat(&dir, ".", flags, Mode::empty()).map_err(refuse)?;
            fs::fchmod(&made, Mode::from_raw_mode(mode)).map_err(refuse)?;
        }
        Ok((dir, existed))
    }

    /// Whether a directory that was reached by walking down is one that is not for files.
    pub(super) fn is_closed(&self, directory: BorrowedFd<'_>) -> Result<bool, Errno> {
        Ok(self.closed.contains(&identity(directory)?) || shows_kernel_state(directory)?)
    }

    /// Whether a directory that has this identity is `/proc`, `/sys` or `/dev` itself.
    pub(super) fn is_closed_identity(&self, directory: Identity) -> bool {
        self.closed.contains(&directory)
    }

    fn directory_at(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        self.resolve(path, DIRECTORY)
    }

    fn resolve(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        for _ in 0..ATTEMPTS {
            match fs::openat2(&self.fd, path, flags, Mode::empty(), INSIDE) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                result => return result,
            }
        }
        Err(Errno::AGAIN)
    }

    fn check(&self, directory: BorrowedFd<'_>, path: &SandboxPath) -> Result<(), Failure> {
        match self.allows(directory).map_err(|errno| Failure::of(errno, path))? {
            true => Ok(()),
            false => Err(Failure::path_not_allowed(path)),
        }
    }

    /// Climbs from a directory to the root, and says whether no directory that is not for files is on the way. How
    /// the path was written does not matter: it may have led there through any link.
    pub(super) fn allows(&self, directory: BorrowedFd<'_>) -> Result<bool, Errno> {
        if shows_kernel_state(directory)? {
            return Ok(false);
        }
        let mut here = identity(directory)?;
        let mut climbed: Option<OwnedFd> = None;
        for _ in 0..DEEPEST {
            if here == self.identity || Some(here) == self.shared_memory {
                return Ok(true);
            }
            if self.closed.contains(&here) {
                return Ok(false);
            }
            let from = climbed.as_ref().map_or(directory, AsFd::as_fd);
            let above = fs::openat(from, "..", DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?;
            let next = identity(&above)?;
            if next == here {
                // This is above the root: the directory was moved out of it meanwhile.
                return Ok(false);
            }
            here = next;
            climbed = Some(above);
        }
        Ok(false)
    }
}

/// Opens without following a link, waiting for a pipe's other end, or taking a terminal.
pub(super) fn open_for_reading(dir: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC;
    fs::openat(dir, name, flags, Mode::empty())
}

pub(super) fn is_file(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

pub(super) fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

fn shows_kernel_state(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    #[allow(clippy::unnecessary_cast, reason = "the type differs between targets")]
    fs::fstatfs(fd).map(|stat| KERNEL_FILE_SYSTEMS.contains(&(stat.f_type as i64)))
}

/// A raw name as the kernel gave it.
pub(super) fn name_of(bytes: &[u8]) -> OsString {
    OsString::from_vec(bytes.to_vec())
}
