//! Connections to a server: TCP, TLS where the address says so, and one that is kept for the next request.

use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

use super::{Address, ClientError};

const CONNECTING: Duration = Duration::from_secs(10);

pub(super) type RequestBody = UnsyncBoxBody<Bytes, std::io::Error>;

pub(super) struct Connections {
    pub(super) address: Address,
    idle: Mutex<Option<SendRequest<RequestBody>>>,
    tls: OnceLock<TlsConnector>,
}

/// An answer, and the connection it came on, which serves again once the answer was read to its end.
pub(super) struct Answered {
    pub(super) response: Response<Incoming>,
    pub(super) connection: SendRequest<RequestBody>,
}

trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

impl Connections {
    pub(super) fn new(address: Address) -> Self {
        Self { address, idle: Mutex::default(), tls: OnceLock::new() }
    }

    /// Sends on the kept connection or on a new one.
    pub(super) async fn send(&self, mut request: Request<RequestBody>) -> Result<Answered, ClientError> {
        if let Some(mut connection) = self.take_idle()
            && connection.ready().await.is_ok()
        {
            match connection.try_send_request(request).await {
                Ok(response) => return Ok(Answered { response, connection }),
                // The server had closed the connection meanwhile; what was not sent is sent again.
                Err(mut failed) => match failed.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(self.broken(failed.into_error())),
                },
            }
        }
        let mut connection = self.connect().await?;
        let response = connection.send_request(request).await.map_err(|error| self.broken(error))?;
        Ok(Answered { response, connection })
    }

    /// Keeps a connection whose answer was read to its end.
    pub(super) fn keep(&self, connection: SendRequest<RequestBody>) {
        *self.idle.lock().unwrap_or_else(PoisonError::into_inner) = Some(connection);
    }

    pub(super) fn broken(&self, cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> ClientError {
        ClientError::Broken { address: self.address.clone(), cause: cause.into() }
    }

    fn take_idle(&self) -> Option<SendRequest<RequestBody>> {
        self.idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
            .filter(|connection| !connection.is_closed())
    }

    async fn connect(&self) -> Result<SendRequest<RequestBody>, ClientError> {
        let connecting = tokio::time::timeout(CONNECTING, self.open());
        let late = |_| std::io::Error::from(std::io::ErrorKind::TimedOut);
        let unreachable = |cause: std::io::Error| ClientError::Unreachable {
            address: self.address.clone(),
            cause: cause.into(),
        };
        let stream = connecting.await.map_err(late).and_then(|opened| opened).map_err(unreachable)?;
        let (sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| self.broken(error))?;
        // Ends by itself when the sender and the answer are dropped, or when the server closes.
        tokio::spawn(connection.with_upgrades());
        Ok(sender)
    }

    async fn open(&self) -> std::io::Result<Pin<Box<dyn Transport>>> {
        let stream = TcpStream::connect((self.address.bare_host(), self.address.port)).await?;
        stream.set_nodelay(true)?;
        if !self.address.tls {
            return Ok(Box::pin(stream));
        }
        let name =
            ServerName::try_from(self.address.bare_host().to_owned()).map_err(std::io::Error::other)?;
        Ok(Box::pin(self.tls()?.connect(name, stream).await?))
    }

    fn tls(&self) -> std::io::Result<&TlsConnector> {
        if let Some(ready) = self.tls.get() {
            return Ok(ready);
        }
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if roots.is_empty() {
            return Err(std::io::Error::other(
                "this machine has no certificates of authorities (ca-certificates)",
            ));
        }
        let config = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(std::io::Error::other)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(self.tls.get_or_init(|| TlsConnector::from(Arc::new(config))))
    }
}
