//! What is looked at on a host: its files, its environment, its programs, its names.

use std::net::{IpAddr, ToSocketAddrs};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use cubicle_model::egress::HostName;

use super::ask;
use crate::environment::Environment;

/// A name that takes longer is taken for one of the internet.
const NAME_PATIENCE: Duration = Duration::from_secs(2);
/// Configuration of a client is short.
const LONGEST_FILE: u64 = 1 << 20;

type Resolve<'a> = dyn Fn(&HostName) -> Vec<IpAddr> + Sync + 'a;
type Ask<'a> = dyn Fn(&str, &[&str]) -> Option<String> + Sync + 'a;

pub(super) struct Surroundings<'a> {
    pub(super) environment: &'a Environment,
    /// What stands before the path of every system file.
    pub(super) root: PathBuf,
    pub(super) resolve: Box<Resolve<'a>>,
    /// What a program prints, when it is installed and does its work.
    pub(super) ask: Box<Ask<'a>>,
}

impl<'a> Surroundings<'a> {
    pub(super) fn of_this_host(environment: &'a Environment) -> Self {
        Self {
            environment,
            root: PathBuf::from("/"),
            resolve: Box::new(resolve),
            ask: Box::new(|program, arguments| ask::ask(environment, program, arguments)),
        }
    }

    /// A variable that says something.
    pub(super) fn variable(&self, name: &str) -> Option<String> {
        self.environment.text(name).filter(|text| !text.trim().is_empty())
    }

    pub(super) fn system(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// The home directory, when it is the user's own: with sudo it may still be somebody else's, from whom root takes no
    /// orders.
    pub(super) fn home(&self) -> Option<PathBuf> {
        let home = self.environment.path("HOME").filter(|home| home.is_absolute())?;
        let owner = std::fs::metadata(&home).ok()?.uid();
        (owner == rustix::process::geteuid().as_raw()).then_some(home)
    }

    /// Where programs of this user keep their configuration.
    pub(super) fn user_configuration(&self) -> Option<PathBuf> {
        let home = self.home()?;
        let named = self.environment.path("XDG_CONFIG_HOME").filter(|path| path.is_absolute());
        Some(named.unwrap_or_else(|| home.join(".config")))
    }

    /// Directories with configuration for all users, the weightiest last.
    pub(super) fn system_configuration(&self) -> Vec<PathBuf> {
        let named = self.variable("XDG_CONFIG_DIRS").unwrap_or_else(|| "/etc/xdg".to_owned());
        named.split(':').rev().filter(|path| path.starts_with('/')).map(|path| self.system(path)).collect()
    }
}

/// The text of a file that is there and can be read.
pub(super) fn read(path: &Path) -> Option<String> {
    let metadata = std::fs::metadata(path).ok()?;
    let fitting = metadata.is_file() && metadata.len() <= LONGEST_FILE;
    fitting
        .then(|| std::fs::read(path).ok())
        .flatten()
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// The addresses of a name, as the host resolves it. A thread waits for the resolver, which has no bound of its own.
fn resolve(name: &HostName) -> Vec<IpAddr> {
    let (send, receive) = mpsc::channel();
    let name = name.to_string();
    let waiting = std::thread::Builder::new().name("resolve".into()).spawn(move || {
        let found = (name.as_str(), 0).to_socket_addrs();
        // Nobody listens any more when it took too long.
        _ = send.send(found.map(|found| found.map(|address| address.ip()).collect()).unwrap_or_default());
    });
    if waiting.is_err() {
        return Vec::new();
    }
    receive.recv_timeout(NAME_PATIENCE).unwrap_or_default()
}
