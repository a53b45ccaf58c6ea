//! How many leases can be acquired and released in a second.
//!
//!   cargo run --release -p cubicle-store --example pairs -- DIRECTORY|postgres://… [SECONDS]

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cubicle_model::lease::LeaseEnd;
use cubicle_model::{Isolation, LeaseId, LimitRequest, NodeId, SandboxId, Timestamp, Usage};
use cubicle_store::{Acquire, Acquired, Actor, AfterLease, Context, Random, Room, Store, Target};

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let at = arguments.next().ok_or("usage: pairs DIRECTORY|postgres://… [SECONDS]")?;
    let seconds = arguments.next().map_or(Ok(3), |text| text.parse())?;
    let store = match at.starts_with("postgres") {
        true => Store::open_postgres(&at, random()),
        false => Store::open_sqlite(&std::path::Path::new(&at).join("pairs.db"), random()),
    }?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let tenant = "bench".parse()?;
    let context =
        Context { node: NodeId::from_random(bits()), now: Timestamp::UNIX_EPOCH, actor: Actor::system() };
    runtime.block_on(async {
        store.join(context.node, "here".into(), context.now).await?;
        store.ensure_tenant(context.clone(), tenant).await
    })?;
    for tasks in [1, 8, 64] {
        let until = Instant::now() + Duration::from_secs(seconds);
        let mut took = runtime.block_on(async {
            let tasks: Vec<_> =
                (0..tasks).map(|_| tokio::spawn(pairs(store.clone(), context.clone(), until))).collect();
            let mut took = Vec::new();
            for task in tasks {
                took.extend(task.await??);
            }
            Outcome::Ok(took)
        })?;
        took.sort_unstable();
        let at = |part: usize| took[(took.len() - 1) * part / 100];
        println!(
            "{tasks:3} tasks: {:6} pairs/s, p50 {:?}, p99 {:?}",
            took.len() as u64 / seconds,
            at(50),
            at(99)
        );
    }
    Ok(())
}

/// A new sandbox each time, which is gone before the next.
async fn pairs(store: Store, context: Context, until: Instant) -> Outcome<Vec<Duration>> {
    let mut took = Vec::new();
    while Instant::now() < until {
        let (lease, sandbox) = (LeaseId::from_random(bits()), SandboxId::from_random(bits()));
        let ask = Acquire {
            lease,
            sandbox,
            tenant: "bench".parse()?,
            user: "ada".parse()?,
            workflow: "w".into(),
            request: lease.to_string(),
            fingerprint: "f".into(),
            target: Target {
                template: "default".parse()?,
                version: 1,
                isolation: Isolation::Namespaces,
                limits: LimitRequest::default(),
            },
            counts: Usage { leases: 1, millicpus: 1000, memory: 1 << 20, execs: 0 },
            ttl_seconds: 60,
            heartbeat_seconds: None,
            one_shot: false,
            egress: Default::default(),
            may_wait: false,
            must_be_new: false,
            preferred: Vec::new(),
            binding: serde_json::Value::Null,
            room: Room { sandboxes: 1000, longest_queue: 0, kept: BTreeMap::new() },
        };
        let started = Instant::now();
        let Acquired::Granted { .. } = store.acquire(context.clone(), ask).await? else {
            return Err("not granted".into());
        };
        let ended = store.end_lease(context.clone(), lease, LeaseEnd::Released, AfterLease::Destroy).await?;
        took.push(started.elapsed());
        let generation = ended.sandbox.map_or(0, |sandbox| sandbox.generation);
        store.forget(context.clone(), sandbox, generation).await?;
    }
    Ok(took)
}

fn bits() -> [u8; 16] {
    let mut bits = [0; 16];
    random()(&mut bits);
    bits
}

fn random() -> Random {
    Arc::new(|bits| {
        let source = std::fs::File::open("/dev/urandom").and_then(|mut source| source.read_exact(bits));
        source.expect("every Linux host has /dev/urandom");
    })
}
