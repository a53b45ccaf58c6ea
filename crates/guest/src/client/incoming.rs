//! Bytes from a sandbox, and what they mean as HTTP. Nothing here does I/O.
//!
//! One buffer holds both what is decoded and what is not yet. A body that comes in chunks is decoded where it lies:
//! only data that continues across a chunk's edge is moved, by the length of that edge.

use std::ops::Range;

use super::error::ClientError;

const LONGEST_HEAD: usize = 16 * 1024;
const MOST_HEADERS: usize = 32;
const LONGEST_CHUNK_LINE: usize = 32;
const LONGEST_TRAILERS: usize = 4096;
const LONGEST_HEADER_VALUE: usize = 256;

/// What a sandbox needs for a short answer. Long ones grow the buffer.
pub(super) const SMALL: usize = 8 * 1024;
const LARGE: usize = 1024 * 1024;

#[derive(Debug)]
pub(super) struct Incoming {
    buffer: Vec<u8>,
    /// Of the body, ready to be used.
    decoded: Range<usize>,
    /// As received, not yet looked at. Never before `decoded`.
    raw: Range<usize>,
    framing: Framing,
    skipped: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Framing {
    /// Between bodies.
    None,
    Length(u64),
    ChunkLine,
    ChunkData(u64),
    ChunkEnd,
    Trailers,
    Done,
}

/// The head of a response, as far as anybody uses it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) status: u16,
    pub(super) close: bool,
    pub(super) etag: Option<String>,
    pub(super) mode: Option<String>,
    pub(super) mtime: Option<String>,
    pub(super) content_range: Option<String>,
    length: Option<u64>,
    chunked: bool,
}

impl Incoming {
    pub(super) fn new() -> Self {
        Self { buffer: Vec::new(), decoded: 0..0, raw: 0..0, framing: Framing::None, skipped: None }
    }

    /// Room for the next read: at least `wanted` bytes, and more when the last read filled what there was.
    pub(super) fn room(&mut self, wanted: usize) -> &mut [u8] {
        let full = !self.buffer.is_empty() && self.raw.end == self.buffer.len();
        if self.decoded.is_empty() && self.raw.is_empty() {
            self.decoded = 0..0;
            self.raw = 0..0;
        }
        if self.buffer.len() - self.raw.end < wanted.max(1) {
            self.compact();
        }
        let used = self.raw.end;
        let mut size = self.buffer.len().max(SMALL);
        if full {
            size = (size * 4).min(LARGE).max(size);
        }
        size = size.max(used + wanted);
        if size > self.buffer.len() {
            self.buffer.resize(size, 0);
        }
        &mut self.buffer[used..]
    }

    /// Takes note of bytes that were read into [`Incoming::room`].
    pub(super) fn received(&mut self, count: usize) {
        self.raw.end += count;
        debug_assert!(self.raw.end <= self.buffer.len());
    }

    /// Gives memory back that only a long answer needed.
    pub(super) fn shrink(&mut self) {
        if self.buffer.len() > SMALL && self.is_idle() {
            *self = Self::new();
        }
    }

    /// Whether nothing is pending: the connection is between two answers.
    pub(super) fn is_idle(&self) -> bool {
        self.decoded.is_empty()
            && self.raw.is_empty()
            && matches!(self.framing, Framing::None | Framing::Done)
    }

    /// One line of the opening, without its newline; none while it is not all there.
    pub(super) fn line(&mut self, longest: usize) -> Result<Option<&[u8]>, ClientError> {
        let raw = &self.buffer[self.raw.clone()];
        match raw.iter().take(longest).position(|byte| *byte == b'\n') {
            Some(end) => {
                let start = self.raw.start;
                self.raw.start += end + 1;
                Ok(Some(&self.buffer[start..start + end]))
            }
            None if raw.len() >= longest => Err(ClientError::Protocol("a line is too long")),
            None => Ok(None),
        }
    }

