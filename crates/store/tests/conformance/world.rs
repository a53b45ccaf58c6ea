//! A database, a server that uses it, and a clock that stands still.

use std::fmt::Debug;
use std::future::Future;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use cubicle_model::{
    Fault, Isolation, Kind, Lease, LeaseId, LimitRequest, Name, NodeId, Quota, Sandbox, SandboxId,
    SandboxState, TemplateRef, Timestamp, Usage, UserName,
};
use cubicle_store::{
    Acquire, Acquired, Actor, Context, NewSandbox, Page, Random, Room, SandboxFilter, Store, Target,
};
use cubicle_tests_postgresql::Cluster;
use serde_json::json;

/// Far more than any scenario takes; one that hangs fails.
const LONGEST: Duration = Duration::from_secs(120);

pub(crate) struct World {
    pub(crate) store: Store,
    pub(crate) node: NodeId,
    at: Database,
    milliseconds: Arc<AtomicI64>,
}

#[derive(Clone)]
pub(crate) enum Database {
    Sqlite(PathBuf),
    Postgres(String),
}

impl Database {
    /// Blocks.
    pub(crate) fn open(&self) -> Result<Store, Fault> {
        match self {
            Self::Sqlite(path) => Store::open_sqlite(path, random()),
            Self::Postgres(url) => Store::open_postgres(url, random()),
        }
    }
}

pub(crate) fn on_sqlite<F: Future<Output = ()>>(scenario: impl FnOnce(World) -> F) {
    let directory = tempfile::tempdir().unwrap();
    on(Database::Sqlite(directory.path().join("cubicle.db")), scenario);
}

pub(crate) fn on_postgresql<F: Future<Output = ()>>(scenario: impl FnOnce(World) -> F) {
    if let Some(cluster) = Cluster::shared() {
        on(Database::Postgres(cluster.fresh_database()), scenario);
    }
}

fn on<F: Future<Output = ()>>(at: Database, scenario: impl FnOnce(World) -> F) {
    let store = at.open().unwrap();
    in_time(async move {
        let world = World::new(at, store).await;
        scenario(world).await;
    });
}

/// Runs on threads of its own, for a bounded time.
pub(crate) fn in_time<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let outcome = runtime.block_on(async { tokio::time::timeout(LONGEST, work).await });
    runtime.shutdown_timeout(Duration::from_secs(1));
    outcome.expect("the scenario ends")
}

/// Waits for a condition, for a bounded time.
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..2000 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{what}: not so after 20 s");
}

/// Counts the test that calls this as skipped, with the reason. The harness's own capture would hide it.
pub(crate) fn skipped(reason: &str) {
    let thread = std::thread::current();
    // What is counted has no colon in its name.
    let test = thread.name().unwrap_or("a test").replace("::", "/");
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {reason}");
}

pub(crate) fn random() -> Random {
    Arc::new(|bits| {
        let mut source = std::fs::File::open("/dev/urandom").unwrap();
        source.read_exact(bits).unwrap();
    })
}

pub(crate) fn bits() -> [u8; 16] {
    let mut bits = [0; 16];
    random()(&mut bits);
    bits
}

pub(crate) fn name(text: &str) -> Name {
    text.parse().unwrap()
}

pub(crate) fn user(text: &str) -> UserName {
    text.parse().unwrap()
}

pub(crate) fn page(limit: u32) -> Page {
    Page { after: None, limit }
}

pub(crate) fn kind<T: Debug>(outcome: Result<T, Fault>) -> Kind {
    outcome.expect_err("it is refused").kind()
}

pub(crate) fn target(template: &str) -> Target {
    let template: TemplateRef = template.parse().unwrap();
    Target { template, version: 1, isolation: Isolation::Namespaces, limits: LimitRequest::default() }
}

pub(crate) fn room(sandboxes: u64) -> Room {
    Room { sandboxes, longest_queue: 100, ..Room::default() }
}

/// Starts all of it at once, and waits for all of it.
pub(crate) async fn at_once<F>(tasks: impl IntoIterator<Item = F>) -> Vec<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let tasks: Vec<_> = tasks.into_iter().map(tokio::spawn).collect();
    let mut outcomes = Vec::with_capacity(tasks.len());
    for task in tasks {
        outcomes.push(task.await.unwrap());
    }
    outcomes
}

impl World {
    pub(crate) async fn new(at: Database, store: Store) -> Self {
        let node = NodeId::from_random(bits());
        let milliseconds = Arc::new(AtomicI64::new(1_800_000_000_000));
        let world = Self { store, node, at, milliseconds };
        world.store.join(node, "127.0.0.1:7878".into(), world.now()).await.unwrap();
        world.tenant("acme", Quota::default(), 1).await;
        world
    }

    /// A process that acts for a node which has joined before.
    pub(crate) fn for_node(store: Store, node: NodeId, at: Database) -> Self {
        Self { store, node, at, milliseconds: Arc::new(AtomicI64::new(1_800_000_000_000)) }
    }

    /// Another server on the same database.
    pub(crate) async fn another_server(&self) -> Self {
        let node = NodeId::from_random(bits());
        let same = self.same_node_again().await;
        same.store.join(node, "127.0.0.1:7879".into(), self.now()).await.unwrap();
        Self { node, ..same }
    }

