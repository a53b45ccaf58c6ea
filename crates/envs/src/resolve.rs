//! From requirements to a lock, and what is remembered of it.

use std::path::{Path, PathBuf};

use cubicle_model::{Fault, Name, Timestamp, hexadecimal};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::build::{Workshop, blocking, io_fault, write_for};
use crate::index::Source;
use crate::lock::Lock;
use crate::trouble::Trouble;
use crate::{EnvKey, Interpreter, Requirements, files};

const LONGEST_LOCK: u64 = 16 * 1024 * 1024;

/// Why there is no lock.
#[derive(Debug)]
pub(crate) enum Unresolved {
    Trouble(Trouble),
    Fault(Fault),
}

impl From<Unresolved> for Fault {
    fn from(unresolved: Unresolved) -> Self {
        match unresolved {
            Unresolved::Trouble(trouble) => trouble.fault(),
            Unresolved::Fault(fault) => fault,
        }
    }
}

impl From<Fault> for Unresolved {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl Workshop {
    /// Finds versions that fit, of which all have wheels. `built` are directories with wheels that a sandbox built.
    pub(crate) async fn resolve(
        &self,
        requirements: &Requirements,
        source: &Source,
        built: &[PathBuf],
    ) -> Result<Lock, Unresolved> {
        let work = self.begin().await?;
        let (wanted, lock) = (work.path().join("requirements.in"), work.path().join("pylock.toml"));
        write_for(&wanted, &requirements.lines().join("\n"), self.user).map_err(io_fault)?;
        let text = |path: &Path| path.display().to_string();
        let mut arguments: Vec<String> = [
            "pip",
            "compile",
            "--no-build",
            "--generate-hashes",
            "--no-header",
            "--no-sources",
            "--format",
            "pylock.toml",
            "--python",
            &text(&self.python.program),
            "--output-file",
            &text(&lock),
            &text(&wanted),
        ]
        .map(str::to_owned)
        .to_vec();
        for directory in built {
            arguments.extend(["--find-links".to_owned(), text(directory)]);
        }
        let ran = self.uv.run(arguments, source, work.path(), self.resolve_timeout).await;
        ran.map_err(Unresolved::Trouble)?;
        let lock = blocking(move || {
            let text = files::read(&lock, LONGEST_LOCK).map_err(io_fault);
            drop(work);
            text
        })
        .await?;
        Ok(Lock::parse(&lock)?)
    }
}

/// What leads to one lock. A hit on it needs no uv.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Question {
    pub(crate) python: String,
    pub(crate) index: String,
    pub(crate) requirements: Vec<String>,
    /// Where the answer must stay with a tenant.
    pub(crate) tenant: Option<Name>,
}

impl Question {
    pub(crate) fn new(python: &Interpreter, source: &Source, requirements: &Requirements) -> Self {
        Self {
            python: format!("{} {} {} {}", python.version, python.abi, python.platform, python.inside),
            index: source.identity(),
            requirements: requirements.lines().to_vec(),
            tenant: None,
        }
    }

    pub(crate) fn of(&self, tenant: &Name) -> Self {
        Self { tenant: Some(tenant.clone()), ..self.clone() }
    }

    fn file(&self, directory: &Path) -> PathBuf {
        let text = serde_json::to_vec(self).expect("texts can be written");
        directory.join(format!("{}.json", hexadecimal(&Sha256::digest(text))))
    }
}

/// A lock as it is remembered, for some time: then newer releases are to be seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Answer {
    pub(crate) question: Question,
    pub(crate) key: EnvKey,
    pub(crate) made_at: Timestamp,
    /// The lock itself, so that a tree that went can be made again.
    pub(crate) lock: String,
}

impl Answer {
    pub(crate) fn keep(&self, directory: &Path) -> std::io::Result<()> {
        files::write(&self.question.file(directory), &serde_json::to_vec(self)?, 0o600)
    }

    pub(crate) fn remove(&self, directory: &Path) {
        // One that stays is expired some day, and then removed at a start.
        _ = std::fs::remove_file(self.question.file(directory));
    }

    /// Every answer that can be read, and belongs where it stands.
    pub(crate) fn load_all(directory: &Path) -> Vec<Self> {
        let read = |path: &PathBuf| {
            let answer: Self = serde_json::from_str(&files::read(path, LONGEST_LOCK * 2).ok()?).ok()?;
            (answer.question.file(directory) == *path).then_some(answer)
        };
        files::entries(directory).iter().filter_map(read).collect()
    }
}
