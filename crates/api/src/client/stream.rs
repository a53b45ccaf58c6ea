//! Streams that resume by themselves: after a broken connection, or a server that was started again, they go on after
//! what was seen last.

use std::time::Duration;

use bytes::{Buf, BytesMut};
use cubicle_model::{ExecId, Exit};
use http_body_util::BodyExt;
use hyper::Method;
use hyper::body::Incoming;
use hyper::header::{ACCEPT, HeaderName};
use serde::de::DeserializeOwned;

use super::query::Query;
use super::{Call, Client, ClientError};
use crate::{Event, ExecState, OutputFrame};

/// The server says something at least every 15 seconds.
const SILENCE: Duration = Duration::from_secs(45);
/// With the pauses between them, about a minute without a server.
const MOST_FAILURES: u32 = 24;

impl Client {
    /// The output of an exec from a seq on, and on to its end.
    pub fn output(&self, id: ExecId, from: u64) -> OutputStream {
        let path = Query::default().with("from", from).on(&format!("/api/v1/execs/{id}/output"));
        OutputStream { exec: id, events: Resuming::new(self.clone(), path), exited: false }
    }

    /// What happens from now on, or after a seq; of everything, or of one object.
    pub fn events(&self, after: Option<i64>, subject: Option<&str>) -> EventStream {
        let path = Query::default().maybe("after", after).maybe("subject", subject).on("/api/v1/events");
        EventStream { events: Resuming::new(self.clone(), path) }
    }
}

/// Frames of one exec, each exactly once.
#[derive(Debug)]
pub struct OutputStream {
    exec: ExecId,
    events: Resuming,
    exited: bool,
}

impl OutputStream {
    /// The next frame; none when the exec has ended and its output is complete. Nothing is lost when the future is
    /// dropped.
    pub async fn next(&mut self) -> Result<Option<OutputFrame>, ClientError> {
        loop {
            if let Some(frame) = self.events.next(|frame: &OutputFrame| frame.seq).await? {
                self.exited |= frame.kind == "exit";
                return Ok(Some(frame));
            }
            // A server that stops ends its streams too, so an end without an exit is asked about.
            if self.exited || self.events.client.exec(self.exec).await?.state == ExecState::Ended {
                return Ok(None);
            }
            self.events.broke(self.events.client.connections.broken("the output broke off")).await?;
        }
    }
}

/// How an exec ended, where the frame says so.
pub fn exit_of(frame: &OutputFrame) -> Option<Exit> {
    let data = frame.data.as_ref().filter(|_| frame.kind == "exit")?;
    Some(serde_json::from_value(data["exit"].clone()).unwrap_or(Exit::Unknown))
}

/// Events of a tenant, each exactly once.
#[derive(Debug)]
pub struct EventStream {
    events: Resuming,
}

impl EventStream {
    /// The next event. Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Result<Event, ClientError> {
        loop {
            if let Some(event) = self.events.next(|event: &Event| event.seq.unsigned_abs()).await? {
                return Ok(event);
            }
            // The server stops; the next one goes on.
            self.events.broke(self.events.client.connections.broken("the server stopped")).await?;
        }
    }
}

#[derive(Debug)]
struct Resuming {
    client: Client,
    path: String,
    seen: Option<u64>,
    open: Option<ServerSentEvents>,
    failures: u32,
}

impl Resuming {
    fn new(client: Client, path: String) -> Self {
        Self { client, path, seen: None, open: None, failures: 0 }
    }

    /// The next item that was not seen yet; none at the end of the stream.
    async fn next<T: DeserializeOwned>(&mut self, seq: impl Fn(&T) -> u64) -> Result<Option<T>, ClientError> {
        loop {
            let data = match self.step().await {
                Ok(Some(data)) => data,
                Ok(None) => {
                    self.open = None;
                    return Ok(None);
                }
                Err(error) => {
                    self.broke(error).await?;
                    continue;
                }
            };
            let item: T = serde_json::from_str(&data).map_err(|error| self.client.not_understood(error))?;
            let seq = seq(&item);
            if self.seen.is_none_or(|seen| seq > seen) {
                self.seen = Some(seq);
                self.failures = 0;
                return Ok(Some(item));
            }
        }
    }

