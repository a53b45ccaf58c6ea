//! One connection that is kept, and as little around it as possible: what is measured is the server.

use std::net::SocketAddr;

use cubicle_model::{Fault, Kind};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The bytes of a request, made before the clock runs.
#[derive(Debug, Clone)]
pub(crate) struct Request(Vec<u8>);

impl Request {
    pub(crate) fn new(method: &str, path: &str, key: &str, body: Option<&Value>) -> Self {
        let body = body.map(Value::to_string).unwrap_or_default();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        Self([head.as_bytes(), body.as_bytes()].concat())
    }
}

#[derive(Debug)]
pub(crate) struct Wire {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Wire {
    pub(crate) async fn connect(to: SocketAddr) -> Result<Self, Fault> {
        let stream = TcpStream::connect(to).await.map_err(broken)?;
        stream.set_nodelay(true).map_err(broken)?;
        Ok(Self { stream, received: Vec::with_capacity(16 * 1024) })
    }

    /// The body of the answer to a request that must succeed.
    pub(crate) async fn ask(&mut self, request: &Request) -> Result<&[u8], Fault> {
        self.stream.write_all(&request.0).await.map_err(broken)?;
        self.received.clear();
        let head = loop {
            if let Some(end) = self.received.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                break Head::read(&self.received[..end + 4])?;
            }
            self.receive().await?;
        };
        while self.received.len() < head.length + head.body {
            self.receive().await?;
        }
        let body = &self.received[head.length..head.length + head.body];
        match head.status {
            200..300 => Ok(body),
            status => {
                let said = String::from_utf8_lossy(body).into_owned();
                let kind = if status == 429 { Kind::Full } else { Kind::Internal };
                Err(Fault::new(kind, format!("the server answered {status}: {said}")))
            }
        }
    }

    pub(crate) async fn ask_json(&mut self, request: &Request) -> Result<Value, Fault> {
        let body = self.ask(request).await?;
        serde_json::from_slice(body)
            .map_err(|error| Fault::new(Kind::Internal, "an answer is not JSON").because(error))
    }

    async fn receive(&mut self) -> Result<(), Fault> {
        match self.stream.read_buf(&mut self.received).await.map_err(broken)? {
            0 => Err(Fault::new(Kind::Unavailable, "the server closed the connection")),
            _ => Ok(()),
        }
    }
}

/// What has to be known of the head of an answer.
struct Head {
    status: u16,
    /// Of the head itself.
    length: usize,
    body: usize,
}

impl Head {
    fn read(bytes: &[u8]) -> Result<Self, Fault> {
        let not_http = || Fault::new(Kind::Internal, "an answer is not HTTP with a length");
        let text = std::str::from_utf8(bytes).map_err(|_| not_http())?;
        let status = text.get(9..12).and_then(|code| code.parse().ok()).ok_or_else(not_http)?;
        let length = text.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
        });
        let body = match length {
            Some(length) => length,
            None if status == 204 => 0,
            None => return Err(not_http()),
        };
        Ok(Self { status, length: bytes.len(), body })
    }
}

pub(crate) fn broken(error: std::io::Error) -> Fault {
    Fault::new(Kind::Unavailable, format!("the connection to the server broke: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_of_an_answer_says_how_much_follows() {
        let bytes = b"HTTP/1.1 201 Created\r\nContent-Length: 12\r\nx: y\r\n\r\n";
        let head = Head::read(bytes).unwrap();
        assert_eq!((head.status, head.length, head.body), (201, bytes.len(), 12));
        assert_eq!(Head::read(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap().body, 0);
        assert!(Head::read(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
    }
}
