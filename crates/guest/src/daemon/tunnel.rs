//! A connection joined with a TCP port of the sandbox: bytes both ways, each direction closed on its own.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use cubicle_sys::clock;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, Shutdown, SocketFlags, SocketType};

use super::http::{self, Refusal};
use super::server::{Server, Token};
use super::timers::Due;

const BUFFER: usize = 64 * 1024;
pub(super) const MOST_TUNNELS: usize = 256;
const CONNECT_PATIENCE_NANOS: u64 = 10_000_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Host,
    Port,
}

#[derive(Debug)]
pub(super) struct Tunnel {
    host: End,
    port: End,
    to_port: Direction,
    to_host: Direction,
    /// What the host is told when the connect is decided, until then.
    connecting: Option<Greeting>,
}

#[derive(Debug)]
struct End {
    fd: OwnedFd,
    watched: EventFlags,
}

#[derive(Debug, Default)]
struct Direction {
    buffer: Vec<u8>,
    start: usize,
    source_closed: bool,
    target_closed: bool,
}

/// What the host side is sent first.
#[derive(Debug)]
pub(super) enum Greeting {
    /// The answer to an upgrade request.
    Upgrade { port: u16 },
    /// The line with which the guest opens a parked connection.
    Line(Vec<u8>),
}

/// The sandbox's own loopback address.
fn loopback(port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)
}

impl Direction {
    fn pending(&self) -> bool {
        self.start < self.buffer.len()
    }

    fn wants_input(&self) -> bool {
        !self.source_closed && !self.target_closed && !self.pending()
    }

    fn is_over(&self) -> bool {
        self.target_closed
    }

    /// Moves what can be moved now.
    fn pump(&mut self, source: BorrowedFd<'_>, target: BorrowedFd<'_>) {
        loop {
            while self.pending() {
                match rustix::net::send(target, &self.buffer[self.start..], SendFlags::NOSIGNAL) {
                    Ok(sent) => self.start += sent,
                    Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) => return,
                    Err(_) => {
                        // The target takes no more, so the source may as well be told.
                        let _ = rustix::net::shutdown(source, Shutdown::Read);
                        (self.source_closed, self.target_closed) = (true, true);
                        self.buffer = Vec::new();
                        self.start = 0;
                        return;
                    }
                }
            }
            self.buffer.clear();
            self.start = 0;
            if self.source_closed {
                if !self.target_closed {
                    let _ = rustix::net::shutdown(target, Shutdown::Write);
                    self.target_closed = true;
                }
                self.buffer = Vec::new();
                return;
            }
            self.buffer.reserve_exact(BUFFER);
            match rustix::io::read(source, rustix::buffer::spare_capacity(&mut self.buffer)) {
                Ok(0) => self.source_closed = true,
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    // An idle direction keeps no memory.
                    self.buffer = Vec::new();
                    return;
                }
                Err(_) => self.source_closed = true,
            }
        }
    }
}

impl Server {
    /// Joins a host's connection with a port. When the port does not answer the host is told, or loses the connection.
    pub(super) fn open_tunnel(
        &mut self,
        host: OwnedFd,
        early: Vec<u8>,
        port: u16,
        greeting: Greeting,
    ) -> Result<(), (OwnedFd, Refusal)> {
        if self.tunnels.len() >= MOST_TUNNELS {
            let refusal =
                Refusal::new(503, "too_many_tunnels", "too many connections into the sandbox are open");
            return Err((host, refusal));
        }
        let socket = match begin_connect(port) {
            Ok(socket) => socket,
            Err(error) => return Err((host, port_refusal(port, &error))),
        };
        let tunnel = Tunnel {
            host: End { fd: host, watched: EventFlags::empty() },
            port: End { fd: socket, watched: EventFlags::empty() },
            to_port: Direction { buffer: early, ..Default::default() },
            to_host: Direction::default(),
            connecting: Some(greeting),
        };
        let key = self.tunnels.insert(tunnel);
        let Some(mut tunnel) = self.tunnels.take(key) else { return Ok(()) };
        let watched = EventFlags::OUT;
        let added =
            self.epoll.add(tunnel.port.fd.as_fd(), Token::Tunnel(key, Side::Port), watched).and_then(|()| {
                self.epoll.add(tunnel.host.fd.as_fd(), Token::Tunnel(key, Side::Host), EventFlags::empty())
            });
        if let Err(error) = added {
            self.tunnels.free(key);
            return Err((tunnel.host.fd, port_refusal(port, &error)));
        }
        tunnel.port.watched = watched;
        self.tunnels.put_back(key, tunnel);
        self.timers.add(clock::boot_nanos() + CONNECT_PATIENCE_NANOS, Due::Connect(key));
        Ok(())
    }

