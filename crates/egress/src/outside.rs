//! The world around the gateway, as the outermost layer gives it: names, connections, trust, time, and a log.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use async_trait::async_trait;
use cubicle_model::Timestamp;
use cubicle_model::egress::HostName;
use rustls::pki_types::UnixTime;
use rustls::time_provider::TimeProvider;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;

use crate::log::AccessLog;

/// Who turns names into addresses.
#[async_trait]
pub trait Names: Send + Sync {
    async fn resolve(&self, name: &HostName) -> io::Result<Vec<IpAddr>>;
}

/// Who makes connections. The address was checked before.
#[async_trait]
pub trait Dial: Send + Sync {
    async fn connect(&self, to: SocketAddr) -> io::Result<TcpStream>;
}

/// Names as the host resolves them: its hosts file, its name servers, in its order.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemNames;

#[async_trait]
impl Names for SystemNames {
    async fn resolve(&self, name: &HostName) -> io::Result<Vec<IpAddr>> {
        let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
        let mut addresses: Vec<IpAddr> = Vec::new();
        for address in found.map(|found| found.ip()) {
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        Ok(addresses)
    }
}

#[derive(Debug, Clone, Copy, Default)]
pub struct SystemDial;

#[async_trait]
impl Dial for SystemDial {
    async fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        TcpStream::connect(to).await
    }
}

#[derive(Clone)]
pub struct Outside {
    pub names: Arc<dyn Names>,
    pub dial: Arc<dyn Dial>,
    /// Whose certificates are accepted.
    pub roots: Arc<RootCertStore>,
    pub clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    /// Told of every request and tunnel when it has ended.
    pub log: Option<AccessLog>,
}

impl Outside {
    /// TLS towards the other side. HTTP/1.1 is the only protocol that the gateway speaks there.
    pub(crate) fn tls(&self) -> Result<ClientConfig, rustls::Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let time = Arc::new(Clock(Arc::clone(&self.clock)));
        let mut config = ClientConfig::builder_with_details(provider, time)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(Arc::clone(&self.roots))
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}

/// The certificates that the host trusts.
pub fn system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

struct Clock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        let seconds = u64::try_from((self.0)().as_second()).ok()?;
        Some(UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds)))
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

impl fmt::Debug for Outside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Outside")
    }
}
