//! Everything that happens at a time, on one timer descriptor.
//!
//! The clock counts also while the machine is suspended, so that a deadline is one of the wall and not of the CPU.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

/// What is due. Whoever handles it checks whether it still applies: most are never taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    /// The sandbox's deadline.
    Deadline,
    /// The opening of a connection.
    Hello(u64),
    /// A connect into the sandbox.
    Connect(u64),
    /// The timeout of an exec.
    Timeout(u32),
    /// The time of a context's cell, or the grace after it.
    Cell(u32),
    /// The next step of ending an exec.
    Ending(u32),
    /// A zygote's start.
    Zygote(u32),
    /// Another attempt to write records that did not fit.
    Unwritten,
    /// Connections to forwarded listeners may be taken in again.
    Forward,
    /// The next look whether the host still has the journal.
    Look,
}

#[derive(Debug)]
pub(super) struct Timers {
    descriptor: OwnedFd,
    due: BTreeSet<(u64, Due)>,
    armed_for: u64,
}

const NEVER: u64 = u64::MAX;

impl Timers {
    pub(super) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let descriptor = rustix::time::timerfd_create(TimerfdClockId::Boottime, flags)?;
        Ok(Self { descriptor, due: BTreeSet::new(), armed_for: NEVER })
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// Adds something at a time of `clock::boot_nanos`.
    pub(super) fn add(&mut self, at: u64, what: Due) {
        self.due.insert((at, what));
        if at < self.armed_for {
            self.arm(at);
        }
    }

    pub(super) fn remove(&mut self, at: u64, what: Due) {
        // The timer may fire for nothing then, which costs less than arming it anew each time.
        self.due.remove(&(at, what));
    }

    /// Takes out one thing that is due, if there is one; arms the timer for the next when there is none.
    pub(super) fn take(&mut self, now: u64) -> Option<Due> {
        match self.due.first() {
            Some((at, what)) if *at <= now => {
                let (at, what) = (*at, *what);
                self.due.remove(&(at, what));
                Some(what)
            }
            Some((at, _)) => {
                self.arm(*at);
                None
            }
            None => {
                self.arm(NEVER);
                None
            }
        }
    }

    fn arm(&mut self, at: u64) {
        self.armed_for = at;
        let value = match at {
            NEVER => Timespec { tv_sec: 0, tv_nsec: 0 },
            at => {
                Timespec { tv_sec: (at / 1_000_000_000) as i64, tv_nsec: (at % 1_000_000_000).max(1) as i64 }
            }
        };
        let interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        let setting = Itimerspec { it_interval: interval, it_value: value };
        // Fails only for times that do not exist.
        let _ = rustix::time::timerfd_settime(&self.descriptor, TimerfdTimerFlags::ABSTIME, &setting);
    }
}
