//! The command line, as clap reads it.

mod administration;
mod agents;
mod control;
mod egress;
mod local;
mod secrets;
mod texts;
mod webhooks;
mod workspace;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use cubicle_api::client::{Address, Secret};

pub(crate) use administration::{
    Audit, AuditLs, AuditVerify, Events, KeyCreate, Keys, Template, TemplatePut, Tenant, TenantSet,
};
pub(crate) use agents::{AgentInstall, Agents};
pub(crate) use control::{Cp, Exec, Kill, Lease, LeaseCreate, LeaseLs, Logs, Ps, Shell};
pub(crate) use egress::{
    Egress, EgressBill, EgressCheck, EgressExplain, EgressGateway, EgressRecord, EgressSet, EgressShow,
};
pub(crate) use local::{Bench, How, Ls, Mcp, OneSandbox, Rm, Run, SandboxOptions, Shape, Up};
pub(crate) use secrets::{SecretSet, Secrets};
pub(crate) use webhooks::{WebhookAdd, WebhookDeliveries, Webhooks};
pub(crate) use workspace::{SkillCreate, Skills, Workspace, WorkspaceGet, WorkspacePut};

/// Runs programs in sandboxes of their own, on this machine or on a server.
#[derive(Debug, Parser)]
#[command(name = "cubicle", version, max_term_width = 110, after_help = texts::TOP)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) places: Places,

    #[command(flatten)]
    pub(crate) server: ServerOptions,

    #[command(subcommand)]
    pub(crate) command: Verb,
}

/// Where cubicle keeps its own things.
#[derive(Debug, Args)]
#[command(next_help_heading = "Places")]
pub(crate) struct Places {
    /// Where sandboxes are kept [default: /var/lib/cubicle as root, else ~/.local/share/cubicle]
    #[arg(long, value_name = "DIR", global = true, value_hint = ValueHint::DirPath)]
    pub(crate) data_dir: Option<PathBuf>,

    /// A configuration file instead of the usual ones
    #[arg(long, value_name = "FILE", global = true, value_hint = ValueHint::FilePath)]
    pub(crate) config: Option<PathBuf>,
}

/// Which server is asked, and with which key.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Server")]
pub(crate) struct ServerOptions {
    /// The server to ask [default: this data directory's, else http://127.0.0.1:7878]
    #[arg(long, value_name = "URL", global = true)]
    pub(crate) server: Option<Address>,

    /// The key to use, in a file [default: this data directory's first key]
    #[arg(long, value_name = "FILE", global = true, value_hint = ValueHint::FilePath)]
    pub(crate) key_file: Option<PathBuf>,

    /// The key itself, which others on this machine may see; CUBICLE_KEY hides it
    #[arg(long, value_name = "KEY", global = true, conflicts_with = "key_file", value_parser = secret)]
    pub(crate) key: Option<Secret>,
}

#[expect(clippy::unnecessary_wraps, reason = "clap's parsers may fail")]
fn secret(given: &str) -> Result<Secret, Infallible> {
    Ok(Secret::new(given))
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run a command in a fresh sandbox
    #[command(override_usage = "cubicle run [OPTIONS] -- <CMD>...", after_help = format!("{}\n\n{}\n\n{}", texts::RUN_EXAMPLES, texts::EXIT_CODES, texts::OUTPUT_NOTE))]
    Run(Box<Run>),
    /// List sandboxes of this machine
    Ls(Ls),
    /// End sandboxes and remove everything they had on this host
    #[command(after_help = "Examples:\n  cubicle rm sbx-…\n  cubicle rm --all")]
    Rm(Rm),
    /// Print a sandbox's isolation receipt as JSON
    Receipt(OneSandbox),
    /// Remove what nobody owns any more: half-made sandboxes and leftovers of killed processes
    Gc(Shape),
    /// Try every isolation level and say what works, what does not, and what to do about it
    #[command(after_help = "Exit codes: 0 when the default isolation works here, 1 when it does not.")]
    Doctor(Shape),
    /// Start a server: leases, a pool of ready sandboxes, and the HTTP API
    #[command(after_help = texts::UP)]
    Up(Box<Up>),
    /// Run a command in a sandbox of a server, or in one that 'cubicle run' kept
    #[command(override_usage = "cubicle exec [OPTIONS] [ID] -- <CMD>...", after_help = format!("{}\n\n{}", texts::EXEC_EXAMPLES, texts::EXIT_CODES))]
    Exec(Box<Exec>),
    /// Open a shell in a sandbox of a server
    #[command(after_help = texts::SHELL)]
    Shell(Shell),
    /// Copy files and directories into a sandbox of a server, or out of it
    #[command(after_help = texts::CP)]
    Cp(Cp),
    /// Show what an exec printed
    #[command(after_help = texts::LOGS)]
    Logs(Logs),
    /// List execs
    Ps(Ps),
    /// End execs, or release leases
    #[command(after_help = texts::KILL)]
    Kill(Kill),
    /// Lease sandboxes of a server, renew and release them
    #[command(subcommand, after_help = texts::LEASE)]
    Lease(Lease),
    /// Show what happens on a server
    #[command(after_help = texts::EVENTS)]
    Events(Events),
    /// Make, list and revoke keys
    #[command(subcommand)]
    Keys(Keys),
    /// Read and verify the audit log: who did what
    #[command(subcommand, after_help = texts::AUDIT)]
    Audit(Audit),
    /// Make, list and remove templates: the recipes of sandboxes
    #[command(subcommand)]
    Template(Template),
    /// Keep secrets on a server, and say where they go: they are added to requests outside of sandboxes
    #[command(subcommand)]
    Secrets(Secrets),
    /// Read and write files that outlive sandboxes: workers see them in /workspace/shared
    #[command(subcommand, after_help = texts::WORKSPACE)]
    Workspace(Workspace),
    /// List, show and create skills: instructions that workers look up
    #[command(subcommand)]
    Skills(Skills),
    /// Register who is told that tasks have ended, and see what came of it
    #[command(subcommand, after_help = texts::WEBHOOKS)]
    Webhooks(Webhooks),
    /// Make and list tenants, and change their quotas
    #[command(subcommand)]
    Tenant(Tenant),
    /// Show what sandboxes may reach, and why something is allowed or denied
    #[command(subcommand, after_help = texts::EGRESS)]
    Egress(Egress),
    /// Install the AI coding agents that workers run, on this host
    #[command(subcommand, after_help = texts::AGENTS)]
    Agents(Agents),
    /// Give an AI assistant a sandbox: tools for MCP clients over standard input and output
    #[command(after_help = texts::MCP)]
    Mcp(Box<Mcp>),
    /// Measure this host against starting a process directly, and against the peers that are installed
    Bench(Bench),
    /// Print a completion script for a shell
    #[command(
        after_help = "Examples:\n  cubicle completions bash > ~/.local/share/bash-completion/completions/cubicle"
    )]
    Completions {
        #[arg(value_name = "SHELL")]
        shell: clap_complete::Shell,
    },
    /// Run a small program in the strongest sandbox this host has, and show its receipt
    FirstRun,
    /// The way out of all sandboxes, as a process; started by a server
    #[command(hide = true)]
    EgressGateway(EgressGateway),
    /// Copies bytes between its standard input, a listener, and an address; what the gateway is measured against
    #[command(hide = true)]
    BenchRelay {
        #[arg(value_name = "ADDRESS")]
        to: SocketAddr,
    },
    /// Print a reference as Markdown
    #[command(hide = true)]
    Reference {
        #[arg(value_name = "WHAT")]
        of: Reference,
    },
}

