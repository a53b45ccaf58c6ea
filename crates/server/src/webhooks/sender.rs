//! Sends one request to a receiver: resolved here, checked here, connected to the very address that was checked, in bounded
//! time, without following it anywhere.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use cubicle_egress::{Dial, Names, SystemDial, SystemNames};
use cubicle_model::Timestamp;
use cubicle_model::egress::{Host, Scheme};
use cubicle_model::webhook::{Allowed, LONGEST_PAUSE, Receiver, Refused};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper::{Request, Response, header};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, crypto};

use super::WebhookSettings;
use super::signature::LONGEST_ANSWER;

/// How long one of several addresses is tried before the next.
const ONE_ADDRESS: Duration = Duration::from_secs(3);
/// How long the body of an answer is waited for, of which only the beginning is kept.
const ANSWER_BODY: Duration = Duration::from_secs(2);
/// Of the head of an answer.
const LARGEST_HEAD: usize = 64 * 1024;

pub(crate) struct Sender {
    names: Arc<dyn Names>,
    dial: Arc<dyn Dial>,
    allow: Allowed,
    timeout: Duration,
    tls: OnceLock<TlsConnector>,
}

/// What a receiver answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) status: u16,
    pub(crate) retry_after: Option<Duration>,
    /// The beginning of it, as text that can be shown.
    pub(crate) answer: String,
}

/// Why a receiver did not answer. Nothing of what a receiver said is in it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotSent {
    #[error("its name cannot be resolved: {0}")]
    Unresolved(String),
    #[error("its name leads to no address")]
    NoAddress,
    #[error("{0}")]
    Refused(#[from] Refused),
    #[error("no connection: {0}")]
    Unconnected(String),
    #[error("no TLS: {0}")]
    Tls(String),
    #[error("no answer within {0:?}")]
    TooLate(Duration),
    #[error("the connection broke: {0}")]
    Broken(String),
    #[error("it cannot be asked: {0}")]
    Unaskable(String),
}

trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

type Connected = Pin<Box<dyn Transport>>;

impl Sender {
    pub(crate) fn new(settings: &WebhookSettings) -> Self {
        Self::over(Arc::new(SystemNames), Arc::new(SystemDial), settings)
    }

    fn over(names: Arc<dyn Names>, dial: Arc<dyn Dial>, settings: &WebhookSettings) -> Self {
        Self { names, dial, allow: settings.allow.clone(), timeout: settings.timeout, tls: OnceLock::new() }
    }

    /// Whether a receiver could be told at all, as far as that can be said without asking anybody.
    pub(crate) fn check(&self, to: &Receiver) -> Result<(), Refused> {
        self.allow.check_literal(to)
    }

