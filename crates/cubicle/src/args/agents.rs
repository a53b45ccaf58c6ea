//! `cubicle agents`: the AI coding agents that workers run.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};

use super::local::Shape;

#[derive(Debug, Subcommand)]
pub(crate) enum Agents {
    /// Bring an agent to this host; new tasks get it
    Install(AgentInstall),
    /// List the agents of this host
    #[command(visible_alias = "ls")]
    List(Shape),
    /// Remove an agent, or one version of it
    #[command(visible_alias = "rm")]
    Remove(AgentRemove),
}

#[derive(Debug, Args)]
pub(crate) struct AgentInstall {
    #[command(flatten)]
    pub(crate) shape: Shape,

    /// claude or gemini
    #[arg(value_name = "AGENT")]
    pub(crate) agent: String,

    /// Another version than the one that was tried with this release
    #[arg(long, value_name = "VERSION")]
    pub(crate) version: Option<String>,

    /// A package's archive, or a directory with its files, instead of the registry that npm is configured for
    #[arg(long, value_name = "FILE|DIR", value_hint = ValueHint::AnyPath)]
    pub(crate) from: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct AgentRemove {
    /// claude or gemini
    #[arg(value_name = "AGENT")]
    pub(crate) agent: String,

    /// Only this version [default: all]
    #[arg(long, value_name = "VERSION")]
    pub(crate) version: Option<String>,
}
