//! What is asked and what is answered.

use std::os::fd::AsFd;

use cubicle_model::{ExecId, Receipt, TtySize};
use cubicle_sys::{clock, terminal};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::building::Afterwards;
use super::connection::{Connection, Moment, Phase};
use super::forward::Unparked;
use super::http::{self, Head, Refusal};

use super::server::{Server, draft};
use super::stream::{Format, Stream, Until};
use super::tree::{self, Tag};
use super::tunnel::Greeting;
use super::workers::Task;
use super::{ending, execute, files, secrets, signals, spec};
use crate::hello;
use crate::journal::Kind;
use crate::wire;

/// How long the beginning of an exec may wait for its end, to be sent with it, unless its reader says so.
const HOLD_MS: u64 = 2;
const LONGEST_HOLD_MS: u64 = 1000;

pub(super) enum Answer {
    Json(u16, Value),
    /// The answer goes out over time.
    Phase(Phase),
    /// The answer comes from a thread.
    Worker(Task),
}

impl Answer {
    pub(super) fn building(name: String, afterwards: Afterwards, keep_alive: bool) -> Self {
        Self::Phase(Phase::Building { name, afterwards: Box::new(afterwards), keep_alive })
    }
}

impl Server {
    pub(super) fn answer(
        &mut self,
        connection: &mut Connection,
        head: &Head,
        body: &[u8],
    ) -> Result<Answer, Refusal> {
        let parts: Vec<&str> = head.path.split('/').skip(1).collect();
        match (head.method.as_str(), &parts[..]) {
            ("POST", ["exec"]) => self.start_exec(connection, head, body),
            ("GET", ["exec"]) => {
                let execs = self.execs.iter().map(super::exec::Exec::status).collect();
                Ok(Answer::Json(200, to_value(&wire::ExecList { execs })))
            }
            ("POST", ["execute"]) => {
                let checked = execute::check::parse(body)?;
                self.begin_execute(connection, head.clone(), checked)
            }
            ("GET", ["exec", id, "produced"]) => self.produced_by(head, self.find_exec(id)?),
            ("GET", ["envs"]) => Ok(self.list_environments()),
            ("POST", ["envs"]) => self.create_environment(parse(body)?, head.keep_alive),
            ("PUT", ["envs", name]) => self.attach_environment(name, parse(body)?),
            ("POST", ["warm"]) => self.warm(&parse(body)?, head.keep_alive),
            ("DELETE", ["envs", name]) => self.remove_environment(name),
            ("GET", ["exec", id]) => {
                let exec = self.find_exec(id)?;
                self.show_exec(connection, head, exec)
            }
            ("DELETE", ["exec", id]) => {
                let exec = self.find_exec(id)?;
                let grace = match head.parameter("grace_seconds") {
                    None => ending::GRACE_NANOS,
                    Some(given) => grace_nanos(given)?,
                };
                self.end_exec(exec, grace, false);
                Ok(Answer::Json(202, self.status_of(exec)))
            }
            ("POST", ["exec", id, "signal"]) => {
                let exec = self.find_exec(id)?;
                let request: wire::SignalRequest = parse(body)?;
                let number = signals::number(&request.signal).ok_or_else(|| {
                    Refusal::invalid("there is no such signal")
                        .hint("give a name such as TERM, or a number from 1 to 64")
                })?;
                let reached = tree::send(Tag::of(exec), number);
                if reached == 0 {
                    return Err(Refusal::new(409, "exec_ended", "no process of this exec is left"));
                }
                Ok(Answer::Json(200, json!({ "signalled": reached })))
            }
            ("POST", ["exec", id, "resize"]) => {
                let exec = self.find_exec(id)?;
                let size: TtySize = parse(body)?;
                self.resize(exec, size)?;
                Ok(Answer::Json(200, json!({})))
            }
            ("GET", ["journal"]) => self.show_journal(connection, head),
            ("GET", ["health"]) => Ok(Answer::Json(200, self.health())),
            ("GET", ["receipt"]) => Ok(Answer::Json(200, to_value(&self.amended_receipt()?))),
            ("POST", ["bind"]) => {
                self.bind(parse(body)?)?;
                Ok(Answer::Json(200, json!({})))
            }
            ("POST", ["deadline"]) => {
                let request: wire::DeadlineRequest = parse(body)?;
                self.set_deadline(request.seconds);
                Ok(Answer::Json(200, json!({ "deadline_seconds": self.deadline_seconds() })))
            }
            ("POST", ["listen"]) => self.listen(connection, &parse(body)?),
            ("POST", ["accept", "open"]) => self.open_parked(body),
            (_, ["contexts", rest @ ..]) => self.answer_contexts(connection, head, rest, body),
            (
                _,
                [
                    "exec" | "journal" | "health" | "receipt" | "bind" | "deadline" | "listen" | "accept"
                    | "ports" | "execute" | "envs" | "warm",
                    ..,
                ],
            ) => {
                let (method, path) = (&head.method, &head.path);
                Err(Refusal::new(405, "method_not_allowed", format!("{path} cannot be asked to {method}")))
            }
            _ => Err(Refusal::new(404, "no_such_route", format!("there is nothing at {}", head.path))),
        }
    }

