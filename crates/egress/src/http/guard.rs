//! Reads the framing of every request a second time. The HTTP library repairs what can be repaired, as when a request
//! has both a length and chunks; here such a request is refused, as somebody else may have read it differently.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

const MOST_HEADERS: usize = 256;
const LONGEST_CHUNK_LINE: usize = 256;
const LONGEST_TRAILERS: usize = 8 * 1024;

/// Why no request of a connection is served any more.
#[derive(Debug, Default)]
pub(super) struct Suspicion {
    reason: OnceLock<&'static str>,
    left: AtomicBool,
}

impl Suspicion {
    pub(super) fn reason(&self) -> Option<&'static str> {
        self.reason.get().copied()
    }

    /// From here on the connection carries no requests, and there is no framing to follow.
    pub(super) fn leave(&self) {
        self.left.store(true, Relaxed);
    }
}

/// A stream whose bytes are looked at as they are read.
#[derive(Debug)]
pub(super) struct Guard<S> {
    stream: S,
    suspicion: Arc<Suspicion>,
    framing: Framing,
}

impl<S> Guard<S> {
    pub(super) fn new(stream: S, suspicion: Arc<Suspicion>, longest_head: usize) -> Self {
        Self { stream, suspicion, framing: Framing { longest_head, state: State::Head, seen: Vec::new() } }
    }
}

#[derive(Debug)]
struct Framing {
    longest_head: usize,
    state: State,
    /// Of the head, a line of the chunks, or the trailers.
    seen: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Head,
    Body(u64),
    ChunkLine,
    Chunk(u64),
    /// The end of line behind a chunk.
    ChunkEnd,
    Trailers,
    /// Nothing that follows is looked at: the library refuses it, or we do.
    Off,
}

impl Framing {
    fn read(&mut self, mut bytes: &[u8]) -> Result<(), &'static str> {
        while !bytes.is_empty() {
            bytes = match self.state {
                State::Off => return Ok(()),
                State::Head => self.head(bytes)?,
                State::Body(left) => self.skip(bytes, left, State::Body, State::Head),
                State::Chunk(left) => self.skip(bytes, left, State::Chunk, State::ChunkEnd),
                State::ChunkLine => match self.line(bytes, LONGEST_CHUNK_LINE)? {
                    (None, rest) => rest,
                    (Some(line), rest) => {
                        let size = chunk_size(&line).ok_or("a chunk has no clear size")?;
                        self.state = if size == 0 { State::Trailers } else { State::Chunk(size) };
                        rest
                    }
                },
                State::ChunkEnd => match self.line(bytes, 2)? {
                    (Some(line), _) if !line.is_empty() => return Err("a chunk is longer than its size"),
                    (Some(_), rest) => {
                        self.state = State::ChunkLine;
                        rest
                    }
                    (None, rest) => rest,
                },
                State::Trailers => match self.line(bytes, LONGEST_TRAILERS)? {
                    (Some(line), rest) => {
                        if line.is_empty() {
                            self.state = State::Head;
                        }
                        rest
                    }
                    (None, rest) => rest,
                },
            };
        }
        Ok(())
    }

    fn skip<'a>(&mut self, bytes: &'a [u8], left: u64, more: fn(u64) -> State, then: State) -> &'a [u8] {
        let length = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
        let left = left - length as u64;
        self.state = if left == 0 { then } else { more(left) };
        &bytes[length..]
    }

    /// A line without its end, when it is complete, and what follows.
    fn line<'a>(
        &mut self,
        bytes: &'a [u8],
        longest: usize,
    ) -> Result<(Option<Vec<u8>>, &'a [u8]), &'static str> {
        let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
            self.seen.extend_from_slice(bytes);
            return if self.seen.len() > longest {
                Err("a line of the chunks is too long")
            } else {
                Ok((None, &[]))
            };
        };
        self.seen.extend_from_slice(&bytes[..end]);
        let mut line = std::mem::take(&mut self.seen);
        if line.pop() != Some(b'\r') {
            return Err("a line ends with a line feed alone");
        }
        if line.len() > longest {
            Err("a line of the chunks is too long")
        } else {
            Ok((Some(line), &bytes[end + 1..]))
        }
    }

    fn head<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], &'static str> {
        let before = self.seen.len();
        self.seen.extend_from_slice(bytes);
        if self.seen.len() > self.longest_head + bytes.len() {
            // The library refuses a head of this length.
            self.state = State::Off;
            return Ok(&[]);
        }
        // Between requests an end of line too many is allowed.
        let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
        let mut request = httparse::Request::new(&mut headers);
        let length = match request.parse(&self.seen) {
            Ok(httparse::Status::Partial) => return Ok(&[]),
            Ok(httparse::Status::Complete(length)) => length,
            Err(_) => {
                // The library refuses it too.
                self.state = State::Off;
                return Ok(&[]);
            }
        };
        self.state = framing(&request)?;
        let head = &self.seen[..length];
        let bare =
            head.iter().enumerate().any(|(at, byte)| *byte == b'\n' && (at == 0 || head[at - 1] != b'\r'));
        if bare {
            return Err("a line ends with a line feed alone");
        }
        self.seen = Vec::new();
        Ok(&bytes[length - before..])
    }
}

