//! One process tree in a sandbox: what is asked for and how it ended.

use serde::{Deserialize, Serialize};

use crate::ExecId;

/// What to run: one string for the shell, or a program with its arguments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Command {
    /// Given to `/bin/sh -c`.
    Shell(String),
    /// Looked up in the sandbox's `PATH` unless it has a slash.
    Argv(Vec<String>),
}

/// What the process reads from its standard input.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stdin {
    /// Nothing: end of file at once.
    #[default]
    Closed,
    /// This text, then end of file.
    Text(String),
    /// What is sent to the exec later, until it is closed.
    Stream,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TtySize {
    pub rows: u16,
    pub columns: u16,
}

impl Default for TtySize {
    fn default() -> Self {
        Self { rows: 24, columns: 80 }
    }
}

/// The body of `POST /exec`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecSpec {
    pub command: Command,
    /// Must be absolute; `/workspace` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Added to the sandbox's environment; a later entry wins.
    #[serde(default, skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    pub env: std::collections::BTreeMap<String, String>,
    #[serde(default)]
    pub stdin: Stdin,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tty: Option<TtySize>,
    /// Seconds until the tree is ended and reported as timed out. Must be positive; absent means no limit of its own
    /// (the sandbox's deadline still ends it).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<f64>,
    /// A repeated id attaches to the exec that runs or ran under it; it never runs twice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec_id: Option<ExecId>,
}

impl ExecSpec {
    pub fn new(command: Command) -> Self {
        Self {
            command,
            cwd: None,
            env: Default::default(),
            stdin: Stdin::Closed,
            tty: None,
            timeout_seconds: None,
            exec_id: None,
        }
    }
}

/// How the first process of an exec ended, as the kernel reported it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    Code(i32),
    Signal(i32),
    /// Killed by the kernel because the sandbox was out of memory.
    Oom,
    /// Ended by its own timeout, whatever it returned after it was told to stop.
    TimedOut,
    /// The sandbox ended before the kernel reported an exit. Never taken for success.
    Unknown,
    /// It was refused, or never reached its sandbox: there was no process.
    NotStarted,
}

impl Exit {
    /// The exit code a shell would show: 124 on timeout, 137 when out of memory, 125 when it is not known or there was no
    /// process.
    pub fn shell_code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128 + signal,
            Self::Oom => 137,
            Self::TimedOut => 124,
            Self::Unknown | Self::NotStarted => 125,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_a_string_or_a_list() {
        let shell: ExecSpec = serde_json::from_str(r#"{"command": "npm i", "cwd": "/workspace"}"#).unwrap();
        assert_eq!(shell.command, Command::Shell("npm i".into()));
        let argv: ExecSpec = serde_json::from_str(r#"{"command": ["npm", "i"]}"#).unwrap();
        assert_eq!(argv.command, Command::Argv(vec!["npm".into(), "i".into()]));
    }

    #[test]
    fn an_unknown_exit_is_never_zero() {
        assert_ne!(Exit::Unknown.shell_code(), 0);
    }

    #[test]
    fn an_unknown_field_is_refused() {
        let error = serde_json::from_str::<ExecSpec>(r#"{"command": "x", "cmd": "y"}"#).unwrap_err();
        assert!(error.to_string().contains("unknown field `cmd`"), "{error}");
    }
}