    /// The head of the next answer; none while it is not all there. What follows is decoded as its body.
    pub(super) fn head(&mut self, without_body: bool) -> Result<Option<Head>, ClientError> {
        let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
        let mut response = httparse::Response::new(&mut headers);
        let raw = &self.buffer[self.raw.clone()];
        let raw = &raw[..raw.len().min(LONGEST_HEAD)];
        let length = match response.parse(raw) {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) if raw.len() < LONGEST_HEAD => return Ok(None),
            Ok(httparse::Status::Partial) => {
                return Err(ClientError::Protocol("the head of an answer is too long"));
            }
            Err(_) => return Err(ClientError::Protocol("the head of an answer is malformed")),
        };
        let status = response.code.unwrap_or(0);
        let mut head = Head { status, ..Head::default() };
        for header in response.headers.iter() {
            head.take(header.name, header.value)?;
        }
        self.raw.start += length;
        self.skipped = None;
        self.decoded = self.raw.start..self.raw.start;
        self.framing = match (head.chunked, head.length) {
            _ if without_body || matches!(head.status, 101 | 204 | 304) => Framing::Done,
            (true, None) => Framing::ChunkLine,
            (false, Some(0)) => Framing::Done,
            (false, Some(length)) => Framing::Length(length),
            (true, Some(_)) => return Err(ClientError::Protocol("an answer has two lengths")),
            (false, None) => return Err(ClientError::Protocol("an answer has no length")),
        };
        Ok(Some(head))
    }

    /// What is decoded of the body and not used yet.
    pub(super) fn data(&self) -> &[u8] {
        &self.buffer[self.decoded.clone()]
    }

    pub(super) fn consume(&mut self, count: usize) {
        self.decoded.start = (self.decoded.start + count).min(self.decoded.end);
    }

    /// Whether the body has ended, though parts of it may not be used yet.
    pub(super) fn is_finished(&self) -> bool {
        self.framing == Framing::Done
    }

    /// Bytes behind the answer, which belong to whatever the connection was upgraded to.
    pub(super) fn take_rest(&mut self) -> Vec<u8> {
        let rest = self.buffer[self.raw.clone()].to_vec();
        *self = Self::new();
        rest
    }

    /// What the trailer of an archive says about entries that were left out.
    pub(super) fn skipped(&self) -> Option<u64> {
        self.skipped
    }

    /// The length of the body that is still to come, where it is known.
    pub(super) fn remaining(&self) -> Option<u64> {
        match self.framing {
            Framing::Length(rest) => Some(rest),
            Framing::Done => Some(0),
            _ => None,
        }
    }

    /// Decodes up to the next edge of a chunk. `false` when more must be received first, or the body has ended.
    pub(super) fn step(&mut self) -> Result<bool, ClientError> {
        match self.framing {
            Framing::None | Framing::Done => Ok(false),
            Framing::Length(rest) => {
                let rest = rest - self.advance(rest);
                self.framing = if rest == 0 { Framing::Done } else { Framing::Length(rest) };
                // Both ways there is nothing more to decode now, but there may be something to use.
                Ok(rest == 0)
            }
            Framing::ChunkData(rest) => {
                let rest = rest - self.advance(rest);
                self.framing = if rest == 0 { Framing::ChunkEnd } else { Framing::ChunkData(rest) };
                Ok(rest == 0)
            }
            Framing::ChunkEnd => match self.buffer[self.raw.clone()] {
                [b'\r', b'\n', ..] => {
                    self.raw.start += 2;
                    self.framing = Framing::ChunkLine;
                    Ok(true)
                }
                [] | [b'\r'] => Ok(false),
                _ => Err(ClientError::Protocol("a chunk does not end where it should")),
            },
            Framing::ChunkLine => self.chunk_line(),
            Framing::Trailers => self.trailer(),
        }
    }

    fn chunk_line(&mut self) -> Result<bool, ClientError> {
        let raw = &self.buffer[self.raw.clone()];
        let Some(end) = raw.iter().take(LONGEST_CHUNK_LINE).position(|byte| *byte == b'\n') else {
            return match raw.len() >= LONGEST_CHUNK_LINE {
                true => Err(ClientError::Protocol("a chunk's length is too long")),
                false => Ok(false),
            };
        };
        let malformed = ClientError::Protocol("a chunk's length is malformed");
        let Some(line) = raw[..end].strip_suffix(b"\r") else { return Err(malformed) };
        let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        if digits == 0 || digits > 15 || !matches!(line.get(digits), None | Some(b';')) {
            return Err(malformed);
        }
        let length = line[..digits]
            .iter()
            .fold(0, |sum: u64, byte| sum << 4 | u64::from(char::from(*byte).to_digit(16).unwrap_or(0)));
        self.raw.start += end + 1;
        self.framing = if length == 0 { Framing::Trailers } else { Framing::ChunkData(length) };
        Ok(true)
    }

    fn trailer(&mut self) -> Result<bool, ClientError> {
        let raw = &self.buffer[self.raw.clone()];
        let Some(end) = raw.iter().take(LONGEST_TRAILERS).position(|byte| *byte == b'\n') else {
            return match raw.len() >= LONGEST_TRAILERS {
                true => Err(ClientError::Protocol("a trailer is too long")),
                false => Ok(false),
            };
        };
        let line = raw[..end].trim_ascii_end();
        if line.is_empty() {
            self.framing = Framing::Done;
        } else if let Some(value) = line.strip_prefix(b"x-cubicle-skipped:") {
            self.skipped = number(value.trim_ascii());
        }
        self.raw.start += end + 1;
        Ok(true)
    }

    /// Moves up to `most` bytes from raw to decoded and says how many.
    fn advance(&mut self, most: u64) -> u64 {
        let count = usize::try_from(most).unwrap_or(usize::MAX).min(self.raw.len());
        if self.decoded.is_empty() {
            self.decoded = self.raw.start..self.raw.start;
        } else if self.decoded.end != self.raw.start {
            self.buffer.copy_within(self.raw.start..self.raw.start + count, self.decoded.end);
        }
        self.decoded.end += count;
        self.raw.start += count;
        count as u64
    }

    fn compact(&mut self) {
        let decoded = self.decoded.len();
        self.buffer.copy_within(self.decoded.clone(), 0);
        self.decoded = 0..decoded;
        let raw = self.raw.len();
        self.buffer.copy_within(self.raw.clone(), decoded);
        self.raw = decoded..decoded + raw;
    }
}

