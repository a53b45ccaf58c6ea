//! `cubicle task`: work for AI workers.

mod follow;

use std::io::{Read, Write};
use std::time::Duration;

use cubicle_api as api;
use cubicle_api::client::{Client, TaskQuery};
use cubicle_model::{Fault, Kind, TaskId, TaskStatus, Timestamp};

use crate::args::{Agent, Task, TaskFiles, TaskList, TaskLogs, TaskRun};
use crate::context::Context;
use crate::control_plane::{self, read_id};
use crate::failure::{Ending, invalid, note, printable};
use crate::table::{Table, ago, one_line, or_dash, record};

pub(crate) async fn task(verb: &Task, context: &Context) -> Result<Ending, Fault> {
    let client = control_plane::client(context)?;
    match verb {
        Task::Run(args) => return run(args, &client).await,
        Task::List(args) => list(args, &client).await?,
        Task::Show(args) => show(&client, args.id, args.shape.json).await?,
        Task::Logs(args) => logs(args, &client).await?,
        Task::Cancel(args) => {
            for id in &args.ids {
                client.cancel_task(*id).await?;
            }
        }
        Task::Retry(args) => {
            let task = client.retry_task(args.id).await?;
            match args.shape.json {
                true => super::print_json(&task)?,
                false => super::print(&format!("{}\n", task.task_id))?,
            }
        }
        Task::Files(args) => files(args, &client).await?,
    }
    Ok(super::DONE)
}

async fn run(args: &TaskRun, client: &Client) -> Result<Ending, Fault> {
    let task = client.create_task(&asked(args)?).await?;
    if !task.missing_context_files.is_empty() {
        note(&format!("not in the shared workspace: {}", task.missing_context_files.join(", ")));
    }
    let id: TaskId = read_id(&task.task_id)?;
    if args.detach {
        match args.shape.json {
            true => super::print_json(&task)?,
            false => super::print(&format!("{id}\n"))?,
        }
        return Ok(super::DONE);
    }
    note(&match task.position {
        Some(position) => format!("{id} waits for a worker, number {position} in line"),
        None => id.to_string(),
    });
    follow::to_its_end(client, id, |event| match args.shape.json {
        // The result alone is printed then.
        true => Ok(()),
        false => super::print(&follow::shown(event)),
    })
    .await?;
    let ended = ended(client, id).await?;
    show(client, id, args.shape.json).await?;
    Ok(Ending::Code(exit_code(ended.status)))
}

fn asked(args: &TaskRun) -> Result<api::CreateTask, Fault> {
    let agent = args.agent.unwrap_or(match args.command.is_empty() {
        true => Agent::Claude,
        false => Agent::Custom,
    });
    if (agent == Agent::Custom) == args.command.is_empty() {
        return Err(invalid("a command is for the agent 'custom', and that needs one")
            .hint("write 'cubicle task run --agent custom PROMPT -- CMD ARGS', or leave the command out"));
    }
    let prompt = match args.prompt.as_deref() {
        Some("-") => {
            let mut text = String::new();
            std::io::stdin()
                .read_to_string(&mut text)
                .map_err(|error| invalid("cannot read the prompt from standard input").because(error))?;
            text
        }
        Some(text) => text.to_owned(),
        None => args.command.join(" "),
    };
    // Whole minutes are what tasks are given; half of one more is better than half of one less.
    let minutes = |span: Duration| span.as_secs().div_ceil(60);
    let timeout_minutes = args
        .timeout
        .map(|timeout| u32::try_from(minutes(timeout.0)))
        .transpose()
        .map_err(|_| invalid("--timeout is longer than anybody waits"))?;
    Ok(api::CreateTask {
        context_files: args.context_files.clone(),
        model: agent.name().into(),
        timeout_minutes,
        save_to_shared: args.save,
        conversation_id: args.conversation.clone(),
        interface_type: Some("cli".into()),
        repo: args.repo.clone(),
        command: args.command.clone(),
        template: args.template.clone(),
        provider_model: args.model.clone(),
        max_turns: args.max_turns,
        max_tokens: args.max_tokens,
        max_cost_usd: args.max_cost,
        notify_url: args.notify.clone(),
        ..api::CreateTask::new(prompt)
    })
}