/// What is generated for docs/reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Reference {
    Cli,
    Config,
}

impl Verb {
    /// Whether stdout holds one JSON value and nothing else, also when the command fails.
    pub(crate) fn wants_json(&self) -> bool {
        match self {
            Self::Run(args) => args.how.json,
            Self::Exec(args) => args.how.json,
            Self::Ls(args) => args.shape.json,
            Self::Ps(args) => args.shape.json,
            Self::Bench(args) => args.shape.json,
            Self::Gc(shape) | Self::Doctor(shape) => shape.json,
            Self::Lease(Lease::Create(args)) => args.shape.json,
            Self::Lease(Lease::Ls(args)) => args.shape.json,
            Self::Lease(Lease::Get(args) | Lease::Heartbeat(args)) => args.shape.json,
            Self::Keys(Keys::Create(args)) => args.shape.json,
            Self::Keys(Keys::Ls(shape)) => shape.json,
            Self::Audit(Audit::Ls(args)) => args.shape.json,
            Self::Audit(Audit::Verify(args)) => args.shape.json,
            Self::Egress(Egress::Bundles(shape)) => shape.json,
            Self::Egress(Egress::Explain(args)) => args.shape.json,
            Self::Egress(Egress::Check(args)) => args.shape.json,
            Self::Egress(Egress::Show(args)) => args.shape.json,
            Self::Egress(Egress::Set(args)) => args.shape.json,
            Self::Egress(Egress::Bill(args)) => args.shape.json,
            Self::Egress(Egress::Record(args)) => args.exec.how.json,
            Self::Secrets(Secrets::Set(args)) => args.shape.json,
            Self::Secrets(Secrets::List(shape)) => shape.json,
            Self::Workspace(Workspace::Put(args)) => args.shape.json,
            Self::Workspace(Workspace::Ls(args)) => args.shape.json,
            Self::Workspace(Workspace::History(args)) => args.shape.json,
            Self::Workspace(Workspace::Get(_) | Workspace::Rm(_) | Workspace::Mv(_)) => false,
            Self::Skills(Skills::List(shape)) => shape.json,
            Self::Skills(Skills::Show(args)) => args.shape.json,
            Self::Skills(Skills::Create(args)) => args.shape.json,
            Self::Agents(Agents::Install(args)) => args.shape.json,
            Self::Agents(Agents::List(shape)) => shape.json,
            Self::Agents(Agents::Remove(_)) => false,
            Self::Webhooks(Webhooks::Add(args)) => args.shape.json,
            Self::Webhooks(Webhooks::List(shape)) => shape.json,
            Self::Webhooks(Webhooks::Test(args)) => args.shape.json,
            Self::Webhooks(Webhooks::Deliveries(args)) => args.shape.json,
            Self::Webhooks(_) => false,
            Self::Template(Template::Ls(shape)) | Self::Tenant(Tenant::Ls(shape)) => shape.json,
            Self::Rm(_) | Self::Receipt(_) | Self::Completions { .. } | Self::FirstRun | Self::Up(_) => false,
            Self::Mcp(_) | Self::Shell(_) | Self::Cp(_) | Self::Logs(_) | Self::Kill(_) | Self::Events(_) => {
                false
            }
            Self::Lease(Lease::Release(_)) | Self::Keys(Keys::Revoke(_)) | Self::Secrets(Secrets::Rm(_)) => {
                false
            }
            Self::Audit(Audit::Export | Audit::Heads) => false,
            Self::Template(_) | Self::Tenant(_) | Self::Reference { .. } => false,
            Self::EgressGateway(_) | Self::BenchRelay { .. } => false,
        }
    }
}
