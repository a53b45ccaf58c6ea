//! `cubicle ps`: what runs in sandboxes of a server.

use cubicle_api::Exec;
use cubicle_model::{Command, Exit, Fault, Timestamp};

use crate::args::Ps;
use crate::context::Context;
use crate::control_plane;
use crate::failure::Ending;
use crate::table::{Table, ago};

pub(crate) async fn ps(args: &Ps, context: &Context) -> Result<Ending, Fault> {
    let client = control_plane::client(context)?;
    let sandbox = match args.target {
        Some(target) => Some(control_plane::sandbox(&client, target).await?),
        None => None,
    };
    let mut execs = client.execs(sandbox, (!args.all).then_some(true), usize::MAX).await?;
    execs.sort_by_key(|exec| exec.created_at);
    if args.shape.json {
        super::print_json(&execs)?;
    } else if args.quiet {
        super::print(&execs.iter().map(|exec| format!("{}\n", exec.exec_id)).collect::<String>())?;
    } else {
        super::print(&table(&execs, Timestamp::now()))?;
    }
    Ok(super::DONE)
}

fn table(execs: &[Exec], now: Timestamp) -> String {
    let mut table = Table::new(["EXEC", "SANDBOX", "STATE", "USER", "AGE", "COMMAND"]);
    for exec in execs {
        table.row([
            exec.exec_id.clone(),
            exec.sandbox_id.clone(),
            exec.result.as_ref().map_or_else(|| "running".into(), |result| how(result.exit)),
            exec.user.clone(),
            ago(exec.created_at, now),
            command(&exec.command),
        ]);
    }
    table.to_string()
}

fn how(exit: Exit) -> String {
    match exit {
        Exit::Code(code) => format!("exit {code}"),
        Exit::Signal(signal) => format!("signal {signal}"),
        Exit::Oom => "out of memory".into(),
        Exit::TimedOut => "timed out".into(),
        Exit::Unknown => "unknown".into(),
        Exit::NotStarted => "not started".into(),
    }
}

fn command(command: &Command) -> String {
    match command {
        Command::Shell(text) => text.clone(),
        Command::Argv(argv) => argv.join(" "),
    }
}
