//! File operations inside the sandbox.
//!
//! Every request runs in a thread that already has the workload's file system ids, and acts only through
//! descriptors that were resolved inside the sandbox's own root. A workload that swaps symbolic links meanwhile can
//! therefore only redirect an operation to something it could have done itself.

mod archive_in;
mod archive_out;
mod failure;
mod list;
mod path;
pub(super) mod produced;
mod range;
mod read;
mod remove;
mod reply;
mod root;
pub(super) mod stage;
mod tar_headers;
mod tools;
mod walk;
mod watch;
mod write;

#[cfg(test)]
mod tests;

use std::io::{self, Read, Write};
use std::os::fd::AsFd;

use cubicle_sys::file_identity;

use super::Workload;
use super::http::Refusal;
use crate::wire::SmallFile;
use failure::{Failure, Trouble};
use path::Query;
use root::Root;

/// Whether the connection can carry another request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeepAlive {
    Yes,
    No,
}

/// The head of a request, as it came.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    /// Percent-encoded, without the query.
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) content_length: Option<u64>,
}

impl Request {
    fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(given, _)| given.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.trim())
    }
}

/// A blocking stream to the client. The descriptor lets a long answer notice that nobody reads it any more, and
/// lets the kernel copy file contents without passing through this process.
pub(crate) trait Connection: Write + AsFd {}

impl<T: Write + AsFd> Connection for T {}

/// Whether a request for this path belongs here, whatever its method.
pub(crate) fn wants(_method: &str, path: &str) -> bool {
    let path = path.split('?').next().unwrap_or_default();
    path.starts_with("/files/")
        || path.starts_with("/tools/")
        || matches!(path, "/files" | "/archive" | "/watch")
}

/// Answers one request. `body` ends where the request's body ends, and fails when the client hangs up before that.
pub(crate) fn serve(
    request: &Request,
    body: &mut dyn Read,
    connection: &mut dyn Connection,
) -> io::Result<KeepAlive> {
    match Root::of_this_process() {
        Ok(root) => serve_in(root, request, body, connection),
        Err(failure) => refuse(request, failure, body, connection),
    }
}

/// Replaces a small file in the calling thread, with the workload's rights.
pub(super) fn write_small(file: &SmallFile, workload: Workload) -> Result<(), Refusal> {
    let write = || write::put_whole(Root::of_this_process()?, &file.path, file.mode, &file.bytes).map(drop);
    let written = match workload {
        Workload::OneUid => write(),
        Workload::TwoUids { uid, gid } => file_identity::with(uid, gid, || Ok(write())).map_err(|error| {
            Refusal::new(500, "no_identity", format!("cannot act as the workload: {error}"))
        })?,
    };
    written.map_err(refusal)
}

/// Replaces a small file in the calling thread, with the rights of the daemon itself.
pub(super) fn write_as_daemon(path: &str, mode: u32, bytes: &[u8]) -> Result<(), Refusal> {
    let write = || write::put_whole(Root::of_this_process()?, path, mode, bytes).map(drop);
    write().map_err(refusal)
}

fn refusal(failure: Failure) -> Refusal {
    let refusal = Refusal::new(failure.status, failure.code, failure.message);
    match failure.hint {
        Some(hint) => refusal.hint(hint.into_owned()),
        None => refusal,
    }
}

/// Unpacks an archive below `into` of a directory that stands for the sandbox's root, for tests of hostile archives.
#[doc(hidden)]
pub fn unpack_for_fuzzing(root: std::os::fd::OwnedFd, into: &[u8], archive: &[u8]) {
    if let (Ok(root), Ok(into)) = (Root::new(root), path::SandboxPath::from_bytes(into)) {
        let _ = archive_in::unpack(&root, &into, &mut &archive[..]);
    }
}

/// Resolves a path in a directory that stands for the sandbox's root, for tests of hostile paths. Answers the
/// descriptor of the directory that holds the last component.
#[doc(hidden)]
pub fn resolve_for_fuzzing(root: std::os::fd::OwnedFd, encoded: &str) -> Option<std::os::fd::OwnedFd> {
    let root = Root::new(root).ok()?;
    let path = path::SandboxPath::from_encoded(encoded).ok()?;
    root.follow(&path).ok().map(|place| place.dir)
}

