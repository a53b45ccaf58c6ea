//! Other programs that isolate, as far as they are installed.

mod bundle;

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use cubicle_model::{Fault, Kind};

use super::baseline::{not_started, program, timed};
use crate::environment::Environment;

/// How long a peer may take to show that it works here.
const PATIENCE: Duration = Duration::from_secs(30);
/// Where system programs are that an ordinary user's PATH leaves out.
const SYSTEM: &str = "/usr/local/sbin:/usr/sbin:/sbin";

/// A program that runs `/bin/true` in isolation of its own.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) id: &'static str,
    pub(crate) what: &'static str,
    program: PathBuf,
    arguments: Arguments,
}

#[derive(Debug)]
enum Arguments {
    Fixed(Vec<String>),
    /// An OCI runtime, which wants a new name for each run.
    Named {
        before: Vec<String>,
        runs: Cell<u32>,
    },
}

/// A peer that is installed and works, or why it does not.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) peer: Peer,
    pub(crate) failed: Option<Fault>,
}

/// Looks for every peer and tries each once. What they are given lies in `scratch`.
pub(crate) async fn find(environment: &Environment, scratch: &Path) -> Result<Vec<Found>, Fault> {
    let mut found = Vec::new();
    if let Some(path) = installed("bwrap", environment) {
        found.push(Peer {
            id: "peer.bwrap.run",
            what: "bwrap --unshare-all, /usr read-only; no limits, no seccomp",
            program: path,
            arguments: Arguments::Fixed(bwrap_arguments()),
        });
    }
    let runtimes = [
        ("crun", "peer.crun.run", "crun run with limits; no user namespace, no seccomp"),
        ("runc", "peer.runc.run", "runc run with limits; no user namespace, no seccomp"),
        ("runsc", "peer.runsc.run", "runsc run, without network"),
    ];
    let runtimes: Vec<_> = runtimes
        .into_iter()
        .filter_map(|(name, id, what)| Some((name, id, what, installed(name, environment)?)))
        .collect();
    let bundle = if runtimes.is_empty() { None } else { Some(bundle::make(scratch)?) };
    for (name, id, what, path) in runtimes {
        let bundle = bundle.iter().map(|bundle: &PathBuf| bundle.display().to_string());
        let option = if name == "runsc" { vec!["--network=none".to_owned()] } else { vec![] };
        let words = ["run", "--bundle"].map(str::to_owned);
        let before = option.into_iter().chain(words).chain(bundle).collect();
        let arguments = Arguments::Named { before, runs: Cell::new(0) };
        found.push(Peer { id, what, program: path, arguments });
    }
    let mut tried = Vec::new();
    for peer in found {
        let failed = peer.trial(scratch).await.err();
        tried.push(Found { peer, failed });
    }
    tried.extend(find_docker(environment, scratch).await);
    Ok(tried)
}

/// Docker alone, which a request to a server is compared with as well.
pub(crate) async fn find_docker(environment: &Environment, scratch: &Path) -> Option<Found> {
    let path = installed("docker", environment)?;
    Some(docker(path, scratch).await)
}

impl Peer {
    /// From before its start to after its end.
    pub(crate) fn run(&self) -> Result<Duration, Fault> {
        timed(program(&self.program).args(self.next_arguments()))
    }

    fn next_arguments(&self) -> Vec<String> {
        match &self.arguments {
            Arguments::Fixed(arguments) => arguments.clone(),
            Arguments::Named { before, runs } => {
                runs.set(runs.get() + 1);
                let name = format!("cubicle-bench-{}-{}", std::process::id(), runs.get());
                before.iter().cloned().chain([name]).collect()
            }
        }
    }

    /// Whether it works here at all, and otherwise what it says about it.
    async fn trial(&self, scratch: &Path) -> Result<(), Fault> {
        ask(&self.program, &self.next_arguments(), scratch).await.map(drop)
    }
}

