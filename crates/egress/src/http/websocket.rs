//! WebSockets on plain requests and base URLs: a request that the rules allow may leave HTTP, and what follows is carried
//! to the same host alone. Every other protocol that a client offers to switch to stays refused.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::header::{
    CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_EXTENSIONS,
    SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, TRANSFER_ENCODING, UPGRADE,
};
use hyper::http::request::Parts;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper::{Method, Version};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use super::target::Target;
use super::{attempt, headers};
use crate::bill::Tally;
use crate::outlet::Outlet;
use crate::redact::{Content, Redaction, Redactor};
use crate::refusal::{BadRequest, Refusal, Spent};

/// What the answer is a hash of, besides the key.
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
const BUFFER: usize = 16 * 1024;
/// What could be the beginning of a secret is held back no longer than this: somebody may wait for it.
const HELD_BACK: Duration = Duration::from_millis(50);

/// The key of a client that asks for a WebSocket as it should.
pub(super) fn key(method: &Method, version: Version, headers: &HeaderMap) -> Result<HeaderValue, BadRequest> {
    let only = |name| {
        let mut values = headers.get_all(name).iter();
        values.next().filter(|_| values.next().is_none())
    };
    let key = only(&SEC_WEBSOCKET_KEY).ok_or(BadRequest::WebSocket)?;
    let nonce = STANDARD.decode(key.as_bytes()).map_err(|_| BadRequest::WebSocket)?;
    let version_is_known = only(&SEC_WEBSOCKET_VERSION).is_some_and(|version| version == "13");
    let has_body = headers.contains_key(TRANSFER_ENCODING)
        || headers.get(CONTENT_LENGTH).is_some_and(|length| length != "0");
    let good = method == Method::GET && version == Version::HTTP_11 && nonce.len() == 16;
    if good && version_is_known && !has_body { Ok(key.clone()) } else { Err(BadRequest::WebSocket) }
}

/// Says to the other side what the client said to the gateway. A secret that comes back is only found where nothing is
/// compressed.
pub(super) fn ask(parts: &mut Parts, key: &HeaderValue, injected: bool) {
    switch(&mut parts.headers);
    // The client may have named these as belonging to its own connection, and then they were removed.
    parts.headers.insert(SEC_WEBSOCKET_KEY, key.clone());
    parts.headers.insert(SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
    if injected {
        parts.headers.remove(SEC_WEBSOCKET_EXTENSIONS);
    }
}

pub(super) fn switch(headers: &mut HeaderMap) {
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
}

/// Whether the other side has taken this very offer. A host that only repeats what it is sent, or that answers for
/// another protocol, has not, and then nobody may leave HTTP.
pub(super) fn is_taken(answer: &HeaderMap, key: &HeaderValue) -> bool {
    let input = [key.as_bytes(), GUID.as_bytes()].concat();
    let hash = ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, &input);
    let mut accepts = answer.get_all(SEC_WEBSOCKET_ACCEPT).iter();
    let accepted = accepts.next().is_some_and(|accept| accept.as_bytes() == STANDARD.encode(hash).as_bytes());
    accepted && accepts.next().is_none() && headers::upgrade(answer) == headers::Upgrade::WebSocket
}

/// Both ends of a connection that leaves HTTP, once the client has its answer.
pub(super) struct Switched {
    pub(super) client: OnUpgrade,
    pub(super) upstream: Upgraded,
    pub(super) target: Target,
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) address: IpAddr,
    pub(super) tally: Arc<Tally>,
    /// Masks a secret that was added and comes back.
    pub(super) mask: Option<Redaction>,
}

impl Switched {
    /// Carries bytes until one side ends, nothing moves for too long, the budget is used up, or new terms deny it.
    pub(super) async fn carry(self, outlet: &Arc<Outlet>) {
        let Self { client, upstream, target, method, path, address, tally, mask } = self;
        let limits = outlet.shared().limits;
        let Ok(Ok(client)) = timeout(limits.head_deadline, client).await else { return };
        let (mut from_client, mut to_client) = tokio::io::split(TokioIo::new(client));
        let (mut from_upstream, mut to_upstream) = tokio::io::split(TokioIo::new(upstream));
        let moved = Moved::default();
        let outwards = pump(&mut from_client, &mut to_upstream, None, &moved, |bytes| tally.sent(bytes));
        let inwards = pump(&mut from_upstream, &mut to_client, mask, &moved, |bytes| tally.received(bytes));
        let silence = async {
            loop {
                let before = moved.count();
                tokio::time::sleep(limits.idle).await;
                if moved.count() == before {
                    return;
                }
            }
        };
        // A WebSocket is of no use to a side that the other one has left, so the first end is the end of both. What the
        // others hold is dropped with them.
        tokio::select! {
            ended = outwards => note(&tally, ended),
            ended = inwards => note(&tally, ended),
            () = silence => tally.failed(),
            refusal = until_denied(outlet, &target, &method, &path, address) => {
                outlet.refused(&format!("{}:{}", target.host, target.port), &refusal);
            }
        }
        let _ = timeout(Duration::from_secs(1), async {
            let _ = to_client.shutdown().await;
            let _ = to_upstream.shutdown().await;
        })
        .await;
    }
}

fn note(tally: &Tally, ended: Result<(), Ended>) {
    match ended {
        Ok(()) => {}
        Err(Ended::Spent(spent)) => tally.spent(spent),
        Err(Ended::Broken) => tally.failed(),
    }
}

