//! An exec in a sandbox of this machine.

use std::convert::Infallible;
use std::time::Duration;

use cubicle_guest::client::{ClientError, ExecStream, Guest};
use cubicle_guest::journal::Kind as Record;
use cubicle_guest::wire;
use cubicle_model::{Command, ExecId, ExecSpec, Exit, Fault, Kind, Stdin, TtySize};
use tokio::time::{Instant, sleep};

use super::{Attended, Exec, Frame, Frames, Passing};
use crate::failure::{Failure, NOT_EXECUTABLE, NOT_FOUND};
use crate::output::Stream;
use crate::signals::Signals;

/// A sandbox ends by itself at its deadline. Whoever attends an exec is its owner and extends it, well before.
const EXTEND_EVERY: Duration = Duration::from_secs(600);

/// Runs the command and returns when it ended. The sandbox's deadline is extended by so much while the exec runs.
pub(crate) async fn attend(
    guest: &Guest,
    mut spec: ExecSpec,
    exec: ExecId,
    passing: Passing,
    extend_seconds: Option<u64>,
    signals: &mut Signals,
) -> Result<Attended, Failure> {
    spec.exec_id = Some(exec);
    spec.tty = passing.size();
    spec.stdin = if passing.streams_input() { Stdin::Stream } else { Stdin::Closed };
    let started = Instant::now();
    let stream = guest.exec(&spec).await.map_err(|error| refused(error, &spec))?;
    let frames = Journal { guest, stream, came_back: false };
    Ok(super::attend(&Running { guest, exec, extend_seconds }, frames, passing, started, signals).await?)
}

struct Running<'a> {
    guest: &'a Guest,
    exec: ExecId,
    extend_seconds: Option<u64>,
}

impl Exec for Running<'_> {
    async fn stdin(&self, bytes: Vec<u8>, close: bool) -> Result<(), Fault> {
        Ok(self.guest.stdin(self.exec, &bytes, close).await?)
    }

    async fn signal(&self, number: i32) -> Result<(), Fault> {
        Ok(self.guest.signal(self.exec, wire::SignalName::Number(number)).await?)
    }

    async fn resize(&self, size: TtySize) -> Result<(), Fault> {
        Ok(self.guest.resize(self.exec, size).await?)
    }

    async fn end(&self) -> Result<(), Fault> {
        Ok(self.guest.end(self.exec, None).await?)
    }

    async fn wait(&self) -> Result<Option<Exit>, Fault> {
        Ok(self.guest.wait(self.exec).await?.exit)
    }

    async fn keep_alive(&self) -> Infallible {
        if let Some(seconds) = self.extend_seconds {
            let pause = EXTEND_EVERY.min(Duration::from_secs(seconds) / 2);
            loop {
                sleep(pause).await;
                _ = self.guest.set_deadline(Duration::from_secs(seconds)).await;
            }
        }
        std::future::pending().await
    }
}

struct Journal<'a> {
    guest: &'a Guest,
    stream: ExecStream,
    came_back: bool,
}

