//! Cells: given to an interpreter, told of by it, ended by it or for it.

use cubicle_sys::clock;
use rustix::event::epoll::EventFlags;
use rustix::process::{Pid, Signal};

use super::super::http::Refusal;
use super::super::output;
use super::super::server::{Server, Token, draft};
use super::super::timers::Due;
use super::channel::{Told, ToldStatus};
use crate::journal::record::{HEADER_LEN, LONGEST_PAYLOAD};
use crate::journal::{Appended, Kind};
use crate::wire::context::{CellEvent, CellStatus};

/// Between the interrupt at the end of a cell's time and the end of its context.
const GRACE_NANOS: u64 = 2_000_000_000;
/// An interpreter that hung up has usually ended, and the kernel says so in a moment.
const HUNG_UP_NANOS: u64 = 200_000_000;
const RETRY_NANOS: u64 = 200_000_000;
/// A cell whose records can be asked for again is among this many.
const MOST_SPANS: usize = 1024;
/// Of an event in parts. Quotes of JSON within JSON at most double it.
const PART: usize = LONGEST_PAYLOAD / 2 - 1024;
/// Room in the journal for the record that tells of the begin.
const BEGIN_BYTES: usize = 256;

/// Where the records of a cell are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    /// The seq of its `begin`.
    pub(super) begin: u64,
    /// Where its `end` ends in the journal.
    pub(super) end: Option<u64>,
}

/// The cell that an interpreter has been given.
#[derive(Debug)]
pub(super) struct Running {
    count: u64,
    /// Not sent yet, because the interpreter is still starting: nothing could interrupt it until it is there.
    waiting: Option<String>,
    interrupted: bool,
    timed_out: bool,
    /// When its time, or the grace after it, is over.
    due: Option<u64>,
}

/// An `end` that the journal did not take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unwritten {
    exec: u32,
    count: u64,
    status: CellStatus,
}

impl Server {
    /// Records the begin of a cell and gives it to the interpreter, which must be idle. Returns where its begin is.
    pub(super) fn begin_cell(
        &mut self,
        exec: u32,
        code: &str,
        timeout_nanos: Option<u64>,
    ) -> Result<Appended, Refusal> {
        let unwritable = |message: String| {
            Refusal::new(507, "journal_unwritable", message)
                .hint("make room on the filesystem of the data directory")
        };
        self.settle_cells();
        if self.contexts.unwritten.iter().any(|unwritten| unwritten.exec == exec) {
            return Err(unwritable("the end of the last cell could not be written yet".into()));
        }
        if !self.journal.has_room_for(BEGIN_BYTES, output::kept_free(self.execs.live_count())) {
            return Err(Refusal::new(507, "journal_full", "the sandbox's journal has reached its limit")
                .hint("go on in a new sandbox, or make one with a larger journal limit"));
        }
        let Some(context) = self.contexts.of_exec(exec) else { return Err(super::dead()) };
        let counts = !code.trim().is_empty();
        let count = context.count + 1;
        let payload = json(&CellEvent::Begin { execution_count: count });
        let appended = self
            .journal
            .append(&[draft(exec, Kind::Cell, &payload)])
            .map_err(|error| unwritable(format!("cannot write the journal: {error}")))?;
        let due = timeout_nanos.map(|nanos| clock::boot_nanos().saturating_add(nanos));
        if counts {
            context.count = count;
        }
        let waiting = (!context.ready).then(|| code.to_owned());
        let is_sent = waiting.is_none();
        context.running = Some(Running { count, waiting, interrupted: false, timed_out: false, due });
        let spans = self.contexts.cells.entry(exec).or_default();
        spans.push_back(Span { begin: appended.seq, end: None });
        if spans.len() > MOST_SPANS {
            spans.pop_front();
        }
        if let Some(due) = due {
            self.timers.add(due, Due::Cell(exec));
        }
        if is_sent {
            self.send_cell(exec, count, code);
        }
        Ok(appended)
    }

