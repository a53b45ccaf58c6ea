//! `cubicle doctor`: what this host can do, and what to do about the rest.

use std::fmt::Write;
use std::sync::Arc;

use anstyle::{AnsiColor, Style};
use cubicle_backend::{Level, Probed};
use cubicle_envs::Tools;
use cubicle_model::isolation::choose;
use cubicle_model::{Fault, Isolation, Kind, Timestamp};
use serde_json::json;

use crate::args::Shape;
use crate::context::Context;
use crate::failure::{Ending, printable};

pub(crate) async fn doctor(shape: &Shape, context: &Context) -> Result<Ending, Fault> {
    let default = default_level(context)?;
    // Before the backend is opened: as root, rights end there, and with them the view into root's own directories.
    let tools = tools(context).await?;
    let probed = context.backend().await?.probe().await;
    let works = probed.level(default).is_some_and(|level| level.unmet.is_empty());
    if shape.json {
        super::print_json(&json!({
            "default": default,
            "default_works": works,
            "strongest": probed.strongest(),
            "levels": probed.levels,
            "capabilities": probed.capabilities,
            "environments": {
                "python": tools.python.as_ref().ok(),
                "uv": tools.uv.as_ref().ok(),
            },
        }))?;
    } else {
        super::print(&(report(&probed, default) + &environments(&tools)))?;
    }
    Ok(Ending::Code(if works { 0 } else { 1 }))
}

/// What Python environments are made with.
async fn tools(context: &Context) -> Result<Tools, Fault> {
    let (said, environment) = (context.settings.clone(), context.environment.clone());
    let data_dir = context.data_dir().to_owned();
    // Nothing is made here, so that no time passes.
    let clock = Arc::new(|| Timestamp::UNIX_EPOCH);
    let settings = tokio::task::spawn_blocking(move || {
        crate::environments::settings(&said, &environment, &data_dir, clock)
    })
    .await
    .map_err(|error| Fault::new(Kind::Internal, "looking for indexes panicked").because(error))?;
    Ok(cubicle_envs::tools(&settings).await)
}

fn environments(tools: &Tools) -> String {
    let mut text = String::from("Python environments\n");
    let python =
        tools.python.as_ref().map(|python| format!("{} at {}", python.version, python.program.display()));
    let uv = tools.uv.as_ref().map(|path| path.display().to_string());
    for (name, found) in [("python", python), ("uv", uv)] {
        match found {
            Ok(found) => line(&mut text, AnsiColor::Green, "ok", name, &found),
            Err(fault) => {
                line(&mut text, AnsiColor::Yellow, "no", name, fault.message());
                _ = writeln!(text, "      fix: {}", printable(fault.way_out().unwrap_or_default()));
            }
        }
    }
    text
}

/// What `cubicle run` uses when nothing is asked for on its command line.
fn default_level(context: &Context) -> Result<Isolation, Fault> {
    choose(context.settings.trust.unwrap_or_default(), context.settings.isolation)
        .map_err(|weak| Fault::new(Kind::Denied, weak.to_string()).hint("change the settings"))
}

/// The probes for people, strongest level first.
pub(crate) fn report(probed: &Probed, default: Isolation) -> String {
    let mut text = String::new();
    let mut levels: Vec<&Level> = probed.levels.iter().collect();
    levels.sort_by_key(|level| std::cmp::Reverse(level.isolation));
    for level in levels {
        write_level(&mut text, level, level.isolation == default);
    }
    text.push_str("limits\n");
    for (name, enforced) in &probed.capabilities.limits {
        match enforced {
            Ok(by) => line(&mut text, AnsiColor::Green, "ok", name, by),
            Err(because) => line(&mut text, AnsiColor::Yellow, "no", name, because),
        }
    }
    let late = probed.capabilities.binds_late.join(", ");
    let durable = if probed.capabilities.durable { "yes" } else { "no" };
    text.push_str(&format!("kept sandboxes: {durable}\nbound to a ready sandbox: {late}\n"));
    text
}

fn write_level(text: &mut String, level: &Level, is_default: bool) {
    let verdict = if level.unmet.is_empty() { "works" } else { "does not work here" };
    let mark = if is_default { " (default)" } else { "" };
    let bold = Style::new().bold();
    _ = writeln!(text, "{bold}{}{mark}: {verdict}{bold:#}", level.isolation);
    for met in &level.met {
        line(text, AnsiColor::Green, "ok", &met.check, &met.found);
    }
    for unmet in &level.unmet {
        line(text, AnsiColor::Red, "no", &unmet.check, &unmet.because);
        _ = writeln!(text, "      fix: {}", printable(&unmet.fix));
    }
}

fn line(text: &mut String, colour: AnsiColor, mark: &str, check: &str, found: &str) {
    let style = Style::new().fg_color(Some(colour.into()));
    _ = writeln!(text, "  {style}{mark}{style:#}  {}: {}", printable(check), printable(found));
}

#[cfg(test)]
mod tests {
    use super::*;
    use cubicle_backend::Backend;

    #[tokio::test]
    async fn every_level_is_named_with_what_to_do_about_it() {
        let probed = cubicle_backend::fake::FakeHost::default().open().probe().await;
        let text = anstream::adapter::strip_str(&report(&probed, Isolation::Namespaces)).to_string();
        let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part} is not in {text}"));
        assert!(at("gvisor: does not work here") < at("namespaces (default): works"));
        assert!(at("namespaces (default)") < at("landlock: does not work here"));
        assert!(text.contains("fix: ask for namespaces"));
    }
}
