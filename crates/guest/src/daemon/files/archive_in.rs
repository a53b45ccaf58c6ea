//! Unpacking an archive that somebody sends.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use rustix::fs::{self, AtFlags, Mode, OFlags, ResolveFlags, Timespec, Timestamps};
use rustix::io::Errno;
use serde::Serialize;
use tar::{Archive, EntryType, Header};

use super::failure::{Failure, Trouble};
use super::path::SandboxPath;
use super::root::{Root, is_directory};
use super::tar_headers::{BadHeader, Extensions, Names};
use super::{Connection, KeepAlive, reply};

/// Directories that get a mode without write or search permission only when everything is in them.
const MOST_CLOSED_DIRECTORIES: usize = 10_000;
const COPY_BUFFER: usize = 128 * 1024;

#[derive(Debug, Default, Serialize)]
pub(super) struct Unpacked {
    files: u64,
    directories: u64,
    links: u64,
    bytes: u64,
}

pub(super) fn receive(
    root: &Root,
    into: &SandboxPath,
    body: &mut dyn Read,
    connection: &mut dyn Connection,
) -> Result<KeepAlive, Trouble> {
    let unpacked = unpack(root, into, body)?;
    Ok(reply::json(connection, 200, &unpacked)?)
}

/// Unpacks below a directory, which is made when it is missing. What came before an entry that is refused stays.
pub(super) fn unpack(root: &Root, into: &SandboxPath, body: &mut dyn Read) -> Result<Unpacked, Trouble> {
    let (base, _) = root.make_directories(into, None)?;
    let mut target = Target {
        root,
        base,
        into,
        last: None,
        closed: Vec::new(),
        buffer: Vec::new(),
        unpacked: Unpacked::default(),
    };
    let mut archive = Archive::new(Watched { body, broken: None });
    let result = target.take_all(&mut archive);
    let watched = archive.into_inner();
    if let Some(error) = watched.broken {
        return Err(Trouble::Gone(error));
    }
    result?;
    // Behind the archive's end there may be padding, which belongs to the body.
    io::copy(watched.body, &mut io::sink())?;
    target.close_directories()?;
    Ok(target.unpacked)
}

/// Remembers whether reading from the client failed: the archive's own errors do not tell.
struct Watched<'a> {
    body: &'a mut dyn Read,
    broken: Option<io::Error>,
}

impl Read for Watched<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.body.read(buffer).map_err(|error| {
            if error.kind() == io::ErrorKind::Interrupted {
                return error;
            }
            let copy = io::Error::from(error.kind());
            self.broken = Some(error);
            copy
        })
    }
}

struct Target<'a> {
    root: &'a Root,
    base: OwnedFd,
    into: &'a SandboxPath,
    /// The directory of the entry before, which is most often that of the next one too.
    last: Option<(Vec<u8>, Rc<OwnedFd>)>,
    closed: Vec<(Vec<u8>, Mode)>,
    buffer: Vec<u8>,
    unpacked: Unpacked,
}