    fn send_cell(&mut self, exec: u32, count: u64, code: &str) {
        if let Some(context) = self.contexts.of_exec(exec)
            && let Some(channel) = &mut context.channel
        {
            let stale = u8::from(std::mem::take(&mut context.stale_interrupt));
            channel.push(&format!("cell {count} {} {stale}", code.len()), code.as_bytes());
        }
        self.write_to_context(exec);
    }

    fn write_to_context(&mut self, exec: u32) {
        let Some(channel) = self.contexts.of_exec(exec).and_then(|context| context.channel.as_mut()) else {
            return;
        };
        let is_left = channel.flush();
        if is_left != channel.waits_for_room {
            let flags = if is_left { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
            if self.epoll.modify(channel.fd(), Token::Context(exec), flags).is_ok() {
                channel.waits_for_room = is_left;
            }
        }
    }

    /// Something happened on an interpreter's channel.
    pub(in super::super) fn drive_context(&mut self, exec: u32, flags: EventFlags) {
        if flags.intersects(EventFlags::OUT) {
            self.write_to_context(exec);
        }
        if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
            self.hear_context(exec);
        }
    }

    /// Takes in what an interpreter tells.
    fn hear_context(&mut self, exec: u32) {
        let Some(channel) = self.contexts.of_exec(exec).and_then(|context| context.channel.as_mut()) else {
            return;
        };
        let received = channel.receive();
        if !received.told.is_empty() {
            // Whatever was printed before it was told comes before it.
            self.drain_output(exec);
        }
        let (mut events, mut acks) = (Vec::new(), Vec::new());
        let mut told = received.told.into_iter();
        let wrong = told.find_map(|one| self.hear_one(exec, one, &mut events, &mut acks).err());
        self.write_events(exec, &mut events);
        if !acks.is_empty()
            && let Some(channel) = self.contexts.of_exec(exec).and_then(|context| context.channel.as_mut())
        {
            for ack in acks {
                channel.push(&format!("ack {ack}"), b"");
            }
            self.write_to_context(exec);
        }
        if let Some(why) = wrong.or(received.malformed) {
            self.give_up_context(exec, why);
        } else if received.hung_up {
            self.hung_up(exec);
        }
    }

