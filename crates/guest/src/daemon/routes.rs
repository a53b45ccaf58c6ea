//! What a connection says and what it is answered.

use std::os::fd::AsFd;

use cubicle_model::{ExecId, TtySize};
use cubicle_sys::{clock, terminal};
use rustix::event::epoll::EventFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::connection::{Connection, Feeding, Moment, Phase, Sent};
use super::http::{self, BodyDecoder, Head, Refusal};
use super::server::{Server, Token};
use super::timers::Due;
use super::stream::{Format, Pumped, Stream, Until};
use super::tree::{self, Tag};
use super::tunnel::{self, Greeting};
use super::{ending, files, signals, spec};
use crate::hello::{self, HelloError, ServerAnswer};
use crate::journal::{Draft, Kind};
use crate::wire;

/// Room for two megabytes of arguments, quoted.
const LONGEST_EXEC_BODY: usize = 4 * 1024 * 1024;
const LONGEST_BODY: usize = 1024 * 1024;
/// Of a refused request's rest, so much is read away, and for so long.
const MOST_DRAINED: usize = 64 * 1024 * 1024;
const DRAIN_NANOS: u64 = 5_000_000_000;
/// Reads of one connection before others get their turn.
const READS_AT_ONCE: usize = 16;

/// What became of a connection.
enum After {
    Keep(Connection),
    /// Closed, or in other hands.
    Gone,
}

enum Answer {
    Json(u16, Value),
    /// The answer goes out over time.
    Phase(Phase),
}

/// Who takes the body of a request.
enum Taker {
    /// Collected up to this size.
    Memory(usize),
    Worker,
    Stdin(u32),
    /// None is expected: the connection itself is what the request is about.
    Tunnel(u16),
    Park,
}

impl Server {
    /// Something happened on a connection, or may have.
    pub(super) fn drive(&mut self, key: u64, flags: EventFlags) {
        let Some(mut connection) = self.connections.take(key) else { return };
        if flags.intersects(EventFlags::IN) && connection.reads() {
            for _ in 0..READS_AT_ONCE {
                match connection.fill_inbox() {
                    Ok(true) if connection.reads() && connection.inbox.len() < LONGEST_BODY => {}
                    Ok(_) => break,
                    Err(_) => {
                        self.connections.free(key);
                        return;
                    }
                }
            }
        } else if flags.intersects(EventFlags::HUP | EventFlags::ERR) {
            self.connections.free(key);
            return;
        }
        match self.advance(key, connection) {
            After::Gone => self.connections.free(key),
            After::Keep(mut connection) => {
                let unwanted = flags.intersects(EventFlags::IN) && !connection.reads();
                if self.watch(key, &mut connection, unwanted).is_ok() {
                    self.connections.put_back(key, connection);
                } else {
                    self.connections.free(key);
                }
            }
        }
    }

    /// Lets every reader have what is new.
    pub(super) fn deliver(&mut self) {
        for key in self.connections.keys() {
            let Some(connection) = self.connections.take(key) else { continue };
            let waits = matches!(connection.phase, Phase::Streaming(_) | Phase::Awaiting { .. } | Phase::Feeding(_));
            self.connections.put_back(key, connection);
            if waits {
                self.drive(key, EventFlags::empty());
            }
        }
    }

    /// Watching costs a system call, so a connection that is not read is watched until something comes.
    fn watch(&self, key: u64, connection: &mut Connection, input_is_unwanted: bool) -> std::io::Result<()> {
        let mut flags = connection.watched;
        flags.set(EventFlags::OUT, connection.blocked || connection.has_outgoing());
        if connection.reads() {
            flags |= EventFlags::IN;
        } else if input_is_unwanted || connection.read_closed {
            flags -= EventFlags::IN;
        }
        if flags != connection.watched {
            self.epoll.modify(connection.fd(), Token::Connection(key), flags)?;
            connection.watched = flags;
        }
        Ok(())
    }

