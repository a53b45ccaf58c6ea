//! TLS to PostgreSQL: rustls, and the certificate authorities that the host trusts.
//!
//! A certificate is always verified, with the name of the host. `SSL_CERT_FILE` names another file of authorities.

use std::error::Error as _;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use cubicle_model::{Fault, Kind};
use postgres::Config;
use postgres::config::{Host, SslMode};
use postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Settles whether connections are encrypted: to another host they are, unless the address says `sslmode=disable`; on this
/// host they are where it says `sslmode=require`.
pub(crate) fn settle(config: &mut Config) -> Result<Tls, Fault> {
    if config.get_ssl_mode() == SslMode::Prefer {
        let mode = if stays_here(config) { SslMode::Disable } else { SslMode::Require };
        config.ssl_mode(mode);
    }
    match config.get_ssl_mode() {
        SslMode::Disable => Ok(Tls(None)),
        _ => trusting_the_host().map(|config| Tls(Some(Arc::new(config)))),
    }
}

fn stays_here(config: &Config) -> bool {
    let named = config.get_hosts().iter().all(|host| match host {
        Host::Unix(_) => true,
        Host::Tcp(name) => {
            name == "localhost" || name.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback())
        }
    });
    named && config.get_hostaddrs().iter().all(std::net::IpAddr::is_loopback)
}

fn trusting_the_host() -> Result<ClientConfig, Fault> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (trusted, _) = roots.add_parsable_certificates(found.certs);
    if trusted == 0 {
        return Err(Fault::new(Kind::Unavailable, "this host trusts no certificate authority")
            .hint("install ca-certificates, or name a file of certificates in SSL_CERT_FILE"));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Fault::new(Kind::Internal, "TLS cannot be set up").because(error))?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

/// Why a connection could not be encrypted, if that was it.
pub(crate) fn refusal(error: &postgres::Error) -> Option<Fault> {
    // The client gives no other sign of which step failed.
    let source = (error.to_string() == "error performing TLS handshake").then(|| error.source())??;
    let mut cause = source.to_string();
    let reason = source.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    if let Some(rustls::Error::InvalidCertificate(why)) = reason.and_then(|reason| reason.downcast_ref()) {
        cause = format!("its certificate is not trusted ({why})");
    }
    let text = format!("no encrypted connection to the database: {cause}");
    Some(Fault::new(Kind::Unavailable, text).hint(
        "name the certificate of its authority in SSL_CERT_FILE, or write sslmode=disable into DB_URL where the network is \
         trusted",
    ))
}

/// Makes TLS sessions, where they are wanted at all.
#[derive(Clone)]
pub(crate) struct Tls(Option<Arc<ClientConfig>>);

pub(crate) struct Handshake {
    config: Option<Arc<ClientConfig>>,
    host: String,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> MakeTlsConnect<S> for Tls {
    type Stream = Encrypted<S>;
    type TlsConnect = Handshake;
    type Error = io::Error;

    fn make_tls_connect(&mut self, host: &str) -> io::Result<Handshake> {
        Ok(Handshake { config: self.0.clone(), host: host.into() })
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> TlsConnect<S> for Handshake {
    type Stream = Encrypted<S>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Encrypted<S>>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move {
            let config = self.config.ok_or_else(|| io::Error::other("TLS was not asked for"))?;
            let host = ServerName::try_from(self.host).map_err(io::Error::other)?;
            tokio_rustls::TlsConnector::from(config).connect(host, stream).await.map(Encrypted)
        })
    }
}

/// A TLS session as the PostgreSQL client wants it.
pub(crate) struct Encrypted<S>(tokio_rustls::client::TlsStream<S>);

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for Encrypted<S> {
    fn channel_binding(&self) -> ChannelBinding {
        // The certificate is verified; binding the password to it as well would take a parser of certificates.
        ChannelBinding::none()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Encrypted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, into)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Encrypted<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_leaves_this_host_is_encrypted_unless_that_is_switched_off() {
        let table = [
            ("postgres://u:p@127.0.0.1/d", SslMode::Disable),
            ("postgres://u:p@[::1]/d", SslMode::Disable),
            ("postgres://u:p@localhost/d", SslMode::Disable),
            ("postgres://u@%2Frun%2Fpostgresql/d", SslMode::Disable),
            ("postgres://u:p@localhost/d?hostaddr=192.0.2.1", SslMode::Require),
            ("postgres://u:p@db.example.org/d", SslMode::Require),
            ("postgres://u:p@localhost,db.example.org/d", SslMode::Require),
            ("postgres://u:p@db.example.org/d?sslmode=disable", SslMode::Disable),
            ("postgres://u:p@127.0.0.1/d?sslmode=require", SslMode::Require),
        ];
        for (url, expected) in table {
            let mut config: Config = url.parse().unwrap();
            let outcome = settle(&mut config);
            assert_eq!(config.get_ssl_mode(), expected, "{url}");
            if expected == SslMode::Disable {
                assert!(outcome.unwrap().0.is_none(), "{url}");
            }
        }
    }
}