    fn start_exec(
        &mut self,
        connection: &mut Connection,
        head: &Head,
        body: &[u8],
    ) -> Result<Answer, Refusal> {
        let spec = spec::parse(body)?;
        hold_ms(head)?;
        let known = spec.exec_id.and_then(|id| self.execs.number_of(&id));
        let exec = match known {
            Some(exec) => exec,
            None => self.launch(&spec)?,
        };
        if head.flag("background") {
            let found = self.execs.get(exec).ok_or_else(exec_not_found)?;
            let started = wire::Started { exec_id: found.id, exec, seq: found.start_seq };
            return Ok(Answer::Json(if known.is_some() { 200 } else { 201 }, to_value(&started)));
        }
        if known.is_some() {
            return self.stream_exec(connection, head, exec, None);
        }
        self.stream_started(connection, head, exec)
    }

    /// The records of an exec that has only just begun. Most are short: their beginning, output and end then go out
    /// together, and wake their reader once.
    pub(super) fn stream_started(
        &mut self,
        connection: &mut Connection,
        head: &Head,
        exec: u32,
    ) -> Result<Answer, Refusal> {
        let hold_ms = hold_ms(head)?;
        Ok(match self.stream_exec(connection, head, exec, None)? {
            Answer::Phase(Phase::Streaming(mut stream)) => {
                stream.held_until = Some(clock::boot_nanos() + hold_ms * 1_000_000);
                Answer::Phase(Phase::Streaming(stream))
            }
            answer => answer,
        })
    }

    fn show_exec(&mut self, connection: &mut Connection, head: &Head, exec: u32) -> Result<Answer, Refusal> {
        match head.parameter("wait") {
            Some("false") => Ok(Answer::Json(200, self.status_of(exec))),
            Some("exit") => Ok(Answer::Phase(Phase::Awaiting { exec, moment: Moment::Exit })),
            Some("eof") => Ok(Answer::Phase(Phase::Awaiting { exec, moment: Moment::Eof })),
            Some(_) => Err(Refusal::invalid("wait is one of exit, eof and false")),
            None => {
                let from = self.first_seq(head)?;
                self.stream_exec(connection, head, exec, from)
            }
        }
    }

    fn stream_exec(
        &mut self,
        connection: &mut Connection,
        head: &Head,
        exec: u32,
        from: Option<u64>,
    ) -> Result<Answer, Refusal> {
        let moment = match head.parameter("until") {
            None | Some("eof") => Moment::Eof,
            Some("exit") => Moment::Exit,
            Some(_) => return Err(Refusal::invalid("until is one of exit and eof")),
        };
        let found = self.execs.get(exec).ok_or_else(exec_not_found)?;
        let offset = match from {
            None => found.start_offset,
            Some(from) => self.journal.offset_of(from).map_err(journal_unreadable)?.max(found.start_offset),
        };
        let format = Format::wanted(head);
        let extra = format!("X-Cubicle-Exec: {}\r\n", found.id);
        http::write_chunked_head(connection.outbox(), format.media(), &extra);
        let stream = Stream::new(offset, Some(exec), format, Until::Exec(moment), head.keep_alive);
        Ok(Answer::Phase(Phase::Streaming(Box::new(stream))))
    }

