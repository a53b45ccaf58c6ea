//! Streams other than requests and answers: TCP into a sandbox, streams that it opens; and what a sandbox is asked about
//! itself.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

use super::connection::Connection;
use super::error::ClientError;
use super::exec::to_json;
use super::quiet::QuietStream;
use super::{Beside, Guest, PATIENCE, Repeat, head, json, request};
use crate::wire::{BindRequest, DeadlineRequest, Health, OpenRequest, Opened};

/// The line that a guest-opened stream begins with.
const LONGEST_OPEN_LINE: usize = 1024;

/// A byte stream into a sandbox.
#[derive(Debug)]
pub struct Tunnel {
    stream: QuietStream,
    /// What came right behind the answer that opened it.
    early: Vec<u8>,
    used: usize,
}

impl Tunnel {
    fn new(mut connection: Connection) -> Self {
        let early = connection.incoming.take_rest();
        Self { stream: connection.stream, early, used: 0 }
    }
}

impl AsyncRead for Tunnel {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let early = &self.early[self.used..];
        if early.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, into);
        }
        let count = early.len().min(into.remaining());
        into.put_slice(&early[..count]);
        self.used += count;
        if self.used == self.early.len() {
            self.early = Vec::new();
            self.used = 0;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Tunnel {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// A connection on which the sandbox may open a stream to the host.
#[derive(Debug)]
pub struct Parked(Tunnel);

impl Parked {
    /// Waits until the sandbox opens the stream; says what it asks for, which is the sandbox's word alone.
    pub async fn opened(self) -> Result<(String, Tunnel), ClientError> {
        let (opened, tunnel) = self.line().await?;
        Ok((opened.open, tunnel))
    }

    pub(super) async fn line(self) -> Result<(Opened, Tunnel), ClientError> {
        let mut tunnel = self.0;
        let mut line = Vec::new();
        loop {
            let mut byte = [0];
            // What follows the line is the stream's, so nothing may be read ahead.
            match tunnel.read(&mut byte).await {
                Ok(0) => return Err(ClientError::hung_up()),
                Ok(_) if byte[0] == b'\n' => break,
                Ok(_) if line.len() == LONGEST_OPEN_LINE => {
                    return Err(ClientError::Protocol("a line is too long"));
                }
                Ok(_) => line.push(byte[0]),
                Err(error) => return Err(ClientError::Unavailable(error)),
            }
        }
        Ok((json(&line)?, tunnel))
    }
}

impl Guest {
    pub async fn health(&self) -> Result<Health, ClientError> {
        self.call_json("GET /health", b"", Repeat::Safe).await
    }

    /// The isolation receipt as the sandbox keeps it.
    pub async fn receipt(&self) -> Result<serde_json::Value, ClientError> {
        self.call_json("GET /receipt", b"", Repeat::Safe).await
    }

    /// Gives a ready sandbox what it is to have from now on.
    pub async fn bind(&self, what: &BindRequest) -> Result<(), ClientError> {
        self.call("POST /bind", &to_json(what)?, Repeat::Safe).await.map(drop)
    }

    /// Lets the sandbox end itself that long after now.
    pub async fn set_deadline(&self, after: Duration) -> Result<(), ClientError> {
        let body = to_json(&DeadlineRequest { seconds: after.as_secs() })?;
        self.call("POST /deadline", &body, Repeat::Safe).await.map(drop)
    }

    /// TCP to a port on the sandbox's loopback.
    pub async fn port(&self, port: u16) -> Result<Tunnel, ClientError> {
        let mut request =
            head(&format!("GET /ports/{port}"), &[("upgrade", "tcp"), ("connection", "upgrade")], 2);
        request.extend_from_slice(b"\r\n");
        self.upgrade(&request).await
    }

    /// Parks a connection for a stream that the sandbox opens.
    pub async fn park_accept(&self) -> Result<Parked, ClientError> {
        self.upgrade(&request("POST /accept", &[], b"")).await.map(Parked)
    }

    /// Has the sandbox open a stream on a parked connection and join it with a port on its loopback, as a program
    /// inside would.
    pub async fn open_parked(&self, name: &str, port: u16) -> Result<(), ClientError> {
        let body = to_json(&OpenRequest { name: name.into(), port })?;
        self.call("POST /accept/open", &body, Repeat::Never).await.map(drop)
    }

    async fn upgrade(&self, request: &[u8]) -> Result<Tunnel, ClientError> {
        let exchange = async {
            let mut connection = self.connection().await?;
            connection.send(request).await?;
            let head = connection.head(&self.0.identity, false).await?;
            if head.status == 101 {
                return Ok(Tunnel::new(connection));
            }
            self.judge(head, connection, Beside::Nothing).await?;
            Err(ClientError::Protocol("the connection was not upgraded"))
        };
        tokio::time::timeout(PATIENCE, exchange).await.unwrap_or_else(|_| Err(ClientError::too_late()))
    }
}
