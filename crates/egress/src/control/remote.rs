//! The control plane's end.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use cubicle_model::egress::{Bill, Policy};
use cubicle_model::{Fault, Kind, SandboxId};
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::wire::Wire;
use super::{Call, Common, ListenerKind, Reply, TermsText};

/// A call that takes longer has failed, and its outcome is unknown. Detaching waits for connections to end.
const DEADLINE: Duration = Duration::from_secs(20);

/// A gateway in another process. After a call that fails with `unavailable` it is of no use any more: it is started
/// anew, and every sandbox is attached again. A call that was begun is carried out, whether or not somebody waits for it:
/// cut in half, it would leave its reply to the next one.
pub struct Remote {
    /// None after a call that failed.
    wire: Arc<Mutex<Option<Wire>>>,
}

impl Remote {
    pub fn new(control: UnixStream) -> io::Result<Self> {
        Ok(Self { wire: Arc::new(Mutex::new(Some(Wire::new(control)?))) })
    }

    /// What policies refer to. Holds for terms that are told later.
    pub async fn common(&self, common: Common) -> Result<(), Fault> {
        self.done(Call::Common(common), None).await
    }

    /// A socket of a sandbox, before the sandbox is attached.
    pub async fn listener(
        &self,
        sandbox: SandboxId,
        kind: ListenerKind,
        socket: OwnedFd,
    ) -> Result<(), Fault> {
        self.done(Call::Listener { sandbox, kind }, Some(socket)).await
    }

    pub async fn attach(&self, sandbox: SandboxId, terms: TermsText) -> Result<(), Fault> {
        self.done(Call::Attach { sandbox, terms }, None).await
    }

    pub async fn change(&self, sandbox: SandboxId, terms: TermsText) -> Result<(), Fault> {
        self.done(Call::Change { sandbox, terms }, None).await
    }

    /// What the sandbox has used; none when it was not attached.
    pub async fn detach(&self, sandbox: SandboxId) -> Result<Option<Bill>, Fault> {
        match self.call(Call::Detach { sandbox }, None).await? {
            Reply::Bill(bill) => Ok(bill),
            _ => Err(confused()),
        }
    }

    pub async fn bill(&self, sandbox: SandboxId) -> Result<Bill, Fault> {
        match self.call(Call::Bill { sandbox }, None).await? {
            Reply::Bill(Some(bill)) => Ok(bill),
            _ => Err(confused()),
        }
    }

    /// The smallest policy for what a recorded sandbox has reached.
    pub async fn recording(&self, sandbox: SandboxId) -> Result<Policy, Fault> {
        match self.call(Call::Recording { sandbox }, None).await? {
            Reply::Recording(policy) => Ok(policy),
            _ => Err(confused()),
        }
    }

    pub async fn attached(&self) -> Result<Vec<SandboxId>, Fault> {
        match self.call(Call::Attached, None).await? {
            Reply::Attached(sandboxes) => Ok(sandboxes),
            _ => Err(confused()),
        }
    }

    async fn done(&self, call: Call, descriptor: Option<OwnedFd>) -> Result<(), Fault> {
        match self.call(call, descriptor).await? {
            Reply::Done => Ok(()),
            _ => Err(confused()),
        }
    }

    async fn call(&self, call: Call, descriptor: Option<OwnedFd>) -> Result<Reply, Fault> {
        let wire = Arc::clone(&self.wire);
        let exchange = tokio::spawn(async move { exchange(&wire, call, descriptor).await });
        match exchange.await.unwrap_or_else(|_| Err(io::ErrorKind::Interrupted.into())).map_err(gone)? {
            Reply::Fault { kind, message, hint } => {
                let fault = Fault::new(Kind::from_code(&kind).unwrap_or(Kind::Internal), message);
                Err(match hint {
                    Some(hint) => fault.hint(hint),
                    None => fault,
                })
            }
            reply => Ok(reply),
        }
    }
}

async fn exchange(wire: &Mutex<Option<Wire>>, call: Call, descriptor: Option<OwnedFd>) -> io::Result<Reply> {
    let mut place = wire.lock().await;
    let wire = place.take().ok_or(io::ErrorKind::NotConnected)?;
    let exchange = async {
        wire.send(&call, descriptor.as_ref().map(AsFd::as_fd)).await?;
        wire.receive::<Reply>().await?.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))
    };
    let (reply, _) =
        timeout(DEADLINE, exchange).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
    *place = Some(wire);
    Ok(reply)
}

fn gone(error: io::Error) -> Fault {
    Fault::new(Kind::Unavailable, "the egress gateway does not answer").because(error)
}

fn confused() -> Fault {
    Fault::new(Kind::Internal, "the egress gateway answered something else than it was asked")
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Remote")
    }
}
