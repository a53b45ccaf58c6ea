//! `cubicle bench`: measurements against starting a process directly, and against the peers that are installed.

mod baseline;
mod code;
mod crowd;
mod cycles;
pub(crate) mod egress;
mod journal;
mod machine;
mod peers;
mod progress;
mod race;
mod report;
mod row;
mod samples;
mod scratch;
mod served;
mod site;
mod table;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use cubicle_model::Fault;

use crate::args::{Bench, Cli};
use crate::context::Context;
use crate::data_dir;
use crate::environment::Environment;
use crate::failure::{Ending, invalid};
use crate::signals::Signals;
use baseline::Start;
use machine::Machine;
use peers::Found;
use progress::Progress;
use race::{Contestant, Entrant, race};
use row::Row;
use samples::Samples;
use scratch::Scratch;
use site::Site;

/// The measurements by id, in the order in which they are shown.
const OWN_IDS: [&str; 8] = [
    "exec.warm",
    "claim.warm",
    "create.cold",
    "destroy",
    "memory.idle",
    "cycles",
    "exec.warm.1000",
    "journal.64mb",
];

fn known_ids() -> impl Iterator<Item = &'static str> {
    OWN_IDS.into_iter().chain(served::IDS).chain(egress::IDS).chain(code::IDS)
}

/// How much is measured.
struct Effort {
    rounds: usize,
    crowd: crowd::Size,
    cycles: cycles::Size,
    journals: usize,
    served: served::Effort,
    egress: egress::Effort,
    code: code::Effort,
}

/// Thousands of sandboxes that end at once can lock up the kernel.
const _: () = assert!(FULL.crowd.alive < 2000 && FULL.served.leases < 2000);

const FULL: Effort = Effort {
    rounds: 120,
    crowd: crowd::Size { alive: crowd::CROWD, execs: 100 },
    cycles: cycles::Size { slices: 5, slice: Duration::from_secs(3) },
    journals: 15,
    served: served::FULL,
    egress: egress::FULL,
    code: code::FULL,
};

const QUICK: Effort = Effort {
    rounds: 16,
    crowd: crowd::Size { alive: 100, execs: 20 },
    cycles: cycles::Size { slices: 2, slice: Duration::from_secs(1) },
    journals: 4,
    served: served::QUICK,
    egress: egress::QUICK,
    code: code::QUICK,
};

pub(crate) async fn bench(args: &Bench, context: &Context) -> Result<Ending, Fault> {
    let ids = wanted(&args.only)?;
    let effort = if args.quick { QUICK } else { FULL };
    let place = place(context)?;
    let mut signals = Signals::catch()?;
    let outcome = tokio::select! {
        measured = measure(&ids, &effort, &context.environment, &place) => Ok(measured),
        // Dropping the measuring ends its own sandboxes and removes its directories.
        signal = signals.next_ending() => Err(signal),
    };
    // Sandboxes of a server outlive it.
    served::remove_all(&place).await?;
    let (rows, machine) = match outcome {
        Ok(measured) => measured?,
        Err(signal) => return Ok(Ending::Signal(signal)),
    };
    if args.shape.json {
        crate::commands::print_json(&rows)?;
    } else if args.markdown {
        crate::commands::print(&table::render_markdown(&rows, &machine))?;
    } else {
        crate::commands::print(&table::render(&rows, &machine))?;
    }
    let all_met = rows.iter().all(|row| row.met != Some(false));
    Ok(Ending::Code(if all_met { 0 } else { 1 }))
}

fn wanted(only: &[String]) -> Result<Vec<&'static str>, Fault> {
    if only.is_empty() {
        return Ok(known_ids().collect());
    }
    let find = |given: &String| {
        known_ids().find(|id| id == given).ok_or_else(|| {
            let known = known_ids().collect::<Vec<_>>().join(", ");
            invalid(format!("there is no measurement '{given}'")).hint(format!("known: {known}"))
        })
    };
    only.iter().map(find).collect()
}

/// The data directory. The context keeps it to itself, so the command line is asked again for the flag.
fn place(context: &Context) -> Result<PathBuf, Fault> {
    let named = Cli::try_parse().ok().and_then(|cli| cli.places.data_dir);
    let asked = named.as_deref().or(context.settings.data_dir.as_deref());
    data_dir::choose(asked, &context.environment, rustix::process::geteuid().is_root())
}

