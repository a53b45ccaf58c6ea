//! `run-task --run-task /task/prompt.md --webhook URL --task-id ID`: runs one task of an AI coding agent, inside its sandbox.

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use cubicle_model::Timestamp;
use cubicle_model::task::TaskStatus;
use cubicle_worker::run::{self, Surroundings};
use cubicle_worker::{Assignment, Interruption};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

const SHARED: &str = "/workspace/shared";

fn main() -> ExitCode {
    // The agent has the same user, and must not read the webhook's secret from the environment of this process.
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        eprintln!("run-task: cannot be hidden from the agent: {error}");
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let variables: std::collections::BTreeMap<_, _> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    let variable = |name: &str| variables.get(name).cloned();
    let task = match Assignment::read(&arguments, variable) {
        Ok(task) => task,
        Err(error) => {
            eprintln!("run-task: {error}");
            return ExitCode::from(2);
        }
    };
    let interruption = Arc::new(Interruption::default());
    if let Err(error) = listen_to_signals(Arc::clone(&interruption)) {
        eprintln!("run-task: cannot listen to signals: {error}");
    }
    let state = variable("TASK_STATE").unwrap_or_else(|| {
        let base = variable("TMPDIR").unwrap_or_else(|| "/tmp".into());
        format!("{base}/{}", task.task_id)
    });
    let around = Surroundings {
        shared: variable("TASK_SHARED").unwrap_or_else(|| SHARED.into()).into(),
        state: state.into(),
        variables,
        now: Timestamp::now,
        interruption: &interruption,
    };
    match run::run(&task, &around, print) {
        Ok(status) => exit_code(status),
        Err(error) => {
            eprintln!("run-task: {error}");
            ExitCode::FAILURE
        }
    }
}

fn exit_code(status: TaskStatus) -> ExitCode {
    match status {
        TaskStatus::Success => ExitCode::SUCCESS,
        TaskStatus::Timeout => ExitCode::from(124),
        TaskStatus::Cancelled => ExitCode::from(130),
        _ => ExitCode::FAILURE,
    }
}

/// A reader that left has seen what it wanted.
fn print(line: &[u8]) {
    let mut stdout = std::io::stdout().lock();
    _ = stdout.write_all(&[line, b"\n"].concat()).and_then(|()| stdout.flush());
}

fn listen_to_signals(interruption: Arc<Interruption>) -> std::io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    std::thread::spawn(move || {
        for _ in signals.forever() {
            interruption.ask();
        }
    });
    Ok(())
}
