//! How the interpreter of each language is started.

use super::super::http::Refusal;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Language {
    Python,
    Bash,
    JavaScript,
}

/// Takes the channel from standard input, where every program can be given one, and runs the kernel that comes over it.
const PYTHON_STUB: &str = include_str!("python/stub.py");
/// One module: its parts know each other.
const PYTHON_KERNEL: &str = concat!(
    include_str!("python/head.py"),
    include_str!("python/channel.py"),
    include_str!("python/text.py"),
    include_str!("python/media.py"),
    include_str!("python/imports.py"),
    include_str!("python/source.py"),
    include_str!("python/shell.py"),
    include_str!("python/magics.py"),
    include_str!("python/errors.py"),
    include_str!("python/runner.py"),
);
const BASH_KERNEL: &str = include_str!("kernel.sh");
const JAVASCRIPT_KERNEL: &str = include_str!("kernel.js");
/// Node cannot move a descriptor, and its children would get the channel as their standard input.
const MOVE_CHANNEL: &str = r#"exec "$0" "$@" 3<&0 </dev/null"#;

impl Language {
    pub(super) fn parse(name: Option<&str>) -> Result<Self, Refusal> {
        match name {
            None | Some("python") => Ok(Self::Python),
            Some("bash") => Ok(Self::Bash),
            Some("javascript") => Ok(Self::JavaScript),
            Some(other) => {
                let other: String = other.chars().take(100).collect();
                Err(Refusal::new(422, "unknown_language", format!("there are no contexts of {other:?}"))
                    .hint("the languages are python, bash and javascript"))
            }
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Bash => "bash",
            Self::JavaScript => "javascript",
        }
    }

    /// The interpreter that is used where no environment brings one.
    pub(super) fn program(self) -> &'static str {
        match self {
            Self::Python => "python3",
            Self::Bash => "bash",
            Self::JavaScript => "node",
        }
    }

    /// The command line. The channel is its standard input.
    pub(super) fn arguments(self, program: &str) -> Vec<String> {
        let arguments: &[&str] = match self {
            Self::Python => &[program, "-c", PYTHON_STUB],
            Self::Bash => &[program, "--noprofile", "--norc", "-c", BASH_KERNEL, "bash"],
            Self::JavaScript => &["/bin/sh", "-c", MOVE_CHANNEL, program, "-e", JAVASCRIPT_KERNEL],
        };
        arguments.iter().map(|argument| (*argument).to_owned()).collect()
    }

    /// What goes over the channel first.
    pub(super) fn kernel(self) -> Option<&'static str> {
        match self {
            Self::Python => Some(PYTHON_KERNEL),
            Self::Bash | Self::JavaScript => None,
        }
    }
}