    fn hear_one(
        &mut self,
        exec: u32,
        told: Told,
        events: &mut Vec<CellEvent>,
        acks: &mut Vec<u64>,
    ) -> Result<(), &'static str> {
        let Some(context) = self.contexts.of_exec(exec) else { return Ok(()) };
        let count = context.running.as_ref().map(|running| running.count);
        match (told, count) {
            (Told::Ready, _) if !context.ready => {
                context.ready = true;
                if let Some(running) = &mut context.running
                    && let Some(code) = running.waiting.take()
                {
                    let count = running.count;
                    self.send_cell(exec, count, &code);
                }
            }
            (Told::Result { data }, Some(execution_count)) => {
                events.push(CellEvent::Result { execution_count, data });
            }
            // Also threads of earlier cells show things.
            (Told::Display { data, ack }, _) => {
                events.push(CellEvent::Display { data });
                acks.extend(ack);
            }
            (Told::Error { name, value, traceback }, Some(_)) => {
                events.push(CellEvent::Error { name, value, traceback });
            }
            (Told::End { status }, Some(_)) => {
                self.write_events(exec, events);
                self.end_cell(exec, Some(status));
            }
            (Told::Ready, _) => return Err("a second greeting"),
            (Told::Result { .. } | Told::Error { .. } | Told::End { .. }, None) => {
                return Err("an event of no cell");
            }
        }
        Ok(())
    }

    /// Writes events with one append where they fit. What has no room is at least counted.
    fn write_events(&mut self, exec: u32, events: &mut Vec<CellEvent>) {
        let mut payloads: Vec<Vec<u8>> = Vec::with_capacity(events.len());
        let spare = output::kept_free(self.execs.live_count());
        let mut bytes = 0;
        for event in events.drain(..) {
            let whole = json(&event);
            let parts = if whole.len() > LONGEST_PAYLOAD { in_parts(&whole) } else { vec![whole] };
            let length: usize = parts.iter().map(|part| HEADER_LEN + part.len()).sum();
            if self.journal.has_room_for(bytes + length, spare) {
                bytes += length;
                payloads.extend(parts);
                continue;
            }
            let omitted = json(&CellEvent::Omitted { what: name_of(&event).into(), bytes: length as u64 });
            if self.journal.has_room_for(bytes + omitted.len(), spare) {
                bytes += HEADER_LEN + omitted.len();
                payloads.push(omitted);
            }
        }
        if payloads.is_empty() {
            return;
        }
        let drafts: Vec<_> = payloads.iter().map(|payload| draft(exec, Kind::Cell, payload)).collect();
        if self.journal.append(&drafts).is_err() {
            // The filesystem is full. The cell goes on to its end all the same, and says what is missing.
            let bytes = bytes as u64;
            let omitted = json(&CellEvent::Omitted { what: "events".into(), bytes });
            let _ = self.journal.append_from_reserve(&[draft(exec, Kind::Cell, &omitted)]);
        }
    }

    /// Ends the running cell: with what the interpreter says of it, or without, when there is no interpreter any more.
    fn end_cell(&mut self, exec: u32, told: Option<ToldStatus>) {
        let Some(running) = self.contexts.of_exec(exec).and_then(|context| context.running.take()) else {
            return;
        };
        if let Some(context) = self.contexts.of_exec(exec) {
            context.stale_interrupt = running.interrupted;
        }
        if let Some(due) = running.due {
            self.timers.remove(due, Due::Cell(exec));
        }
        let status = match told {
            _ if running.timed_out => CellStatus::Timeout,
            None => CellStatus::Died,
            Some(ToldStatus::Success) => CellStatus::Success,
            Some(ToldStatus::Interrupted) if running.interrupted => CellStatus::Interrupted,
            Some(ToldStatus::Interrupted | ToldStatus::Error) => CellStatus::Error,
        };
        self.contexts.unwritten.push(Unwritten { exec, count: running.count, status });
        self.settle_cells();
    }

    /// Writes the `end` of cells that have come to one.
    pub(in super::super) fn settle_cells(&mut self) {
        for unwritten in std::mem::take(&mut self.contexts.unwritten) {
            let Unwritten { exec, count, status } = unwritten;
            let payload = json(&CellEvent::End { execution_count: count, status });
            match self.journal.append_from_reserve(&[draft(exec, Kind::Cell, &payload)]) {
                Ok(appended) => {
                    if let Some(span) = self.contexts.cells.get_mut(&exec).and_then(|spans| spans.back_mut())
                    {
                        span.end = Some(appended.end);
                    }
                }
                Err(_) => {
                    self.contexts.unwritten.push(unwritten);
                    self.timers.add(clock::boot_nanos() + RETRY_NANOS, Due::Unwritten);
                }
            }
        }
    }

    /// Interrupts the running cell; without one nothing happens.
    pub(super) fn interrupt_cell(&mut self, exec: u32) {
        let Some(context) = self.contexts.of_exec(exec) else { return };
        let Some(running) = &mut context.running else { return };
        running.interrupted = true;
        if running.waiting.take().is_some() {
            let event = CellEvent::Error {
                name: "KeyboardInterrupt".into(),
                value: String::new(),
                traceback: vec!["KeyboardInterrupt".into()],
            };
            self.write_events(exec, &mut vec![event]);
            self.end_cell(exec, Some(ToldStatus::Interrupted));
            return;
        }
        // As a terminal does: what the cell runs is interrupted with it. An interpreter leads its own group.
        if let Some(pid) = self.execs.live_mut(exec).filter(|live| live.reaped.is_none()).map(|live| live.pid)
            && let Some(group) = Pid::from_raw(pid)
        {
            let _ = rustix::process::kill_process_group(group, Signal::INT);
        }
    }

    /// A cell's time, or the grace after it, may be over.
    pub(in super::super) fn cell_is_due(&mut self, exec: u32) {
        let now = clock::boot_nanos();
        let lives = self.execs.live_mut(exec).is_some_and(|live| live.reaped.is_none());
        let Some(context) = self.contexts.of_exec(exec) else { return };
        let hung_up = context.channel.is_none();
        let Some(running) = &mut context.running else {
            // What its processes started may outlive an interpreter that ended by itself.
            if hung_up && lives {
                self.end_exec(exec, 0, false);
            }
            return;
        };
        if running.due.is_none_or(|due| due > now) {
            return;
        }
        if running.timed_out {
            self.end_exec(exec, 0, false);
            return;
        }
        let grace = now + GRACE_NANOS;
        (running.timed_out, running.due) = (true, Some(grace));
        self.timers.add(grace, Due::Cell(exec));
        self.interrupt_cell(exec);
    }

    /// The interpreter closed its channel. It has ended, or it is of no more use.
    fn hung_up(&mut self, exec: u32) {
        let Some(context) = self.contexts.of_exec(exec) else { return };
        context.channel = None;
        self.drain_output(exec);
        self.end_cell(exec, None);
        // When it has ended, the kernel says how; otherwise it is ended soon.
        self.timers.add(clock::boot_nanos() + HUNG_UP_NANOS, Due::Cell(exec));
    }

    /// Says why a context ends, and ends it.
    fn give_up_context(&mut self, exec: u32, why: &str) {
        let event = CellEvent::Error {
            name: "ContextBroken".into(),
            value: format!("the interpreter's channel carried {why}, so the context was ended"),
            traceback: Vec::new(),
        };
        self.write_events(exec, &mut vec![event]);
        self.end_cell_of_the_dead(exec);
        self.end_exec(exec, 0, false);
    }

    /// The first process of an exec was reaped, and its output is drained.
    pub(in super::super) fn interpreter_ended(&mut self, exec: u32) {
        if self.contexts.of_exec(exec).is_none() {
            return;
        }
        self.hear_context(exec);
        self.end_cell_of_the_dead(exec);
    }

    /// Closes the channel, and ends the cell that nobody else will.
    pub(super) fn end_cell_of_the_dead(&mut self, exec: u32) {
        if let Some(context) = self.contexts.of_exec(exec) {
            context.channel = None;
        }
        self.end_cell(exec, None);
    }
}

