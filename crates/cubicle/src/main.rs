//! The one binary: reads the command line and the environment, prints, and leaves the rest to the other crates.

mod args;
mod attend;
mod bench;
mod bundles;
mod commands;
mod context;
mod control_plane;
mod data_dir;
mod environment;
mod environments;
mod failure;
mod gateway;
mod input;
mod limits;
mod local;
mod log;
mod output;
mod progress;
mod settings;
mod signals;
mod table;
mod target;
mod terminal;
mod traces;
mod values;

use clap::Parser;
use cubicle_model::{Fault, Kind};

use crate::args::{Cli, Verb};
use crate::context::Context;
use crate::environment::Environment;
use crate::failure::{Ending, Failure, OWN_FAILURE};

fn main() {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Nothing can be told to a user whose streams are gone.
            _ = error.print();
            std::process::exit(if error.use_stderr() { OWN_FAILURE } else { 0 });
        }
    };
    let wants_json = cli.command.wants_json();
    match carry_out(cli) {
        Ok(Ending::Code(code)) => std::process::exit(code),
        Ok(Ending::Signal(number)) => signals::die_by(number),
        Err(Failure { fault, code }) => {
            if wants_json {
                failure::print_json(&fault);
            } else {
                failure::print(&fault);
            }
            std::process::exit(code)
        }
    }
}

fn carry_out(cli: Cli) -> Result<Ending, Failure> {
    match cli.command {
        Verb::Completions { shell } => return Ok(commands::completions::completions(shell)?),
        Verb::Reference { of } => return Ok(commands::reference::reference(of)?),
        // Has a runtime of its own, and gives up its rights before it has threads.
        Verb::EgressGateway(args) => return Ok(commands::egress_gateway::egress_gateway(&args)?),
        Verb::BenchRelay { to } => return Ok(bench::egress::relay::relay(to)?),
        _ => {}
    }
    // A server has many callers; everything else waits for one thing at a time.
    let mut builder = match cli.command {
        Verb::Up(_) => tokio::runtime::Builder::new_multi_thread(),
        _ => tokio::runtime::Builder::new_current_thread(),
    };
    let runtime = builder
        .enable_all()
        .build()
        .map_err(|error| Fault::new(Kind::Internal, "cannot start").because(error))?;
    let ending = runtime.block_on(dispatch(cli));
    // A thread may still wait for input or for a reader; nobody waits for the thread.
    runtime.shutdown_background();
    ending
}

async fn dispatch(cli: Cli) -> Result<Ending, Failure> {
    let context = Context::new(&cli.places, &cli.server, Environment::read())?;
    Ok(match &cli.command {
        Verb::Run(args) => commands::run::run(args, &context).await?,
        Verb::Exec(args) => commands::exec::exec(args, &context).await?,
        Verb::Ls(args) => commands::ls::ls(args, &context).await?,
        Verb::Rm(args) => commands::rm::rm(args, &context).await?,
        Verb::Receipt(args) => commands::receipt::receipt(args, &context).await?,
        Verb::Gc(args) => commands::gc::gc(args, &context).await?,
        Verb::Doctor(args) => commands::doctor::doctor(args, &context).await?,
        Verb::Bench(args) => bench::bench(args, &context).await?,
        Verb::Up(args) => commands::up::up(args, &context).await?,
        Verb::Shell(args) => commands::shell::shell(args, &context).await?,
        Verb::Cp(args) => commands::cp::cp(args, &context).await?,
        Verb::Logs(args) => commands::logs::logs(args, &context).await?,
        Verb::Ps(args) => commands::ps::ps(args, &context).await?,
        Verb::Kill(args) => commands::kill::kill(args, &context).await?,
        Verb::Lease(verb) => commands::lease::lease(verb, &context).await?,
        Verb::Events(args) => commands::events::events(args, &context).await?,
        Verb::Keys(verb) => commands::keys::keys(verb, &context).await?,
        Verb::Audit(verb) => commands::audit::audit(verb, &context).await?,
        Verb::Template(verb) => commands::template::template(verb, &context).await?,
        Verb::Webhooks(verb) => commands::webhooks::webhooks(verb, &context).await?,
        Verb::Secrets(verb) => commands::secrets::secrets(verb, &context).await?,
        Verb::Workspace(verb) => commands::workspace::workspace(verb, &context).await?,
        Verb::Skills(verb) => commands::skills::skills(verb, &context).await?,
        Verb::Tenant(verb) => commands::tenant::tenant(verb, &context).await?,
        Verb::Egress(verb) => commands::egress::egress(verb, &context).await?,
        Verb::Agents(verb) => commands::agents::agents(verb, &context)?,
        Verb::Mcp(args) => commands::mcp::mcp(args, &context).await?,
        Verb::FirstRun => commands::first_run::first_run(&context).await?,
        Verb::Completions { shell } => commands::completions::completions(*shell)?,
        Verb::Reference { of } => commands::reference::reference(*of)?,
        Verb::EgressGateway(args) => commands::egress_gateway::egress_gateway(args)?,
        Verb::BenchRelay { to } => bench::egress::relay::relay(*to)?,
    })
}
