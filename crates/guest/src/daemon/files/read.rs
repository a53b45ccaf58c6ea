//! Sending a file, or a part of it.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{self, Stat};
use rustix::io::Errno;

use super::failure::{Failure, Trouble};
use super::path::SandboxPath;
use super::range::{Part, part};
use super::root::Root;
use super::{Connection, KeepAlive, Request, list, reply};

const MOST_AT_ONCE: u64 = 1024 * 1024;

pub(super) fn send(
    root: &Root,
    request: &Request,
    path: &SandboxPath,
    connection: &mut dyn Connection,
) -> Result<KeepAlive, Trouble> {
    let (file, stat) = root.open_file(path)?;
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    let tag = entity_tag(&stat);
    let mut headers = vec![
        ("etag", tag.clone()),
        ("accept-ranges", "bytes".to_owned()),
        ("x-cubicle-mode", list::octal_mode(&stat)),
        ("x-cubicle-mtime", list::modified(&stat)),
    ];
    if request
        .header("if-none-match")
        .is_some_and(|tags| tags == "*" || tags.split(',').any(|t| t.trim() == tag))
    {
        return Ok(reply::empty(connection, 304, &headers)?);
    }
    // A part of another version of the file is worth nothing to a client that has the rest of this one.
    let same_version = request.header("if-range").is_none_or(|wanted| wanted == tag);
    let (status, begin, end) = match part(request.header("range").filter(|_| same_version), size) {
        Part::Whole => (200, 0, size),
        Part::Bytes(begin, end) => {
            headers.push(("content-range", format!("bytes {begin}-{}/{size}", end - 1)));
            (206, begin, end)
        }
        Part::Beyond => return Err(Failure::range_not_satisfiable(path, size).into()),
    };
    headers.push(("content-type", "application/octet-stream".to_owned()));
    headers.push(("content-length", (end - begin).to_string()));
    let mut head = reply::head(status, &headers, KeepAlive::Yes);
    head.extend_from_slice(b"\r\n");
    connection.write_all(&head)?;
    if request.method != "HEAD" {
        copy(&file, begin, end, connection)?;
    }
    Ok(KeepAlive::Yes)
}

/// Changes with every write that moves the clock, and with every replacement.
fn entity_tag(stat: &Stat) -> String {
    let (seconds, nanoseconds) = (stat.st_mtime, stat.st_mtime_nsec);
    format!("\"{:x}-{seconds:x}.{nanoseconds:x}-{:x}\"", stat.st_ino, stat.st_size)
}

/// The length is promised by now. A file that became shorter meanwhile breaks the connection off, so that nobody
/// takes the part for the whole.
fn copy(file: &OwnedFd, begin: u64, end: u64, connection: &mut dyn Connection) -> io::Result<()> {
    let mut offset = begin;
    while offset < end {
        let length = (end - offset).min(MOST_AT_ONCE) as usize;
        match fs::sendfile(connection.as_fd(), file, Some(&mut offset), length) {
            Ok(0) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file became shorter")),
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::INVAL | Errno::NOSYS) => return copy_through_memory(file, offset, end, connection),
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// For file systems and sockets that the kernel does not copy between by itself.
fn copy_through_memory(
    file: &OwnedFd,
    mut offset: u64,
    end: u64,
    connection: &mut dyn Connection,
) -> io::Result<()> {
    let mut buffer = vec![0; (end - offset).min(64 * 1024) as usize];
    while offset < end {
        let wanted = (end - offset).min(buffer.len() as u64) as usize;
        let read = rustix::io::pread(file, &mut buffer[..wanted], offset)?;
        if read == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file became shorter"));
        }
        connection.write_all(&buffer[..read])?;
        offset += read as u64;
    }
    Ok(())
}
