//! The use cases: what a caller wants, in terms of the store and the backend.

pub(crate) mod admin;
pub(crate) mod caller;
pub(crate) mod census;
pub(crate) mod code;
pub(crate) mod egress;
pub(crate) mod execs;
pub(crate) mod files;
pub(crate) mod leases;
pub(crate) mod live;
pub(crate) mod sandboxes;
pub(crate) mod secrets;
pub(crate) mod tasks;
pub(crate) mod templates;
pub(crate) mod tidings;
mod to_its_end;
pub(crate) mod tools;
pub(crate) mod webhooks;
pub(crate) mod workspace;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cubicle_backend::Backend;
use cubicle_envs::Environments;
use cubicle_guest::client::Guest;
use cubicle_model::{ExecId, Fault, Kind, NodeId, SandboxId, Timestamp};
use cubicle_store::{Actor, Context, Room, Store};
use cubicle_workspace::SharedWorkspace;
use tokio::sync::Notify;
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use crate::auth::tokens::Tokens;
use crate::auth::{Allowances, Keys};
use crate::blobs::Blobs;
use crate::egress::Egress;
use crate::journal::fanout::Fanout;
use crate::metrics::Metrics;
use crate::reconcile::keeper::Keeper;
use crate::redaction::Redactions;
use crate::secrets::Secrets;
use crate::settings::Settings;
use crate::spans;
use crate::surroundings::Surroundings;
use crate::webhooks::Webhooks;

pub(crate) use caller::Caller;
use census::Census;
use code::warming::Warming;
use live::Live;
use tasks::Workers;
use templates::Templates;
use tidings::Tidings;
use to_its_end::ToItsEnd;

/// Between two attempts to note something.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

pub(crate) struct App {
    pub(crate) store: Store,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) node: NodeId,
    pub(crate) settings: Settings,
    pub(crate) surroundings: Surroundings,
    pub(crate) live: Live,
    pub(crate) templates: Templates,
    pub(crate) keys: Keys,
    pub(crate) secrets: Secrets,
    pub(crate) redactions: Redactions,
    /// Where tokens are accepted at all.
    pub(crate) tokens: Option<Tokens>,
    pub(crate) allowances: Allowances,
    pub(crate) blobs: Blobs,
    /// The way out of sandboxes, where there is one.
    pub(crate) egress: Option<Arc<Egress>>,
    /// Python environments, where they can be made.
    pub(crate) environments: Option<Arc<Environments>>,
    pub(crate) warming: Warming,
    /// What tasks and assistants share.
    pub(crate) shared: SharedWorkspace,
    pub(crate) workers: Workers,
    pub(crate) webhooks: Webhooks,
    pub(crate) metrics: Metrics,
    pub(crate) census: Census,
    pub(crate) keeper: Keeper,
    pub(crate) fanout: Fanout,
    pub(crate) tidings: Tidings,
    pub(crate) exec_turns: Mutex<HashMap<ExecId, Arc<tokio::sync::Mutex<()>>>>,
    pub(crate) bench_turns: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    /// Wakes whoever fills the pool and serves the queue.
    pub(crate) room_changed: Notify,
    /// Wakes whoever reads events.
    pub(crate) something_happened: tokio::sync::watch::Sender<u64>,
    /// Work that a hung-up client does not stop.
    pub(crate) tasks: TaskTracker,
    pub(crate) stopping: tokio_util::sync::CancellationToken,
}

impl std::fmt::Debug for App {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("App").field("node", &self.node).finish_non_exhaustive()
    }
}

