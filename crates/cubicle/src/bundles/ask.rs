//! Asks a program of this host for what only it knows, as the index that is compiled into it.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::environment::Environment;

/// Interpreters take a moment to start on a busy host; what hangs is given up.
const PATIENCE: Duration = Duration::from_secs(10);
/// From its last word to its end.
const LAST_MOMENTS: Duration = Duration::from_secs(2);
const LONGEST_ANSWER: u64 = 256 * 1024;

/// What the program prints on stdout, when it is in `PATH` and succeeds in time.
pub(super) fn ask(environment: &Environment, program: &str, arguments: &[&str]) -> Option<String> {
    let program = installed(environment, program)?;
    // The standard library uses posix_spawn here: nothing is asked of the child that needs a fork.
    #[expect(clippy::disallowed_methods, reason = "only the client knows the index that is compiled into it")]
    let mut command = Command::new(program);
    command.args(arguments).current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    // Lines of help would be broken otherwise, also in the middle of an address.
    command.env("COLUMNS", "1000").env("NO_COLOR", "1");
    let mut child = command.spawn().ok()?;
    let mut stdout = child.stdout.take()?;
    let (send, receive) = mpsc::channel();
    let reading = std::thread::Builder::new().name("ask".into()).spawn(move || {
        let mut answer = Vec::new();
        let whole = stdout.by_ref().take(LONGEST_ANSWER).read_to_end(&mut answer).is_ok();
        // Nobody listens any more when it took too long.
        _ = send.send(whole.then_some(answer));
    });
    let answer = reading.ok().and_then(|_| receive.recv_timeout(PATIENCE).ok().flatten());
    if answer.is_none() {
        _ = child.kill();
        _ = child.wait();
    }
    answer.filter(|_| succeeds(&mut child)).map(|answer| String::from_utf8_lossy(&answer).into_owned())
}

/// Whether it ends well soon after it has said everything. It is gone afterwards in any case.
fn succeeds(child: &mut Child) -> bool {
    let from = Instant::now();
    while from.elapsed() < LAST_MOMENTS {
        match child.try_wait() {
            Ok(Some(status)) => return status.success(),
            Ok(None) => std::thread::sleep(Duration::from_millis(2)),
            Err(_) => break,
        }
    }
    _ = child.kill();
    _ = child.wait();
    false
}

fn installed(environment: &Environment, program: &str) -> Option<PathBuf> {
    let path = environment.text("PATH")?;
    let candidates = path.split(':').filter(|directory| directory.starts_with('/'));
    candidates.map(|directory| PathBuf::from(directory).join(program)).find(|candidate| {
        std::fs::metadata(candidate)
            .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(script: &str) -> Option<String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("client");
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let places = format!("/nonexistent:{}:relative", directory.path().display());
        ask(&Environment::from([("PATH", places.as_str())]), "client", &["an", "argument"])
    }

    #[test]
    fn a_program_that_succeeds_is_heard() {
        assert_eq!(with("echo $2 $1"), Some("argument an\n".into()));
        assert_eq!(with("echo; exit 1"), None);
        assert_eq!(ask(&Environment::default(), "true", &[]), None);
        assert_eq!(ask(&Environment::from([("PATH", "/nonexistent")]), "true", &[]), None);
    }

    #[test]
    fn what_a_program_prints_without_end_is_cut_off() {
        assert_eq!(with("while :; do echo x; done"), None);
    }
}
