//! The one table of tools.

mod execs;
mod files;
mod sandboxes;
mod skills;
mod workspace;

use std::sync::LazyLock;

use serde::Serialize;
use serde_json::{Map, Value, json};

/// A tool as everybody is told of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Definition {
    pub name: &'static str,
    pub title: &'static str,
    /// For a model to choose it by.
    pub description: &'static str,
    /// JSON Schemas of objects.
    pub input: Value,
    pub output: Value,
    pub annotations: Annotations,
}

/// What a tool does to the world, as MCP has words for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Annotations {
    pub read_only: bool,
    /// Whether it may take away what was there.
    pub destructive: bool,
    /// Whether a second call with the same arguments changes nothing more.
    pub idempotent: bool,
    /// Whether it may reach what is outside of the sandbox.
    pub open_world: bool,
}

pub(crate) const READS: Annotations =
    Annotations { read_only: true, destructive: false, idempotent: true, open_world: false };
pub(crate) const CHANGES: Annotations =
    Annotations { read_only: false, destructive: true, idempotent: false, open_world: false };
pub(crate) const RUNS: Annotations =
    Annotations { read_only: false, destructive: true, idempotent: false, open_world: true };

impl Definition {
    pub(crate) fn argument_names(&self) -> impl Iterator<Item = &str> {
        self.input["properties"].as_object().into_iter().flat_map(Map::keys).map(String::as_str)
    }

    pub(crate) fn unknown_argument<'a>(
        &self,
        mut given: impl Iterator<Item = &'a String>,
    ) -> Option<&'a String> {
        given.find(|name| !self.argument_names().any(|known| known == name.as_str()))
    }

    /// The same with the sandbox as an argument, for callers that do not name it elsewhere.
    pub(crate) fn with_sandbox(&self) -> Self {
        let mut definition = self.clone();
        definition.input["properties"]["sandbox_id"] = json!({
            "type": "string",
            "description": "The sandbox to work in. Leave it out to use your own, which is made at the first use.",
        });
        definition
    }
}

/// Tools that work in a sandbox, always in the same order.
pub fn definitions() -> &'static [Definition] {
    static ALL: LazyLock<Vec<Definition>> =
        LazyLock::new(|| files::definitions().into_iter().chain(execs::definitions()).collect());
    &ALL
}

/// Tools that make sandboxes and give them back.
pub fn lifecycle() -> &'static [Definition] {
    static ALL: LazyLock<Vec<Definition>> = LazyLock::new(|| sandboxes::definitions().into());
    &ALL
}

/// Tools for what outlives sandboxes. They need none.
pub(crate) fn workspace() -> &'static [Definition] {
    static ALL: LazyLock<Vec<Definition>> =
        LazyLock::new(|| workspace::definitions().into_iter().chain(skills::definitions()).collect());
    &ALL
}

pub fn definition(name: &str) -> Option<&'static Definition> {
    definitions().iter().find(|definition| definition.name == name)
}

/// The schema of an object that has nothing but these.
pub(crate) fn arguments(properties: Value, required: &[&str]) -> Value {
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

/// The schema of an answer, which may have more one day.
pub(crate) fn answer(properties: Value, required: &[&str]) -> Value {
    json!({ "type": "object", "properties": properties, "required": required })
}
