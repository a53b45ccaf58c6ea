//! Brings an agent to the host: whole, under its final name, or not at all.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cubicle_model::{Fault, Kind};
use rustix::fs::{FlockOperation, flock};
use serde_json::Value;

use crate::catalog::{self, Known};
use crate::download::Host;
use crate::installed::{self, Installed};
use crate::node::{self, Node};
use crate::tree::Tree;

/// What is asked for.
#[derive(Debug)]
pub struct Request<'a> {
    pub agent: &'a str,
    /// The one that was tried, unless another is named.
    pub version: Option<&'a str>,
    pub source: Source,
    pub host: &'a Host,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The registry that this host is configured for.
    Registry,
    /// A package's archive, or a directory with what is in one.
    Path(PathBuf),
}

/// How far it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    Getting {
        what: String,
    },
    Unpacking,
    /// So many more.
    Bytes(u64),
}

/// Installs an agent, and makes it the one that new tasks get. What was installed already stays.
pub fn install(
    data_dir: &Path,
    request: &Request<'_>,
    mut on_step: impl FnMut(Step),
) -> Result<Installed, Fault> {
    let known = catalog::find(request.agent)?;
    let asked = request.version.filter(|version| !installed::is_version(version));
    if let Some(version) = asked {
        return Err(Fault::new(Kind::Invalid, format!("'{version}' is not a version"))
            .hint(format!("as in --version {}", known.version)));
    }
    let node = known.node.map(|oldest| node::find(&request.host.path, known.title, oldest)).transpose()?;
    let staging = Staging::make(data_dir, known.name)?;
    let tree = staging.path.join("tree");
    fs::create_dir(&tree).map_err(|error| staging.fault(error))?;

    let archive = match &request.source {
        Source::Registry => {
            let version = request.version.unwrap_or(known.version);
            on_step(Step::Getting { what: format!("{} {version} ({})", known.title, known.package) });
            request.host.get(known.package, version, &staging.path)?
        }
        Source::Path(path) => path.clone(),
    };
    on_step(Step::Unpacking);
    let mut on_bytes = |bytes| on_step(Step::Bytes(bytes));
    let mut contents = Tree::new(&tree, &mut on_bytes);
    fill(&mut contents, &archive, node.as_ref()).map_err(|error| unusable(&archive, known, error))?;
    let version = version_of(&tree, known, request.version)?;
    let digest = contents.finish().map_err(|error| staging.fault(error))?;
    staging.keep(data_dir, known, &version, &digest)
}

fn fill(contents: &mut Tree<'_>, from: &Path, node: Option<&Node>) -> io::Result<()> {
    match fs::metadata(from)?.is_dir() {
        true => contents.copy(from)?,
        false => contents.unpack(File::open(from)?)?,
    }
    if let Some(Node::Own(path)) = node {
        contents.put(Path::new(node::FILE), true, &mut File::open(path)?)?;
    }
    Ok(())
}

fn unusable(from: &Path, known: &Known, error: io::Error) -> Fault {
    let kind = match error.kind() {
        io::ErrorKind::StorageFull => Kind::Full,
        io::ErrorKind::NotFound => Kind::NotFound,
        _ => Kind::Invalid,
    };
    Fault::new(kind, format!("{} cannot be installed from {}", known.title, from.display()))
        .because(error)
        .hint(format!(
            "expected is the archive of the package {}, or a directory with its files",
            known.package
        ))
}

