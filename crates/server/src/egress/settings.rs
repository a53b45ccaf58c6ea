//! What the outermost layer says of egress.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::sync::Arc;

use cubicle_model::Name;
use cubicle_model::egress::Policy;

#[derive(Clone)]
pub struct EgressSettings {
    /// Starts a gateway. Called whenever one is needed and none lives.
    pub start: StartGateway,
    /// The text of every bundle that policies may name.
    pub bundles: BTreeMap<Name, String>,
    /// Where the control plane listens; without a port, on all of them.
    pub own: Vec<(IpAddr, Option<u16>)>,
    /// What sandboxes may reach whose template says nothing, by the template's name. Without an entry
    /// that is what `default` may reach, and without that nothing.
    pub policies: BTreeMap<Name, Policy>,
    /// Variables of every sandbox beside those that name the proxy, as for package indexes.
    pub environment: BTreeMap<String, String>,
    /// Certificates in PEM for sandboxes whose policy has hosts inspected: those that the host trusts, and the gateway's own.
    pub trusted: Option<String>,
}

pub type StartGateway = Arc<dyn Fn() -> io::Result<StartedGateway> + Send + Sync>;

/// A gateway that was just started.
pub struct StartedGateway {
    pub control: UnixStream,
    /// Resolves when it has ended. Dropped, it ends the gateway.
    pub ended: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl fmt::Debug for EgressSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EgressSettings").field("bundles", &self.bundles).finish_non_exhaustive()
    }
}

impl fmt::Debug for StartedGateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StartedGateway")
    }
}
