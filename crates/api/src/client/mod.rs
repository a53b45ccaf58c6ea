//! A client of the API: one typed method per route, streams that resume by themselves, and errors that say what the
//! server said.

mod address;
mod admin;
mod connection;
mod error;
mod execs;
mod files;
mod leases;
mod peer;
mod query;
mod secrets;
mod stream;
mod templates;
mod terminal;
mod tools;
mod webhooks;
mod workspace;

pub use address::{Address, NotAnAddress};
pub use admin::AuditQuery;
pub use error::ClientError;
pub use execs::Signal;
pub use files::Download;
pub use leases::LeaseQuery;
pub use peer::{HeaderName, HeaderValue, Peer};
pub use stream::{EventStream, OutputStream, exit_of};
pub use terminal::{Keyboard, Screen, Shown, TerminalRequest};
pub use webhooks::DeliveryQuery;
pub use workspace::Replace;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Full, Limited};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, IF_MATCH, USER_AGENT};
use hyper::{Method, Request};
use serde::Serialize;
use serde::de::DeserializeOwned;

use connection::{Answered, Connections, RequestBody};
use query::Query;

const BYTES: &str = "application/octet-stream";
/// Longer than the slowest start of a sandbox.
const ANSWERING: Duration = Duration::from_secs(120);
/// More than any answer that is one JSON value.
const LONGEST_ANSWER: usize = 64 * 1024 * 1024;

/// The secret of a key. It is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Cheap to clone; clones share a connection that is kept between requests.
#[derive(Clone)]
pub struct Client {
    connections: Arc<Connections>,
    key: Option<Secret>,
    random: fn(&mut [u8]),
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("address", self.address()).finish_non_exhaustive()
    }
}

/// One request before it is sent.
struct Call {
    method: Method,
    path: String,
    body: RequestBody,
    headers: Vec<(HeaderName, String)>,
    /// How long to wait for the head of the answer.
    deadline: Option<Duration>,
}

impl Call {
    fn new(method: Method, path: impl Into<String>) -> Self {
        Self { method, path: path.into(), body: no_body(), headers: Vec::new(), deadline: Some(ANSWERING) }
    }

    fn json(method: Method, path: impl Into<String>, value: &impl Serialize) -> Self {
        // Wire types have text keys and no fallible serializers.
        let bytes = serde_json::to_vec(value).expect("a wire type has a JSON form");
        Self { body: body(bytes), ..Self::new(method, path) }.with(CONTENT_TYPE, "application/json")
    }

    fn with(mut self, name: HeaderName, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// Makes a creation that is sent twice the same one.
    fn repeatable(self, key: String) -> Self {
        self.with(HeaderName::from_static(crate::IDEMPOTENCY_KEY), key)
    }

    /// Only if this version is still the newest.
    fn if_newest(self, version: i64) -> Self {
        self.with(IF_MATCH, format!("\"{version}\""))
    }
}

fn no_body() -> RequestBody {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

fn body(bytes: impl Into<Bytes>) -> RequestBody {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

impl Client {
    /// Connects when the first request is made. `random` makes the names that let a creation be repeated.
    pub fn new(address: Address, key: Option<Secret>, random: fn(&mut [u8])) -> Self {
        Self { connections: Arc::new(Connections::new(address)), key, random }
    }

    pub fn address(&self) -> &Address {
        &self.connections.address
    }

    /// 128 bits for an id that the caller chooses.
    pub fn random_bits(&self) -> [u8; 16] {
        let mut bits = [0; 16];
        (self.random)(&mut bits);
        bits
    }

    fn idempotency_key(&self) -> String {
        cubicle_model::hexadecimal(&self.random_bits())
    }

    async fn get<T: DeserializeOwned>(&self, path: impl Into<String>) -> Result<T, ClientError> {
        self.answer(Call::new(Method::GET, path)).await
    }

    /// An answer that is one JSON value.
    async fn answer<T: DeserializeOwned>(&self, call: Call) -> Result<T, ClientError> {
        let bytes = self.whole(call).await?;
        serde_json::from_slice(&bytes).map_err(|error| self.not_understood(error))
    }

    /// An answer of which only its success counts.
    async fn done(&self, call: Call) -> Result<(), ClientError> {
        self.whole(call).await.map(drop)
    }

    async fn whole(&self, call: Call) -> Result<Bytes, ClientError> {
        let Answered { response, connection } = self.send(call).await?;
        let body = Limited::new(response.into_body(), LONGEST_ANSWER).collect();
        let bytes = body.await.map_err(|error| self.connections.broken(error))?.to_bytes();
        self.connections.keep(connection);
        Ok(bytes)
    }

    /// The head of a successful answer, its body still to be read.
    async fn send(&self, call: Call) -> Result<Answered, ClientError> {
        let deadline = call.deadline;
        let sending = self.connections.send(self.request(call)?);
        let answered = match deadline {
            Some(deadline) => tokio::time::timeout(deadline, sending)
                .await
                .map_err(|_| self.connections.broken("the server does not answer"))??,
            None => sending.await?,
        };
        match answered.response.status() {
            status if status.is_success() || status.as_u16() == 101 => Ok(answered),
            _ => Err(self.refused(answered).await),
        }
    }

    fn request(&self, call: Call) -> Result<Request<RequestBody>, ClientError> {
        let address = self.address();
        let mut request = Request::builder()
            .method(call.method)
            .uri(format!("{}{}", address.prefix, call.path))
            .header(HOST, address.authority())
            .header(USER_AGENT, concat!("cubicle/", env!("CARGO_PKG_VERSION")));
        for (name, value) in call.headers {
            request = request.header(name, value);
        }
        if let Some(Secret(secret)) = &self.key {
            let value = HeaderValue::from_str(&format!("Bearer {secret}"));
            let mut value =
                value.map_err(|_| self.not_understood("the key has characters that no key has"))?;
            value.set_sensitive(true);
            request = request.header(AUTHORIZATION, value);
        }
        request.body(call.body).map_err(|error| self.not_understood(error))
    }

    async fn refused(&self, answered: Answered) -> ClientError {
        let status = answered.response.status().as_u16();
        let body = Limited::new(answered.response.into_body(), LONGEST_ANSWER).collect().await;
        let body = body.map(|body| body.to_bytes()).unwrap_or_default();
        match serde_json::from_slice::<crate::ErrorBody>(&body) {
            Ok(body) => ClientError::Refused { status, error: body.error },
            Err(_) => self.not_understood(format!("status {status} without an explanation")),
        }
    }

    fn not_understood(&self, what: impl fmt::Display) -> ClientError {
        ClientError::NotUnderstood { address: self.address().clone(), what: what.to_string() }
    }

    /// Every page of a list, up to a number of items.
    async fn pages<T: DeserializeOwned>(
        &self,
        path: &str,
        query: Query,
        most: usize,
    ) -> Result<Vec<T>, ClientError> {
        const LARGEST_PAGE: usize = 1000;
        let mut items = Vec::new();
        let mut after: Option<String> = None;
        loop {
            let limit = LARGEST_PAGE.min(most - items.len());
            let query = query.clone().with("limit", limit).maybe("after", after.as_ref());
            let page: crate::Page<T> = self.get(query.on(path)).await?;
            items.extend(page.items);
            after = page.next;
            if after.is_none() || items.len() >= most {
                return Ok(items);
            }
        }
    }
}