/// What a patch makes of a text, and whether a pattern of names can be read, for tests of hostile ones.
#[doc(hidden)]
pub fn patch_for_fuzzing(before: &str, patch: &str) -> Option<String> {
    tools::patch_text(before, patch)
}

#[doc(hidden)]
pub fn glob_for_fuzzing(pattern: &str, path: &str) -> Option<bool> {
    tools::glob_matches(pattern, path)
}

fn serve_in(
    root: &Root,
    request: &Request,
    body: &mut dyn Read,
    connection: &mut dyn Connection,
) -> io::Result<KeepAlive> {
    match route(root, request, body, connection) {
        Ok(keep_alive) => Ok(keep_alive),
        Err(Trouble::Gone(error)) => Err(error),
        Err(Trouble::Refused(failure)) => refuse(request, failure, body, connection),
    }
}

fn route(
    root: &Root,
    request: &Request,
    body: &mut dyn Read,
    connection: &mut dyn Connection,
) -> Result<KeepAlive, Trouble> {
    let query = Query::parse(&request.query)?;
    let method = request.method.as_str();
    if let Some(encoded) = request.path.strip_prefix("/files/") {
        let path = path::SandboxPath::from_encoded(encoded)?;
        return match method {
            "GET" | "HEAD" => read::send(root, request, &path, connection),
            "PUT" => write::put(root, request, &query, &path, body, connection),
            "DELETE" => remove::remove(root, &query, &path, connection),
            _ => Err(Failure::method_not_allowed("GET, HEAD, PUT and DELETE").into()),
        };
    }
    if let Some(name) = request.path.strip_prefix("/tools/") {
        return match method {
            "POST" => tools::serve(root, name, body, connection),
            _ => Err(Failure::method_not_allowed("POST").into()),
        };
    }
    match (request.path.as_str(), method) {
        ("/files", "GET") => match (query.path("list")?, query.path("stat")?) {
            (Some(path), None) => list::list(root, &query, &path, connection),
            (None, Some(path)) => list::stat(root, &path, connection),
            _ => Err(Failure::invalid_query("say either ?list=PATH or ?stat=PATH").into()),
        },
        ("/files", "POST") => match (query.path("mkdir")?, query.path("move")?) {
            (Some(path), None) => write::mkdir(root, &query, &path, connection),
            (None, Some(from)) => write::rename(root, &query, &from, connection),
            _ => Err(Failure::invalid_query("say either ?mkdir=PATH or ?move=PATH&to=PATH").into()),
        },
        ("/files", _) => Err(Failure::method_not_allowed("GET and POST").into()),
        ("/archive", "PUT") => archive_in::receive(root, &query.required_path("into")?, body, connection),
        ("/archive", "GET") => archive_out::send(root, &query.required_path("of")?, connection),
        ("/archive", _) => Err(Failure::method_not_allowed("GET and PUT").into()),
        ("/watch", "GET") => watch::watch(root, &query, &query.required_path("path")?, connection),
        ("/watch", _) => Err(Failure::method_not_allowed("GET").into()),
        _ => Err(Failure::new(404, "not_found", "there is no such route").into()),
    }
}

/// A body that was not read would be taken for the next request, so a short rest is read away and a long one costs
/// the connection.
const DRAINED_AFTER_REFUSAL: u64 = 1024 * 1024;

fn refuse(
    request: &Request,
    failure: Failure,
    body: &mut dyn Read,
    connection: &mut dyn Connection,
) -> io::Result<KeepAlive> {
    let mut rest = body.take(DRAINED_AFTER_REFUSAL);
    let drained = io::copy(&mut rest, &mut io::sink()).is_ok_and(|read| read < DRAINED_AFTER_REFUSAL);
    let keep_alive = if drained { KeepAlive::Yes } else { KeepAlive::No };
    reply::failure(connection, &failure, request.method == "HEAD", keep_alive)?;
    Ok(keep_alive)
}
