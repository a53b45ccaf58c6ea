//! Writing files and directories, and giving them other names.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{self, AtFlags, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;
use serde::Serialize;

use super::failure::{Failure, Trouble};
use super::path::{Query, SandboxPath};
use super::root::{Place, Root, is_directory, is_file, open_for_reading};
use super::{Connection, KeepAlive, Request, list, reply};

/// Files being written have names that begin so; nobody is told about them.
pub(super) const UNFINISHED: &str = ".cubicle-unfinished-";
const COPY_BUFFER: u64 = 128 * 1024;

#[derive(Serialize)]
struct Written {
    path: String,
    size: u64,
}

/// Replaces a file in one step: whoever opens it sees the old contents or the new ones, and after any failure the
/// old ones.
pub(super) fn put(
    root: &Root,
    request: &Request,
    query: &Query,
    path: &SandboxPath,
    body: &mut dyn Read,
    connection: &mut dyn Connection,
) -> Result<KeepAlive, Trouble> {
    let must_be_new = match request.header("if-none-match") {
        None => false,
        Some("*") => true,
        Some(_) => {
            return Err(Failure::invalid_query("a file is written with If-None-Match: * or without").into());
        }
    };
    let mode = query.mode()?;
    let place = place_for_writing(root, path, query.flag("parents")?)?;
    let before = match place.stat() {
        Ok(stat) if must_be_new => return Err(exists_already(path, is_directory(&stat)).into()),
        Ok(stat) if is_directory(&stat) => return Err(Failure::of(Errno::ISDIR, path).into()),
        Ok(stat) => Some(stat),
        Err(Errno::NOENT) => None,
        Err(errno) => return Err(Failure::of(errno, path).into()),
    };
    let kept_mode = before.as_ref().filter(|stat| is_file(stat)).map(|stat| stat.st_mode & 0o777);
    let mut unfinished = Unfinished::create(&place, path)?;
    let size = receive(body, request.content_length, &mut unfinished.file, path)?;
    unfinished.finish(Mode::from_raw_mode(mode.or(kept_mode).unwrap_or(0o644)), must_be_new, path)?;
    let status = if before.is_some() { 200 } else { 201 };
    Ok(reply::json(connection, status, &Written { path: list::shown(path.as_bytes()), size })?)
}

/// The same for contents that are there already; missing directories are made.
pub(super) fn put_whole(root: &Root, path: &str, mode: u32, bytes: &[u8]) -> Result<Stat, Failure> {
    let path = SandboxPath::from_bytes(path.as_bytes())?;
    let place = place_for_writing(root, &path, true)?;
    if place.stat().is_ok_and(|stat| is_directory(&stat)) {
        return Err(Failure::of(Errno::ISDIR, &path));
    }
    let mut unfinished = Unfinished::create(&place, &path)?;
    unfinished.file.write_all(bytes).map_err(|error| Failure::of_io(&error, &path))?;
    unfinished.finish(Mode::from_raw_mode(mode & 0o777), false, &path)
}

/// Makes a directory with everything above it.
pub(super) fn mkdir(
    root: &Root,
    query: &Query,
    path: &SandboxPath,
    connection: &mut dyn Connection,
) -> Result<KeepAlive, Trouble> {
    let made = root.make_directories(path, query.mode()?);
    let (_, existed) = made.map_err(|failure| match failure.code {
        "not_a_directory" => match root.place(path).map(|place| place.stat()) {
            Ok(Ok(_)) => Failure::of(Errno::EXIST, path),
            _ => failure,
        },
        _ => failure,
    })?;
    Ok(reply::json(
        connection,
        if existed { 200 } else { 201 },
        &Moved { path: list::shown(path.as_bytes()) },
    )?)
}

#[derive(Serialize)]
struct Moved {
    path: String,
}

