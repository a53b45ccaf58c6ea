//! Many clients at once.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use cubicle_model::{Fault, Kind};
use serde_json::json;
use tokio::task::JoinSet;

use super::child::Served;
use super::wire::{Request, Wire};
use super::{EXEC_64, Effort};
use crate::bench::baseline::{Start, start_true};
use crate::bench::machine::cores;
use crate::bench::progress::Progress;
use crate::bench::row::{Goal, Row};
use crate::bench::samples::Samples;

const CLIENTS: usize = 64;
const GOAL: Goal = Goal::AtLeast(0.7);
/// Enough to keep two cores busy with starting programs.
const SPAWNERS: usize = 4;

/// How many one-shots a second a pool of 8 sustains, with the best number of clients.
pub(crate) async fn sustained(server: &Served, effort: &Effort, progress: &Progress) -> Result<f64, Fault> {
    let request = server.request("POST", "/execs", Some(&json!({ "command": ["/bin/true"] })));
    let mut best: f64 = 0.0;
    for clients in [1, 2, 4, 8] {
        progress.say(&format!("one-shots of {clients} clients, as fast as they go"));
        let mut wires = Vec::new();
        for _ in 0..clients {
            wires.push((server.wire().await?, request.clone()));
        }
        best = best.max(rate(&mut wires, effort.slice).await?);
    }
    Ok(best)
}

pub(crate) async fn measure(server: &Served, effort: &Effort, progress: &Progress) -> Row {
    let what = format!("execs of {CLIENTS} clients at once, each with a lease of its own");
    match gather(server, effort, progress).await {
        Ok((execs, spawns)) => {
            // Of a rate the bad tail is the low end.
            let row = Row { p99: execs.percentile(1.0), ..Row::measured(EXEC_64, what, &execs, "/s") };
            let spawned = format!("posix_spawn on {} cores", cores());
            row.over(&spawned, &spawns).judged(GOAL)
        }
        Err(fault) => Row::failed(EXEC_64, &what, "/s", Some(GOAL), &fault),
    }
}

async fn gather(server: &Served, effort: &Effort, progress: &Progress) -> Result<(Samples, Samples), Fault> {
    let body = json!({ "command": ["/bin/true"] });
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let mut wire = server.wire().await?;
        let sandbox = server.lease(&mut wire).await?;
        clients.push((wire, server.request("POST", &format!("/sandboxes/{sandbox}/execs"), Some(&body))));
    }
    let (mut execs, mut spawns) = (Samples::default(), Samples::default());
    rate(&mut clients, Duration::from_millis(500)).await?;
    for slice in 1..=effort.slices {
        progress.say(&format!("execs of {CLIENTS} clients, slice {slice} of {}", effort.slices));
        spawns.push(start_rate(effort.slice, || start_true(Start::PosixSpawn))?);
        execs.push(rate(&mut clients, effort.slice).await?);
    }
    Ok((execs, spawns))
}

/// Answers a second: every client makes its request again as soon as it was answered.
pub(crate) async fn rate(clients: &mut Vec<(Wire, Request)>, slice: Duration) -> Result<f64, Fault> {
    let from = Instant::now();
    let mut working = JoinSet::new();
    for (mut wire, request) in clients.drain(..) {
        working.spawn(async move {
            let mut answers = 0_u32;
            while from.elapsed() < slice {
                wire.ask(&request).await?;
                answers += 1;
            }
            Ok::<_, Fault>((answers, wire, request))
        });
    }
    let mut answers = 0;
    while let Some(worked) = working.join_next().await {
        let (some, wire, request) =
            worked.map_err(|error| Fault::new(Kind::Internal, "a client broke off").because(error))??;
        answers += some;
        clients.push((wire, request));
    }
    Ok(f64::from(answers) / from.elapsed().as_secs_f64())
}

/// How many programs a second all cores start and wait for.
pub(crate) fn start_rate(
    slice: Duration,
    start: impl Fn() -> Result<Duration, Fault> + Sync,
) -> Result<f64, Fault> {
    let from = Instant::now();
    let started = AtomicU32::new(0);
    let spawn = || -> Result<(), Fault> {
        while from.elapsed() < slice {
            start()?;
            started.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..SPAWNERS).map(|_| scope.spawn(spawn)).collect();
        threads.into_iter().try_for_each(|thread| {
            thread
                .join()
                .map_err(|_| Fault::new(Kind::Internal, "a thread that starts programs broke off"))?
        })
    })?;
    Ok(f64::from(started.into_inner()) / from.elapsed().as_secs_f64())
}
