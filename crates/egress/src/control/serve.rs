//! The gateway's end.

use std::collections::HashMap;
use std::io;
use std::net::{TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use cubicle_model::egress::{Bundles, OwnAddresses};
use cubicle_model::{Fault, Kind, SandboxId};

use super::wire::Wire;
use super::{Call, ListenerKind, Reply};
use crate::gateway::{Gateway, Listeners};

/// Carries out calls until the other side closes. The gateway is dropped then, and all connections with it: a sandbox
/// without a control plane has no way out.
pub async fn serve(gateway: Gateway, control: UnixStream) -> io::Result<()> {
    let wire = Wire::new(control)?;
    let mut served = Served {
        gateway,
        bundles: Bundles::default(),
        own: OwnAddresses::default(),
        waiting: HashMap::new(),
    };
    while let Some((call, descriptor)) = wire.receive::<Call>().await? {
        let reply = served.carry_out(call, descriptor).await.unwrap_or_else(Reply::from);
        wire.send(&reply, None).await?;
    }
    Ok(())
}

struct Served {
    gateway: Gateway,
    bundles: Bundles,
    own: OwnAddresses,
    /// Listeners of sandboxes that are not attached yet.
    waiting: HashMap<SandboxId, Listeners>,
}

impl Served {
    async fn carry_out(&mut self, call: Call, descriptor: Option<OwnedFd>) -> Result<Reply, Fault> {
        match call {
            Call::Common(common) => (self.bundles, self.own) = common.read()?,
            Call::Listener { sandbox, kind } => {
                let missing = || Fault::new(Kind::Invalid, "a listener comes with its descriptor");
                let descriptor = descriptor.ok_or_else(missing)?;
                let listeners = self.waiting.entry(sandbox).or_default();
                match kind {
                    ListenerKind::Proxy => listeners.proxy.push(TcpListener::from(descriptor)),
                    ListenerKind::Forward => listeners.forward.push(TcpListener::from(descriptor)),
                    ListenerKind::DnsTcp => listeners.dns_tcp.push(TcpListener::from(descriptor)),
                    ListenerKind::DnsUdp => listeners.dns_udp.push(UdpSocket::from(descriptor)),
                }
            }
            Call::Attach { sandbox, terms } => {
                let listeners = self.waiting.remove(&sandbox).unwrap_or_default();
                let terms = terms.read(&self.bundles, &self.own)?;
                let unusable = |error| Fault::new(Kind::Internal, "a listener cannot be used").because(error);
                self.gateway.attach(sandbox, listeners, terms).map_err(unusable)?;
            }
            Call::Change { sandbox, terms } => {
                // Terms that cannot be read leave the old ones in force.
                let terms = terms.read(&self.bundles, &self.own)?;
                self.gateway.change(sandbox, terms)?;
            }
            Call::Detach { sandbox } => {
                self.waiting.remove(&sandbox);
                return Ok(Reply::Bill(self.gateway.detach(sandbox).await));
            }
            Call::Bill { sandbox } => return Ok(Reply::Bill(Some(self.gateway.bill(sandbox)?))),
            Call::Recording { sandbox } => {
                return Ok(Reply::Recording(self.gateway.recording(sandbox)?.minimal_policy()));
            }
            Call::Attached => return Ok(Reply::Attached(self.gateway.attached())),
        }
        Ok(Reply::Done)
    }
}
