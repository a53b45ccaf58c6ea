//! Environments: making one, finding one, and having its packages imported in a fresh sandbox.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cubicle_model::{Fault, Kind};
use serde_json::json;

use super::{Duel, ENV_BUILD, ENV_HIT, Effort, PANDAS, PYTHON, REST, asked, find, python, succeed};
use crate::bench::baseline::{program, timed};
use crate::bench::progress::Progress;
use crate::bench::race::QUIET;
use crate::bench::row::{Goal, Row};
use crate::bench::served::Served;
use crate::environment::Environment;

const PACKAGES: [&str; 3] = ["requests", "numpy", "pandas"];
/// Small packages, one of which makes every build another one.
const SMALL: [&str; 8] = ["six", "toml", "tabulate", "colorama", "wcwidth", "iniconfig", "pluggy", "zipp"];

#[derive(Clone, Copy)]
pub(super) struct Around<'a> {
    pub(super) server: &'a Served,
    pub(super) environment: &'a Environment,
    pub(super) scratch: &'a Path,
}

pub(super) async fn measure(
    around: Around<'_>,
    ids: &[&'static str],
    effort: &Effort,
    progress: &Progress,
) -> Vec<Row> {
    let mut rows = Vec::new();
    let wanted = [(PANDAS, Goal::AtMost(0.05)), (ENV_HIT, Goal::AtMost(1.1)), (ENV_BUILD, Goal::AtMost(1.5))];
    for (id, goal) in wanted.into_iter().filter(|(id, _)| ids.contains(id)) {
        let row = match id {
            PANDAS => pandas(around, effort, progress).await,
            ENV_HIT => hit(around, effort, progress).await,
            _ => build(around, effort, progress).await,
        };
        rows.push(super::or_failed(id, id, goal, row));
    }
    rows
}

/// `uv pip install` into an environment of its own, as somebody does it by hand.
fn install(around: Around<'_>, name: &str, packages: &[&str]) -> Result<(PathBuf, Duration), Fault> {
    let uv = find(around.environment, "uv").ok_or_else(|| {
        Fault::new(Kind::Denied, "uv is not on the path").hint("pip install uv, or scripts/setup-ci")
    })?;
    let place = around.scratch.join(name);
    let mut venv = program(&uv);
    timed(venv.args(["venv", "--quiet", "--python", PYTHON]).arg(&place))?;
    let interpreter = place.join("bin/python");
    let mut command = program(&uv);
    command.args(["pip", "install", "--quiet", "--python"]).arg(&interpreter).args(packages);
    let took = timed(&mut command)?;
    Ok((interpreter, took))
}

async fn pandas(around: Around<'_>, effort: &Effort, progress: &Progress) -> Result<Row, Fault> {
    let (interpreter, _) = install(around, "pandas", &["pandas"])?;
    let mut wire = around.server.wire().await?;
    let body = json!({ "code": "import pandas\nprint(pandas.DataFrame({'a': [1]}).shape)", "requirements": ["pandas"] });
    let request = around.server.request("POST", "/execute", Some(&body));
    succeed(&mut wire, &request).await?;
    let mut duel = Duel::default();
    // Byte code is there on both sides.
    timed(&mut python(&interpreter, "import pandas"))?;
    for round in 0..effort.slow_rounds {
        progress.say(&format!("pandas in a fresh sandbox, round {} of {}", round + 1, effort.slow_rounds));
        tokio::time::sleep(REST).await;
        duel.ours.push_time(asked(&mut wire, &request).await?);
        tokio::time::sleep(REST).await;
        duel.theirs.push_time(timed(&mut python(&interpreter, "import pandas"))?);
    }
    let what = "POST /execute of import pandas in a fresh sandbox whose interpreter is ready, the sandbox's lease included";
    Ok(Row::measured(PANDAS, what, &duel.ours, "ms")
        .over("import pandas", &duel.theirs)
        .judged(Goal::AtMost(0.05)))
}

async fn hit(around: Around<'_>, effort: &Effort, progress: &Progress) -> Result<Row, Fault> {
    let mut wire = around.server.wire().await?;
    let sandbox = around.server.lease(&mut wire).await?;
    let path = format!("/sandboxes/{sandbox}/execute");
    let code = "print(1)";
    let with = around.server.request("POST", &path, Some(&json!({ "code": code, "requirements": ["six"] })));
    let without = around.server.request("POST", &path, Some(&json!({ "code": code })));
    for _ in 0..5 {
        succeed(&mut wire, &with).await?;
        succeed(&mut wire, &without).await?;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let mut duel = Duel::default();
    for round in 0..effort.rounds {
        progress.say(&format!("requirements that are there, round {} of {}", round + 1, effort.rounds));
        duel.ours.push_time(asked(&mut wire, &with).await?);
        duel.theirs.push_time(asked(&mut wire, &without).await?);
    }
    let what = "POST /sandboxes/ID/execute of print(1) with requirements that are cached";
    Ok(Row::measured(ENV_HIT, what, &duel.ours, "ms").over("without", &duel.theirs).judged(Goal::AtMost(1.1)))
}

async fn build(around: Around<'_>, effort: &Effort, progress: &Progress) -> Result<Row, Fault> {
    let mut wire = around.server.wire().await?;
    // Both caches have every package before the clock runs.
    install(around, "warm", &[&PACKAGES[..], &SMALL[..]].concat())?;
    for packages in [&PACKAGES[..], &SMALL[..]] {
        let body = json!({ "name": format!("warm-{}", packages.len()), "requirements": packages });
        wire.ask(&around.server.request("POST", "/envs", Some(&body))).await?;
    }
    let mut duel = Duel::default();
    for (round, small) in SMALL.iter().take(effort.slow_rounds.min(SMALL.len())).enumerate() {
        progress.say(&format!("building an environment, round {}", round + 1));
        let packages = [&PACKAGES[..], &[*small][..]].concat();
        let body = json!({ "name": format!("build-{round}"), "requirements": packages });
        let request = around.server.request("POST", "/envs", Some(&body));
        tokio::time::sleep(QUIET).await;
        let from = Instant::now();
        wire.ask(&request).await?;
        duel.ours.push_time(from.elapsed());
        tokio::time::sleep(QUIET).await;
        let (_, took) = install(around, &format!("by-hand-{round}"), &packages)?;
        duel.theirs.push_time(took);
    }
    let what = "POST /envs of requests, numpy, pandas and one small package more, every package cached, byte-compiled";
    Ok(Row::measured(ENV_BUILD, what, &duel.ours, "ms")
        .over("uv pip install", &duel.theirs)
        .judged(Goal::AtMost(1.5)))
}