impl Head {
    fn take(&mut self, name: &str, value: &[u8]) -> Result<(), ClientError> {
        let is = |wanted: &str| name.eq_ignore_ascii_case(wanted);
        if is("content-length") {
            let length = number(value).ok_or(ClientError::Protocol("a content-length is malformed"))?;
            if self.length.is_some_and(|before| before != length) {
                return Err(ClientError::Protocol("an answer has two lengths"));
            }
            self.length = Some(length);
        } else if is("transfer-encoding") {
            if !value.eq_ignore_ascii_case(b"chunked") {
                return Err(ClientError::Protocol("a transfer-encoding is not known"));
            }
            self.chunked = true;
        } else if is("connection") {
            self.close = value.eq_ignore_ascii_case(b"close");
        } else if is("etag") {
            self.etag = text(value);
        } else if is("x-cubicle-mode") {
            self.mode = text(value);
        } else if is("x-cubicle-mtime") {
            self.mtime = text(value);
        } else if is("content-range") {
            self.content_range = text(value);
        }
        Ok(())
    }
}

fn number(value: &[u8]) -> Option<u64> {
    let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(value).ok().filter(|_| digits)?.parse().ok()
}

fn text(value: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(value).ok()?;
    let fits = text.len() <= LONGEST_HEADER_VALUE && !text.chars().any(char::is_control);
    fits.then(|| text.to_owned())
}

