//! What the control plane adds: the same work asked for through HTTP on loopback, of a server of its own.

mod child;
mod fanout;
mod latency;
mod policy;
mod postgres;
mod rates;
mod thousand;
mod throughput;
mod wire;

use std::path::Path;
use std::time::Duration;

use cubicle_model::Fault;
use serde_json::{Value, json};

use super::progress::Progress;
use super::row::Row;
use super::samples::Samples;
use super::scratch::Scratch;
use super::site::Site;
use crate::environment::Environment;
pub(crate) use child::{Served, Size};

pub(crate) use child::remove_all;
pub(crate) use latency::Call;
pub(crate) use throughput::{rate, start_rate};
pub(crate) use wire::{Request, Wire, broken};

const EXEC_WARM: &str = "http.exec.warm";
const RUN_WARM: &str = "http.run.warm";
const RUN_COLD: &str = "http.run.cold";
const LEASE_RATE: &str = "lease.rate";
const LEASE_RATE_POSTGRES: &str = "lease.rate.postgres";
const LEASE_RATE_LOCAL: &str = "lease.rate.local";
const EXEC_64: &str = "http.exec.64";
const FANOUT: &str = "sse.fanout";
const RSS: &str = "rss";
const RSS_1000: &str = "rss.1000";
const STARTUP_1000: &str = "startup.1000";
const CREATE_POLICY: &str = "create.policy";

/// The measurements by id, in the order in which they are shown.
pub(crate) const IDS: [&str; 12] = [
    EXEC_WARM,
    RUN_WARM,
    RUN_COLD,
    LEASE_RATE,
    LEASE_RATE_POSTGRES,
    LEASE_RATE_LOCAL,
    EXEC_64,
    FANOUT,
    RSS,
    RSS_1000,
    STARTUP_1000,
    CREATE_POLICY,
];

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Effort {
    pub(crate) rounds: usize,
    pub(crate) slices: usize,
    pub(crate) slice: Duration,
    pub(crate) readers: usize,
    pub(crate) leases: usize,
}

pub(crate) const FULL: Effort = Effort {
    rounds: 120,
    slices: 5,
    slice: Duration::from_secs(3),
    readers: fanout::READERS,
    leases: thousand::LEASES,
};

pub(crate) const QUICK: Effort =
    Effort { rounds: 16, slices: 2, slice: Duration::from_secs(1), readers: 50, leases: 50 };

/// `cycles` is what a rate of leases is compared with.
pub(crate) async fn measure(
    data_dir: &Path,
    ids: &[&'static str],
    effort: &Effort,
    (site, environment, scratch): (&Site, &Environment, &Scratch),
    cycles: &Samples,
    progress: &Progress,
) -> Result<Vec<Row>, Fault> {
    let any = |wanted: &[&str]| wanted.iter().any(|id| ids.contains(id));
    let mut rows = Vec::new();
    // What an interrupted run may have left.
    remove_all(data_dir).await?;
    if any(&[EXEC_WARM, RUN_WARM, RUN_COLD]) {
        let server = Served::start(data_dir, Size { pool: 8, capacity: 100 }).await?;
        rows.extend(latency::measure(&server, ids, effort, (site, environment, scratch), progress).await?);
        end_server(server, data_dir).await?;
    }
    if any(&[CREATE_POLICY]) {
        let other = data_dir.join("without-gateway");
        remove_all(&other).await?;
        let size = Size { pool: 0, capacity: 100 };
        let server = Served::start(data_dir, size).await?;
        let without = Served::start_without_gateway(&other, size).await?;
        rows.push(policy::measure(&server, &without, effort.rounds, site, progress).await?);
        end_server(without, &other).await?;
        end_server(server, data_dir).await?;
    }
    if any(&[EXEC_64]) {
        let server = Served::start(data_dir, Size { pool: 8, capacity: 100 }).await?;
        rows.push(throughput::measure(&server, effort, progress).await);
        end_server(server, data_dir).await?;
    }
    if any(&[LEASE_RATE]) {
        rows.push(rates::on_sqlite(scratch.path(), effort, progress).await);
    }
    if any(&[LEASE_RATE_POSTGRES]) {
        rows.push(rates::on_postgres(scratch.path(), environment, effort, progress).await);
    }
    if any(&[LEASE_RATE_LOCAL]) {
        let server = Served::start(data_dir, Size { pool: 8, capacity: 100 }).await?;
        rows.push(rates::on_host(&server, effort, cycles, progress).await);
        end_server(server, data_dir).await?;
    }
    if any(&[FANOUT]) {
        let server = Served::start(data_dir, Size { pool: 1, capacity: 10 }).await?;
        rows.push(fanout::measure(&server, effort, progress).await);
        end_server(server, data_dir).await?;
    }
    if any(&[RSS, RSS_1000, STARTUP_1000]) {
        rows.extend(thousand::measure(data_dir, effort, ids, progress).await);
        progress.say("destroying what the server had");
        remove_all(data_dir).await?;
    }
    Ok(rows)
}

pub(crate) async fn end_server(server: Served, data_dir: &Path) -> Result<(), Fault> {
    server.kill();
    remove_all(data_dir).await
}

fn internal(what: &str) -> Fault {
    Fault::new(cubicle_model::Kind::Internal, what)
}

/// Lasts longer than any measurement.
fn long_lease() -> Value {
    json!({ "ttl_seconds": 3600 })
}
