//! A server with a thousand leases: what it holds in memory, and how fast it is back after it was killed.

use std::path::Path;

use cubicle_model::{Fault, Kind};
use tokio::task::JoinSet;

use super::child::{Served, Size};
use super::{Effort, RSS, RSS_1000, STARTUP_1000};
use crate::bench::progress::Progress;
use crate::bench::row::{Goal, Row};
use crate::bench::samples::Samples;

const IDLE_GOAL: Goal = Goal::AtMost(40.0);
const MANY_GOAL: Goal = Goal::AtMost(150.0);
const STARTUP_GOAL: Goal = Goal::AtMost(2.0);
/// The number of leases that the goals are for.
pub(crate) const LEASES: usize = 1000;
const CLIENTS: usize = 8;

pub(crate) async fn measure(
    data_dir: &Path,
    effort: &Effort,
    wanted: &[&str],
    progress: &Progress,
) -> Vec<Row> {
    let leases = effort.leases;
    let texts = [
        (RSS, "resident memory of a server that has just started".to_owned(), "MB", IDLE_GOAL),
        (RSS_1000, format!("the same with {leases} leases"), "MB", MANY_GOAL),
        (
            STARTUP_1000,
            format!("start of a killed server with {leases} leases, until it answered"),
            "s",
            STARTUP_GOAL,
        ),
    ];
    let measured = gather(data_dir, leases, progress).await;
    let rows = texts.into_iter().enumerate().map(|(number, (id, what, unit, goal))| match &measured {
        Ok(figures) => {
            let mut samples = Samples::default();
            samples.push(figures[number]);
            let row = Row::measured(id, what, &samples, unit);
            match leases == LEASES || id == RSS {
                true => row.judged(goal),
                false => row.unjudged(goal, &format!("it is for {LEASES} leases")),
            }
        }
        Err(fault) => Row::failed(id, &what, unit, Some(goal), fault),
    });
    rows.filter(|row| wanted.contains(&row.id)).collect()
}

async fn gather(data_dir: &Path, leases: usize, progress: &Progress) -> Result<[f64; 3], Fault> {
    progress.say("a server that has just started");
    let size = Size { pool: 4, capacity: leases + 100 };
    let server = Served::start(data_dir, size).await?;
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    let (idle, _) = server.memory();
    progress.say(&format!("{leases} leases"));
    let mut acquiring = JoinSet::new();
    for client in 0..CLIENTS {
        let share = leases / CLIENTS + usize::from(client < leases % CLIENTS);
        let (mut wire, request) =
            (server.wire().await?, server.request("POST", "/leases", Some(&super::long_lease())));
        acquiring.spawn(async move {
            for _ in 0..share {
                wire.ask(&request).await?;
            }
            Ok::<(), Fault>(())
        });
    }
    while let Some(acquired) = acquiring.join_next().await {
        acquired.map_err(|error| Fault::new(Kind::Internal, "a client broke off").because(error))??;
    }
    let (many, _) = server.memory();
    progress.say(&format!("a killed server with {leases} leases starts again"));
    let listen = server.kill().to_string();
    let again = Served::start_at(data_dir, size, &listen).await?;
    Ok([idle, many, again.took.as_secs_f64()])
}
