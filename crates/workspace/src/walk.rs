//! Everything below a directory, in order, with caps.

use rustix::fs::Stat;
use rustix::io::Errno;

use crate::beneath::{Directory, is_directory, is_file};

#[derive(Debug, Clone, Copy)]
pub(crate) struct Caps {
    pub(crate) entries: usize,
    pub(crate) depth: usize,
}

#[derive(Debug)]
pub(crate) struct Found {
    /// Relative to where the walk began, with `/`.
    pub(crate) path: String,
    pub(crate) stat: Stat,
}

/// Regular files and directories. Everything else is left out, and so is what has a name that is not UTF-8. The second value says
/// whether the caps left something out.
pub(crate) fn walk(directory: &Directory, recursive: bool, caps: Caps) -> Result<(Vec<Found>, bool), Errno> {
    let mut found = Vec::new();
    let truncated =
        descend(directory, "", if recursive { caps.depth } else { 1 }, recursive, caps.entries, &mut found)?;
    Ok((found, truncated))
}

fn descend(
    directory: &Directory,
    above: &str,
    depth: usize,
    recursive: bool,
    most: usize,
    found: &mut Vec<Found>,
) -> Result<bool, Errno> {
    let (names, mut truncated) = directory.names(most)?;
    let mut names: Vec<String> = names.into_iter().filter_map(|name| name.into_string().ok()).collect();
    names.sort_unstable();
    for name in names {
        let stat = match directory.stat(&name) {
            Ok(stat) => stat,
            // Gone meanwhile.
            Err(Errno::NOENT) => continue,
            Err(errno) => return Err(errno),
        };
        if !is_file(&stat) && !is_directory(&stat) {
            continue;
        }
        if found.len() == most {
            return Ok(true);
        }
        let path = if above.is_empty() { name.clone() } else { format!("{above}/{name}") };
        found.push(Found { path: path.clone(), stat });
        if !recursive || !is_directory(&stat) {
            continue;
        }
        if depth <= 1 {
            truncated = true;
            continue;
        }
        match directory.child(name.as_ref()) {
            Ok(below) => truncated |= descend(&below, &path, depth - 1, recursive, most, found)?,
            // Replaced meanwhile, or closed by whoever owns it.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(truncated)
}
