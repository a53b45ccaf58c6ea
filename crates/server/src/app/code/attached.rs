//! What sandboxes of this node have attached: environments, and interpreters that are ready.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cubicle_envs::Ready;
use cubicle_guest::client::Guest;
use cubicle_guest::wire::execute::Environment;
use cubicle_model::{Binding, Fault, Mount, SandboxId};
use tracing::debug;

use crate::app::App;

/// Of one sandbox.
#[derive(Debug, Default)]
pub(crate) struct Attached {
    /// One at a time attaches.
    turn: tokio::sync::Mutex<()>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Whether the sandbox was asked what an earlier server attached.
    asked: bool,
    /// Keys by the names that the sandbox knows them by.
    names: BTreeMap<String, String>,
    /// As long as these are here they are not evicted.
    ready: BTreeMap<String, Arc<Ready>>,
    /// Keys of environments whose interpreter waits; the empty one is the template's own.
    interpreters: BTreeSet<String>,
}

impl Attached {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It was made just now: nobody has attached anything.
    pub(crate) fn is_new(&self) {
        self.state().asked = true;
    }

    pub(crate) fn keys(&self) -> Vec<String> {
        self.state().names.values().cloned().collect()
    }

    pub(crate) fn interpreters(&self) -> Vec<String> {
        self.state().interpreters.iter().cloned().collect()
    }

    pub(crate) fn has_interpreter(&self, key: &str) {
        self.state().interpreters.insert(key.to_owned());
    }

    /// Whether an environment goes by a name here.
    pub(crate) fn knows(&self, name: &str) -> bool {
        self.state().names.contains_key(name)
    }

    pub(crate) fn detached(&self, name: &str) {
        let mut state = self.state();
        if let Some(key) = state.names.remove(name) {
            state.interpreters.remove(&key);
        }
    }

    fn has(&self, ready: &Ready) -> bool {
        let state = self.state();
        state.ready.contains_key(ready.key.as_str())
            && state.names.get(ready.name.as_str()).is_some_and(|key| key == ready.key.as_str())
    }

    fn note(&self, ready: &Arc<Ready>) {
        let mut state = self.state();
        state.names.insert(ready.name.to_string(), ready.key.to_string());
        state.ready.insert(ready.key.to_string(), Arc::clone(ready));
    }
}

impl App {
    /// Attaches an environment to a sandbox, unless it has it. Twice is as good as once.
    pub(crate) async fn attach(
        &self,
        guest: &Guest,
        sandbox: SandboxId,
        environment: Option<&Arc<Ready>>,
    ) -> Result<(), Fault> {
        let Some(ready) = environment else { return Ok(()) };
        let attached = self.live.attached(sandbox);
        if attached.has(ready) {
            return Ok(());
        }
        let _turn = attached.turn.lock().await;
        if attached.has(ready) {
            return Ok(());
        }
        if !attached.state().ready.contains_key(ready.key.as_str()) {
            let mounts = mounts_of(ready);
            let binding = Binding { mounts, ..Binding::default() };
            self.changing("attach", sandbox, self.backend.bind(sandbox, &binding)).await?;
        }
        guest.attach_env(&shown(ready, self.now())).await?;
        attached.note(ready);
        debug!(%sandbox, key = %ready.key, name = %ready.name, "environment attached");
        Ok(())
    }

    /// Asks a sandbox, once, what an earlier server attached to it: none of it may be evicted.
    pub(crate) async fn learn_attached(&self, guest: &Guest, sandbox: SandboxId) -> Result<(), Fault> {
        let attached = self.live.attached(sandbox);
        if attached.state().asked {
            return Ok(());
        }
        let environments = guest.envs().await?;
        let mut state = attached.state();
        state.asked = true;
        for Environment { name, key, .. } in environments {
            state.names.entry(name).or_insert(key);
        }
        Ok(())
    }
}

/// What has to be mounted for an environment.
pub(super) fn mounts_of(ready: &Ready) -> Vec<Mount> {
    let mount =
        |source: &Path, target: &str| Mount { source: source.into(), target: target.into(), read_only: true };
    let prefix = ready.prefix.iter().map(|prefix| mount(&prefix.source, &prefix.target));
    std::iter::once(mount(&ready.path, &ready.target)).chain(prefix).collect()
}

fn shown(ready: &Ready, now: cubicle_model::Timestamp) -> Environment {
    Environment {
        name: ready.name.to_string(),
        packages: ready.packages.clone(),
        python_version: ready.python_version.clone(),
        created_at: ready.created_at,
        last_used_at: now,
        python: ready.python.clone(),
        modules: ready.modules.clone(),
        key: ready.key.to_string(),
    }
}
