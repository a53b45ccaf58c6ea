//! Delivering records: a cursor in the journal for each reader, so that a slow one costs nothing.

use std::io;
use std::os::fd::BorrowedFd;

use cubicle_sys::clock;
use rustix::io::Errno;

use super::connection::{Connection, Moment, Sent};
use super::http::{self, Head};
use super::render;
use crate::journal::Journal;
use crate::wire;

/// Shorter runs are copied through memory with their framing in one send, longer ones go from file to socket.
const COPIED: u64 = 32 * 1024;
/// So much of the journal is turned into text at a time; a whole record always fits.
const RENDERED: u64 = 64 * 1024;
const SENT_AT_ONCE: usize = 1024 * 1024;

#[derive(Debug)]
pub(super) struct Stream {
    offset: u64,
    pub(super) exec: Option<u32>,
    format: Format,
    pub(super) until: Until,
    /// Bytes of an announced chunk that still go from file to socket.
    chunk_left: u64,
    keep_alive: bool,
    /// Nothing goes out before this moment, unless the stream has come to its end by then.
    pub(super) held_until: Option<u64>,
    /// The exit code goes behind the last record, as a line of its own.
    exit_line: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Binary,
    Events,
    Lines,
}

/// Where a stream ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Until {
    /// When its exec has come that far.
    Exec(Moment),
    /// When the cell that began with this record has ended. Its end is an offset then.
    Cell(u64),
    /// At this offset.
    Offset(u64),
    /// When the reader leaves.
    Never,
}

/// How far a stream's exec has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct End {
    pub(super) offset: u64,
    pub(super) exit_line: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pumped {
    /// Everything that is there went out.
    Waiting,
    /// The reader is slow.
    Blocked,
    /// There is more to do at once, but others get their turn first.
    More,
    /// The stream is over; whether the connection can carry another request.
    Finished { keep_alive: bool },
}

impl Format {
    pub(super) fn wanted(head: &Head) -> Self {
        if head.accepts(wire::JOURNAL) {
            Self::Binary
        } else if head.accepts(wire::EVENT_STREAM) {
            Self::Events
        } else {
            Self::Lines
        }
    }

    pub(super) fn media(self) -> &'static str {
        match self {
            Self::Binary => wire::JOURNAL,
            Self::Events => wire::EVENT_STREAM,
            Self::Lines => wire::NDJSON,
        }
    }
}

impl Stream {
    pub(super) fn new(
        offset: u64,
        exec: Option<u32>,
        format: Format,
        until: Until,
        keep_alive: bool,
    ) -> Self {
        Self { offset, exec, format, until, chunk_left: 0, keep_alive, held_until: None, exit_line: None }
    }

    /// Sends what is there. `end` is where the stream ends, when that is known already.
    pub(super) fn pump(
        &mut self,
        connection: &mut Connection,
        journal: &Journal,
        end: Option<&End>,
    ) -> io::Result<Pumped> {
        let is_over = end.is_some() || matches!(self.until, Until::Offset(_));
        if self.held_until.is_some_and(|due| !is_over && clock::boot_nanos() < due) {
            return Ok(Pumped::Waiting);
        }
        self.held_until = None;
        let stop = match self.until {
            Until::Offset(offset) => Some(offset),
            Until::Exec(_) => end.map(|end| end.offset),
            Until::Cell(_) | Until::Never => None,
        };
        let mut budget = SENT_AT_ONCE as u64;
        loop {
            if self.chunk_left > 0 {
                if connection.flush()? == Sent::Blocked {
                    return Ok(Pumped::Blocked);
                }
                match self.send_from_file(connection.fd(), journal)? {
                    None => return Ok(Pumped::Blocked),
                    Some(sent) => budget = budget.saturating_sub(sent),
                }
                if self.chunk_left == 0 {
                    connection.outbox().extend_from_slice(http::CHUNK_END);
                }
            }
            if budget == 0 || (self.chunk_left == 0 && connection.outbox().len() as u64 > RENDERED) {
                let sent = connection.flush()?;
                return Ok(if sent == Sent::Blocked { Pumped::Blocked } else { Pumped::More });
            }
            if self.chunk_left > 0 {
                continue;
            }
            let until = stop.unwrap_or(u64::MAX).min(journal.end());
            let run =
                if self.offset < until { Some(journal.next_run(self.offset, self.exec)?) } else { None };
            match run {
                Some(run) if run.len > 0 && run.offset < until => {
                    self.offset = run.offset;
                    self.add(connection.outbox(), journal, run.len.min(until - run.offset))?;
                }
                // A long stretch of other execs' records was skipped.
                Some(run) if run.offset < until => {
                    self.offset = run.offset;
                    budget = 0;
                }
                Some(_) | None if stop.is_some_and(|stop| stop <= until) => {
                    if let (Format::Lines, Some(end)) = (self.format, end) {
                        self.exit_line = Some(end.exit_line.clone());
                    }
                    return self.finish(connection);
                }
                Some(_) | None => {
                    self.offset = self.offset.max(until);
                    let sent = connection.flush()?;
                    return Ok(if sent == Sent::Blocked { Pumped::Blocked } else { Pumped::Waiting });
                }
            }
        }
    }

    fn finish(&mut self, connection: &mut Connection) -> io::Result<Pumped> {
        if let Some(line) = self.exit_line.take() {
            http::write_chunk_line(connection.outbox(), line.len() as u64);
            connection.outbox().extend_from_slice(line.as_bytes());
            connection.outbox().extend_from_slice(http::CHUNK_END);
        }
        connection.outbox().extend_from_slice(http::LAST_CHUNK);
        if !connection.may_answer_together() {
            // What the socket does not take now goes out by itself.
            connection.flush()?;
        }
        Ok(Pumped::Finished { keep_alive: self.keep_alive })
    }

    /// Adds a run of whole records to what goes out, or announces it.
    fn add(&mut self, outbox: &mut Vec<u8>, journal: &Journal, len: u64) -> io::Result<()> {
        match self.format {
            Format::Binary if len > COPIED => {
                http::write_chunk_line(outbox, len);
                self.chunk_left = len;
            }
            Format::Binary => {
                http::write_chunk_line(outbox, len);
                let start = outbox.len();
                outbox.resize(start + len as usize, 0);
                journal.read(&mut outbox[start..], self.offset)?;
                outbox.extend_from_slice(http::CHUNK_END);
                self.offset += len;
            }
            Format::Events | Format::Lines => {
                let mut text = Vec::new();
                let used =
                    render::records(journal, self.offset, len, RENDERED, |record| match self.format {
                        Format::Events => render::event(&mut text, record),
                        Format::Lines | Format::Binary => render::line(&mut text, record),
                    })?;
                self.offset += used;
                if !text.is_empty() {
                    http::write_chunk_line(outbox, text.len() as u64);
                    outbox.extend_from_slice(&text);
                    outbox.extend_from_slice(http::CHUNK_END);
                }
            }
        }
        Ok(())
    }

    /// `None`: the socket is full.
    fn send_from_file(&mut self, socket: BorrowedFd<'_>, journal: &Journal) -> io::Result<Option<u64>> {
        let most = usize::try_from(self.chunk_left).unwrap_or(usize::MAX).min(SENT_AT_ONCE);
        match rustix::fs::sendfile(socket, journal.file(), Some(&mut self.offset), most) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(sent) => {
                self.chunk_left -= sent as u64;
                Ok(Some(sent as u64))
            }
            Err(Errno::AGAIN) => Ok(None),
            Err(Errno::INTR) => Ok(Some(0)),
            Err(error) => Err(error.into()),
        }
    }
}