/// Runs a program for what it prints, with a bound. Its output goes through files, because nobody reads a pipe while
/// this waits.
async fn ask(path: &Path, arguments: &[String], scratch: &Path) -> Result<String, Fault> {
    let failed = |error| super::site::unusable(scratch, error);
    let (out, err) = (scratch.join("stdout"), scratch.join("stderr"));
    let mut command = program(path);
    command.args(arguments);
    command.stdout(Stdio::from(std::fs::File::create(&out).map_err(failed)?));
    command.stderr(Stdio::from(std::fs::File::create(&err).map_err(failed)?));
    let mut child = Killed(command.spawn().map_err(|error| not_started(&command, error))?);
    let from = Instant::now();
    let status = loop {
        match child.0.try_wait().map_err(|error| not_started(&command, error))? {
            Some(status) => break status,
            None if from.elapsed() > PATIENCE => {
                let message = format!("it did not end within {} s", PATIENCE.as_secs());
                return Err(Fault::new(Kind::Unavailable, message));
            }
            None => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    };
    if status.success() {
        return Ok(std::fs::read_to_string(&out).unwrap_or_default());
    }
    let said = std::fs::read_to_string(&err).unwrap_or_default();
    let said = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
    Err(Fault::new(Kind::Denied, crate::failure::printable(said)))
}

/// A process that does not outlive an interrupted run.
struct Killed(std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // One that has ended needs neither.
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// Docker runs the first image that it has; none is pulled.
async fn docker(path: PathBuf, scratch: &Path) -> Found {
    let list = ["image", "ls", "--format", "{{.Repository}}:{{.Tag}}"].map(str::to_owned);
    let image = ask(&path, &list, scratch).await.and_then(|images| {
        let image = images.lines().find(|image| !image.contains("<none>")).map(str::to_owned);
        image.ok_or_else(|| Fault::new(Kind::Denied, "it has no image, and none is pulled"))
    });
    let arguments = match &image {
        Ok(image) => {
            let run = ["run", "--rm", "--network", "none", "--pull", "never", "--entrypoint", "/bin/true"];
            run.into_iter().map(str::to_owned).chain([image.clone()]).collect()
        }
        Err(_) => Vec::new(),
    };
    let what = "docker run --rm --network none";
    let arguments = Arguments::Fixed(arguments);
    let peer = Peer { id: "peer.docker.run", what, program: path, arguments };
    let failed = match image {
        Ok(_) => peer.trial(scratch).await.err(),
        Err(fault) => Some(fault),
    };
    Found { peer, failed }
}

pub(crate) fn installed(name: &str, environment: &Environment) -> Option<PathBuf> {
    let path = environment.text("PATH").unwrap_or_default();
    let directories = path.split(':').chain(SYSTEM.split(':')).filter(|directory| !directory.is_empty());
    directories.map(|directory| Path::new(directory).join(name)).find(|path| path.is_file())
}

fn bwrap_arguments() -> Vec<String> {
    let mut arguments: Vec<String> = ["--unshare-all", "--ro-bind", "/usr", "/usr"].map(str::to_owned).into();
    for (name, link) in bundle::top_level() {
        let target = format!("/{name}");
        arguments.extend(match link {
            Some(link) => ["--symlink".to_owned(), link, target],
            None => ["--ro-bind".to_owned(), target.clone(), target],
        });
    }
    let rest = ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--", "/bin/true"];
    arguments.extend(rest.map(str::to_owned));
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_in_the_path_and_among_system_programs() {
        let environment = Environment::from([("PATH", "/nonexistent::/bin")]);
        assert_eq!(installed("true", &environment), Some("/bin/true".into()));
        assert_eq!(installed("no-such-program", &environment), None);
    }

    #[test]
    fn each_run_of_a_runtime_has_a_name_of_its_own() {
        let arguments = Arguments::Named { before: vec!["run".into()], runs: Cell::new(0) };
        let peer = Peer { id: "peer.crun.run", what: "", program: "/bin/true".into(), arguments };
        let (first, second) = (peer.next_arguments(), peer.next_arguments());
        assert_eq!(first[0], "run");
        assert_ne!(first[1], second[1]);
    }

    #[tokio::test]
    async fn a_peer_that_does_not_work_here_says_why() {
        let scratch = tempfile::tempdir().unwrap();
        let script = ["-c", "echo one >&2; echo 'no cgroups' >&2; exit 1"].map(str::to_owned);
        let fault = ask(Path::new("/bin/sh"), &script, scratch.path()).await.unwrap_err();
        assert_eq!(fault.message(), "no cgroups");
        let script = ["-c", "echo fine"].map(str::to_owned);
        assert_eq!(ask(Path::new("/bin/sh"), &script, scratch.path()).await.unwrap(), "fine\n");
    }
}
