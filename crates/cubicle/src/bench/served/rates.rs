//! Leases that are acquired and released as fast as they go.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cubicle_backend::fake::FakeHost;
use cubicle_egress::redact::Shapes;
use cubicle_model::pool::PoolSpec;
use cubicle_model::template::Recipe;
use cubicle_model::{Fault, Kind, NodeId, TemplateRef, Timestamp};
use cubicle_server::{LogMasks, SealingKeys, Server, Settings, Surroundings};
use cubicle_store::{Actor, Context as StoreContext, Random, Store};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::child::Served;
use super::postgres::Cluster;
use super::wire::{Request, Wire};
use super::{Effort, LEASE_RATE, LEASE_RATE_LOCAL, LEASE_RATE_POSTGRES};
use crate::bench::progress::Progress;
use crate::bench::row::{Goal, Row};
use crate::bench::samples::Samples;
use crate::bench::site::unusable;
use crate::context::{fill_with_random, random_bits};
use crate::environment::Environment;

const CLIENTS: usize = 8;
const FULL_PAUSE: Duration = Duration::from_millis(10);
/// A cluster accepts connections a moment before it serves them.
const DATABASE_PATIENCE: Duration = Duration::from_secs(30);
const ON_SQLITE: Goal = Goal::AtLeast(400.0);
const ON_POSTGRES: Goal = Goal::AtLeast(200.0);
const ON_HOST: Goal = Goal::AtLeast(0.6);

/// Sandboxes that take no kernel and no time: what is measured is the control plane and its database.
pub(crate) async fn on_sqlite(scratch: &Path, effort: &Effort, progress: &Progress) -> Row {
    let what = "acquire and release, 8 clients, sandboxes that cost nothing, SQLite";
    let measured = async {
        let file = scratch.join("leases.db");
        let store = open(move || Store::open_sqlite(&file, random())).await?;
        measure(store, scratch, effort, progress).await
    };
    row(LEASE_RATE, what, measured.await, ON_SQLITE)
}

pub(crate) async fn on_postgres(
    scratch: &Path,
    environment: &Environment,
    effort: &Effort,
    progress: &Progress,
) -> Row {
    let what = "acquire and release, 8 clients, sandboxes that cost nothing, PostgreSQL without fsync";
    let measured = async {
        let cluster = Cluster::start(environment, scratch).await?;
        let url = cluster.url();
        let store = open(move || open_when_it_serves(&url)).await?;
        measure(store, scratch, effort, progress).await
    };
    row(LEASE_RATE_POSTGRES, what, measured.await, ON_POSTGRES)
}

/// On this host, where each release is the end of a sandbox and each acquire the beginning of another.
pub(crate) async fn on_host(server: &Served, effort: &Effort, cycles: &Samples, progress: &Progress) -> Row {
    let what = "acquire and release, 8 clients, a new sandbox each time";
    match gather(server.address, &server.key, effort, progress).await {
        Ok(rate) => {
            let row = Row { p99: rate.percentile(1.0), ..Row::measured(LEASE_RATE_LOCAL, what, &rate, "/s") };
            row.over("cycles", cycles).judged(ON_HOST)
        }
        Err(fault) => Row::failed(LEASE_RATE_LOCAL, what, "/s", Some(ON_HOST), &fault),
    }
}

fn row(id: &'static str, what: &str, measured: Result<Samples, Fault>, goal: Goal) -> Row {
    match measured {
        Ok(rate) => Row { p99: rate.percentile(1.0), ..Row::measured(id, what, &rate, "/s") }.judged(goal),
        Err(fault) => Row::failed(id, what, "/s", Some(goal), &fault),
    }
}

async fn measure(
    store: Store,
    scratch: &Path,
    effort: &Effort,
    progress: &Progress,
) -> Result<Samples, Fault> {
    let blobs = scratch.join("blobs");
    std::fs::create_dir_all(&blobs).map_err(|error| unusable(&blobs, error))?;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").map_err(super::wire::broken)?;
    let address = listener.local_addr().map_err(super::wire::broken)?;
    let settings = settings(address, blobs);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    // In this process, but on threads of its own, as a server has.
    let serving = std::thread::spawn(move || serve(store, settings, listener, stopped));
    let rate = gather(address, "", effort, progress).await;
    drop(stop);
    match serving.join() {
        Ok(served) => served.and(rate),
        Err(_) => Err(Fault::new(Kind::Internal, "the server broke off")),
    }
}

