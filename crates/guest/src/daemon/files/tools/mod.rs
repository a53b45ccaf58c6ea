//! Tools for agents, where the files are: they read a part, search and edit without the files leaving the sandbox.
//!
//! A tool has JSON arguments and a JSON answer (`wire::tools`). It changes everything it was asked to change, or nothing.

mod directories;
mod edit;
mod globs;
mod grep;
mod patch;
mod read;
mod text;
mod write;

use std::io::Read;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::failure::{Failure, Trouble};
use super::path::SandboxPath;
use super::root::Root;
use super::{Connection, KeepAlive, reply};
use crate::wire::tools::LONGEST_REQUEST;

pub(super) fn serve(
    root: &Root,
    name: &str,
    body: &mut dyn Read,
    connection: &mut dyn Connection,
) -> Result<KeepAlive, Trouble> {
    let mut arguments = Vec::new();
    body.take(LONGEST_REQUEST as u64 + 1).read_to_end(&mut arguments)?;
    if arguments.len() > LONGEST_REQUEST {
        let why = format!("the arguments are longer than {LONGEST_REQUEST} bytes");
        return Err(Failure::new(413, "too_large", why).into());
    }
    match name {
        "read_file" => answer(connection, read::read(root, &parsed(&arguments)?)?),
        "write_file" => answer(connection, write::write(root, &parsed(&arguments)?)?),
        "edit_file" => answer(connection, edit::edit(root, &parsed(&arguments)?)?),
        "delete_file" => answer(connection, write::delete(root, &parsed(&arguments)?)?),
        "list_dir" => answer(connection, directories::list(root, &parsed(&arguments)?)?),
        "glob" => answer(connection, directories::glob(root, &parsed(&arguments)?)?),
        "grep" => answer(connection, grep::grep(root, &parsed(&arguments)?)?),
        "apply_patch" => answer(connection, patch::apply(root, &parsed(&arguments)?)?),
        _ => Err(Failure::new(404, "no_such_tool", "there is no such tool near the files").into()),
    }
}

/// What the first file of a patch becomes, where this is what it was.
pub(super) fn patch_text(before: &str, patch: &str) -> Option<String> {
    patch::of_text(before, patch)
}

pub(super) fn glob_matches(pattern: &str, path: &str) -> Option<bool> {
    globs::Pattern::of_path(pattern).ok().map(|pattern| pattern.matches(path))
}

fn parsed<T: DeserializeOwned>(arguments: &[u8]) -> Result<T, Failure> {
    serde_json::from_slice(arguments).map_err(|error| Failure::invalid_argument(error.to_string()))
}

fn answer(connection: &mut dyn Connection, answer: impl Serialize) -> Result<KeepAlive, Trouble> {
    Ok(reply::json(connection, 200, &answer)?)
}

fn path(given: &str) -> Result<SandboxPath, Failure> {
    SandboxPath::from_bytes(given.as_bytes())
}

/// A number of results that was asked for, within what is possible.
fn count(asked: Option<usize>, usual: usize, most: usize, name: &str) -> Result<usize, Failure> {
    match asked.unwrap_or(usual) {
        asked if (1..=most).contains(&asked) => Ok(asked),
        _ => Err(Failure::invalid_argument(format!("'{name}' is 1 to {most}"))),
    }
}
