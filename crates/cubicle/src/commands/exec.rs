//! `cubicle exec`: one command in a sandbox of a server, or in one that was kept on this machine.

use cubicle_api as api;
use cubicle_api::client::{Client, ClientError};
use cubicle_backend::State;
use cubicle_model::{Command, ExecId, ExecSpec, Fault, Kind, SandboxId, Stdin};
use tokio::time::Instant;

use super::run::{attend_in, explain, finish, spec};
use crate::args::Exec;
use crate::attend::server::{attend, refused};
use crate::attend::{Attended, Passing};
use crate::context::{Context, existing, guest, random_bits};
use crate::control_plane::{self, OwnLease, read_id};
use crate::failure::{Ending, Failure};
use crate::signals::Signals;
use crate::target::Target;

pub(crate) async fn exec(args: &Exec, context: &Context) -> Result<Ending, Failure> {
    let mut signals = Signals::catch()?;
    let spec = spec(&args.how, args.argv.clone(), &context.environment)?;
    let client = control_plane::client(context)?;
    match args.target {
        None if args.detach => detached(client.create_one_shot(&one_shot(&spec, args)?).await, args),
        None => alone(args, &spec, &client, &mut signals).await,
        Some(target) => {
            let there = match target {
                Target::Lease(_) => control_plane::sandbox(&client, target).await?,
                Target::Sandbox(id) => match client.sandbox(id).await {
                    Ok(_) => id,
                    Err(error) => return kept_here(args, &spec, id, error, context, &mut signals).await,
                },
            };
            if args.detach {
                let policy = egress(args)?.policy;
                let asked = api::CreateExec { policy, ..in_background(&spec) };
                return detached(client.create_exec(there, &asked).await, args);
            }
            inside(args, &spec, &client, there, &mut signals).await
        }
    }
}

/// In a sandbox of its own. Input and terminals need a lease; without them it is one call.
async fn alone(
    args: &Exec,
    spec: &ExecSpec,
    client: &Client,
    signals: &mut Signals,
) -> Result<Ending, Failure> {
    if passing(args).streams_input() {
        let lease = tokio::select! {
            lease = OwnLease::acquire(client, args.template.as_deref(), egress(args)?) => lease?,
            // A lease that was made all the same ends by itself soon.
            signal = signals.next_ending() => return Ok(Ending::Signal(signal)),
        };
        let ending = inside(args, spec, client, lease.sandbox, signals).await;
        lease.release(client).await;
        return ending;
    }
    let started = Instant::now();
    let id = ExecId::from_random(random_bits());
    let asked = api::CreateOneShot { exec_id: Some(id.to_string()), ..one_shot(spec, args)? };
    let exec = tokio::select! {
        exec = client.create_one_shot(&asked) => exec.map_err(refused)?,
        signal = signals.next_ending() => {
            _ = client.end_exec(id, None).await;
            return Ok(Ending::Signal(signal));
        }
    };
    let sandbox = read_id(&exec.sandbox_id)?;
    let attended = attend(client, sandbox, id, passing(args), started, signals).await?;
    told(args, client, sandbox, attended).await
}

/// In a sandbox that a lease has.
pub(super) async fn inside(
    args: &Exec,
    spec: &ExecSpec,
    client: &Client,
    sandbox: SandboxId,
    signals: &mut Signals,
) -> Result<Ending, Failure> {
    let started = Instant::now();
    let passing = passing(args);
    let id = ExecId::from_random(random_bits());
    let asked = api::CreateExec {
        exec_id: Some(id.to_string()),
        tty: passing.size(),
        stdin: if passing.streams_input() { Stdin::Stream } else { Stdin::Closed },
        // One that was leased for this has it from the beginning.
        policy: if args.target.is_some() { egress(args)?.policy } else { None },
        ..in_background(spec)
    };
    tokio::select! {
        exec = client.create_exec(sandbox, &asked) => exec.map_err(refused)?,
        signal = signals.next_ending() => {
            _ = client.end_exec(id, None).await;
            return Ok(Ending::Signal(signal));
        }
    };
    let attended = attend(client, sandbox, id, passing, started, signals).await?;
    told(args, client, sandbox, attended).await
}

