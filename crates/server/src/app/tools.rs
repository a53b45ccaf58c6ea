//! Tools for agents in leased sandboxes: noted, audited and masked like everything else.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use cubicle_guest::journal::Kind as RecordKind;
use cubicle_guest::wire::Exited;
use cubicle_guest::wire::execute::{Execute, Produced};
use cubicle_model::egress::LeaseEgress;
use cubicle_model::{ExecId, ExecSpec, Exit, Kind, Lease, LeaseId, LeaseStatus, Sandbox, SandboxId, Scope};
use cubicle_store::Page;
use cubicle_tools::{
    Bench, CreateSandbox, Follow, Lifecycle, Output, OverGuest, SandboxShown, ToolError, What, Workspace,
};
use serde_json::Value;
use tokio::task::AbortHandle;
use tracing::debug;

use super::code::CodeRequest;
use super::execs::{ExecRequest, Program};
use super::leases::{Gifts, LeaseRequest};
use super::{App, Caller};
use crate::journal;

/// The workflow of leases that agents ask for by themselves. A use keeps them alive.
const WORKFLOW: &str = "mcp";
const DEFAULT_TEMPLATE: &str = "default";
/// Sandboxes that a list shows.
const MOST_LISTED: u32 = 200;

/// The tools of one caller.
#[derive(Debug, Clone)]
pub(crate) struct CallersBench {
    pub(crate) app: Arc<App>,
    pub(crate) caller: Caller,
    /// Calls that name no sandbox share one within a session; without sessions, all of a caller's do.
    pub(crate) session: Option<String>,
}

/// What is noted of a tool that changes files.
fn deed(tool: &str) -> Option<&'static str> {
    match tool {
        "write_file" | "edit_file" => Some("file.write"),
        "delete_file" => Some("file.remove"),
        "apply_patch" => Some("file.patch"),
        _ => None,
    }
}

impl CallersBench {
    /// Answers and refusals repeat what was in files and in commands.
    pub(super) async fn masked(&self, outcome: Result<Value, ToolError>) -> Result<Value, ToolError> {
        let masks = self.app.masks(self.caller.tenant()).await?;
        match outcome {
            Ok(mut answer) => {
                masks.known.json(&mut answer);
                Ok(answer)
            }
            Err(mut error) => {
                masks.known.text(&mut error.message);
                error.hint.iter_mut().for_each(|hint| masks.known.text(hint));
                Err(error)
            }
        }
    }

    fn usual_workflow(&self) -> String {
        format!("{WORKFLOW}/{}", self.session.as_deref().unwrap_or("caller"))
    }

    /// A lease of the caller that is for its tools.
    async fn usual_lease(&self, workflow: &str) -> Result<Option<Lease>, ToolError> {
        let page = Page { after: None, limit: MOST_LISTED };
        let active = Some(LeaseStatus::Active);
        let leases = self.app.leases(&self.caller, active, Some(workflow.into()), page).await?;
        let own = |lease: &Lease| lease.user == self.caller.principal.user && lease.node == self.app.node;
        Ok(leases.into_iter().find(own))
    }

    async fn acquire(&self, asked: CreateSandbox, workflow: String) -> Result<Lease, ToolError> {
        let request = LeaseRequest {
            template: asked.template.unwrap_or_else(|| DEFAULT_TEMPLATE.into()),
            user: None,
            workflow,
            request: None,
            ttl_seconds: asked.ttl_seconds,
            heartbeat_seconds: None,
            gifts: Gifts::default(),
            egress: LeaseEgress::default(),
            may_wait: false,
            one_shot: false,
            preferred: Vec::new(),
        };
        Ok(self.app.acquire(&self.caller, request).await?.lease)
    }

    /// The lease that is kept alive by this use, where agents asked for it by themselves.
    async fn used(&self, sandbox: SandboxId) -> Result<Option<Lease>, ToolError> {
        let Some(leased) = self.app.live.get(sandbox) else { return Ok(None) };
        let lease = self.app.lease(&self.caller, leased.lease).await?;
        let own = lease.workflow == WORKFLOW || lease.workflow.starts_with(&format!("{WORKFLOW}/"));
        match own {
            true => Ok(Some(self.app.heartbeat(&self.caller, lease.id).await?)),
            false => Ok(None),
        }
    }