enum Ended {
    Spent(Spent),
    Broken,
}

impl From<io::Error> for Ended {
    fn from(_: io::Error) -> Self {
        Self::Broken
    }
}

/// How often bytes have moved, in either direction.
#[derive(Default)]
struct Moved(std::sync::atomic::AtomicU64);

impl Moved {
    fn note(&self) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }

    fn count(&self) -> u64 {
        self.0.load(std::sync::atomic::Ordering::Relaxed)
    }
}

async fn pump(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    mask: Option<Redaction>,
    moved: &Moved,
    count: impl Fn(usize) -> Result<(), Spent>,
) -> Result<(), Ended> {
    let mut buffer = vec![0; BUFFER];
    let mut masking = mask.map(Masking::new);
    loop {
        let length = match &mut masking {
            Some(masking) if masking.held > 0 => {
                // Reading takes nothing before it is done, so that it can be dropped.
                match timeout(HELD_BACK, from.read(&mut buffer)).await {
                    Ok(length) => length?,
                    Err(_) => {
                        to.write_all(&masking.end()).await?;
                        to.flush().await?;
                        continue;
                    }
                }
            }
            _ => from.read(&mut buffer).await?,
        };
        if length == 0 {
            if let Some(masking) = &mut masking {
                to.write_all(&masking.end()).await?;
            }
            to.flush().await?;
            return Ok(());
        }
        moved.note();
        count(length).map_err(Ended::Spent)?;
        match &mut masking {
            None => to.write_all(&buffer[..length]).await?,
            Some(masking) => to.write_all(&masking.push(&buffer[..length])).await?,
        }
        to.flush().await?;
        moved.note();
        // One busy connection must not keep the thread from all others.
        tokio::task::coop::consume_budget().await;
    }
}

/// A stream that is masked, and how much of it is held back.
struct Masking {
    mask: Redaction,
    stream: Redactor,
    held: usize,
}

impl Masking {
    fn new(mask: Redaction) -> Self {
        Self { stream: mask.stream(Content::Binary), mask, held: 0 }
    }

    fn push(&mut self, piece: &[u8]) -> Vec<u8> {
        let mut output = Vec::with_capacity(self.held + piece.len());
        self.stream.push(piece, &mut output);
        // A mask has the length of what it hides.
        self.held = (self.held + piece.len()).saturating_sub(output.len());
        output
    }

    /// Lets go of what is held back. What comes after this is searched anew.
    fn end(&mut self) -> Vec<u8> {
        let mut output = Vec::with_capacity(self.held);
        self.stream.finish(&mut output);
        *self = Self::new(self.mask.clone());
        output
    }
}

/// Waits until new terms no longer allow the request that this began with.
async fn until_denied(
    outlet: &Outlet,
    target: &Target,
    method: &Method,
    path: &str,
    address: IpAddr,
) -> Refusal {
    let mut changes = outlet.changes();
    loop {
        // The terms that hold now come first: they may have changed since the request was decided.
        let terms = Arc::clone(&changes.borrow_and_update());
        if let Err(refusal) = outlet.at_address(&terms, &attempt(target, method, path), address) {
            return refusal;
        }
        if changes.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl fmt::Debug for Switched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Switched({}:{})", self.target.host, self.target.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(fields: &[(&str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in fields {
            map.append(name.parse::<hyper::header::HeaderName>().unwrap(), value.parse().unwrap());
        }
        map
    }

    #[test]
    fn a_key_is_read_from_a_proper_request_alone() {
        let (key_field, version) =
            (("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="), ("sec-websocket-version", "13"));
        let get = |fields: &[(&str, &str)]| key(&Method::GET, Version::HTTP_11, &headers(fields)).is_ok();
        assert!(get(&[key_field, version]));
        assert!(get(&[key_field, version, ("content-length", "0")]));
        for bad in [
            &[key_field][..],
            &[version],
            &[key_field, ("sec-websocket-version", "8")],
            &[key_field, key_field, version],
            &[("sec-websocket-key", "short"), version],
            &[key_field, version, ("content-length", "5")],
            &[key_field, version, ("transfer-encoding", "chunked")],
        ] {
            assert!(!get(bad), "{bad:?}");
        }
        assert!(key(&Method::POST, Version::HTTP_11, &headers(&[key_field, version])).is_err());
        assert!(key(&Method::GET, Version::HTTP_10, &headers(&[key_field, version])).is_err());
    }

    #[test]
    fn only_an_answer_to_this_key_is_taken() {
        // The example of RFC 6455, section 1.3.
        let key = HeaderValue::from_static("dGhlIHNhbXBsZSBub25jZQ==");
        let accept = ("sec-websocket-accept", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        let (upgrade, connection) = (("upgrade", "WebSocket"), ("connection", "keep-alive, Upgrade"));
        assert!(is_taken(&headers(&[accept, upgrade, connection]), &key));
        for bad in [
            &[upgrade, connection][..],
            &[accept, connection],
            &[accept, upgrade],
            &[accept, accept, upgrade, connection],
            &[accept, ("upgrade", "h2c"), connection],
            &[("sec-websocket-accept", "dGhlIHNhbXBsZSBub25jZQ=="), upgrade, connection],
        ] {
            assert!(!is_taken(&headers(bad), &key), "{bad:?}");
        }
    }
}
