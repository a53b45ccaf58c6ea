//! Settings from flags, environment and `cubicle.toml`, in this order. An unknown key is an error that names the
//! nearest known one.

mod egress;
mod file;
mod keys;
mod sandbox;
mod webhooks;
mod workers;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use cubicle_api::client::{Address, Secret};
use cubicle_egress::redact::Shapes;
use cubicle_model::isolation::choose;
use cubicle_model::limits::ByteSize;
use cubicle_model::{Fault, Isolation, Kind, LimitRequest, Limits, Scope, Trust};
use cubicle_server::TokenRequest;

use crate::args::SandboxOptions;
use crate::environment::Environment;
use crate::values::{Cores, Span};
pub(crate) use egress::Egress;
pub(crate) use keys::reference;
use keys::{KEYS, Key};
pub(crate) use sandbox::Sandboxes;
pub(crate) use webhooks::Webhooks;
pub(crate) use workers::{Resources, Workers};

/// Names the file itself, so it is no key of the file.
const CONFIG_VARIABLE: &str = "CUBICLE_CONFIG";

/// What one source says; the next one fills what is absent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) data_dir: Option<PathBuf>,
    pub(crate) isolation: Option<Isolation>,
    pub(crate) trust: Option<Trust>,
    pub(crate) limits: LimitRequest,
    pub(crate) server: Server,
    pub(crate) egress: Egress,
    pub(crate) sandbox: Sandboxes,
    pub(crate) workers: Workers,
    pub(crate) webhooks: Webhooks,
}

/// What a server is told, and which one is asked; everything has a default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Server {
    pub(crate) url: Option<Address>,
    pub(crate) key: Option<Secret>,
    pub(crate) key_file: Option<PathBuf>,
    pub(crate) listen: Option<SocketAddr>,
    pub(crate) address: Option<String>,
    pub(crate) db_url: Option<String>,
    pub(crate) capacity: Option<u64>,
    pub(crate) longest_queue: Option<u64>,
    pub(crate) pool_size: Option<u64>,
    pub(crate) image: Option<PathBuf>,
    pub(crate) shared_dir: Option<PathBuf>,
    pub(crate) lease_ttl: Option<Duration>,
    pub(crate) sandbox_timeout: Option<Duration>,
    pub(crate) journal_retention: Option<Duration>,
    pub(crate) record_retention: Option<Duration>,
    pub(crate) requests_per_second: Option<u64>,
    pub(crate) tokens: TokenRequest,
    pub(crate) secrets_key: Option<Secret>,
    pub(crate) secrets_key_file: Option<PathBuf>,
    pub(crate) log: Option<String>,
    /// A list of shapes that can be read.
    pub(crate) redact_patterns: Option<String>,
    pub(crate) otlp_endpoint: Option<Address>,
    pub(crate) otlp_headers: Option<Secret>,
    pub(crate) service_name: Option<String>,
}

impl Server {
    pub(crate) fn over(self, below: Self) -> Self {
        // A key that is named here is not hidden by one that is named below in the other way.
        let (key, key_file) = match (self.key, self.key_file) {
            (None, None) => (below.key, below.key_file),
            named => named,
        };
        let (secrets_key, secrets_key_file) = match (self.secrets_key, self.secrets_key_file) {
            (None, None) => (below.secrets_key, below.secrets_key_file),
            named => named,
        };
        Self {
            url: self.url.or(below.url),
            key,
            key_file,
            listen: self.listen.or(below.listen),
            address: self.address.or(below.address),
            db_url: self.db_url.or(below.db_url),
            capacity: self.capacity.or(below.capacity),
            longest_queue: self.longest_queue.or(below.longest_queue),
            pool_size: self.pool_size.or(below.pool_size),
            image: self.image.or(below.image),
            shared_dir: self.shared_dir.or(below.shared_dir),
            lease_ttl: self.lease_ttl.or(below.lease_ttl),
            sandbox_timeout: self.sandbox_timeout.or(below.sandbox_timeout),
            journal_retention: self.journal_retention.or(below.journal_retention),
            record_retention: self.record_retention.or(below.record_retention),
            requests_per_second: self.requests_per_second.or(below.requests_per_second),
            tokens: self.tokens.over(below.tokens),
            secrets_key,
            secrets_key_file,
            log: self.log.or(below.log),
            redact_patterns: self.redact_patterns.or(below.redact_patterns),
            otlp_endpoint: self.otlp_endpoint.or(below.otlp_endpoint),
            otlp_headers: self.otlp_headers.or(below.otlp_headers),
            service_name: self.service_name.or(below.service_name),
        }
    }
}

