//! What Prometheus scrapes.

mod exposition;
mod pace;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use cubicle_backend::Consumption;
use cubicle_guest::client::Outcome;
use cubicle_model::lease::{Admission, LeaseEnd};
use cubicle_model::task::TaskStatus;
use cubicle_model::{Exit, Fault, Lease, SandboxState, TemplateRef};
use cubicle_store::Task;
use cubicle_worker::AGENTS;
use cubicle_worker::status::Usage;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry, Unit};

pub(crate) use exposition::Form;
pub(crate) use pace::Pace;

/// From a tenth of a millisecond to ten minutes.
const SECONDS: [f64; 14] =
    [0.0001, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 600.0];
/// From a second to the longest that a task may take.
const TASKS: [f64; 10] = [1.0, 5.0, 15.0, 60.0, 180.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0];
/// From a twentieth of a second to a week, which is the longest that a lease can live without being renewed.
const LIVES: [f64; 10] = [0.05, 0.5, 5.0, 60.0, 600.0, 3600.0, 14_400.0, 86_400.0, 259_200.0, 604_800.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Request {
    method: &'static str,
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

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Of {
    template: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Standing {
    state: &'static str,
    template: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Spent {
    mode: &'static str,
    template: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Found {
    cache: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Agent {
    agent: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Worked {
    agent: &'static str,
    status: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Tokens {
    agent: &'static str,
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CameTo {
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Version {
    version: &'static str,
}

type Seconds = Counter<f64, std::sync::atomic::AtomicU64>;

#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    /// What the server itself goes by.
    pub(crate) pace: Pace,
    read: Mutex<Read>,
    acquires: Family<How, Histogram>,
    leases: Family<Of, Histogram>,
    runs: Family<Of, Histogram>,
    execs: Family<Of, Histogram>,
    cpu: Family<Spent, Seconds>,
    failures: Family<Reason, Counter>,
    backend: Family<Operation, Histogram>,
    backend_failures: Family<Operation, Counter>,
    journal_archived: Counter,
    journal_forgotten: Counter,
    environments: Family<Found, Counter>,
    environment_builds: Histogram,
    /// How many builds the histogram has.
    builds_told: AtomicU64,
    tasks: Family<Worked, Histogram>,
    task_failures: Family<Worked, Counter>,
    task_tokens: Family<Tokens, Counter>,
    task_cost: Family<Agent, Counter<f64, AtomicU64>>,
    requests: Family<Request, Histogram>,
    webhook_attempts: Family<CameTo, Histogram>,
    webhook_calls: Family<CameTo, Counter>,
}

/// Gauges, which are read when somebody asks for them.
#[derive(Debug, Default)]
struct Read {
    active_leases: Family<Of, Gauge>,
    pool_idle: Family<Of, Gauge>,
    queue_depth: Gauge,
    tasks_waiting: Gauge,
    tasks_running: Gauge,
    sandboxes: Family<Standing, Gauge>,
    capacity: Gauge,
    memory: Family<Of, Gauge>,
    processes: Family<Of, Gauge>,
    journal_live: Family<Of, Gauge>,
}

/// What became of the spans of traces. Clones count together.
#[derive(Debug, Clone, Default)]
pub struct SpanCounts {
    sent: Counter,
    dropped: Counter,
}

impl SpanCounts {
    pub fn sent(&self, spans: usize) {
        self.sent.inc_by(spans as u64);
    }

    pub fn dropped(&self, spans: usize) {
        self.dropped.inc_by(spans as u64);
    }

    pub fn dropped_so_far(&self) -> u64 {
        self.dropped.get()
    }
}

/// What one sandbox uses, for whoever scrapes it by its id and with a key.
pub(crate) fn of_sandbox(uses: &cubicle_api::SandboxMetrics) -> String {
    let mut registry = Registry::with_prefix_and_labels(
        "cubicle_sandbox",
        [("sandbox".into(), uses.sandbox_id.clone().into())].into_iter(),
    );
    let mut gauge = |name: &str, help: &str, value: Option<u64>| {
        if let Some(value) = value {
            let gauge: Gauge = Gauge::default();
            gauge.set(number(value));
            registry.register(name, help, gauge);
        }
    };
    gauge("memory_bytes", "Memory of the sandbox, caches included", uses.memory_bytes);
    gauge("processes", "Processes and threads of the sandbox", uses.processes);
    gauge("execs_running", "Execs that run in the sandbox", Some(uses.execs_running));
    gauge("journal_bytes", "The journal of the sandbox", Some(uses.journal_bytes));
    gauge("journal_limit_bytes", "How large the journal may become", Some(uses.journal_limit_bytes));
    gauge("deadline_seconds", "Until the sandbox ends itself", Some(uses.deadline_seconds));
    if let Some(spent) = uses.cpu_seconds {
        let cpu = Seconds::default();
        cpu.inc_by(spent);
        timed(&mut registry, "cpu", "CPU time of everything that ran in the sandbox", &cpu);
    }
    exposition::text(&registry, Form::Prometheus)
}

/// What is at the moment of a scrape.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) waiting_leases: u64,
    pub(crate) waiting_tasks: u64,
    pub(crate) running_tasks: u64,
    pub(crate) capacity: u64,
    pub(crate) sandboxes: Vec<(TemplateRef, SandboxState, u64)>,
    pub(crate) consumed: Vec<(TemplateRef, Consumption)>,
}

fn histogram() -> Histogram {
    Histogram::new(SECONDS)
}

/// Whoever scrapes needs no key, so that a template that a tenant made for itself goes without its name.
fn shown(template: &TemplateRef) -> String {
    match template.owner {
        None => template.name.to_string(),
        Some(_) => "(private)".to_owned(),
    }
}

fn of(template: &TemplateRef) -> Of {
    Of { template: shown(template) }
}

/// Of an exec whose lease ended before it did, the template may not be known any more.
fn of_maybe(template: Option<&TemplateRef>) -> Of {
    Of { template: template.map_or_else(|| "(unknown)".to_owned(), shown) }
}

fn timed<M: Clone + Metric>(registry: &mut Registry, name: &str, help: &str, metric: &M) {
    registry.register_with_unit(name, help, Unit::Seconds, metric.clone());
}

fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

impl Metrics {
    pub(crate) fn new(spans: Option<&SpanCounts>) -> Self {
        let mut registry = Registry::with_prefix("cubicle");
        let metrics = Self {
            pace: Pace::default(),
            read: Mutex::default(),
            acquires: Family::new_with_constructor(histogram),
            leases: Family::new_with_constructor(|| Histogram::new(LIVES)),
            runs: Family::new_with_constructor(histogram),
            execs: Family::new_with_constructor(histogram),
            cpu: Family::default(),
            failures: Family::default(),
            backend: Family::new_with_constructor(histogram),
            backend_failures: Family::default(),
            journal_archived: Counter::default(),
            journal_forgotten: Counter::default(),
            environments: Family::default(),
            environment_builds: histogram(),
            builds_told: AtomicU64::new(0),
            tasks: Family::new_with_constructor(|| Histogram::new(TASKS)),
            task_failures: Family::default(),
            task_tokens: Family::default(),
            task_cost: Family::default(),
            requests: Family::new_with_constructor(histogram),
            webhook_attempts: Family::new_with_constructor(histogram),
            webhook_calls: Family::default(),
            registry: Registry::default(),
        };
        let version: Family<Version, Gauge> = Family::default();
        version.get_or_create(&Version { version: env!("CARGO_PKG_VERSION") }).set(1);
        registry.register("build_info", "The version that runs", version);
        metrics.read().register(&mut registry);
        metrics.register(&mut registry);
        if let Some(SpanCounts { sent, dropped }) = spans {
            registry.register("trace_spans_sent", "Spans that the collector took", sent.clone());
            registry.register(
                "trace_spans_dropped",
                "Spans that the collector did not take, or not in time",
                dropped.clone(),
            );
        }
        Self { registry, ..metrics }
    }

    fn register(&self, registry: &mut Registry) {
        timed(registry, "acquire", "Acquire until the sandbox can be used", &self.acquires);
        timed(registry, "lease", "Life of a lease", &self.leases);
        timed(registry, "run", "One-shot execs, from the request for a sandbox to the exit", &self.runs);
        timed(registry, "exec", "Start to exit of an exec", &self.execs);
        timed(registry, "exec_cpu", "CPU time that execs had used when they ended", &self.cpu);
        timed(registry, "backend", "Calls of the backend", &self.backend);
        timed(registry, "environment_build", "Making a Python environment", &self.environment_builds);
        registry.register(
            "environments",
            "Python environments that were asked for, by whether they were there",
            self.environments.clone(),
        );
        timed(registry, "task", "Tasks from the start of their worker to their end", &self.tasks);
        registry.register(
            "task_failures",
            "Tasks that were no success, by what they were",
            self.task_failures.clone(),
        );
        registry.register("task_tokens", "Tokens that agents say they used", self.task_tokens.clone());
        registry.register(
            "task_cost_usd",
            "Cost in US dollars that agents say they had",
            self.task_cost.clone(),
        );
        timed(registry, "http_request", "Requests until their answer begins", &self.requests);
        timed(
            registry,
            "webhook_attempt",
            "Attempts to deliver a webhook, by what came of it",
            &self.webhook_attempts,
        );
        registry.register(
            "webhook_calls",
            "Calls of workers that their task has ended, by what came of it",
            self.webhook_calls.clone(),
        );
        registry.register("failures", "What failed, by reason", self.failures.clone());
        registry.register(
            "backend_failures",
            "Calls of the backend that failed",
            self.backend_failures.clone(),
        );
        registry.register(
            "journal_archived_bytes",
            "Journals that were kept when their sandboxes ended",
            self.journal_archived.clone(),
        );
        registry.register(
            "journal_forgotten_bytes",
            "Journals whose time was over",
            self.journal_forgotten.clone(),
        );
    }

    fn read(&self) -> std::sync::MutexGuard<'_, Read> {
        self.read.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn text(&self, now: &Snapshot, form: Form) -> String {
        // Held while the text is written, so that nobody else's numbers get between.
        let read = self.read();
        read.set(now);
        exposition::text(&self.registry, form)
    }

    pub(crate) fn acquired(&self, admission: Admission, took: Duration) {
        self.acquires.get_or_create(&How { admission: admission.name() }).observe(took.as_secs_f64());
    }

    /// A call of the backend has come back.
    pub(crate) fn backend<T>(&self, operation: &'static str, took: Duration, outcome: &Result<T, Fault>) {
        self.backend.get_or_create(&Operation { operation }).observe(took.as_secs_f64());
        if outcome.is_err() {
            self.backend_failures.get_or_create(&Operation { operation }).inc();
        }
    }

    pub(crate) fn lease_ended(&self, lease: &Lease) {
        let Some(ended) = lease.ended_at else { return };
        let lived = ended.duration_since(lease.created_at).as_secs_f64().max(0.0);
        self.leases.get_or_create(&of(&lease.template)).observe(lived);
        self.pace.lease_ended(lived);
        if let Some(because @ (LeaseEnd::SandboxEnded | LeaseEnd::CouldNotBeMade)) = lease.ended_because {
            self.failed(because.name());
        }
    }

    pub(crate) fn run_ended(&self, template: Option<&TemplateRef>, took: Duration) {
        self.runs.get_or_create(&of_maybe(template)).observe(took.as_secs_f64());
    }

    /// An exec has ended, in whatever way.
    pub(crate) fn exec_ended(&self, template: Option<&TemplateRef>, outcome: &Outcome) {
        let labels = of_maybe(template);
        self.execs.get_or_create(&labels).observe(outcome.duration.as_secs_f64());
        for (mode, spent) in [("user", outcome.user_us), ("system", outcome.sys_us)] {
            let spent = Duration::from_micros(spent).as_secs_f64();
            self.cpu.get_or_create(&Spent { mode, template: labels.template.clone() }).inc_by(spent);
        }
        let reason = match outcome.exit {
            Exit::Code(0) => return,
            Exit::Code(_) => "error",
            Exit::Signal(_) => "signal",
            Exit::Oom => "oom",
            Exit::TimedOut => "timeout",
            Exit::Unknown => "crash",
            Exit::NotStarted => "not_started",
        };
        self.failed(reason);
    }

    pub(crate) fn failed(&self, reason: &'static str) {
        self.failures.get_or_create(&Reason { reason }).inc();
    }

    /// Somebody asked for an environment and has it, maybe after waiting so long. Many may have waited for one build.
    pub(crate) fn environment(&self, hit: bool, waited: Duration, builds_so_far: u64) {
        let cache = if hit { "hit" } else { "miss" };
        self.environments.get_or_create(&Found { cache }).inc();
        let known = self.builds_told.fetch_max(builds_so_far, Ordering::Relaxed);
        for _ in known..builds_so_far {
            self.environment_builds.observe(waited.as_secs_f64());
        }
    }

    pub(crate) fn task_ended(&self, task: &Task) {
        // Only agents of ours have a number of their own.
        let agent = AGENTS.iter().find(|agent| **agent == task.model).copied().unwrap_or("other");
        let labels = Worked { agent, status: task.status.name() };
        if let (Some(started), Some(completed)) = (task.started_at, task.completed_at) {
            let took = completed.duration_since(started).as_secs_f64().max(0.0);
            self.tasks.get_or_create(&labels).observe(took);
        }
        if task.status != TaskStatus::Success {
            self.task_failures.get_or_create(&labels).inc();
        }
        let usage = task.usage.clone().and_then(|usage| serde_json::from_value::<Usage>(usage).ok());
        let Some(usage) = usage else { return };
        for (kind, tokens) in
            [("input", usage.input_tokens), ("output", usage.output_tokens), ("cached", usage.cached_tokens)]
        {
            self.task_tokens.get_or_create(&Tokens { agent, kind }).inc_by(tokens);
        }
        // A worker may write anything, and a counter only grows.
        if let Some(cost) = usage.cost_usd.filter(|cost| cost.is_finite() && *cost > 0.0) {
            self.task_cost.get_or_create(&Agent { agent }).inc_by(cost);
        }
    }

    pub(crate) fn webhook_attempt(&self, outcome: &'static str, took: Duration) {
        self.webhook_attempts.get_or_create(&CameTo { outcome }).observe(took.as_secs_f64());
    }

    pub(crate) fn webhook_call(&self, outcome: &'static str) {
        self.webhook_calls.get_or_create(&CameTo { outcome }).inc();
    }

    pub(crate) fn journal_archived(&self, bytes: u64) {
        self.journal_archived.inc_by(bytes);
    }

    pub(crate) fn journal_forgotten(&self, bytes: u64) {
        self.journal_forgotten.inc_by(bytes);
    }

    pub(crate) fn request(&self, method: &str, route: Option<&str>, status: u16, took: Duration) {
        // Whoever asks chooses the method, and must not be able to make ever more numbers.
        let known = ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"];
        let method = known.into_iter().find(|known| *known == method).unwrap_or("other");
        let labels = Request { method, route: route.unwrap_or("none").to_owned(), status };
        self.requests.get_or_create(&labels).observe(took.as_secs_f64());
    }
}

impl Read {
    fn register(&self, registry: &mut Registry) {
        registry.register("active_leases", "Leases that have a sandbox", self.active_leases.clone());
        registry.register("pool_idle", "Ready sandboxes that nobody has", self.pool_idle.clone());
        registry.register("queue_depth", "Leases that wait for room", self.queue_depth.clone());
        registry.register("tasks_waiting", "Tasks that wait for a worker", self.tasks_waiting.clone());
        registry.register("tasks_running", "Tasks that have a worker", self.tasks_running.clone());
        registry.register("sandboxes", "Sandboxes by what should become of them", self.sandboxes.clone());
        registry.register("sandbox_capacity", "Sandboxes that fit on this node", self.capacity.clone());
        registry.register("sandbox_memory_bytes", "Memory of leased sandboxes together", self.memory.clone());
        registry.register(
            "sandbox_processes",
            "Processes and threads of leased sandboxes together",
            self.processes.clone(),
        );
        registry.register(
            "journal_live_bytes",
            "Journals of leased sandboxes together",
            self.journal_live.clone(),
        );
    }

    fn set(&self, now: &Snapshot) {
        // What was there at the last scrape and is not now must not stay.
        let by_template =
            [&self.active_leases, &self.pool_idle, &self.memory, &self.processes, &self.journal_live];
        by_template.into_iter().for_each(Family::clear);
        self.sandboxes.clear();
        self.queue_depth.set(number(now.waiting_leases));
        self.tasks_waiting.set(number(now.waiting_tasks));
        self.tasks_running.set(number(now.running_tasks));
        self.capacity.set(number(now.capacity));
        for (template, state, count) in &now.sandboxes {
            let add = |family: &Family<Of, Gauge>, count| {
                family.get_or_create(&of(template)).inc_by(number(count));
            };
            // Both are there for every template that has sandboxes, so that none is a number and not a gap.
            add(&self.active_leases, if *state == SandboxState::Leased { *count } else { 0 });
            add(&self.pool_idle, if *state == SandboxState::Idle { *count } else { 0 });
            let labels = Standing { state: state.name(), template: shown(template) };
            self.sandboxes.get_or_create(&labels).inc_by(number(*count));
        }
        for (template, consumed) in &now.consumed {
            let parts = [
                (&self.memory, consumed.memory_bytes),
                (&self.processes, consumed.processes),
                (&self.journal_live, consumed.journal_bytes),
            ];
            for (family, value) in parts {
                if let Some(value) = value {
                    family.get_or_create(&of(template)).inc_by(number(value));
                }
            }
        }
    }
}
