//! Contexts of a sandbox: interpreters that keep their state.

use std::collections::BTreeMap;

use cubicle_model::ExecId;
use serde_json::Value;

use super::error::ClientError;
use super::exec::{ACCEPT_RECORDS, Event, Frame, OutputLimits, Records, append, to_json};
use super::{Guest, PATIENCE, Repeat, json, request};
use crate::wire::context::{Cell, CellEvent, CellStatus, Context, ContextList, CreateContext, LONGEST_EVENT};

/// The records of one cell.
#[derive(Debug)]
pub struct CellStream {
    context_id: ExecId,
    records: Records,
    parts: String,
}

impl CellStream {
    pub fn context_id(&self) -> ExecId {
        self.context_id
    }

    /// The next record; none when the cell has ended. Long events come in parts: `whole` puts them together.
    pub async fn next(&mut self) -> Result<Option<Frame<'_>>, ClientError> {
        self.records.next().await
    }

    /// Where to attach again after a failure: the first seq that was not seen.
    pub fn resume_from(&self) -> Option<u64> {
        self.records.last_seq().map(|last| last + 1)
    }

    /// Puts events together that came in parts: give it each event of a cell in turn. None: more parts follow.
    pub fn whole(&mut self, event: CellEvent) -> Result<Option<CellEvent>, ClientError> {
        whole(&mut self.parts, event)
    }
}

fn whole(parts: &mut String, event: CellEvent) -> Result<Option<CellEvent>, ClientError> {
    let CellEvent::Part { text, last } = event else { return Ok(Some(event)) };
    // The data of an event is at most that long; around it are its name and quotes.
    const LIMIT: usize = 2 * LONGEST_EVENT;
    if parts.len() + text.len() > LIMIT {
        return Err(ClientError::TooLong { limit: LIMIT });
    }
    parts.push_str(&text);
    if !last {
        return Ok(None);
    }
    json(std::mem::take(parts).as_bytes()).map(Some)
}

/// A cell that has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct CellOutcome {
    pub execution_count: u64,
    pub status: CellStatus,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    /// Whether something of the stream is missing above.
    pub stdout_truncated: bool,
    pub stderr_truncated: bool,
    /// The value of the last expression, by media type.
    pub result: Option<BTreeMap<String, Value>>,
    pub displays: Vec<BTreeMap<String, Value>>,
    pub error: Option<CellError>,
    /// Events that the journal had no room for.
    pub omitted: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CellError {
    pub name: String,
    pub value: String,
    pub traceback: Vec<String>,
}

/// What is known of a cell so far: frames in, an outcome out.
#[derive(Debug)]
pub struct CellGathering {
    limits: OutputLimits,
    parts: String,
    outcome: CellOutcome,
    ended: bool,
}

impl CellGathering {
    pub fn new(limits: OutputLimits) -> Self {
        let outcome = CellOutcome {
            execution_count: 0,
            status: CellStatus::Died,
            stdout: Vec::new(),
            stderr: Vec::new(),
            stdout_truncated: false,
            stderr_truncated: false,
            result: None,
            displays: Vec::new(),
            error: None,
            omitted: 0,
        };
        Self { limits, parts: String::new(), outcome, ended: false }
    }

    pub fn take(&mut self, frame: &Frame<'_>) -> Result<(), ClientError> {
        let outcome = &mut self.outcome;
        match frame.event()? {
            Event::Stdout(bytes) => {
                outcome.stdout_truncated |= !append(&mut outcome.stdout, bytes, self.limits.stdout);
            }
            Event::Stderr(bytes) => {
                outcome.stderr_truncated |= !append(&mut outcome.stderr, bytes, self.limits.stderr);
            }
            Event::Truncated(truncated) => {
                outcome.stdout_truncated |= truncated.stream == "stdout";
                outcome.stderr_truncated |= truncated.stream == "stderr";
            }
            Event::Lost(lost) => {
                outcome.stdout_truncated |= lost.stdout > 0;
                outcome.stderr_truncated |= lost.stderr > 0;
            }
            Event::Cell(event) => {
                if let Some(event) = whole(&mut self.parts, event)? {
                    self.take_event(event);
                }
            }
            Event::Start(_) | Event::Exit(_) | Event::Eof(_) | Event::Other => {}
        }
        Ok(())
    }

