//! CONNECT. Its head is read here and not by the HTTP library: most connections are tunnels, and a tunnel should cost
//! no more than its head.

use std::io;
use std::sync::Arc;

use cubicle_model::egress::Host;
use tokio::time::timeout;

use crate::listen::read_more;
use crate::outlet::Outlet;
use crate::refusal::{BadRequest, Refusal};
use crate::stream::Stream;
use crate::tunnel::{self, Manner};

const MOST_HEADERS: usize = 64;

/// Serves a client whose first bytes are a CONNECT.
pub(crate) async fn serve(outlet: Arc<Outlet>, client: Stream, mut first: Vec<u8>) {
    let limits = outlet.shared().limits;
    let read = timeout(limits.head_deadline, async {
        loop {
            match parse(&first) {
                Ok(None) if first.len() > limits.head => return Ok(Err(BadRequest::Connect)),
                Ok(None) if read_more(&client, &mut first).await? => {}
                Ok(None) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
                Ok(Some(asked)) => return Ok(Ok(asked)),
                Err(bad) => return Ok(Err(bad)),
            }
        }
    });
    match read.await {
        Ok(Ok(Ok((host, port, length)))) => {
            first.drain(..length);
            first.shrink_to_fit();
            tunnel::open(outlet, client, first, host, port, Manner::Connect).await;
        }
        Ok(Ok(Err(bad))) => {
            let target = first.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
            let refusal = Refusal::Request(bad);
            outlet.refused(&String::from_utf8_lossy(&target[..target.len().min(260)]), &refusal);
            client.say_goodbye(&refusal.answer()).await;
        }
        Ok(Err(_)) | Err(_) => {}
    }
}

/// The host, the port, and the length of the head; nothing while it is not complete.
fn parse(bytes: &[u8]) -> Result<Option<(Host, u16, usize)>, BadRequest> {
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let length = match request.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(_) => return Err(BadRequest::Connect),
    };
    if request.version != Some(1) && request.version != Some(0) {
        return Err(BadRequest::Connect);
    }
    let (host, port) = authority(request.path.unwrap_or_default())?;
    let port = port.ok_or(BadRequest::Connect)?;
    for header in request.headers.iter() {
        let named = |name: &str| header.name.eq_ignore_ascii_case(name);
        if named("content-length") && header.value != b"0" || named("transfer-encoding") {
            return Err(BadRequest::Smuggling("CONNECT has no body"));
        }
        if named("host") {
            let value = String::from_utf8_lossy(header.value);
            let same =
                authority(&value).is_ok_and(|(other, at)| other == host && at.is_none_or(|at| at == port));
            if !same {
                let request = format!("{host}:{port}");
                return Err(BadRequest::HostMismatch { request, header: value.chars().take(260).collect() });
            }
        }
    }
    Ok(Some((host, port, length)))
}

/// Reads `host` or `host:port`.
pub(crate) fn authority(given: &str) -> Result<(Host, Option<u16>), BadRequest> {
    if given.contains('@') {
        return Err(BadRequest::UserInfo);
    }
    let colon = given.rfind(':').filter(|colon| !given[*colon..].contains(']'));
    let (host, port) = match colon {
        None => (given, None),
        Some(colon) => (&given[..colon], Some(&given[colon + 1..])),
    };
    let refuse = |why: String| BadRequest::Host(given.chars().take(260).collect(), why);
    let port = match port {
        None => None,
        Some(port) => {
            let number = port.parse::<u16>().ok().filter(|number| *number != 0);
            let plain = port.bytes().all(|byte| byte.is_ascii_digit());
            Some(
                number
                    .filter(|_| plain)
                    .ok_or_else(|| refuse("its port is not a number from 1 to 65535".into()))?,
            )
        }
    };
    host.parse()
        .map(|host| (host, port))
        .map_err(|error: cubicle_model::egress::NotAHost| refuse(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connect_names_host_and_port() {
        let host: Host = "a.example".parse().unwrap();
        let head =
            b"CONNECT A.example.:443 HTTP/1.1\r\nHost: a.example:443\r\nProxy-Connection: x\r\n\r\nrest";
        assert_eq!(parse(head).unwrap(), Some((host.clone(), 443, head.len() - 4)));
        assert_eq!(parse(&head[..40]).unwrap(), None);
        let other = b"CONNECT a.example:8443 HTTP/1.0\r\nHost: a.example\r\n\r\n";
        assert_eq!(parse(other).unwrap(), Some((host, 8443, other.len())));
        let v6 = parse(b"CONNECT [::1]:443 HTTP/1.1\r\n\r\n").unwrap().unwrap();
        assert_eq!(v6.0, Host::Address("::1".parse().unwrap()));
    }

    #[test]
    fn a_connect_that_means_two_things_is_refused() {
        for head in [
            "CONNECT a.example HTTP/1.1\r\n\r\n",
            "CONNECT a.example:0 HTTP/1.1\r\n\r\n",
            "CONNECT a.example:+80 HTTP/1.1\r\n\r\n",
            "CONNECT a.example:99999 HTTP/1.1\r\n\r\n",
            "CONNECT user@a.example:443 HTTP/1.1\r\n\r\n",
            "CONNECT http://a.example:443/ HTTP/1.1\r\n\r\n",
            "CONNECT a.example:443 HTTP/1.1\r\nHost: b.example:443\r\n\r\n",
            "CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:80\r\n\r\n",
            "CONNECT a.example:443 HTTP/1.1\r\nHost: a.example\r\nHost: b.example\r\n\r\n",
            "CONNECT a.example:443 HTTP/1.1\r\nContent-Length: 5\r\n\r\n",
            "CONNECT a.example:443 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
            "CONNECT a.example:443 HTTP/2.0\r\n\r\n",
            "CONNECT a.example:443:80 HTTP/1.1\r\n\r\n",
            "CONNECT 2130706433:80 HTTP/1.1\r\n\r\n",
            "CONNECT 0x7f.1:80 HTTP/1.1\r\n\r\n",
            "CONNECT ::1:80 HTTP/1.1\r\n\r\n",
            "CONNECT a.example:443\tx HTTP/1.1\r\n\r\n",
        ] {
            assert!(parse(head.as_bytes()).is_err(), "{head:?}");
        }
    }
}
