//! What is new or changed since some code began.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustix::fs as kernel;
use rustix::io::Errno;

use super::path::SandboxPath;
use super::root::{Root, is_directory, is_file, open_for_reading};
use super::stage::{Fingerprint, Moment, Staged};
use super::walk::{Step, Walk};
use super::write;
use crate::wire::execute::{
    FileReference, LARGEST_INLINE_FILE, LARGEST_INLINE_FILES, MOST_PRODUCED_FILES, Produced,
};

/// Names that are looked at, so that a look has an end.
const MOST_LOOKED_AT: usize = 200_000;
/// Names that are looked at while everybody waits for it.
const MOST_GLANCED_AT: usize = 64;
/// Directories of things that somebody else made: caches and dependencies.
const NOT_PRODUCED: [&str; 8] = [
    "__pycache__",
    "__pypackages__",
    "node_modules",
    "bower_components",
    "site-packages",
    "dist-packages",
    "venv",
    "virtualenv",
];

/// Where to look, and for what.
#[derive(Debug, Default)]
pub(in crate::daemon) struct Scope {
    pub(in crate::daemon) cwd: String,
    pub(in crate::daemon) output: String,
    pub(in crate::daemon) all_files: bool,
    pub(in crate::daemon) before: Staged,
    /// Files that were told of already, when that happened within the same tick of the clock.
    pub(in crate::daemon) told: Vec<Fingerprint>,
}

/// What was found, and what the next code did not make.
#[derive(Debug, Default)]
pub(in crate::daemon) struct Found {
    pub(in crate::daemon) produced: Produced,
    pub(in crate::daemon) told: Vec<Fingerprint>,
}

/// Whether a short look already shows that nothing was produced. No file is opened for it.
pub(in crate::daemon) fn is_nothing(scope: &Scope) -> bool {
    Root::of_this_process().is_ok_and(|root| {
        let search = searched(root, scope, Depth::Glance);
        search.looked_at <= MOST_GLANCED_AT && !search.found.produced.files_incomplete && search.seen == 0
    })
}

/// Looks with the rights of the calling thread. What cannot be looked at was not produced.
pub(in crate::daemon) fn produced(scope: &Scope) -> Found {
    match Root::of_this_process() {
        Ok(root) => produced_in(root, scope),
        Err(_) => {
            Found { produced: Produced { files_incomplete: true, ..Produced::default() }, told: Vec::new() }
        }
    }
}

pub(super) fn produced_in(root: &Root, scope: &Scope) -> Found {
    let search = searched(root, scope, Depth::Whole);
    let latest = search.latest;
    let mut found = search.found;
    found.told.retain(|print| print.changed.is_within_second_before(latest));
    found
}

fn searched<'a>(root: &'a Root, scope: &'a Scope, depth: Depth) -> Search<'a> {
    let mut search = Search {
        root,
        scope,
        depth,
        seen: 0,
        known: scope.before.given.iter().chain(&scope.told).collect(),
        found: Found::default(),
        looked_at: 0,
        inline: 0,
        latest: Moment::default(),
    };
    search.look_below(&scope.cwd, "");
    // The output directory is most often below the working directory and was seen with it.
    let base = scope.cwd.trim_end_matches('/');
    let is_below = scope.output.strip_prefix(base).is_some_and(|rest| rest.starts_with('/'));
    if !is_below {
        let name = scope.output.rsplit('/').find(|part| !part.is_empty()).unwrap_or("output");
        search.look_below(&scope.output, &format!("{name}/"));
    }
    search
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Depth {
    /// Until something is found that was produced, or it takes long.
    Glance,
    Whole,
}

struct Search<'a> {
    root: &'a Root,
    scope: &'a Scope,
    depth: Depth,
    /// What was produced, in a glance.
    seen: usize,
    known: BTreeSet<&'a Fingerprint>,
    found: Found,
    looked_at: usize,
    inline: u64,
    latest: Moment,
}