impl Settings {
    /// Environment over file. Flags are laid over the result with `for_sandbox`.
    pub(crate) fn load(config: Option<&Path>, environment: &Environment, root: bool) -> Result<Self, Fault> {
        let variables = from_environment(environment)?;
        let named = config.map(Path::to_owned).or_else(|| environment.path(CONFIG_VARIABLE));
        Ok(variables.over(file::read(named.as_deref(), environment, root)?))
    }

    /// The settings of one sandbox: flags over everything else, checked and complete.
    pub(crate) fn for_sandbox(&self, flags: &SandboxOptions) -> Result<Sandbox, Fault> {
        let asked = Self {
            data_dir: None,
            isolation: flags.isolation,
            trust: flags.trust,
            limits: LimitRequest {
                memory: flags.memory.map(|size| size.0),
                millicpus: flags.cpus.map(|cores| cores.millicpus),
                pids: flags.pids,
                workspace: flags.workspace_size.map(|size| size.0),
                tmp: flags.tmp_size.map(|size| size.0),
                ..LimitRequest::default()
            },
            server: Server::default(),
            egress: Egress::default(),
            sandbox: Sandboxes::default(),
            workers: Workers::default(),
            webhooks: Webhooks::default(),
        };
        let mut all = asked.over(self.clone());
        // A directory of the host has no size to enforce, so a size that the file or the environment sets for every
        // other sandbox does not make this one impossible. One given as a flag conflicts with --workspace.
        if flags.workspace.is_some() {
            all.limits.workspace = None;
        }
        let trust = all.trust.unwrap_or_default();
        let isolation = choose(trust, all.isolation).map_err(|weak| {
            Fault::new(Kind::Denied, weak.to_string()).hint(format!(
                "use --isolation {}, or raise --trust if you trust the code more",
                trust.weakest_isolation()
            ))
        })?;
        let limits =
            Limits::parse(&all.limits).map_err(|small| Fault::new(Kind::Invalid, small.to_string()))?;
        Ok(Sandbox { trust, isolation, limits })
    }

    fn over(self, below: Self) -> Self {
        let (high, low) = (self.limits, below.limits);
        Self {
            data_dir: self.data_dir.or(below.data_dir),
            isolation: self.isolation.or(below.isolation),
            trust: self.trust.or(below.trust),
            limits: LimitRequest {
                memory: high.memory.or(low.memory),
                millicpus: high.millicpus.or(low.millicpus),
                pids: high.pids.or(low.pids),
                workspace: high.workspace.or(low.workspace),
                tmp: high.tmp.or(low.tmp),
                open_files: high.open_files.or(low.open_files),
                wall_seconds: high.wall_seconds.or(low.wall_seconds),
                journal: high.journal.or(low.journal),
            },
            server: self.server.over(below.server),
            egress: self.egress.over(below.egress),
            sandbox: self.sandbox.over(below.sandbox),
            workers: self.workers.over(below.workers),
            webhooks: self.webhooks.over(below.webhooks),
        }
    }