    async fn exec_in(&self, sandbox: SandboxId, exec: ExecId) -> Result<cubicle_store::Exec, ToolError> {
        let found = self.app.exec(&self.caller, exec).await?;
        if found.sandbox == sandbox {
            return Ok(found);
        }
        Err(ToolError::new(Kind::NotFound, "not_found", format!("{exec} is not in {sandbox}"))
            .hint("name the sandbox in which it was started"))
    }
}

#[async_trait]
impl Bench for CallersBench {
    async fn usual_sandbox(&self) -> Result<SandboxId, ToolError> {
        self.caller.must(Scope::Run)?;
        let workflow = self.usual_workflow();
        let turn = self.app.bench_turn(format!(
            "{}/{}/{workflow}",
            self.caller.tenant(),
            self.caller.principal.user
        ));
        // Two first calls at once get the same sandbox.
        let _turn = turn.lock().await;
        if let Some(lease) = self.usual_lease(&workflow).await?
            && let Some(sandbox) = lease.sandbox
            && self.app.heartbeat(&self.caller, lease.id).await.is_ok()
        {
            return Ok(sandbox);
        }
        let lease = self.acquire(CreateSandbox::default(), workflow).await?;
        lease.sandbox.ok_or_else(|| self.app.full(0).into())
    }

    async fn near_files(
        &self,
        sandbox: SandboxId,
        tool: &str,
        arguments: &Value,
    ) -> Result<Value, ToolError> {
        self.used(sandbox).await?;
        let Some(action) = deed(tool) else {
            let guest = self.app.files_to_read(&self.caller, sandbox).await?;
            return self.masked(OverGuest(guest).near_files(tool, arguments).await).await;
        };
        let guest = self.app.files_to_write(&self.caller, sandbox).await?;
        let (bench, name, arguments) = (self.clone(), tool.to_owned(), arguments.clone());
        let work = async move {
            let outcome = OverGuest(guest).near_files(&name, &arguments).await;
            let path = arguments["path"].as_str().unwrap_or("/workspace");
            let word = outcome.as_ref().err().map_or("ok", |error| error.kind.code());
            bench.app.note_file(&bench.caller, action, sandbox, path, word).await?;
            outcome
        };
        let outcome = self.app.to_its_end(work).await;
        self.masked(outcome).await
    }

    fn exec_id(&self) -> ExecId {
        ExecId::from_random(self.app.surroundings.bits())
    }

    async fn start(&self, sandbox: SandboxId, spec: ExecSpec) -> Result<(), ToolError> {
        self.used(sandbox).await?;
        let (program, policy) = (Program::Command, None);
        let request = ExecRequest { spec, program, policy, background: true, output_limit: 0 };
        self.app.create_exec(&self.caller, sandbox, request).await?;
        Ok(())
    }

    async fn start_code(&self, sandbox: SandboxId, execute: Execute) -> Result<(), ToolError> {
        self.used(sandbox).await?;
        let request = CodeRequest { execute, background: true, output_limit: 0 };
        self.app.execute(&self.caller, sandbox, request).await?;
        Ok(())
    }

    async fn produced(&self, sandbox: SandboxId, exec: ExecId) -> Result<Produced, ToolError> {
        self.exec_in(sandbox, exec).await?;
        let guest = self.app.files_to_read(&self.caller, sandbox).await?;
        OverGuest(guest).produced(exec).await
    }

    async fn follow(
        &self,
        sandbox: SandboxId,
        exec: ExecId,
        from_seq: u64,
    ) -> Result<Box<dyn Follow>, ToolError> {
        let exec = self.exec_in(sandbox, exec).await?;
        let lease = self.used(sandbox).await?;
        let output = self.app.output(exec, from_seq).await?;
        let heartbeats = lease.map(|lease| KeptAlive::new(self, lease.id, lease.ttl_seconds));
        Ok(Box::new(Following { output, _heartbeats: heartbeats }))
    }

