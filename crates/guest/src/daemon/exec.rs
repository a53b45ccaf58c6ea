//! The execs of a sandbox: what runs, and what is remembered of what ran.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use cubicle_model::{ExecId, Exit};
use cubicle_sys::spawn::Reaped;

use super::connection::Moment;
use super::execute::Execution;
use super::input::Input;
use super::render;
use super::stream::End;
use crate::wire::{ExecState, ExecStatus, StreamBytes};

/// One exec, also after it ended: a repeated id must find it.
#[derive(Debug)]
pub(super) struct Exec {
    pub(super) id: ExecId,
    pub(super) number: u32,
    pub(super) start_seq: u64,
    pub(super) start_offset: u64,
    /// Bytes written by its processes, also those that were not kept.
    pub(super) output: StreamBytes,
    pub(super) exit: Option<Exit>,
    /// Where its `exit` record ends in the journal.
    pub(super) exit_end: Option<u64>,
    /// Where its `eof` record ends in the journal.
    pub(super) eof_end: Option<u64>,
    pub(super) ending: Option<Ending>,
    /// There when it was begun by `POST /execute`.
    pub(super) execution: Option<Box<Execution>>,
    /// Present until the `eof` record is written.
    pub(super) live: Option<Box<Live>>,
}

/// What an exec has while it runs.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) pid: i32,
    pub(super) stdout: Option<OwnedFd>,
    pub(super) stderr: Option<OwnedFd>,
    pub(super) input: Input,
    /// The terminal's controlling end is also `stdout`.
    pub(super) has_terminal: bool,
    pub(super) reaped: Option<Reaped>,
    pub(super) timed_out: bool,
    /// We sent a signal that ends it, so that its end says nothing about memory.
    pub(super) ended_by_us: bool,
    pub(super) oom_kills_before: u64,
    pub(super) truncated: Truncation,
    /// Output that could not be written since the last `lost` record.
    pub(super) lost: StreamBytes,
    pub(super) timeout_due: Option<u64>,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Truncation {
    pub(super) stdout: bool,
    pub(super) stderr: bool,
}

/// One of the two output streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    Stdout,
    Stderr,
}

/// How far the ending of an exec's whole tree has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// Told to end; killed when its grace is over.
    Told,
    /// Killed this many times already.
    Killed(u32),
}

impl Exec {
    pub(super) fn status(&self) -> ExecStatus {
        let state = match (&self.live, self.exit) {
            (None, _) => ExecState::Ended,
            (Some(_), Some(_)) => ExecState::Exited,
            (Some(_), None) => ExecState::Running,
        };
        ExecStatus {
            exec_id: self.id,
            exec: self.number,
            state,
            seq: self.start_seq,
            exit: self.exit,
            output: self.output,
        }
    }

    /// The environment that its code runs in.
    pub(super) fn environment(&self) -> Option<&str> {
        self.execution.as_ref()?.environment()
    }

    /// Where a stream of its records ends, once that is known.
    pub(super) fn end(&self, moment: Moment) -> Option<End> {
        let offset = match moment {
            Moment::Exit => self.exit_end,
            Moment::Eof => self.eof_end,
        }?;
        Some(End { offset, exit_line: render::exit_line(self.exit.unwrap_or(Exit::Unknown)) })
    }

    pub(super) fn has_come_to(&self, moment: Moment) -> bool {
        match moment {
            Moment::Exit => self.exit_end.is_some(),
            Moment::Eof => self.eof_end.is_some(),
        }
    }
}

impl Live {
    pub(super) fn pipe(&mut self, which: Which) -> &mut Option<OwnedFd> {
        match which {
            Which::Stdout => &mut self.stdout,
            Which::Stderr => &mut self.stderr,
        }
    }

    pub(super) fn output_is_closed(&self) -> bool {
        self.stdout.is_none() && self.stderr.is_none()
    }
}

#[derive(Debug, Default)]
pub(super) struct Execs {
    all: BTreeMap<u32, Exec>,
    by_id: BTreeMap<ExecId, u32>,
    by_pid: BTreeMap<i32, u32>,
    last: u32,
    live: usize,
}

impl Execs {
    /// The number that the next exec gets.
    pub(super) fn next_number(&self) -> u32 {
        self.last + 1
    }

    pub(super) fn insert(&mut self, exec: Exec) {
        self.last = self.last.max(exec.number);
        self.by_id.insert(exec.id, exec.number);
        if let Some(live) = &exec.live {
            self.by_pid.insert(live.pid, exec.number);
            self.live += 1;
        }
        self.all.insert(exec.number, exec);
    }

    pub(super) fn get(&self, number: u32) -> Option<&Exec> {
        self.all.get(&number)
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut Exec> {
        self.all.get_mut(&number)
    }

    pub(super) fn live_mut(&mut self, number: u32) -> Option<&mut Live> {
        self.all.get_mut(&number)?.live.as_deref_mut()
    }

    pub(super) fn number_of(&self, id: &ExecId) -> Option<u32> {
        self.by_id.get(id).copied()
    }

    /// Notes that a process ended, and says of which exec it was the first process.
    pub(super) fn note_reaped(&mut self, reaped: Reaped) -> Option<u32> {
        let number = self.by_pid.remove(&reaped.pid)?;
        self.live_mut(number)?.reaped = Some(reaped);
        Some(number)
    }

    /// Drops what an exec had while it ran.
    pub(super) fn retire(&mut self, number: u32) {
        if let Some(exec) = self.all.get_mut(&number)
            && let Some(live) = exec.live.take()
        {
            self.by_pid.remove(&live.pid);
            self.live -= 1;
        }
    }

    pub(super) fn live_count(&self) -> usize {
        self.live
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Exec> {
        self.all.values()
    }
}
