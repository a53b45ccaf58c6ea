//! HTTP/1.1 as far as the daemon needs it: request heads, bodies that arrive in pieces, and small responses.

use serde::Serialize;

use crate::wire::{ErrorBody, ErrorDetail, JSON};

/// A longer head is refused.
pub const LONGEST_HEAD: usize = 16 * 1024;
const MOST_HEADERS: usize = 64;
/// Size, extensions and line end of one chunk.
const LONGEST_CHUNK_LINE: usize = 256;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    pub method: String,
    /// Percent-encoded, without the query.
    pub path: String,
    pub query: String,
    pub headers: Vec<(String, String)>,
    pub body: Body,
    pub keep_alive: bool,
}

/// How the end of a request's body is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body {
    Length(u64),
    Chunked,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadRequest {
    #[error("this is not an HTTP/1.1 request")]
    NotHttp,
    #[error("the head of the request is longer than {LONGEST_HEAD} bytes")]
    HeadTooLong,
    #[error("the body's length is not clear: send one Content-Length, or Transfer-Encoding: chunked")]
    BodyLength,
    #[error("the body is not chunked as announced")]
    Chunk,
}

impl Head {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(given, _)| given.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    /// The value of a query parameter; one without `=` has the value `true`.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.query.split('&').find_map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, "true"));
            (key == name).then_some(value)
        })
    }

    pub fn flag(&self, name: &str) -> bool {
        self.parameter(name).is_some_and(|value| value == "true" || value == "1")
    }

    /// Whether the `Accept` header names this media type.
    pub fn accepts(&self, media: &str) -> bool {
        self.header("accept").is_some_and(|accept| {
            accept
                .split(',')
                .any(|one| one.split(';').next().is_some_and(|one| one.trim().eq_ignore_ascii_case(media)))
        })
    }
}

/// Reads a request head from the front of `bytes` and says how long it is. `None`: not all of it is there yet.
pub fn parse_head(bytes: &[u8]) -> Result<Option<(Head, usize)>, BadRequest> {
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let len = match request.parse(bytes) {
        Ok(httparse::Status::Complete(len)) if len <= LONGEST_HEAD => len,
        Ok(httparse::Status::Complete(_)) => return Err(BadRequest::HeadTooLong),
        Ok(httparse::Status::Partial) if bytes.len() < LONGEST_HEAD => return Ok(None),
        Ok(httparse::Status::Partial) => return Err(BadRequest::HeadTooLong),
        Err(httparse::Error::TooManyHeaders) => return Err(BadRequest::HeadTooLong),
        Err(_) => return Err(BadRequest::NotHttp),
    };
    let (Some(method), Some(target), Some(version)) = (request.method, request.path, request.version) else {
        return Err(BadRequest::NotHttp);
    };
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut parsed = Vec::with_capacity(request.headers.len());
    for header in request.headers.iter() {
        let value = std::str::from_utf8(header.value).map_err(|_| BadRequest::NotHttp)?;
        parsed.push((header.name.to_owned(), value.trim().to_owned()));
    }
    let connection = find(&parsed, "connection").unwrap_or_default().to_ascii_lowercase();
    let keep_alive = if version == 1 { connection != "close" } else { connection == "keep-alive" };
    let head = Head {
        method: method.to_owned(),
        path: path.to_owned(),
        query: query.to_owned(),
        body: body_of(&parsed)?,
        headers: parsed,
        keep_alive,
    };
    Ok(Some((head, len)))
}

fn find<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    headers.iter().find(|(given, _)| given.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
}

/// Two ways to read a body's length would let one side see a request where the other sees a body.
fn body_of(headers: &[(String, String)]) -> Result<Body, BadRequest> {
    let count = |name: &str| headers.iter().filter(|(given, _)| given.eq_ignore_ascii_case(name)).count();
    match (count("content-length"), count("transfer-encoding")) {
        (0, 0) => Ok(Body::Length(0)),
        (1, 0) => {
            let digits = find(headers, "content-length").unwrap_or_default();
            let plain = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
            match digits.parse() {
                Ok(length) if plain => Ok(Body::Length(length)),
                _ => Err(BadRequest::BodyLength),
            }
        }
        (0, 1) if find(headers, "transfer-encoding").is_some_and(|it| it.eq_ignore_ascii_case("chunked")) => {
            Ok(Body::Chunked)
        }
        _ => Err(BadRequest::BodyLength),
    }
}

/// Takes a body out of the bytes of a connection, piece by piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BodyDecoder(Expect);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expect {
    Bytes(u64),
    ChunkLine,
    ChunkBytes(u64),
    ChunkEnd,
    Trailer,
    Nothing,
}

