//! All sandboxes that have a way out, and what they share: bounds, buffers, and the world outside. They share no
//! connection.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{TcpListener, UdpSocket};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cubicle_model::egress::{Bill, HostName, Recording};
use cubicle_model::{Fault, Kind, SandboxId};
use tokio::runtime::Handle;

use crate::intercept::Authority;
use crate::limits::Limits;
use crate::listen;
use crate::outlet::{Outlet, Terms};
use crate::outside::Outside;
use crate::relay::Buffers;
use crate::stream::Stream;

/// The names of virtual hosts end with this.
const DOMAIN: &str = "egress.internal";
/// How long connections of a sandbox that is detached may take to end.
const DETACH: Duration = Duration::from_secs(5);

/// The only way out of its sandboxes.
pub struct Gateway {
    shared: Arc<Shared>,
    outlets: Mutex<HashMap<SandboxId, Arc<Outlet>>>,
    /// Where sandboxes are served, in turn; where the caller is when there is none.
    runtimes: Vec<Handle>,
    turn: AtomicUsize,
}

/// What all outlets use.
pub(crate) struct Shared {
    pub(crate) limits: Limits,
    pub(crate) outside: Outside,
    pub(crate) tls: Arc<rustls::ClientConfig>,
    pub(crate) authority: Option<Authority>,
    /// By which a request that comes back is known.
    pub(crate) via: String,
    pub(crate) domain: HostName,
    pub(crate) buffers: Buffers,
    pub(crate) connections: AtomicUsize,
}

/// The sockets on which one sandbox reaches the gateway. They were made inside of its network, and no other sandbox can
/// reach them: the socket alone says whose a connection is.
#[derive(Debug, Default)]
pub struct Listeners {
    /// HTTP proxy and SOCKS5.
    pub proxy: Vec<TcpListener>,
    /// Ports that names lead to, for programs that know of no proxy. Bound to all addresses.
    pub forward: Vec<TcpListener>,
    pub dns_udp: Vec<UdpSocket>,
    pub dns_tcp: Vec<TcpListener>,
}

impl Gateway {
    /// `name` stands in the `Via` header of plain requests; two gateways that may be chained need different ones. With
    /// an authority, hosts that a policy names are inspected.
    pub fn new(
        name: &str,
        limits: Limits,
        outside: Outside,
        authority: Option<Authority>,
    ) -> Result<Self, Fault> {
        let tls = outside
            .tls()
            .map_err(|error| Fault::new(Kind::Internal, "TLS cannot be set up").because(error))?;
        let shared = Shared {
            limits,
            tls: Arc::new(tls),
            outside,
            authority,
            via: name.to_owned(),
            domain: DOMAIN.parse().expect("it is a host name"),
            buffers: Buffers::default(),
            connections: AtomicUsize::new(0),
        };
        Ok(Self {
            shared: Arc::new(shared),
            outlets: Mutex::default(),
            runtimes: Vec::new(),
            turn: AtomicUsize::new(0),
        })
    }

    /// Serves each sandbox in one of these runtimes. With one thread each they are faster than a runtime with several: a
    /// message that only passes through wakes no second thread.
    pub fn spread_over(mut self, runtimes: Vec<Handle>) -> Self {
        self.runtimes = runtimes;
        self
    }

    /// Gives a sandbox its way out. Attached anew, as after a restart, it gets a new bill. Must be called in a runtime
    /// unless there are others.
    pub fn attach(&self, sandbox: SandboxId, listeners: Listeners, terms: Terms) -> io::Result<()> {
        let turn = self.turn.fetch_add(1, Relaxed);
        let runtime = turn.checked_rem(self.runtimes.len()).map(|index| &self.runtimes[index]);
        // Tasks are started where the caller is, so the caller goes there.
        let _there = runtime.map(Handle::enter);
        let outlet = Arc::new(Outlet::new(sandbox, Arc::clone(&self.shared), terms));
        listen::start(&outlet, listeners)?;
        let before = self.lock().insert(sandbox, outlet);
        if let Some(before) = before {
            before.ended.cancel();
        }
        Ok(())
    }

    /// Takes a connection that came from the sandbox in another way than by its listeners.
    pub fn adopt(&self, sandbox: SandboxId, stream: Stream) -> Result<(), Fault> {
        listen::serve_proxy(&self.outlet(sandbox)?, stream);
        Ok(())
    }

    /// New terms hold from now on, also for what is open: tunnels that they deny are closed.
    pub fn change(&self, sandbox: SandboxId, terms: Terms) -> Result<(), Fault> {
        self.outlet(sandbox)?.change(terms);
        Ok(())
    }

    pub fn bill(&self, sandbox: SandboxId) -> Result<Bill, Fault> {
        Ok(self.outlet(sandbox)?.bill())
    }

    pub fn recording(&self, sandbox: SandboxId) -> Result<Recording, Fault> {
        Ok(self.outlet(sandbox)?.recording())
    }

    /// Ends every connection of the sandbox, and says what it has used in all. Detaching what is not attached succeeds.
    pub async fn detach(&self, sandbox: SandboxId) -> Option<Bill> {
        let outlet = self.lock().remove(&sandbox)?;
        outlet.ended.cancel();
        outlet.tasks.close();
        let _ = tokio::time::timeout(DETACH, outlet.tasks.wait()).await;
        Some(outlet.bill())
    }

    pub fn attached(&self) -> Vec<SandboxId> {
        self.lock().keys().copied().collect()
    }

    fn outlet(&self, sandbox: SandboxId) -> Result<Arc<Outlet>, Fault> {
        let unknown = || Fault::new(Kind::NotFound, format!("the gateway does not know {sandbox}"));
        self.lock().get(&sandbox).cloned().ok_or_else(unknown)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<SandboxId, Arc<Outlet>>> {
        self.outlets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        for outlet in self.lock().values() {
            outlet.ended.cancel();
        }
    }
}

impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gateway({} attached)", self.lock().len())
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shared")
    }
}
