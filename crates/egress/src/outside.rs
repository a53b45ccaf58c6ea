//! The world around the gateway, as the outermost layer gives it: names, connections, trust, time, and a log.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;

use async_trait::async_trait;
use cubicle_model::egress::HostName;
use cubicle_model::{Fault, Kind, Timestamp};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
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

    /// Whether a connection to the address would end on this very host.
    fn is_here(&self, address: IpAddr) -> bool;
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

    /// The kernel is asked with which address it would go there: to itself it goes with the same one. Nothing is sent.
    /// Where the kernel does not say, nobody is let through.
    fn is_here(&self, address: IpAddr) -> bool {
        let from: IpAddr = match address {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let local = UdpSocket::bind((from, 0)).and_then(|socket| {
            // Any port will do.
            socket.connect((address, 9))?;
            socket.local_addr()
        });
        match local {
            Ok(local) => address.is_loopback() || local.ip() == address,
            Err(error) => {
                !matches!(error.kind(), io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable)
            }
        }
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

/// The certificates that the host trusts, and those of the operator, as PEM.
pub fn roots(of_operator: Option<&str>) -> Result<RootCertStore, Fault> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let unusable = || {
        Fault::new(Kind::Invalid, "there is a certificate among the further ones that cannot be used")
            .hint("give a file with one or several certificates as PEM, as in /etc/ssl/certs")
    };
    if let Some(pem) = of_operator {
        let mut count = 0;
        for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
            let certificate = certificate.map_err(|error| unusable().because(error))?;
            roots.add(certificate).map_err(|error| unusable().because(error))?;
            count += 1;
        }
        if count == 0 {
            return Err(Fault::new(Kind::Invalid, "there is no certificate among the further ones")
                .hint("give a file with one or several certificates as PEM, as in /etc/ssl/certs"));
        }
    }
    Ok(roots)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_knows_its_own_addresses() {
        for own in ["127.0.0.1", "127.1.2.3", "::1"] {
            assert!(SystemDial.is_here(own.parse().unwrap()), "{own}");
        }
        for other in ["192.0.2.1", "2001:db8::1"] {
            assert!(!SystemDial.is_here(other.parse().unwrap()), "{other}");
        }
    }

    #[test]
    fn certificates_of_the_operator_are_trusted_beside_those_of_the_host() {
        let now = Timestamp::from_second(1_750_000_000).unwrap();
        let pem = crate::Authority::generate(now).unwrap().certificate_pem;
        let of_host = roots(None).unwrap().len();
        assert_eq!(roots(Some(&format!("{pem}{pem}"))).unwrap().len(), of_host + 2);
        for bad in ["", "certificate", &pem.replace("MI", "IM"), &pem[..pem.len() / 2]] {
            assert!(roots(Some(bad)).unwrap_err().way_out().unwrap().contains("PEM"), "{bad}");
        }
    }
}