    /// Joins a host's connection with one that a program inside has made. `first` is what the host is sent before
    /// anything else.
    pub(super) fn join(&mut self, host: OwnedFd, early: Vec<u8>, inside: OwnedFd, first: Vec<u8>) {
        let tunnel = Tunnel {
            host: End { fd: host, watched: EventFlags::empty() },
            port: End { fd: inside, watched: EventFlags::empty() },
            to_port: Direction { buffer: early, ..Default::default() },
            to_host: Direction { buffer: first, ..Default::default() },
            connecting: None,
        };
        let key = self.tunnels.insert(tunnel);
        let Some(tunnel) = self.tunnels.take(key) else { return };
        let add =
            |end: &End, side| self.epoll.add(end.fd.as_fd(), Token::Tunnel(key, side), EventFlags::empty());
        if add(&tunnel.host, Side::Host).and_then(|()| add(&tunnel.port, Side::Port)).is_err() {
            // Both ends close, and both sides see it.
            self.tunnels.free(key);
            return;
        }
        self.tunnels.put_back(key, tunnel);
        self.drive_tunnel(key, Side::Port, EventFlags::empty());
    }

    pub(super) fn give_up_connecting(&mut self, key: u64) {
        if let Some(tunnel) = self.tunnels.take(key) {
            if tunnel.connecting.is_some() {
                self.refuse_tunnel(key, tunnel, &io::ErrorKind::TimedOut.into());
            } else {
                self.tunnels.put_back(key, tunnel);
            }
        }
    }

    fn refuse_tunnel(&mut self, key: u64, tunnel: Tunnel, error: &io::Error) {
        if let Some(Greeting::Upgrade { port }) = tunnel.connecting {
            let mut answer = Vec::new();
            http::write_json(&mut answer, 502, &port_refusal(port, error).body(), false);
            // A fresh connection takes this much at once; a client that filled its own socket gets none.
            let _ = rustix::net::send(&tunnel.host.fd, &answer, SendFlags::NOSIGNAL);
        }
        self.tunnels.free(key);
    }

    pub(super) fn drive_tunnel(&mut self, key: u64, side: Side, flags: EventFlags) {
        let Some(mut tunnel) = self.tunnels.take(key) else { return };
        if tunnel.connecting.is_some() {
            if side == Side::Host {
                // Nothing was asked for on this side yet, so this is a client that left.
                self.tunnels.free(key);
                return;
            }
            let outcome = rustix::net::sockopt::socket_error(&tunnel.port.fd);
            if let Ok(Err(error)) | Err(error) = outcome {
                self.refuse_tunnel(key, tunnel, &error.into());
                return;
            }
            if !flags.intersects(EventFlags::OUT) {
                self.tunnels.put_back(key, tunnel);
                return;
            }
            match tunnel.connecting.take() {
                Some(Greeting::Upgrade { .. }) => tunnel.to_host.buffer.extend_from_slice(http::SWITCHING),
                Some(Greeting::Line(line)) => tunnel.to_host.buffer.extend_from_slice(&line),
                None => {}
            }
        }
        tunnel.to_port.pump(tunnel.host.fd.as_fd(), tunnel.port.fd.as_fd());
        tunnel.to_host.pump(tunnel.port.fd.as_fd(), tunnel.host.fd.as_fd());
        let both_over = tunnel.to_port.is_over() && tunnel.to_host.is_over();
        // An end that hung up entirely takes nothing any more: what comes from the other one has no use.
        let hung_up = flags.intersects(EventFlags::ERR)
            || (flags.intersects(EventFlags::HUP)
                && match side {
                    Side::Host => tunnel.to_port.is_over(),
                    Side::Port => tunnel.to_host.is_over(),
                });
        if both_over || hung_up || self.watch_tunnel(key, &mut tunnel).is_err() {
            self.tunnels.free(key);
            return;
        }
        self.tunnels.put_back(key, tunnel);
    }

    fn watch_tunnel(&self, key: u64, tunnel: &mut Tunnel) -> io::Result<()> {
        let wanted = |input: bool, output: bool| {
            let mut flags = EventFlags::empty();
            flags.set(EventFlags::IN, input);
            flags.set(EventFlags::OUT, output);
            flags
        };
        let host = wanted(tunnel.to_port.wants_input(), tunnel.to_host.pending());
        let port = wanted(tunnel.to_host.wants_input(), tunnel.to_port.pending());
        for (end, flags, side) in [(&mut tunnel.host, host, Side::Host), (&mut tunnel.port, port, Side::Port)]
        {
            if end.watched != flags {
                self.epoll.modify(end.fd.as_fd(), Token::Tunnel(key, side), flags)?;
                end.watched = flags;
            }
        }
        Ok(())
    }
}

fn begin_connect(port: u16) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &loopback(port)) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error.into()),
    }
}

fn port_refusal(port: u16, error: &io::Error) -> Refusal {
    Refusal::new(502, "port_closed", format!("nothing answers on port {port} of the sandbox: {error}"))
        .hint("start the program that listens there; it must listen on 127.0.0.1 or on all addresses")
}