    pub(super) fn drop_silent(&mut self, key: u64) {
        if let Some(connection) = self.connections.take(key) {
            if matches!(connection.phase, Phase::Greeting { .. } | Phase::Draining { .. }) {
                self.connections.free(key);
            } else {
                self.connections.put_back(key, connection);
            }
        }
    }

    /// Goes on with a connection as far as possible without waiting.
    fn advance(&mut self, key: u64, mut connection: Connection) -> After {
        loop {
            connection.blocked = false;
            if matches!(connection.phase, Phase::Streaming(_))
                && let Phase::Streaming(mut stream) = std::mem::replace(&mut connection.phase, Phase::Moving)
            {
                let end = match (stream.exec, stream.until) {
                    (Some(exec), Until::Exec(moment)) => self.execs.get(exec).and_then(|exec| exec.end(moment)),
                    _ => None,
                };
                match stream.pump(&mut connection, &self.journal, end.as_ref()) {
                    Err(_) => return After::Gone,
                    Ok(Pumped::Finished { keep_alive }) => {
                        connection.closing = !keep_alive;
                        connection.phase = Phase::Idle;
                    }
                    Ok(pumped) => {
                        self.has_more |= pumped == Pumped::More;
                        connection.blocked = pumped == Pumped::Blocked;
                        connection.phase = Phase::Streaming(stream);
                        return After::Keep(connection);
                    }
                }
            }
            match connection.flush() {
                Err(_) => return After::Gone,
                Ok(Sent::Blocked) => return After::Keep(connection),
                Ok(Sent::All) if connection.closing => {
                    if !matches!(connection.phase, Phase::Draining { .. }) {
                        return After::Gone;
                    }
                    let _ = rustix::net::shutdown(connection.fd(), rustix::net::Shutdown::Write);
                    connection.closing = false;
                    self.timers.add(clock::boot_nanos() + DRAIN_NANOS, Due::Hello(key));
                }
                Ok(Sent::All) => {}
            }
            match self.step(key, connection) {
                Step::Again(went_on) => connection = went_on,
                Step::Wait(waiting) if waiting.read_closed && waiting.waits_for_input() => return After::Gone,
                Step::Wait(mut waiting) => {
                    return match waiting.flush() {
                        Err(_) => After::Gone,
                        Ok(_) => After::Keep(waiting),
                    };
                }
                Step::Gone => return After::Gone,
            }
        }
    }

    fn step(&mut self, key: u64, mut connection: Connection) -> Step {
        match std::mem::replace(&mut connection.phase, Phase::Moving) {
            Phase::Greeting { nonce, hello_due } => self.hear_hello(key, connection, nonce, hello_due),
            Phase::Idle => self.hear_request(key, connection),
            Phase::Body { head, decoder, body } => self.hear_body(connection, head, decoder, body),
            Phase::Awaiting { exec, moment } => match self.execs.get(exec) {
                Some(found) if found.has_come_to(moment) => {
                    http::write_json(connection.outbox(), 200, &found.status(), true);
                    connection.phase = Phase::Idle;
                    Step::Again(connection)
                }
                _ => {
                    connection.phase = Phase::Awaiting { exec, moment };
                    Step::Wait(connection)
                }
            },
            Phase::Feeding(feeding) => self.feed(connection, feeding),
            Phase::Draining { left } => match left.checked_sub(connection.inbox.len()) {
                Some(left) => {
                    connection.use_up(connection.inbox.len());
                    connection.phase = Phase::Draining { left };
                    Step::Wait(connection)
                }
                None => Step::Gone,
            },
            Phase::Moving => Step::Gone,
            phase @ (Phase::Parked | Phase::Streaming(_)) => {
                connection.phase = phase;
                Step::Wait(connection)
            }
        }
    }

