//! The way to the other side: names, addresses, connections, TLS.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use cubicle_model::egress::{Attempt, Host};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;

use crate::outlet::{Agreed, Outlet};
use crate::refusal::{Failure, Refusal};

/// How long one of several addresses is tried before the next.
const ONE_ADDRESS: Duration = Duration::from_secs(3);

/// A connection, and the address that it was allowed to be made to.
#[derive(Debug)]
pub(crate) struct Dialed {
    pub(crate) stream: TcpStream,
    pub(crate) address: IpAddr,
}

/// Resolves the host and connects to the first address that the policy allows and that answers. An address is checked
/// here, right before it is used, and the connection is made to that very address: what the name leads to later does
/// not matter.
pub(crate) async fn dial(outlet: &Outlet, terms: &Agreed, attempt: &Attempt<'_>) -> Result<Dialed, Refusal> {
    let fail = |failure| Refusal::Upstream { host: attempt.host.clone(), port: attempt.port, failure };
    let addresses = resolve(outlet, attempt.host).await.map_err(fail)?;
    let mut allowed = Vec::with_capacity(addresses.len());
    let mut refusal = None;
    for address in addresses {
        match outlet.at_address(terms, attempt, address) {
            Ok(_) => allowed.push(address),
            Err(denied) => refusal = Some(denied),
        }
    }
    let mut failure = Failure::NoAddress;
    let deadline = outlet.shared().limits.connect_deadline;
    let each = if allowed.len() > 1 { ONE_ADDRESS.min(deadline) } else { deadline };
    let tried = timeout(deadline, async {
        for address in &allowed {
            let connecting = outlet.shared().outside.dial.connect(SocketAddr::new(*address, attempt.port));
            match timeout(each, connecting).await {
                Ok(Ok(stream)) => return Ok(Dialed { stream, address: *address }),
                Ok(Err(error)) => failure = Failure::connecting(&error),
                Err(_) => failure = Failure::ConnectTimeout,
            }
        }
        Err(())
    });
    match tried.await {
        Ok(Ok(dialed)) => {
            // Otherwise a small message waits for the acknowledgement of the one before it.
            let _ = dialed.stream.set_nodelay(true);
            Ok(dialed)
        }
        Ok(Err(())) if allowed.is_empty() => Err(refusal.unwrap_or_else(|| fail(Failure::NoAddress))),
        Ok(Err(())) => Err(fail(failure)),
        Err(_) => Err(fail(Failure::ConnectTimeout)),
    }
}

async fn resolve(outlet: &Outlet, host: &Host) -> Result<Vec<IpAddr>, Failure> {
    let name = match host {
        Host::Address(address) => return Ok(vec![*address]),
        Host::Name(name) => name,
    };
    if let Some(known) = outlet.looked_up(name) {
        return Ok(known);
    }
    let shared = outlet.shared();
    match timeout(shared.limits.connect_deadline, shared.outside.names.resolve(name)).await {
        Ok(Ok(addresses)) => {
            outlet.keep_lookup(name, &addresses);
            Ok(addresses)
        }
        Ok(Err(error)) => Err(Failure::Unresolved(error.to_string())),
        Err(_) => Err(Failure::ResolveTimeout),
    }
}

/// TLS to a host, whose certificate must be for its name.
pub(crate) async fn secure(
    outlet: &Outlet,
    host: &Host,
    stream: TcpStream,
) -> Result<TlsStream<TcpStream>, Failure> {
    let name = match host {
        Host::Address(address) => ServerName::IpAddress((*address).into()),
        Host::Name(name) => {
            ServerName::try_from(name.as_str().to_owned()).map_err(|_| Failure::CertificateName)?
        }
    };
    let connector = tokio_rustls::TlsConnector::from(Arc::clone(&outlet.shared().tls));
    let late = || io::Error::from(io::ErrorKind::TimedOut);
    let secured = timeout(outlet.shared().limits.connect_deadline, connector.connect(name, stream)).await;
    secured.unwrap_or_else(|_| Err(late())).map_err(|error| Failure::tls(&error))
}
