//! One connection: what it waits for, what came in and what has to go out.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::SendFlags;

use super::building::Afterwards;
use super::http::{BodyDecoder, Head};
use super::stream::Stream;
use crate::hello::Nonce;

/// At most this much is read from a connection before what was read is looked at.
const READ_SIZE: usize = 16 * 1024;

#[derive(Debug)]
pub(super) struct Connection {
    fd: OwnedFd,
    pub(super) phase: Phase,
    /// Came in and was not looked at yet.
    pub(super) inbox: Vec<u8>,
    outbox: Vec<u8>,
    sent: usize,
    /// They go with the first byte of the outbox.
    descriptors: Vec<Arc<OwnedFd>>,
    /// Closed as soon as the outbox is empty.
    pub(super) closing: bool,
    /// The other side sends no more.
    pub(super) read_closed: bool,
    /// The other side does not read.
    pub(super) blocked: bool,
    /// What the event loop watches it for now.
    pub(super) watched: EventFlags,
}

#[derive(Debug)]
pub(super) enum Phase {
    /// The host's hello is expected.
    Greeting { nonce: Nonce, hello_due: u64 },
    /// The next request is expected.
    Idle,
    /// The rest of a request's body is expected.
    Body { head: Box<Head>, decoder: BodyDecoder, body: Vec<u8> },
    /// Records go out.
    Streaming(Box<Stream>),
    /// The answer is the state of an exec once it has come that far.
    Awaiting { exec: u32, moment: Moment },
    /// The answer is what came of an execute, once it has come to its exit.
    Executing { exec: u32, keep_alive: bool },
    /// The answer is whether an interpreter is ready, once that is known.
    Warming { environment: Option<String>, keep_alive: bool },
    /// The answer depends on an environment that is being built.
    Building { name: String, afterwards: Box<Afterwards>, keep_alive: bool },
    /// The body goes to an exec's standard input.
    Feeding(Feeding),
    /// Waits to be opened by the guest.
    Parked,
    /// Refused before all of it was read: what still comes is read away, so that the client sees the refusal and not
    /// only that its connection broke.
    Draining { left: usize },
    /// Being looked at. A connection that is left so is closed: nothing is said on one by mistake.
    Moving,
}

/// How far an exec has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Moment {
    Exit,
    Eof,
}

#[derive(Debug)]
pub(super) struct Feeding {
    pub(super) exec: u32,
    pub(super) decoder: BodyDecoder,
    pub(super) received: u64,
    pub(super) close: bool,
    pub(super) keep_alive: bool,
    /// All of it is written when the exec's input has taken that much in total.
    pub(super) goal: u64,
    /// The process does not read as fast as the sender sends.
    pub(super) paused: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    All,
    /// The other side does not read; the rest goes when it does.
    Blocked,
}

/// More than this goes out at once.
const ANSWERED_TOGETHER: usize = 16 * 1024;

impl Connection {
    pub(super) fn new(fd: OwnedFd, phase: Phase, inbox: Vec<u8>) -> Self {
        Self {
            fd,
            phase,
            inbox,
            outbox: Vec::new(),
            sent: 0,
            descriptors: Vec::new(),
            closing: false,
            read_closed: false,
            blocked: false,
            watched: EventFlags::empty(),
        }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The descriptor and what came in behind the current request.
    pub(super) fn into_parts(self) -> (OwnedFd, Vec<u8>) {
        (self.fd, self.inbox)
    }

    pub(super) fn outbox(&mut self) -> &mut Vec<u8> {
        &mut self.outbox
    }

    /// Whether the end of an answer may wait a moment for the next one, so that both go out together and wake their reader
    /// once: little is to be sent, and a question about an exec has come already.
    pub(super) fn may_answer_together(&self) -> bool {
        self.inbox.starts_with(b"GET /exec/") && self.outbox.len() <= ANSWERED_TOGETHER && !self.read_closed
    }

    /// What could not be sent yet, for whoever goes on with the connection.
    pub(super) fn take_outgoing(&mut self) -> Vec<u8> {
        let sent = std::mem::take(&mut self.sent);
        std::mem::take(&mut self.outbox).split_off(sent)
    }

    fn has_outgoing(&self) -> bool {
        self.sent < self.outbox.len()
    }

    /// Whether something waits for the other side to read.
    pub(super) fn wants_output(&self) -> bool {
        let is_held = matches!(&self.phase, Phase::Streaming(stream) if stream.held_until.is_some());
        self.blocked || (self.has_outgoing() && !is_held)
    }

    pub(super) fn send_descriptors_with_next(&mut self, descriptors: Vec<Arc<OwnedFd>>) {
        self.descriptors = descriptors;
    }

    /// Whether more input is of use now.
    pub(super) fn reads(&self) -> bool {
        self.waits_for_input() && !self.closing && !self.read_closed
    }

    /// Whether nothing can happen without more input.
    pub(super) fn waits_for_input(&self) -> bool {
        match self.phase {
            Phase::Greeting { .. } | Phase::Idle | Phase::Body { .. } | Phase::Draining { .. } => true,
            Phase::Feeding(ref feeding) => !feeding.decoder.is_done() && !feeding.paused,
            Phase::Streaming(_)
            | Phase::Awaiting { .. }
            | Phase::Executing { .. }
            | Phase::Warming { .. }
            | Phase::Building { .. }
            | Phase::Parked
            | Phase::Moving => false,
        }
    }

    /// Whether something that happens elsewhere may let it go on.
    pub(super) fn waits_for_news(&self) -> bool {
        matches!(
            self.phase,
            Phase::Streaming(_)
                | Phase::Awaiting { .. }
                | Phase::Executing { .. }
                | Phase::Warming { .. }
                | Phase::Building { .. }
                | Phase::Feeding(_)
        )
    }

    /// Reads what is there, up to a bound. False: nothing more is there now.
    pub(super) fn fill_inbox(&mut self) -> io::Result<bool> {
        let mut buffer = [0; READ_SIZE];
        match rustix::io::read(&self.fd, &mut buffer) {
            Ok(0) => {
                self.read_closed = true;
                Ok(true)
            }
            Ok(read) => {
                self.inbox.extend_from_slice(&buffer[..read]);
                Ok(read == READ_SIZE)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn use_up(&mut self, len: usize) {
        if len == self.inbox.len() {
            // An idle connection keeps no memory.
            self.inbox = Vec::new();
        } else {
            self.inbox.drain(..len);
        }
    }

    pub(super) fn flush(&mut self) -> io::Result<Sent> {
        while self.has_outgoing() {
            let rest = &self.outbox[self.sent..];
            let sent = if self.descriptors.is_empty() {
                rustix::net::send(&self.fd, rest, SendFlags::NOSIGNAL).map_err(Into::into)
            } else {
                let beside: Vec<BorrowedFd<'_>> = self.descriptors.iter().map(|fd| fd.as_fd()).collect();
                cubicle_sys::socket::send_with_all(self.fd.as_fd(), rest, &beside)
            };
            match sent {
                Ok(sent) => {
                    self.sent += sent;
                    self.descriptors = Vec::new();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Sent::Blocked),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.outbox.clear();
        self.outbox.shrink_to(4096);
        self.sent = 0;
        Ok(Sent::All)
    }
}