/// The task once it has ended; a server that is started again is waited for.
async fn ended(client: &Client, id: TaskId) -> Result<api::Task, Fault> {
    loop {
        match client.wait_for_task(id, 30).await {
            Ok(task) if task.status.has_ended() => return Ok(task),
            Ok(_) => {}
            Err(error) if error.passes() => tokio::time::sleep(Duration::from_millis(500)).await,
            Err(error) => return Err(error.into()),
        }
    }
}

/// As a shell would show it.
fn exit_code(status: TaskStatus) -> i32 {
    match status {
        TaskStatus::Success => 0,
        TaskStatus::Timeout => 124,
        TaskStatus::Cancelled => 130,
        _ => 1,
    }
}

async fn list(args: &TaskList, client: &Client) -> Result<(), Fault> {
    let query = TaskQuery { conversation: args.conversation.clone(), status: args.status };
    let tasks = client.tasks(&query, usize::MAX).await?;
    if args.shape.json {
        return super::print_json(&tasks);
    }
    if args.quiet {
        return super::print(&tasks.iter().map(|task| format!("{}\n", task.task_id)).collect::<String>());
    }
    let now = Timestamp::now();
    let mut table = Table::new(["TASK", "STATUS", "AGENT", "AGE", "TOOK", "WHAT"]);
    for task in tasks {
        let status = match task.position {
            Some(position) => format!("{}, number {position}", task.status.name()),
            None => task.status.name().into(),
        };
        table.row([
            task.task_id,
            status,
            task.model,
            ago(task.created_at, now),
            or_dash(task.duration_seconds.map(|seconds| format!("{seconds}s"))),
            one_line(&task.task_description),
        ]);
    }
    super::print(&table.to_string())
}

async fn show(client: &Client, id: TaskId, json: bool) -> Result<(), Fault> {
    let result = client.task_result(id, &[]).await?;
    if json {
        return super::print_json(&result);
    }
    let usage = result.usage.map(|usage| {
        let cost = usage.cost_usd.map(|cost| format!(", ${cost:.4}")).unwrap_or_default();
        format!("{} tokens in, {} out, {} turns{cost}", usage.input_tokens, usage.output_tokens, usage.turns)
    });
    let mut text = record([
        ("task", result.task_id.clone()),
        ("status", result.status.name().into()),
        ("took", or_dash(result.duration_seconds.map(|seconds| format!("{seconds}s")))),
        ("used", or_dash(usage)),
        ("error", or_dash(result.error_message.as_deref())),
    ]);
    if !result.output_files.is_empty() {
        text.push_str(&format!("\n{}", files_table(&result.output_files)));
    }
    if let Some(summary) = result.summary.as_deref().map(str::trim).filter(|text| !text.is_empty()) {
        text.push_str(&format!("\n{}\n", printable(summary)));
    }
    super::print(&text)
}

fn files_table(files: &[api::TaskFile]) -> Table {
    let mut table = Table::new(["FILE", "SIZE", "TYPE"]);
    for file in files {
        table.row([file.name.clone(), file.size.to_string(), file.kind.clone()]);
    }
    table
}

async fn logs(args: &TaskLogs, client: &Client) -> Result<(), Fault> {
    let print = |event: &follow::Line| match args.json {
        true => super::print(&format!("{}\n", event.as_json())),
        false => super::print(&follow::shown(event)),
    };
    match args.follow {
        true => follow::to_its_end(client, args.id, print).await,
        false => follow::so_far(client, args.id, print).await,
    }
}

async fn files(args: &TaskFiles, client: &Client) -> Result<(), Fault> {
    let Some(name) = &args.name else {
        let files = client.task_files(args.id).await?;
        return match args.shape.json {
            true => super::print_json(&files),
            false => super::print(&files_table(&files).to_string()),
        };
    };
    let mut download = client.task_file(args.id, name).await?;
    let unwritable = |error| Fault::new(Kind::Internal, "cannot write the file").because(error);
    let mut to: Box<dyn Write> = match &args.output {
        Some(path) => Box::new(
            std::fs::File::create(path)
                .map_err(|error| invalid(format!("cannot write to {}", path.display())).because(error))?,
        ),
        None => Box::new(std::io::stdout().lock()),
    };
    while let Some(bytes) = download.next().await? {
        match to.write_all(&bytes) {
            // A reader that left has seen what it wanted.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Ok(()),
            written => written.map_err(unwritable)?,
        }
    }
    to.flush().map_err(unwritable)
}
