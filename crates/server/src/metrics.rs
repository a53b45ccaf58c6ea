//! What Prometheus scrapes, and the few of these numbers that the server itself goes by.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use cubicle_model::lease::Admission;
use cubicle_model::{Exit, Lease, TemplateRef};
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use tokio::time::Instant;

/// From a tenth of a millisecond to a minute.
const SECONDS: [f64; 14] =
    [0.0001, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 600.0];
/// Of the means that the server goes by: the newest counts so much.
const WEIGHT: f64 = 0.1;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Request {
    route: String,
    status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct How {
    admission: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Operation {
    operation: &'static str,
}

#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    active_leases: Gauge,
    pool_idle: Gauge,
    queue_depth: Gauge,
    acquires: Family<How, Histogram>,
    leases: Histogram,
    execs: Histogram,
    failures: Family<Reason, Counter>,
    backend: Family<Operation, Histogram>,
    journal_bytes: Counter,
    requests: Family<Request, Histogram>,
    seen: Mutex<Seen>,
}

/// Exponential means.
#[derive(Debug, Default)]
struct Seen {
    lease_seconds: Option<f64>,
    seconds_to_make: Option<f64>,
    /// When a template was acquired last, and the mean time between two acquires.
    acquired: HashMap<TemplateRef, (Instant, f64)>,
}

fn histogram() -> Histogram {
    Histogram::new(SECONDS)
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("cubicle");
        let metrics = Self {
            active_leases: Gauge::default(),
            pool_idle: Gauge::default(),
            queue_depth: Gauge::default(),
            acquires: Family::new_with_constructor(histogram),
            leases: histogram(),
            execs: histogram(),
            failures: Family::default(),
            backend: Family::new_with_constructor(histogram),
            journal_bytes: Counter::default(),
            requests: Family::new_with_constructor(histogram),
            seen: Mutex::default(),
            registry: Registry::default(),
        };
        registry.register("active_leases", "Leases that have a sandbox", metrics.active_leases.clone());
        registry.register("pool_idle", "Ready sandboxes that nobody has", metrics.pool_idle.clone());
        registry.register("queue_depth", "Leases that wait for room", metrics.queue_depth.clone());
        let seconds = Unit::Seconds;
        registry.register_with_unit(
            "acquire",
            "Acquire until the sandbox can be used",
            seconds,
            metrics.acquires.clone(),
        );
        registry.register_with_unit("run", "Life of a lease", Unit::Seconds, metrics.leases.clone());
        registry.register_with_unit("exec", "Start to exit of an exec", Unit::Seconds, metrics.execs.clone());
        registry.register("failures", "What failed, by reason", metrics.failures.clone());
        registry.register_with_unit(
            "backend",
            "Calls of the backend",
            Unit::Seconds,
            metrics.backend.clone(),
        );
        registry.register("journal_kept_bytes", "Journals of ended sandboxes", metrics.journal_bytes.clone());
        registry.register_with_unit(
            "http_request",
            "Requests until their answer begins",
            Unit::Seconds,
            metrics.requests.clone(),
        );
        Self { registry, ..metrics }
    }
}

impl Metrics {
    pub(crate) fn text(&self, active: u64, idle: u64, waiting: u64) -> String {
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        self.active_leases.set(number(active));
        self.pool_idle.set(number(idle));
        self.queue_depth.set(number(waiting));
        let mut out = String::new();
        // Writing to memory cannot fail.
        let _ = text::encode(&mut out, &self.registry);
        out
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn acquired(&self, admission: Admission, took: Duration) {
        self.acquires.get_or_create(&How { admission: admission.name() }).observe(took.as_secs_f64());
    }

    /// One more lease of a template was asked for.
    pub(crate) fn asked_for(&self, template: &TemplateRef) {
        let mut seen = self.seen();
        let now = Instant::now();
        match seen.acquired.get_mut(template) {
            Some((last, mean)) => {
                *mean += WEIGHT * ((now - *last).as_secs_f64() - *mean);
                *last = now;
            }
            None => {
                seen.acquired.insert(template.clone(), (now, 60.0));
            }
        }
    }

    pub(crate) fn acquired_per_second(&self, template: &TemplateRef) -> f64 {
        let seen = self.seen();
        let Some((last, mean)) = seen.acquired.get(template) else { return 0.0 };
        // A pause that is longer than the mean is news, too.
        1.0 / mean.max(last.elapsed().as_secs_f64()).max(0.0001)
    }

    pub(crate) fn made(&self, took: Duration) {
        let took = took.as_secs_f64();
        self.backend.get_or_create(&Operation { operation: "create" }).observe(took);
        let mut seen = self.seen();
        let mean = seen.seconds_to_make.get_or_insert(took);
        *mean += WEIGHT * (took - *mean);
    }

    pub(crate) fn seconds_to_make(&self) -> f64 {
        self.seen().seconds_to_make.unwrap_or(0.0)
    }

    pub(crate) fn backend(&self, operation: &'static str, took: Duration) {
        self.backend.get_or_create(&Operation { operation }).observe(took.as_secs_f64());
    }

    pub(crate) fn lease_ended(&self, lease: &Lease) {
        let Some(ended) = lease.ended_at else { return };
        let lived = ended.duration_since(lease.created_at).as_secs_f64().max(0.0);
        self.leases.observe(lived);
        let mut seen = self.seen();
        let mean = seen.lease_seconds.get_or_insert(lived);
        *mean += WEIGHT * (lived - *mean);
    }

    pub(crate) fn mean_lease_seconds(&self) -> Option<f64> {
        self.seen().lease_seconds
    }

    pub(crate) fn exec_ended(&self, exit: Exit, duration_us: u64) {
        self.execs.observe(duration_us as f64 / 1e6);
        let reason = match exit {
            Exit::Code(0) => return,
            Exit::Code(_) => "error",
            Exit::Signal(_) => "signal",
            Exit::Oom => "oom",
            Exit::TimedOut => "timeout",
            Exit::Unknown => "crash",
        };
        self.failed(reason);
    }

    pub(crate) fn failed(&self, reason: &'static str) {
        self.failures.get_or_create(&Reason { reason }).inc();
    }

    pub(crate) fn journal_kept(&self, bytes: u64) {
        self.journal_bytes.inc_by(bytes);
    }

    pub(crate) fn request(&self, route: String, status: u16, took: Duration) {
        self.requests.get_or_create(&Request { route, status }).observe(took.as_secs_f64());
    }
}
