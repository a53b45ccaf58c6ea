//! What a client asks to run, checked before anything happens.

use std::collections::BTreeMap;

use cubicle_model::{Command, ExecId, ExecSpec, Stdin, TtySize};

use super::http::Refusal;

/// An exec that can be tried: nothing in it is empty, has a zero byte or is out of range.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckedSpec {
    pub exec_id: Option<ExecId>,
    pub command: Command,
    pub arguments: Vec<String>,
    pub cwd: String,
    pub env: BTreeMap<String, String>,
    pub stdin: Stdin,
    pub tty: Option<TtySize>,
    pub timeout_nanos: Option<u64>,
}

/// The command that runs the file the daemon was given for its own purposes.
pub const BUILTIN: &str = "@builtin";

const DEFAULT_CWD: &str = "/workspace";

pub fn parse(body: &[u8]) -> Result<CheckedSpec, Refusal> {
    let spec: ExecSpec = serde_json::from_slice(body)
        .map_err(|error| Refusal::invalid(format!("the body is not an exec: {error}")))?;
    check(spec)
}

fn check(spec: ExecSpec) -> Result<CheckedSpec, Refusal> {
    let arguments = match &spec.command {
        Command::Shell(script) if script.is_empty() => return Err(Refusal::invalid("the command is empty")),
        Command::Shell(script) => vec!["/bin/sh".into(), "-c".into(), script.clone()],
        Command::Argv(arguments) => arguments.clone(),
    };
    if arguments.first().is_none_or(String::is_empty) {
        return Err(Refusal::invalid("the command is empty: it needs at least the name of a program"));
    }
    if arguments.iter().any(|argument| argument.contains('\0')) {
        return Err(Refusal::invalid("an argument contains a zero byte, which no program can be given"));
    }
    let cwd = check_directory(spec.cwd)?;
    check_environment(&spec.env)?;
    Ok(CheckedSpec {
        exec_id: spec.exec_id,
        arguments,
        command: spec.command,
        cwd,
        env: spec.env,
        stdin: spec.stdin,
        tty: spec.tty,
        timeout_nanos: spec.timeout_seconds.map(timeout).transpose()?,
    })
}

/// The working directory: the one given, or the usual one.
pub(super) fn check_directory(cwd: Option<String>) -> Result<String, Refusal> {
    let cwd = cwd.unwrap_or_else(|| DEFAULT_CWD.into());
    if !cwd.starts_with('/') || cwd.contains('\0') {
        return Err(Refusal::invalid(format!("the working directory {cwd:?} is not an absolute path")));
    }
    Ok(cwd)
}

pub(super) fn check_environment(env: &BTreeMap<String, String>) -> Result<(), Refusal> {
    for (name, value) in env {
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            return Err(Refusal::invalid(format!("the environment variable {name:?} cannot be set")));
        }
    }
    Ok(())
}

pub(super) fn timeout(seconds: f64) -> Result<u64, Refusal> {
    const LONGEST_SECONDS: f64 = 100.0 * 365.0 * 86_400.0;
    if !seconds.is_finite() || seconds <= 0.0 {
        return Err(Refusal::invalid(format!("a timeout of {seconds} s is not possible"))
            .hint("give a positive number of seconds, or none for no timeout"));
    }
    // Rounding up keeps the shortest timeout one that can be over.
    Ok((seconds.min(LONGEST_SECONDS) * 1e9).ceil() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(body: &str) -> String {
        let refusal = parse(body.as_bytes()).unwrap_err();
        assert_eq!(refusal.status, 400);
        refusal.message
    }

    #[test]
    fn what_cannot_be_run_is_refused_with_the_reason() {
        let table = [
            (r#"{"command": []}"#, "the command is empty"),
            (r#"{"command": [""]}"#, "the command is empty"),
            (r#"{"command": ""}"#, "the command is empty"),
            (r#"{"command": ["a\u0000b"]}"#, "zero byte"),
            (r#"{"command": "a\u0000b"}"#, "zero byte"),
            (r#"{"command": "x", "cwd": "relative"}"#, "not an absolute path"),
            (r#"{"command": "x", "cwd": "/a\u0000"}"#, "not an absolute path"),
            (r#"{"command": "x", "env": {"A=B": "c"}}"#, "cannot be set"),
            (r#"{"command": "x", "env": {"A": "\u0000"}}"#, "cannot be set"),
            (r#"{"command": "x", "timeout_seconds": 0}"#, "timeout of 0 s"),
            (r#"{"command": "x", "timeout_seconds": -3}"#, "timeout of -3 s"),
            (r#"{"command": "x", "timeout_seconds": 1e999}"#, "number out of range"),
            (r#"{"command": "x", "exec_id": "7"}"#, "is not an exec id"),
            (r#"{"command": "x", "extra": 1}"#, "unknown field"),
            ("", "not an exec"),
        ];
        for (body, expected) in table {
            let message = refusal(body);
            assert!(message.contains(expected), "{body}: {message}");
        }
    }

    #[test]
    fn a_year_is_a_timeout() {
        let spec = parse(br#"{"command": "x", "timeout_seconds": 31536000}"#).unwrap();
        assert_eq!(spec.timeout_nanos, Some(31_536_000_000_000_000));
        let longer = parse(br#"{"command": "x", "timeout_seconds": 1e300}"#).unwrap();
        assert!(longer.timeout_nanos.is_some());
    }

    #[test]
    fn a_shell_string_is_given_to_the_shell_whole() {
        let spec = parse(br#"{"command": "echo $HOME | wc"}"#).unwrap();
        assert_eq!(spec.arguments, ["/bin/sh", "-c", "echo $HOME | wc"]);
        assert_eq!(spec.cwd, "/workspace");
    }
}
