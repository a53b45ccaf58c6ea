//! What the way out of a sandbox costs: the gateway against a bare relay of bytes, and against squid.

mod gateway;
mod latency;
mod memory;
mod origin;
mod redaction;
pub(crate) mod relay;
mod squid;
mod throughput;
mod way;

use std::io;

use cubicle_model::{Fault, Kind};

use super::progress::Progress;
use super::row::Row;
use super::scratch::Scratch;
use crate::environment::Environment;

const CONNECT: &str = "egress.connect";
const CONNECT_KEPT: &str = "egress.connect.kept";
const SQUID: &str = "egress.squid";
const SQUID_KEPT: &str = "egress.squid.kept";
const THROUGHPUT: &str = "egress.throughput";
const MEMORY: &str = "egress.memory";
const REDACT: &str = "redact.rate";

/// The measurements by id, in the order in which they are shown.
pub(crate) const IDS: [&str; 7] = [CONNECT, CONNECT_KEPT, SQUID, SQUID_KEPT, THROUGHPUT, MEMORY, REDACT];

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Effort {
    pub(crate) rounds: usize,
    pub(crate) transfers: usize,
    pub(crate) tunnels: usize,
    pub(crate) redactions: usize,
}

pub(crate) const FULL: Effort =
    Effort { rounds: 200, transfers: 15, tunnels: memory::TUNNELS, redactions: 15 };

pub(crate) const QUICK: Effort = Effort { rounds: 40, transfers: 4, tunnels: 200, redactions: 4 };

pub(crate) async fn measure(
    ids: &[&'static str],
    effort: &Effort,
    environment: &Environment,
    scratch: &Scratch,
    progress: &Progress,
) -> Vec<Row> {
    let any = |wanted: &[&str]| wanted.iter().any(|id| ids.contains(id));
    let mut rows = Vec::new();
    if any(&[CONNECT, CONNECT_KEPT, SQUID, SQUID_KEPT]) {
        rows.extend(latency::measure(ids, effort.rounds, environment, scratch, progress).await);
    }
    if any(&[THROUGHPUT]) {
        rows.push(throughput::measure(effort.transfers, environment, scratch, progress).await);
    }
    if any(&[MEMORY]) {
        rows.push(memory::measure(effort.tunnels, environment, progress).await);
    }
    if any(&[REDACT]) {
        rows.push(redaction::measure(effort.redactions, progress));
    }
    rows
}

/// Something on loopback did not work.
fn broken(error: io::Error) -> Fault {
    Fault::new(Kind::Internal, "a connection on loopback failed").because(error)
}