/// What the package says of itself; it must be the right one, and whole.
fn version_of(tree: &Path, known: &Known, asked: Option<&str>) -> Result<String, Fault> {
    let wrong = |text: String| {
        Fault::new(Kind::Invalid, text).hint(format!("{} is the package {}", known.title, known.package))
    };
    let text = fs::read_to_string(tree.join("package.json")).unwrap_or_default();
    let about: Value = serde_json::from_str(&text).unwrap_or_default();
    if let Some(name) = about["name"].as_str()
        && name != known.package
    {
        return Err(wrong(format!("this is the package {name}")));
    }
    if !tree.join(known.entry).is_file() {
        return Err(wrong(format!("there is no {} in it", known.entry)));
    }
    match (about["version"].as_str(), asked) {
        (Some(found), Some(asked)) if found != asked => {
            Err(wrong(format!("this is version {found}, not {asked}")))
        }
        (Some(found), _) if installed::is_version(found) => Ok(found.to_owned()),
        (None, Some(asked)) => Ok(asked.to_owned()),
        _ => {
            Err(Fault::new(Kind::Invalid, "it does not say which version it is")
                .hint("name it with --version"))
        }
    }
}

/// A place where an agent is put together. What is left of it when this is dropped goes away.
struct Staging {
    path: PathBuf,
    _lock: File,
}

impl Staging {
    fn make(data_dir: &Path, agent: &str) -> Result<Self, Fault> {
        let directory = installed::directory(data_dir, agent);
        let path = directory.join(".new");
        let prepared = (|| {
            fs::create_dir_all(&directory)?;
            let lock =
                File::options().create(true).truncate(false).write(true).open(directory.join(".lock"))?;
            if !take(&lock)? {
                return Ok(None);
            }
            // What an installation that was killed has left.
            match fs::remove_dir_all(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            fs::create_dir(&path)?;
            Ok(Some(lock))
        })();
        match prepared {
            Ok(Some(lock)) => Ok(Self { path, _lock: lock }),
            Ok(None) => Err(Fault::new(Kind::Conflict, format!("{agent} is being installed already"))
                .hint("wait for that to end")),
            Err(error) => Err(not_writable(&directory, error)),
        }
    }

    fn fault(&self, error: io::Error) -> Fault {
        not_writable(&self.path, error)
    }

    fn keep(&self, data_dir: &Path, known: &Known, version: &str, digest: &str) -> Result<Installed, Fault> {
        let directory = installed::directory(data_dir, known.name);
        let path = directory.join(format!("{version}-{digest}"));
        let kept = Installed {
            agent: known.name.into(),
            version: version.into(),
            digest: digest.into(),
            path,
            current: true,
        };
        let done = (|| {
            // The same name means the same contents.
            if !kept.path.exists() {
                fs::rename(self.path.join("tree"), &kept.path)?;
            }
            for level in [&directory, directory.parent().unwrap_or(&directory)] {
                use std::os::unix::fs::PermissionsExt;
                fs::set_permissions(level, fs::Permissions::from_mode(0o755))?;
            }
            installed::choose(data_dir, &kept)
        })();
        done.map_err(|error| self.fault(error))?;
        Ok(kept)
    }
}

/// A process that is just being started holds what its parent had open, so that a lock is tried for a moment.
fn take(lock: &File) -> io::Result<bool> {
    for _ in 0..20 {
        match flock(lock, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => std::thread::sleep(Duration::from_millis(50)),
            locked => return locked.map(|()| true).map_err(io::Error::from),
        }
    }
    Ok(false)
}

impl Drop for Staging {
    fn drop(&mut self) {
        // If not now, then before the next installation.
        _ = fs::remove_dir_all(&self.path);
    }
}

fn not_writable(path: &Path, error: io::Error) -> Fault {
    let kind = if error.kind() == io::ErrorKind::StorageFull { Kind::Full } else { Kind::Denied };
    Fault::new(kind, format!("cannot write to {}", path.display()))
        .because(error)
        .hint("agents are installed by whoever owns the data directory; they need up to 1 GiB")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::installed::{installed, list, remove, require};

    fn package(directory: &Path, version: &str, program: &str) -> PathBuf {
        let path = directory.join(format!("claude-{version}"));
        fs::create_dir(&path).unwrap();
        let about = serde_json::json!({"name": catalog::find("claude").unwrap().package, "version": version});
        fs::write(path.join("package.json"), about.to_string()).unwrap();
        fs::write(path.join("claude"), program).unwrap();
        path
    }

    static HOST: Host = Host { path: String::new(), home: None, registry: None };

    fn from(path: &Path) -> Request<'static> {
        Request { agent: "claude", version: None, source: Source::Path(path.into()), host: &HOST }
    }

