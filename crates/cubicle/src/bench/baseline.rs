//! Starting a program directly, which is what a sandbox is measured against.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cubicle_model::{Fault, Kind};

/// How the program is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// strace shows `clone3(CLONE_VM|CLONE_VFORK)` and then `execve`: glibc's `posix_spawn`, which the standard
    /// library uses as long as nothing else is asked of the child.
    PosixSpawn,
    /// strace shows `clone` without `CLONE_VM`, `setuid` to the same user and then `execve`: a user id is what
    /// `posix_spawn` cannot set, so the standard library forks.
    ForkExec,
}

/// Starts `/bin/true` and waits for its end.
pub(crate) fn start_true(start: Start) -> Result<Duration, Fault> {
    let mut command = program("/bin/true");
    if start == Start::ForkExec {
        command.uid(rustix::process::getuid().as_raw());
    }
    timed(&mut command)
}

/// A program of the host without input and output.
pub(crate) fn program(path: impl AsRef<OsStr>) -> Command {
    #[expect(clippy::disallowed_methods, reason = "what a sandbox is compared with is started directly")]
    let mut command = Command::new(path);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// From before the start to after the end of a program that must succeed.
pub(crate) fn timed(command: &mut Command) -> Result<Duration, Fault> {
    let from = Instant::now();
    let status =
        command.spawn().and_then(|mut child| child.wait()).map_err(|error| not_started(command, error))?;
    let taken = from.elapsed();
    if status.success() {
        return Ok(taken);
    }
    let name = command.get_program().display();
    Err(Fault::new(Kind::Internal, format!("{name} ended with {status}")))
}

pub(crate) fn not_started(command: &Command, error: std::io::Error) -> Fault {
    let name = command.get_program().display();
    Fault::new(Kind::Internal, format!("{name} cannot be started: {error}")).because(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_fails_is_not_measured() {
        assert!(timed(&mut program("/bin/false")).unwrap_err().message().contains("/bin/false ended"));
        assert!(timed(&mut program("/nonexistent")).unwrap_err().message().contains("cannot be started"));
    }

    #[test]
    fn both_ways_start_the_program() {
        for start in [Start::PosixSpawn, Start::ForkExec] {
            start_true(start).unwrap();
        }
    }
}
