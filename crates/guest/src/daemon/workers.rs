//! What may take time, each in a thread of its own with the workload's rights: file operations, and what comes before and
//! after code that is executed.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cubicle_model::ExecId;
use cubicle_sys::file_identity;
use rustix::event::EventfdFlags;
use rustix::event::epoll::EventFlags;
use rustix::net::sockopt::{self, Timeout};

use super::Workload;
use super::connection::{Connection, Phase};
use super::execute::check::Checked;
use super::execute::{self, Admitted, Outcome};
use super::files::produced::{Found, Scope};
use super::files::stage::{self, Fingerprint, Staged};
use super::files::{self, KeepAlive};
use super::http::{self, Body, BodyDecoder, Head, Refusal};
use super::server::{Server, Token};

const MOST_WORKERS: usize = 16;
const STACK_SIZE: usize = 256 * 1024;
/// A client that takes nothing for this long loses its connection, not the sandbox a thread.
const CLIENT_PATIENCE: Duration = Duration::from_secs(60);
/// An unread rest of a body up to this size is read away, so that the connection can go on.
const MOST_DRAINED: u64 = 1024 * 1024;

#[derive(Debug, Default)]
pub(super) struct Workers {
    active: usize,
    returned: Option<Arc<Returned>>,
}

/// Where threads put connections back.
#[derive(Debug)]
struct Returned {
    done: Mutex<Vec<Done>>,
    wake: OwnedFd,
}

/// What a thread is to do with a connection and the request on it.
#[derive(Debug)]
pub(super) enum Task {
    Files(Head),
    /// Read and check what is to be executed.
    Read(Head),
    /// Put code and its files in place.
    Stage {
        head: Head,
        admitted: Box<Admitted>,
    },
    /// Look what was made, and answer; with how the execute ended, where that was asked for.
    Finish {
        scope: Arc<Scope>,
        outcome: Option<Box<Outcome>>,
        keep_alive: bool,
    },
}

/// How a connection goes on that a thread had.
#[derive(Debug)]
pub(super) enum Then {
    /// It was answered.
    Idle,
    Checked {
        head: Head,
        checked: Box<Checked>,
    },
    Staged {
        head: Head,
        admitted: Box<Admitted>,
        staged: Staged,
    },
}

/// A thread is finished; with a connection when that can go on.
#[derive(Debug, Default)]
struct Done {
    connection: Option<(OwnedFd, Vec<u8>)>,
    then: Option<Then>,
    /// The execute that was being staged.
    staging: Option<ExecId>,
    told: Vec<Fingerprint>,
}

impl Server {
    /// Gives a request and its connection to a thread. The connection comes back when it can go on.
    pub(super) fn hand_to_worker(
        &mut self,
        mut connection: Connection,
        task: Task,
    ) -> Result<(), Box<(Connection, Refusal)>> {
        // What ran is told whatever else goes on; there are only so many executes.
        let is_new = matches!(task, Task::Files(_) | Task::Read(_) | Task::Finish { outcome: None, .. });
        let staging = if let Task::Stage { admitted, .. } = &task { Some(admitted.id) } else { None };
        if is_new && self.workers.active >= MOST_WORKERS {
            let refusal =
                Refusal::new(503, "too_many_file_operations", "too many file operations run at once")
                    .hint("try again when some are finished");
            return Err(Box::new((connection, refusal)));
        }
        let refuse =
            |error: io::Error| Refusal::new(503, "no_thread", format!("cannot start a thread: {error}"));
        let returned = match self.returned() {
            Ok(returned) => returned,
            Err(error) => {
                self.staging.retain(|id| Some(*id) != staging);
                return Err(Box::new((connection, refuse(error))));
            }
        };
        self.epoll.remove(connection.fd());
        connection.watched = EventFlags::empty();
        let outgoing = connection.take_outgoing();
        let (fd, inbox) = connection.into_parts();
        let workload = self.settings.workload;
        let job = Job { fd, outgoing, inbox, task, workload };
        let builder = std::thread::Builder::new().name("files".into()).stack_size(STACK_SIZE);
        // The guard comes back whatever happens in the thread, so that its place is free again.
        let guard = Guard { returned, done: Done { staging, ..Done::default() } };
        self.workers.active += 1;
        // When no thread can be started the connection goes with the job, and its client sees it close.
        let _ = builder.spawn(move || work(job, guard));
        Ok(())
    }

