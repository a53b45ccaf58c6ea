//! Code execution: what it costs to have Python run something, against starting the same interpreter directly.

mod echo;
mod environments;
mod many;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use cubicle_model::Fault;
use serde_json::{Value, json};

use super::baseline::{program, timed};
use super::progress::Progress;
use super::race::QUIET;
use super::row::{Goal, Row};
use super::samples::Samples;
use super::scratch::Scratch;
use super::served::{Request, Served, Size, Wire, end_server, remove_all};
use crate::environment::Environment;

const PRINT: &str = "py.print";
const PANDAS: &str = "py.pandas";
const ENV_HIT: &str = "env.hit";
const ENV_BUILD: &str = "env.build";
const CELL: &str = "context.cell";
const EXECUTE_100: &str = "execute.100";

/// The measurements by id, in the order in which they are shown.
pub(crate) const IDS: [&str; 6] = [PRINT, PANDAS, ENV_HIT, ENV_BUILD, CELL, EXECUTE_100];

/// The interpreter that sandboxes have, and the one that is started directly.
const PYTHON: &str = "/usr/bin/python3";
/// Until a pool has its interpreters ready again.
const REST: Duration = Duration::from_secs(3);

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Effort {
    pub(crate) rounds: usize,
    pub(crate) slow_rounds: usize,
    pub(crate) slices: usize,
    pub(crate) slice: Duration,
}

pub(crate) const FULL: Effort =
    Effort { rounds: 120, slow_rounds: 15, slices: 5, slice: Duration::from_secs(3) };
pub(crate) const QUICK: Effort =
    Effort { rounds: 20, slow_rounds: 4, slices: 2, slice: Duration::from_secs(1) };

pub(crate) async fn measure(
    data_dir: &Path,
    ids: &[&'static str],
    effort: &Effort,
    environment: &Environment,
    scratch: &Scratch,
    progress: &Progress,
) -> Result<Vec<Row>, Fault> {
    let any = |wanted: &[&str]| wanted.iter().any(|id| ids.contains(id));
    let mut rows = Vec::new();
    remove_all(data_dir).await?;
    if any(&[PRINT, CELL]) {
        let server = Served::start(data_dir, Size { pool: 4, capacity: 100 }).await?;
        if ids.contains(&PRINT) {
            rows.push(or_failed(
                PRINT,
                "print(1)",
                Goal::AtMost(0.2),
                print(&server, effort, progress).await,
            ));
        }
        if ids.contains(&CELL) {
            rows.push(or_failed(CELL, "1+1", Goal::AtMost(4.0), cell(&server, effort, progress).await));
        }
        end_server(server, data_dir).await?;
    }
    if any(&[PANDAS, ENV_HIT, ENV_BUILD]) {
        let server = Served::start(data_dir, Size { pool: 4, capacity: 100 }).await?;
        let around = environments::Around { server: &server, environment, scratch: scratch.path() };
        rows.extend(environments::measure(around, ids, effort, progress).await);
        end_server(server, data_dir).await?;
    }
    if any(&[EXECUTE_100]) {
        let server = Served::start(data_dir, Size { pool: 8, capacity: 150 }).await?;
        let measured = many::measure(&server, effort, progress).await;
        rows.push(or_failed(EXECUTE_100, "100 clients", Goal::AtLeast(0.6), measured));
        end_server(server, data_dir).await?;
    }
    Ok(rows)
}

fn or_failed(id: &'static str, what: &str, goal: Goal, row: Result<Row, Fault>) -> Row {
    row.unwrap_or_else(|fault| Row::failed(id, what, "ms", Some(goal), &fault))
}

/// Two ways to the same result, in turns.
#[derive(Debug, Default)]
struct Duel {
    ours: Samples,
    theirs: Samples,
}

async fn asked(wire: &mut Wire, request: &Request) -> Result<Duration, Fault> {
    tokio::time::sleep(QUIET).await;
    let from = Instant::now();
    wire.ask(request).await?;
    Ok(from.elapsed())
}

fn python(interpreter: &Path, code: &str) -> Command {
    let mut command = program(interpreter);
    // Byte code is kept, as it is on most hosts.
    command.args(["-c", code]).env_remove("PYTHONDONTWRITEBYTECODE");
    command
}

/// Code that must succeed.
async fn succeed(wire: &mut Wire, request: &Request) -> Result<Value, Fault> {
    let answer = wire.ask_json(request).await?;
    match answer["status"] == "success" {
        true => Ok(answer),
        false => Err(Fault::new(cubicle_model::Kind::Internal, format!("code failed: {answer}"))),
    }
}

async fn print(server: &Served, effort: &Effort, progress: &Progress) -> Result<Row, Fault> {
    let mut wire = server.wire().await?;
    let sandbox = server.lease(&mut wire).await?;
    let body = json!({ "code": "print(1)" });
    let request = server.request("POST", &format!("/sandboxes/{sandbox}/execute"), Some(&body));
    // The first makes an interpreter ready for those that follow.
    for _ in 0..5 {
        succeed(&mut wire, &request).await?;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let mut duel = Duel::default();
    for round in 0..effort.rounds {
        progress.say(&format!("print(1), round {} of {}", round + 1, effort.rounds));
        duel.ours.push_time(asked(&mut wire, &request).await?);
        tokio::time::sleep(QUIET).await;
        duel.theirs.push_time(timed(&mut python(Path::new(PYTHON), "print(1)"))?);
    }
    let what = "POST /sandboxes/ID/execute of print(1), interpreter ready";
    Ok(Row::measured(PRINT, what, &duel.ours, "ms")
        .over("python3 -c", &duel.theirs)
        .judged(Goal::AtMost(0.2)))
}

async fn cell(server: &Served, effort: &Effort, progress: &Progress) -> Result<Row, Fault> {
    let mut wire = server.wire().await?;
    let sandbox = server.lease(&mut wire).await?;
    let made = server.request("POST", &format!("/sandboxes/{sandbox}/contexts"), Some(&json!({})));
    let context = wire.ask_json(&made).await?;
    let context = context["context_id"].as_str().unwrap_or_default();
    let path = format!("/sandboxes/{sandbox}/contexts/{context}/execute");
    let request = server.request("POST", &path, Some(&json!({ "code": "1+1" })));
    let answer = wire.ask_json(&request).await?;
    if answer["results"][0]["data"]["text/plain"] != "2" {
        return Err(Fault::new(cubicle_model::Kind::Internal, format!("1+1 is not 2: {answer}")));
    }
    let echo = echo::Echo::start()?;
    let mut floor = Wire::connect(echo.address).await?;
    let mut duel = Duel::default();
    for round in 0..effort.rounds {
        progress.say(&format!("cells, round {} of {}", round + 1, effort.rounds));
        duel.ours.push_time(asked(&mut wire, &request).await?);
        duel.theirs.push_time(asked(&mut floor, &request).await?);
    }
    let what = "a cell 1+1 in a context, until its answer; at most 1 ms is wanted besides";
    let mut row = Row::measured(CELL, what, &duel.ours, "ms").over("an HTTP echo", &duel.theirs);
    row = row.judged(Goal::AtMost(4.0));
    row.met = row.met.map(|met| met && row.p50.is_some_and(|p50| p50 <= 1.0));
    Ok(row)
}

/// Where a program of this name is, on the path of whoever measures.
fn find(environment: &Environment, name: &str) -> Option<PathBuf> {
    let path = environment.path("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(name)).find(|file| file.is_file())
}
