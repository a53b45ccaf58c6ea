//! One interleaved run: every contestant once per round, so that what disturbs one disturbs all alike.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use cubicle_backend::Backend;
use cubicle_model::{Binding, Fault, FileToWrite, LimitRequest, Mount, SandboxId};

use super::baseline::{Start, start_true};
use super::peers::Peer;
use super::progress::Progress;
use super::samples::Samples;
use super::served::Call;
use super::site::Site;

/// Before every sample of every contestant, so that each finds the host at rest and none profits from what the one
/// before it warmed up. It also lets the launcher finish what it does behind a create or a destroy.
pub(crate) const QUIET: Duration = Duration::from_millis(50);
/// Rounds that are run and not counted.
const WARM_UP: usize = 3;
/// A contestant that takes longer takes part in every fourth round only.
const SLOW: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) enum Contestant {
    Direct(Start),
    /// `/bin/true` in a sandbox that has run something before.
    ExecWarm(SandboxId),
    /// A ready sandbox is bound to its user and runs its first program.
    ClaimWarm,
    /// From nothing to the first result.
    CreateCold,
    Destroy,
    /// A request to a server.
    Call(Call),
    Peer(Peer),
}

/// A contestant and what became of it.
#[derive(Debug)]
pub(crate) struct Entrant {
    pub(crate) id: &'static str,
    pub(crate) contestant: Contestant,
    pub(crate) samples: Samples,
    pub(crate) failed: Option<Fault>,
    slow: bool,
}

impl Entrant {
    pub(crate) fn new(id: &'static str, contestant: Contestant) -> Self {
        Self { id, contestant, samples: Samples::default(), failed: None, slow: false }
    }

    fn takes_part_in(&self, round: usize) -> bool {
        self.failed.is_none() && (!self.slow || round.is_multiple_of(4))
    }
}

/// Runs all rounds. Who fails once takes no further part.
pub(crate) async fn race(site: &Site, entrants: &mut [Entrant], rounds: usize, progress: &Progress) {
    let count = entrants.len();
    for round in 0..WARM_UP + rounds {
        progress.say(&format!("round {} of {}", round + 1, WARM_UP + rounds));
        // Another one begins each time, so that nobody always follows the same neighbour's mess.
        for entrant in (0..count).map(|step| (round + step) % count) {
            let entrant = &mut entrants[entrant];
            if !entrant.takes_part_in(round) {
                continue;
            }
            match sample(site, &entrant.contestant).await {
                Ok(taken) if round < WARM_UP => entrant.slow = taken > SLOW,
                Ok(taken) => entrant.samples.push_time(taken),
                Err(fault) => entrant.failed = Some(fault),
            }
        }
    }
}

/// One sample: what has to be there is made first, then it is quiet, then the clock runs.
async fn sample(site: &Site, contestant: &Contestant) -> Result<Duration, Fault> {
    match contestant {
        Contestant::Direct(start) => {
            tokio::time::sleep(QUIET).await;
            start_true(*start)
        }
        Contestant::Peer(peer) => {
            tokio::time::sleep(QUIET).await;
            peer.run()
        }
        Contestant::Call(call) => {
            tokio::time::sleep(QUIET).await;
            let from = Instant::now();
            call.make().await?;
            Ok(from.elapsed())
        }
        Contestant::ExecWarm(id) => exec_warm(site, *id).await,
        Contestant::ClaimWarm => {
            let id = site.make().await?;
            let taken = claim(site, id).await;
            site.destroy(id).await?;
            taken
        }
        Contestant::CreateCold => {
            tokio::time::sleep(QUIET).await;
            let from = Instant::now();
            let id = site.make().await?;
            let ran = site.run_true(id).await;
            let taken = from.elapsed();
            site.destroy(id).await?;
            ran.map(|()| taken)
        }
        Contestant::Destroy => {
            let id = site.make().await?;
            site.run_true(id).await?;
            tokio::time::sleep(QUIET).await;
            let from = Instant::now();
            site.destroy(id).await?;
            Ok(from.elapsed())
        }
    }
}

/// One exec in a sandbox that is there.
pub(crate) async fn exec_warm(site: &Site, id: SandboxId) -> Result<Duration, Fault> {
    tokio::time::sleep(QUIET).await;
    let from = Instant::now();
    site.run_true(id).await?;
    Ok(from.elapsed())
}

/// From the binding to the first result. Nothing has spoken with the sandbox before, so the connection is part of it.
async fn claim(site: &Site, id: SandboxId) -> Result<Duration, Fault> {
    let workspace = site.make_workspace(id)?;
    let late = Binding {
        env: BTreeMap::from([("TASK".to_owned(), "bench".to_owned())]),
        files: vec![FileToWrite { path: "/home/agent/input".into(), bytes: vec![b'x'; 1000], mode: 0o644 }],
        limits: LimitRequest {
            memory: Some(512 << 20),
            millicpus: Some(1000),
            pids: Some(128),
            ..LimitRequest::default()
        },
        mounts: vec![Mount { source: workspace.path.clone(), target: "/workspace".into(), read_only: false }],
        ..Binding::default()
    };
    tokio::time::sleep(QUIET).await;
    let from = Instant::now();
    site.backend.bind(id, &late).await?;
    site.run_true(id).await?;
    Ok(from.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_contestant_takes_part_in_every_fourth_round() {
        let mut entrant = Entrant::new("peer", Contestant::CreateCold);
        assert!((0..8).all(|round| entrant.takes_part_in(round)));
        entrant.slow = true;
        let rounds: Vec<usize> = (0..9).filter(|round| entrant.takes_part_in(*round)).collect();
        assert_eq!(rounds, [0, 4, 8]);
    }

    #[test]
    fn who_failed_takes_no_further_part() {
        let mut entrant = Entrant::new("peer", Contestant::CreateCold);
        entrant.failed = Some(Fault::new(cubicle_model::Kind::Internal, "gone"));
        assert!(!entrant.takes_part_in(0));
    }
}
