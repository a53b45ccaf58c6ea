//! Pipes through which the kernel moves bytes from one connection to another without copying them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use tokio::io::Interest;
use tokio::net::TcpStream;

/// This many are used at the same time; who finds none copies.
const MOST: usize = 32;
/// What a pipe holds. An unprivileged user may have many of this size before the kernel makes them small.
const SIZE: usize = 1 << 20;
/// What is moved at once. Pages of a connection may be larger than those the size is counted in.
const PIECE: usize = 4 << 20;

/// Pipes that are lent while much is moved.
#[derive(Debug, Default)]
pub(super) struct Pipes {
    idle: Mutex<Vec<Pipe>>,
    lent: Mutex<usize>,
}

/// An empty pipe.
#[derive(Debug)]
struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
}

impl Pipe {
    fn make() -> io::Result<Self> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // One of the usual size is slower, and no reason to do without.
        let _ = fcntl_setpipe_size(&write, SIZE);
        Ok(Self { read, write })
    }
}

impl Pipes {
    /// A pipe, when one is left and descriptors are too.
    pub(super) fn borrow(&self) -> Option<Lent<'_>> {
        let mut lent = self.lent.lock().unwrap_or_else(PoisonError::into_inner);
        if *lent >= MOST {
            return None;
        }
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let pipe = match idle {
            Some(pipe) => pipe,
            None => Pipe::make().ok()?,
        };
        *lent += 1;
        Some(Lent { pipes: self, pipe: Some(pipe), held: 0 })
    }
}

/// A pipe that goes back when it is empty, also when the work that uses it is dropped.
#[derive(Debug)]
pub(super) struct Lent<'a> {
    pipes: &'a Pipes,
    pipe: Option<Pipe>,
    held: usize,
}

impl Lent<'_> {
    /// Takes what has come, into the empty pipe; nothing at the end of the stream.
    pub(super) fn fill(&mut self, from: &TcpStream) -> io::Result<usize> {
        let Some(pipe) = &self.pipe else { return Err(io::ErrorKind::BrokenPipe.into()) };
        let moved = from.try_io(Interest::READABLE, || moved(from.as_fd(), pipe.write.as_fd(), PIECE))?;
        self.held += moved;
        Ok(moved)
    }

    /// Gives on what the other side takes now, and says how much is left.
    pub(super) fn empty(&mut self, to: &TcpStream) -> io::Result<usize> {
        let Some(pipe) = &self.pipe else { return Err(io::ErrorKind::BrokenPipe.into()) };
        let held = self.held;
        let moved = to.try_io(Interest::WRITABLE, || moved(pipe.read.as_fd(), to.as_fd(), held))?;
        self.held -= moved.min(self.held);
        Ok(self.held)
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        *self.pipes.lent.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        // One that still holds something of this connection must not be another's.
        if let Some(pipe) = self.pipe.take().filter(|_| self.held == 0) {
            self.pipes.idle.lock().unwrap_or_else(PoisonError::into_inner).push(pipe);
        }
    }
}

fn moved(
    from: std::os::fd::BorrowedFd<'_>,
    to: std::os::fd::BorrowedFd<'_>,
    most: usize,
) -> io::Result<usize> {
    loop {
        match splice(from, None, to, None, most, SpliceFlags::MOVE | SpliceFlags::NONBLOCK) {
            Err(Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_that_still_holds_bytes_is_not_lent_again() {
        let pipes = Pipes::default();
        let mut lent = pipes.borrow().unwrap();
        lent.held = 1;
        drop(lent);
        assert_eq!(pipes.idle.lock().unwrap().len(), 0);
        drop(pipes.borrow().unwrap());
        assert_eq!(pipes.idle.lock().unwrap().len(), 1);
        let lent: Vec<_> = (0..MOST).map(|_| pipes.borrow().unwrap()).collect();
        assert!(pipes.borrow().is_none());
        drop(lent);
        assert_eq!((pipes.idle.lock().unwrap().len(), *pipes.lent.lock().unwrap()), (MOST, 0));
    }
}
