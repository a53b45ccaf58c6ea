//! One tunnel, as fast as it goes.

use std::net::{SocketAddr, TcpStream};

use cubicle_model::Fault;

use super::way::Way;
use super::{THROUGHPUT, gateway, origin, squid};
use crate::bench::progress::Progress;
use crate::bench::race::QUIET;
use crate::bench::row::{Goal, Row};
use crate::bench::samples::Samples;
use crate::bench::scratch::Scratch;
use crate::environment::Environment;

const WHAT: &str = "256 MB through one tunnel of the gateway";
const GOAL: Goal = Goal::AtLeast(1.5);
const BYTES: u64 = 256 << 20;

pub(super) async fn measure(
    transfers: usize,
    environment: &Environment,
    scratch: &Scratch,
    progress: &Progress,
) -> Row {
    match gather(transfers, environment, scratch, progress).await {
        Ok([direct, ours, squid]) => {
            let direct = direct.p50().unwrap_or(f64::NAN);
            let what = format!("{WHAT} (direct: {direct:.0} MB/s)");
            Row::measured(THROUGHPUT, what, &ours, "MB/s").over("squid", &squid).judged(GOAL)
        }
        Err(fault) => Row::failed(THROUGHPUT, WHAT, "MB/s", Some(GOAL), &fault),
    }
}

async fn gather(
    transfers: usize,
    environment: &Environment,
    scratch: &Scratch,
    progress: &Progress,
) -> Result<[Samples; 3], Fault> {
    let origin: SocketAddr = origin::start().map_err(super::broken)?;
    let gateway = gateway::start(origin, environment).await?;
    let (_squid, squid) = squid::start(origin, environment, scratch.path()).await?;
    let ways = [
        Way::plain("direct", origin),
        Way::proxy("gateway", gateway.proxy, origin),
        Way::proxy("squid", squid, origin),
    ];
    let mut samples = [Samples::default(), Samples::default(), Samples::default()];
    // The first round warms up and is not counted.
    for round in 0..=transfers {
        progress.say(&format!("256 MB through a tunnel, {round} of {transfers}"));
        for turn in 0..ways.len() {
            let index = (round + turn) % ways.len();
            tokio::time::sleep(QUIET).await;
            let mut stream: TcpStream = ways[index].connect().map_err(super::broken)?;
            let taken = Way::fetch(&mut stream, BYTES).map_err(super::broken)?;
            if round > 0 {
                samples[index].push(BYTES as f64 / 1e6 / taken.as_secs_f64());
            }
        }
    }
    Ok(samples)
}
