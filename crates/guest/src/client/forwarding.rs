//! Connections to listeners inside a sandbox that its pid 1 passes on, where no descriptor can cross.

use std::net::SocketAddrV4;

use cubicle_model::Listener;
use tokio::task::JoinSet;

use super::error::ClientError;
use super::exec::to_json;
use super::listening::{repeat, same_listeners};
use super::streams::Tunnel;
use super::{Guest, json};
use crate::wire::{ListenRequest, Listened, Opened};

/// More connections than this are never parked at once: a sandbox has room for a few beside its execs'.
const MOST_AHEAD: usize = 32;

/// Waits for programs inside to connect to listeners. Connections are kept parked for them; dropping it closes those,
/// and whoever connects inside then waits for the next one who forwards.
#[derive(Debug)]
pub struct Forwarding {
    guest: Guest,
    listeners: Vec<Listener>,
    ahead: usize,
    parked: JoinSet<Result<(Opened, Tunnel), ClientError>>,
}

/// A connection that a program inside has made.
#[derive(Debug)]
pub struct Forwarded {
    pub listener: Listener,
    /// The address that the program connected to. Like everything else of a sandbox it is its word alone.
    pub to: SocketAddrV4,
    pub stream: Tunnel,
}

impl Guest {
    /// Has the sandbox accept connections to these TCP listeners and pass each on, over whatever streams the host has to
    /// it. `ahead` connections wait there for the next ones. Listeners that are there already are taken over.
    pub async fn forward(&self, listeners: &[Listener], ahead: usize) -> Result<Forwarding, ClientError> {
        let body = to_json(&ListenRequest { listeners: listeners.to_vec(), forward: true })?;
        let said: Listened = json(&self.call("POST /listen", &body, repeat(listeners)).await?)?;
        same_listeners(listeners, &said.listeners)?;
        let ahead = ahead.clamp(1, MOST_AHEAD);
        let mut forwarding =
            Forwarding { guest: self.clone(), listeners: said.listeners, ahead, parked: JoinSet::new() };
        forwarding.park();
        Ok(forwarding)
    }
}

impl Forwarding {
    /// The listeners with the ports that they have.
    pub fn listeners(&self) -> &[Listener] {
        &self.listeners
    }

    /// The next connection. After an error it may be asked again, and parks new connections: where the sandbox is gone,
    /// that fails each time. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<Forwarded, ClientError> {
        self.park();
        let opened = self.parked.join_next().await;
        self.park();
        let Some(Ok(opened)) = opened else {
            return Err(ClientError::hung_up());
        };
        let (opened, stream) = opened?;
        let arrival = opened.arrival.filter(|arrival| self.listeners.contains(&arrival.listener));
        match arrival {
            Some(arrival) if arrival.to.port() == arrival.listener.port => {
                Ok(Forwarded { listener: arrival.listener, to: arrival.to, stream })
            }
            _ => Err(ClientError::Protocol("a connection came from no listener that was asked for")),
        }
    }

    fn park(&mut self) {
        while self.parked.len() < self.ahead {
            let guest = self.guest.clone();
            // The set owns the task, and ends it when it is dropped.
            self.parked.spawn(async move { guest.park_accept().await?.line().await });
        }
    }
}
