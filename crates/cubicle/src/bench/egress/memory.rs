//! Memory of the gateway while many tunnels are open.

use cubicle_model::Fault;

use super::way::Way;
use super::{MEMORY, gateway, origin};
use crate::bench::progress::Progress;
use crate::bench::row::{Goal, Row};
use crate::bench::samples::Samples;
use crate::environment::Environment;

pub(crate) const TUNNELS: usize = 1000;
const GOAL: Goal = Goal::AtMost(60.0);

pub(super) async fn measure(tunnels: usize, environment: &Environment, progress: &Progress) -> Row {
    let what = format!(
        "largest memory of the gateway with {tunnels} tunnels that are open and have carried a request"
    );
    progress.say(&what);
    match gather(tunnels, environment).await {
        Ok((alone, samples)) => {
            let row = Row::measured(MEMORY, format!("{what} ({alone:.1} MB without any)"), &samples, "MB");
            if tunnels == TUNNELS { row.judged(GOAL) } else { row.unjudged(GOAL, "fewer tunnels") }
        }
        Err(fault) => Row::failed(MEMORY, &what, "MB", Some(GOAL), &fault),
    }
}

async fn gather(tunnels: usize, environment: &Environment) -> Result<(f64, Samples), Fault> {
    crate::limits::allow_many_descriptors();
    let origin = origin::start().map_err(super::broken)?;
    let gateway = gateway::start(origin, environment).await?;
    let pid = gateway.process.0.id();
    let alone = megabytes(pid, "VmRSS:");
    let way = Way::proxy("gateway", gateway.proxy, origin);
    let open: Result<Vec<_>, _> = (0..tunnels).map(|_| way.connect()).collect();
    let open = open.map_err(super::broken)?;
    let mut samples = Samples::default();
    samples.push(megabytes(pid, "VmHWM:"));
    drop(open);
    Ok((alone, samples))
}

fn megabytes(pid: u32, field: &str) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kilobytes.unwrap_or(f64::NAN) * 1024.0 / 1e6
}
