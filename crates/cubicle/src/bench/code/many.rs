//! A hundred clients at once.

use std::path::Path;
use std::time::Duration;

use cubicle_model::Fault;
use serde_json::json;

use super::{EXECUTE_100, Effort, PYTHON, python, succeed};
use crate::bench::baseline::timed;
use crate::bench::machine::cores;
use crate::bench::progress::Progress;
use crate::bench::row::{Goal, Row};
use crate::bench::samples::Samples;
use crate::bench::served::{Served, rate, start_rate};

const CLIENTS: usize = 100;
const CODE: &str = "print(sum(range(1000)))";

pub(super) async fn measure(server: &Served, effort: &Effort, progress: &Progress) -> Result<Row, Fault> {
    let mut clients = Vec::new();
    for number in 1..=CLIENTS {
        progress.say(&format!("leases for {CLIENTS} clients: {number}"));
        let mut wire = server.wire().await?;
        let sandbox = server.lease(&mut wire).await?;
        let path = format!("/sandboxes/{sandbox}/execute");
        let request = server.request("POST", &path, Some(&json!({ "code": CODE })));
        // Also makes an interpreter ready.
        succeed(&mut wire, &request).await?;
        clients.push((wire, request));
    }
    rate(&mut clients, Duration::from_millis(500)).await?;
    let (mut ours, mut theirs) = (Samples::default(), Samples::default());
    for slice in 1..=effort.slices {
        progress.say(&format!("code of {CLIENTS} clients, slice {slice} of {}", effort.slices));
        theirs.push(start_rate(effort.slice, || timed(&mut python(Path::new(PYTHON), CODE)))?);
        // An error of any client ends the measurement.
        ours.push(rate(&mut clients, effort.slice).await?);
    }
    let what =
        format!("POST /sandboxes/ID/execute of {CLIENTS} clients at once, each with a lease, no errors");
    let row = Row { p99: ours.percentile(1.0), ..Row::measured(EXECUTE_100, what, &ours, "/s") };
    let versus = format!("python3 -c on {} cores", cores());
    Ok(row.over(&versus, &theirs).judged(Goal::AtLeast(0.6)))
}
