//! The host's side of the sandbox contract.
//!
//! Everything that comes back from a sandbox is hostile input: heads, chunks, records, texts and whole answers have
//! caps, and nothing a sandbox names is used as a path on the host.

mod body;
mod connection;
mod context;
mod error;
mod exec;
mod execute;
mod files;
mod forwarding;
mod incoming;
mod listening;
pub mod quiet;
mod streams;
mod tools;

#[cfg(test)]
mod tests;

use std::fmt;
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cubicle_model::{ExecId, SandboxId};
use serde::de::DeserializeOwned;

pub use body::Body;
pub use connection::Connect;
use connection::{Connection, Identity};
pub use context::{CellError, CellGathering, CellOutcome, CellStream};
pub use error::ClientError;
pub use exec::{Event, ExecStream, Frame, Gathering, Outcome, OutputLimits, Records};
pub use files::{Change, Entry, EntryKind, FileBody, Listing, Unpacked, WatchStream, WriteFile};
pub use forwarding::{Forwarded, Forwarding};
use incoming::Head;
#[doc(hidden)]
pub use incoming::decode_for_fuzzing;
pub use listening::Listening;
pub use streams::{Parked, Tunnel};

use crate::hello::{self, Key, Nonce};

/// Connections that are kept for the next request.
const MOST_IDLE: usize = 4;
/// Answers that are not streamed.
const LONGEST_ANSWER: usize = 16 * 1024 * 1024;
const LONGEST_REFUSAL: usize = 64 * 1024;
/// For what a sandbox answers at once. What takes as long as a program runs has no limit of its own.
const PATIENCE: Duration = Duration::from_secs(60);

/// One sandbox. Cheap to clone; requests run at the same time on connections of their own.
#[derive(Clone)]
pub struct Guest(Arc<Shared>);

/// Fills a buffer with unpredictable bytes.
type Random = Box<dyn Fn(&mut [u8]) + Send + Sync>;

struct Shared {
    connector: Box<dyn Connect>,
    identity: Identity,
    random: Random,
    idle: Mutex<Vec<Connection>>,
    /// Connections on which one more answer comes: what an execute that has ended made.
    promised: Mutex<Vec<(ExecId, Connection)>>,
}

impl fmt::Debug for Guest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Guest").field(&self.0.identity.sandbox).finish()
    }
}

/// Whether a request may be sent again when nothing of an answer came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Repeat {
    /// Carrying it out twice is as good as once.
    Safe,
    Never,
}

/// What is expected beside the bytes of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nothing,
    Descriptors,
    /// The answer to a second request that was sent along: what this execute made.
    Produced(ExecId),
}

/// An answer whose body is still on its connection.
struct Answer {
    head: Head,
    body: Body,
}

