//! Sending a file or a directory as an archive.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{self, FileType, Stat};
use rustix::io::Errno;
use tar::{Builder, EntryType, Header, HeaderMode};

use super::failure::{Failure, Trouble};
use super::path::SandboxPath;
use super::reply::Chunked;
use super::root::{Root, is_directory, is_file, open_for_reading};
use super::walk::{Step, Walk};
use super::{Connection, KeepAlive, write};

const BUFFER: usize = 128 * 1024;
/// Files with several names whose first name is remembered; more of them are sent as files of their own.
const MOST_HARD_LINKS: usize = 20_000;
/// How many entries the user was not allowed to read. A client that needs all of them looks at it.
const SKIPPED: &str = "x-cubicle-skipped";

/// A directory's entries are named from the directory on; a file is the only entry, with its own name. What
/// unpacking gives is therefore what was archived.
pub(super) fn send(
    root: &Root,
    path: &SandboxPath,
    connection: &mut dyn Connection,
) -> Result<KeepAlive, Trouble> {
    let place = root.follow(path)?;
    let stat = place.stat().map_err(|errno| Failure::of(errno, path))?;
    if is_directory(&stat) {
        let directory = root.open_directory(path)?;
        let walk = Walk::new(root, directory).map_err(|errno| Failure::of(errno, path))?;
        let mut packing = Packing::begin(connection)?;
        packing.tree(walk)?;
        packing.finish()?;
    } else if is_file(&stat) {
        // Opened before the answer begins, so that what cannot be read is refused.
        let (file, stat) = root.open_file(path)?;
        let (_, name) = path.split();
        let mut packing = Packing::begin(connection)?;
        packing.file(name.unwrap_or(OsStr::new("file")).as_bytes(), File::from(file), &stat)?;
        packing.finish()?;
    } else {
        return Err(Failure::not_a_file(path).into());
    }
    Ok(KeepAlive::Yes)
}

struct Packing<'a> {
    builder: Builder<Chunked<'a>>,
    linked: HashMap<(u64, u64), Vec<u8>>,
    skipped: u64,
}

impl<'a> Packing<'a> {
    fn begin(connection: &'a mut dyn Connection) -> io::Result<Self> {
        let mut builder = Builder::new(Chunked::begin(connection, "application/x-tar", BUFFER)?);
        builder.mode(HeaderMode::Deterministic);
        Ok(Self { builder, linked: HashMap::new(), skipped: 0 })
    }

    fn finish(self) -> io::Result<()> {
        let skipped = self.skipped;
        self.builder.into_inner()?.finish(Some((SKIPPED, skipped)))
    }

    fn tree(&mut self, mut walk: Walk<'_>) -> io::Result<()> {
        while let Some(step) = walk.next()? {
            let Step::Entry { name, stat } = step else { continue };
            if write::is_unfinished(&name) {
                continue;
            }
            let path = walk.path_of(&name);
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => match walk.enter(&name) {
                    Ok(true) => self.directory(&path, &stat)?,
                    Ok(false) => {}
                    Err(Errno::ACCESS) => self.skipped += 1,
                    Err(errno) => return Err(errno.into()),
                },
                FileType::RegularFile => self.file_in(walk.directory(), &name, &path)?,
                FileType::Symlink => match fs::readlinkat(walk.directory(), &name, Vec::new()) {
                    Ok(target) => self.link(EntryType::Symlink, &path, target.as_bytes(), &stat)?,
                    Err(Errno::NOENT | Errno::INVAL) => {}
                    Err(errno) => return Err(errno.into()),
                },
                // Sockets, pipes and devices mean nothing outside of their sandbox.
                _ => {}
            }
        }
        Ok(())
    }

    fn file_in(&mut self, dir: BorrowedFd<'_>, name: &OsStr, path: &[u8]) -> io::Result<()> {
        let file = match open_for_reading(dir, name) {
            Ok(file) => file,
            Err(Errno::NOENT | Errno::LOOP | Errno::NXIO) => return Ok(()),
            Err(Errno::ACCESS | Errno::PERM) => {
                self.skipped += 1;
                return Ok(());
            }
            Err(errno) => return Err(errno.into()),
        };
        let stat = fs::fstat(&file)?;
        if !is_file(&stat) {
            return Ok(());
        }
        if stat.st_nlink > 1 {
            let identity = (stat.st_dev, stat.st_ino);
            if let Some(first) = self.linked.get(&identity) {
                let first = first.clone();
                return self.link(EntryType::Link, path, &first, &stat);
            }
            if self.linked.len() < MOST_HARD_LINKS {
                self.linked.insert(identity, path.to_vec());
            }
        }
        self.file(path, File::from(file), &stat)
    }

    /// The size is written before the contents. A file that grows is cut there, one that shrinks is filled with
    /// zeros, as every archiver does.
    fn file(&mut self, path: &[u8], file: File, stat: &Stat) -> io::Result<()> {
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let mut header = header(EntryType::Regular, stat, size);
        let contents = io::BufReader::with_capacity(BUFFER.min(size as usize + 1), file);
        let contents = contents.take(size).chain(io::repeat(0)).take(size);
        self.builder.append_data(&mut header, OsStr::from_bytes(path), contents)
    }

    fn directory(&mut self, path: &[u8], stat: &Stat) -> io::Result<()> {
        let name = [path, b"/"].concat();
        let mut header = header(EntryType::Directory, stat, 0);
        self.builder.append_data(&mut header, OsStr::from_bytes(&name), io::empty())
    }

    fn link(&mut self, kind: EntryType, path: &[u8], target: &[u8], stat: &Stat) -> io::Result<()> {
        let mut header = header(kind, stat, 0);
        if target.len() <= 100 {
            // Written as it is: the crate would tidy a path, and a link's target is not ours to change.
            header.as_old_mut().linkname[..target.len()].copy_from_slice(target);
        } else {
            let mut long = Header::new_gnu();
            long.set_entry_type(EntryType::GNULongLink);
            long.set_size(target.len() as u64 + 1);
            long.set_mode(0o644);
            long.set_cksum();
            let name = b"././@LongLink";
            long.as_old_mut().name[..name.len()].copy_from_slice(name);
            long.set_cksum();
            self.builder.append(&long, target.chain(&[0][..]))?;
        }
        self.builder.append_data(&mut header, OsStr::from_bytes(path), io::empty())
    }
}

fn header(kind: EntryType, stat: &Stat, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(stat.st_mode & 0o777);
    header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or(0));
    header.set_uid(0);
    header.set_gid(0);
    header
}
