//! `cubicle agents`: programs of AI coding agents, on this host. They are installed, never run here.

use cubicle_agents::{Host, Installed, Request, Source, Step};
use cubicle_model::Fault;

use crate::args::{AgentInstall, Agents};
use crate::context::Context;
use crate::data_dir;
use crate::failure::{Ending, note};
use crate::progress::Progress;
use crate::table::Table;

pub(crate) fn agents(verb: &Agents, context: &Context) -> Result<Ending, Fault> {
    match verb {
        Agents::Install(args) => {
            let installed = install(args, context)?;
            match args.shape.json {
                true => super::print_json(&installed)?,
                false => note(&format!(
                    "{} {} is installed in {}",
                    cubicle_agents::known(&installed.agent)?.title,
                    installed.version,
                    installed.path.display()
                )),
            }
        }
        Agents::List(shape) => {
            let all = cubicle_agents::list(context.data_dir());
            match shape.json {
                true => super::print_json(&all)?,
                false => super::print(&table(&all))?,
            }
        }
        Agents::Remove(args) => {
            for gone in cubicle_agents::remove(context.data_dir(), &args.agent, args.version.as_deref())? {
                note(&format!("{} {} is removed", gone.agent, gone.version));
            }
        }
    }
    Ok(super::DONE)
}

fn install(args: &AgentInstall, context: &Context) -> Result<Installed, Fault> {
    data_dir::prepare(context.data_dir())?;
    let environment = &context.environment;
    let registry =
        ["npm_config_registry", "NPM_CONFIG_REGISTRY"].iter().find_map(|name| environment.text(name));
    let host =
        Host { path: environment.text("PATH").unwrap_or_default(), home: environment.path("HOME"), registry };
    let request = Request {
        agent: &args.agent,
        version: args.version.as_deref(),
        source: args.from.clone().map_or(Source::Registry, Source::Path),
        host: &host,
    };
    let mut progress = Progress::new(args.shape.json, None);
    cubicle_agents::install(context.data_dir(), &request, |step| match step {
        Step::Getting { what } if !args.shape.json => note(&format!("getting {what}")),
        Step::Bytes(bytes) => progress.add(usize::try_from(bytes).unwrap_or(usize::MAX)),
        Step::Getting { .. } | Step::Unpacking => {}
    })
}

fn table(all: &[Installed]) -> String {
    let mut table = Table::new(["AGENT", "VERSION", "DIGEST", "NEW TASKS", "PATH"]);
    for found in all {
        table.row([
            found.agent.clone(),
            found.version.clone(),
            found.digest.clone(),
            if found.current { "yes" } else { "no" }.into(),
            found.path.display().to_string(),
        ]);
    }
    let missing = cubicle_agents::names().filter(|name| all.iter().all(|found| found.agent != *name));
    let missing: String =
        missing.map(|name| format!("{name} is not installed: cubicle agents install {name}\n")).collect();
    if all.is_empty() { missing } else { format!("{table}{missing}") }
}