    async fn end(&self, sandbox: SandboxId, exec: ExecId, grace: Option<Duration>) -> Result<(), ToolError> {
        self.exec_in(sandbox, exec).await?;
        Ok(self.app.end_exec(&self.caller, exec, grace).await?)
    }

    fn lifecycle(&self) -> Option<&dyn Lifecycle> {
        Some(self)
    }

    fn workspace(&self) -> Option<&dyn Workspace> {
        Some(self)
    }
}

#[async_trait]
impl Lifecycle for CallersBench {
    async fn create(&self, asked: CreateSandbox) -> Result<SandboxShown, ToolError> {
        let lease = self.acquire(asked, WORKFLOW.into()).await?;
        let id = lease.sandbox.ok_or_else(|| self.app.full(0))?;
        Ok(show(self.app.sandbox(&self.caller, id).await?))
    }

    async fn list(&self) -> Result<Vec<SandboxShown>, ToolError> {
        let page = Page { after: None, limit: MOST_LISTED };
        let sandboxes = self.app.sandboxes(&self.caller, None, false, page).await?;
        let own = |sandbox: &Sandbox| sandbox.user.as_ref() == Some(&self.caller.principal.user);
        let own = sandboxes.into_iter().filter(|sandbox| own(sandbox) && sandbox.lease.is_some());
        let mut shown: Vec<_> = own.map(show).collect();
        shown.sort_by(|a, b| (&a.created_at, &a.sandbox_id).cmp(&(&b.created_at, &b.sandbox_id)));
        Ok(shown)
    }

    async fn release(&self, sandbox: SandboxId) -> Result<(), ToolError> {
        let found = self.app.sandbox(&self.caller, sandbox).await?;
        if let Some(lease) = found.lease {
            self.app.release(&self.caller, lease).await?;
        }
        Ok(())
    }
}

fn show(sandbox: Sandbox) -> SandboxShown {
    SandboxShown {
        sandbox_id: sandbox.id.to_string(),
        state: sandbox.state.name().into(),
        template: Some(sandbox.template.name.to_string()),
        isolation: sandbox.isolation.name().into(),
        created_at: Some(sandbox.created_at.to_string()),
    }
}

/// Masked output. Whoever reads it keeps the sandbox alive.
struct Following {
    output: journal::Output,
    _heartbeats: Option<KeptAlive>,
}

#[async_trait]
impl Follow for Following {
    async fn next(&mut self) -> Result<Option<Output>, ToolError> {
        let Some(shared) = self.output.next().await? else { return Ok(None) };
        let frame = &shared.frame;
        let what = match frame.kind {
            RecordKind::Stdout => What::Stdout(frame.bytes.to_vec()),
            RecordKind::Stderr => What::Stderr(frame.bytes.to_vec()),
            RecordKind::Exit => match serde_json::from_slice::<Exited>(&frame.bytes) {
                Ok(exited) => What::Exited { exit: exited.exit, timed_out: exited.timed_out },
                Err(_) => What::Exited { exit: Exit::Unknown, timed_out: false },
            },
            _ => What::Other,
        };
        Ok(Some(Output { seq: frame.seq, what }))
    }
}

/// Renews a lease until it is dropped.
struct KeptAlive(AbortHandle);

impl KeptAlive {
    fn new(bench: &CallersBench, lease: LeaseId, ttl_seconds: u32) -> Self {
        let (app, caller) = (Arc::clone(&bench.app), bench.caller.clone());
        let pause = Duration::from_secs(u64::from(ttl_seconds)) / 3;
        let task = tokio::spawn(async move {
            loop {
                tokio::time::sleep(pause.max(Duration::from_millis(300))).await;
                if let Err(fault) = app.heartbeat(&caller, lease).await {
                    // Whoever reads sees what became of the sandbox.
                    debug!(%lease, error = %fault, "a lease in use was not renewed");
                }
            }
        });
        Self(task.abort_handle())
    }
}

impl Drop for KeptAlive {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl App {
    /// One at a time finds or makes the sandbox that calls without a name share.
    fn bench_turn(&self, whose: String) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self.bench_turns.lock().unwrap_or_else(PoisonError::into_inner);
        turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        Arc::clone(turns.entry(whose).or_default())
    }
}
