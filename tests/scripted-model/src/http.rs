//! As much of HTTP/1.1 as the agents use.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Read, Write};
use std::net::TcpStream;

use serde_json::Value;

#[derive(Debug, Clone)]
pub struct Request {
    pub method: String,
    pub path: String,
    /// By names in small letters.
    pub headers: BTreeMap<String, String>,
    /// Null when it is not JSON.
    pub body: Value,
}

/// None when the client has hung up.
pub(crate) fn read(from: &mut impl BufRead) -> io::Result<Option<Request>> {
    let mut line = String::new();
    if from.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace();
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (method, path) = (method.to_owned(), path.to_owned());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        from.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let mut body = Vec::new();
    if headers.get("transfer-encoding").is_some_and(|encoding| encoding.contains("chunked")) {
        loop {
            let mut line = String::new();
            from.read_line(&mut line)?;
            let length = usize::from_str_radix(line.trim().split(';').next().unwrap_or_default(), 16);
            let length = length.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            let mut piece = vec![0; length + 2];
            from.read_exact(&mut piece)?;
            body.extend_from_slice(&piece[..length]);
            if length == 0 {
                break;
            }
        }
    } else {
        let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        from.take(length).read_to_end(&mut body)?;
    }
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    Ok(Some(Request { method, path, headers, body }))
}

/// An answer, after which the connection may go on.
pub(crate) fn json(
    to: &mut TcpStream,
    status: u16,
    body: &Value,
    headers: &[(&str, &str)],
) -> io::Result<bool> {
    let body = body.to_string();
    text(to, status, &body, body.len(), headers)
}

/// The same with any text, and with any word about its length.
pub(crate) fn text(
    to: &mut TcpStream,
    status: u16,
    body: &str,
    length: usize,
    headers: &[(&str, &str)],
) -> io::Result<bool> {
    let mut head = format!("HTTP/1.1 {status} Scripted\r\ncontent-type: application/json\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str(&format!("content-length: {length}\r\n\r\n{body}"));
    to.write_all(head.as_bytes())?;
    Ok(true)
}

pub(crate) fn begin_stream(to: &mut TcpStream) -> io::Result<()> {
    to.write_all(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n",
    )
}

pub(crate) fn chunk(to: &mut TcpStream, text: &str) -> io::Result<()> {
    to.write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes())
}

pub(crate) fn end_stream(to: &mut TcpStream) -> io::Result<()> {
    to.write_all(b"0\r\n\r\n")
}
