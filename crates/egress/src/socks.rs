//! SOCKS5 (RFC 1928): connections only, without authentication, as the listener already says who asks.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use cubicle_model::egress::Host;
use tokio::time::timeout;

use crate::listen::read_more;
use crate::outlet::Outlet;
use crate::refusal::{BadRequest, Refusal};
use crate::relay::write_ahead;
use crate::stream::Stream;
use crate::tunnel::{self, Manner};

const VERSION: u8 = 5;
const NO_AUTHENTICATION: u8 = 0;
const NOTHING_ACCEPTABLE: u8 = 0xff;
const CONNECT: u8 = 1;
const COMMAND_NOT_SUPPORTED: u8 = 7;
const ADDRESS_NOT_SUPPORTED: u8 = 8;

/// The longest request: head, a length, a name, a port.
pub const LONGEST: usize = 4 + 1 + 255 + 2;

/// What a message says and how many bytes it takes; nothing while it is not complete.
pub type Parsed<T> = Result<Option<(T, usize)>, NotSocks>;

/// The reply code with which it is refused, and the connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotSocks(pub u8);

/// Reads the greeting: whether the client can do without authentication.
pub fn parse_greeting(bytes: &[u8]) -> Parsed<bool> {
    match bytes {
        [] | [VERSION] => Ok(None),
        [VERSION, count, rest @ ..] => {
            let count = usize::from(*count);
            Ok(rest.get(..count).map(|methods| (methods.contains(&NO_AUTHENTICATION), 2 + count)))
        }
        _ => Err(NotSocks(1)),
    }
}

/// Reads the request: where to. A name is given as it was sent, and checked by whoever uses it.
pub fn parse_request(bytes: &[u8]) -> Parsed<(Destination, u16)> {
    let (command, kind, rest) = match bytes {
        [VERSION, command, 0, kind, rest @ ..] => (*command, *kind, rest),
        [VERSION, _, reserved, ..] if *reserved != 0 => return Err(NotSocks(1)),
        [VERSION, ..] | [] => return Ok(None),
        _ => return Err(NotSocks(1)),
    };
    if command != CONNECT {
        return Err(NotSocks(COMMAND_NOT_SUPPORTED));
    }
    let (destination, rest) = match kind {
        1 => match rest.split_first_chunk::<4>() {
            Some((octets, rest)) => (Destination::Address(Ipv4Addr::from(*octets).into()), rest),
            None => return Ok(None),
        },
        4 => match rest.split_first_chunk::<16>() {
            Some((octets, rest)) => (Destination::Address(Ipv6Addr::from(*octets).into()), rest),
            None => return Ok(None),
        },
        3 => match rest.split_first() {
            None => return Ok(None),
            Some((0, _)) => return Err(NotSocks(1)),
            Some((length, rest)) => match rest.split_at_checked(usize::from(*length)) {
                Some((name, rest)) => (Destination::Name(name.to_vec()), rest),
                None => return Ok(None),
            },
        },
        _ => return Err(NotSocks(ADDRESS_NOT_SUPPORTED)),
    };
    Ok(rest
        .split_first_chunk::<2>()
        .map(|(port, rest)| ((destination, u16::from_be_bytes(*port)), bytes.len() - rest.len())))
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    Address(IpAddr),
    Name(Vec<u8>),
}

/// A reply. The address that it could tell is nobody's business.
pub(crate) fn reply(code: u8) -> [u8; 10] {
    [VERSION, code, 0, 1, 0, 0, 0, 0, 0, 0]
}

