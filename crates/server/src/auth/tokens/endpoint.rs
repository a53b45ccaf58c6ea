//! Asking an issuer for a document: encrypted unless it is on this host, in bounded time, of a bounded size.

use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use cubicle_model::{Fault, Kind};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper::{Request, StatusCode, Uri, header};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore, crypto};

/// For one document, from the name of its host to its last byte.
const DEADLINE: Duration = Duration::from_secs(10);
const LARGEST: usize = 256 * 1024;

/// Where a document is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Endpoint {
    uri: Uri,
    tls: bool,
    host: String,
    port: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotAnEndpoint {
    #[error("'{0}' is not an https:// address")]
    Unreadable(String),
    #[error("'{0}' is not encrypted: on the way somebody could put their own keys in place of the issuer's")]
    InTheClear(String),
}

impl Endpoint {
    pub(super) fn parse(given: &str) -> Result<Self, NotAnEndpoint> {
        let unreadable = || NotAnEndpoint::Unreadable(given.escape_default().to_string());
        let uri: Uri = given.parse().map_err(|_| unreadable())?;
        let tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(unreadable()),
        };
        let named = uri.host().filter(|host| !host.is_empty()).ok_or_else(unreadable)?;
        if uri.authority().is_some_and(|all| all.as_str().contains('@')) {
            return Err(unreadable());
        }
        let host = named.trim_start_matches('[').trim_end_matches(']').to_owned();
        let address = host.parse::<std::net::IpAddr>();
        if !tls && host != "localhost" && !address.is_ok_and(|address| address.is_loopback()) {
            return Err(NotAnEndpoint::InTheClear(given.escape_default().to_string()));
        }
        let port = uri.port_u16().unwrap_or(if tls { 443 } else { 80 });
        Ok(Self { uri, tls, host, port })
    }

    /// Whether somebody on the way could change what the one gives, but not what the other gives.
    pub(super) fn is_weaker_than(&self, other: &Self) -> bool {
        other.tls && !self.tls
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.uri.fmt(f)
    }
}

/// Fetches documents. Redirects are not followed: whoever says where keys are is the configuration, or the issuer.
#[derive(Default)]
pub(super) struct Fetcher {
    tls: OnceLock<TlsConnector>,
}

trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

type Cause = Box<dyn std::error::Error + Send + Sync>;

impl Fetcher {
    pub(super) async fn get(&self, from: &Endpoint) -> Result<Bytes, Fault> {
        let failed = |cause: Cause| {
            let fault = Fault::new(Kind::Unavailable, format!("{from} cannot be fetched: {cause}"));
            match is_distrust(&cause) {
                true => fault.hint("name the certificate of its authority in SSL_CERT_FILE"),
                false => fault,
            }
            .because(cause)
        };
        match tokio::time::timeout(DEADLINE, self.exchange(from)).await {
            Ok(outcome) => outcome.map_err(failed),
            Err(_) => Err(failed(format!("no whole answer within {} seconds", DEADLINE.as_secs()).into())),
        }
    }

    async fn exchange(&self, from: &Endpoint) -> Result<Bytes, Cause> {
        let stream = self.connect(from).await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let path = from.uri.path_and_query().map_or("/", |path| path.as_str());
        let authority = from.uri.authority().map_or("", |all| all.as_str());
        let request = Request::get(path)
            .header(header::HOST, authority)
            .header(header::ACCEPT, "application/json")
            .header(header::CONNECTION, "close")
            .body(Empty::<Bytes>::new())?;
        let talking = async {
            let response = sender.send_request(request).await?;
            if response.status() != StatusCode::OK {
                return Err(format!("it answers {}", response.status()).into());
            }
            // Larger than that is an error of its own, also where the length was not announced.
            Limited::new(response.into_body(), LARGEST).collect().await.map(|all| all.to_bytes())
        };
        // What breaks the connection breaks the exchange too, which is the one to tell of it.
        let carrying = async {
            _ = connection.await;
            std::future::pending::<Infallible>().await
        };
        tokio::select! {
            outcome = talking => outcome,
            never = carrying => match never {},
        }
    }

    async fn connect(&self, to: &Endpoint) -> Result<Pin<Box<dyn Transport>>, Cause> {
        let stream = TcpStream::connect((to.host.as_str(), to.port)).await?;
        if !to.tls {
            return Ok(Box::pin(stream));
        }
        let name = ServerName::try_from(to.host.clone())?;
        Ok(Box::pin(self.tls()?.connect(name, stream).await?))
    }

    fn tls(&self) -> Result<&TlsConnector, Cause> {
        if let Some(ready) = self.tls.get() {
            return Ok(ready);
        }
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if roots.is_empty() {
            return Err("this host trusts no certificate authority (install ca-certificates, or name a file in SSL_CERT_FILE)".into());
        }
        let config = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(self.tls.get_or_init(|| TlsConnector::from(Arc::new(config))))
    }
}

fn is_distrust(cause: &Cause) -> bool {
    let inner = cause.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
    let broken = inner.and_then(|inner| inner.downcast_ref::<rustls::Error>());
    matches!(broken, Some(rustls::Error::InvalidCertificate(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_host_is_asked_without_encryption() {
        for good in [
            "https://id.example.org/keys",
            "https://id.example.org:8443/keys?policy=a",
            "http://127.0.0.1:9000/keys",
            "http://[::1]:9000/keys",
            "http://localhost/keys",
        ] {
            assert_eq!(Endpoint::parse(good).unwrap().to_string(), good);
        }
        for bad in [
            "",
            "keys",
            "/keys",
            "ftp://id.example.org/keys",
            "https://",
            "https://user:password@id.example.org/keys",
            "http://id.example.org/keys",
            "http://127.0.0.1.example.org/keys",
            "http://localhost.example.org/keys",
            "http://10.0.0.1/keys",
            "https://id example.org",
        ] {
            assert!(Endpoint::parse(bad).is_err(), "{bad}");
        }
    }
}
