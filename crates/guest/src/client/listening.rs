//! Listeners inside a sandbox whose sockets are had outside.

use std::io;
use std::net::{SocketAddrV4, TcpListener, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use cubicle_model::{Listener, Protocol};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, getpeername, getsockname, ipproto, sockopt};

use super::error::ClientError;
use super::exec::to_json;
use super::{Beside, Guest, LONGEST_REFUSAL, PATIENCE, Repeat, json, request};
use crate::wire::{ListenRequest, Listened, MOST_LISTENERS_AT_ONCE};

/// The socket of a listener inside a sandbox. It does not block; the sandbox's pid 1 has it, too, so that it is still
/// there when nobody outside has it.
#[derive(Debug)]
pub enum Listening {
    Tcp(TcpListener),
    Udp(UdpSocket),
}

impl Listening {
    /// The same socket once more.
    pub fn try_clone(&self) -> io::Result<Self> {
        match self {
            Self::Tcp(listener) => listener.try_clone().map(Self::Tcp),
            Self::Udp(socket) => socket.try_clone().map(Self::Udp),
        }
    }

    /// The port inside.
    pub fn port(&self) -> io::Result<u16> {
        let address = match self {
            Self::Tcp(listener) => listener.local_addr(),
            Self::Udp(socket) => socket.local_addr(),
        };
        address.map(|address| address.port())
    }
}

impl AsFd for Listening {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Udp(socket) => socket.as_fd(),
        }
    }
}

impl From<Listening> for OwnedFd {
    fn from(listening: Listening) -> Self {
        match listening {
            Listening::Tcp(listener) => listener.into(),
            Listening::Udp(socket) => socket.into(),
        }
    }
}

impl Guest {
    /// Listens inside the sandbox; the sockets, in the order in which they are asked for, are the caller's to accept
    /// and receive on. All or none: what is there already is given again, the same socket. Only over a unix socket.
    pub async fn listen(&self, listeners: &[Listener]) -> Result<Vec<Listening>, ClientError> {
        if !(1..=MOST_LISTENERS_AT_ONCE).contains(&listeners.len()) {
            return Err(ClientError::Invalid("1 to 16 listeners can be asked for at once"));
        }
        let body = to_json(&ListenRequest { listeners: listeners.to_vec(), forward: false })?;
        let (request, repeat) = (request("POST /listen", &[], &body), repeat(listeners));
        let exchange = async {
            let mut body = self.request_with(&request, repeat, Beside::Descriptors).await?.body;
            let descriptors = body.take_descriptors();
            let said: Listened = json(&body.collect(LONGEST_REFUSAL).await?)?;
            all_checked(listeners, &said.listeners, descriptors)
        };
        tokio::time::timeout(PATIENCE, exchange).await.unwrap_or_else(|_| Err(ClientError::too_late()))
    }
}

/// Another free port would be another listener.
pub(super) fn repeat(listeners: &[Listener]) -> Repeat {
    if listeners.iter().any(|listener| listener.port == 0) { Repeat::Never } else { Repeat::Safe }
}

fn all_checked(
    asked: &[Listener],
    said: &[Listener],
    descriptors: Vec<OwnedFd>,
) -> Result<Vec<Listening>, ClientError> {
    if descriptors.len() != asked.len() {
        return Err(ClientError::Protocol("a listener is missing, or there is one too many"));
    }
    same_listeners(asked, said)?;
    said.iter().zip(descriptors).map(|(said, descriptor)| checked(*said, descriptor)).collect()
}

/// What a sandbox says it listens on is what was asked for, with a port where any would do.
pub(super) fn same_listeners(asked: &[Listener], said: &[Listener]) -> Result<(), ClientError> {
    let same = |asked: &Listener, said: &Listener| {
        let port = if asked.port == 0 { said.port } else { asked.port };
        *said == Listener { port, ..*asked } && said.port != 0
    };
    if asked.len() == said.len() && asked.iter().zip(said).all(|(asked, said)| same(asked, said)) {
        return Ok(());
    }
    Err(ClientError::Protocol("a listener is not the one that was asked for"))
}

