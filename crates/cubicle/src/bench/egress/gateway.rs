//! The gateway that is measured: this program as a process of its own, with one sandbox that has a usual allowlist.

use std::net::{SocketAddr, TcpListener};

use cubicle_egress::control::{Common, ListenerKind, Remote, TermsText};
use cubicle_model::{Fault, Kind, SandboxId};

use super::way::Process;
use crate::environment::Environment;
use crate::gateway::{self, Options};

/// Hosts beside the origin that the allowlist names.
pub(super) const OTHERS: usize = 20;

/// A gateway in force. It ends with this value.
pub(super) struct Started {
    pub(super) process: Process,
    pub(super) proxy: SocketAddr,
    /// Held open, as the gateway ends when it is closed.
    _control: Remote,
}

pub(super) async fn start(origin: SocketAddr, environment: &Environment) -> Result<Started, Fault> {
    let unstarted =
        |error: std::io::Error| Fault::new(Kind::Internal, "the gateway cannot be started").because(error);
    let options = Options { log: Some("error".to_owned()), ..Options::default() };
    let (child, control) = gateway::spawn(&options, environment).map_err(unstarted)?;
    let process = Process(child);
    let control = Remote::new(control).map_err(unstarted)?;
    control.common(Common::default()).await?;
    let listener = TcpListener::bind("127.0.0.1:0").map_err(super::broken)?;
    let proxy = listener.local_addr().map_err(super::broken)?;
    let sandbox = SandboxId::from_random([1; 16]);
    control.listener(sandbox, ListenerKind::Proxy, listener.into()).await?;
    let policy = policy(origin).parse().map_err(|error| Fault::new(Kind::Internal, format!("{error}")))?;
    let terms = TermsText { policy, credentials: Vec::new(), bases: Vec::new(), record: false };
    control.attach(sandbox, terms).await?;
    Ok(Started { process, proxy, _control: control })
}

fn policy(origin: SocketAddr) -> String {
    let others: String = (0..OTHERS).map(|number| format!("allow *.host{number}.example\n")).collect();
    format!("allowlist\n{others}allow https://{origin}\n")
}