    fn hear_hello(&mut self, key: u64, mut connection: Connection, nonce: hello::Nonce, hello_due: u64) -> Step {
        let end = connection.inbox.iter().take(hello::LONGEST_LINE).position(|byte| *byte == b'\n');
        let admitted = match end {
            None if connection.inbox.len() < hello::LONGEST_LINE => {
                connection.phase = Phase::Greeting { nonce, hello_due };
                return Step::Wait(connection);
            }
            None => Err(HelloError::NotAHello),
            Some(end) => hello::parse_client_hello(&connection.inbox[..end])
                .and_then(|client| hello::admit(&client, self.settings.sandbox, &self.settings.key, nonce)),
        };
        match admitted {
            Ok(answer) => {
                self.timers.remove(hello_due, Due::Hello(key));
                connection.use_up(end.map_or(0, |end| end + 1));
                connection.outbox().extend(hello::line(&answer));
                // The answer may go out together with that to a request that came right behind.
                self.hear_request(key, connection)
            }
            Err(error) => {
                let refusal = hello::Refusal { code: error.code().into(), message: error.to_string() };
                connection.outbox().extend(hello::line(&ServerAnswer::Error(refusal)));
                // Still not introduced: nothing that follows is a request.
                connection.phase = Phase::Moving;
                connection.closing = true;
                Step::Again(connection)
            }
        }
    }

    fn hear_request(&mut self, key: u64, mut connection: Connection) -> Step {
        let (head, len) = match http::parse_head(&connection.inbox) {
            Ok(Some(parsed)) => parsed,
            Ok(None) => {
                connection.phase = Phase::Idle;
                return Step::Wait(connection);
            }
            Err(bad) => return refuse(connection, &bad.into(), false),
        };
        connection.use_up(len);
        let taker = match self.taker(&head) {
            Ok(taker) => taker,
            // The body was not read, so the connection cannot go on unless there is none.
            Err(refusal) => return refuse(connection, &refusal, head.keep_alive && head.body == http::Body::Length(0)),
        };
        match taker {
            Taker::Memory(most) => {
                let too_long = matches!(head.body, http::Body::Length(length) if length > most as u64);
                if too_long {
                    return refuse(connection, &body_too_long(most), false);
                }
                let decoder = BodyDecoder::new(head.body);
                self.hear_body(connection, Box::new(head), decoder, Vec::new())
            }
            Taker::Worker => match self.hand_to_worker(connection, head) {
                Ok(()) => Step::Gone,
                Err((connection, refusal)) => refuse(connection, &refusal, false),
            },
            Taker::Stdin(exec) => {
                let feeding = Feeding {
                    exec,
                    decoder: BodyDecoder::new(head.body),
                    received: 0,
                    close: head.flag("close"),
                    keep_alive: head.keep_alive,
                    goal: 0,
                    paused: false,
                };
                self.feed(connection, feeding)
            }
            Taker::Tunnel(port) => {
                self.epoll.remove(connection.fd());
                let (fd, early) = connection.into_parts();
                match self.open_tunnel(fd, early, port, Greeting::Upgrade { port }) {
                    Ok(()) => Step::Gone,
                    Err((fd, refusal)) => refuse(Connection::new(fd, Phase::Idle, Vec::new()), &refusal, false),
                }
            }
            Taker::Park => {
                connection.outbox().extend_from_slice(http::SWITCHING);
                connection.phase = Phase::Parked;
                self.parked.push_back(key);
                Step::Again(connection)
            }
        }
    }

