//! From the race to rows.

use super::baseline::Start;
use super::race::{Contestant, Entrant};
use super::row::{Goal, Row};
use super::samples::Samples;

/// One row per entrant. `without_limits` says why limits are not in force here, where they are not.
pub(crate) fn rows(entrants: &[Entrant], without_limits: Option<&str>) -> Vec<Row> {
    let of = |id: &str| entrants.iter().find(|entrant| entrant.id == id).map(|entrant| &entrant.samples);
    let nothing = Samples::default();
    let spawn = of("posix_spawn").unwrap_or(&nothing);
    let cold = of("create.cold").unwrap_or(&nothing);
    entrants.iter().map(|entrant| row(entrant, spawn, cold, without_limits)).collect()
}

fn row(entrant: &Entrant, spawn: &Samples, cold: &Samples, without_limits: Option<&str>) -> Row {
    let (what, goal) = about(&entrant.contestant);
    if let Some(fault) = &entrant.failed {
        return Row::failed(entrant.id, what, "ms", goal, fault);
    }
    let row = Row::measured(entrant.id, what, &entrant.samples, "ms");
    let row = match entrant.contestant {
        Contestant::Direct(Start::PosixSpawn) => row,
        Contestant::Peer(_) => row.over("create.cold", cold),
        _ => row.over("posix_spawn", spawn),
    };
    match (goal, &entrant.contestant, without_limits) {
        (None, ..) => row,
        // Less was made than the goal is for.
        (Some(goal), Contestant::CreateCold | Contestant::Peer(_), Some(_)) => {
            row.unjudged(goal, "limits are not in force here")
        }
        (Some(goal), ..) => row.judged(goal),
    }
}

fn about(contestant: &Contestant) -> (&'static str, Option<Goal>) {
    match contestant {
        Contestant::Direct(Start::PosixSpawn) => ("/bin/true by posix_spawn, waited for", None),
        Contestant::Direct(Start::ForkExec) => ("/bin/true by fork and exec, waited for", None),
        Contestant::ExecWarm(_) => {
            ("/bin/true in a warm sandbox, output captured and journalled", Some(Goal::AtMost(1.25)))
        }
        Contestant::ClaimWarm => (
            "bind a ready sandbox (env, 1 kB file, three limits, workspace) and run /bin/true",
            Some(Goal::AtMost(1.5)),
        ),
        Contestant::CreateCold => {
            ("create a sandbox, limits in force, and run /bin/true", Some(Goal::AtMost(4.0)))
        }
        Contestant::Destroy => ("destroy until nothing is left", Some(Goal::AtMost(1.0))),
        // Rows of requests are made where the server is measured.
        Contestant::Call(_) => ("a request", None),
        Contestant::Peer(peer) => (peer.what, (peer.id == "peer.bwrap.run").then_some(Goal::AtLeast(1.8))),
    }
}

#[cfg(test)]
mod tests {
    use cubicle_model::{Fault, Kind};

    use super::*;

    fn entrant(id: &'static str, contestant: Contestant, value: f64) -> Entrant {
        let mut entrant = Entrant::new(id, contestant);
        entrant.samples.push(value);
        entrant
    }

    fn race() -> Vec<Entrant> {
        vec![
            entrant("posix_spawn", Contestant::Direct(Start::PosixSpawn), 1.0),
            entrant("create.cold", Contestant::CreateCold, 3.0),
            entrant("destroy", Contestant::Destroy, 1.5),
        ]
    }

    #[test]
    fn what_is_ours_is_compared_with_posix_spawn() {
        let rows = rows(&race(), None);
        assert_eq!((rows[0].ratio, rows[0].met), (None, None));
        assert_eq!((rows[1].ratio, rows[1].met), (Some(3.0), Some(true)));
        assert_eq!((rows[2].ratio, rows[2].met), (Some(1.5), Some(false)));
    }

    #[test]
    fn a_create_without_limits_gets_no_verdict() {
        let rows = rows(&race(), Some("no cgroups"));
        assert_eq!((rows[1].ratio, rows[1].met), (Some(3.0), None));
        assert_eq!(rows[2].met, Some(false));
    }

    #[test]
    fn a_failed_entrant_has_a_row_that_says_so() {
        let mut entrants = race();
        entrants[2].failed = Some(Fault::new(Kind::Internal, "lost"));
        let rows = rows(&entrants, None);
        assert_eq!((rows[2].p50, rows[2].met), (None, Some(false)));
        assert!(rows[2].what.ends_with("not measured: lost"), "{}", rows[2].what);
    }
}
