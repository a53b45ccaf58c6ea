//! Running programs in a sandbox.

use std::time::Duration;

use cubicle_model::{ExecId, ExecSpec, Exit, TtySize};

use super::body::Body;
use super::error::ClientError;
use super::{Beside, Guest, PATIENCE, Repeat, json, request};
use crate::journal::record::{self, Kind};
use crate::wire::context::CellEvent;
use crate::wire::{
    self, ExecList, ExecStatus, Exited, SignalName, SignalRequest, Start, Started, StreamBytes, Truncated,
};

/// One record of the journal.
#[derive(Debug, Clone, Copy)]
pub struct Frame<'a> {
    /// The exec's number within its sandbox; 0 when the record is about the sandbox.
    pub exec: u32,
    pub seq: u64,
    /// Microseconds since 1970, by the sandbox's clock.
    pub time_us: u64,
    pub kind: Kind,
    /// Where the bytes are in the whole stream of their kind.
    pub stream_offset: u64,
    pub bytes: &'a [u8],
}

/// What a frame says.
#[derive(Debug, Clone, PartialEq)]
pub enum Event<'a> {
    Start(Start),
    Stdout(&'a [u8]),
    Stderr(&'a [u8]),
    Exit(Exited),
    Eof(StreamBytes),
    Truncated(Truncated),
    Lost(StreamBytes),
    Cell(CellEvent),
    /// About the sandbox, not an exec.
    Other,
}

impl<'a> Frame<'a> {
    pub fn event(&self) -> Result<Event<'a>, ClientError> {
        Ok(match self.kind {
            Kind::Start => Event::Start(json(self.bytes)?),
            Kind::Stdout => Event::Stdout(self.bytes),
            Kind::Stderr => Event::Stderr(self.bytes),
            Kind::Exit => Event::Exit(json(self.bytes)?),
            Kind::Eof => Event::Eof(json(self.bytes)?),
            Kind::Truncated => Event::Truncated(json(self.bytes)?),
            Kind::Lost => Event::Lost(json(self.bytes)?),
            Kind::Cell => Event::Cell(json(self.bytes)?),
            Kind::Place | Kind::Receipt | Kind::Amendment | Kind::Unknown(_) => Event::Other,
        })
    }
}

/// Journal records as a sandbox sends them, each checked.
#[derive(Debug)]
pub struct Records {
    body: Body,
    /// Of the frame that was handed out last.
    used: usize,
    last_seq: Option<u64>,
}

impl Records {
    pub(super) fn new(body: Body) -> Self {
        Self { body, used: 0, last_seq: None }
    }

    /// The next record of a known kind; none when the stream has ended.
    pub async fn next(&mut self) -> Result<Option<Frame<'_>>, ClientError> {
        let length = loop {
            self.body.consume(std::mem::take(&mut self.used));
            if !self.body.fill(record::HEADER_LEN).await? {
                return match self.body.data().is_empty() {
                    true => Ok(None),
                    false => Err(ClientError::Protocol("the stream ends within a record")),
                };
            }
            let Some(header) = record::peek(self.body.data())? else {
                return Err(ClientError::Protocol("a record has no header"));
            };
            let length = record::HEADER_LEN + header.payload_len as usize;
            if !self.body.fill(length).await? {
                return Err(ClientError::Protocol("the stream ends within a record"));
            }
            if self.last_seq.is_some_and(|last| header.seq <= last) {
                return Err(ClientError::Protocol("records are out of order"));
            }
            self.used = length;
            self.last_seq = Some(header.seq);
            if !matches!(header.kind, Kind::Unknown(_)) {
                break length;
            }
        };
        let Some((record, _)) = record::decode(&self.body.data()[..length])? else {
            return Err(ClientError::Protocol("a record is incomplete"));
        };
        let header = record.header;
        Ok(Some(Frame {
            exec: header.exec,
            seq: header.seq,
            time_us: header.time_us,
            kind: header.kind,
            stream_offset: header.stream_offset,
            bytes: record.payload,
        }))
    }

    /// The seq of the last record that was seen.
    pub fn last_seq(&self) -> Option<u64> {
        self.last_seq
    }
}

