//! Answers on the connection.

use std::io::{self, Write};

use serde::Serialize;

use super::failure::Failure;
use super::{Connection, KeepAlive};

/// Sends a JSON answer, head and body in one write.
pub(super) fn json(
    connection: &mut dyn Connection,
    status: u16,
    body: &impl Serialize,
) -> io::Result<KeepAlive> {
    send(connection, status, &[], &serde_json::to_vec(body)?, KeepAlive::Yes)?;
    Ok(KeepAlive::Yes)
}

/// Sends a status that has nothing to say.
pub(super) fn empty(
    connection: &mut dyn Connection,
    status: u16,
    headers: &[(&str, String)],
) -> io::Result<KeepAlive> {
    let mut reply = head(status, headers, KeepAlive::Yes);
    // Neither status has a body, and a length would be read as that of the body that a GET would have had.
    if !matches!(status, 204 | 304) {
        reply.extend_from_slice(b"content-length: 0\r\n");
    }
    reply.extend_from_slice(b"\r\n");
    connection.write_all(&reply)?;
    Ok(KeepAlive::Yes)
}

pub(super) fn failure(
    connection: &mut dyn Connection,
    failure: &Failure,
    head_only: bool,
    keep_alive: KeepAlive,
) -> io::Result<()> {
    #[derive(Serialize)]
    struct Error<'a> {
        code: &'a str,
        message: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        hint: Option<&'a str>,
    }
    #[derive(Serialize)]
    struct Body<'a> {
        error: Error<'a>,
    }
    let error = Error { code: failure.code, message: &failure.message, hint: failure.hint.as_deref() };
    let body = serde_json::to_vec(&Body { error })?;
    let mut headers = vec![("x-cubicle-error", failure.code.to_owned())];
    if let Some(size) = failure.size {
        headers.push(("content-range", format!("bytes */{size}")));
    }
    if head_only {
        let mut reply = head(failure.status, &headers, keep_alive);
        write!(reply, "content-length: {}\r\n\r\n", body.len())?;
        return connection.write_all(&reply);
    }
    send(connection, failure.status, &headers, &body, keep_alive)
}

fn send(
    connection: &mut dyn Connection,
    status: u16,
    headers: &[(&str, String)],
    body: &[u8],
    keep_alive: KeepAlive,
) -> io::Result<()> {
    let mut reply = head(status, headers, keep_alive);
    write!(reply, "content-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len())?;
    reply.extend_from_slice(body);
    connection.write_all(&reply)
}

/// The status line and headers, without the empty line behind them.
pub(super) fn head(status: u16, headers: &[(&str, String)], keep_alive: KeepAlive) -> Vec<u8> {
    let mut head = format!("HTTP/1.1 {status} {}\r\n", reason(status)).into_bytes();
    for (name, value) in headers {
        head.extend_from_slice(name.as_bytes());
        head.extend_from_slice(b": ");
        head.extend_from_slice(value.as_bytes());
        head.extend_from_slice(b"\r\n");
    }
    if keep_alive == KeepAlive::No {
        head.extend_from_slice(b"connection: close\r\n");
    }
    head
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        201 => "Created",
        204 => "No Content",
        206 => "Partial Content",
        304 => "Not Modified",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        409 => "Conflict",
        412 => "Precondition Failed",
        413 => "Content Too Large",
        416 => "Range Not Satisfiable",
        422 => "Unprocessable Content",
        503 => "Service Unavailable",
        507 => "Insufficient Storage",
        _ => "Internal Server Error",
    }
}

/// A body whose length is not known when it begins. What is not finished with [`Chunked::finish`] is seen by the
/// client as broken off.
pub(super) struct Chunked<'a> {
    connection: &'a mut dyn Connection,
    pending: Vec<u8>,
    capacity: usize,
}

impl<'a> Chunked<'a> {
    /// Sends the head. Up to `capacity` bytes are kept back until they are flushed.
    pub(super) fn begin(
        connection: &'a mut dyn Connection,
        content_type: &str,
        capacity: usize,
    ) -> io::Result<Self> {
        let mut reply = head(200, &[("content-type", content_type.to_owned())], KeepAlive::Yes);
        reply.extend_from_slice(b"transfer-encoding: chunked\r\n\r\n");
        connection.write_all(&reply)?;
        Ok(Self { connection, pending: Vec::new(), capacity })
    }

    pub(super) fn connection(&self) -> std::os::fd::BorrowedFd<'_> {
        self.connection.as_fd()
    }

    /// Ends the body, with a trailer behind it.
    pub(super) fn finish(mut self, trailer: Option<(&str, u64)>) -> io::Result<()> {
        self.flush()?;
        let trailer = trailer.map(|(name, value)| format!("{name}: {value}\r\n")).unwrap_or_default();
        self.connection.write_all(format!("0\r\n{trailer}\r\n").as_bytes())
    }
}

impl Write for Chunked<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.pending.len() + bytes.len() > self.capacity {
            self.flush()?;
        }
        if bytes.len() > self.capacity {
            write!(self.connection, "{:x}\r\n", bytes.len())?;
            self.connection.write_all(bytes)?;
            self.connection.write_all(b"\r\n")?;
        } else {
            self.pending.extend_from_slice(bytes);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let length = format!("{:x}\r\n", self.pending.len());
        self.connection.write_all(length.as_bytes())?;
        self.pending.extend_from_slice(b"\r\n");
        self.connection.write_all(&self.pending)?;
        self.pending.clear();
        Ok(())
    }
}