/// Serves a client of which the first bytes have been read.
pub(crate) async fn serve(outlet: Arc<Outlet>, client: Stream, mut first: Vec<u8>) {
    let deadline = outlet.shared().limits.head_deadline;
    let Ok(asked) = timeout(deadline, converse(&client, &mut first)).await else { return };
    let (destination, port) = match asked {
        Ok(Ok(asked)) => asked,
        Ok(Err(farewell)) => return client.say_goodbye(&farewell).await,
        Err(_) => return,
    };
    let host = match &destination {
        Destination::Address(address) => Ok(Host::Address(*address)),
        Destination::Name(name) => {
            let text = String::from_utf8_lossy(name);
            // An IPv6 address needs no brackets where a length says how far it goes.
            let address = text.parse::<Ipv6Addr>().map(|address| Host::Address(address.into()));
            address
                .or_else(|_| text.parse())
                .map_err(|error| BadRequest::Host(text.into_owned(), error.to_string()))
        }
    };
    match host {
        Ok(host) => tunnel::open(outlet, client, first, host, port, Manner::Socks).await,
        Err(bad) => {
            let refusal = Refusal::Request(bad);
            let target = match &destination {
                Destination::Name(name) => String::from_utf8_lossy(name).into_owned(),
                Destination::Address(address) => address.to_string(),
            };
            outlet.refused(&target, &refusal);
            client.say_goodbye(&reply(refusal.socks())).await;
        }
    }
}

/// The two messages of the client. What it sends beyond them stays in `first`; an error is the last thing to say.
async fn converse(client: &Stream, first: &mut Vec<u8>) -> io::Result<Result<(Destination, u16), Vec<u8>>> {
    let patience = std::time::Duration::from_secs(10);
    let plain = match next(client, first, parse_greeting).await? {
        Ok(plain) => plain,
        Err(_) => return Ok(Err(vec![VERSION, NOTHING_ACCEPTABLE])),
    };
    if !plain {
        return Ok(Err(vec![VERSION, NOTHING_ACCEPTABLE]));
    }
    write_ahead(client, &[VERSION, NO_AUTHENTICATION], patience).await?;
    Ok(next(client, first, parse_request).await?.map_err(|NotSocks(code)| reply(code).to_vec()))
}

async fn next<T>(
    client: &Stream,
    first: &mut Vec<u8>,
    parse: fn(&[u8]) -> Parsed<T>,
) -> io::Result<Result<T, NotSocks>> {
    loop {
        match parse(first) {
            Err(refused) => return Ok(Err(refused)),
            Ok(Some((message, length))) => {
                first.drain(..length);
                return Ok(Ok(message));
            }
            Ok(None) if read_more(client, first).await? => {}
            Ok(None) => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greetings_are_read_to_their_end() {
        for (bytes, expected) in [
            (&b""[..], Ok(None)),
            (b"\x05", Ok(None)),
            (b"\x05\x02\x00", Ok(None)),
            (b"\x05\x01\x00", Ok(Some((true, 3)))),
            (b"\x05\x02\x00\x02rest", Ok(Some((true, 4)))),
            (b"\x05\x01\x02", Ok(Some((false, 3)))),
            (b"\x05\x00", Ok(Some((false, 2)))),
            (b"\x04\x01", Err(NotSocks(1))),
        ] {
            assert_eq!(parse_greeting(bytes), expected, "{bytes:?}");
        }
    }

    #[test]
    fn requests_are_read_to_their_end() {
        let name = Destination::Name(b"a.example".to_vec());
        let v4 = Destination::Address("1.2.3.4".parse().unwrap());
        let v6 = Destination::Address("::1".parse().unwrap());
        for (bytes, expected) in [
            (&b"\x05\x01\x00\x03\x09a.example\x01\xbbmore"[..], Ok(Some(((name, 443), 16)))),
            (b"\x05\x01\x00\x01\x01\x02\x03\x04\x00\x50", Ok(Some(((v4, 80), 10)))),
            (b"\x05\x01\x00\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\x00\x50", Ok(Some(((v6, 80), 22)))),
            (b"\x05\x01\x00\x03\x09a.exam", Ok(None)),
            (b"\x05\x01\x00\x01\x01\x02\x03\x04\x00", Ok(None)),
            (b"\x05\x01", Ok(None)),
            // Credential a port and UDP are refused.
            (b"\x05\x02\x00\x01", Err(NotSocks(7))),
            (b"\x05\x03\x00\x01", Err(NotSocks(7))),
            (b"\x05\x01\x00\x02", Err(NotSocks(8))),
            (b"\x05\x01\x01\x01", Err(NotSocks(1))),
            (b"\x05\x01\x00\x03\x00", Err(NotSocks(1))),
            (b"\x04\x01\x00\x50", Err(NotSocks(1))),
        ] {
            assert_eq!(parse_request(bytes), expected, "{bytes:?}");
        }
    }
}