/// The records of one exec.
#[derive(Debug)]
pub struct ExecStream {
    exec_id: ExecId,
    records: Records,
}

impl ExecStream {
    pub fn exec_id(&self) -> ExecId {
        self.exec_id
    }

    /// The next record; none when the exec has ended and its output is complete.
    pub async fn next(&mut self) -> Result<Option<Frame<'_>>, ClientError> {
        self.records.next().await
    }

    /// Where to attach again after a failure: the first seq that was not seen.
    pub fn resume_from(&self) -> Option<u64> {
        self.records.last_seq().map(|last| last + 1)
    }
}

/// How much of an exec's output is kept in memory, per stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputLimits {
    pub stdout: usize,
    pub stderr: usize,
}

impl Default for OutputLimits {
    fn default() -> Self {
        Self { stdout: 16 * 1024 * 1024, stderr: 16 * 1024 * 1024 }
    }
}

/// An exec that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    pub exec_id: ExecId,
    pub exit: Exit,
    pub timed_out: bool,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    /// Whether something of the stream is missing above: over the limit, over the journal's, or lost.
    pub stdout_truncated: bool,
    pub stderr_truncated: bool,
    /// All bytes that were written, kept or not.
    pub written: StreamBytes,
    /// From the start to the exit of the first process.
    pub duration: Duration,
    pub user_us: u64,
    pub sys_us: u64,
    pub max_rss_kb: u64,
}

impl Guest {
    /// Starts an exec and follows it. A spec without an id gets one, so that the request can be repeated.
    pub async fn exec(&self, spec: &ExecSpec) -> Result<ExecStream, ClientError> {
        let (exec_id, body) = self.exec_body(spec)?;
        let request = request("POST /exec", &ACCEPT_RECORDS, &body);
        self.stream(exec_id, &request).await
    }

    /// The same for whoever waits for its end: what comes before may come a moment later, together with it, so that most
    /// execs wake their reader once.
    pub async fn exec_to_its_end(&self, spec: &ExecSpec) -> Result<ExecStream, ClientError> {
        let (exec_id, body) = self.exec_body(spec)?;
        let request = request("POST /exec?hold_ms=50", &ACCEPT_RECORDS, &body);
        self.stream(exec_id, &request).await
    }

    /// Starts an exec that nobody follows yet.
    pub async fn exec_in_background(&self, spec: &ExecSpec) -> Result<Started, ClientError> {
        let (_, body) = self.exec_body(spec)?;
        self.call_json("POST /exec?background=true", &body, Repeat::Safe).await
    }

    /// Follows an exec from a seq on; from its start with 0.
    pub async fn attach(&self, exec_id: ExecId, from_seq: u64) -> Result<ExecStream, ClientError> {
        let request = request(&format!("GET /exec/{exec_id}?from={from_seq}"), &ACCEPT_RECORDS, b"");
        self.stream(exec_id, &request).await
    }

    /// All records of the sandbox from a seq on; with `follow`, those to come too.
    pub async fn journal(&self, from_seq: u64, follow: bool) -> Result<Records, ClientError> {
        let request = request(&format!("GET /journal?from={from_seq}&follow={follow}"), &ACCEPT_RECORDS, b"");
        Ok(Records::new(self.request(&request, Repeat::Safe).await?.body))
    }

    /// Runs an exec to its end and keeps its output up to the limits.
    pub async fn run(&self, spec: &ExecSpec, limits: OutputLimits) -> Result<Outcome, ClientError> {
        let stream = self.exec(spec).await?;
        self.gather(stream, limits).await
    }

