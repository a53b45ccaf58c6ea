//! Sandboxes as their users see them.

use std::sync::Arc;

use cubicle_guest::client::Guest;
use cubicle_guest::wire::Health;
use cubicle_model::{Fault, Kind, Sandbox, SandboxId, SandboxState, Scope};
use cubicle_store::{Page, SandboxFilter};

use super::live::Leased;
use super::{App, Caller};
use crate::spans;

impl App {
    /// A sandbox that exists for the caller, also one of which nothing is left.
    pub(crate) async fn sandbox(&self, caller: &Caller, id: SandboxId) -> Result<Sandbox, Fault> {
        caller.must(Scope::Read)?;
        let sandbox = self.store.sandbox(id).await?;
        let visible = |sandbox: &Sandbox| match (&sandbox.tenant, &sandbox.user) {
            (Some(tenant), Some(user)) => caller.sees(tenant, user),
            // The pool is nobody's.
            _ => caller.principal.may(Scope::Admin),
        };
        sandbox.filter(visible).ok_or_else(|| no_sandbox(id))
    }

    pub(crate) async fn sandboxes(
        &self,
        caller: &Caller,
        state: Option<SandboxState>,
        gone: bool,
        page: Page,
    ) -> Result<Vec<Sandbox>, Fault> {
        caller.must(Scope::Read)?;
        // Administrators see the pool too.
        let tenant = (!caller.principal.may(Scope::Admin)).then(|| caller.tenant().clone());
        self.store.sandboxes(SandboxFilter { tenant, user: caller.listed_user(), state, gone }, page).await
    }

    /// A sandbox that the caller has and that can be used now.
    pub(crate) async fn in_use(&self, caller: &Caller, id: SandboxId) -> Result<Arc<Leased>, Fault> {
        if let Some(leased) = self.live.get(id) {
            return match caller.sees(&leased.tenant, &leased.user) {
                true => {
                    spans::leased(leased.lease, Some(id));
                    Ok(leased)
                }
                false => Err(no_sandbox(id)),
            };
        }
        // Not here: the answer says why.
        let sandbox = self.sandbox(caller, id).await?;
        if sandbox.node != self.node {
            let place = self.store.node(sandbox.node).await?;
            let place = place.map_or_else(|| sandbox.node.to_string(), |(address, _)| address);
            return Err(
                Fault::new(Kind::Conflict, format!("{id} is on another server")).hint(format!("ask {place}"))
            );
        }
        Err(Fault::new(Kind::Conflict, format!("{id} is {} and cannot be used", sandbox.state.name()))
            .hint("acquire a lease, and use its sandbox"))
    }

    pub(crate) async fn guest_of(&self, caller: &Caller, id: SandboxId) -> Result<Guest, Fault> {
        self.in_use(caller, id).await?.guest().await
    }

    pub(crate) async fn receipt(&self, caller: &Caller, id: SandboxId) -> Result<serde_json::Value, Fault> {
        caller.must(Scope::Read)?;
        self.in_use(caller, id).await?;
        let seen = self.backend.observe(id).await?.ok_or_else(|| no_sandbox(id))?;
        let receipt = seen.receipt.ok_or_else(|| no_sandbox(id))?;
        serde_json::to_value(receipt)
            .map_err(|error| Fault::new(Kind::Internal, "the receipt has no JSON form").because(error))
    }

    pub(crate) async fn health_of(&self, caller: &Caller, id: SandboxId) -> Result<Health, Fault> {
        caller.must(Scope::Read)?;
        Ok(self.guest_of(caller, id).await?.health().await?)
    }

    /// Ends what runs in a sandbox and empties its workspace, but for caches.
    pub(crate) async fn clean(&self, id: SandboxId) -> Result<(), Fault> {
        let leased = self.live.get(id).ok_or_else(|| no_sandbox(id))?;
        let guest = leased.guest().await?;
        for exec in guest.list_execs().await? {
            if exec.state != cubicle_guest::wire::ExecState::Ended {
                guest.end(exec.exec_id, Some(std::time::Duration::ZERO)).await?;
            }
        }
        for (directory, kept) in [("/workspace", &[".cache", "tools"][..]), ("/tmp", &[][..])] {
            for entry in guest.list(directory, false).await?.entries {
                if !kept.contains(&entry.name.as_str()) {
                    guest.remove(&entry.path, true).await?;
                }
            }
        }
        Ok(())
    }
}

pub(crate) fn no_sandbox(id: SandboxId) -> Fault {
    Fault::new(Kind::NotFound, format!("there is no sandbox {id}")).hint("'cubicle ps' shows what there is")
}