    /// Sets one key of `KEYS` from its text. `at` names where the text stands, for the error.
    fn set(&mut self, key: &str, text: &str, at: &str) -> Result<(), Fault> {
        if let Some(set) = self.egress.set(key, text, at) {
            return set;
        }
        if let Some(set) = self.sandbox.set(key, text, at) {
            return set;
        }
        if let Some(set) = self.workers.set(key, text, at) {
            return set;
        }
        if let Some(set) = self.webhooks.set(key, text, at) {
            return set;
        }
        let (limits, server) = (&mut self.limits, &mut self.server);
        match key {
            "data_dir" => self.data_dir = Some(PathBuf::from(text)),
            "isolation" => self.isolation = Some(parse(text, at)?),
            "trust" => self.trust = Some(parse(text, at)?),
            "limits.memory" => limits.memory = Some(parse::<ByteSize>(text, at)?.0),
            "limits.cpus" => limits.millicpus = Some(parse::<Cores>(text, at)?.millicpus),
            "limits.pids" => limits.pids = Some(number(text, at)?),
            "limits.workspace_size" => limits.workspace = Some(parse::<ByteSize>(text, at)?.0),
            "limits.tmp_size" => limits.tmp = Some(parse::<ByteSize>(text, at)?.0),
            "limits.open_files" => limits.open_files = Some(number(text, at)?),
            "limits.wall_time" => limits.wall_seconds = Some(parse::<Span>(text, at)?.0.as_secs().max(1)),
            "limits.journal_size" => limits.journal = Some(parse::<ByteSize>(text, at)?.0),
            "server.url" => server.url = Some(parse(text, at)?),
            "server.key" => server.key = Some(Secret::new(text)),
            "server.key_file" => server.key_file = Some(PathBuf::from(text)),
            "server.listen" => server.listen = Some(parse(text, at)?),
            "server.address" => server.address = Some(text.trim_end_matches('/').to_owned()),
            "server.db_url" => server.db_url = Some(text.to_owned()),
            "server.capacity" => server.capacity = Some(number(text, at)?),
            "server.longest_queue" => server.longest_queue = Some(number(text, at)?),
            "server.pool_size" => server.pool_size = Some(number(text, at)?),
            "server.image" => server.image = Some(PathBuf::from(text)),
            "server.shared_dir" => server.shared_dir = Some(PathBuf::from(text)),
            "server.lease_ttl" => server.lease_ttl = Some(parse::<Span>(text, at)?.0),
            "server.sandbox_timeout" => server.sandbox_timeout = Some(parse::<Span>(text, at)?.0),
            "server.journal_retention" => server.journal_retention = Some(parse::<Span>(text, at)?.0),
            "server.record_retention" => server.record_retention = Some(parse::<Span>(text, at)?.0),
            "server.requests_per_second" => server.requests_per_second = Some(number(text, at)?),
            "server.token_issuer" => server.tokens.issuer = Some(text.to_owned()),
            "server.jwks_url" => server.tokens.jwks_url = Some(text.to_owned()),
            "server.token_audience" => server.tokens.audience = Some(text.to_owned()),
            "server.token_user_claim" => server.tokens.user_claim = Some(text.to_owned()),
            "server.token_tenant_claim" => server.tokens.tenant_claim = Some(text.to_owned()),
            "server.token_scope_claim" => server.tokens.scope_claim = Some(text.to_owned()),
            "server.token_scope_prefix" => server.tokens.scope_prefix = Some(text.to_owned()),
            "server.token_scopes" => server.tokens.default_scopes = Some(scopes(text, at)?),
            "server.secrets_key" => server.secrets_key = Some(Secret::new(text)),
            "server.secrets_key_file" => server.secrets_key_file = Some(PathBuf::from(text)),
            "server.log" => server.log = Some(text.to_owned()),
            "server.redact_patterns" => {
                Shapes::parse(text).map_err(|error| Fault::new(Kind::Invalid, format!("{at}: {error}")))?;
                server.redact_patterns = Some(text.to_owned());
            }
            "server.otlp_endpoint" => server.otlp_endpoint = Some(parse(text, at)?),
            "server.otlp_headers" => server.otlp_headers = Some(Secret::new(text)),
            "server.service_name" => server.service_name = Some(text.to_owned()),
            _ => return Err(unknown(key, "the settings", KEYS.iter().map(|key| key.path))),
        }
        Ok(())
    }
}

/// The settings of one sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sandbox {
    pub(crate) trust: Trust,
    pub(crate) isolation: Isolation,
    pub(crate) limits: Limits,
}