    fn taker(&self, head: &Head) -> Result<Taker, Refusal> {
        if files::wants(&head.method, &head.path) {
            return Ok(Taker::Worker);
        }
        let parts: Vec<&str> = head.path.split('/').skip(1).collect();
        match (head.method.as_str(), &parts[..]) {
            ("POST", ["exec"]) => Ok(Taker::Memory(LONGEST_EXEC_BODY)),
            ("POST", ["exec", id, "stdin"]) => Ok(Taker::Stdin(self.find_exec(id)?)),
            ("POST", ["accept"]) => Ok(Taker::Park),
            ("GET", ["ports", port]) => {
                let port: u16 = port
                    .parse()
                    .ok()
                    .filter(|port| *port > 0)
                    .ok_or_else(|| Refusal::invalid(format!("{port:?} is not a port: expected 1 to 65535")))?;
                if head.header("upgrade").is_none_or(|upgrade| !upgrade.eq_ignore_ascii_case("tcp")) {
                    return Err(Refusal::new(426, "upgrade_required", "this is a way to a TCP port")
                        .hint("send the headers Connection: Upgrade and Upgrade: tcp"));
                }
                Ok(Taker::Tunnel(port))
            }
            _ => Ok(Taker::Memory(LONGEST_BODY)),
        }
    }

    fn hear_body(
        &mut self,
        mut connection: Connection,
        head: Box<Head>,
        mut decoder: BodyDecoder,
        mut body: Vec<u8>,
    ) -> Step {
        let most = if head.path == "/exec" { LONGEST_EXEC_BODY } else { LONGEST_BODY };
        if !decoder.is_done() {
            let room = (most + 1).saturating_sub(body.len());
            match decoder.decode(&connection.inbox, &mut body, room) {
                Ok(used) => connection.use_up(used),
                Err(bad) => return refuse(connection, &bad.into(), false),
            }
            if body.len() > most {
                return refuse(connection, &body_too_long(most), false);
            }
            if !decoder.is_done() {
                connection.phase = Phase::Body { head, decoder, body };
                return Step::Wait(connection);
            }
        }
        match self.answer(&mut connection, &head, &body) {
            Ok(Answer::Json(status, value)) => {
                http::write_json(connection.outbox(), status, &value, head.keep_alive);
                connection.closing = !head.keep_alive;
                connection.phase = Phase::Idle;
            }
            Ok(Answer::Phase(phase)) => connection.phase = phase,
            Err(refusal) => return refuse(connection, &refusal, head.keep_alive),
        }
        Step::Again(connection)
    }

    fn answer(&mut self, connection: &mut Connection, head: &Head, body: &[u8]) -> Result<Answer, Refusal> {
        let parts: Vec<&str> = head.path.split('/').skip(1).collect();
        match (head.method.as_str(), &parts[..]) {
            ("POST", ["exec"]) => self.start_exec(connection, head, body),
            ("GET", ["exec"]) => {
                let execs = self.execs.iter().map(super::exec::Exec::status).collect();
                Ok(Answer::Json(200, to_value(&wire::ExecList { execs })))
            }
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
                    Refusal::invalid("there is no such signal").hint("give a name such as TERM, or a number from 1 to 64")
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
            ("GET", ["receipt"]) => match &self.receipt {
                Some(receipt) => Ok(Answer::Json(200, receipt.clone())),
                None => Err(Refusal::new(404, "no_receipt", "this sandbox has no isolation receipt")),
            },
            ("PUT", ["receipt"]) => self.replace_receipt(body),
            ("POST", ["bind"]) => {
                let request: wire::BindRequest = parse(body)?;
                spec::check_environment(&request.env)?;
                self.settings.env.extend(request.env);
                Ok(Answer::Json(200, json!({})))
            }
            ("POST", ["deadline"]) => {
                let request: wire::DeadlineRequest = parse(body)?;
                self.set_deadline(request.seconds);
                Ok(Answer::Json(200, json!({ "deadline_seconds": self.deadline_seconds() })))
            }
            ("POST", ["listen"]) => self.listen(connection, body),
            ("POST", ["accept", "open"]) => self.open_parked(body),
            (_, ["exec" | "journal" | "health" | "receipt" | "bind" | "deadline" | "listen" | "accept" | "ports", ..]) => {
                let (method, path) = (&head.method, &head.path);
                Err(Refusal::new(405, "method_not_allowed", format!("{path} cannot be asked to {method}")))
            }
            _ => Err(Refusal::new(404, "no_such_route", format!("there is nothing at {}", head.path))),
        }
    }

