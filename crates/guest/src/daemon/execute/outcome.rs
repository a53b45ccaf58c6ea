//! How an execute ended, for those who want one answer.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cubicle_model::{ExecId, Exit};

use super::super::exec::Exec;
use super::super::render;
use super::Execution;
use crate::journal::{Journal, Kind};
use crate::wire::execute::{EnvUsed, Executed, Produced, Status};

/// More of a stream is in the journal, but not in the answer.
const LONGEST_OUTPUT: usize = 8 * 1024 * 1024;
/// So much of the journal is looked through for it. Only a stream between long others is cut short by this.
const MOST_READ: u64 = 64 * 1024 * 1024;
const READ_AT_ONCE: u64 = 256 * 1024;

/// As `timeout` says it.
const EXIT_TIMED_OUT: i32 = 124;
const SIGNAL_BASE: i32 = 128;
const SIGKILL: i32 = 9;
const EXIT_UNKNOWN: i32 = -1;

#[derive(Debug)]
pub(in super::super) struct Outcome {
    exec_id: ExecId,
    exit: Exit,
    stdout: Kept,
    stderr: Kept,
    millis: f64,
    environment: Option<EnvUsed>,
}

#[derive(Debug, Default)]
struct Kept {
    bytes: Vec<u8>,
    /// All that was written.
    written: u64,
}

impl Kept {
    fn is_enough(&self) -> bool {
        self.bytes.len() >= LONGEST_OUTPUT || self.bytes.len() as u64 >= self.written
    }

    fn add(&mut self, bytes: &[u8]) {
        let room = LONGEST_OUTPUT.saturating_sub(self.bytes.len());
        self.bytes.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    fn is_truncated(&self) -> bool {
        (self.bytes.len() as u64) < self.written
    }

    /// The text, and the exact bytes where they are not text.
    fn into_text(self) -> (String, Option<String>) {
        match String::from_utf8(self.bytes) {
            Ok(text) => (text, None),
            Err(error) => {
                let bytes = error.as_bytes();
                let ends_in_the_middle =
                    error.utf8_error().error_len().is_none() && bytes.len() == LONGEST_OUTPUT;
                let text = String::from_utf8_lossy(bytes).into_owned();
                (text, (!ends_in_the_middle).then(|| STANDARD.encode(bytes)))
            }
        }
    }
}

impl Outcome {
    /// Reads back what the exec wrote, up to its exit. Where the journal cannot be read the answer says that output is
    /// missing.
    pub(super) fn collect(journal: &Journal, exec: &Exec, end: u64, execution: &Execution) -> Self {
        let (stdout, stderr) = read_back(journal, exec, end);
        let exited_us = execution.exited_us.unwrap_or(execution.started_us);
        Self {
            exec_id: exec.id,
            exit: exec.exit.unwrap_or(Exit::Unknown),
            stdout,
            stderr,
            millis: exited_us.saturating_sub(execution.started_us) as f64 / 1000.0,
            environment: execution.environment.clone(),
        }
    }

    pub(in super::super) fn executed(self, produced: Produced) -> Executed {
        let (stdout_truncated, stderr_truncated) = (self.stdout.is_truncated(), self.stderr.is_truncated());
        let (stdout, stdout_base64) = self.stdout.into_text();
        let (stderr, stderr_base64) = self.stderr.into_text();
        let (status, exit_code) = status(self.exit);
        Executed {
            status,
            output: stdout.clone(),
            stdout,
            stderr,
            stdout_base64,
            stderr_base64,
            stdout_truncated,
            stderr_truncated,
            exit_code,
            timed_out: status == Status::Timeout,
            execution_time_ms: self.millis,
            produced,
            env: self.environment,
            exec_id: self.exec_id,
        }
    }
}

/// What an exec wrote up to its exit, as text.
pub(in super::super) fn texts(journal: &Journal, exec: &Exec, end: u64) -> (String, String) {
    let (stdout, stderr) = read_back(journal, exec, end);
    (stdout.into_text().0, stderr.into_text().0)
}

fn read_back(journal: &Journal, exec: &Exec, end: u64) -> (Kept, Kept) {
    let kept = |written| Kept { bytes: Vec::new(), written };
    let (mut stdout, mut stderr) = (kept(exec.output.stdout), kept(exec.output.stderr));
    let mut offset = exec.start_offset;
    let last = end.min(offset.saturating_add(MOST_READ));
    while offset < last && !(stdout.is_enough() && stderr.is_enough()) {
        let Ok(run) = journal.next_run(offset, Some(exec.number)) else { break };
        offset = run.offset;
        let len = run.len.min(last.saturating_sub(offset));
        if len == 0 {
            if run.len == 0 && run.offset < last {
                continue;
            }
            break;
        }
        let read = render::records(journal, offset, len, READ_AT_ONCE, |record| match record.header.kind {
            Kind::Stdout => stdout.add(record.payload),
            Kind::Stderr => stderr.add(record.payload),
            _ => {}
        });
        let Ok(read) = read else { break };
        offset += read;
    }
    (stdout, stderr)
}

fn status(exit: Exit) -> (Status, i32) {
    match exit {
        Exit::Code(0) => (Status::Success, 0),
        Exit::Code(code) => (Status::Error, code),
        Exit::Signal(signal) => (Status::Error, SIGNAL_BASE + signal),
        Exit::Oom => (Status::Error, SIGNAL_BASE + SIGKILL),
        Exit::TimedOut => (Status::Timeout, EXIT_TIMED_OUT),
        Exit::Unknown | Exit::NotStarted => (Status::Error, EXIT_UNKNOWN),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_is_a_status_and_a_code_as_a_shell_would_say_it() {
        let table = [
            (Exit::Code(0), Status::Success, 0),
            (Exit::Code(3), Status::Error, 3),
            (Exit::Signal(11), Status::Error, 139),
            (Exit::Oom, Status::Error, 137),
            (Exit::TimedOut, Status::Timeout, 124),
            (Exit::Unknown, Status::Error, -1),
        ];
        for (exit, expected, code) in table {
            assert_eq!(status(exit), (expected, code), "{exit:?}");
        }
    }

    #[test]
    fn output_that_is_not_text_is_there_twice() {
        let kept = |bytes: &[u8]| Kept { bytes: bytes.to_vec(), written: bytes.len() as u64 };
        assert_eq!(kept("ä".as_bytes()).into_text(), ("ä".into(), None));
        assert_eq!(kept(b"a\xff").into_text(), ("a\u{fffd}".into(), Some("Yf8=".into())));
    }
}
