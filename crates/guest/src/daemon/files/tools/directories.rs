//! What is in a directory, and what has a name of some kind.

use std::ffi::OsStr;

use rustix::fs;
use rustix::io::Errno;

use super::super::failure::Failure;
use super::super::list::{kind_name, mtime, shown};
use super::super::path::SandboxPath;
use super::super::root::{Root, is_directory};
use super::super::walk::{Step, Walk};
use super::super::write::is_unfinished;
use super::globs::{Pattern, split_absolute};
use super::{count, path};
use crate::wire::tools::{DirEntry, DirListed, Glob, Globbed, ListDir, MOST_ENTRIES, USUAL_ENTRIES};

/// Names that a search looks at before it gives up.
const MOST_SEEN: usize = 1_000_000;

pub(super) fn list(root: &Root, asked: &ListDir) -> Result<DirListed, Failure> {
    let path = path(&asked.path)?;
    let limit = count(asked.limit, USUAL_ENTRIES, MOST_ENTRIES, "limit")?;
    let mut walk = begin(root, &path)?;
    let (mut entries, mut truncated) = (Vec::new(), false);
    while let Some(step) = walk.next().map_err(|errno| Failure::of(errno, &path))? {
        let Step::Entry { name, stat } = step else { continue };
        if is_unfinished(&name) || (!asked.hidden && is_hidden(&name)) {
            continue;
        }
        if entries.len() == limit {
            truncated = true;
            break;
        }
        let target = (kind_name(&stat) == "symlink")
            .then(|| fs::readlinkat(walk.directory(), &name, Vec::new()).ok())
            .flatten();
        entries.push(DirEntry {
            path: shown(&path.join(&walk.path_of(&name))),
            kind: kind_name(&stat).into(),
            size: u64::try_from(stat.st_size).unwrap_or(0),
            mtime: mtime(&stat),
            target: target.map(|target| shown(target.as_bytes())),
        });
        if asked.recursive && is_directory(&stat) {
            enter(&mut walk, &name, &path)?;
        }
    }
    Ok(DirListed { path: shown(path.as_bytes()), entries, truncated })
}

pub(super) fn glob(root: &Root, asked: &Glob) -> Result<Globbed, Failure> {
    let limit = count(asked.limit, USUAL_ENTRIES, MOST_ENTRIES, "limit")?;
    let (base, pattern) = match split_absolute(&asked.pattern) {
        Some((base, pattern)) => (path(&base)?, Pattern::of_path(&pattern)?),
        None => (path(&asked.path)?, Pattern::of_path(&asked.pattern)?),
    };
    let hidden = asked.hidden || pattern.names_hidden();
    let mut walk = begin(root, &base)?;
    let (mut paths, mut truncated, mut seen) = (Vec::new(), false, 0);
    while let Some(step) = walk.next().map_err(|errno| Failure::of(errno, &base))? {
        let Step::Entry { name, stat } = step else { continue };
        if is_unfinished(&name) || (!hidden && is_hidden(&name)) {
            continue;
        }
        seen += 1;
        if paths.len() > limit || seen > MOST_SEEN {
            truncated = true;
            break;
        }
        let relative = walk.path_of(&name);
        let is_directory = is_directory(&stat);
        if pattern.matches(&String::from_utf8_lossy(&relative)) {
            let slash = if is_directory { "/" } else { "" };
            paths.push(format!("{}{slash}", shown(&base.join(&relative))));
        }
        let names = 1 + relative.iter().filter(|byte| **byte == b'/').count();
        if is_directory && pattern.goes_below(names) {
            enter(&mut walk, &name, &base)?;
        }
    }
    truncated |= paths.len() > limit;
    paths.truncate(limit);
    Ok(Globbed { paths, truncated })
}

pub(super) fn begin<'a>(root: &'a Root, path: &SandboxPath) -> Result<Walk<'a>, Failure> {
    Walk::new(root, root.open_directory(path)?).map_err(|errno| Failure::of(errno, path))
}

/// What the user may not look into is passed by.
pub(super) fn enter(walk: &mut Walk<'_>, name: &OsStr, path: &SandboxPath) -> Result<(), Failure> {
    match walk.enter(name) {
        Ok(_) | Err(Errno::ACCESS) => Ok(()),
        Err(errno) => Err(Failure::of(errno, path)),
    }
}

pub(super) fn is_hidden(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".")
}
