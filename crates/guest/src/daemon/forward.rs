//! Connections of programs inside that are passed on to the host, where no descriptor of a listener can cross.
//!
//! The host parks connections. One is opened for each that a program inside makes, and joined with it. As long as
//! none is parked, connections wait in the kernel, as many as the listener's backlog takes.

use std::net::SocketAddrV4;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use cubicle_model::{Listener, Protocol};
use cubicle_sys::clock;
use rustix::event::epoll::EventFlags;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::SocketFlags;

use super::http::Refusal;
use super::listeners::Accepts;
use super::server::{Server, Token};
use super::timers::Due;
use super::tunnel::MOST_TUNNELS;
use crate::{hello, wire};

/// What the line that opens a parked connection says beside the listener.
const OPEN: &str = "listener";
/// How long nobody is let in after the daemon could not accept somebody.
const PAUSE_NANOS: u64 = 100_000_000;

/// A connection that was parked, for whoever goes on with it.
pub(super) struct Unparked {
    pub(super) fd: OwnedFd,
    /// What the host has sent already.
    pub(super) early: Vec<u8>,
    /// What it has not been sent yet of the answer that parked it.
    pub(super) outgoing: Vec<u8>,
}

pub(super) fn check(asked: &[Listener]) -> Result<(), Refusal> {
    match asked.iter().find(|listener| listener.protocol == Protocol::Udp) {
        Some(listener) => {
            Err(Refusal::invalid(format!("{listener} cannot be forwarded: it has no connections"))
                .hint("forward the TCP port of the same service"))
        }
        None => Ok(()),
    }
}

impl Server {
    /// Says who accepts the connections of a listener from now on.
    pub(super) fn set_forwarded(&mut self, listener: Listener, forwarded: bool) -> Result<(), Refusal> {
        let found = self.listeners.kept.iter_mut().enumerate().find(|(_, kept)| kept.listener == listener);
        let Some((number, kept)) = found else { return Ok(()) };
        match (kept.accepts, forwarded) {
            (Accepts::Host, true) => {
                let token = Token::Forward(number as u64);
                self.epoll.add(kept.socket.as_fd(), token, EventFlags::empty()).map_err(|error| {
                    Refusal::new(503, "no_resources", format!("cannot watch {listener}: {error}"))
                })?;
                kept.accepts = Accepts::Daemon { woken: false };
            }
            (Accepts::Daemon { .. }, false) => {
                self.epoll.remove(kept.socket.as_fd());
                kept.accepts = Accepts::Host;
            }
            _ => {}
        }
        Ok(())
    }

    /// Wakes the daemon for new connections only while it could pass one on.
    pub(super) fn watch_forwarded(&mut self) {
        if !self.listeners.kept.iter().any(|kept| kept.accepts != Accepts::Host) {
            return;
        }
        let paused = clock::boot_nanos() < self.listeners.paused_until;
        let wake = !paused && self.tunnels.len() < MOST_TUNNELS && self.has_parked();
        for (number, kept) in self.listeners.kept.iter_mut().enumerate() {
            let Accepts::Daemon { woken } = &mut kept.accepts else { continue };
            if *woken == wake {
                continue;
            }
            let flags = if wake { EventFlags::IN } else { EventFlags::empty() };
            if self.epoll.modify(kept.socket.as_fd(), Token::Forward(number as u64), flags).is_ok() {
                *woken = wake;
            }
        }
    }

    /// Takes in the connections to a listener that can be passed on now.
    pub(super) fn take_in(&mut self, number: usize) {
        let Some(kept) = self.listeners.kept.get(number) else { return };
        if kept.accepts == Accepts::Host {
            return;
        }
        let (listener, socket) = (kept.listener, Arc::clone(&kept.socket));
        while self.tunnels.len() < MOST_TUNNELS {
            // Nobody is let in whom nobody waits for.
            let Some(parked) = self.first_parked() else { return };
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let inside = match rustix::net::accept_with(&socket, flags) {
                Ok(inside) => inside,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(Errno::AGAIN) => return,
                Err(_) => {
                    // There are no descriptors left, or no memory; it would fail again at once.
                    self.listeners.paused_until = clock::boot_nanos() + PAUSE_NANOS;
                    self.timers.add(self.listeners.paused_until, Due::Forward);
                    return;
                }
            };
            let meant = rustix::net::getsockname(&inside).and_then(SocketAddrV4::try_from);
            // A program that has left again is not passed on.
            let (Ok(to), Some(host)) = (meant, self.unpark(parked)) else { continue };
            let arrival = Some(wire::Arrival { listener, to });
            let line = hello::line(&wire::Opened { open: OPEN.into(), arrival });
            self.join(host.fd, host.early, inside, [host.outgoing, line].concat());
        }
    }

    /// Whether a connection is parked, or was a moment ago.
    fn has_parked(&mut self) -> bool {
        while let Some(key) = self.parked.front().copied() {
            if let Some(connection) = self.connections.take(key) {
                self.connections.put_back(key, connection);
                return true;
            }
            self.parked.pop_front();
        }
        false
    }

    /// The connection that has been parked the longest, of those whose other side is still there.
    pub(super) fn first_parked(&mut self) -> Option<u64> {
        while let Some(key) = self.parked.front().copied() {
            if let Some(connection) = self.connections.take(key) {
                if is_there(connection.fd()) {
                    self.connections.put_back(key, connection);
                    return Some(key);
                }
                self.connections.free(key);
            }
            self.parked.pop_front();
        }
        None
    }

    /// Takes a parked connection for good.
    pub(super) fn unpark(&mut self, key: u64) -> Option<Unparked> {
        self.parked.retain(|parked| *parked != key);
        let mut connection = self.connections.take(key)?;
        self.connections.free(key);
        self.epoll.remove(connection.fd());
        let outgoing = connection.take_outgoing();
        let (fd, early) = connection.into_parts();
        Some(Unparked { fd, early, outgoing })
    }
}

/// Whether the other side may still send. Asks the kernel, which may know of a hang-up that the event loop has not been
/// told of.
pub(super) fn is_there(fd: impl AsFd) -> bool {
    let mut fds = [PollFd::new(&fd, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut fds, Some(&now)), Ok(0))
}
