//! Signals that reach cubicle and are meant for the command it runs.

use std::future::poll_fn;
use std::task::Poll;

use cubicle_model::{Fault, Kind};
use rustix::process::{Resource, Rlimit, setrlimit};
use tokio::signal::unix::{Signal, SignalKind, signal};

pub(crate) const SIGHUP: i32 = 1;
pub(crate) const SIGINT: i32 = 2;
pub(crate) const SIGQUIT: i32 = 3;
pub(crate) const SIGUSR1: i32 = 10;
pub(crate) const SIGUSR2: i32 = 12;
pub(crate) const SIGPIPE: i32 = 13;
pub(crate) const SIGTERM: i32 = 15;
pub(crate) const SIGCONT: i32 = 18;
pub(crate) const SIGSTOP: i32 = 19;
pub(crate) const SIGTSTP: i32 = 20;
pub(crate) const SIGWINCH: i32 = 28;

const CAUGHT: [i32; 9] = [SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2, SIGTERM, SIGCONT, SIGTSTP, SIGWINCH];

/// Catches from its making on what would otherwise end or stop cubicle alone.
#[derive(Debug)]
pub(crate) struct Signals {
    caught: Vec<(i32, Signal)>,
}

impl Signals {
    pub(crate) fn catch() -> Result<Self, Fault> {
        let ignored = ignored(&std::fs::read_to_string("/proc/self/status").unwrap_or_default());
        let mut caught = Vec::new();
        // What the caller had ignored, as nohup(1) does, stays ignored.
        for number in CAUGHT.into_iter().filter(|number| ignored & (1 << (number - 1)) == 0) {
            let stream = signal(SignalKind::from_raw(number)).map_err(|error| {
                Fault::new(Kind::Internal, format!("cannot catch signal {number}")).because(error)
            })?;
            caught.push((number, stream));
        }
        Ok(Self { caught })
    }

    /// The next signal. Nothing is lost when the future is dropped.
    pub(crate) async fn next(&mut self) -> i32 {
        poll_fn(|context| {
            for (number, stream) in &mut self.caught {
                if stream.poll_recv(context).is_ready() {
                    return Poll::Ready(*number);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// The next signal that would end a program that does not catch it. Stops and window sizes are passed over.
    pub(crate) async fn next_ending(&mut self) -> i32 {
        loop {
            let number = self.next().await;
            if ![SIGCONT, SIGTSTP, SIGWINCH].contains(&number) {
                return number;
            }
        }
    }
}

/// The mask of ignored signals in the text of `/proc/self/status`.
fn ignored(status: &str) -> u64 {
    status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

/// Ends cubicle by a signal, so that its parent sees what happened to the command.
pub(crate) fn die_by(number: i32) -> ! {
    // The core file would be cubicle's, not the command's.
    _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    _ = signal_hook::low_level::emulate_default_handler(number);
    // Only a signal that does not end a process by default gets here.
    std::process::exit(128 + number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_of_ignored_signals_is_read() {
        let status = "Name:\tcubicle\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000000000\n";
        assert_eq!(ignored(status), 1 << (SIGHUP - 1) | 1 << (SIGPIPE - 1));
        assert_eq!(ignored(""), 0);
    }
}