    /// Another process that acts for the same node.
    pub(crate) async fn same_node_again(&self) -> Self {
        let at = self.at.clone();
        let store = tokio::task::spawn_blocking(move || at.open()).await.unwrap().unwrap();
        Self { store, node: self.node, at: self.at.clone(), milliseconds: Arc::clone(&self.milliseconds) }
    }

    pub(crate) fn is_shared_database(&self) -> bool {
        matches!(self.at, Database::Postgres(_))
    }

    /// Does something to the database behind the store's back. Blocks.
    pub(crate) fn behind_its_back(&self, statement: &str) -> u64 {
        match &self.at {
            Database::Sqlite(path) => {
                let connection = rusqlite::Connection::open(path).unwrap();
                connection.busy_timeout(Duration::from_secs(10)).unwrap();
                connection.execute(statement, []).unwrap() as u64
            }
            Database::Postgres(url) => {
                let (url, statement) = (url.clone(), statement.to_owned());
                let outside = std::thread::spawn(move || {
                    postgres::Client::connect(&url, postgres::NoTls)
                        .unwrap()
                        .execute(&statement, &[])
                        .unwrap()
                });
                outside.join().unwrap()
            }
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::from_millisecond(self.milliseconds.load(Ordering::SeqCst)).unwrap()
    }

    pub(crate) fn pass(&self, seconds: i64) {
        self.milliseconds.fetch_add(seconds * 1000, Ordering::SeqCst);
    }

    pub(crate) fn context(&self) -> Context {
        Context { node: self.node, now: self.now(), actor: Actor::system() }
    }

    pub(crate) async fn tenant(&self, called: &str, quota: Quota, weight: u32) {
        self.store.create_tenant(self.context(), name(called), quota, weight).await.unwrap();
    }

    /// One more lease of `default` for ada of a tenant, with room for ten sandboxes.
    pub(crate) fn ask(&self, tenant: &str) -> Acquire {
        static REQUESTS: AtomicU64 = AtomicU64::new(0);
        Acquire {
            lease: LeaseId::from_random(bits()),
            sandbox: SandboxId::from_random(bits()),
            tenant: name(tenant),
            user: user("ada"),
            workflow: "w".into(),
            request: format!("r{}", REQUESTS.fetch_add(1, Ordering::SeqCst)),
            fingerprint: "f".into(),
            target: target("default"),
            counts: Usage { leases: 1, millicpus: 1000, memory: 1 << 20, execs: 0 },
            ttl_seconds: 60,
            heartbeat_seconds: Some(20),
            one_shot: false,
            egress: Default::default(),
            may_wait: false,
            must_be_new: false,
            preferred: Vec::new(),
            binding: json!({ "env": { "A": "b" } }),
            room: room(10),
        }
    }

    pub(crate) async fn acquire(&self, ask: Acquire) -> Acquired {
        self.store.acquire(self.context(), ask).await.unwrap()
    }

    pub(crate) async fn granted(&self, ask: Acquire) -> (Lease, Sandbox) {
        match self.acquire(ask).await {
            Acquired::Granted { lease, sandbox, .. } => (lease, sandbox),
            other => panic!("not granted: {other:?}"),
        }
    }

    /// A lease whose sandbox is ready.
    pub(crate) async fn leased(&self, ask: Acquire) -> (Lease, Sandbox) {
        let (lease, sandbox) = self.granted(ask).await;
        match sandbox.state {
            SandboxState::Creating => {
                let ready = self.store.welcome(self.context(), sandbox.id, sandbox.generation).await.unwrap();
                (lease, ready)
            }
            _ => (lease, sandbox),
        }
    }

    pub(crate) async fn waits(&self, ask: Acquire) -> Lease {
        match self.acquire(Acquire { may_wait: true, ..ask }).await {
            Acquired::Waits { lease, .. } => lease,
            other => panic!("does not wait: {other:?}"),
        }
    }

    /// Ready sandboxes of a pool.
    pub(crate) async fn idle(&self, template: &str, count: usize) -> Vec<Sandbox> {
        let wanted = (0..count)
            .map(|_| NewSandbox { id: SandboxId::from_random(bits()), target: target(template) })
            .collect();
        let made = self.store.want_sandboxes(self.context(), wanted, 1000).await.unwrap();
        let mut ready = Vec::new();
        for sandbox in made {
            ready.push(self.store.welcome(self.context(), sandbox.id, sandbox.generation).await.unwrap());
        }
        ready
    }

    /// What uses room on this node, apart from what is being torn down.
    pub(crate) async fn living(&self) -> Vec<Sandbox> {
        let standing = self.store.standing_sandboxes(self.node).await.unwrap();
        standing.into_iter().filter(|sandbox| sandbox.state != SandboxState::Teardown).collect()
    }

    pub(crate) async fn gone(&self, id: SandboxId) {
        let sandbox = self.store.sandbox(id).await.unwrap().unwrap();
        self.store.forget(self.context(), id, sandbox.generation).await.unwrap();
    }

    pub(crate) async fn all_sandboxes(&self) -> Vec<Sandbox> {
        let filter = SandboxFilter { gone: true, ..SandboxFilter::default() };
        self.store.sandboxes(filter, page(1000)).await.unwrap()
    }
}
