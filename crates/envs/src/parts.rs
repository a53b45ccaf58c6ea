//! Packages, unpacked and byte-compiled once, of which trees are put together.
//!
//! A part is what one package of a lock brings, made by uv in an environment of its own and sealed as a tree is. A tree has
//! its files as second names of the part's: nobody can write to either, and only this process's user could. A part lives as
//! long as some tree has its files, so that parts take no room of their own.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use cubicle_model::{Fault, hexadecimal};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tracing::warn;

use crate::build::{LOOK_EVERY, Order, Workshop, arrange, blocking, discard, hand_over, io_fault, write_for};
use crate::files::{self, Locked};
use crate::index::Source;
use crate::lock::{self, Lock};
use crate::manifest::{Layout, PYTHON};
use crate::trouble::Trouble;
use crate::{Interpreter, tree};

const FORMAT: u32 = 1;
const FILE: &str = "part.json";
const LONGEST: u64 = 64 * 1024 * 1024;
const FILES: &str = "files";
/// What byte code says of where it came from, until it is imported: then an interpreter puts the real path there.
const COMPILED_AS: &str = "/mnt/envs/part";
/// What uv leaves in every environment for itself.
pub(crate) const LEFTOVERS: [&str; 3] = [".lock", ".gitignore", "CACHEDIR.TAG"];

#[derive(Debug, Serialize, Deserialize)]
struct Part {
    format: u32,
    key: String,
    contents: tree::Contents,
}

/// All parts of a tree, which stay where they are while this is held.
#[derive(Debug)]
pub(crate) struct Parts {
    parts: Vec<(PathBuf, Part)>,
    _kept: Locked,
}

/// Why parts do not make a tree.
#[derive(Debug)]
pub(crate) enum DoNotFit {
    /// Two packages bring the same file. What uv makes of that is right.
    SameFile,
    /// They are not what was made, or cannot have second names here.
    Damaged,
}

impl Workshop {
    /// The parts of a lock, made where they are missing. None where the tree has to be made as a whole: its packages are a
    /// tenant's own, or the lock cannot be taken apart.
    pub(crate) async fn parts(&self, order: &Order<'_>) -> Result<Option<Parts>, Fault> {
        if order.tenant.is_some() || order.lock.packages.is_empty() {
            return Ok(None);
        }
        let Some(single) = order.lock.apart() else { return Ok(None) };
        let kept = self.keep_parts().await?;
        let bare = self.part(&key(&self.python, None), None, &BTreeSet::new(), order.source).await?;
        let mut left_out: BTreeSet<PathBuf> = bare.1.contents.paths().map(PathBuf::from).collect();
        left_out.extend(LEFTOVERS.map(PathBuf::from));
        let mut parts = vec![bare];
        for lock in &single {
            let key = key(&self.python, lock.packages.first());
            parts.push(self.part(&key, Some(lock), &left_out, order.source).await?);
        }
        Ok(Some(Parts { parts, _kept: kept }))
    }

    async fn keep_parts(&self) -> Result<Locked, Fault> {
        let path = self.layout.keeping_parts();
        let shared = || Locked::try_shared(&path).map_err(io_fault);
        self.waited_for(shared).await
    }

    async fn part(
        &self,
        key: &str,
        lock: Option<&Lock>,
        left_out: &BTreeSet<PathBuf>,
        source: &Source,
    ) -> Result<(PathBuf, Part), Fault> {
        let path = self.layout.parts().join(key);
        if let Some(part) = load(&path) {
            return Ok((path.join(FILES), part));
        }
        let making = self.layout.making_part(key);
        let _alone = self.waited_for(|| Locked::try_exclusive(&making).map_err(io_fault)).await?;
        if load(&path).is_none() {
            if path.exists() {
                discard(&path, &self.layout.work()).map_err(io_fault)?;
            }
            self.make_part(&path, key, lock, left_out, source).await?;
        }
        let part = load(&path).ok_or_else(|| io_fault(io::ErrorKind::NotFound.into()))?;
        Ok((path.join(FILES), part))
    }

