//! Sandboxes of this machine, without a server.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use cubicle_backend::{Backend, Seen, State};
use cubicle_guest::client::Guest;
use cubicle_guest::wire::execute::{Execute, Produced};
use cubicle_model::{ExecId, ExecSpec, Fault, Kind, Lifetime, Medium, Placement, SandboxId};
use cubicle_tools::{
    Bench, CreateSandbox, Follow, Lifecycle, OverGuest, SandboxShown, ToolError, Workers, Workspace,
    workspace,
};
use cubicle_workspace::SharedWorkspace;
use serde_json::Value;
use tokio::task::AbortHandle;

use crate::args::SandboxOptions;
use crate::commands::run::{default_wall, placement};
use crate::context::{Context, guest, random_bits};

/// A client that talks to us for so many sandboxes has forgotten some.
const MOST_SANDBOXES: usize = 16;
/// Whose files tools without a server share: the tenant that a server has from the beginning.
const TENANT: &str = "default";
/// A sandbox ends by itself at its deadline. As long as the client is there it is put off, well before.
const EXTEND_EVERY: Duration = Duration::from_secs(600);

pub(super) struct LocalBench {
    backend: Arc<dyn Backend>,
    /// What the sandbox that calls without a name share is made from.
    place: Placement,
    sandboxes: Mutex<BTreeMap<SandboxId, Sandbox>>,
    usual: tokio::sync::Mutex<SandboxId>,
    /// Where files that outlive sandboxes are.
    shared: PathBuf,
}

struct Sandbox {
    guest: Guest,
    /// Puts its deadline off.
    attendance: Option<AbortHandle>,
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        self.attendance.iter().for_each(AbortHandle::abort);
    }
}

impl LocalBench {
    /// Opens the backend and makes the first sandbox, so that what cannot work is said before a client waits for it.
    pub(super) async fn make(options: &SandboxOptions, context: &Context) -> Result<Self, Fault> {
        let place = placement(options, Lifetime::Bound, "cubicle mcp".into(), context)?;
        let mountable = match &place.workspace {
            Medium::Memory => vec![],
            Medium::Directory(path) => vec![path.clone()],
        };
        let backend = context.backend_with(mountable).await?;
        let usual = tokio::sync::Mutex::new(place.id);
        let shared = context.shared_dir();
        let bench = Self { backend, place, sandboxes: Mutex::default(), usual, shared };
        bench.add(bench.place.clone()).await?;
        Ok(bench)
    }

    fn sandboxes(&self) -> MutexGuard<'_, BTreeMap<SandboxId, Sandbox>> {
        self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn add(&self, place: Placement) -> Result<(), Fault> {
        let id = place.id;
        let seen = self.backend.ensure(&place).await?;
        let guest = guest(&self.backend, id).await?;
        let attendance = default_wall(&seen).map(|seconds| attend(guest.clone(), seconds));
        self.sandboxes().insert(id, Sandbox { guest, attendance });
        Ok(())
    }

    fn over(&self, id: SandboxId) -> Result<OverGuest, ToolError> {
        let guest = self.sandboxes().get(&id).map(|sandbox| sandbox.guest.clone());
        guest.map(OverGuest).ok_or_else(|| {
            ToolError::new(Kind::NotFound, "not_found", format!("there is no sandbox {id}"))
                .hint("list_sandboxes names those that there are")
        })
    }

    /// Leaves nothing behind.
    pub(super) async fn destroy_all(&self) {
        let ids: Vec<_> = std::mem::take(&mut *self.sandboxes()).into_keys().collect();
        for id in ids {
            // A bound sandbox ends with this process in any case, and gc makes up for what is left.
            _ = self.backend.destroy(id).await;
        }
    }

    async fn is_there(&self, id: SandboxId) -> bool {
        if !self.sandboxes().contains_key(&id) {
            return false;
        }
        !matches!(self.backend.observe(id).await, Ok(None | Some(Seen { state: State::Ended, .. })))
    }
}

/// Extends the deadline of a sandbox until it is aborted.
fn attend(guest: Guest, seconds: u64) -> AbortHandle {
    let pause = EXTEND_EVERY.min(Duration::from_secs(seconds) / 2);
    let task = tokio::spawn(async move {
        loop {
            tokio::time::sleep(pause).await;
            _ = guest.set_deadline(Duration::from_secs(seconds)).await;
        }
    });
    task.abort_handle()
}

