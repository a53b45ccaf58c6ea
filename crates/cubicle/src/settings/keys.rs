//! Every key, as it is spelled in `cubicle.toml`, with its variable and what it says.

use cubicle_model::limits::ByteSize;
use cubicle_model::{LimitRequest, Limits};

pub(super) struct Key {
    pub(super) path: &'static str,
    pub(super) variable: &'static str,
    about: &'static str,
    default: &'static str,
}

const fn key(path: &'static str, variable: &'static str, default: &'static str, about: &'static str) -> Key {
    Key { path, variable, about, default }
}

/// The default is what `Limits` says.
const BUILT_IN: &str = "built in";

pub(super) const KEYS: [Key; 69] = [
    key(
        "data_dir",
        "CUBICLE_DATA_DIR",
        "`/var/lib/cubicle` as root, else `~/.local/share/cubicle`",
        "Where sandboxes and the server's state are kept",
    ),
    key(
        "isolation",
        "CUBICLE_ISOLATION",
        "what the trust asks for",
        "The isolation level of `cubicle run`: `gvisor`, `namespaces` or `landlock`",
    ),
    key(
        "trust",
        "CUBICLE_TRUST",
        "`medium`",
        "Trust in the code: `low`, `medium` or `high`. High trust is the least isolation",
    ),
    key("limits.memory", "CUBICLE_MEMORY", BUILT_IN, "Memory of a sandbox: `256M`, `2G`"),
    key("limits.cpus", "CUBICLE_CPUS", BUILT_IN, "Cores of a sandbox: `0.5`, `2`"),
    key("limits.pids", "CUBICLE_PIDS", BUILT_IN, "Processes and threads of a sandbox"),
    key("limits.workspace_size", "CUBICLE_WORKSPACE_SIZE", BUILT_IN, "Size of `/workspace`"),
    key(
        "limits.tmp_size",
        "CUBICLE_TMP_SIZE",
        BUILT_IN,
        "Size of `/tmp`, `/dev/shm` and the home directory together",
    ),
    key("limits.open_files", "CUBICLE_OPEN_FILES", BUILT_IN, "Open files of a process"),
    key("limits.wall_time", "CUBICLE_WALL_TIME", BUILT_IN, "How long a sandbox lives: `30m`, `2h`"),
    key("limits.journal_size", "CUBICLE_JOURNAL_SIZE", BUILT_IN, "How much output a sandbox keeps"),
    key(
        "server.url",
        "CUBICLE_SERVER",
        "the server of this data directory, else `http://127.0.0.1:7878`",
        "The server that commands ask",
    ),
    key(
        "server.key",
        "CUBICLE_KEY",
        "the first key of the server of this data directory",
        "The key they ask with; better in a file of its own",
    ),
    key("server.key_file", "CUBICLE_KEY_FILE", "", "A file with the key"),
    key("server.listen", "CUBICLE_LISTEN", "`127.0.0.1:7878`", "Where `cubicle up` listens"),
    key(
        "server.address",
        "CUBICLE_ADDRESS",
        "`http://` and where it listens",
        "The address that others reach it by, for links",
    ),
    key(
        "server.db_url",
        "DB_URL",
        "SQLite in the data directory",
        "Where leases are kept: `postgres://user:password@host/database` or `sqlite:///path`",
    ),
    key(
        "server.capacity",
        "CUBICLE_CAPACITY",
        "`200`",
        "Sandboxes that fit on this host, ready ones included",
    ),
    key("server.longest_queue", "CUBICLE_LONGEST_QUEUE", "`1000`", "Leases that may wait for room"),
    key("server.pool_size", "POOL_SIZE", "`4`", "Ready sandboxes of the default template"),
    key(
        "server.image",
        "SANDBOX_IMAGE",
        "the host's own `/usr`",
        "A directory with the root filesystem of the default template",
    ),
    key(
        "server.shared_dir",
        "CUBICLE_SHARED_DIR",
        "`shared` in the data directory",
        "Where files that outlive sandboxes are kept; several servers that are one deployment name the same place",
    ),
    key("server.lease_ttl", "LEASE_TTL_SECONDS", "`10m`", "How long a lease lives without a heartbeat"),
    key(
        "server.sandbox_timeout",
        "SANDBOX_TIMEOUT_SECONDS",
        "until its lease ends",
        "Timeout of an exec that names none",
    ),
    key(
        "server.journal_retention",
        "CUBICLE_JOURNAL_RETENTION",
        "`2d`",
        "How long output stays readable after its sandbox has gone",
    ),
    key(
        "server.record_retention",
        "CUBICLE_RECORD_RETENTION",
        "`7d`",
        "How long leases, execs and events that have ended are kept",
    ),
    key(
        "server.requests_per_second",
        "CUBICLE_REQUESTS_PER_SECOND",
        "`2000`",
        "Requests that a key or the subject of a token may make in a second, unless the key says otherwise",
    ),
    key(
        "server.token_issuer",
        "AUTH_TOKEN_ISSUER",
        "tokens are not accepted",
        "Whose tokens are accepted beside keys: the `iss` that they have, letter by letter",
    ),
    key(
        "server.jwks_url",
        "JWKS_URL",
        "what `/.well-known/openid-configuration` of the issuer says",
        "Where the issuer's public keys are",
    ),
    key(
        "server.token_audience",
        "CUBICLE_TOKEN_AUDIENCE",
        "any, but then a token must name a scope of Cubicle",
        "The `aud` that a token must have",
    ),
    key("server.token_user_claim", "CUBICLE_TOKEN_USER_CLAIM", "`sub`", "The claim that says the user"),
    key(
        "server.token_tenant_claim",
        "CUBICLE_TOKEN_TENANT_CLAIM",
        "everybody is of the tenant `default`",
        "The claim that says the tenant: its name, or a JSON pointer as in `/org/name`",
    ),
    key(
        "server.token_scope_claim",
        "CUBICLE_TOKEN_SCOPE_CLAIM",
        "`scope` and `scp`",
        "The claim that lists scopes: words in a text, or a list",
    ),
    key(
        "server.token_scope_prefix",
        "CUBICLE_TOKEN_SCOPE_PREFIX",
        "`cubicle:`",
        "What stands before scopes of Cubicle there, as in `cubicle:run`",
    ),
    key(
        "server.token_scopes",
        "CUBICLE_TOKEN_SCOPES",
        "`read,run` with an audience, else none",
        "What a token may do that names no scope of Cubicle",
    ),
    key(
        "server.secrets_key",
        "CUBICLE_SECRETS_KEY",
        "what the file below holds",
        "The key that secrets in the database are sealed with: 32 bytes in base64. Several lines are several keys: the first \
         seals, all open; better in a file of its own",
    ),
    key(
        "server.secrets_key_file",
        "CUBICLE_SECRETS_KEY_FILE",
        "`server/secrets.key` in the data directory, made by the first start",
        "A file with such keys",
    ),
    key(
        "server.log",
        "CUBICLE_LOG",
        "`warn,cubicle=info`",
        "What the server logs: a level, or names with levels",
    ),
    key(
        "server.redact_patterns",
        "CUBICLE_REDACT_PATTERNS",
        "`usual`",
        "What is masked in logs and events because it looks like a credential: shapes as `tok_[A-Za-z0-9]{20,}`, parted by \
         spaces; `usual` stands for those of well-known services, `none` alone for nothing",
    ),
    key(
        "server.otlp_endpoint",
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "",
        "The collector that traces are sent to, by OTLP over HTTP: `http://127.0.0.1:4318`",
    ),
    key(
        "server.otlp_headers",
        "OTEL_EXPORTER_OTLP_HEADERS",
        "",
        "Headers that it wants: `name=value,name=value`, values percent-encoded",
    ),
    key("server.service_name", "OTEL_SERVICE_NAME", "`cubicle`", "What the server is called in traces"),
    key(
        "egress.enabled",
        "CUBICLE_EGRESS",
        "`true`",
        "Whether sandboxes have a way out at all; `false` leaves them without any network",
    ),
    key(
        "egress.python_index",
        "CUBICLE_PYTHON_INDEX",
        "what pip and uv are configured with, else what pip has built in",
        "The Python index of the bundle `@python`",
    ),
    key(
        "egress.python_extra_indexes",
        "CUBICLE_PYTHON_EXTRA_INDEXES",
        "",
        "Further addresses of `@python`, parted by spaces: other indexes, and where files of an index are when that is another host",
    ),
    key(
        "egress.npm_registry",
        "CUBICLE_NPM_REGISTRY",
        "what npm is configured with",
        "The npm registry of the bundle `@node`; several are parted by spaces",
    ),
    key(
        "egress.mcp_base_url",
        "MCP_BASE_URL",
        "",
        "The MCP server that sandboxes of the template `workflow` may reach, even where it is private",
    ),
    key(
        "egress.obj_url",
        "OBJ_URL",
        "",
        "The object store that sandboxes of the template `workflow` may reach, even where it is private",
    ),
    key(
        "egress.access_log",
        "CUBICLE_EGRESS_ACCESS_LOG",
        "",
        "A file that gets a line for every request and tunnel out of a sandbox, in the common log format",
    ),
    key(
        "egress.extra_roots",
        "CUBICLE_EGRESS_EXTRA_ROOTS",
        "",
        "A file with certificates (PEM) that the gateway trusts beside those of the host",
    ),
    key(
        "sandbox.python_index.default_index",
        "CUBICLE_SANDBOX_DEFAULT_INDEX",
        "`egress.python_index`, else what pip and uv are configured with, else what uv has built in",
        "The index that Python environments are made from. It may hold a user name and a password, which only uv is told",
    ),
    key(
        "sandbox.python_index.extra_indices",
        "CUBICLE_SANDBOX_EXTRA_INDICES",
        "",
        "Further indexes: a list, or addresses parted by spaces. uv takes a package from the first index that has it",
    ),
    key(
        "sandbox.python_index.trusted_hosts",
        "CUBICLE_SANDBOX_TRUSTED_HOSTS",
        "",
        "Hosts whose certificates are not checked: a list, or hosts parted by spaces",
    ),
    key(
        "sandbox.python_index.allowed_packages",
        "CUBICLE_SANDBOX_ALLOWED_PACKAGES",
        "all",
        "Packages that may be asked for: a list, or names parted by spaces. What they depend on comes along",
    ),
    key(
        "sandbox.python_index.find_links",
        "CUBICLE_SANDBOX_FIND_LINKS",
        "",
        "Directories with wheels: a list, or paths parted by spaces. uv's own user must be able to read them",
    ),
    key(
        "sandbox.python_index.no_index",
        "CUBICLE_SANDBOX_NO_INDEX",
        "`false`",
        "Whether packages come from `find_links` alone, for hosts without a network",
    ),
    key(
        "sandbox.env_cache.max_envs_per_pod",
        "CUBICLE_MAX_ENVS_PER_POD",
        "`100`",
        "Environments that are kept; beyond that the longest unused go",
    ),
    key(
        "sandbox.env_cache.env_ttl",
        "CUBICLE_ENV_TTL",
        "`7d`",
        "How long an environment is kept that nobody uses",
    ),
    key(
        "sandbox.env_cache.max_disk_usage",
        "CUBICLE_ENV_MAX_DISK_USAGE",
        "`5Gi`",
        "How large all environments may be together",
    ),
    key(
        "sandbox.claim_timeout",
        "CUBICLE_CLAIM_TIMEOUT",
        "`30s`",
        "How long code that is to be run waits for a sandbox",
    ),
    key(
        "sandbox.trust_domain",
        "CUBICLE_TRUST_DOMAIN",
        "`cluster.local`",
        "The trust domain of SPIFFE identities, in a cluster",
    ),
    key(
        "sandbox.warm_interpreters",
        "CUBICLE_WARM_INTERPRETERS",
        "`true`",
        "Whether interpreters are kept ready in sandboxes, so that code need not wait for one to start",
    ),
    key(
        "sandbox.python",
        "CUBICLE_SANDBOX_PYTHON",
        "the best of the host: 3.12 or newer, one of `/usr` first",
        "The interpreter of Python environments; everybody must be able to run it",
    ),
    key("sandbox.uv", "CUBICLE_SANDBOX_UV", "the one in `PATH`", "uv, which makes Python environments"),
    key(
        "ai_worker_config.webhook_secret",
        "AI_WORKER_WEBHOOK_SECRET",
        "",
        "What calls of workers, and deliveries to addresses that tasks name, are signed with. Several are parted by spaces: the \
         first signs, all are accepted",
    ),
    key(
        "ai_worker_config.webhook_path",
        "AI_WORKER_WEBHOOK_PATH",
        "`/api/webhooks/worker-complete`",
        "Where workers tell that their task has ended",
    ),
    key(
        "webhooks.allow",
        "CUBICLE_WEBHOOKS_ALLOW",
        "",
        "Receivers of webhooks in private networks and on this host: hosts, hosts with ports and networks, a list or parted by \
         spaces, as in `assistant.lan:8000 10.1.0.0/16`",
    ),
    key(
        "webhooks.timeout",
        "CUBICLE_WEBHOOKS_TIMEOUT",
        "`10s`",
        "How long a receiver has to answer, connection included",
    ),
    key(
        "webhooks.retry_pauses",
        "CUBICLE_WEBHOOKS_RETRY_PAUSES",
        "`5s 30s 2m 10m 30m 2h 5h`",
        "How long to wait after each attempt that failed; after the last one there is one more attempt",
    ),
];