async fn measure(
    ids: &[&'static str],
    effort: &Effort,
    environment: &Environment,
    place: &Path,
) -> Result<(Vec<Row>, Machine), Fault> {
    let progress = Progress::new();
    progress.say("preparing");
    let site = Arc::new(Site::open(place).await?);
    let scratch = Scratch::make(place)?;
    let facts = site.backend.facts();
    let mut machine = Machine::look(if facts.privileged { "root" } else { "an ordinary user" });
    if let Some(because) = site.without_limits() {
        machine.add("limits", format!("not in force: {because}"));
    }
    let any = |wanted: &[&str]| wanted.iter().any(|id| ids.contains(id));

    let mut rows = Vec::new();
    if any(&["exec.warm", "claim.warm", "create.cold", "destroy"]) {
        rows.extend(measure_race(ids, effort.rounds, &site, environment, &scratch, &progress).await?);
    }
    if any(&["memory.idle", "exec.warm.1000"]) {
        rows.extend(crowd::measure(&site, effort.crowd, ids, &progress).await);
    }
    if any(&["cycles"]) {
        rows.push(cycles::measure(&site, effort.cycles, &progress).await);
    }
    if any(&["journal.64mb"]) {
        rows.push(journal::measure(&site, effort.journals, &progress).await);
    }
    if any(&served::IDS) {
        let cycles = cycles_of(&rows, ids, &site, effort, &progress).await;
        let around = (&*site, environment, &scratch);
        rows.extend(served::measure(place, ids, &effort.served, around, &cycles, &progress).await?);
    }
    if any(&egress::IDS) {
        rows.extend(egress::measure(ids, &effort.egress, environment, &scratch, &progress).await);
    }
    if any(&code::IDS) {
        rows.extend(code::measure(place, ids, &effort.code, environment, &scratch, &progress).await?);
    }
    rows.sort_by_key(|row| known_ids().position(|id| id == row.id).unwrap_or(usize::MAX));
    machine.look_again();
    Ok((rows, machine))
}

/// What leases are compared with, from this run.
async fn cycles_of(
    rows: &[Row],
    ids: &[&'static str],
    site: &Arc<Site>,
    effort: &Effort,
    progress: &Progress,
) -> Samples {
    let mut cycles = Samples::default();
    let measured = rows.iter().find(|row| row.id == "cycles").and_then(|row| row.p50);
    let measured = match measured {
        None if ids.contains(&"lease.rate.local") => cycles::measure(site, effort.cycles, progress).await.p50,
        measured => measured,
    };
    measured.into_iter().for_each(|rate| cycles.push(rate));
    cycles
}

async fn measure_race(
    ids: &[&'static str],
    rounds: usize,
    site: &Site,
    environment: &Environment,
    scratch: &Scratch,
    progress: &Progress,
) -> Result<Vec<Row>, Fault> {
    let mut entrants = vec![
        Entrant::new("posix_spawn", Contestant::Direct(Start::PosixSpawn)),
        Entrant::new("fork_exec", Contestant::Direct(Start::ForkExec)),
    ];
    let warm = site.make().await?;
    let ours = [
        ("exec.warm", Contestant::ExecWarm(warm)),
        ("claim.warm", Contestant::ClaimWarm),
        ("create.cold", Contestant::CreateCold),
        ("destroy", Contestant::Destroy),
    ];
    let ours = ours.into_iter().filter(|(id, _)| ids.contains(id));
    entrants.extend(ours.map(|(id, contestant)| Entrant::new(id, contestant)));
    if ids.contains(&"create.cold") {
        progress.say("trying the peers");
        for Found { peer, failed } in peers::find(environment, scratch.path()).await? {
            let mut entrant = Entrant::new(peer.id, Contestant::Peer(peer));
            entrant.failed = failed;
            entrants.push(entrant);
        }
    }
    race(site, &mut entrants, rounds, progress).await;
    site.destroy(warm).await?;
    Ok(report::rows(&entrants, site.without_limits().as_deref()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_measurement_is_refused_with_the_known_ones() {
        assert_eq!(wanted(&["destroy".into()]).unwrap(), ["destroy"]);
        assert_eq!(wanted(&[]).unwrap().len(), known_ids().count());
        assert!(wanted(&["speed".into()]).unwrap_err().way_out().unwrap().contains("exec.warm"));
    }
}
