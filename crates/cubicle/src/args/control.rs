//! Commands that run things on a server.

use clap::{Args, Subcommand, ValueHint};
use cubicle_model::limits::ByteSize;
use cubicle_model::{ExecId, LeaseId};

use super::local::{How, Shape};
use super::texts;
use crate::target::{Place, Target, Victim};
use crate::values::{Cores, FileCopy, Span, Variable};

#[derive(Debug, Args)]
pub(crate) struct Exec {
    #[command(flatten)]
    pub(crate) how: How,

    /// Answer as soon as it has started, and print its id; it gets no input
    #[arg(long, short = 'd', conflicts_with = "tty")]
    pub(crate) detach: bool,

    /// The template of the sandbox that is leased when none is named
    #[arg(long, value_name = "NAME", conflicts_with = "target")]
    pub(crate) template: Option<String>,

    /// What it may reach while it runs: a policy as text, a file with one, or - for standard input
    #[arg(long, value_name = "POLICY")]
    pub(crate) egress: Option<String>,

    /// The sandbox, or the lease that has it; a sandbox of its own when absent
    #[arg(value_name = "ID")]
    pub(crate) target: Option<Target>,

    /// The command and its arguments
    #[arg(value_name = "CMD", required = true, last = true, value_hint = ValueHint::CommandWithArguments)]
    pub(crate) argv: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Shell {
    /// The sandbox, or the lease that has it; one is leased for the shell when absent
    #[arg(value_name = "ID")]
    pub(crate) target: Option<Target>,

    /// The template of the sandbox that is leased when none is named
    #[arg(long, value_name = "NAME", conflicts_with = "target")]
    pub(crate) template: Option<String>,

    /// What runs instead of a login shell
    #[arg(long, short = 'c', value_name = "TEXT")]
    pub(crate) command: Option<String>,

    /// Where it starts, in the sandbox [default: /workspace]
    #[arg(long, value_name = "DIR")]
    pub(crate) workdir: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Cp {
    /// A file or a directory, ID:PATH in a sandbox, or - for standard input
    #[arg(value_name = "FROM", value_hint = ValueHint::AnyPath)]
    pub(crate) from: Place,

    /// Where it goes: a path, ID:PATH, or - for standard output
    #[arg(value_name = "TO", value_hint = ValueHint::AnyPath)]
    pub(crate) to: Place,

    /// Show no progress
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Logs {
    /// The exec, as 'cubicle ps' shows it
    #[arg(value_name = "EXEC")]
    pub(crate) id: ExecId,

    /// Follow what comes until the exec has ended; a server that is started again is waited for
    #[arg(long, short)]
    pub(crate) follow: bool,

    /// The first seq that is wanted
    #[arg(long, value_name = "SEQ", default_value_t = 0, hide_default_value = true)]
    pub(crate) from: u64,

    /// Print every frame as a line of JSON, with seq and time
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Ps {
    #[command(flatten)]
    pub(crate) shape: Shape,

    /// Also those that have ended
    #[arg(long, short)]
    pub(crate) all: bool,

    /// Print ids only
    #[arg(long, short, conflicts_with = "json")]
    pub(crate) quiet: bool,

    /// Only of this sandbox, or of the one that this lease has
    #[arg(value_name = "ID")]
    pub(crate) target: Option<Target>,
}

#[derive(Debug, Args)]
pub(crate) struct Kill {
    /// Execs to end; leases to release, also by their sandboxes
    #[arg(value_name = "ID", required = true)]
    pub(crate) ids: Vec<Victim>,

    /// Send this signal to execs instead of ending them: TERM, SIGINT, 9
    #[arg(long, short, value_name = "SIGNAL")]
    pub(crate) signal: Option<String>,

    /// Time between TERM and KILL
    #[arg(long, value_name = "TIME", conflicts_with = "signal")]
    pub(crate) grace: Option<Span>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Lease {
    /// Lease a sandbox
    #[command(after_help = texts::LEASE_CREATE)]
    Create(Box<LeaseCreate>),
    /// List leases
    Ls(LeaseLs),
    /// Show a lease
    Get(OneLease),
    /// Renew a lease
    Heartbeat(OneLease),
    /// Give leases back; their sandboxes are destroyed
    Release(Leases),
}

#[derive(Debug, Args)]
pub(crate) struct LeaseCreate {
    #[command(flatten)]
    pub(crate) shape: Shape,

    /// Print the id of the lease only
    #[arg(long, short, conflicts_with = "json")]
    pub(crate) quiet: bool,

    /// The template of the sandbox
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub(crate) template: String,

    /// How long it lives without a heartbeat [default: what the server says]
    #[arg(long, value_name = "TIME")]
    pub(crate) ttl: Option<Span>,

    /// Set a variable for everything that runs in it; NAME alone hands on the value it has here
    #[arg(long = "env", short = 'e', value_name = "NAME=VALUE")]
    pub(crate) variables: Vec<Variable>,

    /// Put a file of this machine into the sandbox
    #[arg(long = "file", value_name = "SRC:DST", value_hint = ValueHint::AnyPath)]
    pub(crate) files: Vec<FileCopy>,

    /// Memory limit: 256M, 2G
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<ByteSize>,

    /// CPU limit in cores: 0.5, 2
    #[arg(long, value_name = "N")]
    pub(crate) cpus: Option<Cores>,

    /// What it may reach: a policy as text, a file with one, or - for standard input [default: the template's]
    #[arg(long, value_name = "POLICY")]
    pub(crate) egress: Option<String>,

    /// Allow what no rule denies, and note it for 'cubicle egress show'
    #[arg(long)]
    pub(crate) record: bool,

    /// Put a secret into /var/secrets, where whatever runs inside can read it
    #[arg(long = "secret-file", value_name = "SECRET")]
    pub(crate) secret_files: Vec<String>,

    /// Give a secret as a variable, which is the last resort
    #[arg(long = "secret-env", value_name = "NAME=SECRET")]
    pub(crate) secret_variables: Vec<Variable>,

    /// Wait where there is no room, instead of being refused
    #[arg(long)]
    pub(crate) queue: bool,

    /// With --request, what makes a repeated call the same lease
    #[arg(long, value_name = "TEXT", requires = "request")]
    pub(crate) workflow: Option<String>,

    /// A repeated call with the same text gives the same lease
    #[arg(long, value_name = "TEXT")]
    pub(crate) request: Option<String>,

    /// Whom it is for, where the key may act for others
    #[arg(long, value_name = "NAME")]
    pub(crate) user: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct LeaseLs {
    #[command(flatten)]
    pub(crate) shape: Shape,

    /// Also those that have ended
    #[arg(long, short)]
    pub(crate) all: bool,

    /// Print ids only
    #[arg(long, short, conflicts_with = "json")]
    pub(crate) quiet: bool,
}

#[derive(Debug, Args)]
pub(crate) struct OneLease {
    #[command(flatten)]
    pub(crate) shape: Shape,

    /// The lease, as 'cubicle lease ls' shows it
    #[arg(value_name = "LEASE")]
    pub(crate) id: LeaseId,
}

#[derive(Debug, Args)]
pub(crate) struct Leases {
    /// The leases, as 'cubicle lease ls' shows them
    #[arg(value_name = "LEASE", required = true)]
    pub(crate) ids: Vec<LeaseId>,
}