#[async_trait]
impl Bench for LocalBench {
    async fn usual_sandbox(&self) -> Result<SandboxId, ToolError> {
        let mut usual = self.usual.lock().await;
        if self.is_there(*usual).await {
            return Ok(*usual);
        }
        // It ended, out of memory perhaps, or was given back.
        let gone = std::mem::replace(&mut *usual, SandboxId::from_random(random_bits()));
        self.sandboxes().remove(&gone);
        _ = self.backend.destroy(gone).await;
        self.add(Placement { id: *usual, ..self.place.clone() }).await?;
        Ok(*usual)
    }

    async fn near_files(
        &self,
        sandbox: SandboxId,
        tool: &str,
        arguments: &Value,
    ) -> Result<Value, ToolError> {
        self.over(sandbox)?.near_files(tool, arguments).await
    }

    fn exec_id(&self) -> ExecId {
        ExecId::from_random(random_bits())
    }

    async fn start(&self, sandbox: SandboxId, spec: ExecSpec) -> Result<(), ToolError> {
        self.over(sandbox)?.start(&spec).await
    }

    async fn start_code(&self, sandbox: SandboxId, code: Execute) -> Result<(), ToolError> {
        self.over(sandbox)?.start_code(&code).await
    }

    async fn produced(&self, sandbox: SandboxId, exec: ExecId) -> Result<Produced, ToolError> {
        self.over(sandbox)?.produced(exec).await
    }

    async fn follow(
        &self,
        sandbox: SandboxId,
        exec: ExecId,
        from_seq: u64,
    ) -> Result<Box<dyn Follow>, ToolError> {
        self.over(sandbox)?.follow(exec, from_seq).await
    }

    async fn end(&self, sandbox: SandboxId, exec: ExecId, grace: Option<Duration>) -> Result<(), ToolError> {
        self.over(sandbox)?.end(exec, grace).await
    }

    fn lifecycle(&self) -> Option<&dyn Lifecycle> {
        Some(self)
    }

    fn workspace(&self) -> Option<&dyn Workspace> {
        Some(self)
    }

    fn workers(&self) -> Option<&dyn Workers> {
        None
    }
}

#[async_trait]
impl Lifecycle for LocalBench {
    async fn create(&self, asked: CreateSandbox) -> Result<SandboxShown, ToolError> {
        if asked != CreateSandbox::default() {
            return Err(ToolError::invalid("a sandbox without a server has no template and no time to live")
                .hint("leave 'template' and 'ttl_seconds' out"));
        }
        if self.sandboxes().len() >= MOST_SANDBOXES {
            return Err(ToolError::new(Kind::Full, "full", format!("there are {MOST_SANDBOXES} sandboxes"))
                .hint("give one back with release_sandbox"));
        }
        let id = SandboxId::from_random(random_bits());
        // A directory of the host is the workspace of one sandbox alone.
        self.add(Placement { id, workspace: Medium::Memory, ..self.place.clone() }).await?;
        Ok(self.shown(id))
    }

    async fn list(&self) -> Result<Vec<SandboxShown>, ToolError> {
        let ids: Vec<_> = self.sandboxes().keys().copied().collect();
        Ok(ids.into_iter().map(|id| self.shown(id)).collect())
    }

    async fn release(&self, sandbox: SandboxId) -> Result<(), ToolError> {
        self.over(sandbox)?;
        self.sandboxes().remove(&sandbox);
        Ok(self.backend.destroy(sandbox).await?)
    }
}

/// In the data directory, where a server of it would find the same files.
#[async_trait]
impl Workspace for LocalBench {
    async fn work(&self, tool: &str, arguments: Value) -> Result<Value, ToolError> {
        let (directory, tool) = (self.shared.clone(), tool.to_owned());
        let working = tokio::task::spawn_blocking(move || {
            let tenant = TENANT.parse().map_err(|error| Fault::new(Kind::Internal, format!("{error}")))?;
            let tree = SharedWorkspace::open(directory)?.of(&tenant);
            workspace::work(&tree, &tool, arguments)
        });
        working
            .await
            .map_err(|error| Fault::new(Kind::Internal, "work on shared files broke off").because(error))?
    }
}

impl LocalBench {
    fn shown(&self, id: SandboxId) -> SandboxShown {
        SandboxShown {
            sandbox_id: id.to_string(),
            state: "leased".into(),
            template: None,
            isolation: self.place.isolation.name().into(),
            created_at: None,
        }
    }
}
