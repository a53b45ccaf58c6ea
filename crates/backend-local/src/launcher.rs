//! Starting the launcher and talking to it.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use cubicle_guest::client::quiet::watch;
use cubicle_launcher::plan::HostFacts;
use cubicle_launcher::wire::{Channel, Reply, Request, Start};
use cubicle_model::{Fault, Kind, SandboxId};
use rustix::fs::{MemfdFlags, SealFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;

/// The launcher as a static program, built beside this crate.
pub const BINARY: &[u8] = include_bytes!(env!("CUBICLE_LAUNCHER"));
/// What tells one launcher from another.
pub(crate) const BINARY_DIGEST: &str = env!("CUBICLE_LAUNCHER_DIGEST");

/// The launcher of one backend. It ends when this is dropped, and with it what is bound.
#[derive(Debug)]
pub(crate) struct Launcher {
    shared: Arc<Shared>,
    listener: tokio::task::JoinHandle<()>,
    process: Child,
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) reply: Reply,
    pub(crate) body: Vec<u8>,
}

#[derive(Debug)]
struct Shared {
    /// Asked for what can be read only: to be told each time that the launcher took a request would be a wake-up for
    /// nothing.
    channel: Channel<AsyncFd<OwnedFd>>,
    state: Mutex<Pending>,
}

#[derive(Debug, Default)]
struct Pending {
    next_tag: u64,
    /// `None` once the launcher is gone.
    waiting: Option<HashMap<u64, oneshot::Sender<Answer>>>,
}

impl Launcher {
    /// Starts the launcher with the rights that this process has now.
    pub(crate) fn start(
        start: Start,
        data: BorrowedFd<'_>,
        lifeline: BorrowedFd<'_>,
    ) -> Result<(Self, HostFacts), Fault> {
        let failed = |error: io::Error| {
            Fault::new(Kind::Internal, format!("the launcher cannot be started: {error}")).because(error)
        };
        let (here, there) = Channel::pair().map_err(failed)?;
        let process = spawn(there.into()).map_err(failed)?;
        here.send(&Request::Start(start), &[], &[data, lifeline]).map_err(failed)?;
        let answer = here.receive().map_err(failed)?.ok_or_else(|| {
            Fault::new(Kind::Internal, "the launcher ended at once")
                .hint("'cubicle doctor' shows what this host allows")
        })?;
        let facts = match answer.head().map_err(failed)? {
            Reply::Started(facts) => facts,
            Reply::Failed { error, .. } => return Err(fault(error)),
            other => return Err(Fault::new(Kind::Internal, format!("the launcher answered {other:?}"))),
        };
        let socket = OwnedFd::from(here);
        rustix::io::ioctl_fionbio(&socket, true).map_err(|error| failed(error.into()))?;
        let channel = Channel::new(watch(socket, Interest::READABLE).map_err(failed)?);
        let state = Mutex::new(Pending { next_tag: 1, waiting: Some(HashMap::new()) });
        let shared = Arc::new(Shared { channel, state });
        let listener = tokio::spawn(Arc::clone(&shared).listen());
        Ok((Self { shared, listener, process }, facts))
    }

    pub(crate) async fn ask(
        &self,
        request: impl FnOnce(u64) -> Request,
        body: &[u8],
    ) -> Result<Answer, Fault> {
        self.shared.ask(request, body).await
    }