fn from_environment(environment: &Environment) -> Result<Settings, Fault> {
    let mut settings = Settings::default();
    for Key { path, variable, .. } in &KEYS {
        if let Some(text) = environment.text(variable).filter(|text| !text.is_empty()) {
            settings.set(path, &text, &format!("{variable} in the environment"))?;
        }
    }
    let known = || KEYS.iter().map(|key| key.variable).chain([CONFIG_VARIABLE]);
    let is_ours = |name: &&str| ["CUBICLE_", "AI_WORKER_"].iter().any(|prefix| name.starts_with(prefix));
    for name in environment.names().filter(is_ours) {
        // Other programs may have variables of this prefix, so only what looks like a slip of the pen is refused.
        if !known().any(|key| key == name) && nearest(name, known()).is_some() {
            return Err(unknown(name, "the environment", known()));
        }
    }
    Ok(settings)
}

fn parse<T: FromStr<Err: std::fmt::Display>>(text: &str, at: &str) -> Result<T, Fault> {
    text.parse().map_err(|error: T::Err| Fault::new(Kind::Invalid, format!("{at}: {error}")))
}

fn scopes(text: &str, at: &str) -> Result<BTreeSet<Scope>, Fault> {
    text.split(',').map(|name| parse(name.trim(), at)).collect()
}

fn number(text: &str, at: &str) -> Result<u64, Fault> {
    text.parse().map_err(|_| Fault::new(Kind::Invalid, format!("{at}: '{text}' is not a whole number")))
}

fn unknown<'a>(key: &str, source: &str, known: impl Iterator<Item = &'a str> + Clone) -> Fault {
    let fault = Fault::new(Kind::Invalid, format!("unknown key '{key}' in {source}"));
    match nearest(key, known.clone()) {
        Some(near) => fault.hint(format!("did you mean '{near}'?")),
        None => fault.hint(format!("known keys: {}", known.collect::<Vec<_>>().join(", "))),
    }
}