fn serve(
    store: Store,
    settings: Settings,
    listener: std::net::TcpListener,
    stop: tokio::sync::oneshot::Receiver<()>,
) -> Result<(), Fault> {
    let cannot = |error: std::io::Error| Fault::new(Kind::Internal, "cannot start a server").because(error);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(cannot)?;
    runtime.block_on(async {
        listener.set_nonblocking(true).map_err(cannot)?;
        let listener = TcpListener::from_std(listener).map_err(cannot)?;
        let node = NodeId::from_random(random_bits());
        store.join(node, settings.address.clone(), Timestamp::now()).await?;
        let context = || StoreContext { node, now: Timestamp::now(), actor: Actor::system() };
        let name = |text: &str| text.parse().map_err(|error| Fault::new(Kind::Internal, format!("{error}")));
        store.ensure_tenant(context(), name("default")?).await?;
        let recipe = Recipe { pool: PoolSpec { size: 8, min_idle: 0, ceiling: 8 }, ..Recipe::default() };
        let at = TemplateRef { owner: None, name: name("default")? };
        store.put_template(context(), at, recipe, None).await?;
        let surroundings = Surroundings {
            clock: Arc::new(Timestamp::now),
            wall_clock: Arc::new(Timestamp::now),
            random: random(),
            variable: Arc::new(|_| None),
            at_step: Arc::new(|_| {}),
        };
        let backend = Arc::new(FakeHost::default().open());
        let server = Server::start(store, backend, node, settings, surroundings).await?;
        server.serve(listener, async { drop(stop.await) }).await;
        Ok(())
    })
}

fn settings(address: SocketAddr, blobs: std::path::PathBuf) -> Settings {
    const DAY: Duration = Duration::from_secs(24 * 3600);
    Settings {
        address: format!("http://{address}"),
        workers: cubicle_server::WorkerSettings::off(address),
        capacity: 200,
        longest_queue: 1000,
        lease_ttl_seconds: 600,
        exec_timeout_seconds: None,
        shared: blobs.join("shared"),
        blobs,
        journal_retention: DAY,
        record_retention: DAY,
        keyless: true,
        requests_per_second: u32::MAX,
        link_secret: [0; 32],
        sealing_keys: SealingKeys::one([0; 32]),
        log_masks: LogMasks::new(Shapes::usual()),
        sweep_every: Duration::from_secs(15),
        drain: Duration::from_secs(5),
        tokens: None,
        egress: None,
        code: Default::default(),
        webhooks: Default::default(),
        span_counts: None,
    }
}

async fn open(store: impl FnOnce() -> Result<Store, Fault> + Send + 'static) -> Result<Store, Fault> {
    // Blocks, and PostgreSQL's client brings its own runtime.
    let opened = tokio::task::spawn_blocking(store).await;
    opened.map_err(|error| Fault::new(Kind::Internal, "opening the database panicked").because(error))?
}

fn open_when_it_serves(url: &str) -> Result<Store, Fault> {
    let from = Instant::now();
    loop {
        match Store::open_postgres(url, random()) {
            Err(fault) if fault.kind() == Kind::Unavailable && from.elapsed() < DATABASE_PATIENCE => {
                std::thread::sleep(Duration::from_millis(50));
            }
            opened => return opened,
        }
    }
}

fn random() -> Random {
    Arc::new(fill_with_random)
}

async fn gather(
    address: SocketAddr,
    key: &str,
    effort: &Effort,
    progress: &Progress,
) -> Result<Samples, Fault> {
    let mut rates = Samples::default();
    slice(address, key, Duration::from_millis(500)).await?;
    for number in 1..=effort.slices {
        progress.say(&format!("leases, slice {number} of {}", effort.slices));
        rates.push(slice(address, key, effort.slice).await?);
    }
    Ok(rates)
}

async fn slice(address: SocketAddr, key: &str, slice: Duration) -> Result<f64, Fault> {
    let from = Instant::now();
    let mut working = JoinSet::new();
    for _ in 0..CLIENTS {
        let key = key.to_owned();
        working.spawn(async move {
            let mut wire = Wire::connect(address).await?;
            let mut leases = 0_u32;
            while from.elapsed() < slice {
                match acquire_and_release(&mut wire, &key).await {
                    Ok(()) => leases += 1,
                    // Sandboxes are given back faster than they end; a client comes again a little later.
                    Err(fault) if fault.kind() == Kind::Full => tokio::time::sleep(FULL_PAUSE).await,
                    Err(fault) => return Err(fault),
                }
            }
            Ok::<u32, Fault>(leases)
        });
    }
    let mut leases = 0;
    while let Some(worked) = working.join_next().await {
        leases +=
            worked.map_err(|error| Fault::new(Kind::Internal, "a client broke off").because(error))??;
    }
    Ok(f64::from(leases) / from.elapsed().as_secs_f64())
}

async fn acquire_and_release(wire: &mut Wire, key: &str) -> Result<(), Fault> {
    let lease = wire.ask_json(&Request::new("POST", "/api/v1/leases", key, Some(&json!({})))).await?;
    let id = lease["lease_id"].as_str().ok_or_else(|| Fault::new(Kind::Internal, "a lease has no id"))?;
    wire.ask(&Request::new("DELETE", &format!("/api/v1/leases/{id}"), key, None)).await.map(drop)
}