/// docs/reference/config.md.
pub(crate) fn reference() -> String {
    let mut text = String::from(INTRODUCTION);
    for Key { path, variable, about, default } in &KEYS {
        let default = match *default {
            "" => "none".to_owned(),
            BUILT_IN => format!("`{}`", built_in(path)),
            default => default.to_owned(),
        };
        text.push_str(&format!("| `{path}` | `{variable}` | {about} | {default} |\n"));
    }
    text
}

fn built_in(path: &str) -> String {
    let Ok(limits) = Limits::parse(&LimitRequest::default()) else { return String::new() };
    match path {
        "limits.memory" => ByteSize(limits.memory.value).to_string(),
        "limits.cpus" => (limits.millicpus.value as f64 / 1000.0).to_string(),
        "limits.pids" => limits.pids.value.to_string(),
        "limits.workspace_size" => ByteSize(limits.workspace.value).to_string(),
        "limits.tmp_size" => ByteSize(limits.tmp.value).to_string(),
        "limits.open_files" => limits.open_files.value.to_string(),
        "limits.wall_time" => format!("{}h", limits.wall_seconds.value / 3600),
        "limits.journal_size" => ByteSize(limits.journal.value).to_string(),
        _ => String::new(),
    }
}

const INTRODUCTION: &str = "\
# Configuration