    #[test]
    fn an_agent_is_installed_listed_and_removed() {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("data");
        assert!(
            require(&data, "claude")
                .unwrap_err()
                .way_out()
                .unwrap()
                .contains("cubicle agents install claude")
        );
        assert_eq!(list(&data), []);
        let first = install(&data, &from(&package(directory.path(), "2.0.1", "one")), |_| {}).unwrap();
        assert_eq!(installed(&data, "claude"), Some(first.clone()));
        assert_eq!(fs::read_to_string(first.path.join("claude")).unwrap(), "one");
        let second = install(&data, &from(&package(directory.path(), "2.0.2", "two")), |_| {}).unwrap();
        assert_eq!(require(&data, "claude").unwrap(), second);
        let versions: Vec<_> = list(&data).into_iter().map(|found| (found.version, found.current)).collect();
        assert_eq!(versions, [("2.0.1".to_owned(), false), ("2.0.2".to_owned(), true)]);
        let again = install(&data, &from(&directory.path().join("claude-2.0.1")), |_| {}).unwrap();
        assert_eq!(again.path, first.path);
        assert_eq!(remove(&data, "claude", Some("2.0.1")).unwrap().len(), 1);
        assert_eq!(installed(&data, "claude"), Some(second));
        remove(&data, "claude", None).unwrap();
        assert_eq!(installed(&data, "claude"), None);
        assert!(remove(&data, "claude", None).is_err());
        let left: Vec<_> = fs::read_dir(data.join("agents/claude"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        assert_eq!(left, [".lock"]);
    }

    #[test]
    fn what_is_no_agent_is_refused_and_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("data");
        let other = package(directory.path(), "1.0.0", "x");
        fs::write(other.join("package.json"), r#"{"name": "left-pad", "version": "1.0.0"}"#).unwrap();
        let hollow = package(directory.path(), "1.0.1", "x");
        fs::remove_file(hollow.join("claude")).unwrap();
        let text = directory.path().join("text");
        fs::write(&text, "no archive").unwrap();
        for (path, word) in [
            (&other, "left-pad"),
            (&hollow, "there is no claude in it"),
            (&text, "cannot be installed"),
            (&directory.path().join("nowhere"), "cannot be installed"),
        ] {
            let fault = install(&data, &from(path), |_| {}).unwrap_err();
            assert!(fault.message().contains(word), "{fault}");
            assert!(fault.way_out().unwrap().contains("package"), "{fault}");
        }
        let mismatch = Request { version: Some("9.9.9"), ..from(&package(directory.path(), "3.0.0", "x")) };
        assert!(install(&data, &mismatch, |_| {}).unwrap_err().message().contains("this is version 3.0.0"));
        let evil = Request { version: Some("../../x"), ..from(&text) };
        assert!(install(&data, &evil, |_| {}).unwrap_err().message().contains("is not a version"));
        let unknown = Request { agent: "codex", ..from(&text) };
        assert!(
            install(&data, &unknown, |_| {}).unwrap_err().way_out().unwrap().contains("claude and gemini")
        );
        assert_eq!(list(&data), []);
        assert!(!data.join("agents/claude/.new").exists());
    }

    #[test]
    fn two_installations_at_once_do_not_mix() {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("data");
        let held = Staging::make(&data, "claude").unwrap();
        let fault = install(&data, &from(&package(directory.path(), "1.0.0", "x")), |_| {}).unwrap_err();
        assert_eq!(fault.kind(), Kind::Conflict);
        drop(held);
        install(&data, &from(&directory.path().join("claude-1.0.0")), |_| {}).unwrap();
    }
}
