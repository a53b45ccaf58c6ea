//! Ports of the sandbox that belong to the host.
//!
//! Pid 1 keeps a descriptor of each as long as it lives. While nobody outside has one, connections wait, no program of
//! the workload can take the port, and whoever comes back outside gets the same socket again.

use std::net::SocketAddrV4;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use cubicle_model::{Listener, Protocol};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::connection::Connection;
use super::forward;
use super::http::Refusal;
use super::routes::{Answer, to_value};
use super::server::Server;
use crate::wire;

/// Of one sandbox, all together.
const MOST_LISTENERS: usize = 64;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;

/// Every listener of the sandbox, with the port that it has. None ever goes, so that its number is its own.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    pub(super) kept: Vec<Kept>,
    /// Until then no connection is taken in, for want of what one needs.
    pub(super) paused_until: u64,
}

#[derive(Debug, Clone)]
pub(super) struct Kept {
    pub(super) listener: Listener,
    pub(super) socket: Arc<OwnedFd>,
    pub(super) accepts: Accepts,
}

/// Who accepts connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Accepts {
    /// Whoever has a descriptor.
    Host,
    /// The daemon, when it can pass one on; then it is woken.
    Daemon { woken: bool },
}

impl Server {
    /// Gives away descriptors of listeners, or begins to accept on them; they are made unless they are there. After a
    /// refusal there are no new ones.
    pub(super) fn listen(
        &mut self,
        connection: &mut Connection,
        request: &wire::ListenRequest,
    ) -> Result<Answer, Refusal> {
        if request.forward {
            forward::check(&request.listeners)?;
        }
        let wanted = self.listeners.find_or_make(&request.listeners)?;
        let listeners = wanted.iter().map(|kept| kept.listener).collect();
        for kept in &wanted {
            self.set_forwarded(kept.listener, request.forward)?;
        }
        if !request.forward {
            connection.send_descriptors_with_next(wanted.into_iter().map(|kept| kept.socket).collect());
        }
        Ok(Answer::Json(200, to_value(&wire::Listened { listeners })))
    }
}

impl Listeners {
    fn find_or_make(&mut self, asked: &[Listener]) -> Result<Vec<Kept>, Refusal> {
        check(asked)?;
        let known = |listener: &Listener| self.kept.iter().find(|kept| kept.listener == *listener);
        let new = asked.iter().filter(|listener| known(listener).is_none()).count();
        if self.kept.len() + new > MOST_LISTENERS {
            return Err(Refusal::new(
                429,
                "too_many_listeners",
                format!("a sandbox has at most {MOST_LISTENERS} listeners; this one has {}", self.kept.len()),
            )
            .hint("ask again for those that are there, or make a new sandbox"));
        }
        let wanted = asked.iter().map(|listener| match known(listener) {
            Some(kept) => Ok(kept.clone()),
            None => make(*listener).map_err(|errno| refusal(*listener, errno)),
        });
        let wanted = wanted.collect::<Result<Vec<Kept>, Refusal>>()?;
        for kept in &wanted {
            if !self.kept.iter().any(|before| before.listener == kept.listener) {
                self.kept.push(kept.clone());
            }
        }
        Ok(wanted)
    }
}

fn check(asked: &[Listener]) -> Result<(), Refusal> {
    const MOST: usize = wire::MOST_LISTENERS_AT_ONCE;
    if !(1..=MOST).contains(&asked.len()) {
        return Err(Refusal::invalid(format!(
            "a request asks for 1 to {MOST} listeners, not {}",
            asked.len()
        ))
        .hint("send several requests"));
    }
    let twice =
        asked.iter().enumerate().find(|(at, listener)| listener.port != 0 && asked[..*at].contains(listener));
    match twice {
        Some((_, listener)) => Err(Refusal::invalid(format!("{listener} is asked for twice"))),
        None => Ok(()),
    }
}

fn make(listener: Listener) -> Result<Kept, Errno> {
    let kind = match listener.protocol {
        Protocol::Tcp => SocketType::STREAM,
        Protocol::Udp => SocketType::DGRAM,
    };
    // Whoever has a descriptor shares this setting, and pid 1 waits for nobody.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::INET, kind, flags, None)?;
    if listener.protocol == Protocol::Tcp {
        // For ports with connections of the time before. Datagrams could be had by whoever binds the port after us.
        rustix::net::sockopt::set_socket_reuseaddr(&socket, true)?;
    }
    rustix::net::bind(&socket, &listener.socket_address())?;
    if listener.protocol == Protocol::Tcp {
        rustix::net::listen(&socket, BACKLOG)?;
    }
    let port = SocketAddrV4::try_from(rustix::net::getsockname(&socket)?)?.port();
    let listener = Listener { port, ..listener };
    Ok(Kept { listener, socket: Arc::new(socket), accepts: Accepts::Host })
}

fn refusal(listener: Listener, errno: Errno) -> Refusal {
    let message = format!("cannot listen on {listener} of the sandbox: {}", std::io::Error::from(errno));
    match errno {
        Errno::ADDRINUSE => Refusal::new(409, "port_taken", message)
            .hint("a program inside or another listener has it: choose another port, or 0 for any free one"),
        Errno::ACCESS | Errno::PERM => Refusal::new(403, "port_not_allowed", message).hint(
            "choose a port from 1024 on, or set net.ipv4.ip_unprivileged_port_start in the sandbox's network",
        ),
        Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM => {
            Refusal::new(503, "no_descriptors", message).hint("end something in the sandbox")
        }
        _ => Refusal::new(500, "internal", message),
    }
}