/// The known key that was probably meant, if one is near enough.
fn nearest<'a>(given: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let bare = |key: &str| key.rsplit('.').next().unwrap_or_default().to_lowercase();
    let prefix = "cubicle_";
    known
        .map(|key| {
            let (a, b) = (bare(given), bare(key));
            // The prefix is the same in all variables and would make all of them near.
            let (a, b) = (a.strip_prefix(prefix).unwrap_or(&a), b.strip_prefix(prefix).unwrap_or(&b));
            (strsim::jaro_winkler(a, b), key)
        })
        .filter(|(likeness, _)| *likeness > 0.85)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, key)| key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn no_flags() -> SandboxOptions {
        SandboxOptions {
            workspace: None,
            memory: None,
            cpus: None,
            pids: None,
            workspace_size: None,
            tmp_size: None,
            isolation: None,
            trust: None,
        }
    }

    fn load(toml: &str, environment: &Environment) -> Result<Settings, Fault> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cubicle.toml");
        std::fs::write(&path, toml).unwrap();
        Settings::load(Some(&path), environment, false)
    }

    #[test]
    fn a_flag_wins_over_a_variable_and_a_variable_over_the_file() {
        let toml = "[limits]\nmemory = '64M'\npids = 100\ntmp_size = '1M'";
        let environment = Environment::from([("CUBICLE_MEMORY", "128M"), ("CUBICLE_PIDS", "200")]);
        let settings = load(toml, &environment).unwrap();
        let flags = SandboxOptions { memory: Some(ByteSize(256 << 20)), ..no_flags() };
        let limits = settings.for_sandbox(&flags).unwrap().limits;
        assert_eq!((limits.memory.value, limits.pids.value, limits.tmp.value), (256 << 20, 200, 1 << 20));
        assert!(limits.memory.asked && limits.pids.asked && limits.tmp.asked && !limits.journal.asked);
    }

    #[test]
    fn every_key_is_read_from_the_file_and_from_its_variable() {
        let value = |path: &str| match path {
            "data_dir" => "/srv/cubicle",
            "isolation" => "namespaces",
            "trust" => "high",
            "limits.cpus" => "1.5",
            "limits.wall_time" => "2h",
            "server.listen" => "127.0.0.1:7000",
            "server.url" | "server.otlp_endpoint" => "http://127.0.0.1:7000",
            "egress.access_log" | "egress.extra_roots" => "/srv/file",
            "egress.enabled" | "sandbox.warm_interpreters" => "false",
            "sandbox.python_index.no_index" => "true",
            "sandbox.python_index.default_index" | "sandbox.python_index.extra_indices" => {
                "https://ada:hunter2@index.example/simple"
            }
            "sandbox.python_index.find_links" | "sandbox.python" | "sandbox.uv" => "/srv/file",
            "sandbox.python_index.allowed_packages" => "pandas Scikit_Learn",
            path if path.starts_with("egress.") => "https://service.example/path",
            "server.token_scopes" => "read, manage",
            "server.redact_patterns" => "usual tok_[a-z]{8,}",
            "webhooks.allow" => "assistant.lan:8000 10.1.0.0/16",
            "webhooks.timeout" => "5s",
            "webhooks.retry_pauses" => "5s 30s",
            "ai_worker_config.enabled" | "ai_worker_config.require_gvisor" => "true",
            "ai_worker_config.webhook_path" | "ai_worker_config.workspace_mount_path" => "/some/path",
            path if path.starts_with("ai_worker_config.resources.memory") => "512Mi",
            path if path.starts_with("ai_worker_config.resources.cpu") => "500m",
            _ => "1048576",
        };
        for Key { path, variable, .. } in &KEYS {
            let toml = format!("{path} = '{}'", value(path));
            let from_file = load(&toml, &Environment::default()).unwrap();
            assert_ne!(from_file, Settings::default(), "{path}");
            let from_variable = load("", &Environment::from([(*variable, value(path))])).unwrap();
            assert_eq!(from_file, from_variable, "{path}");
        }
    }

    #[test]
    fn an_unknown_key_gets_a_suggestion() {
        let table = [
            ("isolatoin = 'gvisor'", "isolation"),
            ("[limits]\nmemroy = '1G'", "limits.memory"),
            ("memory = '1G'", "limits.memory"),
            ("[limit]\nmemory = '1G'", "limits.memory"),
            ("[limits]\ndata_dir = '/x'", "data_dir"),
            ("[egress]\npython_indx = 'https://a.example'", "egress.python_index"),
            ("[egress.bundels]\nmine = 'allow a.example'", "egress.bundles.mine"),
            (
                "[sandbox.python_index]\ndefault_indx = 'https://a.example'",
                "sandbox.python_index.default_index",
            ),
            ("[sandbox.env_cache]\nenv_tll = '1h'", "sandbox.env_cache.env_ttl"),
            ("[sandbox]\nclaim_timeot = '1s'", "sandbox.claim_timeout"),
            ("[sandbox.tempaltes]\ndefault = 'python'", "sandbox.templates.default"),
            ("[ai_worker_config]\nmax_concurent_workers = 3", "ai_worker_config.max_concurrent_workers"),
        ];
        for (toml, suggestion) in table {
            let fault = load(toml, &Environment::default()).unwrap_err();
            assert!(fault.message().starts_with("unknown key"), "{fault}");
            assert_eq!(fault.way_out(), Some(format!("did you mean '{suggestion}'?").as_str()), "{toml}");
        }
        let fault = load("colour = 'red'", &Environment::default()).unwrap_err();
        assert!(fault.way_out().unwrap().starts_with("known keys: data_dir, "));
    }

    #[test]
    fn a_misspelled_variable_gets_a_suggestion_and_a_foreign_one_is_left_alone() {
        let fault = load("", &Environment::from([("CUBICLE_MEMROY", "1G")])).unwrap_err();
        assert_eq!(fault.way_out(), Some("did you mean 'CUBICLE_MEMORY'?"));
        load("", &Environment::from([("CUBICLE_TEST_KEEP", "1")])).unwrap();
        let fault = load("", &Environment::from([("AI_WORKER_ENABLD", "1")])).unwrap_err();
        assert_eq!(fault.way_out(), Some("did you mean 'AI_WORKER_ENABLED'?"));
    }

    /// As an assistant that has such workers already writes it.
    const WORKERS_YAML: &str = "\
ai_worker_config:
  enabled: true
  namespace: \"family-assistant\"
  ai_coder_image: \"containers.example.com/ai-coder:v1.0\"
  service_account: \"ai-worker\"
  runtime_class: \"gvisor\"

  workspace_pvc: \"ai-workspace-pvc\"

  default_timeout_minutes: 30
  max_timeout_minutes: 120
  max_concurrent_workers: 3

  resources:
    memory_request: \"512Mi\"
    memory_limit: \"2Gi\"
    cpu_request: \"500m\"
    cpu_limit: \"2000m\"

  webhook_path: \"/api/webhooks/worker-complete\"
  webhook_secret: null  # from the environment
  task_retention_hours: 48
  job_ttl_seconds: 3600