    /// Sees to it that a sandbox is destroyed, also when whoever wanted it stops waiting for it.
    pub(crate) fn destroy_in_the_end(&self, id: SandboxId) -> ThrownAway {
        ThrownAway { shared: Arc::clone(&self.shared), id }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for Launcher {
    /// Waits for the launcher: when this process ends, nothing that was bound to it is left.
    fn drop(&mut self) {
        self.listener.abort();
        let _ = rustix::net::shutdown(&self.shared.channel, rustix::net::Shutdown::Both);
        let _ = self.process.wait();
    }
}

/// A sandbox that is destroyed when this is dropped, behind the back of whoever drops it.
#[derive(Debug)]
pub(crate) struct ThrownAway {
    shared: Arc<Shared>,
    id: SandboxId,
}

impl Drop for ThrownAway {
    fn drop(&mut self) {
        let (shared, id) = (Arc::clone(&self.shared), self.id);
        // Without a runtime the process is ending, and what is bound to it ends, too.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { shared.ask(|tag| Request::Destroy { tag, id }, &[]).await });
        }
    }
}

impl Shared {
    /// Sends a request made with a fresh tag and waits for its reply.
    async fn ask(&self, request: impl FnOnce(u64) -> Request, body: &[u8]) -> Result<Answer, Fault> {
        let (tag, answer) = self.expect_reply()?;
        let request = request(tag);
        loop {
            match self.channel.send(&request, body, &[]) {
                Ok(()) => break,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.has_room().await.map_err(gone)?;
                }
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                    self.forget(tag);
                    return Err(Fault::new(
                        Kind::Invalid,
                        "the environment and labels of the sandbox are too large",
                    )
                    .hint("together they may have about 100 kB; write files instead"));
                }
                Err(error) => {
                    self.forget(tag);
                    return Err(gone(error));
                }
            }
        }
        match answer.await {
            Ok(Answer { reply: Reply::Failed { error, .. }, .. }) => Err(fault(error)),
            Ok(answer) => Ok(answer),
            Err(_) => Err(gone(io::ErrorKind::BrokenPipe.into())),
        }
    }

    /// Waits until the launcher has taken some of the requests before.
    async fn has_room(&self) -> io::Result<()> {
        let again = self.channel.as_fd().try_clone_to_owned()?;
        watch(again, Interest::WRITABLE)?.writable().await.map(drop)
    }

    fn expect_reply(&self) -> Result<(u64, oneshot::Receiver<Answer>), Fault> {
        let mut state = self.state.lock().expect("nobody panics with the lock");
        let tag = state.next_tag;
        state.next_tag += 1;
        let (sender, receiver) = oneshot::channel();
        let waiting = state.waiting.as_mut().ok_or_else(|| gone(io::ErrorKind::BrokenPipe.into()))?;
        waiting.insert(tag, sender);
        Ok((tag, receiver))
    }

    fn forget(&self, tag: u64) {
        if let Some(waiting) = self.state.lock().expect("nobody panics with the lock").waiting.as_mut() {
            waiting.remove(&tag);
        }
    }

    async fn listen(self: Arc<Self>) {
        let socket = self.channel.socket();
        while let Ok(Some(packet)) = socket.async_io(Interest::READABLE, |_| self.channel.receive()).await {
            let Ok(reply) = packet.head::<Reply>() else { break };
            let mut state = self.state.lock().expect("nobody panics with the lock");
            if let Some(sender) = state.waiting.as_mut().and_then(|waiting| waiting.remove(&tag_of(&reply))) {
                // Whoever asked may have stopped waiting.
                let _ = sender.send(Answer { reply, body: packet.body().to_vec() });
            }
        }
        self.state.lock().expect("nobody panics with the lock").waiting = None;
    }
}

fn tag_of(reply: &Reply) -> u64 {
    match reply {
        Reply::Started(_) => 0,
        Reply::Done { tag }
        | Reply::Created { tag, .. }
        | Reply::Bound { tag, .. }
        | Reply::Swept { tag, .. }
        | Reply::Failed { tag, .. } => *tag,
    }
}

/// The program runs from sealed memory: there is no file that anybody could replace, and nothing to remove.
fn spawn(caller: OwnedFd) -> io::Result<Child> {
    let program =
        rustix::fs::memfd_create("cubicle-launcher", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut written = 0;
    while written < BINARY.len() {
        written += rustix::io::write(&program, &BINARY[written..])?;
    }
    // Nobody has mapped it, so sealing what comes is enough. Sealing what is there as well fails now and then, when the
    // kernel happens to hold one of its pages.
    rustix::fs::fcntl_add_seals(
        &program,
        SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE,
    )?;
    #[expect(clippy::disallowed_methods, reason = "the launcher is the one program that the product starts")]
    let mut command = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()));
    command
        .arg0("cubicle-launcher")
        .arg("serve")
        .env_clear()
        .stdin(Stdio::from(caller))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
}

fn fault(error: cubicle_launcher::Failed) -> Fault {
    let fault = Fault::new(error.kind, error.message);
    match error.hint {
        Some(hint) => fault.hint(hint),
        None => fault,
    }
}

fn gone(error: io::Error) -> Fault {
    Fault::new(Kind::Unavailable, "the launcher is gone").hint("start cubicle again").because(error)
}