/// What follows the head. Whatever could be read in two ways is refused.
fn framing(request: &httparse::Request<'_, '_>) -> Result<State, &'static str> {
    let mut length = None;
    let mut chunked = false;
    for header in request.headers.iter() {
        if header.name.eq_ignore_ascii_case("content-length") {
            if length.is_some() {
                return Err("it has several lengths");
            }
            let digits = !header.value.is_empty() && header.value.iter().all(u8::is_ascii_digit);
            let number = std::str::from_utf8(header.value).ok().and_then(|text| text.parse::<u64>().ok());
            length = Some(number.filter(|_| digits).ok_or("its length is not a number")?);
        }
        if header.name.eq_ignore_ascii_case("transfer-encoding") {
            if chunked || !header.value.eq_ignore_ascii_case(b"chunked") {
                return Err("its transfer encoding is not 'chunked' alone");
            }
            chunked = true;
        }
    }
    if request.method == Some("CONNECT") {
        return Ok(State::Off);
    }
    match (length, chunked) {
        (Some(_), true) => Err("it has both a length and chunks"),
        (None, true) => Ok(State::ChunkLine),
        (Some(length), false) if length > 0 => Ok(State::Body(length)),
        _ => Ok(State::Head),
    }
}

/// The size at the beginning of a chunk's line; extensions behind it are ignored.
fn chunk_size(line: &[u8]) -> Option<u64> {
    let end = line.iter().position(|byte| !byte.is_ascii_hexdigit()).unwrap_or(line.len());
    let (digits, rest) = line.split_at(end);
    let good = (1..=15).contains(&digits.len()) && matches!(rest, [] | [b';', ..]);
    let text = std::str::from_utf8(digits).ok().filter(|_| good)?;
    u64::from_str_radix(text, 16).ok()
}

impl<S: AsyncRead + Unpin> AsyncRead for Guard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, into))?;
        if self.suspicion.left.load(Relaxed) {
            (self.framing.state, self.framing.seen) = (State::Off, Vec::new());
            return Poll::Ready(Ok(()));
        }
        if let Err(reason) = self.framing.read(&into.filled()[before..]) {
            // The bytes go on to the library, whose request then finds this and is answered with it.
            self.framing.state = State::Off;
            let _ = self.suspicion.reason.set(reason);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Guard<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(requests: &str, piece: usize) -> Result<State, &'static str> {
        let mut framing = Framing { longest_head: 1024, state: State::Head, seen: Vec::new() };
        for piece in requests.as_bytes().chunks(piece) {
            framing.read(piece)?;
        }
        Ok(framing.state)
    }

    #[test]
    fn well_framed_requests_are_followed_however_they_are_cut() {
        let get = "GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n";
        let post = "POST http://a/ HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nGET /";
        let chunked = "POST http://a/ HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n5;x=y\r\nhello\r\n0\r\nTrailer: 1\r\n\r\n";
        for requests in
            [get.to_owned(), post.repeat(2), chunked.repeat(2), [chunked, get, post, get].concat()]
        {
            for piece in [1, 3, 16, requests.len()] {
                assert_eq!(read(&requests, piece), Ok(State::Head), "{requests} by {piece}");
            }
        }
    }

    #[test]
    fn a_request_that_could_be_read_in_two_ways_is_suspicious() {
        for request in [
            "POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
            "POST / HTTP/1.1\r\nContent-Length: 5\r\ncontent-length: 6\r\n\r\nhello",
            "POST / HTTP/1.1\r\nContent-Length: 5, 5\r\n\r\nhello",
            "POST / HTTP/1.1\r\nContent-Length: +5\r\n\r\nhello",
            "POST / HTTP/1.1\r\nContent-Length: 0x5\r\n\r\nhello",
            "POST / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\nhello",
            "POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
            "GET / HTTP/1.1\nHost: a\n\n",
            "GET / HTTP/1.1\r\nHost: a\r\nX: y\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5 \r\nhello\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhelloX\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
        ] {
            assert!(read(request, 4096).is_err(), "{request:?}");
            assert!(read(request, 1).is_err(), "{request:?}");
        }
        let extension =
            format!("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5;{}\r\n", "x".repeat(300));
        assert!(read(&extension, 4096).is_err());
    }
}