    async fn make_part(
        &self,
        path: &Path,
        key: &str,
        lock: Option<&Lock>,
        left_out: &BTreeSet<PathBuf>,
        source: &Source,
    ) -> Result<(), Fault> {
        let work = self.begin().await?;
        let out = work.directory("out", self.user).map_err(io_fault)?;
        let root = out.join(FILES);
        self.make_bare(&root, &work).await?;
        if let Some(lock) = lock {
            let place = work.path().join("pylock.toml");
            write_for(&place, &lock.text, self.user).map_err(io_fault)?;
            self.install(&root, &place, source, &work).await?;
            self.compile(&root, COMPILED_AS).await?;
        }
        let (path, key, is_bare) = (path.to_owned(), key.to_owned(), lock.is_none());
        let (python, left_out) = (self.python.clone(), left_out.clone());
        blocking(move || {
            if is_bare {
                arrange(&root, &python).map_err(io_fault)?;
            }
            let contents = tree::seal_part(&root, Path::new(PYTHON), &left_out)?;
            hand_over(&out).map_err(io_fault)?;
            let part = Part { format: FORMAT, key, contents };
            let text = serde_json::to_vec(&part).map_err(|error| io_fault(error.into()))?;
            files::write(&out.join(FILE), &text, 0o600).map_err(io_fault)?;
            fs::rename(&out, &path).map_err(io_fault)?;
            drop(work);
            Ok(())
        })
        .await
    }

    /// Waits for a lock that others have for as long as a build may take.
    pub(crate) async fn waited_for(
        &self,
        mut lock: impl FnMut() -> Result<Option<Locked>, Fault>,
    ) -> Result<Locked, Fault> {
        let waiting = async {
            loop {
                if let Some(locked) = lock()? {
                    return Ok(locked);
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        tokio::time::timeout(self.build_timeout, waiting)
            .await
            .unwrap_or_else(|_| Err(Trouble::TimedOut.fault()))
    }
}

impl Parts {
    /// Puts the parts together at `root`, which is not there yet, and seals it.
    pub(crate) fn assemble(&self, root: &Path) -> Result<Result<tree::Shape, DoNotFit>, Fault> {
        let contents: Vec<&tree::Contents> = self.parts.iter().map(|(_, part)| &part.contents).collect();
        let Some(expected) = tree::joined(&contents) else { return Ok(Err(DoNotFit::SameFile)) };
        let put = || -> io::Result<()> {
            fs::create_dir(root)?;
            for (from, part) in &self.parts {
                part.contents.put(from, root)?;
            }
            Ok(())
        };
        match put() {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::StorageFull => return Err(io_fault(error)),
            Err(error) => {
                warn!(%error, "the packages of an environment cannot be put together");
                return Ok(Err(DoNotFit::Damaged));
            }
        }
        let Ok(shape) = tree::seal_joined(root, Path::new(PYTHON)) else { return Ok(Err(DoNotFit::Damaged)) };
        Ok(if shape.is_of(&expected) { Ok(shape) } else { Err(DoNotFit::Damaged) })
    }

    /// Takes them out of use, whatever is wrong with them.
    pub(crate) fn discard(self, layout: &Layout) -> io::Result<()> {
        let mut paths = self.parts.iter().filter_map(|(files, _)| files.parent());
        paths.try_for_each(|path| discard(path, &layout.work()))
    }
}

/// Removes the parts that no tree has. While somebody puts a tree together, nothing is removed.
pub(crate) fn sweep(layout: &Layout) {
    let Ok(Some(_alone)) = Locked::try_exclusive(&layout.keeping_parts()) else { return };
    for path in files::entries(&layout.parts()) {
        let is_used = load(&path).is_some_and(|part| {
            let file = part.contents.any_file().map(|file| path.join(FILES).join(file));
            file.is_some_and(|file| fs::symlink_metadata(file).is_ok_and(|about| about.nlink() > 1))
        });
        if !is_used && let Err(error) = discard(&path, &layout.work()) {
            warn!(%error, "a package that no environment has cannot be removed");
        }
    }
}

fn load(path: &Path) -> Option<Part> {
    let part: Part = serde_json::from_str(&files::read(&path.join(FILE), LONGEST).ok()?).ok()?;
    let named = path.file_name().and_then(|name| name.to_str()) == Some(&part.key);
    (part.format == FORMAT && named).then_some(part)
}

/// What a part is called by: its contents, which are those that uv makes of the package for this interpreter. Without a
/// package it is the environment that has none.
fn key(python: &Interpreter, package: Option<&lock::Locked>) -> String {
    let contents =
        ((FORMAT, &python.version, &python.abi, &python.platform, &python.inside, &python.program), package);
    let text = serde_json::to_vec(&contents).expect("texts and numbers can be written");
    hexadecimal(&Sha256::digest(text))
}
