//! From an exec's pipes into the journal, and how an exec's end is recorded.

use std::mem::MaybeUninit;

use cubicle_model::Exit;
use cubicle_sys::clock;
use cubicle_sys::spawn::Ended;
use rustix::buffer::spare_capacity;
use rustix::io::Errno;

use super::exec::Which;
use super::server::Server;
use super::timers::Due;
use crate::journal::record::HEADER_LEN;
use crate::journal::{Draft, Kind};
use crate::wire::{Exited, StreamBytes, Truncated};

/// Room in the journal that output leaves to the records that say how its exec ended.
const CONTROL_BYTES: u64 = 1024;
const SMALL_READ: usize = 16 * 1024;
const LARGE_READ: usize = 256 * 1024;
/// What a pipe holds unless it is told otherwise; reading this much means that it was full.
const USUAL_PIPE: usize = 64 * 1024;
const LARGE_PIPE: usize = 1024 * 1024;
/// What a process can have left in its pipe when it ends.
const MOST_LEFT_IN_PIPE: usize = LARGE_PIPE + SMALL_READ;
const RETRY_NANOS: u64 = 200_000_000;
const SIGKILL: i32 = super::tree::SIGKILL;

pub(super) fn kept_free(execs: usize) -> u64 {
    (execs as u64 + 1) * CONTROL_BYTES
}

impl Server {
    /// Reads once from an exec's pipe. Returns how much was read; 0 when there is nothing now or never again.
    pub(super) fn read_output(&mut self, number: u32, which: Which) -> usize {
        let Some(live) = self.execs.live_mut(number) else { return 0 };
        let can_be_large = !live.has_terminal;
        let Some(pipe) = live.pipe(which).as_ref() else { return 0 };
        // Most execs print little; only one that prints much gets a buffer that has to be allocated.
        let mut small = [MaybeUninit::uninit(); SMALL_READ];
        let mut large = std::mem::take(&mut self.buffer);
        large.clear();
        let read = if large.capacity() == 0 {
            rustix::io::read(pipe, &mut small).map(|(read, _)| &*read)
        } else {
            match rustix::io::read(pipe, spare_capacity(&mut large)) {
                Ok(_) => Ok(&large[..]),
                Err(error) => Err(error),
            }
        };
        let read = match read {
            Ok(bytes) if !bytes.is_empty() => {
                let grows = bytes.len() == SMALL_READ && can_be_large && large.capacity() == 0;
                if grows || (bytes.len() == USUAL_PIPE && can_be_large) {
                    // It also gets a pipe in which it does not have to stop so often. More than the user's share of
                    // pipe memory is refused, and the small pipe does.
                    let _ = rustix::pipe::fcntl_setpipe_size(pipe, LARGE_PIPE);
                }
                self.keep_output(number, which, bytes);
                let read = bytes.len();
                if grows {
                    large = Vec::with_capacity(LARGE_READ);
                }
                read
            }
            Err(Errno::AGAIN | Errno::INTR) => 0,
            // A terminal whose last process closed it reads as an input/output error.
            Ok(_) | Err(_) => {
                *live.pipe(which) = None;
                self.unsettled.push(number);
                0
            }
        };
        self.buffer = large;
        read
    }

    /// Reads what a process that ended had written, so that it stands before the record of its end.
    pub(super) fn drain_output(&mut self, number: u32) {
        for which in [Which::Stdout, Which::Stderr] {
            let mut total = 0;
            while total < MOST_LEFT_IN_PIPE {
                match self.read_output(number, which) {
                    0 => break,
                    read => total += read,
                }
            }
        }
    }

