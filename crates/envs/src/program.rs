//! Runs a program outside of sandboxes: uv or an interpreter, with bounds, as a user of its own.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::AsyncReadExt;
use tokio::process::Command;

use crate::ServiceUser;

/// More than the longest explanation of a failed resolution; what comes beyond is read and dropped.
const LONGEST_OUTPUT: usize = 256 * 1024;

/// A run that is yet to be made.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<String>,
    /// All that the program gets of an environment.
    pub(crate) variables: BTreeMap<String, String>,
    pub(crate) directory: PathBuf,
    pub(crate) user: Option<ServiceUser>,
    pub(crate) timeout: Duration,
}

#[derive(Debug)]
pub(crate) struct Ran {
    /// None when a signal ended it.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

#[derive(Debug)]
pub(crate) enum NotRun {
    Start(io::Error),
    TimedOut,
}

impl Run {
    /// The program is ended with all that it started when it takes too long, or when nobody waits for it any more.
    pub(crate) async fn run(&self) -> Result<Ran, NotRun> {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).env_clear().envs(&self.variables).current_dir(&self.directory);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.process_group(0).kill_on_drop(true);
        if let Some(user) = self.user {
            // Changing the user also clears the supplementary groups.
            command.uid(user.uid).gid(user.gid);
        }
        let mut child = command.spawn().map_err(NotRun::Start)?;
        let group = Group(child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw));
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let all = async {
            let (stdout, stderr) = tokio::join!(read(stdout), read(stderr));
            child.wait().await.map(|status| Ran { code: status.code(), stdout, stderr })
        };
        let ran = tokio::time::timeout(self.timeout, all).await;
        drop(group);
        match ran {
            Ok(ran) => ran.map_err(NotRun::Start),
            Err(_) => {
                // The group has been told to end, so that this does not last.
                _ = child.wait().await;
                Err(NotRun::TimedOut)
            }
        }
    }
}

/// Ends whatever is left of a run.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(pid) = self.0 {
            // An empty group is what is hoped for.
            _ = kill_process_group(pid, Signal::KILL);
        }
    }
}

async fn read(stream: Option<impl tokio::io::AsyncRead + Unpin>) -> String {
    let Some(mut stream) = stream else { return String::new() };
    let mut kept = Vec::new();
    let mut piece = vec![0; 16 * 1024];
    while let Ok(length @ 1..) = stream.read(&mut piece).await {
        let room = LONGEST_OUTPUT.saturating_sub(kept.len());
        kept.extend_from_slice(&piece[..length.min(room)]);
    }
    String::from_utf8_lossy(&kept).into_owned()
}

/// The first of the programs that is there, in the order of the directories.
pub(crate) fn installed(path: &[PathBuf], name: &str) -> Option<PathBuf> {
    path.iter().map(|directory| directory.join(name)).find(|candidate| is_program(candidate))
}

pub(crate) fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    let metadata = std::fs::metadata(path);
    path.is_absolute()
        && metadata.is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, timeout: Duration) -> Run {
        Run {
            program: "/bin/sh".into(),
            arguments: vec!["-c".into(), script.into()],
            variables: BTreeMap::from([("KEPT".into(), "yes".into())]),
            directory: "/".into(),
            user: None,
            timeout,
        }
    }

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_program_gets_its_variables_and_no_other() {
        let ran =
            shell("echo $KEPT; test -z \"$HOME$CARGO_HOME\" || echo more; exit 3", LONG).run().await.unwrap();
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(3), "yes\n"));
    }

    #[tokio::test]
    async fn output_without_end_takes_no_memory_without_end() {
        let ran = shell("head -c 10000000 /dev/zero | tr '\\0' x; echo ended >&2", LONG).run().await.unwrap();
        assert_eq!((ran.stdout.len(), ran.stderr.as_str()), (LONGEST_OUTPUT, "ended\n"));
    }

    #[tokio::test]
    async fn a_program_that_takes_too_long_ends_with_all_that_it_started() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("pid");
        // The pipe shows that both are gone: it ends when nobody holds it any more.
        let script = format!("sleep 1000 & echo $! >{}; sleep 1000", file.display());
        let started = shell(&script, Duration::from_millis(300)).run().await;
        assert!(matches!(started, Err(NotRun::TimedOut)), "{started:?}");
        let pid = std::fs::read_to_string(&file).unwrap();
        let stat = format!("/proc/{}/stat", pid.trim());
        let gone = || std::fs::read_to_string(&stat).map_or(true, |text| text.contains(") Z "));
        for _ in 0..1000 {
            if gone() {
                return;
            }
            tokio::task::yield_now().await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("the grandchild {} lives", pid.trim());
    }
}