impl BodyDecoder {
    pub fn new(body: Body) -> Self {
        Self(match body {
            Body::Length(0) => Expect::Nothing,
            Body::Length(length) => Expect::Bytes(length),
            Body::Chunked => Expect::ChunkLine,
        })
    }

    pub fn is_done(&self) -> bool {
        self.0 == Expect::Nothing
    }

    /// Moves body bytes from the front of `input` to `output`, at most `most` of them, and says how much of `input` is
    /// used up. Nothing used up and not done: more input is needed.
    pub fn decode(&mut self, input: &[u8], output: &mut Vec<u8>, most: usize) -> Result<usize, BadRequest> {
        let mut used = 0;
        let mut room = most;
        loop {
            let rest = &input[used..];
            match self.0 {
                Expect::Nothing => return Ok(used),
                Expect::Bytes(left) | Expect::ChunkBytes(left) => {
                    let taken = rest.len().min(room).min(usize::try_from(left).unwrap_or(usize::MAX));
                    if taken == 0 {
                        return Ok(used);
                    }
                    output.extend_from_slice(&rest[..taken]);
                    used += taken;
                    room -= taken;
                    let left = left - taken as u64;
                    self.0 = match self.0 {
                        Expect::Bytes(_) if left == 0 => Expect::Nothing,
                        Expect::Bytes(_) => Expect::Bytes(left),
                        _ if left == 0 => Expect::ChunkEnd,
                        _ => Expect::ChunkBytes(left),
                    };
                }
                Expect::ChunkLine => {
                    let Some((line, len)) = take_line(rest)? else { return Ok(used) };
                    let size = line.split(|byte| *byte == b';').next().unwrap_or_default();
                    self.0 = match chunk_size(size)? {
                        0 => Expect::Trailer,
                        size => Expect::ChunkBytes(size),
                    };
                    used += len;
                }
                Expect::ChunkEnd => {
                    let Some((line, len)) = take_line(rest)? else { return Ok(used) };
                    if !line.is_empty() {
                        return Err(BadRequest::Chunk);
                    }
                    self.0 = Expect::ChunkLine;
                    used += len;
                }
                Expect::Trailer => {
                    let Some((line, len)) = take_line(rest)? else { return Ok(used) };
                    if line.is_empty() {
                        self.0 = Expect::Nothing;
                    }
                    used += len;
                }
            }
        }
    }
}

fn take_line(bytes: &[u8]) -> Result<Option<(&[u8], usize)>, BadRequest> {
    let Some(end) = bytes.iter().take(LONGEST_CHUNK_LINE).position(|byte| *byte == b'\n') else {
        return if bytes.len() >= LONGEST_CHUNK_LINE { Err(BadRequest::Chunk) } else { Ok(None) };
    };
    let line = bytes[..end].strip_suffix(b"\r").ok_or(BadRequest::Chunk)?;
    Ok(Some((line, end + 1)))
}

fn chunk_size(digits: &[u8]) -> Result<u64, BadRequest> {
    let digits = digits.trim_ascii();
    if digits.is_empty() || digits.len() > 15 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return Err(BadRequest::Chunk);
    }
    let text = std::str::from_utf8(digits).map_err(|_| BadRequest::Chunk)?;
    u64::from_str_radix(text, 16).map_err(|_| BadRequest::Chunk)
}

/// A request that cannot be carried out, as the client sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub status: u16,
    pub code: &'static str,
    pub message: String,
    pub hint: Option<String>,
}

impl Refusal {
    pub fn new(status: u16, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), hint: None }
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(400, "invalid", message)
    }

    pub fn body(&self) -> ErrorBody {
        let detail =
            ErrorDetail { code: self.code.into(), message: self.message.clone(), hint: self.hint.clone() };
        ErrorBody { error: detail }
    }
}

impl From<BadRequest> for Refusal {
    fn from(bad: BadRequest) -> Self {
        let status = if bad == BadRequest::HeadTooLong { 431 } else { 400 };
        Self::new(status, "bad_request", bad.to_string())
    }
}

/// Appends a whole response with a JSON body.
pub(super) fn write_json(into: &mut Vec<u8>, status: u16, body: &impl Serialize, keep_alive: bool) {
    let body = serde_json::to_vec(body).expect("the daemon's bodies have only string keys");
    let close = if keep_alive { "" } else { "Connection: close\r\n" };
    let head = format!(
        "HTTP/1.1 {status} {}\r\nContent-Type: {JSON}\r\nContent-Length: {}\r\n{close}\r\n",
        reason(status),
        body.len()
    );
    into.extend_from_slice(head.as_bytes());
    into.extend_from_slice(&body);
}

