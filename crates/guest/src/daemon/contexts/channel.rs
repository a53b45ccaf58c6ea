//! The socket between the daemon and the interpreter of a context.
//!
//! To the interpreter go lines with a length, each followed by that many bytes: `kernel LEN`, `cell COUNT LEN STALE` and, with
//! nothing behind it, `ack N`. Back come lines with only a length, each followed by an event as JSON. What comes back is
//! hostile: user code shares the process with whoever writes there.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
use serde::Deserialize;
use serde_json::Value;

use crate::wire::context::LONGEST_EVENT;

/// Read at once, before others get their turn.
const READ_SIZE: usize = 64 * 1024;
const READS_AT_ONCE: usize = 16;
const MOST_DIGITS: usize = 8;

#[derive(Debug)]
pub(super) struct Channel {
    fd: OwnedFd,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    sent: usize,
    /// Whether the event loop watches for room to write.
    pub(super) waits_for_room: bool,
}

/// What an interpreter says.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(super) enum Told {
    /// It listens for cells, and an interrupt reaches a cell and nothing else.
    Ready,
    Result {
        data: BTreeMap<String, Value>,
    },
    Display {
        data: BTreeMap<String, Value>,
        /// It goes on only when it hears that number again: what it prints next stands behind this event then.
        #[serde(default)]
        ack: Option<u64>,
    },
    Error {
        name: String,
        value: String,
        traceback: Vec<String>,
    },
    End {
        status: ToldStatus,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ToldStatus {
    Success,
    Error,
    Interrupted,
}

#[derive(Debug, PartialEq)]
pub(super) struct Received {
    pub(super) told: Vec<Told>,
    /// Nothing more will come.
    pub(super) hung_up: bool,
    /// What came behind `told` is none of ours, and nothing behind it can be understood.
    pub(super) malformed: Option<&'static str>,
}

impl Channel {
    /// A channel and the end of it that an interpreter gets.
    pub(super) fn new() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        let channel =
            Self { fd: ours, inbox: Vec::new(), outbox: Vec::new(), sent: 0, waits_for_room: false };
        Ok((channel, theirs))
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(super) fn push(&mut self, line: &str, bytes: &[u8]) {
        self.outbox.extend_from_slice(line.as_bytes());
        self.outbox.push(b'\n');
        self.outbox.extend_from_slice(bytes);
    }

    /// Sends what the interpreter takes. True: some is left. An interpreter that is gone is noticed elsewhere.
    pub(super) fn flush(&mut self) -> bool {
        while self.sent < self.outbox.len() {
            match rustix::net::send(&self.fd, &self.outbox[self.sent..], SendFlags::NOSIGNAL) {
                Ok(sent) => self.sent += sent,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return true,
                Err(_) => break,
            }
        }
        self.outbox = Vec::new();
        self.sent = 0;
        false
    }

    /// Takes in what is there, up to a bound.
    pub(super) fn receive(&mut self) -> Received {
        let mut received = Received { told: Vec::new(), hung_up: false, malformed: None };
        let mut buffer = [0; READ_SIZE];
        for _ in 0..READS_AT_ONCE {
            match rustix::io::read(&self.fd, &mut buffer) {
                Ok(0) => received.hung_up = true,
                Ok(read) => {
                    self.inbox.extend_from_slice(&buffer[..read]);
                    if read == READ_SIZE {
                        continue;
                    }
                }
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => {}
                Err(_) => received.hung_up = true,
            }
            break;
        }
        let mut used = 0;
        loop {
            match event(&self.inbox[used..]) {
                Ok(Some((told, len))) => {
                    received.told.push(told);
                    used += len;
                }
                Ok(None) => break,
                Err(why) => {
                    received.malformed = Some(why);
                    break;
                }
            }
        }
        if used == self.inbox.len() {
            self.inbox = Vec::new();
        } else {
            self.inbox.drain(..used);
        }
        received
    }
}

/// Reads one event from the front of `bytes` and says how long it is. `None`: not all of it is there yet.
fn event(bytes: &[u8]) -> Result<Option<(Told, usize)>, &'static str> {
    let Some(end) = bytes.iter().take(MOST_DIGITS + 1).position(|byte| *byte == b'\n') else {
        let is_length = bytes.len() <= MOST_DIGITS && bytes.iter().all(u8::is_ascii_digit);
        return if is_length { Ok(None) } else { Err("a message without a length") };
    };
    let digits = std::str::from_utf8(&bytes[..end]).ok().filter(|digits| !digits.starts_with('+'));
    let length: usize = digits.and_then(|digits| digits.parse().ok()).ok_or("a message without a length")?;
    if length > LONGEST_EVENT {
        return Err("a message that is too long");
    }
    let Some(json) = bytes.get(end + 1..end + 1 + length) else { return Ok(None) };
    let told = serde_json::from_slice(json).map_err(|_| "a message that is no event")?;
    Ok(Some((told, end + 1 + length)))
}

/// The length of the event at the front of `bytes`, for the fuzzer.
pub fn decode_context_event(bytes: &[u8]) -> Result<Option<usize>, &'static str> {
    Ok(event(bytes)?.map(|(_, length)| length))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn framed(json: &str) -> Vec<u8> {
        format!("{}\n{json}", json.len()).into_bytes()
    }

    #[test]
    fn an_event_is_read_only_when_it_is_complete() {
        let whole = framed(r#"{"event":"end","status":"success"}"#);
        for len in 0..whole.len() {
            assert_eq!(event(&whole[..len]), Ok(None), "cut at {len}");
        }
        let expected = (Told::End { status: ToldStatus::Success }, whole.len());
        assert_eq!(event(&[&whole[..], b"12"].concat()), Ok(Some(expected)));
    }

    #[test]
    fn what_is_no_event_is_malformed() {
        let table: &[(&[u8], &str)] = &[
            (b"hello", "without a length"),
            (b"\n", "without a length"),
            (b"+5\n", "without a length"),
            (b"123456789", "without a length"),
            (b"99999999\n", "too long"),
            (b"2\n{}", "no event"),
            (b"3\nabc", "no event"),
            (b"15\n{\"event\":\"bad\"}", "no event"),
            (b"2\n\xff\xff", "no event"),
        ];
        for (bytes, expected) in table {
            let why = event(bytes).unwrap_err();
            assert!(why.contains(expected), "{:?}: {why}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn events_that_came_before_a_malformed_one_are_heard() {
        let (mut channel, theirs) = Channel::new().unwrap();
        let bytes = [framed(r#"{"event":"ready"}"#), b"rubbish".to_vec()].concat();
        rustix::io::write(&theirs, &bytes).unwrap();
        let received = channel.receive();
        assert_eq!(received.told, [Told::Ready]);
        assert_eq!((received.malformed, received.hung_up), (Some("a message without a length"), false));
        drop(theirs);
        assert!(channel.receive().hung_up);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = event(&bytes);
        }
    }
}