impl Frames for Journal<'_> {
    async fn next(&mut self) -> Result<Option<Frame>, Fault> {
        loop {
            let from = self.stream.resume_from().unwrap_or(0);
            let frame = match self.stream.next().await {
                Ok(Some(frame)) => frame,
                Ok(None) => return Ok(None),
                // The exec goes on without its reader, so the reader comes back to where it was. When that fails too,
                // there is nobody to come back to.
                Err(ClientError::Unavailable(_)) if !self.came_back => {
                    self.stream = self.guest.attach(self.stream.exec_id(), from).await?;
                    self.came_back = true;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            self.came_back = false;
            return Ok(Some(match frame.kind {
                Record::Stdout => Frame::Output(Stream::Stdout, frame.bytes.to_vec()),
                Record::Stderr => Frame::Output(Stream::Stderr, frame.bytes.to_vec()),
                Record::Exit => {
                    let report: wire::Exited = serde_json::from_slice(frame.bytes).map_err(|error| {
                        Fault::new(Kind::Internal, "the sandbox reported no readable exit").because(error)
                    })?;
                    Frame::Ended(report.exit)
                }
                Record::Truncated | Record::Lost => Frame::Incomplete,
                Record::Start
                | Record::Eof
                | Record::Place
                | Record::Receipt
                | Record::Amendment
                | Record::Cell
                | Record::Unknown(_) => continue,
            }));
        }
    }
}

/// A command that could not be started, with the exit code that a shell would give it.
fn refused(error: ClientError, spec: &ExecSpec) -> Failure {
    let name = match &spec.command {
        Command::Shell(text) => text.as_str(),
        Command::Argv(argv) => argv.first().map_or("", String::as_str),
    };
    let ClientError::Refused { code, message, .. } = &error else { return Fault::from(error).into() };
    let cwd = spec.cwd.as_deref().unwrap_or("/workspace");
    match code.as_str() {
        "command_not_found" => Failure {
            fault: Fault::new(Kind::NotFound, format!("there is no command '{name}' in the sandbox"))
                .hint("the sandbox sees the host's /usr read-only; put other programs in with --file or --workspace"),
            code: NOT_FOUND,
        },
        "not_executable" => Failure {
            fault: Fault::new(Kind::Denied, format!("'{name}' cannot be executed: {message}"))
                .hint("it must be a program or a script with '#!', and executable (chmod +x)"),
            code: NOT_EXECUTABLE,
        },
        "cwd_missing" => Fault::new(Kind::NotFound, format!("there is no directory {cwd} in the sandbox"))
            .hint("check --workdir")
            .into(),
        _ => Fault::from(error).into(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cubicle_backend::Backend;
    use cubicle_backend::fake::{FakeHost, Scripted, placement};
    use cubicle_model::Lifetime;

    use super::*;
    use crate::context::{guest, random_bits};

    const QUIETLY: Passing = Passing { tty: false, input: false, keep_output: true };

    /// Attends one command on a fake host whose commands end as scripted.
    async fn attended(argv: &[&str], scripted: Option<Scripted>) -> Result<Attended, Failure> {
        let script = Arc::new(move |_: &_, _: &_| scripted.clone());
        let host = FakeHost::new(|| Duration::ZERO, script, FakeHost::everything());
        let backend: Arc<dyn Backend> = Arc::new(host.open());
        let place = placement([1; 16], Lifetime::Bound);
        backend.ensure(&place).await?;
        let spec = ExecSpec::new(Command::Argv(argv.iter().map(|word| (*word).to_owned()).collect()));
        let mut signals = Signals::catch()?;
        attend(
            &guest(&backend, place.id).await?,
            spec,
            ExecId::from_random(random_bits()),
            QUIETLY,
            Some(3600),
            &mut signals,
        )
        .await
    }

    #[tokio::test]
    async fn output_and_exit_of_a_command_are_those_of_its_journal() {
        for exit in [Exit::Code(0), Exit::Code(42), Exit::Signal(9), Exit::Oom, Exit::TimedOut, Exit::Unknown]
        {
            let scripted = Scripted { stdout: b"out".to_vec(), stderr: b"err\xff".to_vec(), exit };
            let attended = attended(&["anything"], Some(scripted)).await.unwrap();
            assert_eq!(attended.exit, exit);
            assert_eq!(
                (&attended.output.stdout[..], &attended.output.stderr[..]),
                (&b"out"[..], &b"err\xff"[..])
            );
        }
    }

    #[tokio::test]
    async fn a_command_that_is_not_there_is_127() {
        let failure = attended(&["no-such-program"], None).await.unwrap_err();
        assert_eq!(failure.code, NOT_FOUND);
        assert!(failure.fault.message().contains("no-such-program"), "{}", failure.fault);
    }
}
