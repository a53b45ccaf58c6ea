//! What tools are done over: a server with its leases, or a sandbox of this machine.

use std::time::Duration;

use async_trait::async_trait;
use cubicle_guest::wire::execute::{Execute, Produced};
use cubicle_model::{ExecId, ExecSpec, Exit, SandboxId};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::ToolError;

/// Has sandboxes, and does in them what tools need.
#[async_trait]
pub trait Bench: Send + Sync {
    /// The sandbox that is meant where a call names none. It is made at the first use, and a use keeps it alive.
    async fn usual_sandbox(&self) -> Result<SandboxId, ToolError>;

    /// Has one of the tools done that work near the files, with its arguments and its answer as `wire::tools` has them.
    async fn near_files(&self, sandbox: SandboxId, tool: &str, arguments: &Value)
    -> Result<Value, ToolError>;

    /// An id for an exec. It is known before the exec starts, so that whoever gives up can end it.
    fn exec_id(&self) -> ExecId;

    /// Starts an exec, which goes on whether or not it is followed.
    async fn start(&self, sandbox: SandboxId, spec: ExecSpec) -> Result<(), ToolError>;

    /// Starts code with what it needs, as an exec, which goes on whether or not it is followed.
    async fn start_code(&self, sandbox: SandboxId, code: Execute) -> Result<(), ToolError>;

    /// The files that code has made, once it has ended.
    async fn produced(&self, sandbox: SandboxId, exec: ExecId) -> Result<Produced, ToolError>;

    /// The output of an exec from a seq on, as whoever asked may see it.
    async fn follow(
        &self,
        sandbox: SandboxId,
        exec: ExecId,
        from_seq: u64,
    ) -> Result<Box<dyn Follow>, ToolError>;

    /// Ends the whole tree of an exec.
    async fn end(&self, sandbox: SandboxId, exec: ExecId, grace: Option<Duration>) -> Result<(), ToolError>;

    /// Sandboxes can be made and given back, or there is only the one.
    fn lifecycle(&self) -> Option<&dyn Lifecycle>;

    /// Files that outlive sandboxes, where there are any.
    fn workspace(&self) -> Option<&dyn Workspace>;
}

/// Provides the files that a tenant's assistants and workers share.
#[async_trait]
pub trait Workspace: Send + Sync {
    /// Does one of the tools for them, with its arguments and its answer as the table has them.
    async fn work(&self, tool: &str, arguments: Value) -> Result<Value, ToolError>;
}

/// The output of an exec as it comes.
#[async_trait]
pub trait Follow: Send {
    /// The next record; none when the exec has ended and its output is complete.
    async fn next(&mut self) -> Result<Option<Output>, ToolError>;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    pub seq: u64,
    pub what: What,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    Stdout(Vec<u8>),
    Stderr(Vec<u8>),
    Exited {
        exit: Exit,
        timed_out: bool,
    },
    /// Something that no tool tells of.
    Other,
}

#[async_trait]
pub trait Lifecycle: Send + Sync {
    async fn create(&self, asked: CreateSandbox) -> Result<SandboxShown, ToolError>;
    async fn list(&self) -> Result<Vec<SandboxShown>, ToolError>;
    async fn release(&self, sandbox: SandboxId) -> Result<(), ToolError>;
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateSandbox {
    #[serde(default)]
    pub template: Option<String>,
    #[serde(default)]
    pub ttl_seconds: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SandboxShown {
    pub sandbox_id: String,
    pub state: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    pub isolation: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_at: Option<String>,
}
