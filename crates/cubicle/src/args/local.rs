//! Commands that need no server, and the one that starts it.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, ValueHint};
use cubicle_api::client::Address;
use cubicle_model::limits::ByteSize;
use cubicle_model::{Isolation, SandboxId, Trust};

use crate::values::{Cores, FileCopy, Span, Variable};

#[derive(Debug, Args)]
pub(crate) struct Run {
    // Before the groups that have headings, or it would be listed under the last of them.
    #[command(flatten)]
    pub(crate) argv: Argv,

    #[command(flatten)]
    pub(crate) how: How,

    #[command(flatten)]
    pub(crate) sandbox: SandboxOptions,

    /// Put a file of the host into the sandbox before the command starts
    #[arg(long = "file", value_name = "SRC:DST", value_hint = ValueHint::AnyPath)]
    pub(crate) files: Vec<FileCopy>,

    /// Keep the sandbox after the command ended
    #[arg(long)]
    pub(crate) keep: bool,

    /// Print the isolation receipt too: on stderr, or inside the JSON result
    #[arg(long)]
    pub(crate) receipt: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Mcp {
    /// The template of the server's sandboxes, where a server is used
    #[arg(long, value_name = "NAME")]
    pub(crate) template: Option<String>,

    #[command(flatten)]
    pub(crate) sandbox: SandboxOptions,
}

/// How one command is run, in a fresh sandbox or in a kept one.
#[derive(Debug, Args)]
pub(crate) struct How {
    /// End the command after this time: 5, 1.5s, 500ms, 10m, 2h
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<Span>,

    /// Set a variable; NAME alone hands on the value it has here
    #[arg(long = "env", short = 'e', value_name = "NAME=VALUE")]
    pub(crate) variables: Vec<Variable>,

    /// Where the command starts, in the sandbox [default: /workspace]
    #[arg(long, value_name = "DIR")]
    pub(crate) workdir: Option<String>,

    /// Give the command a terminal
    #[arg(long, short = 't', conflicts_with = "json")]
    pub(crate) tty: bool,

    /// Print one JSON object with output and outcome instead of the output itself
    #[arg(long)]
    pub(crate) json: bool,
}

/// What the sandbox is.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sandbox")]
pub(crate) struct SandboxOptions {
    /// A directory of the host as /workspace; the command can change it
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, conflicts_with = "workspace_size")]
    pub(crate) workspace: Option<PathBuf>,

    /// Memory limit: 256M, 2G
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<ByteSize>,

    /// CPU limit in cores: 0.5, 2
    #[arg(long, value_name = "N")]
    pub(crate) cpus: Option<Cores>,

    /// Limit of processes and threads
    #[arg(long, value_name = "N")]
    pub(crate) pids: Option<u64>,

    /// Size of /workspace
    #[arg(long, value_name = "SIZE")]
    pub(crate) workspace_size: Option<ByteSize>,

    /// Size of /tmp, /dev/shm and the home directory together
    #[arg(long, value_name = "SIZE")]
    pub(crate) tmp_size: Option<ByteSize>,

    /// The isolation level: gvisor, namespaces or landlock. Never weaker than asked for: it works or is refused
    #[arg(long, value_name = "LEVEL")]
    pub(crate) isolation: Option<Isolation>,

    /// Trust in the code: high trust is the least isolation. low, medium or high [default: medium]
    #[arg(long, value_name = "TRUST")]
    pub(crate) trust: Option<Trust>,
}

impl SandboxOptions {
    /// Whether any of them was given.
    pub(crate) fn asks_for_anything(&self) -> bool {
        let Self { workspace, memory, cpus, pids, workspace_size, tmp_size, isolation, trust } = self;
        let sizes = memory.is_some() || workspace_size.is_some() || tmp_size.is_some();
        let shares = cpus.is_some() || pids.is_some();
        workspace.is_some() || sizes || shares || isolation.is_some() || trust.is_some()
    }
}

