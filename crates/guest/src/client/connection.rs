//! One authenticated connection to a sandbox.

use std::future::Future;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;

use cubicle_model::SandboxId;
use cubicle_sys::socket;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::error::ClientError;
use super::incoming::{Head, Incoming};
use super::quiet::QuietStream;
use crate::hello::{self, Key, Nonce};

/// Opens byte streams to one sandbox. May be called often.
pub trait Connect: Send + Sync {
    fn connect(&self) -> Pin<Box<dyn Future<Output = io::Result<UnixStream>> + Send + '_>>;
}

impl<F, Opening> Connect for F
where
    F: Fn() -> Opening + Send + Sync,
    Opening: Future<Output = io::Result<UnixStream>> + Send + 'static,
{
    fn connect(&self) -> Pin<Box<dyn Future<Output = io::Result<UnixStream>> + Send + '_>> {
        Box::pin(self())
    }
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: QuietStream,
    pub(super) incoming: Incoming,
    opening: Opening,
    /// What came beside the bytes, while it is wanted. A plain read throws it away.
    pub(super) descriptors: Option<Vec<OwnedFd>>,
    /// Whether an earlier request was answered on it.
    pub(super) used_before: bool,
}

/// How far the opening is. Our line goes out with the first request, which saves a round trip.
#[derive(Debug)]
enum Opening {
    ToSend { line: Vec<u8>, server: Nonce, client: Nonce },
    Sent { server: Nonce, client: Nonce },
    Done,
}

/// Who is on both ends.
#[derive(Debug)]
pub(super) struct Identity {
    pub(super) sandbox: SandboxId,
    pub(super) key: Key,
}

impl Connection {
    /// Waits for the sandbox's first line.
    pub(super) async fn open(
        stream: UnixStream,
        identity: &Identity,
        client: Nonce,
    ) -> Result<Self, ClientError> {
        let stream = QuietStream::new(stream).map_err(ClientError::Unavailable)?;
        let mut connection = Self {
            stream,
            incoming: Incoming::new(),
            opening: Opening::Done,
            descriptors: None,
            used_before: false,
        };
        let greeting = connection.line(hello::parse_server_hello).await?;
        let line = hello::introduce(&greeting, identity.sandbox, &identity.key, client)?;
        connection.opening = Opening::ToSend { line: hello::line(&line), server: greeting.nonce, client };
        Ok(connection)
    }

    /// Sends a request, and our part of the opening before it when that is still to be sent.
    ///
    /// A sandbox that refuses a request may stop reading before all of it was sent. That is no failure here: its
    /// answer says more than the broken pipe, and when there is none, reading it fails.
    pub(super) async fn send(&mut self, request: &[u8]) -> Result<(), ClientError> {
        let opening = std::mem::replace(&mut self.opening, Opening::Done);
        let sent = match opening {
            Opening::ToSend { mut line, server, client } => {
                self.opening = Opening::Sent { server, client };
                line.extend_from_slice(request);
                self.stream.write_all(&line).await
            }
            other => {
                self.opening = other;
                self.stream.write_all(request).await
            }
        };
        match sent {
            Err(error) if is_closed(&error) => Ok(()),
            result => result.map_err(ClientError::Unavailable),
        }
    }

    /// Reads the head of the answer; checks the sandbox's proof before it, when that is still to come.
    pub(super) async fn head(
        &mut self,
        identity: &Identity,
        without_body: bool,
    ) -> Result<Head, ClientError> {
        self.check_proof(identity).await?;
        loop {
            if let Some(head) = self.incoming.head(without_body)? {
                return Ok(head);
            }
            self.receive(1).await?;
        }
    }

    async fn check_proof(&mut self, identity: &Identity) -> Result<(), ClientError> {
        let Opening::Sent { server, client } = self.opening else { return Ok(()) };
        let answer = self.line(hello::parse_server_answer).await?;
        hello::accept(answer, identity.sandbox, &identity.key, server, client)?;
        self.opening = Opening::Done;
        Ok(())
    }

    async fn line<T>(&mut self, parse: fn(&[u8]) -> Result<T, hello::HelloError>) -> Result<T, ClientError> {
        loop {
            if let Some(line) = self.incoming.line(hello::LONGEST_LINE)? {
                return Ok(parse(line)?);
            }
            self.receive(1).await?;
        }
    }

    /// Receives something, with room for at least `wanted` bytes. Hanging up is a failure.
    pub(super) async fn receive(&mut self, wanted: usize) -> Result<(), ClientError> {
        let Self { stream, incoming, descriptors, .. } = self;
        let room = incoming.room(wanted);
        let received = match descriptors {
            None => stream.read(room).await,
            Some(descriptors) => {
                let receive = || socket::receive_with_all(stream.as_fd(), room, descriptors);
                stream.read_with(receive).await
            }
        };
        match received {
            Ok(0) => Err(ClientError::hung_up()),
            Ok(count) => {
                incoming.received(count);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                Err(ClientError::Protocol("more descriptors came than are taken"))
            }
            Err(error) => Err(ClientError::Unavailable(error)),
        }
    }

    /// Whether the other side hung up, or said something that nobody asked for. Asks the kernel: the runtime may not
    /// have heard of it yet.
    pub(super) fn is_dead(&self) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(self.stream.as_fd(), PollFlags::IN | PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        !matches!(poll(&mut fds, Some(&now)), Ok(0))
    }
}

pub(super) fn is_closed(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}
