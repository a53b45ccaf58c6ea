//! The one thread that writes.

use std::sync::mpsc::Receiver;

use super::faults::Failure;
use super::pool::Pool;
use crate::driver::{Durability, Job, again};

/// Carried out in one transaction at most: others wait for its locks.
const MOST_TOGETHER: usize = 32;
/// So many rounds are carried out one by one after somebody else's locks were in the way. Transactions that hold several
/// tenants take them in no order, so two servers that both did so would keep meeting.
const ROUNDS_ALONE: u32 = 20;

/// Until nobody can send a job any more.
pub(super) fn serve(pool: &Pool, jobs: &Receiver<Job>) {
    let mut alone = 0u32;
    while let Ok(first) = jobs.recv() {
        let mut round = vec![first];
        if alone == 0 {
            round.extend(jobs.try_iter().take(MOST_TOGETHER - 1));
        }
        alone = alone.saturating_sub(1);
        if let Err(fault) = pool.try_to_connect() {
            // Whoever came meanwhile has waited as long; waiting again for each of them would add up.
            for job in round.into_iter().chain(jobs.try_iter()) {
                job.answer(Err(again(&fault)));
            }
            continue;
        }
        if round.len() > 1 {
            match together(pool, round) {
                Ok(()) => continue,
                Err((rest, met)) => {
                    round = rest;
                    if met {
                        alone = ROUNDS_ALONE;
                    }
                }
            }
        }
        for job in round {
            let outcome = pool.transact(job.durability, false, &job.work);
            job.answer(outcome);
        }
    }
}

/// Gives the jobs back where nothing of them was done, and says whether somebody else was in the way.
fn together(pool: &Pool, round: Vec<Job>) -> Result<(), (Vec<Job>, bool)> {
    let durably = round.iter().any(|job| job.durability == Durability::PowerLoss);
    let durability = if durably { Durability::PowerLoss } else { Durability::Crash };
    match pool.transact_together(durability, round.iter().map(|job| &job.work)) {
        Ok(outcomes) => {
            for (job, outcome) in round.into_iter().zip(outcomes) {
                job.answer(outcome);
            }
            Ok(())
        }
        // Whether it was committed is not known.
        Err(Failure::Final(fault)) => {
            for job in round {
                job.answer(Err(again(&fault)));
            }
            Ok(())
        }
        Err(Failure::Raced(_)) => Err((round, true)),
        Err(Failure::Lost(_) | Failure::Refused(_)) => Err((round, false)),
    }
}