Generated from the program by `UPDATE=1 cargo test -p cubicle --test cli_text`; do not edit.

Everything has a default that is right without a file. A flag counts more than a variable of the environment, and a
variable more than `cubicle.toml`: the file that `--config` or `CUBICLE_CONFIG` names, else
`~/.config/cubicle/cubicle.toml` (not as root), else `/etc/cubicle/cubicle.toml`. An unknown key is an error that names
the nearest known one. Sizes are written as `256M`, `2G` or `5Gi`, times as `90`, `90s`, `10m`, `2h` or `1d`.

```toml
data_dir = \"/srv/cubicle\"

[limits]
memory = \"1G\"

[server]
listen = \"127.0.0.1:7878\"
pool_size = 16
```

`[egress.bundles]` defines lists of rules that policies refer to as `@name`, or defines them anew (`cubicle egress bundles`
prints all of them). It has no variable. An address in `[egress]` may hold a user name and a password; they are not used, and
told nobody: bind a secret to the host instead.

```toml
[egress]
python_index = \"https://packages.example.org/simple\"

[egress.bundles]
databases = \"allow tcp://db.example.org:5432; allow tcp://cache.example.org:6379\"
```

`[sandbox.templates]` says which template a type of tool uses, and `default` which all others do. It has no variable.

```toml
[sandbox.templates]
default = \"python\"
file_search = \"search\"

[sandbox.python_index]
default_index = \"https://packages.example.org/simple\"
allowed_packages = [\"numpy\", \"pandas\", \"requests\"]

[sandbox.env_cache]
max_disk_usage = \"5Gi\"
```

| key | variable | what it says | default |
|---|---|---|---|
";
