//! The use cases: what a caller wants, in terms of the store and the backend.

pub(crate) mod admin;
pub(crate) mod caller;
pub(crate) mod execs;
pub(crate) mod files;
pub(crate) mod leases;
pub(crate) mod live;
pub(crate) mod sandboxes;
pub(crate) mod templates;
mod to_its_end;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use cubicle_backend::Backend;
use cubicle_guest::client::Guest;
use cubicle_model::{ExecId, Fault, NodeId, SandboxId, Timestamp};
use cubicle_store::{Actor, Context, Room, Store};
use tokio::sync::Notify;
use tokio_util::task::TaskTracker;

use crate::auth::Keys;
use crate::blobs::Blobs;
use crate::journal::fanout::Fanout;
use crate::metrics::Metrics;
use crate::reconcile::keeper::Keeper;
use crate::settings::Settings;
use crate::surroundings::Surroundings;

pub(crate) use caller::Caller;
use live::Live;
use templates::Templates;
use to_its_end::ToItsEnd;

pub(crate) struct App {
    pub(crate) store: Store,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) node: NodeId,
    pub(crate) settings: Settings,
    pub(crate) surroundings: Surroundings,
    pub(crate) live: Live,
    pub(crate) templates: Templates,
    pub(crate) keys: Keys,
    pub(crate) blobs: Blobs,
    pub(crate) metrics: Metrics,
    pub(crate) keeper: Keeper,
    pub(crate) fanout: Fanout,
    pub(crate) exec_turns: Mutex<HashMap<ExecId, Arc<tokio::sync::Mutex<()>>>>,
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
        Ok(Arc::new(Self {
            store,
            backend,
            node,
            settings,
            surroundings,
            live: Live::default(),
            templates: Templates::default(),
            keys: Keys::default(),
            blobs,
            metrics: Metrics::default(),
            keeper: Keeper::default(),
            fanout: Fanout::default(),
            exec_turns: Mutex::default(),
            room_changed: Notify::new(),
            something_happened: tokio::sync::watch::Sender::new(0),
            tasks: TaskTracker::new(),
            stopping: tokio_util::sync::CancellationToken::new(),
        }))
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.surroundings.now()
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

    /// Does work to its end, also when whoever asked for it hangs up.
    pub(crate) fn to_its_end<Work: Future<Output: Send> + Send + 'static>(
        &self,
        work: Work,
    ) -> ToItsEnd<Work> {
        ToItsEnd::new(work, &self.tasks)
    }

    /// Waits for what is under way; sandboxes and their execs go on.
    pub(crate) async fn stop(&self) {
        self.stopping.cancel();
        self.tasks.close();
        // What is not finished by then is found by the next start.
        let _ = tokio::time::timeout(self.settings.drain, self.tasks.wait()).await;
    }
}
