//! A PostgreSQL cluster of our own: in a temporary directory, on a unix socket, and gone with the test process.

#![allow(clippy::unwrap_used, reason = "what fails here fails a test")]

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const NEEDS: &str = "needs PostgreSQL (initdb, postgres)";
/// Whom it runs as where the tests run as root, which PostgreSQL refuses.
const NOBODY: u32 = 65534;

/// Runs the server until its own standard input ends, and then removes what it is told to.
const KEEPER: &str = r#"
removed=$1; shift
"$@" & server=$!
read -r _
kill -INT $server
wait $server
[ -z "$removed" ] || rm -rf "$removed"
"#;

#[derive(Debug)]
pub struct Cluster {
    binaries: PathBuf,
    directory: PathBuf,
    settings: Vec<String>,
    /// The name of its socket carries it, and where it listens on an address, that too.
    port: u16,
    server: Option<Child>,
    /// Nobody drops a static: its directory goes when the server has gone with the process.
    lasts: bool,
}

impl Cluster {
    /// The one that most tests share; none where PostgreSQL is not installed, and the test counts as skipped.
    pub fn shared() -> Option<&'static Self> {
        static SHARED: OnceLock<Option<Cluster>> = OnceLock::new();
        let shared = SHARED.get_or_init(|| Self::make(true));
        if shared.is_none() {
            skipped(NEEDS);
        }
        shared.as_ref()
    }

    /// One for this test alone.
    pub fn own() -> Option<Self> {
        let own = Self::make(false);
        if own.is_none() {
            skipped(NEEDS);
        }
        own
    }

    fn make(lasts: bool) -> Option<Self> {
        let binaries = binaries()?;
        let directory = tempfile::Builder::new().prefix("cubicle-pg-").tempdir().unwrap().keep();
        if is_root() {
            std::os::unix::fs::chown(&directory, Some(NOBODY), Some(NOBODY)).unwrap();
        }
        let made = command(&binaries.join("initdb"))
            .args(["-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C.UTF-8", "-D"])
            .arg(directory.join("data"))
            .output()
            .unwrap();
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        let mut cluster = Self { binaries, directory, settings: Vec::new(), port: 5432, server: None, lasts };
        cluster.start();
        Some(cluster)
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    pub fn start(&mut self) {
        let mut keeper = command(Path::new("/bin/sh"));
        let removed = if self.lasts { self.directory.as_path() } else { Path::new("") };
        keeper.args(["-c", KEEPER, "sh"]).arg(removed).arg(self.binaries.join("postgres"));
        keeper.arg("-D").arg(self.directory.join("data")).arg("-k").arg(&self.directory);
        let defaults = ["listen_addresses=", "fsync=off", "max_connections=300", "deadlock_timeout=200ms"];
        for setting in defaults.into_iter().map(str::to_owned).chain(self.settings.iter().cloned()) {
            keeper.args(["-c", &setting]);
        }
        let log =
            std::fs::OpenOptions::new().create(true).append(true).open(self.directory.join("log")).unwrap();
        keeper.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log);
        // A signal to the tests' group is not meant for the server.
        self.server = Some(keeper.process_group(0).spawn().unwrap());
        eventually("PostgreSQL accepts connections", || {
            postgres::Client::connect(&self.url("postgres"), postgres::NoTls).is_ok()
        });
    }

    /// Connections are cut, as when the machine is shut down.
    pub fn stop(&mut self) {
        if let Some(mut server) = self.server.take() {
            drop(server.stdin.take());
            server.wait().unwrap();
        }
    }

    /// With other settings; `port` is the one that they name.
    pub fn restart_with(&mut self, settings: &[String], port: u16) {
        self.stop();
        self.settings = settings.to_vec();
        self.port = port;
        self.start();
    }

    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@/{database}?host={}&port={}", self.directory.display(), self.port)
    }

    /// A database that nobody has used.
    pub fn fresh_database(&self) -> String {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let database = format!("t{}", NUMBER.fetch_add(1, Ordering::SeqCst));
        let mut client = postgres::Client::connect(&self.url("postgres"), postgres::NoTls).unwrap();
        client.batch_execute(&format!("CREATE DATABASE {database}")).unwrap();
        self.url(&database)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.stop();
        if let Err(error) = std::fs::remove_dir_all(&self.directory) {
            let _ = writeln!(std::io::stderr(), "{}: {error}", self.directory.display());
        }
    }
}

/// Runs a program as somebody whom PostgreSQL accepts.
#[expect(clippy::disallowed_methods, reason = "the tests start the database that they use")]
pub fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir("/");
    if is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..2000 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{what}: not so after 20 s");
}

/// Counts the test that calls this as skipped, with the reason. The harness's own capture would hide it.
fn skipped(reason: &str) {
    let thread = std::thread::current();
    // What is counted has no colon in its name.
    let test = thread.name().unwrap_or("a test").replace("::", "/");
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {reason}");
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

/// On the path, or where Debian puts them.
fn binaries() -> Option<PathBuf> {
    #[expect(clippy::disallowed_methods, reason = "the tests look for the database where a shell would")]
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut candidates: Vec<PathBuf> = std::fs::read_dir("/usr/lib/postgresql")
        .map(|versions| versions.flatten().map(|version| version.path().join("bin")).collect())
        .unwrap_or_default();
    candidates.sort();
    candidates.reverse();
    candidates.extend(std::env::split_paths(&path));
    candidates.into_iter().find(|at| at.join("initdb").exists() && at.join("postgres").exists())
}
