//! How a connection goes from its hello through its requests, without anybody waiting for anybody.

use cubicle_sys::clock;
use rustix::event::epoll::EventFlags;

use super::building::Afterwards;
use super::connection::{Connection, Feeding, Phase, Sent};
use super::forward::is_there;
use super::http::{self, BodyDecoder, Head, Refusal};
use super::routes::Answer;
use super::server::{Server, Token};
use super::stream::{Pumped, Until};
use super::timers::Due;
use super::tunnel::Greeting;
use super::workers::{Task, Then};
use super::{execute, files};
use crate::hello::{self, HelloError, ServerAnswer};
use crate::wire;

/// Room for two megabytes of arguments, quoted.
const LONGEST_EXEC_BODY: usize = 4 * 1024 * 1024;
const LONGEST_BODY: usize = 1024 * 1024;
/// Of a refused request's rest, so much is read away, and for so long.
const MOST_DRAINED: usize = 64 * 1024 * 1024;
const DRAIN_NANOS: u64 = 5_000_000_000;
const MOST_PARKED: usize = 1024;
/// Reads of one connection before others get their turn.
const READS_AT_ONCE: usize = 16;

/// What became of a connection.
enum After {
    Keep(Connection),
    /// Closed, or in other hands.
    Gone,
}

enum Step {
    /// There may be more to do at once.
    Again(Connection),
    /// Something must happen first.
    Wait(Connection),
    Gone,
}

/// Who takes the body of a request.
enum Taker {
    /// Collected up to this size.
    Memory(usize),
    Worker(Reading),
    Stdin(u32),
    /// None is expected: the connection itself is what the request is about.
    Tunnel(u16),
    Park,
}

/// What a thread reads a body for.
enum Reading {
    Files,
    Execute,
}

