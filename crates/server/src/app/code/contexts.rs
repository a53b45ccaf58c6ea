//! Contexts: interpreters that keep their state. Each is an exec, and what its cells print and show is in its journal.

use std::sync::Arc;

use cubicle_guest::client::{CellStream, Guest};
use cubicle_guest::wire::context::{Cell, Context, CreateContext};
use cubicle_model::{Command, ExecId, ExecSpec, Fault, SandboxId, Scope};

use tracing::warn;

use super::{AskedEnvironment, ContextStart};
use crate::app::execs::{ExecRequest, Program};
use crate::app::{App, Caller};
use crate::journal::OwnedFrame;
use crate::redaction::frames::{FrameMask, PATIENCE};

/// The frames of one cell, masked.
#[derive(Debug)]
pub(crate) struct CellOutputs {
    stream: CellStream,
    mask: FrameMask,
    ended: bool,
}

impl CellOutputs {
    /// The next frame; none when the cell has ended.
    pub(crate) async fn next(&mut self) -> Result<Option<OwnedFrame>, Fault> {
        loop {
            if let Some((_, frame)) = self.mask.pop() {
                return Ok(Some(frame));
            }
            if self.ended {
                return Ok(None);
            }
            let next = match self.mask.is_idle() {
                true => self.stream.next().await?,
                // Something waits for what decides whether it is a secret, and not for long.
                false => match tokio::time::timeout(PATIENCE, self.stream.next()).await {
                    Ok(next) => next?,
                    Err(_) => {
                        self.mask.release();
                        match self.mask.pop() {
                            Some((_, frame)) => return Ok(Some(frame)),
                            None => self.stream.next().await?,
                        }
                    }
                },
            };
            match next {
                Some(frame) => {
                    let (exec, mut frame) = (frame.exec, OwnedFrame::of(&frame));
                    if !frame.is_output() {
                        frame.bytes = self.mask.masks().known.json_bytes(&frame.bytes);
                    }
                    self.mask.push(exec, frame);
                }
                None => {
                    self.ended = true;
                    self.mask.finish();
                }
            }
        }
    }
}

impl App {
    pub(crate) async fn create_context(
        self: &Arc<Self>,
        caller: &Caller,
        sandbox: SandboxId,
        asked: CreateContext,
        environment: AskedEnvironment<'_>,
    ) -> Result<Context, Fault> {
        caller.must(Scope::Run)?;
        let leased = self.in_use(caller, sandbox).await?;
        let policy = self.index_policy(leased.lease, environment.index).await?;
        let template = self.find_template(&leased.tenant, leased.template.name.as_str()).await?;
        let wanted = environment.or_of(&template);
        let environment =
            self.environment_for(caller, Some((sandbox, &leased)), policy.as_ref(), wanted).await?;
        let name = environment.as_ref().map(|chosen| chosen.name.clone());
        let environment = environment.and_then(|chosen| chosen.ready);
        let asked = CreateContext { env_name: name, ..asked };
        let language = asked.language.clone().unwrap_or_else(|| "python".into());
        let id = asked.exec_id.unwrap_or_else(|| ExecId::from_random(self.surroundings.bits()));
        let spec = ExecSpec {
            cwd: asked.cwd.clone(),
            exec_id: Some(id),
            // It lives as long as its sandbox, unless somebody deletes it.
            timeout_seconds: None,
            ..ExecSpec::new(Command::Argv(vec![language, "context".into()]))
        };
        let request = ExecRequest {
            spec,
            program: Program::Context(Box::new(ContextStart { asked, environment })),
            policy: None,
            background: true,
            output_limit: 0,
        };
        self.create_exec(caller, sandbox, request).await?;
        Ok(leased.guest().await?.context(id).await?)
    }

    pub(crate) async fn contexts(&self, caller: &Caller, sandbox: SandboxId) -> Result<Vec<Context>, Fault> {
        caller.must(Scope::Read)?;
        Ok(self.guest_of(caller, sandbox).await?.contexts().await?)
    }

    pub(crate) async fn context(
        &self,
        caller: &Caller,
        sandbox: SandboxId,
        id: ExecId,
    ) -> Result<Context, Fault> {
        caller.must(Scope::Read)?;
        Ok(self.guest_of(caller, sandbox).await?.context(id).await?)
    }

    async fn guest_to_run_in(&self, caller: &Caller, sandbox: SandboxId) -> Result<Guest, Fault> {
        caller.must(Scope::Run)?;
        self.guest_of(caller, sandbox).await
    }

    /// Runs a cell. Its frames come as they are written; a reader that leaves does not end it.
    pub(crate) async fn execute_cell(
        self: &Arc<Self>,
        caller: &Caller,
        sandbox: SandboxId,
        id: ExecId,
        cell: Cell,
    ) -> Result<CellOutputs, Fault> {
        let guest = self.guest_to_run_in(caller, sandbox).await?;
        let masks = self.masks(caller.tenant()).await?;
        let stream = guest.execute_cell(id, &cell).await?;
        // The context was noted before it began. That a cell was run is noted while it runs.
        let (app, context) = (Arc::clone(self), caller.context(self));
        self.tasks.spawn(async move {
            let (action, what) = ("context.execute", id.to_string());
            let note = || app.store.record(context.clone(), action.into(), what.clone(), "ok".into(), None);
            if let Err(fault) = app.insist(note).await {
                warn!(context = %id, error = %fault, "a cell is not in the audit log");
            }
        });
        Ok(CellOutputs { stream, mask: FrameMask::new(masks), ended: false })
    }

    pub(crate) async fn interrupt_context(
        &self,
        caller: &Caller,
        sandbox: SandboxId,
        id: ExecId,
    ) -> Result<(), Fault> {
        self.guest_to_run_in(caller, sandbox).await?.interrupt_context(id).await?;
        Ok(())
    }

    pub(crate) async fn restart_context(
        self: &Arc<Self>,
        caller: &Caller,
        sandbox: SandboxId,
        id: ExecId,
    ) -> Result<Context, Fault> {
        caller.must(Scope::Run)?;
        let leased = self.in_use(caller, sandbox).await?;
        let context = leased.guest().await?.restart_context(id).await?;
        // Its interpreter is another exec now, and is noted as one.
        let command = vec![context.language.clone(), "context".into()];
        let spec = ExecSpec { exec_id: Some(context.exec_id), ..ExecSpec::new(Command::Argv(command)) };
        self.note_running(caller, &leased, spec).await?;
        Ok(context)
    }

    pub(crate) async fn delete_context(
        &self,
        caller: &Caller,
        sandbox: SandboxId,
        id: ExecId,
    ) -> Result<(), Fault> {
        self.guest_to_run_in(caller, sandbox).await?.delete_context(id).await?;
        Ok(())
    }
}