/// A descriptor from a sandbox may be anything; it is used only as what it should be.
fn checked(listener: Listener, descriptor: OwnedFd) -> Result<Listening, ClientError> {
    let (kind, protocol) = match listener.protocol {
        Protocol::Tcp => (SocketType::STREAM, ipproto::TCP),
        Protocol::Udp => (SocketType::DGRAM, ipproto::UDP),
    };
    let bound = getsockname(&descriptor).ok().and_then(|address| SocketAddrV4::try_from(address).ok());
    let is_it = sockopt::socket_domain(&descriptor) == Ok(AddressFamily::INET)
        && sockopt::socket_type(&descriptor) == Ok(kind)
        && sockopt::socket_protocol(&descriptor) == Ok(Some(protocol))
        && sockopt::socket_acceptconn(&descriptor) == Ok(listener.protocol == Protocol::Tcp)
        // One that is connected would answer nobody else.
        && getpeername(&descriptor).err() == Some(Errno::NOTCONN)
        && bound == Some(listener.socket_address());
    if !is_it {
        return Err(ClientError::Protocol("a descriptor is not the listener that it should be"));
    }
    rustix::io::ioctl_fionbio(&descriptor, true).map_err(|error| ClientError::Unavailable(error.into()))?;
    Ok(match listener.protocol {
        Protocol::Tcp => Listening::Tcp(descriptor.into()),
        Protocol::Udp => Listening::Udp(descriptor.into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bound(listening: &Listening) -> u16 {
        listening.port().unwrap()
    }

    #[test]
    fn a_descriptor_is_taken_for_nothing_but_the_listener_that_it_is() {
        let tcp = || Listening::Tcp(TcpListener::bind("127.0.0.1:0").unwrap());
        let udp = || Listening::Udp(UdpSocket::bind("127.0.0.1:0").unwrap());
        for (make, at) in
            [(tcp as fn() -> Listening, Listener::tcp as fn(u16) -> Listener), (udp, Listener::udp)]
        {
            let made = make();
            let port = bound(&made);
            assert!(checked(at(port), made.into()).is_ok());
            let made = make();
            let port = bound(&made);
            assert!(checked(at(port.wrapping_add(1)), made.into()).is_err(), "another port");
            let made = make();
            let port = bound(&made);
            assert!(checked(at(port).everywhere(), made.into()).is_err(), "another address");
        }
        let crossed = udp();
        assert!(checked(Listener::tcp(bound(&crossed)), crossed.into()).is_err(), "another protocol");
        let crossed = tcp();
        assert!(checked(Listener::udp(bound(&crossed)), crossed.into()).is_err(), "another protocol");
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect("127.0.0.1:9").unwrap();
        let listener = Listener::udp(socket.local_addr().unwrap().port());
        assert!(checked(listener, socket.into()).is_err(), "it has a peer");
        let (stream, _) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(checked(Listener::tcp(1), stream.into()).is_err(), "another family");
        assert!(checked(Listener::tcp(1), std::fs::File::open("/dev/null").unwrap().into()).is_err());
    }

    #[test]
    fn what_a_sandbox_says_must_be_what_was_asked_for() {
        let asked = [Listener::tcp(0), Listener::udp(53)];
        let refused = |said: &[Listener], count: usize| {
            let descriptors = (0..count).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap().into()).collect();
            assert!(
                matches!(all_checked(&asked, said, descriptors), Err(ClientError::Protocol(_))),
                "{said:?}"
            );
        };
        refused(&[Listener::tcp(7), Listener::udp(53)], 1);
        refused(&[Listener::tcp(7), Listener::udp(53)], 3);
        refused(&[Listener::tcp(7)], 2);
        refused(&[Listener::tcp(0), Listener::udp(53)], 2);
        refused(&[Listener::tcp(7), Listener::udp(54)], 2);
        refused(&[Listener::udp(53), Listener::tcp(7)], 2);
        refused(&[Listener::tcp(7).everywhere(), Listener::udp(53)], 2);
    }
}
