//! What sandboxes may reach.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};
use cubicle_model::LeaseId;

use super::{Shape, texts};
use crate::target::Subject;

#[derive(Debug, Subcommand)]
pub(crate) enum Egress {
    /// Show every bundle: its rules, and where they come from
    #[command(
        after_help = "Examples:\n  cubicle egress bundles\n  cubicle egress bundles --json | jq -r '.[].name'"
    )]
    Bundles(Shape),
    /// Say whether a policy allows something, by which rule, and what would change that
    #[command(after_help = texts::EGRESS_EXPLAIN)]
    Explain(EgressExplain),
    /// Read a policy and say what is wrong with it, and where
    #[command(after_help = texts::EGRESS_CHECK)]
    Check(EgressCheck),
    /// Show what a lease may reach
    #[command(after_help = texts::EGRESS_SHOW)]
    Show(EgressShow),
    /// Change what a lease may reach, also for what it has open
    #[command(after_help = texts::EGRESS_SET)]
    Set(EgressSet),
    /// Show what a lease or an exec has reached, and what it was refused
    #[command(after_help = texts::EGRESS_BILL)]
    Bill(EgressBill),
    /// Run a command with everything allowed that no rule denies, and print the smallest policy that would do
    #[command(after_help = texts::EGRESS_RECORD)]
    Record(Box<EgressRecord>),
}

#[derive(Debug, Args)]
pub(crate) struct EgressExplain {
    /// The policy: a file, - for standard input, or the text itself, as in 'allow @git; allow *.example.org'
    #[arg(long, short, value_name = "POLICY", required_unless_present = "template")]
    pub(crate) policy: Option<String>,

    /// Instead of a policy: the one that a template of this name has unless it says otherwise
    #[arg(long, value_name = "NAME", conflicts_with = "policy")]
    pub(crate) template: Option<String>,

    /// What would be reached: https://host/path, http://host:port/path, tcp://host:port or host:port
    #[arg(value_name = "URL", required = true)]
    pub(crate) urls: Vec<String>,

    /// The method of requests, where the gateway reads them
    #[arg(long, value_name = "METHOD", default_value = "GET")]
    pub(crate) method: String,

    /// Ask for the addresses of names, and decide by them too
    #[arg(long)]
    pub(crate) resolve: bool,

    #[command(flatten)]
    pub(crate) shape: Shape,
}

#[derive(Debug, Args)]
pub(crate) struct EgressShow {
    /// The lease
    #[arg(value_name = "LEASE")]
    pub(crate) lease: LeaseId,

    #[command(flatten)]
    pub(crate) shape: Shape,
}

#[derive(Debug, Args)]
pub(crate) struct EgressSet {
    /// The lease
    #[arg(value_name = "LEASE")]
    pub(crate) lease: LeaseId,

    /// The policy: a file, - for standard input, or the text itself; the template's when absent
    #[arg(long, short, value_name = "POLICY")]
    pub(crate) policy: Option<String>,

    /// Allow what no rule denies, and note it
    #[arg(long)]
    pub(crate) record: bool,

    #[command(flatten)]
    pub(crate) shape: Shape,
}

#[derive(Debug, Args)]
pub(crate) struct EgressBill {
    /// A lease, or an exec
    #[arg(value_name = "ID")]
    pub(crate) subject: Subject,

    /// Print lines of comma-separated values
    #[arg(long, conflicts_with = "json")]
    pub(crate) csv: bool,

    #[command(flatten)]
    pub(crate) shape: Shape,
}

#[derive(Debug, Args)]
pub(crate) struct EgressRecord {
    /// Write the policy to a file instead of standard error
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) output: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) exec: super::Exec,
}

#[derive(Debug, Args)]
pub(crate) struct EgressCheck {
    /// A file with a policy, or - for standard input
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) file: String,

    #[command(flatten)]
    pub(crate) shape: Shape,
}

/// How a server starts the gateway. The control socket is its standard input.
#[derive(Debug, Args)]
pub(crate) struct EgressGateway {
    /// What it is called in the Via header of plain requests
    #[arg(long, value_name = "NAME", default_value = "cubicle")]
    pub(crate) name: String,

    /// Where the authority for inspected hosts is kept
    #[arg(long, value_name = "DIR")]
    pub(crate) authority: Option<PathBuf>,

    /// Certificates that are trusted beside the host's, as PEM
    #[arg(long, value_name = "FILE")]
    pub(crate) extra_roots: Option<PathBuf>,

    /// A file that gets a line for every request and tunnel
    #[arg(long, value_name = "FILE")]
    pub(crate) access_log: Option<PathBuf>,

    /// What to log: a level, or names with levels
    #[arg(long, value_name = "FILTER")]
    pub(crate) log: Option<String>,
}
