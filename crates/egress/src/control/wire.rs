//! Messages with a length before them, over a Unix stream that also carries descriptors.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;

use cubicle_sys::socket;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::Interest;
use tokio::net::UnixStream;

const LONGEST_MESSAGE: usize = 8 << 20;

pub(super) struct Wire(UnixStream);

impl Wire {
    pub(super) fn new(stream: StdStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        UnixStream::from_std(stream).map(Self)
    }

    /// Sends a message; a descriptor arrives with its first byte.
    pub(super) async fn send(
        &self,
        message: &impl Serialize,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
        let body = serde_json::to_vec(message)?;
        let length = u32::try_from(body.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let bytes = [&length.to_be_bytes()[..], &body].concat();
        let mut rest = &bytes[..];
        let mut descriptor = descriptor;
        while !rest.is_empty() {
            self.0.writable().await?;
            let sent = match descriptor {
                Some(descriptor) => {
                    self.0.try_io(Interest::WRITABLE, || socket::send_with(self.0.as_fd(), rest, descriptor))
                }
                None => self.0.try_write(rest),
            };
            match sent {
                Ok(length) => {
                    rest = &rest[length..];
                    descriptor = None;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The next message with its descriptor; nothing when the other side has closed.
    pub(super) async fn receive<T: DeserializeOwned>(&self) -> io::Result<Option<(T, Option<OwnedFd>)>> {
        let mut length = [0; 4];
        let Some(descriptor) = self.fill(&mut length).await? else { return Ok(None) };
        let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
        if length > LONGEST_MESSAGE {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut body = vec![0; length];
        if length > 0 && self.fill(&mut body).await?.is_none() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // What is wrong with a message is not told: it may hold a secret.
        let message =
            serde_json::from_slice(&body).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
        Ok(Some((message, descriptor)))
    }

    /// Reads no more than asked for, so that a descriptor is never that of the next message. Nothing when the other
    /// side closed before the first byte.
    async fn fill(&self, into: &mut [u8]) -> io::Result<Option<Option<OwnedFd>>> {
        let mut filled = 0;
        let mut descriptor = None;
        while filled < into.len() {
            self.0.readable().await?;
            let rest = &mut into[filled..];
            match self.0.try_io(Interest::READABLE, || socket::receive_with(self.0.as_fd(), rest)) {
                Ok((0, _)) if filled == 0 => return Ok(None),
                Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok((length, found)) => {
                    filled += length;
                    descriptor = descriptor.or(found);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Some(descriptor))
    }
}