#[derive(Debug, Args)]
pub(crate) struct Argv {
    /// The command and its arguments
    #[arg(value_name = "CMD", required = true, trailing_var_arg = true, value_hint = ValueHint::CommandWithArguments)]
    pub(crate) argv: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Ls {
    #[command(flatten)]
    pub(crate) shape: Shape,

    /// Print ids only
    #[arg(long, short, conflicts_with = "json")]
    pub(crate) quiet: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Rm {
    /// The sandboxes, as 'cubicle ls' shows them
    #[arg(value_name = "ID", required_unless_present = "all", conflicts_with = "all")]
    pub(crate) ids: Vec<SandboxId>,

    /// Every sandbox of this data directory
    #[arg(long)]
    pub(crate) all: bool,
}

#[derive(Debug, Args)]
pub(crate) struct OneSandbox {
    /// The sandbox, as 'cubicle ls' shows it
    #[arg(value_name = "ID")]
    pub(crate) id: SandboxId,
}

#[derive(Debug, Args)]
pub(crate) struct Shape {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Up {
    /// Where to listen [default: 127.0.0.1:7878]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<SocketAddr>,

    /// The address that others reach it by, for links [default: http:// and where it listens]
    #[arg(long, value_name = "URL")]
    pub(crate) address: Option<String>,

    /// Ready sandboxes of the default template [default: 4]
    #[arg(long, value_name = "N")]
    pub(crate) pool_size: Option<u64>,

    /// Sandboxes that fit on this host, ready ones included [default: 200]
    #[arg(long, value_name = "N")]
    pub(crate) capacity: Option<u64>,

    /// Where leases are kept: postgres://user:password@host/database [default: SQLite in the data directory]
    #[arg(long, value_name = "URL")]
    pub(crate) db_url: Option<String>,

    /// Seconds that a lease lives without a heartbeat [default: 10m]
    #[arg(long, value_name = "TIME")]
    pub(crate) lease_ttl: Option<Span>,

    /// Timeout of an exec that names none [default: until its lease ends]
    #[arg(long, value_name = "TIME")]
    pub(crate) sandbox_timeout: Option<Span>,

    /// Whose tokens are accepted beside keys: the 'iss' that they have, letter by letter
    #[arg(long, value_name = "ISSUER")]
    pub(crate) token_issuer: Option<String>,

    /// Where the issuer's public keys are [default: what the issuer says]
    #[arg(long, value_name = "URL")]
    pub(crate) jwks_url: Option<String>,

    /// The 'aud' that a token must have
    #[arg(long, value_name = "AUDIENCE")]
    pub(crate) token_audience: Option<String>,

    /// Ask for no keys: everybody who reaches the server can do everything. Only on loopback
    #[arg(long)]
    pub(crate) without_keys: bool,

    /// Let AI workers be given tasks
    #[arg(long)]
    pub(crate) workers: bool,

    /// What to log: a level, or names with levels, as in info,cubicle_server=debug
    #[arg(long, value_name = "FILTER")]
    pub(crate) log: Option<String>,

    /// The collector that traces are sent to, by OTLP over HTTP: http://127.0.0.1:4318
    #[arg(long, value_name = "URL")]
    pub(crate) otlp_endpoint: Option<Address>,
}

impl Up {
    pub(crate) fn settings(&self) -> crate::settings::Server {
        crate::settings::Server {
            listen: self.listen,
            address: self.address.clone(),
            pool_size: self.pool_size,
            capacity: self.capacity,
            db_url: self.db_url.clone(),
            lease_ttl: self.lease_ttl.map(|span| span.0),
            sandbox_timeout: self.sandbox_timeout.map(|span| span.0),
            tokens: cubicle_server::TokenRequest {
                issuer: self.token_issuer.clone(),
                jwks_url: self.jwks_url.clone(),
                audience: self.token_audience.clone(),
                ..cubicle_server::TokenRequest::default()
            },
            log: self.log.clone(),
            otlp_endpoint: self.otlp_endpoint.clone(),
            ..crate::settings::Server::default()
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Bench {
    #[command(flatten)]
    pub(crate) shape: Shape,

    /// Print the table as Markdown
    #[arg(long, conflicts_with = "json")]
    pub(crate) markdown: bool,

    /// Fewer samples: a look, not a result
    #[arg(long)]
    pub(crate) quick: bool,

    /// Measure only these ids, separated by commas, as in exec.warm,destroy
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
}
