//! The agents that can be installed, each with the version that was tried.

use cubicle_model::{Fault, Kind};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    pub name: &'static str,
    pub title: &'static str,
    /// What is installed unless another is asked for.
    pub version: &'static str,
    /// The package that holds it whole.
    pub(crate) package: &'static str,
    /// What an agent's directory must have.
    pub(crate) entry: &'static str,
    /// The oldest node that runs it.
    pub(crate) node: Option<u32>,
}

/// A native program comes as one package for each machine.
#[cfg(target_arch = "x86_64")]
const CLAUDE: &str = "@anthropic-ai/claude-code-linux-x64";
#[cfg(target_arch = "aarch64")]
const CLAUDE: &str = "@anthropic-ai/claude-code-linux-arm64";

const ALL: &[Known] = &[
    Known {
        name: "claude",
        title: "Claude Code",
        version: "2.1.325",
        package: CLAUDE,
        entry: "claude",
        node: None,
    },
    Known {
        name: "gemini",
        title: "Gemini CLI",
        version: "0.61.0",
        package: "@google/gemini-cli",
        entry: "bundle/gemini.js",
        node: Some(20),
    },
];

pub fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|known| known.name)
}

pub fn find(name: &str) -> Result<&'static Known, Fault> {
    ALL.iter().find(|known| known.name == name).ok_or_else(|| {
        let names: Vec<_> = names().collect();
        Fault::new(Kind::Invalid, format!("there is no agent '{name}' to install"))
            .hint(format!("known are {}; any other program runs as agent 'custom'", names.join(" and ")))
    })
}
