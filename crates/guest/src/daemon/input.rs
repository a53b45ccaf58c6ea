//! What goes to an exec's standard input, without ever waiting for the process to read it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

/// More than this is not taken from a sender before the process has read some of it.
pub(super) const MOST_PENDING: usize = 1024 * 1024;

/// Typed at a terminal, it ends the input.
const END_OF_TRANSMISSION: u8 = 4;

#[derive(Debug)]
pub(super) struct Input {
    fd: Option<OwnedFd>,
    is_terminal: bool,
    pending: Vec<u8>,
    start: usize,
    queued: u64,
    written: u64,
    close_when_written: bool,
    /// Whether the event loop watches it.
    pub(super) watched: bool,
}

impl Input {
    pub(super) fn none() -> Self {
        Self::new(None, false)
    }

    pub(super) fn pipe(fd: OwnedFd) -> Self {
        Self::new(Some(fd), false)
    }

    pub(super) fn terminal(fd: OwnedFd) -> Self {
        Self::new(Some(fd), true)
    }

    fn new(fd: Option<OwnedFd>, is_terminal: bool) -> Self {
        Self {
            fd,
            is_terminal,
            pending: Vec::new(),
            start: 0,
            queued: 0,
            written: 0,
            close_when_written: false,
            watched: false,
        }
    }

    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }

    /// Whether it takes more bytes at all.
    pub(super) fn is_open(&self) -> bool {
        self.fd.is_some() && !self.close_when_written
    }

    /// Whether all bytes up to this count were written. What was closed before takes none any more.
    pub(super) fn has_written(&self, count: u64) -> bool {
        self.written >= count
    }

    pub(super) fn is_broken(&self) -> bool {
        self.fd.is_none()
    }

    pub(super) fn room(&self) -> usize {
        MOST_PENDING.saturating_sub(self.pending.len() - self.start)
    }

    pub(super) fn queued(&self) -> u64 {
        self.queued
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
        self.queued += bytes.len() as u64;
    }

    pub(super) fn close(&mut self) {
        if self.is_terminal {
            // The terminal itself stays open for what is printed.
            self.push(&[END_OF_TRANSMISSION]);
        } else {
            self.close_when_written = true;
        }
    }

    /// Writes what the process takes. True: some is left, and it must be watched.
    pub(super) fn write(&mut self) -> bool {
        let Some(fd) = &self.fd else { return false };
        while self.start < self.pending.len() {
            match rustix::io::write(fd, &self.pending[self.start..]) {
                Ok(written) => {
                    self.start += written;
                    self.written += written as u64;
                }
                Err(Errno::AGAIN) => {
                    self.pending.drain(..self.start);
                    self.start = 0;
                    return true;
                }
                Err(Errno::INTR) => {}
                // Nobody reads any more. That is the process's right, and no failure of the exec.
                Err(_) => {
                    self.drop_all();
                    return false;
                }
            }
        }
        self.pending = Vec::new();
        self.start = 0;
        if self.close_when_written {
            self.fd = None;
        }
        false
    }

    fn drop_all(&mut self) {
        self.fd = None;
        self.pending = Vec::new();
        self.start = 0;
    }
}