    fn start_exec(&mut self, connection: &mut Connection, head: &Head, body: &[u8]) -> Result<Answer, Refusal> {
        let spec = spec::parse(body)?;
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
        self.stream_exec(connection, head, exec, None)
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
    fn first_seq(&self, head: &Head) -> Result<Option<u64>, Refusal> {
        if let Some(from) = head.parameter("from") {
            let from = from.parse().map_err(|_| Refusal::invalid("from is the number of a record"))?;
            return Ok(Some(from));
        }
        Ok(head.header("last-event-id").and_then(|last| last.parse::<u64>().ok()).map(|last| last.saturating_add(1)))
    }

    fn find_exec(&self, id: &str) -> Result<u32, Refusal> {
        let id: ExecId =
            id.parse().map_err(|error: cubicle_model::ParseIdError| Refusal::invalid(error.to_string()))?;
        self.execs.number_of(&id).ok_or_else(exec_not_found)
    }

    fn status_of(&self, exec: u32) -> Value {
        self.execs.get(exec).map_or(Value::Null, |exec| to_value(&exec.status()))
    }

    fn resize(&mut self, exec: u32, size: TtySize) -> Result<(), Refusal> {
        let live = self.execs.live_mut(exec).ok_or_else(|| Refusal::new(409, "exec_ended", "this exec has ended"))?;
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
            status: "ok".into(),
            sandbox: self.settings.sandbox,
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

    /// A sandbox that was bound to its user has another receipt than before; the journal keeps both.
    fn replace_receipt(&mut self, body: &[u8]) -> Result<Answer, Refusal> {
        let receipt: Value = parse(body)?;
        let payload = receipt.to_string();
        let draft = Draft {
            kind: Kind::Receipt,
            exec: 0,
            time_us: clock::unix_micros(),
            stream_offset: 0,
            payload: payload.as_bytes(),
        };
        self.journal
            .append_from_reserve(&[draft])
            .map_err(|error| Refusal::new(507, "journal_unwritable", format!("cannot write the journal: {error}")))?;
        self.receipt = Some(receipt);
        Ok(Answer::Json(200, json!({})))
    }

    /// Makes a listener on the sandbox's loopback and gives its descriptor away.
    fn listen(&mut self, connection: &mut Connection, body: &[u8]) -> Result<Answer, Refusal> {
        let request: wire::ListenRequest = parse(body)?;
        let made = || {
            let flags = SocketFlags::CLOEXEC;
            let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
            rustix::net::sockopt::set_socket_reuseaddr(&socket, true)?;
            rustix::net::bind(&socket, &tunnel::loopback(request.port))?;
            rustix::net::listen(&socket, 1024)?;
            let address = std::net::SocketAddrV4::try_from(rustix::net::getsockname(&socket)?)?;
            Ok::<_, rustix::io::Errno>((socket, address.port()))
        };
        let (socket, port) = made().map_err(|error| {
            Refusal::new(409, "port_taken", format!("cannot listen on port {} of the sandbox: {error}", request.port))
                .hint("choose another port, or 0 for any free one")
        })?;
        connection.send_descriptor_with_next(socket);
        Ok(Answer::Json(200, to_value(&wire::ListenRequest { port })))
    }

    /// Opens a parked connection from the guest's side and joins it with a port of the sandbox.
    fn open_parked(&mut self, body: &[u8]) -> Result<Answer, Refusal> {
        let request: wire::OpenRequest = parse(body)?;
        let parked = loop {
            let Some(key) = self.parked.pop_front() else {
                return Err(Refusal::new(409, "none_parked", "the host has no connection parked here")
                    .hint("the host parks one with POST /accept"));
            };
            if let Some(connection) = self.connections.take(key) {
                self.connections.free(key);
                break connection;
            }
        };
        self.epoll.remove(parked.fd());
        let (fd, early) = parked.into_parts();
        let line = hello::line(&wire::Opened { open: request.name });
        match self.open_tunnel(fd, early, request.port, Greeting::Line(line)) {
            Ok(()) => Ok(Answer::Json(200, json!({}))),
            Err((_, refusal)) => Err(refusal),
        }
    }

    /// Passes a body on to an exec's standard input as the process takes it.
    fn feed(&mut self, mut connection: Connection, mut feeding: Feeding) -> Step {
        let closed = Refusal::new(409, "stdin_closed", "the exec's standard input is closed")
            .hint("only execs with stdin \"stream\" take input, until it is closed or they end");
        let Some(live) = self.execs.live_mut(feeding.exec) else {
            return refuse(connection, &closed, feeding.keep_alive && feeding.decoder.is_done());
        };
        let was_done = feeding.decoder.is_done() && feeding.goal > 0;
        if live.input.is_broken() || (!was_done && !live.input.is_open()) {
            let written = was_done && live.input.has_written(feeding.goal);
            if !written {
                return refuse(connection, &closed, feeding.keep_alive && feeding.decoder.is_done());
            }
        }
        feeding.paused = false;
        if !was_done {
            let mut bytes = Vec::new();
            match feeding.decoder.decode(&connection.inbox, &mut bytes, live.input.room()) {
                Ok(used) => connection.use_up(used),
                Err(bad) => return refuse(connection, &bad.into(), false),
            }
            feeding.received += bytes.len() as u64;
            live.input.push(&bytes);
            feeding.goal = live.input.queued();
            if feeding.decoder.is_done() && feeding.close {
                live.input.close();
            }
            feeding.paused = live.input.room() == 0;
        }
        self.write_input(feeding.exec);
        let written = self.execs.live_mut(feeding.exec).is_some_and(|live| live.input.has_written(feeding.goal));
        if feeding.decoder.is_done() && written {
            let answer = wire::Written { written: feeding.received };
            http::write_json(connection.outbox(), 200, &answer, feeding.keep_alive);
            connection.closing = !feeding.keep_alive;
            connection.phase = Phase::Idle;
            return Step::Again(connection);
        }
        connection.phase = Phase::Feeding(feeding);
        Step::Wait(connection)
    }
}

enum Step {
    /// There may be more to do at once.
    Again(Connection),
    /// Something must happen first.
    Wait(Connection),
    Gone,
}

fn refuse(mut connection: Connection, refusal: &Refusal, keep_alive: bool) -> Step {
    http::write_json(connection.outbox(), refusal.status, &refusal.body(), keep_alive);
    connection.phase = if keep_alive { Phase::Idle } else { Phase::Draining { left: MOST_DRAINED } };
    connection.closing = !keep_alive;
    Step::Again(connection)
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body).map_err(|error| Refusal::invalid(format!("the body is not what is expected: {error}")))
}

fn to_value(value: &impl serde::Serialize) -> Value {
    serde_json::to_value(value).expect("the daemon's answers have only string keys")
}

fn grace_nanos(given: &str) -> Result<u64, Refusal> {
    const LONGEST_SECONDS: f64 = 3600.0;
    match given.parse::<f64>() {
        Ok(seconds) if (0.0..=LONGEST_SECONDS).contains(&seconds) => Ok((seconds * 1e9) as u64),
        _ => Err(Refusal::invalid("grace_seconds is a number from 0 to 3600")),
    }
}

fn body_too_long(most: usize) -> Refusal {
    Refusal::new(413, "body_too_long", format!("the body is longer than {most} bytes"))
}

fn exec_not_found() -> Refusal {
    Refusal::new(404, "exec_not_found", "this sandbox has no such exec")
}

fn journal_unreadable(error: std::io::Error) -> Refusal {
    Refusal::new(500, "journal_unreadable", format!("cannot read the journal: {error}"))
}
