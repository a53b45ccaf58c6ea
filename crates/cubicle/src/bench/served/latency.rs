//! Requests one at a time, in one interleaved run with starting the same program directly.

use cubicle_model::Fault;
use serde_json::json;

use super::child::Served;
use super::wire::{Request, Wire};
use super::{EXEC_WARM, Effort, RUN_COLD, RUN_WARM, throughput};
use crate::bench::baseline::Start;
use crate::bench::peers::{self, Found};
use crate::bench::progress::Progress;
use crate::bench::race::{Contestant, Entrant, race};
use crate::bench::row::{Goal, Row};
use crate::bench::samples::Samples;
use crate::bench::scratch::Scratch;
use crate::bench::site::Site;
use crate::environment::Environment;

/// A template of which nothing waits, so that every sandbox is made when it is asked for.
const UNPREPARED: &str = "bench-cold";

/// One request that is made again and again on one connection.
#[derive(Debug)]
pub(crate) struct Call {
    wire: tokio::sync::Mutex<Wire>,
    request: Request,
}

impl Call {
    pub(super) async fn new(server: &Served, path: &str, body: &serde_json::Value) -> Result<Self, Fault> {
        let request = server.request("POST", path, Some(body));
        Ok(Self { wire: server.wire().await?.into(), request })
    }

    pub(crate) async fn make(&self) -> Result<(), Fault> {
        self.wire.lock().await.ask(&self.request).await.map(drop)
    }
}

pub(crate) async fn measure(
    server: &Served,
    ids: &[&'static str],
    effort: &Effort,
    (site, environment, scratch): (&Site, &Environment, &Scratch),
    progress: &Progress,
) -> Result<Vec<Row>, Fault> {
    let command = json!(["/bin/true"]);
    let mut wire = server.wire().await?;
    let sandbox = server.lease(&mut wire).await?;
    let unprepared = json!({ "pool": { "size": 0, "min_idle": 0, "ceiling": 0 } });
    wire.ask(&server.request("PUT", &format!("/templates/{UNPREPARED}"), Some(&unprepared))).await?;
    let one_shot = |template: &str| json!({ "template": template, "command": command });
    let calls = [
        (EXEC_WARM, format!("/sandboxes/{sandbox}/execs"), json!({ "command": command })),
        (RUN_WARM, "/execs".to_owned(), one_shot("default")),
        (RUN_COLD, "/execs".to_owned(), one_shot(UNPREPARED)),
    ];
    let mut entrants = vec![Entrant::new("posix_spawn", Contestant::Direct(Start::PosixSpawn))];
    for (id, path, body) in calls {
        if ids.contains(&id) {
            entrants.push(Entrant::new(id, Contestant::Call(Call::new(server, &path, &body).await?)));
        }
    }
    if let Some(Found { peer, failed }) = peers::find_docker(environment, scratch.path()).await {
        let mut entrant = Entrant::new("http.docker.run", Contestant::Peer(peer));
        entrant.failed = failed;
        entrants.push(entrant);
    }
    race(site, &mut entrants, effort.rounds, progress).await;
    let sustained = match ids.contains(&RUN_WARM) {
        true => Some(throughput::sustained(server, effort, progress).await?),
        false => None,
    };
    Ok(rows(&entrants, sustained))
}

fn rows(entrants: &[Entrant], sustained: Option<f64>) -> Vec<Row> {
    let nothing = Samples::default();
    let of = |id: &str| {
        entrants.iter().find(|entrant| entrant.id == id).map_or(&nothing, |entrant| &entrant.samples)
    };
    let spawn = of("posix_spawn");
    let row = |entrant: &Entrant| {
        let (what, goal) = match entrant.id {
            EXEC_WARM => {
                ("POST /sandboxes/ID/execs of /bin/true in a leased sandbox".to_owned(), Goal::AtMost(1.5))
            }
            RUN_WARM => {
                let rate =
                    sustained.map(|rate| format!(", as fast as they go {rate:.0}/s")).unwrap_or_default();
                (format!("POST /execs of /bin/true, pool of 8, at most 20/s{rate}"), Goal::AtMost(1.8))
            }
            RUN_COLD => ("POST /execs of /bin/true, nothing in the pool".to_owned(), Goal::AtMost(5.0)),
            "http.docker.run" => ("docker run --rm --network none".to_owned(), Goal::AtLeast(150.0)),
            _ => return None,
        };
        if let Some(fault) = &entrant.failed {
            // A Docker that does not run is no miss of ours.
            let goal = Some(goal).filter(|_| entrant.id != "http.docker.run");
            return Some(Row::failed(entrant.id, &what, "ms", goal, fault));
        }
        let row = Row::measured(entrant.id, what, &entrant.samples, "ms");
        let row = match entrant.id {
            "http.docker.run" => row.over(RUN_WARM, of(RUN_WARM)),
            _ => row.over("posix_spawn", spawn),
        };
        Some(row.judged(goal))
    };
    entrants.iter().filter_map(row).collect()
}
