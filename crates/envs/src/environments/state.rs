//! What is known without looking at the disk.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cubicle_model::Timestamp;
use tracing::{info, warn};

use super::held::Tree;
use crate::build::discard;
use crate::manifest::{Layout, Manifest};
use crate::names::Names;
use crate::resolve::{Answer, Question};
use crate::{EnvKey, files, parts, work};

/// What is known without looking at the disk.
#[derive(Debug)]
pub(super) struct State {
    pub(super) trees: HashMap<EnvKey, Arc<Tree>>,
    pub(super) answers: HashMap<Question, Remembered>,
    pub(super) names: Names,
    /// Trees that are mounted somewhere; nobody has said so yet when it is absent, and then nothing is removed.
    pub(super) mounted: Option<HashSet<EnvKey>>,
}

#[derive(Debug, Clone)]
pub(super) struct Remembered {
    pub(super) key: EnvKey,
    pub(super) made_at: Timestamp,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) hits: AtomicU64,
    pub(super) misses: AtomicU64,
    pub(super) resolutions: AtomicU64,
    pub(super) builds: AtomicU64,
    pub(super) failures: AtomicU64,
    pub(super) evictions: AtomicU64,
}

impl State {
    pub(super) fn load(layout: &Layout, now: Timestamp, lock_ttl: Duration) -> Self {
        let left = work::sweep(&layout.work());
        if left > 0 {
            info!(left, "what was left half-made is gone");
        }
        let mut trees = HashMap::new();
        for path in files::entries(&layout.trees()) {
            match Manifest::load(&path) {
                Some(manifest) => {
                    trees.insert(manifest.key.clone(), Arc::new(Tree::new(layout, manifest, now)));
                }
                None => {
                    warn!(path = %path.display(), "an environment is not what was made and is removed");
                    _ = discard(&path, &layout.work());
                }
            }
        }
        parts::sweep(layout);
        let mut answers = HashMap::new();
        for answer in Answer::load_all(&layout.locks()) {
            if is_fresh(answer.made_at, now, lock_ttl) || trees.contains_key(&answer.key) {
                answers.insert(answer.question.clone(), Remembered::of(&answer));
            } else {
                answer.remove(&layout.locks());
            }
        }
        let mut names = Names::load(layout.names());
        names.retain(|key| trees.contains_key(key));
        Self { trees, answers, names, mounted: None }
    }
}

impl Remembered {
    pub(super) fn of(answer: &Answer) -> Self {
        Self { key: answer.key.clone(), made_at: answer.made_at }
    }
}

/// A clock that went back makes nothing fresh for longer than it should be.
pub(super) fn is_fresh(made_at: Timestamp, now: Timestamp, ttl: Duration) -> bool {
    Duration::try_from(now.duration_since(made_at)).is_ok_and(|age| age <= ttl)
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Whoever panicked has left facts that are each whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
