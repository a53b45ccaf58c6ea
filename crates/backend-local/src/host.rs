//! What this host has that a root filesystem can be made of. Read once, so that plans are made of values.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use cubicle_model::{Fault, Kind, Root};

/// The entries of a host's root directory and of its `/etc` that plans depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostRoot {
    /// Where the entries are found on the host: `/`, or the directory that holds a root filesystem.
    pub base: PathBuf,
    pub entries: Vec<Entry>,
    /// Names in the base's `/etc` that everybody may read.
    pub etc: Vec<String>,
    /// Names in the host's `/proc` of what others than root can read or write.
    pub proc: Vec<String>,
    pub devices: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub name: String,
    pub kind: EntryKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryKind {
    Directory,
    Symlink(PathBuf),
}

impl HostRoot {
    pub fn read(root: &Root) -> Result<Self, Fault> {
        let base = match root {
            Root::Host => PathBuf::from("/"),
            Root::Directory(directory) => {
                let unfit = |why: &str| {
                    Fault::new(
                        Kind::Invalid,
                        format!("{} is not a root filesystem: {why}", directory.display()),
                    )
                    .hint("it must be an absolute path of a directory that holds at least /usr or /bin")
                };
                if !directory.is_absolute() {
                    return Err(unfit("the path is not absolute"));
                }
                if !directory.join("usr").is_dir() && !directory.join("bin").is_dir() {
                    return Err(unfit("it has neither /usr nor /bin"));
                }
                directory.clone()
            }
        };
        let entries = names(&base)
            .into_iter()
            .filter_map(|name| {
                let metadata = fs::symlink_metadata(base.join(&name)).ok()?;
                let kind = if metadata.is_symlink() {
                    EntryKind::Symlink(fs::read_link(base.join(&name)).ok()?)
                } else if metadata.is_dir() {
                    EntryKind::Directory
                } else {
                    return None;
                };
                Some(Entry { name, kind })
            })
            .collect();
        Ok(Self {
            entries,
            etc: names(&base.join("etc"))
                .into_iter()
                .filter(|name| is_for_everybody(&base.join("etc").join(name)))
                .collect(),
            proc: names(Path::new("/proc"))
                .into_iter()
                .filter(|name| !name.starts_with(|c: char| c.is_ascii_digit()))
                .filter(|name| is_worth_covering(&Path::new("/proc").join(name)))
                .collect(),
            devices: names(Path::new("/dev")),
            base,
        })
    }
}

/// What only some may read on the host is nobody's business inside, where everything belongs to everybody.
fn is_for_everybody(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| {
        let needed = if metadata.is_dir() { 0o005 } else { 0o004 };
        metadata.permissions().mode() & needed == needed
    })
}

fn is_worth_covering(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| {
        let others = metadata.permissions().mode() & 0o006 != 0;
        others && (!metadata.is_dir() || fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some()))
    })
}

fn names(directory: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort_unstable();
    names
}
