//! The structured result of one command, for programs.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cubicle_model::{Exit, Receipt, SandboxId};
use serde::Serialize;

use crate::attend::Attended;

/// What `--json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct Outcome {
    /// As text; where it is not UTF-8, with replacement characters, and `stdout_base64` has the bytes.
    stdout: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    stdout_base64: Option<String>,
    stderr: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    stderr_base64: Option<String>,
    /// Only what the kernel reported; null when the command did not exit by itself.
    exit_code: Option<i32>,
    signal: Option<i32>,
    timed_out: bool,
    oom: bool,
    duration_ms: u64,
    sandbox: SandboxId,
    isolation: &'static str,
    /// Some output is missing.
    truncated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    receipt: Option<Receipt>,
}

impl Outcome {
    pub(crate) fn new(
        sandbox: SandboxId,
        isolation: &'static str,
        attended: Attended,
        receipt: Option<Receipt>,
    ) -> Self {
        let (exit_code, signal) = match attended.exit {
            Exit::Code(code) => (Some(code), None),
            Exit::Signal(signal) => (None, Some(signal)),
            Exit::Oom | Exit::TimedOut | Exit::Unknown | Exit::NotStarted => (None, None),
        };
        let (stdout, stdout_base64) = text(attended.output.stdout);
        let (stderr, stderr_base64) = text(attended.output.stderr);
        Self {
            stdout,
            stdout_base64,
            stderr,
            stderr_base64,
            exit_code,
            signal,
            timed_out: attended.exit == Exit::TimedOut,
            oom: attended.exit == Exit::Oom,
            duration_ms: u64::try_from(attended.duration.as_millis()).unwrap_or(u64::MAX),
            sandbox,
            isolation,
            truncated: attended.output.truncated,
            receipt,
        }
    }
}

fn text(bytes: Vec<u8>) -> (String, Option<String>) {
    match String::from_utf8(bytes) {
        Ok(text) => (text, None),
        Err(error) => {
            let bytes = error.as_bytes();
            (String::from_utf8_lossy(bytes).into_owned(), Some(STANDARD.encode(bytes)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Kept;

    fn outcome(exit: Exit, stdout: &[u8]) -> serde_json::Value {
        let output = Kept { stdout: stdout.to_vec(), ..Default::default() };
        let attended = Attended { exit, duration: std::time::Duration::from_millis(7), output };
        let id = SandboxId::from_random([0; 16]);
        serde_json::to_value(Outcome::new(id, "namespaces", attended, None)).unwrap()
    }

    #[test]
    fn an_exit_code_is_given_only_when_the_kernel_gave_one() {
        let table = [
            (Exit::Code(0), serde_json::json!([0, null, false, false])),
            (Exit::Signal(9), serde_json::json!([null, 9, false, false])),
            (Exit::TimedOut, serde_json::json!([null, null, true, false])),
            (Exit::Oom, serde_json::json!([null, null, false, true])),
            (Exit::Unknown, serde_json::json!([null, null, false, false])),
        ];
        for (exit, expected) in table {
            let value = outcome(exit, b"");
            let got = ["exit_code", "signal", "timed_out", "oom"].map(|key| value[key].clone());
            assert_eq!(serde_json::Value::from(got.to_vec()), expected, "{exit:?}");
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_not_lost() {
        let value = outcome(Exit::Code(0), b"a\xffb");
        assert_eq!(
            (value["stdout"].as_str(), value["stdout_base64"].as_str()),
            (Some("a\u{fffd}b"), Some("Yf9i"))
        );
        assert!(outcome(Exit::Code(0), b"text").get("stdout_base64").is_none());
    }
}
