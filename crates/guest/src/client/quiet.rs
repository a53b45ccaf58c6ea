//! A socket whose owner sleeps until there is something to read.
//!
//! The runtime's own streams are also told whenever the other side has taken what was sent. For a caller that waits for
//! an answer that is a wake-up for nothing, in the middle of the work that it waits for.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustix::net::{SendFlags, Shutdown, send, shutdown};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};

/// Lets the runtime watch a descriptor for this, and for nothing else. It must not block.
pub fn watch<T: AsRawFd>(descriptor: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    #[expect(deprecated, reason = "what replaces it is unsafe for types that may change their descriptor")]
    AsyncFd::with_interest(descriptor, interest)
}

#[derive(Debug)]
pub(super) struct QuietStream {
    socket: AsyncFd<OwnedFd>,
    /// There from the first time on that the other side did not keep up.
    writable: Option<AsyncFd<OwnedFd>>,
}

impl QuietStream {
    pub(super) fn new(stream: tokio::net::UnixStream) -> io::Result<Self> {
        let socket = watch(stream.into_std()?.into(), Interest::READABLE)?;
        Ok(Self { socket, writable: None })
    }

    /// Reads in a way of its own. It must not block.
    pub(super) async fn read_with<T>(&self, mut read: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        self.socket.async_io(Interest::READABLE, |_| read()).await
    }

    fn writable(&mut self) -> io::Result<&AsyncFd<OwnedFd>> {
        let registered = match self.writable.take() {
            Some(registered) => registered,
            None => watch(self.socket.get_ref().try_clone()?, Interest::WRITABLE)?,
        };
        Ok(self.writable.insert(registered))
    }
}

impl AsFd for QuietStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsyncRead for QuietStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut ready = ready!(self.socket.poll_read_ready(cx))?;
            let room = into.initialize_unfilled();
            match rustix::io::read(self.socket.get_ref(), &mut *room) {
                Ok(count) => {
                    // All that there was: the next read waits without asking first.
                    if 0 < count && count < room.len() {
                        ready.clear_ready();
                    }
                    into.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Err(rustix::io::Errno::AGAIN) => ready.clear_ready(),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }
}

impl AsyncWrite for QuietStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            match send(self.socket.get_ref(), bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(count) => return Poll::Ready(Ok(count)),
                Err(rustix::io::Errno::AGAIN) => {
                    let mut ready = ready!(self.writable()?.poll_write_ready(cx))?;
                    ready.clear_ready();
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(shutdown(self.socket.get_ref(), Shutdown::Write).map_err(io::Error::from))
    }
}
