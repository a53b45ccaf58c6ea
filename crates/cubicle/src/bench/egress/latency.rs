//! A small request through a new tunnel, and through one that is open.

use std::time::Duration;

use cubicle_model::Fault;

use super::way::Way;
use super::{CONNECT, CONNECT_KEPT, SQUID, SQUID_KEPT, gateway, origin, relay, squid};
use crate::bench::progress::Progress;
use crate::bench::race::QUIET;
use crate::bench::row::{Goal, Row};
use crate::bench::samples::Samples;
use crate::bench::scratch::Scratch;
use crate::environment::Environment;

const RELAY_GOAL: Goal = Goal::AtMost(1.5);
const SQUID_GOAL: Goal = Goal::AtMost(0.6);
/// Rounds that are run and not counted.
const WARM_UP: usize = 5;
/// Visits of which the mean is one sample: what is measured is a gateway that is in use.
const VISITS: u32 = 10;
/// Requests on a connection that is open, in every visit.
const KEPT: u32 = 20;

struct Entrant {
    way: Way,
    first: Samples,
    kept: Samples,
    failed: Option<Fault>,
}

impl Entrant {
    fn new(way: Way) -> Self {
        Self { way, first: Samples::default(), kept: Samples::default(), failed: None }
    }
}

pub(super) async fn measure(
    ids: &[&'static str],
    rounds: usize,
    environment: &Environment,
    scratch: &Scratch,
    progress: &Progress,
) -> Vec<Row> {
    let rows = match race(ids, rounds, environment, scratch, progress).await {
        Ok((entrants, no_squid)) => rows(&entrants, no_squid.as_ref()),
        Err(fault) => [CONNECT, CONNECT_KEPT]
            .map(|id| Row::failed(id, "a small request through the gateway", "ms", Some(RELAY_GOAL), &fault))
            .into(),
    };
    rows.into_iter().filter(|row| ids.contains(&row.id)).collect()
}

async fn race(
    ids: &[&'static str],
    rounds: usize,
    environment: &Environment,
    scratch: &Scratch,
    progress: &Progress,
) -> Result<(Vec<Entrant>, Option<Fault>), Fault> {
    let origin = origin::start().map_err(super::broken)?;
    let (_relay, relayed) = relay::start(origin)?;
    let gateway = gateway::start(origin, environment).await?;
    let mut entrants = vec![
        Entrant::new(Way::plain("direct", origin)),
        Entrant::new(Way::plain("relay", relayed)),
        Entrant::new(Way::proxy("gateway", gateway.proxy, origin)),
    ];
    let (mut no_squid, mut _squid) = (None, None);
    if ids.contains(&SQUID) || ids.contains(&SQUID_KEPT) {
        match squid::start(origin, environment, scratch.path()).await {
            Ok((process, at)) => {
                entrants.push(Entrant::new(Way::proxy("squid", at, origin)));
                _squid = Some(process);
            }
            Err(fault) => no_squid = Some(fault),
        }
    }
    for round in 0..rounds + WARM_UP {
        progress.say(&format!("requests through tunnels, {round} of {rounds}"));
        let count = entrants.len();
        for turn in 0..count {
            // Each round begins with another one.
            let entrant = &mut entrants[(round + turn) % count];
            if entrant.failed.is_some() {
                continue;
            }
            tokio::time::sleep(QUIET).await;
            let visits: Result<Vec<_>, _> = (0..VISITS).map(|_| entrant.way.visit(KEPT)).collect();
            match visits {
                Ok(visits) if round >= WARM_UP => {
                    let (first, kept): (Vec<Duration>, Vec<Duration>) = visits.into_iter().unzip();
                    entrant.first.push_time(first.iter().sum::<Duration>() / VISITS);
                    entrant.kept.push_time(kept.iter().sum::<Duration>() / VISITS);
                }
                Ok(_) => {}
                Err(error) => entrant.failed = Some(super::broken(error)),
            }
        }
    }
    Ok((entrants, no_squid))
}

fn rows(entrants: &[Entrant], no_squid: Option<&Fault>) -> Vec<Row> {
    let of = |name: &str| entrants.iter().find(|entrant| entrant.way.name == name);
    let samples = |name: &str, kept: bool| {
        of(name).map(|entrant| if kept { &entrant.kept } else { &entrant.first }).cloned().unwrap_or_default()
    };
    let mut rows = Vec::new();
    for (id, versus, goal, kept) in [
        (CONNECT, "relay", RELAY_GOAL, false),
        (CONNECT_KEPT, "relay", RELAY_GOAL, true),
        (SQUID, "squid", SQUID_GOAL, false),
        (SQUID_KEPT, "squid", SQUID_GOAL, true),
    ] {
        let what = match kept {
            false => "open a tunnel through the gateway and get an answer of 200 bytes",
            true => "get an answer of 200 bytes through a tunnel that is open",
        };
        let failed = [of("gateway"), of(versus)].into_iter().flatten().find_map(|one| one.failed.as_ref());
        let failed = failed.or_else(|| no_squid.filter(|_| versus == "squid"));
        rows.push(match failed {
            Some(fault) => Row::failed(id, what, "ms", Some(goal), fault),
            None => {
                let direct = samples("direct", kept).p50().unwrap_or(f64::NAN);
                let what = match versus {
                    "relay" => format!("{what} (direct: {direct:.3} ms)"),
                    _ => what.to_owned(),
                };
                Row::measured(id, what, &samples("gateway", kept), "ms")
                    .over(versus, &samples(versus, kept))
                    .judged(goal)
            }
        });
    }
    rows
}