    async fn step(&mut self) -> Result<Option<String>, ClientError> {
        if self.open.is_none() {
            let mut call = Call::new(Method::GET, self.path.as_str()).with(ACCEPT, "text/event-stream");
            if let Some(seen) = self.seen {
                call = call.with(HeaderName::from_static("last-event-id"), seen.to_string());
            }
            let answered = self.client.send(call).await?;
            self.open = Some(ServerSentEvents::new(answered.response.into_body()));
        }
        let open = self.open.as_mut().expect("it was opened above");
        open.next().await.map_err(|error| self.client.connections.broken(error))
    }

    /// Waits before the next attempt, or gives up.
    async fn broke(&mut self, error: ClientError) -> Result<(), ClientError> {
        self.open = None;
        self.failures += 1;
        if !error.passes() || self.failures > MOST_FAILURES || self.never_answered(&error) {
            return Err(error);
        }
        tokio::time::sleep(pause(self.failures)).await;
        Ok(())
    }

    /// A server that was never there is not waited for.
    fn never_answered(&self, error: &ClientError) -> bool {
        self.seen.is_none() && matches!(error, ClientError::Unreachable { .. }) && self.failures == 1
    }
}

fn pause(failures: u32) -> Duration {
    Duration::from_millis(50 * 2_u64.pow(failures.min(6))).min(Duration::from_secs(3))
}

/// The data of server-sent events as they come.
#[derive(Debug)]
struct ServerSentEvents {
    body: Incoming,
    parser: Parser,
}

impl ServerSentEvents {
    fn new(body: Incoming) -> Self {
        Self { body, parser: Parser::default() }
    }

    async fn next(&mut self) -> Result<Option<String>, Box<dyn std::error::Error + Send + Sync>> {
        loop {
            if let Some(data) = self.parser.next() {
                return Ok(Some(data));
            }
            let frame = tokio::time::timeout(SILENCE, self.body.frame());
            match frame.await.map_err(|_| "the server went silent")? {
                Some(frame) => {
                    if let Ok(bytes) = frame?.into_data() {
                        self.parser.buffer.extend_from_slice(&bytes);
                    }
                }
                None => return Ok(None),
            }
        }
    }
}

#[derive(Debug, Default)]
struct Parser {
    buffer: BytesMut,
    /// How much of the buffer is known to hold no end of an event.
    searched: usize,
}

impl Parser {
    /// The data of the next complete event. Events without data, which only keep the connection open, are passed over.
    fn next(&mut self) -> Option<String> {
        loop {
            let from = self.searched.saturating_sub(1);
            let Some(end) = self.buffer[from..].windows(2).position(|pair| pair == b"\n\n") else {
                self.searched = self.buffer.len();
                return None;
            };
            let event = self.buffer.split_to(from + end);
            self.buffer.advance(2);
            self.searched = 0;
            let text = String::from_utf8_lossy(&event);
            let data: Vec<&str> = text
                .lines()
                .filter_map(|line| line.strip_prefix("data:"))
                .map(|data| data.strip_prefix(' ').unwrap_or(data))
                .collect();
            if !data.is_empty() {
                return Some(data.join("\n"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_found_wherever_the_pieces_end() {
        let stream = "id: 1\nevent: stdout\ndata: {\"a\": 1}\n\n: still here\n\ndata: two\ndata: lines\n\nid: 3\ndata: cut";
        for size in [1, 2, 3, 7, 1000] {
            let mut parser = Parser::default();
            let mut found = Vec::new();
            for piece in stream.as_bytes().chunks(size) {
                parser.buffer.extend_from_slice(piece);
                found.extend(std::iter::from_fn(|| parser.next()));
            }
            assert_eq!(found, ["{\"a\": 1}", "two\nlines"], "pieces of {size}");
        }
    }

    #[test]
    fn a_server_is_waited_for_about_a_minute() {
        let all: Duration = (1..=MOST_FAILURES).map(pause).sum();
        assert!((40..90).contains(&all.as_secs()), "{all:?}");
    }
}