    fn show_journal(&mut self, connection: &mut Connection, head: &Head) -> Result<Answer, Refusal> {
        let from = self.first_seq(head)?.unwrap_or(1);
        let offset = self.journal.offset_of(from).map_err(journal_unreadable)?;
        let until = if head.parameter("follow") == Some("false") {
            Until::Offset(self.journal.end())
        } else {
            Until::Never
        };
        let format = Format::wanted(head);
        http::write_chunked_head(connection.outbox(), format.media(), "");
        let stream = Stream::new(offset, None, format, until, head.keep_alive);
        Ok(Answer::Phase(Phase::Streaming(Box::new(stream))))
    }

    /// The first seq a reader wants: asked for, or behind the last event it got before it reconnected.
    pub(super) fn first_seq(&self, head: &Head) -> Result<Option<u64>, Refusal> {
        if let Some(from) = head.parameter("from") {
            let from = from.parse().map_err(|_| Refusal::invalid("from is the number of a record"))?;
            return Ok(Some(from));
        }
        Ok(head
            .header("last-event-id")
            .and_then(|last| last.parse::<u64>().ok())
            .map(|last| last.saturating_add(1)))
    }

    pub(super) fn find_exec(&self, id: &str) -> Result<u32, Refusal> {
        let id: ExecId =
            id.parse().map_err(|error: cubicle_model::ParseIdError| Refusal::invalid(error.to_string()))?;
        self.execs.number_of(&id).ok_or_else(exec_not_found)
    }

    fn status_of(&self, exec: u32) -> Value {
        self.execs.get(exec).map_or(Value::Null, |exec| to_value(&exec.status()))
    }

    fn resize(&mut self, exec: u32, size: TtySize) -> Result<(), Refusal> {
        let live = self
            .execs
            .live_mut(exec)
            .ok_or_else(|| Refusal::new(409, "exec_ended", "this exec has ended"))?;
        let Some(controller) = live.stdout.as_ref().filter(|_| live.has_terminal) else {
            return Err(Refusal::new(409, "no_terminal", "this exec has no terminal"));
        };
        terminal::resize(controller.as_fd(), size.rows, size.columns)
            .map_err(|error| Refusal::new(500, "internal", format!("cannot resize the terminal: {error}")))
    }

    fn deadline_seconds(&self) -> u64 {
        self.deadline.saturating_sub(clock::boot_nanos()) / 1_000_000_000
    }

    fn health(&self) -> Value {
        to_value(&wire::Health {
            status: "healthy".into(),
            state: if self.building.is_under_way() && self.load() == 0 {
                wire::Activity::Warming
            } else if self.execs.live_count() + self.staging.len() > 0 {
                wire::Activity::Busy
            } else if self.zygotes.is_warming() {
                wire::Activity::Warming
            } else {
                wire::Activity::Idle
            },
            sandbox: self.settings.sandbox,
            environments: self.environments.list(),
            capacity: self.settings.max_executes,
            current_load: self.load(),
            uptime_seconds: clock::boot_nanos().saturating_sub(self.started) / 1_000_000_000,
            execs_running: self.execs.live_count(),
            deadline_seconds: self.deadline_seconds(),
            connections: self.connections.len(),
            journal: wire::JournalState {
                next_seq: self.journal.next_seq(),
                bytes: self.journal.end(),
                limit: self.journal.limit(),
            },
        })
    }