/// Decodes a whole conversation from bytes, in pieces of the given size, for tests of hostile sandboxes.
#[doc(hidden)]
pub fn decode_for_fuzzing(bytes: &[u8], piece: usize) -> Result<Vec<u8>, ClientError> {
    let mut incoming = Incoming::new();
    let mut pieces = bytes.chunks(piece.max(1));
    let mut body = Vec::new();
    let mut begun = false;
    loop {
        if !begun {
            begun = incoming.head(false)?.is_some();
        }
        while begun && incoming.step()? {}
        body.extend_from_slice(incoming.data());
        incoming.consume(incoming.data().len());
        if begun && incoming.is_finished() {
            return Ok(body);
        }
        let Some(piece) = pieces.next() else { return Err(ClientError::hung_up()) };
        incoming.room(piece.len())[..piece.len()].copy_from_slice(piece);
        incoming.received(piece.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(text: &str) -> Result<String, String> {
        let mut results = Vec::new();
        for piece in [1, 2, 3, 7, 4096] {
            let result = decode_for_fuzzing(text.as_bytes(), piece);
            results
                .push(result.map(|body| String::from_utf8(body).unwrap()).map_err(|error| error.to_string()));
        }
        assert!(results.iter().all(|result| result == &results[0]), "{results:?}");
        results.remove(0)
    }

    #[test]
    fn a_body_is_the_same_however_it_is_cut() {
        let head = "HTTP/1.1 200 OK\r\n";
        let table = [
            ("content-length: 5\r\n\r\nhello", "hello"),
            ("content-length: 0\r\n\r\n", ""),
            ("transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", "hello"),
            (
                "transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n1\r\n \r\nA;x=y\r\n0123456789\r\n0\r\n\r\n",
                "hello 0123456789",
            ),
            ("Transfer-Encoding: Chunked\r\n\r\n0\r\nx-cubicle-skipped: 3\r\n\r\n", ""),
        ];
        for (rest, body) in table {
            assert_eq!(decoded(&format!("{head}{rest}")).as_deref(), Ok(body), "{rest:?}");
        }
    }

    #[test]
    fn what_a_sandbox_must_not_say_is_refused() {
        let table = [
            "HTTP/1.1 200 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\nhello",
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
            "HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffff\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n-1\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\nhello",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhelloworld",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n00000000000000000000000000000000000001\r\n",
            "SSH-2.0-OpenSSH\r\n\r\n",
        ];
        for text in table {
            let result = decoded(text);
            assert!(
                result.as_ref().is_err_and(|error| error.contains("broke the protocol")),
                "{text:?}: {result:?}"
            );
        }
        let endless = format!("HTTP/1.1 200 OK\r\nx: {}", "y".repeat(20_000));
        assert!(decoded(&endless).unwrap_err().contains("too long"));
    }

    #[test]
    fn data_within_a_chunk_is_not_moved() {
        let mut incoming = Incoming::new();
        let text = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n";
        incoming.room(text.len())[..text.len()].copy_from_slice(text);
        incoming.received(text.len());
        incoming.head(false).unwrap().unwrap();
        let at = |incoming: &Incoming| incoming.data().as_ptr() as usize - incoming.buffer.as_ptr() as usize;
        while incoming.data().is_empty() {
            assert!(incoming.step().unwrap());
        }
        assert_eq!((incoming.data(), at(&incoming)), (&b"abc"[..], 50));
        incoming.consume(3);
        while incoming.data().is_empty() {
            assert!(incoming.step().unwrap());
        }
        assert_eq!((incoming.data(), at(&incoming)), (&b"def"[..], 58));
    }

    #[test]
    fn the_buffer_grows_with_the_answer_and_not_beyond() {
        let mut incoming = Incoming::new();
        let head = b"HTTP/1.1 200 OK\r\ncontent-length: 100000000\r\n\r\n";
        incoming.room(head.len())[..head.len()].copy_from_slice(head);
        incoming.received(head.len());
        incoming.head(false).unwrap().unwrap();
        for _ in 0..40 {
            let room = incoming.room(1).len();
            incoming.received(room);
            while incoming.step().unwrap() {}
            let got = incoming.data().len();
            incoming.consume(got);
        }
        assert_eq!(incoming.buffer.len(), LARGE);
    }
}
