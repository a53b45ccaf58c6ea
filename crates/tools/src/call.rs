//! Doing a tool.

use async_trait::async_trait;
use cubicle_model::{ExecId, Kind, SandboxId};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::bench::Bench;
use crate::error::ToolError;
use crate::{code, definitions, execs};

/// Who is told of what a tool does while it does it.
#[async_trait]
pub trait Watch: Send + Sync {
    /// An exec that lasts as long as the call is about to start.
    fn starts(&self, _sandbox: SandboxId, _exec: ExecId) {}

    /// Whether anybody listens to `output`.
    fn listens(&self) -> bool {
        false
    }

    /// Something was printed. `written` are all bytes so far.
    async fn output(&self, _written: u64, _text: &str) {}
}

/// Nobody.
#[derive(Debug, Clone, Copy)]
pub struct Quiet;

impl Watch for Quiet {}

/// Does a tool in a sandbox. The answer is as its definition says.
pub async fn call(
    bench: &dyn Bench,
    sandbox: SandboxId,
    name: &str,
    arguments: Value,
    watch: &dyn Watch,
) -> Result<Value, ToolError> {
    let Some(definition) = definitions::definition(name) else {
        return call_without_sandbox(bench, name, arguments).await;
    };
    check(definition, &arguments)?;
    match definition.name {
        "execute" => answer(execs::execute(bench, sandbox, parsed(arguments)?, watch).await?),
        "exec_output" => answer(execs::exec_output(bench, sandbox, parsed(arguments)?).await?),
        "exec_stop" => answer(execs::exec_stop(bench, sandbox, parsed(arguments)?).await?),
        "run_code" => answer(code::run_code(bench, sandbox, parsed(arguments)?, watch).await?),
        near_files => bench.near_files(sandbox, near_files, &arguments).await,
    }
}

/// Does a tool that needs no sandbox.
pub async fn call_without_sandbox(
    bench: &dyn Bench,
    name: &str,
    arguments: Value,
) -> Result<Value, ToolError> {
    if let Some(definition) = definitions::workspace().iter().find(|definition| definition.name == name) {
        check(definition, &arguments)?;
        let workspace = bench.workspace().ok_or_else(no_such_tool)?;
        return workspace.work(definition.name, arguments).await;
    }
    Err(match definitions::definition(name) {
        Some(_) => ToolError::new(Kind::Invalid, "needs_sandbox", format!("'{name}' is done in a sandbox"))
            .hint(format!("POST /api/v1/sandboxes/SANDBOX/tools/{name}")),
        None => no_such_tool(),
    })
}

fn check(definition: &definitions::Definition, arguments: &Value) -> Result<(), ToolError> {
    if !arguments.is_object() {
        return Err(ToolError::invalid("the arguments are not a JSON object"));
    }
    if let Value::Object(given) = arguments
        && let Some(name) = definition.unknown_argument(given.keys())
    {
        let known = definition.argument_names().collect::<Vec<_>>().join(", ");
        return Err(ToolError::invalid(format!("there is no argument '{}'", name.escape_default()))
            .hint(format!("the arguments are {known}")));
    }
    Ok(())
}

pub(crate) fn no_such_tool() -> ToolError {
    ToolError::new(Kind::NotFound, "no_such_tool", "there is no such tool")
        .hint("GET /api/v1/tools, or tools/list, names those that there are")
}

pub(crate) fn parsed<T: DeserializeOwned>(arguments: Value) -> Result<T, ToolError> {
    serde_json::from_value(arguments).map_err(|error| ToolError::invalid(error.to_string()))
}

pub(crate) fn answer(answer: impl Serialize) -> Result<Value, ToolError> {
    serde_json::to_value(answer).map_err(|error| {
        ToolError::new(Kind::Internal, "internal", format!("the answer has no form: {error}"))
    })
}