impl Guest {
    /// `random` fills a buffer with unpredictable bytes.
    pub fn new(
        connector: impl Connect + 'static,
        key: Key,
        sandbox: SandboxId,
        random: impl Fn(&mut [u8]) + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(Shared {
            connector: Box::new(connector),
            identity: Identity { sandbox, key },
            random: Box::new(random),
            idle: Mutex::new(Vec::new()),
            promised: Mutex::new(Vec::new()),
        }))
    }

    pub fn sandbox(&self) -> SandboxId {
        self.0.identity.sandbox
    }

    /// Closes the connections that no request uses.
    pub fn close_idle(&self) {
        self.idle().clear();
        self.promised().clear();
    }

    fn random_exec_id(&self) -> ExecId {
        let mut bits = [0; 16];
        (self.0.random)(&mut bits);
        ExecId::from_random(bits)
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        // A list of connections is whole whatever happened to whoever held it.
        self.0.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn promised(&self) -> std::sync::MutexGuard<'_, Vec<(ExecId, Connection)>> {
        self.0.promised.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection for one request: an idle one that lives, or a new one.
    async fn connection(&self) -> Result<Connection, ClientError> {
        loop {
            let Some(connection) = self.idle().pop() else { break };
            if !connection.is_dead() {
                return Ok(connection);
            }
        }
        self.fresh_connection().await
    }

    async fn fresh_connection(&self) -> Result<Connection, ClientError> {
        let mut nonce = [0; 32];
        (self.0.random)(&mut nonce);
        let open = async {
            let stream = self.0.connector.connect().await.map_err(ClientError::Unavailable)?;
            Connection::open(stream, &self.0.identity, Nonce(nonce)).await
        };
        let patience = Duration::from_secs(hello::PATIENCE_SECONDS);
        tokio::time::timeout(patience, open).await.unwrap_or_else(|_| Err(ClientError::too_late()))
    }

    /// Takes a connection back whose last answer was read to its end.
    fn keep(&self, mut connection: Connection) {
        if !connection.incoming.is_idle() {
            return;
        }
        connection.incoming.shrink();
        connection.descriptors = None;
        connection.used_before = true;
        let mut idle = self.idle();
        if idle.len() < MOST_IDLE {
            idle.push(connection);
        }
    }

    /// Keeps a connection whose last answer was read to its end and on which one more comes. Those that nobody asks for go.
    fn keep_promise(&self, exec: ExecId, connection: Connection) {
        let mut promised = self.promised();
        if promised.len() >= MOST_IDLE {
            promised.remove(0);
        }
        promised.push((exec, connection));
    }

    /// Takes the answer that was asked for together with an execute. None where there is none to be had.
    async fn promised_answer(&self, exec: ExecId) -> Option<Answer> {
        let mut connection = {
            let mut promised = self.promised();
            let at = promised.iter().position(|(promised, _)| *promised == exec)?;
            promised.remove(at).1
        };
        let head = connection.head(&self.0.identity, false).await.ok()?;
        self.judge(head, connection, Beside::Nothing).await.ok()
    }

    /// Sends a request and reads the head of its answer. A status that is no success is an error.
    async fn request(&self, request: &[u8], repeat: Repeat) -> Result<Answer, ClientError> {
        self.request_with(request, repeat, Beside::Nothing).await
    }

    async fn request_with(
        &self,
        request: &[u8],
        repeat: Repeat,
        beside: Beside,
    ) -> Result<Answer, ClientError> {
        let connection = self.connection().await?;
        let reused = connection.used_before;
        match self.request_on(connection, request, beside).await {
            // Between two requests the sandbox may have closed a connection that it did not need any more.
            Err(Unanswered { error: ClientError::Unavailable(_), nothing_came: true })
                if reused && repeat == Repeat::Safe =>
            {
                let fresh = self.fresh_connection().await?;
                self.request_on(fresh, request, beside).await.map_err(|unanswered| unanswered.error)
            }
            result => result.map_err(|unanswered| unanswered.error),
        }
    }

    async fn request_on(
        &self,
        mut connection: Connection,
        request: &[u8],
        beside: Beside,
    ) -> Result<Answer, Unanswered> {
        connection.descriptors = (beside == Beside::Descriptors).then(Vec::new);
        let exchange = async {
            connection.send(request).await?;
            connection.head(&self.0.identity, false).await
        };
        match exchange.await {
            Ok(head) => self.judge(head, connection, beside).await.map_err(Unanswered::after_answer),
            Err(error) => Err(Unanswered { error, nothing_came: connection.incoming.is_idle() }),
        }
    }

    /// Turns a refusal into its error.
    async fn judge(&self, head: Head, connection: Connection, beside: Beside) -> Result<Answer, ClientError> {
        let is_success = matches!(head.status, 200..300);
        let promised = if let Beside::Produced(exec) = beside { Some(exec) } else { None };
        // After a refusal nobody wants the second answer, and it must not be taken for that to another request.
        let close = head.close || (promised.is_some() && !is_success);
        let body = Body::new(self.clone(), connection, close, promised);
        if is_success {
            return Ok(Answer { head, body });
        }
        let status = head.status;
        let text = body.collect(LONGEST_REFUSAL).await?;
        Err(ClientError::refused(status, &text))
    }

    /// A request with a short body and a short answer.
    async fn call(&self, line: &str, body: &[u8], repeat: Repeat) -> Result<Vec<u8>, ClientError> {
        let request = request(line, &[], body);
        let exchange = async { self.request(&request, repeat).await?.body.collect(LONGEST_ANSWER).await };
        tokio::time::timeout(PATIENCE, exchange).await.unwrap_or_else(|_| Err(ClientError::too_late()))
    }

    async fn call_json<T: DeserializeOwned>(
        &self,
        line: &str,
        body: &[u8],
        repeat: Repeat,
    ) -> Result<T, ClientError> {
        json(&self.call(line, body, repeat).await?)
    }
}

/// An exchange that failed, and whether it can be as if it had never begun.
struct Unanswered {
    error: ClientError,
    nothing_came: bool,
}

impl Unanswered {
    fn after_answer(error: ClientError) -> Self {
        Self { error, nothing_came: false }
    }
}

fn json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ClientError> {
    serde_json::from_slice(bytes).map_err(|_| ClientError::Protocol("an answer is not what was asked for"))
}

/// A whole request. `line` is the method and the target.
fn request(line: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut request = head(line, headers, body.len() + 32);
    // Writing to memory cannot fail.
    let _ = write!(request, "content-length: {}\r\n\r\n", body.len());
    request.extend_from_slice(body);
    request
}

/// The head of a request without its last lines, with room for more.
fn head(line: &str, headers: &[(&str, &str)], room: usize) -> Vec<u8> {
    let mut head = Vec::with_capacity(line.len() + 128 + room);
    head.extend_from_slice(line.as_bytes());
    head.extend_from_slice(b" HTTP/1.1\r\nhost: sandbox\r\n");
    for (name, value) in headers {
        head.extend_from_slice(name.as_bytes());
        head.extend_from_slice(b": ");
        head.extend_from_slice(value.as_bytes());
        head.extend_from_slice(b"\r\n");
    }
    head
}