/// Appends the head of a response whose body follows in chunks.
pub(super) fn write_chunked_head(into: &mut Vec<u8>, media: &str, extra: &str) {
    let head =
        format!("HTTP/1.1 200 OK\r\nContent-Type: {media}\r\nTransfer-Encoding: chunked\r\n{extra}\r\n");
    into.extend_from_slice(head.as_bytes());
}

pub(super) fn write_chunk_line(into: &mut Vec<u8>, len: u64) {
    into.extend_from_slice(format!("{len:x}\r\n").as_bytes());
}

pub(super) const CHUNK_END: &[u8] = b"\r\n";
pub(super) const LAST_CHUNK: &[u8] = b"0\r\n\r\n";
pub(super) const SWITCHING: &[u8] =
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n";

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        409 => "Conflict",
        413 => "Content Too Large",
        422 => "Unprocessable Content",
        426 => "Upgrade Required",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        507 => "Insufficient Storage",
        _ => "Internal Server Error",
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn body(head: &str) -> Result<Body, BadRequest> {
        parse_head(format!("POST /x HTTP/1.1\r\n{head}\r\n").as_bytes()).map(|parsed| parsed.unwrap().0.body)
    }

    #[test]
    fn a_head_is_read_only_when_it_is_complete() {
        let request = b"GET /exec/a?from=7&until=exit&x HTTP/1.1\r\nAccept: text/html, Text/Event-Stream;q=1\r\n\r\nrest";
        for len in 0..request.len() - 4 {
            assert_eq!(parse_head(&request[..len]), Ok(None), "{len}");
        }
        let (head, len) = parse_head(request).unwrap().unwrap();
        assert_eq!(len, request.len() - 4);
        assert_eq!((head.method.as_str(), head.path.as_str()), ("GET", "/exec/a"));
        assert_eq!((head.parameter("from"), head.parameter("until")), (Some("7"), Some("exit")));
        assert!(head.flag("x") && !head.flag("y") && head.accepts("text/event-stream"));
    }

    #[test]
    fn a_body_with_two_lengths_is_refused() {
        assert_eq!(body("Content-Length: 5\r\n"), Ok(Body::Length(5)));
        assert_eq!(body("Transfer-Encoding: chunked\r\n"), Ok(Body::Chunked));
        for head in [
            "Content-Length: 5\r\nContent-Length: 5\r\n",
            "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
            "Content-Length: +5\r\n",
            "Content-Length: 99999999999999999999999\r\n",
            "Content-Length:\r\n",
            "Transfer-Encoding: gzip, chunked\r\n",
        ] {
            assert_eq!(body(head), Err(BadRequest::BodyLength), "{head}");
        }
    }

    #[test]
    fn an_endless_head_is_refused() {
        let endless = format!("GET / HTTP/1.1\r\nX: {}", "a".repeat(LONGEST_HEAD));
        assert_eq!(parse_head(endless.as_bytes()), Err(BadRequest::HeadTooLong));
    }

    proptest! {
        #[test]
        fn a_chunked_body_survives_any_cut(
            chunks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..40), 0..8),
            step in 1..17usize, most in 1..9usize,
        ) {
            let mut wire = Vec::new();
            for chunk in &chunks {
                wire.extend_from_slice(format!("{:X};note\r\n", chunk.len()).as_bytes());
                wire.extend_from_slice(chunk);
                wire.extend_from_slice(b"\r\n");
            }
            wire.extend_from_slice(b"0\r\nTrailer: x\r\n\r\nnext");
            let (mut decoder, mut output, mut start, mut end) = (BodyDecoder::new(Body::Chunked), Vec::new(), 0, 0);
            while !decoder.is_done() {
                end = (end + step).min(wire.len());
                start += decoder.decode(&wire[start..end], &mut output, most).unwrap();
            }
            prop_assert_eq!(output, chunks.concat());
            prop_assert_eq!(&wire[start..], b"next");
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse_head(&bytes);
            let _ = BodyDecoder::new(Body::Chunked).decode(&bytes, &mut Vec::new(), 100);
        }
    }

    #[test]
    fn chunks_that_are_none_are_refused() {
        for bad in ["zz\r\n", "\r\n", "5\n", "ffffffffffffffff1\r\n", "-1\r\n"] {
            let decoded = BodyDecoder::new(Body::Chunked).decode(bad.as_bytes(), &mut Vec::new(), 10);
            assert_eq!(decoded, Err(BadRequest::Chunk), "{bad:?}");
        }
    }
}
