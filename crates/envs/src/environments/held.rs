//! Trees that are there, and who uses them.

use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use cubicle_model::{Fault, Timestamp};

use super::state::lock;
use crate::build::io_fault;
use crate::files::{self, Locked};
use crate::manifest::{Layout, Manifest, TREE};

#[derive(Debug)]
pub(super) struct Tree {
    pub(super) manifest: Manifest,
    pub(super) path: PathBuf,
    pub(super) holding: PathBuf,
    /// In milliseconds since 1970.
    pub(super) last_used: AtomicI64,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    users: usize,
    /// Says to other processes that there are users.
    _lock: Option<Locked>,
}

/// As long as one of these is there, so is the environment.
#[derive(Debug, Clone)]
pub struct InUse {
    _user: Arc<User>,
}

#[derive(Debug)]
struct User {
    tree: Arc<Tree>,
}

impl Drop for User {
    fn drop(&mut self) {
        let mut held = lock(&self.tree.held);
        held.users -= 1;
        if held.users == 0 {
            held._lock = None;
        }
    }
}

impl Tree {
    pub(super) fn new(layout: &Layout, manifest: Manifest, now: Timestamp) -> Self {
        let used = files::read(&layout.used().join(manifest.key.as_str()), 64).ok();
        let last_used = used.and_then(|text| text.parse().ok()).unwrap_or_else(|| now.as_millisecond());
        Self {
            path: layout.tree(&manifest.key).join(TREE),
            holding: layout.holding(&manifest.key),
            last_used: AtomicI64::new(last_used),
            held: Mutex::default(),
            manifest,
        }
    }

    pub(super) fn last_used(&self) -> Timestamp {
        Timestamp::from_millisecond(self.last_used.load(Ordering::Relaxed))
            .unwrap_or(self.manifest.created_at)
    }

    /// None when another process is removing it.
    pub(super) fn take(self: &Arc<Self>, now: Timestamp) -> Result<Option<InUse>, Fault> {
        let mut held = lock(&self.held);
        if held.users == 0 {
            let Some(shared) = Locked::try_shared(&self.holding).map_err(io_fault)? else { return Ok(None) };
            if !self.path.is_dir() {
                return Ok(None);
            }
            held._lock = Some(shared);
        }
        held.users += 1;
        self.last_used.fetch_max(now.as_millisecond(), Ordering::Relaxed);
        Ok(Some(InUse { _user: Arc::new(User { tree: self.clone() }) }))
    }

    pub(super) fn is_in_use(&self) -> bool {
        lock(&self.held).users > 0
    }
}
