//! The server's log: one line per event on stderr, as text on a terminal and as JSON elsewhere.

use std::io::IsTerminal;

use cubicle_model::{Fault, Kind};
use tracing_subscriber::EnvFilter;

/// `what` is as in `info,cubicle_server=debug`.
pub(crate) fn start(what: Option<&str>) -> Result<(), Fault> {
    let filter = EnvFilter::try_new(what.unwrap_or("warn,cubicle_server=info")).map_err(|error| {
        Fault::new(Kind::Invalid, format!("the log cannot be filtered so: {error}"))
            .hint("write a level, or names with levels: info,cubicle_server=debug")
    })?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let started = match std::io::stderr().is_terminal() {
        true => builder.with_target(false).try_init(),
        false => builder.json().flatten_event(true).try_init(),
    };
    started.map_err(|error| Fault::new(Kind::Internal, format!("the log cannot be started: {error}")))
}
