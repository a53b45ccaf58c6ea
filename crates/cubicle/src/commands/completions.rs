//! `cubicle completions`: a script for the caller's shell.

use clap::CommandFactory;
use cubicle_model::Fault;

use crate::args::Cli;
use crate::failure::Ending;

pub(crate) fn completions(shell: clap_complete::Shell) -> Result<Ending, Fault> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "cubicle", &mut script);
    super::print(&String::from_utf8_lossy(&script))?;
    Ok(super::DONE)
}