    fn take_event(&mut self, event: CellEvent) {
        let outcome = &mut self.outcome;
        match event {
            CellEvent::Begin { execution_count } => outcome.execution_count = execution_count,
            CellEvent::Result { data, .. } => outcome.result = Some(data),
            CellEvent::Display { data } => outcome.displays.push(data),
            CellEvent::Error { name, value, traceback } => {
                outcome.error = Some(CellError { name, value, traceback });
            }
            CellEvent::Omitted { .. } => outcome.omitted += 1,
            CellEvent::End { execution_count, status } => {
                (outcome.execution_count, outcome.status) = (execution_count, status);
                self.ended = true;
            }
            // Parts are put together before they come here.
            CellEvent::Part { .. } => {}
        }
    }

    /// Refused where the end is missing.
    pub fn outcome(self) -> Result<CellOutcome, ClientError> {
        if self.ended { Ok(self.outcome) } else { Err(ClientError::Protocol("a cell ended without an end")) }
    }
}

impl Guest {
    /// Starts a context. A request without an id gets one, so that it can be repeated.
    pub async fn create_context(&self, request: &CreateContext) -> Result<Context, ClientError> {
        let mut request = request.clone();
        request.exec_id.get_or_insert_with(|| self.random_exec_id());
        self.call_json("POST /contexts", &to_json(&request)?, Repeat::Safe).await
    }

    pub async fn contexts(&self) -> Result<Vec<Context>, ClientError> {
        self.call_json::<ContextList>("GET /contexts", b"", Repeat::Safe).await.map(|list| list.contexts)
    }

    pub async fn context(&self, id: ExecId) -> Result<Context, ClientError> {
        self.call_json(&format!("GET /contexts/{id}"), b"", Repeat::Safe).await
    }

    /// Runs a cell and follows it to its end. It is refused while another one runs.
    pub async fn execute_cell(&self, id: ExecId, cell: &Cell) -> Result<CellStream, ClientError> {
        if cell.timeout_seconds.is_some_and(|seconds| !seconds.is_finite()) {
            return Err(ClientError::Invalid("the timeout is not a number of seconds"));
        }
        let line = format!("POST /contexts/{id}/execute");
        // Twice is not as good as once: the state of the context changes with it.
        self.cell_stream(id, &request(&line, &ACCEPT_RECORDS, &to_json(cell)?), Repeat::Never).await
    }

    /// Follows a cell again from a seq on, to its end.
    pub async fn attach_cell(&self, id: ExecId, from_seq: u64) -> Result<CellStream, ClientError> {
        let line = format!("GET /contexts/{id}/output?from={from_seq}");
        self.cell_stream(id, &request(&line, &ACCEPT_RECORDS, b""), Repeat::Safe).await
    }

    /// Runs a cell to its end and keeps its output up to the limits.
    pub async fn run_cell(
        &self,
        id: ExecId,
        cell: &Cell,
        limits: OutputLimits,
    ) -> Result<CellOutcome, ClientError> {
        let mut stream = self.execute_cell(id, cell).await?;
        let mut gathering = CellGathering::new(limits);
        let mut reattached = false;
        loop {
            match stream.next().await {
                Ok(Some(frame)) => gathering.take(&frame)?,
                Ok(None) => return gathering.outcome(),
                // The cell goes on without its reader, so the reader can come back, once.
                Err(ClientError::Unavailable(error)) => match stream.resume_from() {
                    Some(from) if !reattached => {
                        reattached = true;
                        stream = self.attach_cell(id, from).await?;
                    }
                    _ => return Err(ClientError::Unavailable(error)),
                },
                Err(error) => return Err(error),
            }
        }
    }

    /// Interrupts the running cell. Nothing happens when none runs.
    pub async fn interrupt_context(&self, id: ExecId) -> Result<Context, ClientError> {
        self.call_json(&format!("POST /contexts/{id}/interrupt"), b"", Repeat::Never).await
    }

    /// Gives a context a fresh interpreter. It keeps its id and loses its state.
    pub async fn restart_context(&self, id: ExecId) -> Result<Context, ClientError> {
        self.call_json(&format!("POST /contexts/{id}/restart"), b"", Repeat::Never).await
    }

    /// Ends a context and everything that it has started.
    pub async fn delete_context(&self, id: ExecId) -> Result<Context, ClientError> {
        self.call_json(&format!("DELETE /contexts/{id}"), b"", Repeat::Never).await
    }

    async fn cell_stream(
        &self,
        context_id: ExecId,
        request: &[u8],
        repeat: Repeat,
    ) -> Result<CellStream, ClientError> {
        let answer = tokio::time::timeout(PATIENCE, self.request(request, repeat)).await;
        let body = answer.unwrap_or_else(|_| Err(ClientError::too_late()))?.body;
        Ok(CellStream { context_id, records: Records::new(body), parts: String::new() })
    }
}
