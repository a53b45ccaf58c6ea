//! Attempts to reach somebody, or to be on a network at all.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener, UnixStream};
use std::time::Duration;

use crate::Outcome;
use crate::kernel::{address, call, done};

fn number(error: &std::io::Error) -> i32 {
    error.raw_os_error().unwrap_or(0)
}

pub(crate) fn attack(name: &str, arguments: &[&str]) -> Option<Outcome> {
    Some(match (name, arguments) {
        ("connect", [to]) => {
            let to: SocketAddr = to.parse().ok()?;
            TcpStream::connect_timeout(&to, Duration::from_secs(2)).map(|_| "connected".into()).map_err(
                |error| match error.kind() {
                    std::io::ErrorKind::TimedOut => libc::ETIMEDOUT,
                    _ => number(&error),
                },
            )
        }
        ("send", [to]) => {
            let to: SocketAddr = to.parse().ok()?;
            let from = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            UdpSocket::bind(from)
                .and_then(|socket| socket.send_to(b"x", to))
                .map(|_| "sent".into())
                .map_err(|error| number(&error))
        }
        ("connect-abstract", [name]) => {
            let to = UnixAddress::from_abstract_name(name.as_bytes()).ok()?;
            UnixStream::connect_addr(&to).map(|_| "connected".into()).map_err(|error| number(&error))
        }
        ("connect-path", [path]) => {
            UnixStream::connect(path).map(|_| "connected".into()).map_err(|error| number(&error))
        }
        ("listen-abstract", [name]) => {
            let at = UnixAddress::from_abstract_name(name.as_bytes()).ok()?;
            let listener = UnixListener::bind_addr(&at).ok()?;
            let _ = std::io::stdout().write_all(b"listening\n");
            let _ = std::io::stdout().flush();
            listener.accept().map(|_| "somebody came".into()).map_err(|error| number(&error))
        }
        ("listen", [port]) => {
            let listener = std::net::TcpListener::bind(("127.0.0.1", port.parse().ok()?)).ok()?;
            let _ = std::io::stdout().write_all(b"listening\n");
            let _ = std::io::stdout().flush();
            listener.accept().map(|_| "somebody came".into()).map_err(|error| number(&error))
        }
        ("share-port", [protocol, at]) => share_port(protocol, at.parse().ok()?),
        ("socket", [family, kind, protocol]) => {
            let [family, kind, protocol]: [usize; 3] =
                [family.parse().ok()?, kind.parse().ok()?, protocol.parse().ok()?];
            done(call(libc::SYS_socket, &[family, kind, protocol]))
        }
        ("socket-pair", [family, kind, protocol]) => {
            let mut pair = [0i32; 2];
            let [family, kind, protocol]: [usize; 3] =
                [family.parse().ok()?, kind.parse().ok()?, protocol.parse().ok()?];
            let made = call(libc::SYS_socketpair, &[family, kind, protocol, (&raw mut pair) as usize]);
            std::hint::black_box(pair);
            done(made)
        }
        ("families", []) => families(libc::SYS_socket),
        ("families-by-pair", []) => families(libc::SYS_socketpair),
        ("devices", []) => {
            let text = std::fs::read_to_string("/proc/net/dev").unwrap_or_default();
            Ok(text
                .lines()
                .skip(2)
                .filter_map(|line| line.split(':').next())
                .map(str::trim)
                .collect::<Vec<_>>()
                .join(" "))
        }
        ("routes", []) => {
            Ok(std::fs::read_to_string("/proc/net/route").unwrap_or_default().lines().skip(1).collect())
        }
        ("named-sockets", []) => {
            let text = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
            Ok(text
                .lines()
                .skip(1)
                .filter_map(|line| line.split_whitespace().nth(7))
                .collect::<Vec<_>>()
                .join(" "))
        }
        ("make-device", []) => make_device(),
        ("switch-off-loopback", []) => {
            let socket = call(libc::SYS_socket, &[libc::AF_INET as usize, libc::SOCK_DGRAM as usize, 0]);
            let mut request = [0u8; 40];
            request[..2].copy_from_slice(b"lo");
            socket
                .and_then(|socket| {
                    call(libc::SYS_ioctl, &[socket as usize, libc::SIOCSIFFLAGS as usize, address(&request)])
                })
                .map(|_| "off".into())
        }
        ("firewall", []) => {
            let socket = call(libc::SYS_socket, &[libc::AF_INET as usize, libc::SOCK_STREAM as usize, 0]);
            let (buffer, length) = ([0u8; 84], 84u32);
            const GET_INFO: usize = 64;
            const SET_REPLACE: usize = 64;
            let tried = socket.and_then(|socket| {
                call(
                    libc::SYS_getsockopt,
                    &[socket as usize, 0, GET_INFO, address(&buffer), address(&length)],
                )
                .or_else(|_| {
                    call(libc::SYS_setsockopt, &[socket as usize, 0, SET_REPLACE, address(&buffer), 84])
                })
            });
            done(tried)
        }
        _ => return None,
    })
}