impl Server {
    /// Something happened on a connection, or may have.
    pub(super) fn drive(&mut self, key: u64, flags: EventFlags) {
        let Some(mut connection) = self.connections.take(key) else { return };
        let input_is_unwanted = flags.intersects(EventFlags::IN) && !connection.reads();
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
        } else if flags.intersects(EventFlags::HUP | EventFlags::ERR)
            || (input_is_unwanted && matches!(connection.phase, Phase::Parked) && !is_there(connection.fd()))
        {
            self.connections.free(key);
            return;
        }
        match self.advance(key, connection) {
            After::Gone => self.connections.free(key),
            After::Keep(mut connection) => {
                if self.watch(key, &mut connection, input_is_unwanted).is_ok() {
                    self.connections.put_back(key, connection);
                } else {
                    self.connections.free(key);
                }
            }
        }
    }

    /// Lets every reader have what is new.
    pub(super) fn deliver(&mut self) {
        self.held_until = None;
        for key in self.connections.keys() {
            let Some(connection) = self.connections.take(key) else { continue };
            let waits = connection.waits_for_news();
            self.connections.put_back(key, connection);
            if waits {
                self.drive(key, EventFlags::empty());
            }
        }
    }

    /// Watching costs a system call, so a connection that is not read is watched until something comes.
    fn watch(&self, key: u64, connection: &mut Connection, input_is_unwanted: bool) -> std::io::Result<()> {
        let mut flags = connection.watched;
        flags.set(EventFlags::OUT, connection.wants_output());
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
                if let (Some(exec), Until::Cell(begin)) = (stream.exec, stream.until)
                    && let Some(end) = self.contexts.cell_end(exec, begin)
                {
                    stream.until = Until::Offset(end);
                }
                let end = match (stream.exec, stream.until) {
                    (Some(exec), Until::Exec(moment)) => {
                        self.execs.get(exec).and_then(|exec| exec.end(moment))
                    }
                    _ => None,
                };
                match stream.pump(&mut connection, &self.journal, end.as_ref()) {
                    Err(_) => return After::Gone,
                    Ok(Pumped::Finished { keep_alive }) => {
                        connection.closing = !keep_alive;
                        connection.phase = Phase::Idle;
                        if keep_alive && connection.may_answer_together() {
                            match self.step(key, connection) {
                                Step::Again(went_on) | Step::Wait(went_on) => connection = went_on,
                                Step::Gone => return After::Gone,
                            }
                            continue;
                        }
                    }
                    Ok(pumped) => {
                        self.has_more |= pumped == Pumped::More;
                        self.held_until = [self.held_until, stream.held_until].into_iter().flatten().min();
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
                Step::Wait(waiting) if waiting.read_closed && waiting.waits_for_input() => {
                    return After::Gone;
                }
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
            Phase::Executing { exec, keep_alive } => match self.finish_execute(exec, keep_alive) {
                Some(task) => self.leave_to_worker(connection, task, keep_alive),
                None => {
                    connection.phase = Phase::Executing { exec, keep_alive };
                    Step::Wait(connection)
                }
            },
            Phase::Warming { environment, keep_alive } => match self.warmed(environment.as_deref()) {
                Some(warmed) => {
                    http::write_json(connection.outbox(), 200, &warmed, keep_alive);
                    connection.closing = !keep_alive;
                    connection.phase = Phase::Idle;
                    Step::Again(connection)
                }
                None => {
                    connection.phase = Phase::Warming { environment, keep_alive };
                    Step::Wait(connection)
                }
            },
            Phase::Building { name, afterwards, keep_alive } => match (self.built(&name), *afterwards) {
                (None, afterwards) => {
                    connection.phase = Phase::Building { name, afterwards: Box::new(afterwards), keep_alive };
                    Step::Wait(connection)
                }
                (Some(Ok(_)), Afterwards::Execute(head, checked)) => {
                    let answer = self.begin_execute(&mut connection, head, *checked);
                    self.give(connection, answer, keep_alive)
                }
                (Some(built), _) => {
                    self.give(connection, built.map(|environment| Answer::Json(201, environment)), keep_alive)
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

    fn hear_hello(
        &mut self,
        key: u64,
        mut connection: Connection,
        nonce: hello::Nonce,
        hello_due: u64,
    ) -> Step {
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
            Err(refusal) => {
                return refuse(connection, &refusal, head.keep_alive && head.body == http::Body::Length(0));
            }
        };
        // Only the answer to a hello can be waiting, on a connection that has carried nothing else: it fits. Whoever takes
        // the connection over would not send it.
        if matches!(taker, Taker::Worker(_) | Taker::Tunnel(_))
            && !matches!(connection.flush(), Ok(Sent::All))
        {
            return Step::Gone;
        }
        match taker {
            Taker::Memory(most) => {
                let too_long = matches!(head.body, http::Body::Length(length) if length > most as u64);
                if too_long {
                    return refuse(connection, &body_too_long(most), false);
                }
                let decoder = BodyDecoder::new(head.body);
                self.hear_body(connection, Box::new(head), decoder, Vec::new())
            }
            Taker::Worker(reading) => {
                let task = match reading {
                    Reading::Files => Task::Files(head),
                    Reading::Execute => Task::Read(head),
                };
                // The body was not read, so that the connection cannot go on after a refusal.
                self.leave_to_worker(connection, task, false)
            }
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
                    Err((fd, refusal)) => {
                        refuse(Connection::new(fd, Phase::Idle, Vec::new()), &refusal, false)
                    }
                }
            }
            Taker::Park => {
                connection.outbox().extend_from_slice(http::SWITCHING);
                connection.phase = Phase::Parked;
                if self.parked.len() >= MOST_PARKED {
                    // Some of them may have left; the oldest is the likeliest.
                    self.parked.pop_front();
                }
                self.parked.push_back(key);
                Step::Again(connection)
            }
        }
    }

    fn taker(&self, head: &Head) -> Result<Taker, Refusal> {
        if files::wants(&head.method, &head.path) {
            return Ok(Taker::Worker(Reading::Files));
        }
        let parts: Vec<&str> = head.path.split('/').skip(1).collect();
        match (head.method.as_str(), &parts[..]) {
            ("POST", ["exec"] | ["contexts", _, "execute"]) => Ok(Taker::Memory(LONGEST_EXEC_BODY)),
            ("POST", ["execute"]) if execute::is_long(head) => Ok(Taker::Worker(Reading::Execute)),
            ("POST", ["exec", id, "stdin"]) => Ok(Taker::Stdin(self.find_exec(id)?)),
            ("POST", ["accept"]) => Ok(Taker::Park),
            ("GET", ["ports", port]) => {
                let port: u16 = port.parse().ok().filter(|port| *port > 0).ok_or_else(|| {
                    Refusal::invalid(format!("{port:?} is not a port: expected 1 to 65535"))
                })?;
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
        let is_long = head.path == "/exec" || head.path.starts_with("/contexts/");
        let most = if is_long { LONGEST_EXEC_BODY } else { LONGEST_BODY };
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
        let answer = self.answer(&mut connection, &head, &body);
        self.give(connection, answer, head.keep_alive)
    }

    fn give(
        &mut self,
        mut connection: Connection,
        answer: Result<Answer, Refusal>,
        keep_alive: bool,
    ) -> Step {
        match answer {
            Ok(Answer::Json(status, value)) => {
                http::write_json(connection.outbox(), status, &value, keep_alive);
                connection.closing = !keep_alive;
                connection.phase = Phase::Idle;
            }
            Ok(Answer::Phase(phase)) => connection.phase = phase,
            Ok(Answer::Worker(task)) => return self.leave_to_worker(connection, task, keep_alive),
            Err(refusal) => return refuse(connection, &refusal, keep_alive),
        }
        Step::Again(connection)
    }

    fn leave_to_worker(&mut self, connection: Connection, task: Task, keep_alive: bool) -> Step {
        match self.hand_to_worker(connection, task) {
            Ok(()) => Step::Gone,
            Err(refused) => {
                let (connection, refusal) = *refused;
                refuse(connection, &refusal, keep_alive)
            }
        }
    }

    /// Goes on with a connection that a thread had, with what the thread came to.
    pub(super) fn go_on(&mut self, mut connection: Connection, then: Then) {
        let step = match then {
            Then::Idle => Step::Again(connection),
            Then::Checked { head, checked } => {
                let keep_alive = head.keep_alive;
                let answer = self.begin_execute(&mut connection, head, *checked);
                self.give(connection, answer, keep_alive)
            }
            Then::Staged { head, admitted, staged } => {
                let answer = self.launch_execute(&mut connection, &head, *admitted, staged);
                self.give(connection, answer, head.keep_alive)
            }
        };
        let (Step::Again(connection) | Step::Wait(connection)) = step else { return };
        let has_something = !connection.inbox.is_empty() || !matches!(connection.phase, Phase::Idle);
        if let Ok(key) = self.add_connection(connection)
            && has_something
        {
            self.drive(key, EventFlags::empty());
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
        let written =
            self.execs.live_mut(feeding.exec).is_some_and(|live| live.input.has_written(feeding.goal));
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

fn refuse(mut connection: Connection, refusal: &Refusal, keep_alive: bool) -> Step {
    http::write_json(connection.outbox(), refusal.status, &refusal.body(), keep_alive);
    connection.phase = if keep_alive { Phase::Idle } else { Phase::Draining { left: MOST_DRAINED } };
    connection.closing = !keep_alive;
    Step::Again(connection)
}

fn body_too_long(most: usize) -> Refusal {
    Refusal::new(413, "body_too_long", format!("the body is longer than {most} bytes"))
}
