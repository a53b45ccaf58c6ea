//! What goes, and when.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cubicle_model::{Fault, Kind, Name};
use tracing::warn;

use super::Environments;
use super::held::Tree;
use super::state::lock;
use crate::build::{blocking, discard, io_fault};
use crate::files::{self, Locked};
use crate::{Candidate, EnvKey, evict, parts, work};

impl Environments {
    /// Takes the name from the tenant. The tree goes with it when nobody else has or uses it, and otherwise some day.
    pub async fn delete(self: &Arc<Self>, tenant: &Name, name: &Name) -> Result<(), Fault> {
        let (own, tenant, name) = (self.clone(), tenant.clone(), name.clone());
        blocking(move || {
            let taken = lock(&own.state).names.take_back(&tenant, &name).map_err(io_fault)?;
            let Some(named) = taken else {
                return Err(Fault::new(Kind::NotFound, format!("there is no environment '{name}'"))
                    .hint("list those that there are"));
            };
            let is_last = !lock(&own.state).names.mention(&named.key);
            if is_last {
                own.remove(&named.key)?;
                parts::sweep(&own.layout);
            }
            Ok(())
        })
        .await
    }

    /// Removes what is too old or too much, and what makers left that died. `mounted` are the trees that living sandboxes
    /// have: they stay. Until this was called once, nothing is removed at all.
    pub async fn sweep(self: &Arc<Self>, mounted: &BTreeSet<EnvKey>) -> Result<Vec<EnvKey>, Fault> {
        lock(&self.state).mounted = Some(mounted.iter().cloned().collect());
        let own = self.clone();
        let gone = blocking(move || {
            work::sweep(&own.layout.work());
            own.keep_times();
            let gone = own.evict();
            // Those of a maker that died, too.
            parts::sweep(&own.layout);
            Ok(gone)
        })
        .await?;
        self.trim_cache().await;
        Ok(gone)
    }

    /// Removes what has to go. Says what went.
    pub(super) fn evict(&self) -> Vec<EnvKey> {
        let now = (self.settings.clock)();
        let going = {
            let state = lock(&self.state);
            let Some(mounted) = &state.mounted else { return Vec::new() };
            let candidate = |(key, tree): (&EnvKey, &Arc<Tree>)| Candidate {
                key: key.clone(),
                bytes: tree.manifest.shape.bytes,
                last_used: tree.last_used(),
                in_use: mounted.contains(key) || tree.is_in_use(),
            };
            evict(&state.trees.iter().map(candidate).collect::<Vec<_>>(), &self.settings.budget, now)
        };
        let gone: Vec<EnvKey> = going
            .into_iter()
            .filter(|key| {
                self.remove(key).unwrap_or_else(|fault| {
                    warn!(%key, %fault, "an environment cannot be removed");
                    false
                })
            })
            .collect();
        self.counts.evictions.fetch_add(gone.len() as u64, Ordering::Relaxed);
        if !gone.is_empty() {
            parts::sweep(&self.layout);
        }
        gone
    }

    /// Removes the tree unless somebody uses it, here or in another process.
    fn remove(&self, key: &EnvKey) -> Result<bool, Fault> {
        let tree = {
            let mut state = lock(&self.state);
            let is_mounted = state.mounted.as_ref().is_none_or(|mounted| mounted.contains(key));
            let Some(tree) = state.trees.get(key).cloned() else { return Ok(false) };
            if is_mounted || tree.is_in_use() {
                return Ok(false);
            }
            state.trees.remove(key);
            tree
        };
        let Some(_alone) = Locked::try_exclusive(&tree.holding).map_err(io_fault)? else {
            lock(&self.state).trees.insert(key.clone(), tree);
            return Ok(false);
        };
        discard(&self.layout.tree(key), &self.layout.work()).map_err(io_fault)?;
        _ = std::fs::remove_file(self.layout.used().join(key.as_str()));
        lock(&self.state).names.forget(key);
        Ok(true)
    }

    fn keep_times(&self) {
        let trees: Vec<Arc<Tree>> = {
            let state = lock(&self.state);
            state.names.keep_times();
            state.trees.values().cloned().collect()
        };
        for tree in trees {
            let path = self.layout.used().join(tree.manifest.key.as_str());
            let text = tree.last_used.load(Ordering::Relaxed).to_string();
            if files::read(&path, 64).ok().as_deref() != Some(&text) {
                // It is taken for older after a restart then.
                _ = files::write(&path, text.as_bytes(), 0o600);
            }
        }
    }

    /// What uv has downloaded may have half of the room; beyond that it begins anew.
    async fn trim_cache(&self) {
        let (cache, largest) = (self.layout.cache(), self.settings.budget.bytes / 2);
        let measured = blocking(move || Ok(disk_usage(&cache))).await;
        let Some(workshop) = self.workshop.get() else { return };
        if measured.is_ok_and(|bytes| bytes > largest) {
            workshop.uv.forget_downloads().await;
        }
    }
}

fn disk_usage(path: &std::path::Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let mut sum = 0;
    for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
        let Ok(about) = entry.metadata() else { continue };
        sum += about.blocks() * 512;
        if about.is_dir() {
            sum += disk_usage(&entry.path());
        }
    }
    sum
}