    fn amended_receipt(&self) -> Result<Receipt, Refusal> {
        let text = self.receipt.as_deref();
        let text =
            text.ok_or_else(|| Refusal::new(404, "no_receipt", "this sandbox has no isolation receipt"))?;
        let mut receipt: Receipt = serde_json::from_str(text).map_err(|error| {
            Refusal::new(500, "no_receipt", format!("the receipt cannot be read: {error}"))
        })?;
        for amendment in &self.amendments {
            receipt.amend(amendment.clone());
        }
        Ok(receipt)
    }

    /// Small files are written right here and not in a thread: nothing runs in the sandbox yet that would have to wait.
    fn bind(&mut self, request: wire::BindRequest) -> Result<(), Refusal> {
        spec::check_environment(&request.env)?;
        spec::check_environment(&request.secrets.env)?;
        secrets::check(&request.secrets.files)?;
        for file in &request.secrets.files {
            secrets::write(file, &self.settings.secrets)?;
        }
        for file in &request.files {
            files::write_small(file, self.settings.workload)?;
        }
        if !request.amendment.is_empty() {
            let payload = serde_json::to_vec(&request.amendment).expect("an amendment is plain JSON");
            self.journal.append_from_reserve(&[draft(0, Kind::Amendment, &payload)]).map_err(|error| {
                Refusal::new(507, "journal_unwritable", format!("cannot write the journal: {error}"))
            })?;
            self.amendments.push(request.amendment);
        }
        if let Some(seconds) = request.deadline_seconds {
            self.set_deadline(seconds);
        }
        self.settings.env.extend(request.env);
        self.settings.env.extend(request.secrets.env);
        Ok(())
    }

    /// Opens a parked connection from the guest's side and joins it with a port of the sandbox.
    fn open_parked(&mut self, body: &[u8]) -> Result<Answer, Refusal> {
        let request: wire::OpenRequest = parse(body)?;
        let Some(parked) = self.first_parked() else {
            return Err(Refusal::new(409, "none_parked", "the host has no connection parked here")
                .hint("the host parks one with POST /accept"));
        };
        let Some(Unparked { fd, early, outgoing }) = self.unpark(parked) else {
            return Err(Refusal::new(409, "none_parked", "the host has just taken its connection away"));
        };
        let opened = wire::Opened { open: request.name, arrival: None };
        let line = [outgoing, hello::line(&opened)].concat();
        match self.open_tunnel(fd, early, request.port, Greeting::Line(line)) {
            Ok(()) => Ok(Answer::Json(200, json!({}))),
            Err((_, refusal)) => Err(refusal),
        }
    }
}

pub(super) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body)
        .map_err(|error| Refusal::invalid(format!("the body is not what is expected: {error}")))
}

pub(super) fn to_value(value: &impl serde::Serialize) -> Value {
    serde_json::to_value(value).expect("the daemon's answers have only string keys")
}

/// How long the beginning of an exec may wait for its end.
fn hold_ms(head: &Head) -> Result<u64, Refusal> {
    let Some(given) = head.parameter("hold_ms") else { return Ok(HOLD_MS) };
    let parsed = given.parse().ok().filter(|hold| *hold <= LONGEST_HOLD_MS);
    parsed.ok_or_else(|| Refusal::invalid(format!("hold_ms is a number from 0 to {LONGEST_HOLD_MS}")))
}

fn grace_nanos(given: &str) -> Result<u64, Refusal> {
    const LONGEST_SECONDS: f64 = 3600.0;
    match given.parse::<f64>() {
        Ok(seconds) if (0.0..=LONGEST_SECONDS).contains(&seconds) => Ok((seconds * 1e9) as u64),
        _ => Err(Refusal::invalid("grace_seconds is a number from 0 to 3600")),
    }
}

fn exec_not_found() -> Refusal {
    Refusal::new(404, "exec_not_found", "this sandbox has no such exec")
}

fn journal_unreadable(error: std::io::Error) -> Refusal {
    Refusal::new(500, "journal_unreadable", format!("cannot read the journal: {error}"))
}
