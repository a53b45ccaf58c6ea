//! What a way out costs a sandbox that is made when it is asked for: a server with a gateway against one without.

use cubicle_model::Fault;
use serde_json::{Value, json};

use super::CREATE_POLICY;
use super::child::Served;
use super::latency::Call;
use crate::bench::progress::Progress;
use crate::bench::race::{Contestant, Entrant, race};
use crate::bench::row::{Goal, Row};
use crate::bench::site::Site;

const UNPREPARED: &str = "bench-cold";
const WHAT: &str = "POST /execs of /bin/true with a policy, nothing in the pool";
const GOAL: Goal = Goal::AtMost(1.1);

pub(super) async fn measure(
    with: &Served,
    without: &Served,
    rounds: usize,
    site: &Site,
    progress: &Progress,
) -> Result<Row, Fault> {
    let policy = json!({ "policy": "allow https://api.example.org; allow *.example.net" });
    let entrants = [
        ("with", with, json!({ "template": UNPREPARED, "command": ["/bin/true"], "egress": policy })),
        ("without", without, json!({ "template": UNPREPARED, "command": ["/bin/true"] })),
    ];
    let mut raced = Vec::new();
    for (id, server, body) in entrants {
        raced.push(Entrant::new(id, Contestant::Call(prepared(server, &body).await?)));
    }
    race(site, &mut raced, rounds, progress).await;
    let [with, without] = &raced[..] else { return Err(super::internal("two entrants are not two")) };
    if let Some(fault) = with.failed.as_ref().or(without.failed.as_ref()) {
        return Ok(Row::failed(CREATE_POLICY, WHAT, "ms", Some(GOAL), fault));
    }
    let row = Row::measured(CREATE_POLICY, WHAT.to_owned(), &with.samples, "ms");
    Ok(row.over("a server without a gateway", &without.samples).judged(GOAL))
}

/// With a template of which nothing waits, so that every sandbox is made when it is asked for.
async fn prepared(server: &Served, body: &Value) -> Result<Call, Fault> {
    let unprepared = json!({ "pool": { "size": 0, "min_idle": 0, "ceiling": 0 } });
    let put = server.request("PUT", &format!("/templates/{UNPREPARED}"), Some(&unprepared));
    server.wire().await?.ask(&put).await?;
    Call::new(server, "/execs", body).await
}
