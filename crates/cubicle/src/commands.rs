//! One module per command.

pub(crate) mod agents;
pub(crate) mod audit;
pub(crate) mod completions;
pub(crate) mod cp;
pub(crate) mod doctor;
pub(crate) mod egress;
pub(crate) mod egress_gateway;
pub(crate) mod events;
pub(crate) mod exec;
pub(crate) mod first_run;
pub(crate) mod gc;
pub(crate) mod keys;
pub(crate) mod kill;
pub(crate) mod lease;
pub(crate) mod logs;
pub(crate) mod ls;
pub(crate) mod mcp;
pub(crate) mod ps;
pub(crate) mod receipt;
pub(crate) mod reference;
mod result;
pub(crate) mod rm;
pub(crate) mod run;
pub(crate) mod secrets;
pub(crate) mod shell;
pub(crate) mod skills;
pub(crate) mod template;
pub(crate) mod tenant;
pub(crate) mod up;
pub(crate) mod webhooks;
pub(crate) mod workspace;

use std::io::{self, Write};

use cubicle_model::Fault;
use serde::Serialize;

use crate::failure::Ending;

/// Prints a value as the only JSON on stdout.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Fault> {
    let text = serde_json::to_string_pretty(value).map_err(|error| {
        Fault::new(cubicle_model::Kind::Internal, "the result has no JSON form").because(error)
    })?;
    print(&format!("{text}\n"))
}

/// Writes to stdout; a reader that left has seen what it wanted.
pub(crate) fn print(text: &str) -> Result<(), Fault> {
    let mut stdout = anstream::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Fault::new(cubicle_model::Kind::Internal, "cannot write to stdout").because(error))
        }
        _ => Ok(()),
    }
}

const DONE: Ending = Ending::Code(0);
