//! One exec and a thousand readers of its output.

use std::time::Duration;

use cubicle_model::{Fault, Kind};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::child::Served;
use super::wire::broken;
use super::{Effort, FANOUT};
use crate::bench::progress::Progress;
use crate::bench::row::{Goal, Row};
use crate::bench::samples::Samples;

const BYTES: u64 = 10_000_000;
const GOAL: Goal = Goal::AtMost(200.0);
/// The number of readers that the goal is for.
pub(crate) const READERS: usize = 1000;
/// A reader that hears nothing for so long will not hear anything any more.
const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) async fn measure(server: &Served, effort: &Effort, progress: &Progress) -> Row {
    let readers = effort.readers;
    let what =
        format!("{readers} readers of one exec that prints 10 MB, by SSE; largest memory of the server");
    match gather(server, readers, progress).await {
        Ok(()) => {
            let mut peak = Samples::default();
            peak.push(server.memory().1);
            let row = Row::measured(FANOUT, format!("{what}; every byte reached every reader"), &peak, "MB");
            match readers {
                READERS => row.judged(GOAL),
                _ => row.unjudged(GOAL, &format!("it is for {READERS} readers")),
            }
        }
        Err(fault) => Row::failed(FANOUT, &what, "MB", Some(GOAL), &fault),
    }
}

async fn gather(server: &Served, readers: usize, progress: &Progress) -> Result<(), Fault> {
    let mut wire = server.wire().await?;
    let sandbox = server.lease(&mut wire).await?;
    // Nothing is printed before everybody listens.
    let command = format!("read go; yes 0123456789abcdefghijklmnopqrstuvwxyz | head -c {BYTES}");
    let body = json!({ "command": command, "stdin": "stream", "background": true });
    let path = format!("/sandboxes/{sandbox}/execs");
    let exec = wire.ask_json(&server.request("POST", &path, Some(&body))).await?;
    let exec = exec["exec_id"].as_str().ok_or_else(|| Fault::new(Kind::Internal, "an exec has no id"))?;
    let output = format!("/api/v1/execs/{exec}/output");
    let mut reading = JoinSet::new();
    for _ in 0..readers {
        let stream = Reader::open(server, &output).await?;
        reading.spawn(stream.read_to_its_end());
    }
    progress.say(&format!("{readers} readers of one exec"));
    wire.ask(&server.request("POST", &format!("/execs/{exec}/stdin?close=true"), Some(&json!("go\n"))))
        .await?;
    let mut all = Vec::new();
    while let Some(read) = reading.join_next().await {
        all.push(read.map_err(|error| Fault::new(Kind::Internal, "a reader broke off").because(error))??);
    }
    // Whoever comes late reads the same, and is checked byte by byte.
    let late =
        Reader { whole: Some(Vec::new()), ..Reader::open(server, &output).await? }.read_to_its_end().await?;
    check(&late.whole)?;
    match all.iter().position(|read| (read.length, read.checksum) != (late.length, late.checksum)) {
        None => Ok(()),
        Some(number) => {
            let (some, wanted) = (all[number].length, late.length);
            Err(Fault::new(
                Kind::Internal,
                format!("a reader got {some} bytes of events instead of {wanted}"),
            ))
        }
    }
}

/// Whether the events hold everything that was printed, in its order.
fn check(events: &[u8]) -> Result<(), Fault> {
    let wrong =
        |what: &str| Fault::new(Kind::Internal, format!("the output is not what was printed: {what}"));
    let text = std::str::from_utf8(events).map_err(|_| wrong("not text"))?;
    let mut offset = 0;
    for data in text.lines().filter_map(|line| line.strip_prefix("data: ")) {
        let frame: Value = serde_json::from_str(data).map_err(|_| wrong("not JSON"))?;
        if frame["kind"] != "stdout" {
            continue;
        }
        let bytes = frame["content"].as_str().ok_or_else(|| wrong("no text"))?;
        if frame["offset"] != offset {
            return Err(wrong("a gap"));
        }
        offset += bytes.len() as u64;
    }
    if offset == BYTES { Ok(()) } else { Err(wrong("incomplete")) }
}

struct Reader {
    stream: TcpStream,
    checksum: crc32fast::Hasher,
    length: u64,
    /// Everything, where it is to be looked at.
    whole: Option<Vec<u8>>,
}

struct Read {
    length: u64,
    checksum: u32,
    whole: Vec<u8>,
}

impl Reader {
    /// HTTP/1.0: the events come as they are, and the end of the connection is their end.
    async fn open(server: &Served, path: &str) -> Result<Self, Fault> {
        let mut stream = TcpStream::connect(server.address).await.map_err(broken)?;
        let head = format!(
            "GET {path} HTTP/1.0\r\nhost: localhost\r\nauthorization: Bearer {}\r\naccept: text/event-stream\r\n\r\n",
            server.key
        );
        stream.write_all(head.as_bytes()).await.map_err(broken)?;
        let mut reader = Self { stream, checksum: crc32fast::Hasher::new(), length: 0, whole: None };
        reader.skip_head().await?;
        Ok(reader)
    }

    async fn skip_head(&mut self) -> Result<(), Fault> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            // Byte by byte: what follows belongs to the events.
            head.push(self.stream.read_u8().await.map_err(broken)?);
        }
        match head.get(9..12) {
            Some(b"200") => Ok(()),
            _ => Err(Fault::new(Kind::Internal, String::from_utf8_lossy(&head).into_owned())),
        }
    }

    async fn read_to_its_end(mut self) -> Result<Read, Fault> {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let read = tokio::time::timeout(PATIENCE, self.stream.read(&mut buffer)).await;
            let count = read
                .map_err(|_| Fault::new(Kind::Unavailable, "a reader hears nothing any more"))?
                .map_err(broken)?;
            if count == 0 {
                break;
            }
            self.take(&buffer[..count]);
        }
        Ok(Read {
            length: self.length,
            checksum: self.checksum.finalize(),
            whole: self.whole.unwrap_or_default(),
        })
    }

    /// A comment that keeps the connection alive comes alone, after a long silence; it is not part of the output.
    fn take(&mut self, bytes: &[u8]) {
        if bytes.starts_with(b":") {
            return;
        }
        self.checksum.update(bytes);
        self.length += bytes.len() as u64;
        if let Some(whole) = &mut self.whole {
            whole.extend_from_slice(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_byte_is_noticed() {
        let frame = |offset: u64, length: u64| {
            let text = "x".repeat(usize::try_from(length).unwrap());
            let data = json!({ "kind": "stdout", "offset": offset, "content": text });
            format!("id: 1\nevent: stdout\ndata: {data}\n\n")
        };
        let whole = frame(0, 4_000_000) + &frame(4_000_000, 6_000_000);
        check(whole.as_bytes()).unwrap();
        assert!(check(frame(0, 4_000_000).as_bytes()).is_err());
        assert!(check((frame(0, 4_000_000) + &frame(4_000_001, 5_999_999)).as_bytes()).is_err());
    }
}
