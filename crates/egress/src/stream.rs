//! The two kinds of streams that come out of a sandbox, and streams of which something was read ahead.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

/// A connection: TCP through a listener of the sandbox's network, or a Unix stream where no descriptor could cross.
#[derive(Debug)]
pub enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    pub(crate) async fn readable(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.readable().await,
            Self::Unix(stream) => stream.readable().await,
        }
    }

    pub(crate) async fn writable(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.writable().await,
            Self::Unix(stream) => stream.writable().await,
        }
    }

    /// Waits until there is something to read, or an end, and leaves it there.
    pub(crate) async fn peek(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.peek(&mut [0]).await.map(drop),
            Self::Unix(stream) => stream.readable().await,
        }
    }

    /// Reads what has come, and says whether that was all of it: then the next wait costs no further try.
    pub(crate) fn try_read_all(&self, into: &mut [u8]) -> io::Result<(usize, bool)> {
        let mut length = 0;
        let most = into.len();
        let mut read = |descriptor: BorrowedFd<'_>| {
            length = rustix::io::read(descriptor, &mut *into)?;
            // A stream that gave less than it was asked for has no more. Saying so makes the runtime wait for the next
            // event, and one that came in the meantime is not lost: it has a newer number.
            if length > 0 && length < most { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
        };
        let outcome = match self {
            Self::Tcp(stream) => stream.try_io(Interest::READABLE, || read(stream.as_fd())),
            Self::Unix(stream) => stream.try_io(Interest::READABLE, || read(stream.as_fd())),
        };
        match outcome {
            Ok(()) => Ok((length, false)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && length > 0 => Ok((length, true)),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_write(bytes),
            Self::Unix(stream) => stream.try_write(bytes),
        }
    }

    /// Says to the other side that nothing more comes.
    pub(crate) fn close_write(&self) -> io::Result<()> {
        let how = rustix::net::Shutdown::Write;
        match self {
            Self::Tcp(stream) => rustix::net::shutdown(stream, how)?,
            Self::Unix(stream) => rustix::net::shutdown(stream, how)?,
        }
        Ok(())
    }

    /// Answers for the last time. What the client still sends is read for a moment, as closing with unread bytes would
    /// tear the answer away from it.
    pub(crate) async fn say_goodbye(mut self, answer: &[u8]) {
        const LINGER: std::time::Duration = std::time::Duration::from_secs(1);
        const MOST: usize = 256 * 1024;
        let _ = tokio::time::timeout(LINGER, async {
            self.write_all(answer).await?;
            self.close_write()?;
            let mut scrap = [0; 1024];
            let mut seen = 0;
            while seen < MOST {
                match self.read(&mut scrap).await? {
                    0 => break,
                    read => seen += read,
                }
            }
            io::Result::Ok(())
        })
        .await;
    }
}

impl From<TcpStream> for Stream {
    fn from(stream: TcpStream) -> Self {
        Self::Tcp(stream)
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, into),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, into),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, bytes),
            Self::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, bytes),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

/// A stream of which the first bytes were read already: they come first again.
#[derive(Debug)]
pub(crate) struct Ahead<S> {
    first: Vec<u8>,
    given: usize,
    rest: S,
}

impl<S> Ahead<S> {
    pub(crate) fn new(first: Vec<u8>, rest: S) -> Self {
        Self { first, given: 0, rest }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Ahead<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.given < self.first.len() {
            let length = into.remaining().min(self.first.len() - self.given);
            into.put_slice(&self.first[self.given..self.given + length]);
            self.given += length;
            if self.given == self.first.len() {
                (self.first, self.given) = (Vec::new(), 0);
            }
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.rest).poll_read(cx, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Ahead<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.rest).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.rest).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.rest.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.rest).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.rest).poll_shutdown(cx)
    }
}

/// A stream whose other side must take what is written to it within a time, or the stream breaks. A client that reads
/// slowly holds memory of the gateway; one that does not read at all must not hold it for ever.
#[derive(Debug)]
pub(crate) struct Patient<S> {
    stream: S,
    patience: std::time::Duration,
    stalled: Option<Pin<Box<tokio::time::Sleep>>>,
}

impl<S> Patient<S> {
    pub(crate) fn new(stream: S, patience: std::time::Duration) -> Self {
        Self { stream, patience, stalled: None }
    }

    fn judge<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let patience = self.patience;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        ready!(stalled.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.judge(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.judge(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.judge(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.judge(cx, shut)
    }
}