async fn told(
    args: &Exec,
    client: &Client,
    sandbox: SandboxId,
    attended: Attended,
) -> Result<Ending, Failure> {
    let isolation = match args.how.json {
        true => client.sandbox(sandbox).await.map_or("unknown", |sandbox| sandbox.isolation.name()),
        false => "unknown",
    };
    finish(&args.how, sandbox, isolation, attended, None)
}

fn detached(exec: Result<api::Exec, ClientError>, args: &Exec) -> Result<Ending, Failure> {
    let exec = exec.map_err(refused)?;
    match args.how.json {
        true => super::print_json(&exec)?,
        false => super::print(&format!("{}\n", exec.exec_id))?,
    }
    Ok(super::DONE)
}

/// In a sandbox that 'cubicle run --keep' left on this machine, where no server has it.
async fn kept_here(
    args: &Exec,
    spec: &ExecSpec,
    id: SandboxId,
    error: ClientError,
    context: &Context,
    signals: &mut Signals,
) -> Result<Ending, Failure> {
    let find = async {
        let backend = context.backend().await?;
        let seen = existing(&*backend, id).await?;
        Ok::<_, Fault>((backend, seen))
    };
    let (backend, seen) = tokio::select! {
        found = find => match found {
            Ok(found) => found,
            // Neither has it: what the server said counts, unless there is none.
            Err(fault) if matches!(error, ClientError::Unreachable { .. }) => {
                return Err(fault.hint(format!("'cubicle ls' shows what this machine keeps; {error}")).into());
            }
            Err(_) => return Err(Fault::from(error).into()),
        },
        // Looking changes nothing.
        signal = signals.next_ending() => return Ok(Ending::Signal(signal)),
    };
    if seen.state == State::Ended {
        let fault = Fault::new(Kind::NotFound, format!("{id} ended and runs nothing any more"));
        return Err(fault.hint(format!("'cubicle rm {id}' removes what is left of it")).into());
    }
    if args.detach {
        let fault = Fault::new(
            Kind::Invalid,
            format!("{id} is no sandbox of a server, so nobody follows what is detached"),
        );
        return Err(fault.hint("leave --detach out").into());
    }
    let guest = guest(&backend, id).await?;
    let attended = attend_in(&seen, &guest, spec, &args.how, signals).await;
    let attended = explain(&*backend, id, attended).await?;
    let isolation = seen.receipt.as_ref().map_or("unknown", |receipt| receipt.isolation.name());
    finish(&args.how, id, isolation, attended, None)
}

/// A terminal's keys are for a command with a terminal of its own.
fn passing(args: &Exec) -> Passing {
    let input = args.how.tty || !rustix::termios::isatty(rustix::stdio::stdin());
    Passing { tty: args.how.tty, input, keep_output: args.how.json }
}

fn in_background(spec: &ExecSpec) -> api::CreateExec {
    api::CreateExec {
        cwd: spec.cwd.clone(),
        env: spec.env.clone(),
        timeout_seconds: spec.timeout_seconds,
        background: true,
        ..api::CreateExec::new(spec.command.clone())
    }
}

/// Of a sandbox of its own.
fn egress(args: &Exec) -> Result<api::LeaseEgress, Fault> {
    let policy = args.egress.as_deref().map(super::egress::policy).transpose()?;
    Ok(api::LeaseEgress { policy, record: false })
}

fn one_shot(spec: &ExecSpec, args: &Exec) -> Result<api::CreateOneShot, Fault> {
    let mut asked = api::CreateOneShot {
        cwd: spec.cwd.clone(),
        env: spec.env.clone(),
        timeout_seconds: spec.timeout_seconds,
        background: true,
        egress: egress(args)?,
        ..api::CreateOneShot::new(Command::clone(&spec.command))
    };
    if let Some(template) = &args.template {
        asked.template.clone_from(template);
    }
    Ok(asked)
}