impl Search<'_> {
    fn look_below(&mut self, directory: &str, prefix: &str) {
        let Ok(path) = SandboxPath::from_bytes(directory.as_bytes()) else { return };
        let Ok(opened) = self.root.open_directory(&path) else { return };
        let walked = Walk::new(self.root, opened).and_then(|walk| self.look(walk, &path, prefix));
        // A tree that changes under the walk may have more than was seen.
        self.found.produced.files_incomplete |= walked.is_err();
    }

    fn look(&mut self, mut walk: Walk<'_>, base: &SandboxPath, prefix: &str) -> Result<(), Errno> {
        while let Some(step) = walk.next()? {
            let Step::Entry { name, stat } = step else { continue };
            self.looked_at += 1;
            if self.depth == Depth::Glance && (self.looked_at > MOST_GLANCED_AT || self.seen > 0) {
                return Ok(());
            }
            if self.looked_at > MOST_LOOKED_AT || self.count() > MOST_PRODUCED_FILES {
                self.found.produced.files_incomplete = true;
                return Ok(());
            }
            if write::is_unfinished(&name) || (!self.scope.all_files && is_left_out(&name)) {
                continue;
            }
            if is_directory(&stat) {
                match walk.enter(&name) {
                    Ok(_) | Err(Errno::ACCESS | Errno::PERM) => {}
                    Err(errno) => return Err(errno),
                }
                continue;
            }
            if !is_file(&stat) || Moment::of_change(&stat) < self.scope.before.moment {
                continue;
            }
            let print = Fingerprint::of(&stat);
            self.latest = self.latest.max(print.changed);
            if self.known.contains(&print) {
                continue;
            }
            if self.depth == Depth::Glance {
                self.seen += 1;
                return Ok(());
            }
            if self.count() == MOST_PRODUCED_FILES {
                self.found.produced.files_incomplete = true;
                return Ok(());
            }
            self.found.told.push(print);
            let below = walk.path_of(&name);
            self.take(&walk, &name, &below, base, prefix, stat.st_size as u64);
        }
        Ok(())
    }

    fn count(&self) -> usize {
        self.found.produced.files_produced.len() + self.found.produced.files_referenced.len()
    }

    fn take(
        &mut self,
        walk: &Walk<'_>,
        name: &OsStr,
        below: &[u8],
        base: &SandboxPath,
        prefix: &str,
        size: u64,
    ) {
        let readable = std::str::from_utf8(below).ok().map(|below| format!("{prefix}{below}"));
        let shown = readable.clone().unwrap_or_else(|| format!("{prefix}{}", String::from_utf8_lossy(below)));
        let fits = size <= LARGEST_INLINE_FILE && self.inline + size <= LARGEST_INLINE_FILES;
        let files = &mut self.found.produced.files_produced;
        if let Some(readable) = readable.filter(|readable| fits && !files.contains_key(readable))
            && let Some(bytes) = read_whole(walk, name, LARGEST_INLINE_FILES - self.inline)
        {
            self.inline += bytes.len() as u64;
            files.insert(readable, STANDARD.encode(bytes));
            return;
        }
        let path = String::from_utf8_lossy(&base.join(below)).into_owned();
        self.found.produced.files_referenced.push(FileReference { name: shown, path, bytes: size });
    }
}

/// None when it is not readable, not a file any more, or has grown beyond what is taken.
fn read_whole(walk: &Walk<'_>, name: &OsStr, room: u64) -> Option<Vec<u8>> {
    let file = open_for_reading(walk.directory().as_fd(), name).ok()?;
    is_file(&kernel::fstat(&file).ok()?).then_some(())?;
    let most = room.min(LARGEST_INLINE_FILE);
    let mut bytes = Vec::new();
    File::from(file).take(most + 1).read_to_end(&mut bytes).ok()?;
    (bytes.len() as u64 <= most).then_some(bytes)
}

fn is_left_out(name: &OsStr) -> bool {
    let bytes = name.as_encoded_bytes();
    bytes.starts_with(b".")
        || bytes.ends_with(b".pyc")
        || NOT_PRODUCED.iter().any(|known| known.as_bytes() == bytes)
}
