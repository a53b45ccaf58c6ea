//! The daemon that is pid 1 of every sandbox: it runs execs, keeps the journal and answers the host.
//!
//! One thread waits for everything at once, so that an idle sandbox costs almost nothing. Only file operations, which
//! may block, get a thread of their own while they last.

mod building;
mod connection;
mod contexts;
mod conversation;
mod ending;
mod environments;
mod exec;
pub mod execute;
pub mod files;
mod forward;
pub mod http;
mod input;
mod launch;
mod listeners;
mod oom;
mod output;
mod past;
mod render;
mod routes;
mod secrets;
mod server;
mod signals;
mod slots;
pub mod spec;
mod stream;
mod timers;
mod tree;
mod tunnel;
mod workers;
mod zygotes;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use cubicle_model::SandboxId;
use cubicle_sys::spawn::{Ids, Permit};
use cubicle_sys::{lock, memory, signal};
use rustix::process::DumpableBehavior;
use serde_json::Value;

use crate::hello::Key;
use crate::journal::OpenError;

#[doc(hidden)]
pub use contexts::decode_context_event;
pub use server::{EXIT_DEADLINE, EXIT_FORGOTTEN};

/// Exit code of a daemon that could not begin.
pub const EXIT_CANNOT_START: i32 = 70;
pub const DEFAULT_MAX_EXECS: usize = 256;
pub const DEFAULT_MAX_EXECUTES: usize = 16;

/// Everything the daemon is given. It opens nothing of the host itself.
pub struct Config {
    pub sandbox: SandboxId,
    pub key: Key,
    /// A Unix stream socket on which the host connects.
    pub listener: Option<OwnedFd>,
    /// Streams on which the host is connected already.
    pub connections: Vec<OwnedFd>,
    /// An empty file or a journal, open for reading and writing. It must be the only descriptor of that file.
    pub journal: OwnedFd,
    /// In bytes.
    pub journal_limit: u64,
    /// Becomes the first record.
    pub place: Value,
    /// Becomes the second record: a `Receipt` as JSON. It is kept as text, which takes the least memory.
    pub receipt: Option<String>,
    /// When it hangs up the sandbox ends at once.
    pub lifeline: Option<OwnedFd>,
    pub deadline_seconds: u64,
    pub workload: Workload,
    /// The complete environment of every exec, before its own additions.
    pub env: BTreeMap<String, String>,
    /// Where secret files are put. The directory is pid 1's own where the workload is another user.
    pub secrets: PathBuf,
    /// A file of the sandbox's cgroup with a line `oom_kill N`.
    pub oom_events: Option<OwnedFd>,
    /// How many execs may run at once.
    pub max_execs: usize,
    /// How many pieces of code may run at once (`POST /execute`).
    pub max_executes: usize,
    /// Run by the command `@builtin`.
    pub builtin_exe: Option<OwnedFd>,
    /// For tagging execs under a filter that keeps programs from changing their tags.
    pub permit: Permit,
}

/// Whether the workload is another user than the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workload {
    TwoUids { uid: u32, gid: u32 },
    OneUid,
}

impl Workload {
    fn ids(self) -> Option<Ids> {
        match self {
            Self::TwoUids { uid, gid } => Some(Ids { uid, gid }),
            Self::OneUid => None,
        }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("sandbox", &self.sandbox)
            .field("workload", &self.workload)
            .field("deadline_seconds", &self.deadline_seconds)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("another process keeps this journal already")]
    JournalInUse,
    #[error(transparent)]
    Journal(#[from] OpenError),
    #[error("cannot {doing}")]
    System { doing: &'static str, source: io::Error },
}

/// A daemon that has everything it needs: its journal tells what the sandbox is, and whoever connects waits for it.
#[derive(Debug)]
pub struct Daemon(server::Server);

impl Daemon {
    /// The process must be single-threaded, and becomes what the daemon needs it to be.
    pub fn start(config: Config) -> Result<Self, StartError> {
        start(config).map(Self)
    }

    /// Goes on until the sandbox ends, and the process with it.
    pub fn serve(mut self) -> ! {
        // Making a sandbox goes deeper than waiting in it, and there may be thousands that wait.
        memory::release_unused_stack();
        fail(&self.0.run())
    }
}

/// Lets the code that hashes find out what this processor can do, for a process that forks many daemons. Each would ask
/// for itself otherwise, and on a virtual machine every question is a trap: together they took 0.1 ms per sandbox.
pub fn learn_processor() {
    std::hint::black_box(Key::derive(&[], SandboxId::from_random([0; 16])));
    std::hint::black_box(crc32fast::hash(&[]));
}

/// Becomes the daemon. The process must be single-threaded.
pub fn run(config: Config) -> ! {
    match Daemon::start(config) {
        Ok(daemon) => daemon.serve(),
        Err(error) => fail(&error),
    }
}

fn fail(error: &StartError) -> ! {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
    eprintln!("sandboxd: {error}{cause}");
    std::process::exit(EXIT_CANNOT_START)
}

fn start(config: Config) -> Result<server::Server, StartError> {
    let doing = |doing| move |source: io::Error| StartError::System { doing, source };
    signal::block_all().map_err(doing("block signals"))?;
    // The workload may have the daemon's user id: it must neither trace it nor look into it.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|error| doing("hide the daemon from its workload")(error.into()))?;
    if std::process::id() != 1 {
        // What is orphaned below must come back here to be reaped, as it does to pid 1.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
            .map_err(|error| doing("become the reaper of orphans")(error.into()))?;
    }
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    match lock::set_exclusive(config.journal.as_fd()) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(StartError::JournalInUse),
        result => result.map_err(doing("lock the journal"))?,
    }
    server::Server::new(config)
}
