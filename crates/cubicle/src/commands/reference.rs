//! `cubicle reference`: docs/reference, from what the program itself knows.

use std::fmt::Write;

use clap::{Command, CommandFactory};
use cubicle_model::Fault;

use crate::args::{Cli, Reference};
use crate::failure::Ending;

pub(crate) fn reference(of: Reference) -> Result<Ending, Fault> {
    super::print(&match of {
        Reference::Config => crate::settings::reference(),
        Reference::Cli => cli(),
    })?;
    Ok(super::DONE)
}

fn cli() -> String {
    let mut text = String::from(
        "# Command line\n\nGenerated from the program by `UPDATE=1 cargo test -p cubicle --test cli_text`; do not edit.\n",
    );
    let mut top = Cli::command().term_width(100);
    top.build();
    describe(&mut text, &mut top, "cubicle");
    text
}

fn describe(text: &mut String, command: &mut Command, name: &str) {
    let help = command.render_help().to_string();
    let help: Vec<&str> = help.lines().map(str::trim_end).collect();
    // Writing to a string does not fail.
    _ = write!(text, "\n## {name}\n\n```text\n{}\n```\n", help.join("\n").trim_end());
    let below: Vec<&mut Command> = command.get_subcommands_mut().collect();
    for command in below.into_iter().filter(|command| !command.is_hide_set() && command.get_name() != "help")
    {
        let name = format!("{name} {}", command.get_name());
        describe(text, command, &name);
    }
}
