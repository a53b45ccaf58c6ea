//! A PostgreSQL cluster for the duration of one measurement.

use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cubicle_model::{Fault, Kind};
use rustix::process::{Pid, Signal, geteuid, kill_process};

use crate::bench::baseline::{not_started, program};
use crate::bench::site::unusable;
use crate::environment::Environment;

/// Whom it runs as where this program runs as root, which PostgreSQL refuses.
const NOBODY: u32 = 65534;
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Cluster {
    directory: PathBuf,
    server: Child,
}

impl Cluster {
    pub(crate) async fn start(environment: &Environment, scratch: &Path) -> Result<Self, Fault> {
        let binaries = binaries(environment).ok_or_else(|| {
            Fault::new(Kind::Denied, "PostgreSQL is not installed").hint("scripts/setup-ci installs it")
        })?;
        // Where its other user can reach it, and where a path fits into the name of a socket.
        let directory = PathBuf::from(format!("/tmp/cubicle-bench-pg-{}", std::process::id()));
        fs::create_dir(&directory).map_err(|error| unusable(&directory, error))?;
        if geteuid().is_root() {
            chown(&directory, Some(NOBODY), Some(NOBODY)).map_err(|error| unusable(&directory, error))?;
        }
        let mut make = unprivileged(&binaries.join("initdb"));
        make.args(["-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C.UTF-8", "-D"]);
        let made = make.arg(directory.join("data")).status().map_err(|error| not_started(&make, error))?;
        if !made.success() {
            _ = fs::remove_dir_all(&directory);
            return Err(Fault::new(Kind::Internal, "initdb made no database"));
        }
        let mut run = unprivileged(&binaries.join("postgres"));
        run.arg("-D").arg(directory.join("data")).arg("-k").arg(&directory);
        run.args(["-c", "listen_addresses=", "-c", "fsync=off"]);
        let log = fs::File::create(scratch.join("postgres.log")).map_err(|error| unusable(scratch, error))?;
        let server = run.stderr(Stdio::from(log)).spawn().map_err(|error| not_started(&run, error))?;
        let cluster = Self { directory, server };
        cluster.wait_until_it_listens().await?;
        Ok(cluster)
    }

    async fn wait_until_it_listens(&self) -> Result<(), Fault> {
        let from = Instant::now();
        let socket = self.directory.join(".s.PGSQL.5432");
        while std::os::unix::net::UnixStream::connect(&socket).is_err() {
            if from.elapsed() > PATIENCE {
                return Err(Fault::new(Kind::Unavailable, "PostgreSQL does not start"));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    pub(crate) fn url(&self) -> String {
        format!("postgres://postgres@/postgres?host={}", self.directory.display())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(pid) = i32::try_from(self.server.id()).ok().and_then(Pid::from_raw) {
            // Its fast way to end; it takes its own children along.
            _ = kill_process(pid, Signal::INT);
        }
        _ = self.server.wait();
        _ = fs::remove_dir_all(&self.directory);
    }
}

fn unprivileged(path: &Path) -> Command {
    let mut command = program(path);
    command.current_dir("/");
    if geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}

/// On the path, or where Debian puts them.
fn binaries(environment: &Environment) -> Option<PathBuf> {
    let mut places: Vec<PathBuf> = fs::read_dir("/usr/lib/postgresql")
        .map(|versions| versions.flatten().map(|version| version.path().join("bin")).collect())
        .unwrap_or_default();
    places.sort();
    places.reverse();
    let path = environment.text("PATH").unwrap_or_default();
    places.extend(path.split(':').filter(|directory| !directory.is_empty()).map(PathBuf::from));
    places.into_iter().find(|place| place.join("initdb").exists() && place.join("postgres").exists())
}