impl App {
    pub(crate) fn new(
        store: Store,
        backend: Arc<dyn Backend>,
        node: NodeId,
        settings: Settings,
        surroundings: Surroundings,
    ) -> Result<Arc<Self>, Fault> {
        let blobs = Blobs::open(&settings.blobs)?;
        let tokens = settings.tokens.clone().map(Tokens::new);
        let egress = settings.egress.clone().map(Egress::new).transpose()?.map(Arc::new);
        let environments = settings.code.environments.clone();
        let shared = SharedWorkspace::open(settings.shared.clone())?;
        settings.webhooks.check()?;
        let webhooks = Webhooks::new(&settings.webhooks);
        let metrics = Metrics::new(settings.span_counts.as_ref());
        Ok(Arc::new(Self {
            store,
            backend,
            node,
            settings,
            surroundings,
            live: Live::default(),
            templates: Templates::default(),
            keys: Keys::default(),
            secrets: Secrets::default(),
            redactions: Redactions::default(),
            tokens,
            allowances: Allowances::default(),
            blobs,
            egress,
            environments,
            warming: Warming::default(),
            shared,
            workers: Workers::default(),
            webhooks,
            metrics,
            census: Census::default(),
            keeper: Keeper::default(),
            fanout: Fanout::default(),
            tidings: Tidings::default(),
            exec_turns: Mutex::default(),
            bench_turns: Mutex::default(),
            room_changed: Notify::new(),
            something_happened: tokio::sync::watch::Sender::new(0),
            tasks: TaskTracker::new(),
            stopping: tokio_util::sync::CancellationToken::new(),
        }))
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.surroundings.now()
    }

    /// For dates that people and other machines name: when a key or a link ends.
    pub(crate) fn wall_now(&self) -> Timestamp {
        (self.surroundings.wall_clock)()
    }

    /// A moment at which being killed must not matter.
    pub(crate) fn step(&self, name: &'static str) {
        (self.surroundings.at_step)(name);
    }

    /// For what the server does by itself.
    pub(crate) fn own_context(&self) -> Context {
        Context { node: self.node, now: self.now(), actor: Actor::system() }
    }

    pub(crate) fn room(&self) -> Room {
        Room {
            sandboxes: self.settings.capacity,
            longest_queue: self.settings.longest_queue,
            kept: self.templates.kept(),
        }
    }

    /// Events were written: whoever follows them looks again.
    pub(crate) fn tell(&self) {
        self.something_happened.send_modify(|count| *count += 1);
    }

    pub(crate) async fn guest(&self, id: SandboxId) -> Result<Guest, Fault> {
        let random = Arc::clone(&self.surroundings.random);
        cubicle_backend::reach::guest(Arc::clone(&self.backend), id, move |bytes| random(bytes)).await
    }

    /// A call of the backend that changes a sandbox: a part of the trace.
    pub(crate) async fn changing<T>(
        &self,
        operation: &'static str,
        sandbox: SandboxId,
        call: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        let span = spans::backend(operation, sandbox);
        let outcome = self.timed(operation, call).instrument(span.clone()).await;
        if let Err(fault) = &outcome {
            spans::failed(&span, fault);
        }
        outcome
    }

    /// A call of the backend, with how long it took and whether it failed.
    pub(crate) async fn timed<T>(
        &self,
        operation: &'static str,
        call: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        let started = tokio::time::Instant::now();
        let outcome = call.await;
        self.metrics.backend(operation, started.elapsed(), &outcome);
        outcome
    }

    /// Does work to its end, also when whoever asked for it hangs up.
    pub(crate) fn to_its_end<Work: Future<Output: Send> + Send + 'static>(
        &self,
        work: Work,
    ) -> ToItsEnd<Work> {
        ToItsEnd::new(work, &self.tasks)
    }

    /// Does again what must be noted as long as the store is not there, unless the server stops: the next start finds it then.
    pub(crate) async fn insist<T, Work: Future<Output = Result<T, Fault>>>(
        &self,
        work: impl Fn() -> Work,
    ) -> Result<T, Fault> {
        let mut pause = Duration::from_millis(100);
        loop {
            match work().await {
                Err(fault) if fault.kind() == Kind::Unavailable => {
                    let pausing = self.stopping.run_until_cancelled(tokio::time::sleep(pause));
                    if pausing.await.is_none() {
                        return Err(fault);
                    }
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                outcome => return outcome,
            }
        }
    }

    /// Waits for what is under way; sandboxes and their execs go on.
    pub(crate) async fn stop(self: &Arc<Self>) {
        self.stopping.cancel();
        let finished = async {
            // The sandboxes of one-shots that have ended go with their leases.
            let _ = self.settle().await;
            self.tasks.close();
            self.tasks.wait().await;
            let _ = self.settle().await;
        };
        // What is not finished by then is found by the next start.
        let _ = tokio::time::timeout(self.settings.drain, finished).await;
    }
}
