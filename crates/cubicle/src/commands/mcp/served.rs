//! Sandboxes of a server.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use cubicle_api as api;
use cubicle_api::client::{Client, ClientError, OutputStream, exit_of};
use cubicle_guest::wire::execute::{Execute, FileReference, Produced};
use cubicle_model::{ExecId, ExecSpec, Exit, Fault, Kind, SandboxId};
use cubicle_tools::{
    Bench, CreateSandbox, Follow, Lifecycle, Output, SandboxShown, ToolError, What, Workers, Workspace,
};
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::task::AbortHandle;

use crate::attend::server::printed;
use crate::control_plane::{OwnLease, keep_alive};
use crate::output::Stream;

pub(super) struct ServerBench {
    client: Client,
    template: Option<String>,
    state: Mutex<Leases>,
    /// Code whose files nobody has asked for yet.
    codes: Mutex<BTreeMap<ExecId, Running>>,
}

enum Running {
    Still(tokio::task::JoinHandle<Result<api::Executed, ClientError>>),
    Ended(Box<api::Executed>),
}

/// How often it is looked whether code has begun.
const LOOK: Duration = Duration::from_millis(20);

/// Leases that end with this program.
#[derive(Default)]
struct Leases {
    usual: Option<SandboxId>,
    held: BTreeMap<SandboxId, Held>,
}

struct Held {
    lease: OwnLease,
    heartbeats: AbortHandle,
}

impl ServerBench {
    pub(super) fn new(client: Client, template: Option<String>) -> Self {
        Self { client, template, state: Mutex::default(), codes: Mutex::default() }
    }

    pub(super) async fn release(&self) {
        let held = std::mem::take(&mut self.state.lock().await.held);
        for Held { lease, heartbeats } in held.into_values() {
            heartbeats.abort();
            lease.release(&self.client).await;
        }
    }

    async fn acquire(&self, leases: &mut Leases, template: Option<&str>) -> Result<SandboxId, ToolError> {
        let lease = OwnLease::acquire(&self.client, template, api::LeaseEgress::default()).await?;
        let sandbox = lease.sandbox;
        let client = self.client.clone();
        let heartbeats = tokio::spawn(async move { keep_alive(&client, sandbox).await }).abort_handle();
        leases.held.insert(sandbox, Held { lease, heartbeats });
        Ok(sandbox)
    }
}

fn internal(error: tokio::task::JoinError) -> Fault {
    Fault::new(Kind::Internal, "running code broke off").because(error)
}

/// A refusal with the server's own code.
fn refused(error: ClientError) -> ToolError {
    let code = error.code().map(str::to_owned);
    let error = ToolError::from(Fault::from(error));
    match code {
        Some(code) => ToolError { code, ..error },
        None => error,
    }
}

#[async_trait]
impl Bench for ServerBench {
    async fn usual_sandbox(&self) -> Result<SandboxId, ToolError> {
        let mut leases = self.state.lock().await;
        if let Some(usual) = leases.usual {
            let lease = leases.held.get(&usual).map(|held| held.lease.id);
            match lease {
                Some(lease) if !self.client.lease(lease).await.map_err(refused)?.status.has_ended() => {
                    return Ok(usual);
                }
                _ => {
                    if let Some(held) = leases.held.remove(&usual) {
                        held.heartbeats.abort();
                    }
                }
            }
        }
        let sandbox = self.acquire(&mut leases, self.template.as_deref()).await?;
        leases.usual = Some(sandbox);
        Ok(sandbox)
    }

    async fn near_files(
        &self,
        sandbox: SandboxId,
        tool: &str,
        arguments: &Value,
    ) -> Result<Value, ToolError> {
        self.client.call_tool(sandbox, tool, arguments).await.map_err(refused)
    }

    fn exec_id(&self) -> ExecId {
        ExecId::from_random(self.client.random_bits())
    }

    async fn start(&self, sandbox: SandboxId, spec: ExecSpec) -> Result<(), ToolError> {
        let asked = api::CreateExec {
            command: spec.command,
            cwd: spec.cwd,
            env: spec.env,
            stdin: spec.stdin,
            tty: spec.tty,
            timeout_seconds: spec.timeout_seconds,
            exec_id: spec.exec_id.map(|id| id.to_string()),
            policy: None,
            background: true,
            output_limit_bytes: None,
        };
        self.client.create_exec(sandbox, &asked).await.map_err(refused)?;
        Ok(())
    }

    async fn start_code(&self, sandbox: SandboxId, code: Execute) -> Result<(), ToolError> {
        let id = code.exec_id.ok_or_else(|| ToolError::invalid("code has no id"))?;
        let asked = api::Execute {
            tool_name: code.tool_name,
            code: code.code,
            language: code.language,
            requirements: code.requirements,
            env_name: code.env_name,
            timeout_seconds: code.timeout_seconds,
            files: code.files,
            stdin: code.stdin,
            exec_id: Some(id.to_string()),
            ..api::Execute::default()
        };
        let client = self.client.clone();
        let mut running = tokio::spawn(async move { client.execute_in(sandbox, &asked).await });
        // It is followed like any exec as soon as the server knows it: its environment may have to be made first.
        loop {
            tokio::select! {
                // Refused, or ended already.
                ended = &mut running => {
                    let done = ended.map_err(|error| ToolError::from(internal(error)))?.map_err(refused)?;
                    self.codes.lock().await.insert(id, Running::Ended(Box::new(done)));
                    return Ok(());
                }
                () = tokio::time::sleep(LOOK) => {
                    if self.client.exec(id).await.is_ok() {
                        self.codes.lock().await.insert(id, Running::Still(running));
                        return Ok(());
                    }
                }
            }
        }
    }

