//! What is installed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use cubicle_model::{Fault, Kind};
use serde::Serialize;

use crate::catalog::{self, Known};

/// One version of an agent on this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Installed {
    pub agent: String,
    pub version: String,
    /// Of the contents.
    pub digest: String,
    /// To be mounted read-only at `/mnt/agents/<agent>`.
    pub path: PathBuf,
    /// Whether new tasks get it.
    pub current: bool,
}

pub(crate) const CURRENT: &str = "current";

pub(crate) fn directory(data_dir: &Path, agent: &str) -> PathBuf {
    data_dir.join("agents").join(agent)
}

/// The version that new tasks get, if any.
pub fn installed(data_dir: &Path, agent: &str) -> Option<Installed> {
    let known = catalog::find(agent).ok()?;
    let name = fs::read_to_string(directory(data_dir, agent).join(CURRENT)).ok()?;
    look(data_dir, known, name.trim()).map(|found| Installed { current: true, ..found })
}

/// The same where a task cannot do without it.
pub fn require(data_dir: &Path, agent: &str) -> Result<Installed, Fault> {
    let known = catalog::find(agent)?;
    installed(data_dir, agent).ok_or_else(|| {
        Fault::new(Kind::NotFound, format!("{} is not installed on this host", known.title))
            .hint(format!("run 'cubicle agents install {agent}' there"))
    })
}

/// Every version of every agent.
pub fn list(data_dir: &Path) -> Vec<Installed> {
    let mut all = Vec::new();
    for name in catalog::names() {
        let Ok(known) = catalog::find(name) else { continue };
        let current = installed(data_dir, name).map(|found| found.path);
        let mut versions: Vec<_> = versions(data_dir, known);
        for found in &mut versions {
            found.current = current.as_ref() == Some(&found.path);
        }
        all.extend(versions);
    }
    all
}

/// All versions of one agent, oldest first by when they were installed.
fn versions(data_dir: &Path, known: &Known) -> Vec<Installed> {
    let entries = fs::read_dir(directory(data_dir, known.name)).into_iter().flatten().flatten();
    let mut found: Vec<_> = entries
        .filter_map(|entry| {
            let since = entry.metadata().and_then(|about| about.modified()).ok()?;
            Some((since, look(data_dir, known, entry.file_name().to_str()?)?))
        })
        .collect();
    found.sort_by(|a, b| a.0.cmp(&b.0).then_with(|| a.1.path.cmp(&b.1.path)));
    found.into_iter().map(|(_, found)| found).collect()
}

fn look(data_dir: &Path, known: &Known, name: &str) -> Option<Installed> {
    let (version, digest) = name.rsplit_once('-')?;
    if !is_version(version) || !digest.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let path = directory(data_dir, known.name).join(name);
    path.join(known.entry).is_file().then(|| Installed {
        agent: known.name.into(),
        version: version.into(),
        digest: digest.into(),
        path,
        current: false,
    })
}

/// Something that can be part of a directory's name.
pub(crate) fn is_version(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'+');
    (1..=64).contains(&text.len()) && text.as_bytes()[0].is_ascii_digit() && text.bytes().all(allowed)
}

/// Makes a version the one that new tasks get.
pub(crate) fn choose(data_dir: &Path, chosen: &Installed) -> io::Result<()> {
    let directory = directory(data_dir, &chosen.agent);
    let name = chosen.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let fresh = directory.join(format!(".{CURRENT}.{}", std::process::id()));
    fs::write(&fresh, format!("{name}\n"))?;
    fs::rename(&fresh, directory.join(CURRENT))
}

/// Removes one version, or all of an agent. Of what is left, the newest is the one that new tasks get.
pub fn remove(data_dir: &Path, agent: &str, version: Option<&str>) -> Result<Vec<Installed>, Fault> {
    let known = catalog::find(agent)?;
    let (gone, left): (Vec<_>, Vec<_>) = versions(data_dir, known)
        .into_iter()
        .partition(|found| version.is_none_or(|version| found.version == version));
    if gone.is_empty() {
        let what = version.map(|version| format!(" {version}")).unwrap_or_default();
        return Err(Fault::new(Kind::NotFound, format!("{}{what} is not installed", known.title))
            .hint("'cubicle agents list' shows what is"));
    }
    let failed = |error: io::Error| {
        Fault::new(Kind::Denied, format!("{} cannot be removed", known.title)).because(error).hint(
            "are the files of another user? Nothing that a task still uses is gone for it before it ends",
        )
    };
    let directory = directory(data_dir, agent);
    match left.last() {
        Some(newest)
            if installed(data_dir, agent).is_none_or(|current| gone.contains(&current.not_current())) =>
        {
            choose(data_dir, newest).map_err(failed)?;
        }
        Some(_) => {}
        None => fs::remove_file(directory.join(CURRENT)).or_else(ignore_missing).map_err(failed)?,
    }
    for found in &gone {
        // At once for whoever looks, however long the rest takes.
        let name = found.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let hidden = directory.join(format!(".gone-{name}"));
        fs::rename(&found.path, &hidden).and_then(|()| fs::remove_dir_all(&hidden)).map_err(failed)?;
    }
    Ok(gone)
}

impl Installed {
    fn not_current(self) -> Self {
        Self { current: false, ..self }
    }
}

fn ignore_missing(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}