    /// Writes output to the journal, or counts what has no room there. The process is never held up by it.
    fn keep_output(&mut self, number: u32, which: Which, bytes: &[u8]) {
        let free = kept_free(self.execs.live_count());
        let Some(exec) = self.execs.get_mut(number) else { return };
        let Some(live) = exec.live.as_deref_mut() else { return };
        let (count, truncated, kind) = match which {
            Which::Stdout => (&mut exec.output.stdout, &mut live.truncated.stdout, Kind::Stdout),
            Which::Stderr => (&mut exec.output.stderr, &mut live.truncated.stderr, Kind::Stderr),
        };
        let stream_offset = *count;
        *count += bytes.len() as u64;
        if *truncated {
            return;
        }
        let room = self.journal.limit().saturating_sub(self.journal.end() + free + HEADER_LEN as u64);
        let kept = &bytes[..bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX))];
        let time_us = clock::unix_micros();
        let mut lost_payload = Vec::new();
        let mut drafts = Vec::with_capacity(2);
        if live.lost != StreamBytes::default() {
            lost_payload = json(&live.lost);
            drafts.push(Draft {
                kind: Kind::Lost,
                exec: number,
                time_us,
                stream_offset: 0,
                payload: &lost_payload,
            });
        }
        if !kept.is_empty() {
            drafts.push(Draft { kind, exec: number, time_us, stream_offset, payload: kept });
        }
        if self.journal.append(&drafts).is_ok() {
            if !lost_payload.is_empty() {
                live.lost = StreamBytes::default();
            }
        } else {
            match which {
                Which::Stdout => live.lost.stdout += kept.len() as u64,
                Which::Stderr => live.lost.stderr += kept.len() as u64,
            }
        }
        if kept.len() < bytes.len() {
            *truncated = true;
            let stream = kind.name().to_owned();
            let payload = json(&Truncated { stream, limit: self.journal.limit() });
            let stream_offset = stream_offset + kept.len() as u64;
            let draft =
                Draft { kind: Kind::Truncated, exec: number, time_us, stream_offset, payload: &payload };
            // When even this cannot be written, the totals in `eof` still tell.
            let _ = self.journal.append_from_reserve(&[draft]);
        }
    }

    /// Records the end of execs that came to one. Exit and end of output go together when both are there.
    pub(super) fn settle(&mut self) {
        let mut failed = false;
        for number in std::mem::take(&mut self.unsettled) {
            failed |= !self.settle_one(number);
        }
        if failed {
            self.timers.add(clock::boot_nanos() + RETRY_NANOS, Due::Unwritten);
        }
        if self.execs.live_count() == 0 && self.buffer.capacity() > 0 {
            self.buffer = Vec::new();
        }
    }

    /// False: its records could not be written, and it stays unsettled.
    fn settle_one(&mut self, number: u32) -> bool {
        let oom_kills = || self.oom.count();
        let Some(exec) = self.execs.get(number) else { return true };
        let Some(live) = exec.live.as_deref() else { return true };
        let Some(reaped) = live.reaped else { return true };
        let exit = exec.exit.unwrap_or_else(|| match reaped.ended {
            _ if live.timed_out => Exit::TimedOut,
            Ended::Code(code) => Exit::Code(code),
            Ended::Signal(SIGKILL) if !live.ended_by_us && oom_kills() > live.oom_kills_before => Exit::Oom,
            Ended::Signal(signal) => Exit::Signal(signal),
        });
        let exited = Exited {
            exit,
            timed_out: live.timed_out,
            user_us: reaped.user_us,
            sys_us: reaped.sys_us,
            max_rss_kb: reaped.max_rss_kb,
        };
        let writes_exit = exec.exit_end.is_none();
        let writes_eof = live.output_is_closed();
        let (lost, exited, eof) = (json(&live.lost), json(&exited), json(&exec.output));
        let time_us = clock::unix_micros();
        let draft = |kind, payload| Draft { kind, exec: number, time_us, stream_offset: 0, payload };
        let mut drafts = Vec::with_capacity(3);
        if live.lost != StreamBytes::default() && (writes_exit || writes_eof) {
            drafts.push(draft(Kind::Lost, &lost));
        }
        if writes_exit {
            drafts.push(draft(Kind::Exit, &exited));
        }
        if writes_eof {
            drafts.push(draft(Kind::Eof, &eof));
        }
        if drafts.is_empty() {
            return true;
        }
        let Ok(appended) = self.journal.append_from_reserve(&drafts) else {
            self.unsettled.push(number);
            return false;
        };
        let eof_len = if writes_eof { (HEADER_LEN + eof.len()) as u64 } else { 0 };
        let exit_end = appended.end - eof_len;
        if let Some(exec) = self.execs.get_mut(number) {
            exec.exit = Some(exit);
            exec.exit_end.get_or_insert(exit_end);
            if let Some(execution) = exec.execution.as_deref_mut() {
                execution.exited_us.get_or_insert(time_us);
            }
            if let Some(live) = exec.live.as_deref_mut() {
                live.lost = StreamBytes::default();
            }
            if writes_eof {
                exec.eof_end = Some(appended.end);
            }
        }
        if writes_eof {
            self.forget_timeout(number);
            self.execs.retire(number);
            self.forget_code(number);
        }
        true
    }
}

fn json(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("records are plain JSON")
}
