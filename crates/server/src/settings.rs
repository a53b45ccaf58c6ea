//! What a server is told by whoever starts it.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cubicle_envs::Environments;

use crate::auth::tokens::TokenSettings;
use crate::egress::EgressSettings;
use crate::metrics::SpanCounts;
use crate::redaction::LogMasks;
use crate::secrets::SealingKeys;
use crate::webhooks::WebhookSettings;

#[derive(Debug, Clone)]
pub struct Settings {
    /// Where it can be reached, as `http://127.0.0.1:7878`; for links and for other nodes.
    pub address: String,
    /// How many sandboxes fit on this node.
    pub capacity: u64,
    /// How many leases may wait for room.
    pub longest_queue: u64,
    pub lease_ttl_seconds: u32,
    /// Of an exec that names no timeout; absent means until its lease ends.
    pub exec_timeout_seconds: Option<f64>,
    /// Where artifacts and journals of sandboxes that are gone are kept.
    pub blobs: PathBuf,
    /// Files that outlive sandboxes, by tenant.
    pub shared: PathBuf,
    pub journal_retention: Duration,
    /// Of ended leases, execs, events and idempotency keys.
    pub record_retention: Duration,
    /// Whether whoever reaches the server may do everything, without a key. Only on loopback.
    pub keyless: bool,
    /// Whose tokens are accepted beside keys; absent means nobody's.
    pub tokens: Option<TokenSettings>,
    /// Requests of a key or of a token's subject per second, unless the key says something else.
    pub requests_per_second: u32,
    /// Signs links; 32 unpredictable bytes that stay the same.
    pub link_secret: [u8; 32],
    /// Seal the values of secrets in the store.
    pub sealing_keys: SealingKeys,
    /// What looks like a credential in logs and events. The log that whoever starts the server writes gets the secrets of
    /// tenants through it.
    pub log_masks: LogMasks,
    /// How often the whole of what is is compared with the whole of what should be.
    pub sweep_every: Duration,
    /// What became of spans, where traces are sent somewhere.
    pub span_counts: Option<SpanCounts>,
    /// The way out of sandboxes; absent means that they have no network.
    pub egress: Option<EgressSettings>,
    pub code: CodeSettings,
    pub workers: WorkerSettings,
    pub webhooks: WebhookSettings,
    /// How long a stopping server waits for requests under way.
    pub drain: Duration,
}

/// What code runs in.
#[derive(Debug, Clone, Default)]
pub struct CodeSettings {
    /// Templates by the tools that are asked for; `default` is for all others.
    pub tool_templates: BTreeMap<String, String>,
    /// Whether interpreters wait in sandboxes before there is code for them.
    pub warm_interpreters: bool,
    /// Python environments, where they can be made.
    pub environments: Option<Arc<Environments>>,
}

/// How AI workers are run, as `ai_worker_config` says it.
#[derive(Clone)]
pub struct WorkerSettings {
    /// Whether anybody may have one.
    pub enabled: bool,
    pub min_timeout_minutes: u32,
    pub default_timeout_minutes: u32,
    pub max_timeout_minutes: u32,
    /// How many work at the same time on this node.
    pub max_concurrent_workers: u64,
    /// How many tasks may wait on this node.
    pub longest_queue: u64,
    /// Of tasks that have ended, with what they made.
    pub task_retention: Duration,
    /// Refuse tasks that would run without gVisor.
    pub require_gvisor: bool,
    /// The directory that has `run-task`; absent where workers are off.
    pub program: Option<PathBuf>,
    pub agents: FindAgent,
    /// Where this server is reached from its own host.
    pub at: SocketAddr,
}

/// The directory of an installed agent.
pub type FindAgent = Arc<dyn Fn(&str) -> Result<Option<PathBuf>, cubicle_model::Fault> + Send + Sync>;

impl WorkerSettings {
    pub const TEMPLATE: &str = "worker";

    /// The usual numbers, with workers off.
    pub fn off(at: SocketAddr) -> Self {
        Self {
            enabled: false,
            min_timeout_minutes: 1,
            default_timeout_minutes: 30,
            max_timeout_minutes: 120,
            max_concurrent_workers: 3,
            longest_queue: 1000,
            task_retention: Duration::from_secs(48 * 3600),
            require_gvisor: false,
            program: None,
            agents: Arc::new(|_| Ok(None)),
            at,
        }
    }
}

impl fmt::Debug for WorkerSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerSettings")
            .field("enabled", &self.enabled)
            .field("max_concurrent_workers", &self.max_concurrent_workers)
            .finish_non_exhaustive()
    }
}