    fn returned(&mut self) -> io::Result<Arc<Returned>> {
        if let Some(returned) = &self.workers.returned {
            return Ok(Arc::clone(returned));
        }
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        self.epoll.add(wake.as_fd(), Token::Workers, EventFlags::IN)?;
        let returned = Arc::new(Returned { done: Mutex::new(Vec::new()), wake });
        self.workers.returned = Some(Arc::clone(&returned));
        Ok(returned)
    }

    pub(super) fn take_back_from_workers(&mut self) {
        let Some(returned) = &self.workers.returned else { return };
        let _ = rustix::io::read(&returned.wake, &mut [0; 8]);
        let done = std::mem::take(&mut *returned.done.lock().unwrap_or_else(PoisonError::into_inner));
        for Done { connection, then, staging, told } in done {
            self.workers.active = self.workers.active.saturating_sub(1);
            self.staging.retain(|id| Some(*id) != staging);
            self.note_told(told);
            let Some((fd, inbox)) = connection else { continue };
            if rustix::io::ioctl_fionbio(&fd, true).is_err() {
                continue;
            }
            self.go_on(Connection::new(fd, Phase::Idle, inbox), then.unwrap_or(Then::Idle));
        }
    }
}

struct Job {
    fd: OwnedFd,
    /// What the client is owed from before, such as the answer to its hello.
    outgoing: Vec<u8>,
    inbox: Vec<u8>,
    task: Task,
    workload: Workload,
}

struct Guard {
    returned: Arc<Returned>,
    done: Done,
}

impl Drop for Guard {
    fn drop(&mut self) {
        let done = std::mem::take(&mut self.done);
        self.returned.done.lock().unwrap_or_else(PoisonError::into_inner).push(done);
        let _ = rustix::io::write(&self.returned.wake, &1u64.to_ne_bytes());
    }
}

fn work(job: Job, mut guard: Guard) {
    let Job { fd, outgoing, inbox, task, workload } = job;
    if let Workload::TwoUids { uid, gid } = workload
        && file_identity::become_for_good(uid, gid).is_err()
    {
        return;
    }
    // A client that cannot be waited for only makes the thread's life longer.
    let _ = rustix::io::ioctl_fionbio(&fd, false);
    for timeout in [Timeout::Send, Timeout::Recv] {
        let _ = sockopt::set_socket_timeout(&fd, timeout, Some(CLIENT_PATIENCE));
    }
    if Blocking(fd.as_fd()).write_all(&outgoing).is_err() {
        return;
    }
    let (inbox, then) = match task {
        Task::Files(head) => (serve_files(&fd, inbox, head), Then::Idle),
        Task::Read(head) => read_execute(&fd, inbox, head),
        Task::Stage { head, admitted } => match stage::stage(&admitted.staging) {
            Ok(staged) => (Some(inbox), Then::Staged { head, admitted, staged }),
            Err(refusal) => {
                (answer(&fd, inbox, refusal.status, &refusal.body(), head.keep_alive), Then::Idle)
            }
        },
        Task::Finish { scope, outcome, keep_alive } => {
            let Found { produced, told } = execute::look(&scope);
            guard.done.told = told;
            let inbox = match outcome {
                Some(outcome) => answer(&fd, inbox, 200, &outcome.executed(produced), keep_alive),
                None => answer(&fd, inbox, 200, &produced, keep_alive),
            };
            (inbox, Then::Idle)
        }
    };
    if let Some(inbox) = inbox {
        guard.done.connection = Some((fd, inbox));
        guard.done.then = Some(then);
    }
}