/// Binds a port that somebody has, with everything set that would let the two share it, and would then take what comes.
fn share_port(protocol: &str, at: std::net::SocketAddrV4) -> Outcome {
    let kind = if protocol == "udp" { libc::SOCK_DGRAM } else { libc::SOCK_STREAM };
    let socket = call(libc::SYS_socket, &[libc::AF_INET as usize, kind as usize, 0])? as usize;
    let yes = 1i32;
    for option in [libc::SO_REUSEADDR, libc::SO_REUSEPORT] {
        call(
            libc::SYS_setsockopt,
            &[socket, libc::SOL_SOCKET as usize, option as usize, address(&yes), size_of_val(&yes)],
        )?;
    }
    let mut place = [0u8; 16];
    place[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
    place[2..4].copy_from_slice(&at.port().to_be_bytes());
    place[4..8].copy_from_slice(&at.ip().octets());
    call(libc::SYS_bind, &[socket, address(&place), place.len()])?;
    if kind == libc::SOCK_STREAM {
        call(libc::SYS_listen, &[socket, 8])?;
    }
    Ok("the port is shared".into())
}

/// Tries every family of sockets but the ordinary ones, and every kind of netlink but routes.
fn families(how: libc::c_long) -> Outcome {
    let mut pair = [0i32; 2];
    let mut reached = Vec::new();
    let others = (0..50usize).filter(|family| {
        ![libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK].contains(&(*family as i32))
    });
    let netlinks = (1..24usize).map(|protocol| (libc::AF_NETLINK as usize, protocol));
    for (family, protocol) in others.map(|family| (family, 0)).chain(netlinks) {
        for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_RAW, libc::SOCK_SEQPACKET] {
            match call(how, &[family, kind as usize, protocol, (&raw mut pair) as usize]) {
                Err(libc::EAFNOSUPPORT) => {}
                other => reached.push(format!("{family}/{kind}/{protocol}: {other:?}")),
            }
        }
    }
    std::hint::black_box(pair);
    if reached.is_empty() { Err(libc::EAFNOSUPPORT) } else { Ok(reached.join(", ")) }
}

/// Asks the kernel for a new network device, as `ip link add` does.
fn make_device() -> Outcome {
    let socket = call(libc::SYS_socket, &[libc::AF_NETLINK as usize, libc::SOCK_RAW as usize, 0])?;
    let mut message = Vec::new();
    let attribute = |kind: u16, bytes: &[u8]| {
        let mut attribute = Vec::new();
        attribute.extend_from_slice(&(4 + bytes.len() as u16).to_ne_bytes());
        attribute.extend_from_slice(&kind.to_ne_bytes());
        attribute.extend_from_slice(bytes);
        attribute.resize(attribute.len().next_multiple_of(4), 0);
        attribute
    };
    let kind = attribute(1, b"dummy\0");
    let body = [vec![0u8; 16], attribute(3, b"intruder0\0"), attribute(18, &kind)].concat();
    message.extend_from_slice(&(16 + body.len() as u32).to_ne_bytes());
    // RTM_NEWLINK; a request, to be acknowledged, that creates.
    message.extend_from_slice(&16u16.to_ne_bytes());
    message.extend_from_slice(&(0x1u16 | 0x4 | 0x400).to_ne_bytes());
    message.extend_from_slice(&[0; 8]);
    message.extend_from_slice(&body);
    call(libc::SYS_sendto, &[socket as usize, message.as_ptr() as usize, message.len(), 0, 0, 0])?;
    let mut answer = [0u8; 256];
    call(libc::SYS_recvfrom, &[socket as usize, (&raw mut answer) as usize, 256, 0, 0, 0])?;
    let mut error = [0u8; 4];
    let mut from = &std::hint::black_box(answer)[16..20];
    let _ = from.read(&mut error);
    match i32::from_ne_bytes(error) {
        0 => Ok("made".into()),
        negative => Err(-negative),
    }
}