    pub(crate) async fn post(
        &self,
        to: &Receiver,
        headers: &[(&'static str, String)],
        body: Bytes,
        now: Timestamp,
    ) -> Result<Sent, NotSent> {
        let deadline = Instant::now() + self.timeout;
        let request = request(to, headers, body)?;
        let asking = self.ask(to, request);
        let late = || NotSent::TooLate(self.timeout);
        let (response, connection) = timeout_at(deadline, asking).await.map_err(|_| late())??;
        let (head, body) = response.into_parts();
        let retry_after = head.headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok());
        let retry_after = retry_after.and_then(|text| pause(text, now));
        // Whoever answered has answered, also when the rest does not come.
        let answer = timeout(ANSWER_BODY.min(self.timeout), beginning(body)).await.unwrap_or_default();
        drop(connection);
        Ok(Sent { status: head.status.as_u16(), retry_after, answer: shown(&answer) })
    }

    async fn ask(
        &self,
        to: &Receiver,
        request: Request<Full<Bytes>>,
    ) -> Result<(Response<hyper::body::Incoming>, AbortOnDrop), NotSent> {
        let stream = self.connect(to).await?;
        let broken = |error: hyper::Error| NotSent::Broken(error.to_string());
        let mut builder = http1::Builder::new();
        builder.max_buf_size(LARGEST_HEAD);
        let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(broken)?;
        // Ends with the connection, which ends with this exchange.
        let carrying = AbortOnDrop(tokio::spawn(async move { _ = connection.await }));
        let response = sender.send_request(request).await.map_err(broken)?;
        Ok((response, carrying))
    }

    /// What a name leads to is looked at once: the connection is made to an address that was checked.
    async fn connect(&self, to: &Receiver) -> Result<Connected, NotSent> {
        let addresses = match &to.host {
            Host::Address(address) => vec![*address],
            Host::Name(name) => {
                let found = self.names.resolve(name).await;
                found.map_err(|error| NotSent::Unresolved(error.to_string()))?
            }
        };
        let mut failure = NotSent::NoAddress;
        let mut allowed = Vec::with_capacity(addresses.len());
        for address in addresses {
            match self.allow.check(to, address, self.dial.is_here(address)) {
                Ok(()) => allowed.push(address),
                Err(refused) => failure = refused.into(),
            }
        }
        for address in &allowed {
            match self.connect_to(to, *address, allowed.len() > 1).await {
                Ok(connected) => return Ok(connected),
                Err(why) => failure = why,
            }
        }
        Err(failure)
    }

    async fn connect_to(
        &self,
        to: &Receiver,
        address: IpAddr,
        is_one_of_many: bool,
    ) -> Result<Connected, NotSent> {
        let patience = if is_one_of_many { ONE_ADDRESS.min(self.timeout) } else { self.timeout };
        let connecting = timeout(patience, self.dial.connect(SocketAddr::new(address, to.port))).await;
        let stream = connecting
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            .map_err(|error| NotSent::Unconnected(error.to_string()))?;
        let _ = stream.set_nodelay(true);
        if to.scheme != Scheme::Https {
            return Ok(Box::pin(stream));
        }
        let name = match &to.host {
            Host::Address(address) => ServerName::IpAddress((*address).into()),
            Host::Name(name) => ServerName::try_from(name.as_str().to_owned())
                .map_err(|error| NotSent::Tls(error.to_string()))?,
        };
        let secured = self.tls()?.connect(name, stream).await;
        Ok(Box::pin(secured.map_err(|error| NotSent::Tls(error.to_string()))?))
    }

    fn tls(&self) -> Result<&TlsConnector, NotSent> {
        if let Some(ready) = self.tls.get() {
            return Ok(ready);
        }
        let roots = cubicle_egress::roots(None).map_err(|fault| NotSent::Tls(fault.to_string()))?;
        if roots.is_empty() {
            let text = "this host trusts no certificate authority (install ca-certificates, or name a file in \
                SSL_CERT_FILE)";
            return Err(NotSent::Tls(text.into()));
        }
        let config = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| NotSent::Tls(error.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(self.tls.get_or_init(|| TlsConnector::from(Arc::new(config))))
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("allow", &self.allow).finish_non_exhaustive()
    }
}

/// A connection is carried by a task of its own, which nobody needs any more when the answer is there.
struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn request(
    to: &Receiver,
    headers: &[(&'static str, String)],
    body: Bytes,
) -> Result<Request<Full<Bytes>>, NotSent> {
    let mut request = Request::post(&to.target)
        .header(header::HOST, to.authority())
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::USER_AGENT, concat!("cubicle/", env!("CARGO_PKG_VERSION")))
        .header(header::CONNECTION, "close");
    for (name, value) in headers {
        request = request.header(*name, value);
    }
    request.body(Full::new(body)).map_err(|error| NotSent::Unaskable(error.to_string()))
}

async fn beginning(mut body: hyper::body::Incoming) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < LONGEST_ANSWER {
        match body.frame().await {
            Some(Ok(frame)) => bytes.extend_from_slice(frame.data_ref().map_or(&[][..], |data| &data[..])),
            _ => break,
        }
    }
    bytes.truncate(LONGEST_ANSWER);
    bytes
}

/// Text without control characters: it is somebody else's, and is shown to people.
fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        // What replaces a broken character is longer than it was.
        if shown.len() + c.len_utf8() > LONGEST_ANSWER {
            break;
        }
        shown.push(if c.is_control() && c != '\n' && c != '\t' { '\u{fffd}' } else { c });
    }
    while shown.len() > LONGEST_ANSWER {
        shown.pop();
    }
    shown
}

/// `Retry-After` is a number of seconds, or a date.
fn pause(text: &str, now: Timestamp) -> Option<Duration> {
    let text = text.trim();
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(text.parse().map_or(LONGEST_PAUSE, Duration::from_secs));
    }
    let date = jiff::fmt::rfc2822::parse(text).ok()?.timestamp();
    Some(Duration::try_from(date.duration_since(now)).unwrap_or_default())
}

#[cfg(test)]
mod tests;