impl Target<'_> {
    fn take_all(&mut self, archive: &mut Archive<Watched<'_>>) -> Result<(), Failure> {
        let malformed =
            |_| Failure::new(400, "invalid_archive", "the body is not a complete tar archive").hint(HINT);
        let mut extensions = Extensions::default();
        for entry in archive.entries().map_err(malformed)?.raw(true) {
            let mut entry = entry.map_err(malformed)?;
            let names = match extensions.next(&mut entry) {
                Ok(Some(names)) => names,
                Ok(None) => continue,
                Err(BadHeader::TooLong) => {
                    return Err(Failure::new(
                        400,
                        "invalid_archive",
                        "the archive has a name that is too long",
                    ));
                }
                Err(BadHeader::Malformed(why)) => {
                    return Err(Failure::new(400, "invalid_archive", format!("the archive has {why}")));
                }
                Err(BadHeader::Broken) => {
                    return Err(Failure::new(400, "invalid_archive", "the archive ends too early").hint(HINT));
                }
            };
            let header = entry.header().clone();
            self.take(&header, &names, &mut entry)?;
        }
        Ok(())
    }

    fn take(&mut self, header: &Header, names: &Names, contents: &mut dyn Read) -> Result<(), Failure> {
        let kind = header.entry_type();
        let path =
            inside(&names.path).ok_or_else(|| refused(&names.path, "leads out of the target directory"))?;
        let into = self.into;
        let of = |errno| failed(into, errno, &names.path);
        let mode = Mode::from_raw_mode(header.mode().unwrap_or(0o644) & 0o777);
        // A name that ends in a slash is a directory's, in archives from before there was a type for it.
        let old_directory = kind == EntryType::Regular && names.path.ends_with(b"/");
        if kind == EntryType::Directory || old_directory {
            if !path.is_empty() {
                self.directory(&path, mode).map_err(of)?;
            }
            self.unpacked.directories += 1;
            return Ok(());
        }
        if path.is_empty() {
            return Err(refused(&names.path, "has no name"));
        }
        let (above, name) = split(&path);
        match kind {
            EntryType::Regular | EntryType::Continuous => {
                let dir = self.above(above).map_err(of)?;
                let mut file = File::from(create(&dir, name).map_err(of)?);
                self.unpacked.bytes +=
                    copy(contents, &mut file, &mut self.buffer).map_err(|error| match error {
                        CopyError::Archive => {
                            Failure::new(400, "invalid_archive", "the archive ends too early").hint(HINT)
                        }
                        CopyError::File(error) => of(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
                    })?;
                fs::fchmod(&file, mode).map_err(of)?;
                // A time that the file system cannot hold is not worth failing for.
                let _ = fs::futimens(&file, &times(header));
                self.unpacked.files += 1;
            }
            EntryType::Symlink => {
                let dir = self.above(above).map_err(of)?;
                replace(&dir, name, || fs::symlinkat(names.link.as_slice(), &dir, name)).map_err(of)?;
                self.unpacked.links += 1;
            }
            EntryType::Link => {
                let target = inside(&names.link).filter(|target| !target.is_empty());
                let target = target
                    .ok_or_else(|| refused(&names.path, "is a hard link out of the target directory"))?;
                let (target_above, target_name) = split(&target);
                let target_dir = self.beneath(target_above).map_err(of)?;
                let dir = self.above(above).map_err(of)?;
                if target != path {
                    let link = || fs::linkat(&target_dir, target_name, &dir, name, AtFlags::empty());
                    replace(&dir, name, link).map_err(of)?;
                }
                self.unpacked.links += 1;
            }
            EntryType::Char | EntryType::Block | EntryType::Fifo => {
                return Err(refused(&names.path, "is a device or a pipe"));
            }
            _ => {
                let what = "is of a kind that is not unpacked (only files, directories and links are)";
                return Err(refused(&names.path, what));
            }
        }
        Ok(())
    }

    /// The directory for an entry, with everything above it that the archive does not mention.
    fn above(&mut self, path: &[u8]) -> Result<Rc<OwnedFd>, Errno> {
        if let Some((last, dir)) = &self.last
            && last == path
        {
            return Ok(dir.clone());
        }
        let dir = match self.beneath(path) {
            Err(Errno::NOENT) => self.make(path)?,
            result => result?,
        };
        let dir = Rc::new(dir);
        self.last = Some((path.to_vec(), dir.clone()));
        Ok(dir)
    }

    fn make(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        let mut reached = Vec::with_capacity(path.len());
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            let dir = self.beneath(&reached)?;
            match fs::mkdirat(&dir, name, Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
            reached.extend_from_slice(name);
            reached.push(b'/');
        }
        self.beneath(path)
    }

    /// A directory that is there. No link on the way may lead out of the target, wherever it came from.
    fn beneath(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        let path = if path.is_empty() { b"." } else { path };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let found = fs::openat2(&self.base, path, flags, Mode::empty(), resolve)?;
        // The target may be `/` itself, which has directories in it that are not for files.
        match self.root.allows(found.as_fd())? {
            true => Ok(found),
            false => Err(Errno::XDEV),
        }
    }

    fn directory(&mut self, path: &[u8], mode: Mode) -> Result<(), Errno> {
        let (above, name) = split(path);
        let dir = self.above(above)?;
        let closed = !mode.contains(Mode::WUSR | Mode::XUSR | Mode::RUSR);
        match fs::mkdirat(&dir, name, Mode::RWXU) {
            Ok(()) => {}
            // What is there already keeps its mode.
            Err(Errno::EXIST) => return self.beneath(path).map(drop),
            Err(errno) => return Err(errno),
        }
        if closed && self.closed.len() < MOST_CLOSED_DIRECTORIES {
            self.closed.push((path.to_vec(), mode));
            return Ok(());
        }
        set_directory_mode(&dir, name, mode | Mode::RWXU)
    }

    fn close_directories(&mut self) -> Result<(), Failure> {
        // The deepest ones come last in an archive, and can only be reached while those above are open.
        while let Some((path, mode)) = self.closed.pop() {
            let (above, name) = split(&path);
            let close = || set_directory_mode(&self.beneath(above)?, name, mode);
            match close() {
                Ok(()) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(errno) => return Err(failed(self.into, errno, &path)),
            }
        }
        Ok(())
    }
}