/// Each of these gives back what came behind the request, unless the connection cannot go on.
fn serve_files(fd: &OwnedFd, inbox: Vec<u8>, head: Head) -> Option<Vec<u8>> {
    let content_length = match head.body {
        Body::Length(length) => Some(length),
        Body::Chunked => None,
    };
    let mut body = BodyReader::new(fd.as_fd(), head.body, inbox);
    let request = files::Request {
        method: head.method,
        path: head.path,
        query: head.query,
        headers: head.headers,
        content_length,
    };
    let served = files::serve(&request, &mut body, &mut Blocking(fd.as_fd()));
    let keeps = matches!(served, Ok(KeepAlive::Yes)) && head.keep_alive && body.drain();
    keeps.then(|| std::mem::take(&mut body.inbox))
}

fn read_execute(fd: &OwnedFd, inbox: Vec<u8>, head: Head) -> (Option<Vec<u8>>, Then) {
    let mut body = BodyReader::new(fd.as_fd(), head.body, inbox);
    match execute::read(&mut body) {
        Err(_) => (None, Then::Idle),
        Ok(Err(refusal)) => {
            let keeps = head.keep_alive && body.drain();
            let inbox = std::mem::take(&mut body.inbox);
            (answer(fd, inbox, refusal.status, &refusal.body(), keeps), Then::Idle)
        }
        Ok(Ok(checked)) => {
            (Some(std::mem::take(&mut body.inbox)), Then::Checked { head, checked: Box::new(checked) })
        }
    }
}

fn answer(
    fd: &OwnedFd,
    inbox: Vec<u8>,
    status: u16,
    body: &impl serde::Serialize,
    keep_alive: bool,
) -> Option<Vec<u8>> {
    let mut response = Vec::new();
    http::write_json(&mut response, status, body, keep_alive);
    let sent = Blocking(fd.as_fd()).write_all(&response).is_ok();
    (sent && keep_alive).then_some(inbox)
}

/// A request's body, from what came in already and then from the connection.
struct BodyReader<'a> {
    fd: BorrowedFd<'a>,
    decoder: BodyDecoder,
    inbox: Vec<u8>,
    ready: Vec<u8>,
    given: usize,
}

impl<'a> BodyReader<'a> {
    const STEP: usize = 64 * 1024;

    fn new(fd: BorrowedFd<'a>, body: Body, inbox: Vec<u8>) -> Self {
        Self { fd, decoder: BodyDecoder::new(body), inbox, ready: Vec::new(), given: 0 }
    }

    /// Reads the rest away if it is short. True: the next request can follow.
    fn drain(&mut self) -> bool {
        let drained = io::copy(&mut Read::by_ref(self).take(MOST_DRAINED), &mut io::sink());
        drained.is_ok() && self.decoder.is_done() && self.given == self.ready.len()
    }

    fn fetch(&mut self) -> io::Result<()> {
        self.ready.clear();
        self.given = 0;
        loop {
            let used = self
                .decoder
                .decode(&self.inbox, &mut self.ready, Self::STEP)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            self.inbox.drain(..used);
            if !self.ready.is_empty() || self.decoder.is_done() {
                return Ok(());
            }
            let start = self.inbox.len();
            self.inbox.resize(start + Self::STEP, 0);
            let read = rustix::io::retry_on_intr(|| rustix::io::read(self.fd, &mut self.inbox[start..]));
            self.inbox.truncate(start + *read.as_ref().unwrap_or(&0));
            if read? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

impl Read for BodyReader<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.given == self.ready.len() && !self.decoder.is_done() {
            self.fetch()?;
        }
        let given = into.len().min(self.ready.len() - self.given);
        into[..given].copy_from_slice(&self.ready[self.given..self.given + given]);
        self.given += given;
        Ok(given)
    }
}

/// The connection as the file operations see it.
struct Blocking<'a>(BorrowedFd<'a>);

impl Write for Blocking<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::net::send(self.0, bytes, rustix::net::SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Blocking<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0
    }
}
