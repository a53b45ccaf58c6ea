//! Ending the whole tree of an exec: asked first, killed after its grace.

use cubicle_sys::clock;

use super::exec::Ending;
use super::server::Server;
use super::timers::Due;
use super::tree::{self, Tag};

/// Between being told to end and being killed.
pub(super) const GRACE_NANOS: u64 = 2_000_000_000;
/// Between one killing and the look whether anything survived it.
const LOOK_AGAIN_NANOS: u64 = 20_000_000;
const MOST_KILLS: u32 = 100;
const SIGCONT: i32 = 18;

impl Server {
    /// Begins to end an exec's tree, also what it left behind after its own end.
    pub(super) fn end_exec(&mut self, number: u32, grace_nanos: u64, timed_out: bool) {
        let Some(exec) = self.execs.get_mut(number) else { return };
        if let Some(live) = exec.live.as_deref_mut() {
            live.ended_by_us = true;
            live.timed_out |= timed_out && live.reaped.is_none();
        }
        if matches!(exec.ending, Some(Ending::Killed(_))) {
            return;
        }
        exec.ending = Some(Ending::Told);
        let tag = Tag::of(number);
        if grace_nanos > 0 && tree::send(tag, tree::SIGTERM) > 0 {
            // A stopped process could not follow.
            tree::send(tag, SIGCONT);
        }
        self.timers.add(clock::boot_nanos().saturating_add(grace_nanos), Due::Ending(number));
    }

    /// The next step of an ending, when it is due.
    pub(super) fn go_on_ending(&mut self, number: u32) {
        let kills = match self.execs.get(number).and_then(|exec| exec.ending) {
            None => return,
            Some(Ending::Told) => 0,
            Some(Ending::Killed(kills)) => kills,
        };
        let nothing_left = tree::kill(Tag::of(number));
        if nothing_left || kills >= MOST_KILLS {
            self.finish_ending(number);
            return;
        }
        if let Some(exec) = self.execs.get_mut(number) {
            exec.ending = Some(Ending::Killed(kills + 1));
        }
        let pause = LOOK_AGAIN_NANOS * u64::from(kills + 1);
        self.timers.add(clock::boot_nanos() + pause, Due::Ending(number));
    }

    /// The tree is gone. Somebody else may hold its pipes, passed over a socket; they are closed all the same.
    fn finish_ending(&mut self, number: u32) {
        self.reap();
        self.drain_output(number);
        if let Some(exec) = self.execs.get_mut(number) {
            exec.ending = None;
            if let Some(live) = exec.live.as_deref_mut() {
                (live.stdout, live.stderr) = (None, None);
            }
        }
        self.unsettled.push(number);
    }

    pub(super) fn timeout_is_over(&mut self, number: u32) {
        if self.execs.live_mut(number).is_some() {
            self.end_exec(number, GRACE_NANOS, true);
        }
    }

    pub(super) fn forget_timeout(&mut self, number: u32) {
        if let Some(live) = self.execs.live_mut(number)
            && let Some(due) = live.timeout_due.take()
        {
            self.timers.remove(due, Due::Timeout(number));
        }
    }

    /// Kills everything that any exec left, before the daemon itself ends.
    pub(super) fn kill_everything(&mut self) {
        const SIGKILL: i32 = tree::SIGKILL;
        if cubicle_sys::signal::send_to_everyone(SIGKILL).is_err() {
            let execs = self.execs.iter().map(|exec| Tag::of(exec.number));
            for tag in self.zygotes.tags().into_iter().chain(execs) {
                // Twice: what was started between the two passes of one killing is found by the next.
                let _ = tree::kill(tag) || tree::kill(tag);
            }
        }
    }
}