fn failed(into: &SandboxPath, errno: Errno, entry: &[u8]) -> Failure {
    match errno {
        Errno::XDEV | Errno::LOOP => {
            refused(entry, "leads out of the target directory, or to where no files are")
        }
        _ => match SandboxPath::from_bytes(&into.join(entry)) {
            Ok(path) => Failure::of(errno, &path),
            Err(failure) => failure,
        },
    }
}

const HINT: &str = "compressed archives are not unpacked: decompress before sending";

fn refused(entry: &[u8], why: &str) -> Failure {
    let shown: String =
        String::from_utf8_lossy(entry).chars().take(300).flat_map(char::escape_default).collect();
    Failure::new(400, "archive_entry_refused", format!("the entry '{shown}' {why}"))
        .hint("entries before it were unpacked")
}

/// The path below the target directory, `.` removed; none when it is absolute or climbs.
fn inside(path: &[u8]) -> Option<Vec<u8>> {
    if path.first() == Some(&b'/') {
        return None;
    }
    let mut kept: Vec<&[u8]> = Vec::new();
    for part in path.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => return None,
            name => kept.push(name),
        }
    }
    Some(kept.join(&b'/'))
}

fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}

/// A new file under this name, in place of whatever but a directory was there.
fn create(dir: &OwnedFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    replace(dir, name, || fs::openat(dir, name, flags, Mode::RUSR | Mode::WUSR))
}

fn replace<T>(dir: &OwnedFd, name: &[u8], make: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
    // Somebody may put something there again and again; that is theirs to stop.
    for _ in 0..8 {
        match make() {
            Err(Errno::EXIST) => {}
            result => return result,
        }
        match fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if is_directory(&stat) => return Err(Errno::ISDIR),
            Ok(_) => match fs::unlinkat(dir, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno),
            },
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
    }
    Err(Errno::BUSY)
}

fn set_directory_mode(dir: &OwnedFd, name: &[u8], mode: Mode) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    fs::fchmod(fs::openat(dir.as_fd(), name, flags, Mode::empty())?, mode)
}

enum CopyError {
    Archive,
    File(io::Error),
}

fn copy(contents: &mut dyn Read, file: &mut File, buffer: &mut Vec<u8>) -> Result<u64, CopyError> {
    buffer.resize(COPY_BUFFER, 0);
    let mut copied = 0;
    loop {
        let read = match contents.read(buffer) {
            Ok(0) => return Ok(copied),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return Err(CopyError::Archive),
        };
        file.write_all(&buffer[..read]).map_err(CopyError::File)?;
        copied += read as u64;
    }
}

fn times(header: &Header) -> Timestamps {
    let seconds = header.mtime().ok().and_then(|seconds| i64::try_from(seconds).ok()).unwrap_or(0);
    let time = Timespec { tv_sec: seconds, tv_nsec: 0 };
    Timestamps { last_access: time, last_modification: time }
}
