//! The command line, as clap reads it.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueHint};
use cubicle_model::limits::ByteSize;
use cubicle_model::{Isolation, SandboxId, Trust};

use crate::values::{Cores, FileCopy, Span, Variable};

const EXIT_CODES: &str = "\
Exit codes:
  0-123  what the command returned (any code it returns is passed on)
  124    the command ran into its timeout
  125    cubicle itself failed, or the outcome is not known
  126    the command cannot be executed
  127    the command was not found
  128+N  the command was killed by signal N (cubicle dies by the same signal)";

const RUN_EXAMPLES: &str = "\
Examples:
  cubicle run -- python3 -c 'print(6 * 7)'
  cubicle run --timeout 10s --memory 256M --pids 64 -- ./build.sh
  cubicle run --file main.py:/workspace/main.py -- python3 main.py < input.txt
  cubicle run --workspace . -- make test
  cubicle run --tty -- sh
  cubicle run --keep -- true      # the sandbox stays: cubicle exec ID -- CMD, cubicle rm ID
  cubicle run --json -- uname -a  # one JSON object on stdout";

// Paragraphs are single lines here: clap wraps them to the terminal.
const OUTPUT_NOTE: &str = "\
Output passes through byte for byte, also to a terminal: escape sequences that the command prints reach it, as if \
the command had been run directly. Use --json, or redirect the output, for a command whose output you do not trust. \
With --json, a command killed by signal N gives exit code 128+N.

When the command ends, so does everything it left running in the background, unless the sandbox is kept.";

const UP_NOTE: &str = "\
Examples:
  cubicle up
  cubicle up --listen 127.0.0.1:9000 --pool-size 16
  POOL_SIZE=16 LEASE_TTL_SECONDS=120 DB_URL=postgres://cubicle@db/cubicle cubicle up

The first start makes a key for you; its file is named when the server is up. A signal stops the server when it has \
finished what is under way; sandboxes and what runs in them go on, and the next start takes them over. A second signal \
ends it at once.";

const TOP_EXAMPLES: &str = "\
Examples:
  cubicle run -- python3 -c 'print(6 * 7)'   # a program in its own sandbox
  cubicle doctor                             # what this host can do, and how to fix the rest
  cubicle run --keep -- true; cubicle ls     # a sandbox that stays

Settings come from flags, then from variables (CUBICLE_DATA_DIR, CUBICLE_ISOLATION, CUBICLE_TRUST, CUBICLE_MEMORY, \
CUBICLE_CPUS, CUBICLE_PIDS, CUBICLE_WORKSPACE_SIZE, CUBICLE_TMP_SIZE, CUBICLE_OPEN_FILES, CUBICLE_WALL_TIME, \
CUBICLE_JOURNAL_SIZE), then from cubicle.toml: the file that --config or CUBICLE_CONFIG names, else \
~/.config/cubicle/cubicle.toml (not as root), else /etc/cubicle/cubicle.toml. Its keys are data_dir, isolation, \
trust, and in [limits] memory, cpus, pids, workspace_size, tmp_size, open_files, wall_time and journal_size.

'cubicle run' and 'cubicle exec' return what the command returned; a failure of cubicle itself is 125.";

/// Runs programs in sandboxes of their own, on this machine.
#[derive(Debug, Parser)]
#[command(name = "cubicle", version, max_term_width = 110, after_help = TOP_EXAMPLES)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) places: Places,

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

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run a command in a fresh sandbox
    #[command(override_usage = "cubicle run [OPTIONS] -- <CMD>...", after_help = format!("{RUN_EXAMPLES}\n\n{EXIT_CODES}\n\n{OUTPUT_NOTE}"))]
    Run(Box<Run>),
    /// Run a command in a sandbox that was kept
    #[command(override_usage = "cubicle exec [OPTIONS] <ID> -- <CMD>...", after_help = format!("Examples:\n  cubicle exec sbx-… -- cat /workspace/result.json\n\n{EXIT_CODES}"))]
    Exec(Exec),
    /// List sandboxes
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
    /// Start the server: leases, a pool of ready sandboxes, and the HTTP API, in this one process
    #[command(after_help = UP_NOTE)]
    Up(Box<Up>),
}

impl Verb {
    /// Whether stdout holds one JSON value and nothing else, also when the command fails.
    pub(crate) fn wants_json(&self) -> bool {
        match self {
            Self::Run(args) => args.how.json,
            Self::Exec(args) => args.how.json,
            Self::Ls(args) => args.shape.json,
            Self::Bench(args) => args.shape.json,
            Self::Gc(shape) | Self::Doctor(shape) => shape.json,
            Self::Rm(_) | Self::Receipt(_) | Self::Completions { .. } | Self::FirstRun | Self::Up(_) => false,
        }
    }
}

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

#[derive(Debug, Args)]
pub(crate) struct Argv {
    /// The command and its arguments
    #[arg(value_name = "CMD", required = true, trailing_var_arg = true, value_hint = ValueHint::CommandWithArguments)]
    pub(crate) argv: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Exec {
    #[command(flatten)]
    pub(crate) how: How,

    /// The sandbox, as 'cubicle ls' shows it
    #[arg(value_name = "ID")]
    pub(crate) id: SandboxId,

    #[command(flatten)]
    pub(crate) argv: Argv,
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

    /// Ask for no keys: everybody who reaches the server can do everything. Only on loopback
    #[arg(long)]
    pub(crate) without_keys: bool,

    /// What to log: a level, or names with levels, as in info,cubicle_server=debug
    #[arg(long, value_name = "FILTER")]
    pub(crate) log: Option<String>,
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
            log: self.log.clone(),
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