/// Moves whatever has a name to another name, never what a link points to.
pub(super) fn rename(
    root: &Root,
    query: &Query,
    from: &SandboxPath,
    connection: &mut dyn Connection,
) -> Result<KeepAlive, Trouble> {
    let to = query.required_path("to")?;
    let replace = query.get("replace").is_none() || query.flag("replace")?;
    let source = root.place(from)?;
    let target = place_for_writing(root, &to, query.flag("parents")?)?;
    if source.is_directory_itself() {
        return Err(Failure::invalid_path(format!("{from} cannot be moved")).into());
    }
    let flags = if replace { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
    match fs::renameat_with(&source.dir, &source.name, &target.dir, &target.name, flags) {
        Ok(()) => {}
        Err(Errno::XDEV) => move_file_across(&source, from, &target, &to, !replace)?,
        // The kernel speaks of the source only in these cases.
        Err(errno @ (Errno::NOENT | Errno::INVAL)) => return Err(Failure::of(errno, from).into()),
        Err(errno) => return Err(Failure::of(errno, &to).into()),
    }
    Ok(reply::json(connection, 200, &Moved { path: list::shown(to.as_bytes()) })?)
}

/// `/tmp` and `/workspace` are different file systems, between which the kernel does not move.
fn move_file_across(
    source: &Place,
    from: &SandboxPath,
    target: &Place,
    to: &SandboxPath,
    must_be_new: bool,
) -> Result<(), Failure> {
    let of_source = |errno| Failure::of(errno, from);
    if !is_file(&source.stat().map_err(of_source)?) {
        return Err(Failure::of(Errno::XDEV, from));
    }
    let file = open_for_reading(source.dir.as_fd(), &source.name).map_err(of_source)?;
    let stat = fs::fstat(&file).map_err(of_source)?;
    if !is_file(&stat) {
        return Err(Failure::not_a_file(from));
    }
    let mut unfinished = Unfinished::create(target, to)?;
    let copied = std::io::copy(&mut File::from(file), &mut unfinished.file);
    copied.map_err(|error| Failure::of_io(&error, to))?;
    unfinished.finish(Mode::from_raw_mode(stat.st_mode & 0o777), must_be_new, to)?;
    fs::unlinkat(&source.dir, &source.name, AtFlags::empty()).map_err(of_source)
}

pub(super) fn place_for_writing(root: &Root, path: &SandboxPath, parents: bool) -> Result<Place, Failure> {
    let (directory, name) = path.split();
    let Some(name) = name else {
        return Err(Failure::of(Errno::ISDIR, path));
    };
    if parents {
        let above = SandboxPath::from_bytes(directory)?;
        let (dir, _) = root.make_directories(&above, None)?;
        return Ok(Place { dir, name: name.to_owned() });
    }
    root.place(path).map_err(|failure| match failure.code {
        "not_found" => Failure::new(404, "not_found", format!("the directory of {path} does not exist"))
            .hint("add ?parents=true to have it made"),
        _ => failure,
    })
}

pub(super) fn exists_already(path: &SandboxPath, directory: bool) -> Failure {
    let what = if directory { "a directory" } else { "a file" };
    Failure::new(412, "exists", format!("{path} is {what} already"))
}

/// Copies a body to a file and says how long it was.
fn receive(
    body: &mut dyn Read,
    promised: Option<u64>,
    file: &mut File,
    path: &SandboxPath,
) -> Result<u64, Trouble> {
    let mut buffer = vec![0; promised.unwrap_or(COPY_BUFFER).clamp(1, COPY_BUFFER) as usize];
    let mut size = 0;
    loop {
        let read = match body.read(&mut buffer) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            result => result?,
        };
        if read == 0 {
            break;
        }
        file.write_all(&buffer[..read]).map_err(|error| Failure::of_io(&error, path))?;
        size += read as u64;
    }
    match promised {
        Some(promised) if promised != size => {
            Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into())
        }
        _ => Ok(size),
    }
}

/// A file under a name of its own, which is gone again unless it is finished.
pub(super) struct Unfinished {
    pub(super) file: File,
    dir: OwnedFd,
    name: OsString,
    target: OsString,
    finished: bool,
}

impl Unfinished {
    pub(super) fn create(place: &Place, path: &SandboxPath) -> Result<Self, Failure> {
        // Unique in this process; a workload that takes the names beforehand only fails its own writes.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let refuse = |errno| Failure::of(errno, path);
        let dir = place.dir.try_clone().map_err(|error| Failure::of_io(&error, path))?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for _ in 0..64 {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = OsString::from(format!("{UNFINISHED}{:x}-{number:x}", std::process::id()));
            match fs::openat(&dir, &name, flags, Mode::from_raw_mode(0o600)) {
                Ok(file) => {
                    let target = place.name.clone();
                    return Ok(Self { file: file.into(), dir, name, target, finished: false });
                }
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(refuse(errno)),
            }
        }
        Err(refuse(Errno::BUSY))
    }

    /// Says what the file is then.
    pub(super) fn finish(
        mut self,
        mode: Mode,
        must_be_new: bool,
        path: &SandboxPath,
    ) -> Result<Stat, Failure> {
        fs::fchmod(&self.file, mode).map_err(|errno| Failure::of(errno, path))?;
        let flags = if must_be_new { RenameFlags::NOREPLACE } else { RenameFlags::empty() };
        match fs::renameat_with(&self.dir, &self.name, &self.dir, &self.target, flags) {
            Ok(()) => {
                self.finished = true;
                fs::fstat(&self.file).map_err(|errno| Failure::of(errno, path))
            }
            Err(Errno::EXIST) if must_be_new => Err(exists_already(path, false)),
            Err(errno) => Err(Failure::of(errno, path)),
        }
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.finished {
            // There is nobody to tell, and the name says what it is.
            let _ = fs::unlinkat(&self.dir, &self.name, AtFlags::empty());
        }
    }
}

pub(super) fn is_unfinished(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(UNFINISHED.as_bytes())
}
