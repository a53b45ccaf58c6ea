//! Files of sandboxes. Every write is in the audit log.

use cubicle_guest::client::Guest;
use cubicle_model::{Fault, SandboxId, Scope};

use super::{App, Caller};

impl App {
    pub(crate) async fn files_to_read(&self, caller: &Caller, id: SandboxId) -> Result<Guest, Fault> {
        caller.must(Scope::Read)?;
        self.guest_of(caller, id).await
    }

    pub(crate) async fn files_to_write(&self, caller: &Caller, id: SandboxId) -> Result<Guest, Fault> {
        caller.must(Scope::Run)?;
        self.guest_of(caller, id).await
    }

    /// Notes that something was done to a file, whatever came of it.
    pub(crate) async fn file_deed<T>(
        &self,
        caller: &Caller,
        action: &str,
        sandbox: SandboxId,
        path: &str,
        outcome: Result<T, Fault>,
    ) -> Result<T, Fault> {
        let word = outcome.as_ref().err().map_or("ok", |fault| fault.kind().code());
        self.note_file(caller, action, sandbox, path, word).await?;
        outcome
    }

    /// The same with what came of it in one word.
    pub(crate) async fn note_file(
        &self,
        caller: &Caller,
        action: &str,
        sandbox: SandboxId,
        path: &str,
        word: &str,
    ) -> Result<(), Fault> {
        let path = path.chars().take(1024).collect();
        self.store
            .record(caller.context(self), action.into(), sandbox.to_string(), word.into(), Some(path))
            .await
    }
}