";

    #[test]
    fn the_section_of_an_assistant_is_read_from_yaml_as_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config.yaml");
        let read = |text: &str, environment: &Environment| {
            std::fs::write(&path, text).unwrap();
            Settings::load(Some(&path), environment, false)
        };
        let environment = Environment::from([("AI_WORKER_MAX_CONCURRENT", "5")]);
        let workers = read(WORKERS_YAML, &environment).unwrap().workers;
        assert_eq!((workers.enabled, workers.max_concurrent_workers), (Some(true), Some(5)));
        assert_eq!(workers.resources.memory_limit, Some(2 << 30));
        assert_eq!(workers.resources.cpu_limit, Some(2000));
        assert_eq!(workers.jobs.namespace.as_deref(), Some("family-assistant"));
        assert_eq!(workers.task_retention_hours, Some(48));

        let misspelled = WORKERS_YAML.replace("job_ttl_seconds", "job_ttl_second");
        let fault = read(&misspelled, &Environment::default()).unwrap_err();
        assert_eq!(fault.way_out(), Some("did you mean 'ai_worker_config.job_ttl_seconds'?"));
        let fault = read("ai_worker_config: [", &Environment::default()).unwrap_err();
        assert!(fault.message().contains("is not valid YAML"), "{fault}");
    }

    #[test]
    fn a_bundle_of_the_file_is_checked_where_it_stands() {
        let settings = load("[egress.bundles]\nmine = 'allow a.example'\ngit = ''", &Environment::default());
        let names: Vec<String> = settings.unwrap().egress.bundles.keys().map(ToString::to_string).collect();
        assert_eq!(names, ["git", "mine"]);
        for (toml, part) in [
            (
                "[egress.bundles]\nmine = \"\"\"\nallow a.example\nallow b_c.example\"\"\"",
                "'@mine': line 2, column 8",
            ),
            ("[egress.bundles]\nMine = 'allow a.example'", "'Mine' is not a name"),
            ("[egress.bundles]\nmine = 'allow @git'", "a bundle does not refer to bundles"),
        ] {
            let fault = load(toml, &Environment::default()).unwrap_err();
            assert!(
                fault.message().starts_with("egress.bundles.") && fault.message().contains(part),
                "{fault}"
            );
        }
    }

    #[test]
    fn the_section_of_sandboxes_is_written_as_people_write_it() {
        let toml = "[sandbox]\nclaim_timeout = '30s'\ntrust_domain = 'cluster.local'\nwarm_interpreters = false\n\
                    [sandbox.templates]\ndefault = 'python'\nfile_search = 'search'\n\
                    [sandbox.python_index]\ndefault_index = 'https://index.example/simple'\n\
                    extra_indices = ['https://a.example/simple', 'https://b.example/simple']\n\
                    trusted_hosts = ['a.example', 'b.example:8443']\nallowed_packages = ['pandas', 'NumPy']\n\
                    find_links = '/srv/wheels /srv/more'\n\
                    [sandbox.env_cache]\nmax_envs_per_pod = 20\nenv_ttl = '24h'\nmax_disk_usage = '5Gi'\n";
        let said = load(toml, &Environment::default()).unwrap().sandbox;
        assert_eq!(said.templates["file_search"].as_str(), "search");
        assert_eq!(
            (said.claim_timeout, said.warm_interpreters),
            (Some(Duration::from_secs(30)), Some(false))
        );
        assert_eq!(said.trust_domain.as_deref(), Some("cluster.local"));
        let index = said.python_index;
        assert_eq!(index.extra_indices.unwrap().len(), 2);
        assert_eq!(index.trusted_hosts.unwrap(), ["a.example", "b.example:8443"]);
        assert_eq!(index.allowed_packages.unwrap().names().collect::<Vec<_>>(), ["numpy", "pandas"]);
        assert_eq!(index.find_links.unwrap(), [Path::new("/srv/wheels"), Path::new("/srv/more")]);
        let cache = said.env_cache;
        assert_eq!((cache.max_envs_per_pod, cache.max_disk_usage), (Some(20), Some(5 << 30)));
        assert_eq!(cache.env_ttl, Some(Duration::from_secs(24 * 3600)));
        for (toml, part) in [
            ("[sandbox.templates]\ndefault = 'No Name'", "is not a name"),
            ("[sandbox.templates]\n'a b' = 'python'", "the type of a tool"),
            ("[sandbox.python_index]\nfind_links = 'wheels'", "not an absolute path"),
            ("[sandbox.python_index]\ndefault_index = 'index.example'", "https://host.example/path"),
            ("[sandbox.python_index]\ntrusted_hosts = ['--x']", "is not a host"),
            ("[sandbox.python_index]\nextra_indices = [1]", "expected a list of texts"),
            ("[sandbox.python_index]\ndefault_index = ['https://a.example']", "expected text or a number"),
            ("[sandbox.env_cache]\nmax_disk_usage = 'much'", "sandbox.env_cache.max_disk_usage"),
            ("[sandbox]\ntrust_domain = 'spiffe://x'", "is not a trust domain"),
        ] {
            let fault = load(toml, &Environment::default()).unwrap_err();
            assert!(fault.message().contains(part), "{toml}: {fault}");
        }
    }

    #[test]
    fn passwords_in_addresses_of_indexes_are_never_told() {
        let variables = [
            ("CUBICLE_PYTHON_INDEX", "https://ada:hunter2@index.example/simple"),
            ("CUBICLE_NPM_REGISTRY", "https://hunter2@a.example http://hunter2:@b.example"),
            ("CUBICLE_SANDBOX_DEFAULT_INDEX", "https://ada:hunter2@index.example/simple"),
            ("CUBICLE_SANDBOX_EXTRA_INDICES", "https://ada:hunter2@extra.example/simple"),
        ];
        let settings = load("", &Environment::from(variables)).unwrap();
        assert!(!format!("{settings:?}").contains("hunter2"));
        let fault = load("", &Environment::from([("CUBICLE_PYTHON_INDEX", "ada:hunter2@a")])).unwrap_err();
        assert!(!format!("{fault:?} {fault}").contains("hunter2"));
    }

    #[test]
    fn a_bad_value_names_where_it_stands() {
        let fault = load("", &Environment::from([("CUBICLE_CPUS", "many")])).unwrap_err();
        assert!(
            fault.message().starts_with("CUBICLE_CPUS in the environment: 'many' is not a number of cores"),
            "{fault}"
        );
        let fault = load("[limits]\nmemory = 'lots'", &Environment::default()).unwrap_err();
        assert!(fault.message().contains("limits.memory"), "{fault}");
    }

    #[test]
    fn a_shape_that_cannot_be_read_is_named_with_its_place() {
        let fault =
            load("[server]\nredact_patterns = 'usual t[a-z]{3}'", &Environment::default()).unwrap_err();
        assert!(fault.message().starts_with("server.redact_patterns in "), "{fault}");
        assert!(fault.message().contains("'t[a-z]{3}' is not a shape (at character 1)"), "{fault}");
    }

    #[test]
    fn isolation_weaker_than_the_trust_allows_is_refused() {
        let flags = SandboxOptions { isolation: Some(Isolation::Landlock), ..no_flags() };
        let fault = Settings::default().for_sandbox(&flags).unwrap_err();
        assert_eq!(fault.kind(), Kind::Denied);
        let flags = SandboxOptions { trust: Some(Trust::Low), ..no_flags() };
        assert_eq!(Settings::default().for_sandbox(&flags).unwrap().isolation, Isolation::Gvisor);
    }

    #[test]
    fn a_workspace_size_for_all_sandboxes_does_not_apply_to_a_host_directory() {
        let settings = load("[limits]\nworkspace_size = '1M'", &Environment::default()).unwrap();
        let flags = SandboxOptions { workspace: Some("/srv".into()), ..no_flags() };
        assert!(!settings.for_sandbox(&flags).unwrap().limits.workspace.asked);
    }
}
