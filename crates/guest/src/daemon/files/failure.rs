//! What a request is refused with.

use std::borrow::Cow;
use std::io;

use rustix::io::Errno;

use super::path::SandboxPath;

/// A refusal that the client is told about.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) status: u16,
    pub(super) code: &'static str,
    pub(super) message: String,
    pub(super) hint: Option<Cow<'static, str>>,
    /// The size of a file of which a range beyond its end was asked for.
    pub(super) size: Option<u64>,
}

/// Why a request could not be carried out.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The client is told.
    Refused(Failure),
    /// There is nobody to tell: the connection broke.
    Gone(io::Error),
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Self::Refused(failure)
    }
}

/// Only reading from and writing to the client gives a bare I/O error; those of files are turned into failures
/// where they occur, with the path.
impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Gone(error)
    }
}

impl Failure {
    pub(super) fn new(status: u16, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), hint: None, size: None }
    }

    pub(super) fn hint(mut self, hint: impl Into<Cow<'static, str>>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub(super) fn invalid_path(why: impl Into<String>) -> Self {
        Self::new(400, "invalid_path", why)
    }

    pub(super) fn invalid_query(why: impl Into<String>) -> Self {
        Self::new(400, "invalid_query", why)
    }

    pub(super) fn invalid_argument(why: impl Into<String>) -> Self {
        Self::new(400, "invalid_argument", why)
    }

    pub(super) fn too_large(path: &SandboxPath, most: usize) -> Self {
        Self::new(413, "too_large", format!("{path} is larger than {most} bytes"))
    }

    pub(super) fn method_not_allowed(allowed: &str) -> Self {
        Self::new(405, "method_not_allowed", format!("this route answers {allowed}"))
    }

    pub(super) fn path_not_allowed(path: &SandboxPath) -> Self {
        Self::new(403, "path_not_allowed", format!("{path} is not a place for files"))
            .hint("files below /proc, /sys and /dev (except /dev/shm) are reached only by an exec")
    }

    pub(super) fn not_a_file(path: &SandboxPath) -> Self {
        Self::new(409, "not_a_file", format!("{path} is not a regular file"))
    }

    pub(super) fn range_not_satisfiable(path: &SandboxPath, size: u64) -> Self {
        let mut failure = Self::new(
            416,
            "range_not_satisfiable",
            format!("{path} has {size} bytes, the range begins behind its end"),
        );
        failure.size = Some(size);
        failure
    }

    /// What an error of the kernel means for the user of `path`.
    pub(super) fn of(errno: Errno, path: &SandboxPath) -> Self {
        match errno {
            Errno::NOENT => Self::new(404, "not_found", format!("{path} does not exist")),
            Errno::NOTDIR => {
                Self::new(409, "not_a_directory", format!("{path}, or a part of it, is not a directory"))
            }
            Errno::ISDIR => Self::new(409, "not_a_file", format!("{path} is a directory")),
            Errno::EXIST => Self::new(409, "exists", format!("{path} exists already")),
            Errno::NOTEMPTY => {
                Self::new(409, "not_empty", format!("{path} is a directory that has something in it"))
            }
            Errno::NOSPC | Errno::DQUOT => {
                Self::new(507, "no_space", format!("there is no space left for {path}"))
                    .hint("remove something, or make the sandbox with a larger workspace")
            }
            Errno::FBIG => Self::new(413, "too_large", format!("{path} would be larger than a file may be")),
            Errno::ACCESS | Errno::PERM => {
                Self::new(403, "permission_denied", format!("{path} is not accessible to the sandbox's user"))
            }
            Errno::ROFS => Self::new(403, "read_only", format!("{path} is on a read-only file system"))
                .hint("/workspace, /home/agent and /tmp are writable"),
            // Both a loop and a link that only the kernel can resolve, as in /proc/self/root, end here.
            Errno::LOOP => {
                let message = format!("{path} has symbolic links that cannot be followed");
                Self::new(403, "path_not_allowed", message)
            }
            Errno::NAMETOOLONG => Self::invalid_path(format!("{path} has a name that is too long")),
            Errno::INVAL => Self::invalid_path(format!("{path} cannot be used for this operation")),
            Errno::XDEV => Self::new(
                409,
                "other_file_system",
                format!("{path} is on another file system than its target"),
            )
            .hint("copy the directory with GET /archive and PUT /archive, or run mv in the sandbox"),
            Errno::BUSY | Errno::AGAIN => {
                Self::new(409, "busy", format!("{path} is in use or keeps changing, try again"))
            }
            Errno::MFILE | Errno::NFILE | Errno::NOMEM => {
                Self::new(503, "overloaded", format!("no descriptors or memory left for {path}, try again"))
            }
            other => {
                let text = io::Error::from(other);
                Self::new(500, "io_error", format!("{path} could not be used: {text}"))
            }
        }
    }

    pub(super) fn of_io(error: &io::Error, path: &SandboxPath) -> Self {
        Self::of(Errno::from_io_error(error).unwrap_or(Errno::IO), path)
    }
}