fn name_of(event: &CellEvent) -> &'static str {
    match event {
        CellEvent::Result { .. } => "result",
        CellEvent::Display { .. } => "display",
        CellEvent::Error { .. } => "error",
        CellEvent::Begin { .. }
        | CellEvent::Part { .. }
        | CellEvent::Omitted { .. }
        | CellEvent::End { .. } => "event",
    }
}

fn in_parts(whole: &[u8]) -> Vec<Vec<u8>> {
    let mut rest = String::from_utf8_lossy(whole).into_owned();
    let mut parts = Vec::new();
    while !rest.is_empty() {
        let end = (0..=PART.min(rest.len())).rev().find(|end| rest.is_char_boundary(*end)).unwrap_or(0);
        let behind = rest.split_off(end);
        parts.push(json(&CellEvent::Part { text: rest, last: behind.is_empty() }));
        rest = behind;
    }
    parts
}

fn json(event: &CellEvent) -> Vec<u8> {
    serde_json::to_vec(event).expect("an event has only string keys")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::Value;

    use super::*;

    #[test]
    fn an_event_in_parts_is_whole_again_when_they_are_joined() {
        let value = "ä\"\\\n".repeat(400_000);
        let data = BTreeMap::from([("text/plain".to_owned(), Value::String(value))]);
        let whole = json(&CellEvent::Display { data });
        let parts = in_parts(&whole);
        assert!(parts.iter().all(|part| part.len() <= LONGEST_PAYLOAD));
        let mut joined = String::new();
        for (index, part) in parts.iter().enumerate() {
            let CellEvent::Part { text, last } = serde_json::from_slice(part).unwrap() else {
                panic!("not a part")
            };
            joined.push_str(&text);
            assert_eq!(last, index + 1 == parts.len());
        }
        assert!(joined.as_bytes() == whole);
    }
}