    async fn produced(&self, _: SandboxId, exec: ExecId) -> Result<Produced, ToolError> {
        let done = match self.codes.lock().await.remove(&exec) {
            None => return Ok(Produced::default()),
            Some(Running::Ended(done)) => done,
            Some(Running::Still(running)) => {
                Box::new(running.await.map_err(|error| ToolError::from(internal(error)))?.map_err(refused)?)
            }
        };
        let reference = |file: api::FileReference| FileReference {
            path: file.name.clone(),
            name: file.name,
            bytes: file.bytes,
        };
        Ok(Produced {
            files_produced: done.files_produced,
            files_referenced: done.files_referenced.into_iter().map(reference).collect(),
            files_incomplete: done.files_incomplete,
        })
    }

    async fn follow(
        &self,
        sandbox: SandboxId,
        exec: ExecId,
        from_seq: u64,
    ) -> Result<Box<dyn Follow>, ToolError> {
        let found = self.client.exec(exec).await.map_err(refused)?;
        if found.sandbox_id != sandbox.to_string() {
            return Err(ToolError::new(Kind::NotFound, "not_found", format!("{exec} is not in {sandbox}"))
                .hint("name the sandbox in which it was started"));
        }
        Ok(Box::new(Following(self.client.output(exec, from_seq))))
    }

    async fn end(&self, _: SandboxId, exec: ExecId, grace: Option<Duration>) -> Result<(), ToolError> {
        self.client.end_exec(exec, grace).await.map_err(refused)
    }

    fn lifecycle(&self) -> Option<&dyn Lifecycle> {
        Some(self)
    }

    fn workspace(&self) -> Option<&dyn Workspace> {
        Some(self)
    }

    fn workers(&self) -> Option<&dyn Workers> {
        Some(self)
    }
}

#[async_trait]
impl Lifecycle for ServerBench {
    async fn create(&self, asked: CreateSandbox) -> Result<SandboxShown, ToolError> {
        if asked.ttl_seconds.is_some() {
            return Err(ToolError::invalid("sandboxes of this client live as long as it does")
                .hint("leave 'ttl_seconds' out"));
        }
        let mut leases = self.state.lock().await;
        let template = asked.template.as_deref().or(self.template.as_deref());
        let sandbox = self.acquire(&mut leases, template).await?;
        Ok(show(self.client.sandbox(sandbox).await.map_err(refused)?))
    }

    async fn list(&self) -> Result<Vec<SandboxShown>, ToolError> {
        let held: Vec<_> = self.state.lock().await.held.keys().copied().collect();
        let mut shown = Vec::new();
        for id in held {
            shown.push(show(self.client.sandbox(id).await.map_err(refused)?));
        }
        Ok(shown)
    }

    async fn release(&self, sandbox: SandboxId) -> Result<(), ToolError> {
        let held = self.state.lock().await.held.remove(&sandbox);
        let Some(Held { lease, heartbeats }) = held else {
            return Err(ToolError::new(
                Kind::NotFound,
                "not_found",
                format!("there is no sandbox {sandbox}"),
            )
            .hint("list_sandboxes names those that there are"));
        };
        heartbeats.abort();
        self.client.release(lease.id).await.map_err(refused)?;
        Ok(())
    }
}

#[async_trait]
impl Workspace for ServerBench {
    async fn work(&self, tool: &str, arguments: Value) -> Result<Value, ToolError> {
        self.client.call_tool_anywhere(tool, &arguments).await.map_err(refused)
    }
}

#[async_trait]
impl Workers for ServerBench {
    async fn work(&self, tool: &str, arguments: Value) -> Result<Value, ToolError> {
        self.client.call_tool_anywhere(tool, &arguments).await.map_err(refused)
    }
}

fn show(sandbox: api::Sandbox) -> SandboxShown {
    SandboxShown {
        sandbox_id: sandbox.sandbox_id,
        state: sandbox.state,
        template: Some(sandbox.template),
        isolation: sandbox.isolation.name().into(),
        created_at: Some(sandbox.created_at.to_string()),
    }
}

struct Following(OutputStream);

#[async_trait]
impl Follow for Following {
    async fn next(&mut self) -> Result<Option<Output>, ToolError> {
        let Some(frame) = self.0.next().await.map_err(refused)? else { return Ok(None) };
        let seq = frame.seq;
        let what = match (exit_of(&frame), printed(&frame)?) {
            (Some(exit), _) => What::Exited { exit, timed_out: exit == Exit::TimedOut },
            (None, Some((Stream::Stdout, bytes))) => What::Stdout(bytes),
            (None, Some((Stream::Stderr, bytes))) => What::Stderr(bytes),
            (None, None) => What::Other,
        };
        Ok(Some(Output { seq, what }))
    }
}
