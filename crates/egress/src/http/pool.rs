//! Connections to the other side that wait for the next request of the same sandbox.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cubicle_model::egress::{Attempt, Scheme};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, timeout};

use super::LEAST_BUFFER;
use super::body::Outwards;
use super::target::Target;
use crate::listen;
use crate::outlet::{Agreed, Outlet};
use crate::refusal::{Failure, Refusal};
use crate::upstream;

/// How long a connection waits; the other side often gives up sooner.
const KEEP: Duration = Duration::from_secs(30);

/// A connection over which requests can be sent.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(super) sender: SendRequest<Outwards>,
    /// Checked again before every request.
    pub(super) address: IpAddr,
}

/// The waiting connections of one sandbox. They are never another's: what is on the other end of a connection knows
/// it as the one that it spoke to before.
#[derive(Debug)]
pub(crate) struct Pool {
    waiting: Mutex<HashMap<Target, Vec<(Instant, Connection)>>>,
    most: usize,
}

impl Pool {
    pub(crate) fn new(most: usize) -> Self {
        Self { waiting: Mutex::default(), most }
    }

    /// A connection that waits for this target, at an address that is still allowed.
    pub(super) async fn take(&self, target: &Target, allowed: impl Fn(IpAddr) -> bool) -> Option<Connection> {
        loop {
            let mut connection = {
                let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
                let (since, connection) = waiting.get_mut(target)?.pop()?;
                if since.elapsed() > KEEP || connection.sender.is_closed() || !allowed(connection.address) {
                    continue;
                }
                connection
            };
            // It may still be finishing what it did before.
            if let Ok(Ok(())) = timeout(Duration::from_millis(100), connection.sender.ready()).await {
                return Some(connection);
            }
        }
    }

    fn put(&self, target: Target, connection: Connection) {
        if connection.sender.is_closed() {
            return;
        }
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.retain(|_, connections| {
            connections
                .retain(|(since, connection)| since.elapsed() <= KEEP && !connection.sender.is_closed());
            !connections.is_empty()
        });
        if waiting.values().map(Vec::len).sum::<usize>() < self.most {
            waiting.entry(target).or_default().push((Instant::now(), connection));
        }
    }
}

/// A connection that is in use, and where it goes when its answer has been read to the end.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) connection: Connection,
    pub(super) key: Target,
    pub(super) outlet: Arc<Outlet>,
}

impl Kept {
    pub(super) fn give_back(self) {
        self.outlet.pool().put(self.key, self.connection);
    }
}

/// Makes a new connection.
pub(super) async fn open(
    outlet: &Arc<Outlet>,
    terms: &Agreed,
    attempt: &Attempt<'_>,
    scheme: Scheme,
) -> Result<Connection, Refusal> {
    let fail = |failure| Refusal::Upstream { host: attempt.host.clone(), port: attempt.port, failure };
    let dialed = upstream::dial(outlet, terms, attempt).await?;
    let address = dialed.address;
    let sender = match scheme {
        Scheme::Https => {
            let stream = upstream::secure(outlet, attempt.host, dialed.stream).await.map_err(fail)?;
            handshake(outlet, stream).await
        }
        Scheme::Http | Scheme::Tcp => handshake(outlet, dialed.stream).await,
    };
    Ok(Connection { sender: sender.map_err(fail)?, address })
}

async fn handshake<S>(outlet: &Arc<Outlet>, stream: S) -> Result<SendRequest<Outwards>, Failure>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let limits = outlet.shared().limits;
    let (sender, connection) = http1::Builder::new()
        .max_buf_size(limits.head.max(LEAST_BUFFER))
        .max_headers(limits.headers)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|_| Failure::Broken)?;
    listen::spawn(outlet, async move {
        // How it ended is told to whoever waits for an answer over it.
        let _ = connection.with_upgrades().await;
    });
    Ok(sender)
}
