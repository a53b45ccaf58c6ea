//! How many sandboxes can live and die in a second.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cubicle_model::{Fault, Kind};
use tokio::task::JoinSet;

use super::machine::cores;
use super::progress::Progress;
use super::row::{Goal, Row};
use super::samples::Samples;
use super::site::Site;

const ID: &str = "cycles";
const GOAL: Goal = Goal::AtLeast(300.0);
const GOAL_CORES: usize = 2;
const WORKERS: [usize; 4] = [1, 2, 4, 8];

#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    pub(crate) slices: usize,
    pub(crate) slice: Duration,
}

pub(crate) async fn measure(site: &Arc<Site>, size: Size, progress: &Progress) -> Row {
    let rates = match gather(site, size, progress).await {
        Ok(rates) => rates,
        Err(fault) => return Row::failed(ID, "full life cycles", "/s", Some(GOAL), &fault),
    };
    let all = rates.iter().map(|(workers, rate)| format!("{workers}: {:.0}", rate.p50().unwrap_or_default()));
    let all = all.collect::<Vec<_>>().join(", ");
    let best =
        rates.iter().max_by(|(_, a), (_, b)| a.p50().unwrap_or(0.0).total_cmp(&b.p50().unwrap_or(0.0)));
    let (workers, rate) = best.expect("there is at least one number of workers");
    let cores = cores();
    let what = format!("full life cycles on {cores} cores, best with {workers} workers ({all})");
    // Of a rate the bad tail is the low end.
    let row = Row { p99: rate.percentile(1.0), ..Row::measured(ID, what, rate, "/s") };
    match cores {
        GOAL_CORES => row.judged(GOAL),
        _ => row.unjudged(GOAL, "it is for 2 cores: taskset -c 0,1 cubicle bench"),
    }
}

/// Every number of workers gets its turn in every slice.
async fn gather(site: &Arc<Site>, size: Size, progress: &Progress) -> Result<Vec<(usize, Samples)>, Fault> {
    let mut rates: Vec<(usize, Samples)> = WORKERS.map(|workers| (workers, Samples::default())).into();
    for slice in 0..size.slices {
        for (workers, samples) in &mut rates {
            progress.say(&format!("life cycles, slice {} of {}, {workers} workers", slice + 1, size.slices));
            samples.push(rate(site, *workers, size.slice).await?);
        }
    }
    Ok(rates)
}

async fn rate(site: &Arc<Site>, workers: usize, slice: Duration) -> Result<f64, Fault> {
    let from = Instant::now();
    let mut working = JoinSet::new();
    for _ in 0..workers {
        let site = Arc::clone(site);
        working.spawn(async move {
            let mut cycles = 0_u32;
            while from.elapsed() < slice {
                live_and_die(&site).await?;
                cycles += 1;
            }
            Ok::<u32, Fault>(cycles)
        });
    }
    let mut cycles = 0;
    while let Some(worked) = working.join_next().await {
        cycles +=
            worked.map_err(|error| Fault::new(Kind::Internal, "a worker broke off").because(error))??;
    }
    Ok(f64::from(cycles) / from.elapsed().as_secs_f64())
}

async fn live_and_die(site: &Site) -> Result<(), Fault> {
    let id = site.make().await?;
    site.run_true(id).await?;
    site.destroy(id).await
}