    /// Follows an exec to its end and keeps its output up to the limits.
    pub async fn gather(&self, mut stream: ExecStream, limits: OutputLimits) -> Result<Outcome, ClientError> {
        let mut gathering = Gathering::new(limits);
        let mut reattached = false;
        loop {
            match stream.next().await {
                Ok(Some(frame)) => gathering.take(&frame)?,
                Ok(None) => return gathering.outcome(stream.exec_id),
                // The exec goes on without its reader, so the reader can come back. A second time in a row there is
                // nobody to come back to.
                Err(ClientError::Unavailable(error)) if reattached => {
                    return Err(ClientError::Unavailable(error));
                }
                Err(ClientError::Unavailable(_)) => {
                    reattached = true;
                    stream = self.attach(stream.exec_id, stream.resume_from().unwrap_or(0)).await?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Appends to an exec's standard input. Answers when the sandbox has taken all of it.
    pub async fn stdin(&self, exec_id: ExecId, bytes: &[u8], close: bool) -> Result<(), ClientError> {
        let request = request(&format!("POST /exec/{exec_id}/stdin?close={close}"), &[], bytes);
        // Takes as long as the program does to read it. Twice is not as good as once.
        self.request(&request, Repeat::Never).await?.body.collect(super::LONGEST_ANSWER).await?;
        Ok(())
    }

    pub async fn signal(&self, exec_id: ExecId, signal: SignalName) -> Result<(), ClientError> {
        let body = to_json(&SignalRequest { signal })?;
        self.call(&format!("POST /exec/{exec_id}/signal"), &body, Repeat::Never).await.map(drop)
    }

    pub async fn resize(&self, exec_id: ExecId, size: TtySize) -> Result<(), ClientError> {
        self.call(&format!("POST /exec/{exec_id}/resize"), &to_json(&size)?, Repeat::Safe).await.map(drop)
    }

    /// Ends the whole tree of an exec: TERM, the grace, KILL.
    pub async fn end(&self, exec_id: ExecId, grace: Option<Duration>) -> Result<(), ClientError> {
        let query = grace.map(|grace| format!("?grace_seconds={}", grace.as_secs_f64())).unwrap_or_default();
        let request = request(&format!("DELETE /exec/{exec_id}{query}"), &[], b"");
        self.request(&request, Repeat::Safe).await?.body.collect(super::LONGEST_ANSWER).await?;
        Ok(())
    }

    pub async fn list_execs(&self) -> Result<Vec<ExecStatus>, ClientError> {
        self.call_json::<ExecList>("GET /exec", b"", Repeat::Safe).await.map(|list| list.execs)
    }

    /// How an exec is doing now.
    pub async fn exec_status(&self, exec_id: ExecId) -> Result<ExecStatus, ClientError> {
        self.call_json(&format!("GET /exec/{exec_id}?wait=false"), b"", Repeat::Safe).await
    }

    /// Waits until the first process of an exec has ended.
    pub async fn wait(&self, exec_id: ExecId) -> Result<ExecStatus, ClientError> {
        let request = request(&format!("GET /exec/{exec_id}?wait=exit"), &[], b"");
        let answer = self.request(&request, Repeat::Safe).await?;
        json(&answer.body.collect(super::LONGEST_ANSWER).await?)
    }

    pub(super) async fn stream(&self, exec_id: ExecId, request: &[u8]) -> Result<ExecStream, ClientError> {
        self.stream_beside(exec_id, request, Beside::Nothing).await
    }

    pub(super) async fn stream_beside(
        &self,
        exec_id: ExecId,
        request: &[u8],
        beside: Beside,
    ) -> Result<ExecStream, ClientError> {
        let asked = self.request_with(request, Repeat::Safe, beside);
        let answer = tokio::time::timeout(PATIENCE, asked).await;
        let body = answer.unwrap_or_else(|_| Err(ClientError::too_late()))?.body;
        Ok(ExecStream { exec_id, records: Records::new(body) })
    }

    fn exec_body(&self, spec: &ExecSpec) -> Result<(ExecId, Vec<u8>), ClientError> {
        if spec.timeout_seconds.is_some_and(|seconds| !seconds.is_finite()) {
            return Err(ClientError::Invalid("the timeout is not a number of seconds"));
        }
        let mut body = to_json(spec)?;
        if let Some(exec_id) = spec.exec_id {
            return Ok((exec_id, body));
        }
        // The object is never empty, so that one more member fits before its end.
        let exec_id = self.random_exec_id();
        body.pop();
        body.extend_from_slice(format!(r#","exec_id":"{exec_id}"}}"#).as_bytes());
        Ok((exec_id, body))
    }
}

pub(super) const ACCEPT_RECORDS: [(&str, &str); 1] = [("accept", wire::JOURNAL)];

pub(super) fn to_json(value: &impl serde::Serialize) -> Result<Vec<u8>, ClientError> {
    serde_json::to_vec(value).map_err(|_| ClientError::Invalid("it has no form on the wire"))
}

/// What is known of an exec so far: frames in, an outcome out.
#[derive(Debug)]
pub struct Gathering {
    limits: OutputLimits,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    stdout_truncated: bool,
    stderr_truncated: bool,
    started_us: Option<u64>,
    exited: Option<(Exited, u64)>,
    written: Option<StreamBytes>,
}

impl Gathering {
    pub fn new(limits: OutputLimits) -> Self {
        Self {
            limits,
            stdout: Vec::new(),
            stderr: Vec::new(),
            stdout_truncated: false,
            stderr_truncated: false,
            started_us: None,
            exited: None,
            written: None,
        }
    }

    pub fn take(&mut self, frame: &Frame<'_>) -> Result<(), ClientError> {
        match frame.kind {
            Kind::Start => self.started_us = Some(frame.time_us),
            Kind::Stdout => {
                self.stdout_truncated |= !append(&mut self.stdout, frame.bytes, self.limits.stdout);
            }
            Kind::Stderr => {
                self.stderr_truncated |= !append(&mut self.stderr, frame.bytes, self.limits.stderr);
            }
            Kind::Exit => self.exited = Some((json(frame.bytes)?, frame.time_us)),
            Kind::Eof => self.written = Some(json(frame.bytes)?),
            Kind::Truncated => {
                let truncated: Truncated = json(frame.bytes)?;
                self.stdout_truncated |= truncated.stream == "stdout";
                self.stderr_truncated |= truncated.stream == "stderr";
            }
            Kind::Lost => {
                let lost: StreamBytes = json(frame.bytes)?;
                self.stdout_truncated |= lost.stdout > 0;
                self.stderr_truncated |= lost.stderr > 0;
            }
            Kind::Place | Kind::Receipt | Kind::Amendment | Kind::Cell | Kind::Unknown(_) => {}
        }
        Ok(())
    }

    /// Refused where an exit or the end of the output is missing.
    pub fn outcome(self, exec_id: ExecId) -> Result<Outcome, ClientError> {
        let Some((exited, at)) = self.exited else {
            return Err(ClientError::Protocol("an exec ended without an exit"));
        };
        let Some(written) = self.written else {
            return Err(ClientError::Protocol("an exec ended without the end of its output"));
        };
        Ok(Outcome {
            exec_id,
            exit: exited.exit,
            timed_out: exited.timed_out,
            stdout_truncated: self.stdout_truncated || written.stdout != self.stdout.len() as u64,
            stderr_truncated: self.stderr_truncated || written.stderr != self.stderr.len() as u64,
            stdout: self.stdout,
            stderr: self.stderr,
            written,
            duration: Duration::from_micros(at.saturating_sub(self.started_us.unwrap_or(at))),
            user_us: exited.user_us,
            sys_us: exited.sys_us,
            max_rss_kb: exited.max_rss_kb,
        })
    }
}

/// Appends up to a limit and says whether everything fitted.
pub(super) fn append(to: &mut Vec<u8>, bytes: &[u8], limit: usize) -> bool {
    let fitting = bytes.len().min(limit.saturating_sub(to.len()));
    to.extend_from_slice(&bytes[..fitting]);
    fitting == bytes.len()
}
