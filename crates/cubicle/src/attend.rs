//! Running one exec as if the caller had started the command directly: input, output, signals and the window size
//! pass through until it ends.

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use cubicle_guest::client::{ClientError, ExecStream, Guest};
use cubicle_guest::journal::Kind as Record;
use cubicle_guest::wire;
use cubicle_model::{Command, ExecId, ExecSpec, Exit, Fault, Kind, Stdin};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use crate::failure::{Failure, NOT_EXECUTABLE, NOT_FOUND};
use crate::input;
use crate::output::{Kept, Output, Stream};
use crate::signals::{SIGCONT, SIGPIPE, SIGSTOP, SIGTSTP, SIGWINCH, Signals};
use crate::terminal::{self, RawMode};

/// A sandbox ends by itself at its deadline. Whoever attends an exec is its owner and extends it, well before.
const EXTEND_EVERY: Duration = Duration::from_secs(600);
/// A command whose reader went away and that does not notice is ended after this.
const AFTER_BROKEN_PIPE: Duration = Duration::from_secs(2);
/// How long output that nobody reads holds up the end of a command that was ended by a signal.
const UNREAD: Duration = Duration::from_secs(1);

/// What is passed through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Passing {
    pub(crate) tty: bool,
    pub(crate) input: bool,
    /// Keep the output for a result instead of passing it on.
    pub(crate) keep_output: bool,
    /// Extend the sandbox's deadline by this much while the exec runs.
    pub(crate) extend_seconds: Option<u64>,
}

/// How it went.
#[derive(Debug)]
pub(crate) struct Attended {
    pub(crate) exit: Exit,
    pub(crate) duration: Duration,
    /// Empty unless the output was kept.
    pub(crate) output: Kept,
}

/// Runs the command and returns when it ended.
pub(crate) async fn attend(
    guest: &Guest,
    mut spec: ExecSpec,
    exec: ExecId,
    passing: Passing,
    signals: &mut Signals,
) -> Result<Attended, Failure> {
    spec.exec_id = Some(exec);
    if passing.tty {
        spec.tty = Some(terminal::size().unwrap_or_default());
    }
    let stream_input = passing.input && (passing.tty || !input::is_empty());
    spec.stdin = if stream_input { Stdin::Stream } else { Stdin::Closed };

    let started = Instant::now();
    let stream = guest.exec(&spec).await.map_err(|error| refused(error, &spec))?;
    // Dropped on every way out of this function, which gives the terminal back.
    let _raw = if passing.tty { RawMode::enter()? } else { None };

    let mut output = if passing.keep_output { Output::Keep(Kept::default()) } else { Output::PassOn };
    let reader_left = Notify::new();
    let ended = tokio::select! {
        ended = follow(guest, stream, &mut output, &reader_left) => ended,
        exit = forward(guest, exec, passing.tty, signals) => Ok(Ended { exit, incomplete: true }),
        // Input, broken pipes and deadlines are of no use once the command ended, so these may be dropped anywhere.
        never = feed(guest, exec, stream_input) => match never {},
        never = part_with_reader(guest, exec, &reader_left) => match never {},
        never = extend(guest, passing.extend_seconds) => match never {},
    }?;
    let mut kept = match output {
        Output::PassOn => Kept::default(),
        Output::Keep(kept) => kept,
    };
    kept.truncated |= ended.incomplete;
    Ok(Attended { exit: ended.exit, duration: started.elapsed(), output: kept })
}

/// What the journal said about the end.
struct Ended {
    exit: Exit,
    /// Some output is not in the journal.
    incomplete: bool,
}

/// Delivers output until the command ended. The guest writes everything that the command printed before the record of
/// its end, so nothing is waited for after it: what still holds the output open runs in the background.
async fn follow(
    guest: &Guest,
    mut stream: ExecStream,
    output: &mut Output,
    reader_left: &Notify,
) -> Result<Ended, Fault> {
    let mut incomplete = false;
    let mut closed = Vec::new();
    let mut came_back = false;
    loop {
        let from = stream.resume_from().unwrap_or(0);
        let frame = match stream.next().await {
            Ok(Some(frame)) => frame,
            Ok(None) => return Ok(Ended { exit: Exit::Unknown, incomplete }),
            // The exec goes on without its reader, so the reader comes back to where it was. When that fails too, there
            // is nobody to come back to.
            Err(ClientError::Unavailable(_)) if !came_back => {
                stream = guest.attach(stream.exec_id(), from).await?;
                came_back = true;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        came_back = false;
        let to = match frame.kind {
            Record::Stdout => Stream::Stdout,
            Record::Stderr => Stream::Stderr,
            Record::Exit => {
                let report: wire::Exited = serde_json::from_slice(frame.bytes).map_err(|error| {
                    Fault::new(Kind::Internal, "the sandbox reported no readable exit").because(error)
                })?;
                return Ok(Ended { exit: report.exit, incomplete });
            }
            Record::Truncated | Record::Lost => {
                incomplete = true;
                continue;
            }
            Record::Start
            | Record::Eof
            | Record::Place
            | Record::Receipt
            | Record::Amendment
            | Record::Unknown(_) => continue,
        };
        if closed.contains(&to) {
            continue;
        }
        match output.take(to, frame.bytes).await {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                closed.push(to);
                reader_left.notify_one();
            }
            Err(error) => {
                return Err(Fault::new(Kind::Internal, "cannot write the command's output").because(error));
            }
        }
    }
}

/// Started directly, the command itself would have met the closed pipe: it gets the signal that it would have got,
/// and when it does not mind it is ended, because it would go on printing for nobody.
async fn part_with_reader(guest: &Guest, exec: ExecId, reader_left: &Notify) -> Infallible {
    reader_left.notified().await;
    _ = signal(guest, exec, SIGPIPE).await;
    sleep(AFTER_BROKEN_PIPE).await;
    _ = guest.end(exec, None).await;
    std::future::pending().await
}

/// Never ends: when there is no more input, or nobody who wants it, that is no end of the exec.
async fn feed(guest: &Guest, exec: ExecId, stream_input: bool) -> Infallible {
    if stream_input {
        let mut input = input::stream();
        let mut wanted = true;
        while let Some(chunk) = input.recv().await {
            // The command closed its input or ended. Started directly, it would leave the rest unread too.
            wanted = guest.stdin(exec, &chunk, false).await.is_ok();
            if !wanted {
                break;
            }
        }
        if wanted {
            _ = guest.stdin(exec, &[], true).await;
        }
    }
    std::future::pending().await
}

/// Hands signals on to the command, and returns when it ended by one while nobody reads its output. A sandbox that
/// cannot be reached shows in the output stream, so failures here are left to it.
async fn forward(guest: &Guest, exec: ExecId, tty: bool, signals: &mut Signals) -> Exit {
    let mut told = None;
    loop {
        tokio::select! {
            number = signals.next() => told = hand_on(guest, exec, tty, number).await.or(told),
            // Asking again after the next signal gives the same answer.
            exit = end_unread(guest, exec, told) => return exit,
        }
    }
}

/// A signal that ends programs that do not catch it, and whether the command still ran when it came.
#[derive(Debug, Clone, Copy)]
struct Told {
    number: i32,
    in_time: bool,
}

async fn hand_on(guest: &Guest, exec: ExecId, tty: bool, number: i32) -> Option<Told> {
    match number {
        SIGWINCH => {
            if let Some(size) = terminal::size().filter(|_| tty) {
                _ = guest.resize(exec, size).await;
            }
            None
        }
        // The command has no terminal that could stop it, so it is stopped by force, and cubicle with it.
        SIGTSTP => {
            _ = signal(guest, exec, SIGSTOP).await;
            _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::STOP);
            None
        }
        SIGCONT => {
            _ = signal(guest, exec, SIGCONT).await;
            None
        }
        number => Some(Told { number, in_time: signal(guest, exec, number).await.is_ok() }),
    }
}

/// Started directly, a command that waits for a reader dies by a signal all the same, and what nobody read is gone.
/// Here the output waits in the journal, so the end is told apart from its delivery.
async fn end_unread(guest: &Guest, exec: ExecId, told: Option<Told>) -> Exit {
    let Some(Told { number, in_time }) = told else { return std::future::pending().await };
    let Ok(status) = guest.wait(exec).await else { return std::future::pending().await };
    sleep(UNREAD).await;
    status.exit.filter(|_| in_time).unwrap_or(Exit::Signal(number))
}

async fn signal(guest: &Guest, exec: ExecId, number: i32) -> Result<(), ClientError> {
    guest.signal(exec, wire::SignalName::Number(number)).await
}

async fn extend(guest: &Guest, seconds: Option<u64>) -> Infallible {
    if let Some(seconds) = seconds {
        let pause = EXTEND_EVERY.min(Duration::from_secs(seconds) / 2);
        loop {
            sleep(pause).await;
            _ = guest.set_deadline(Duration::from_secs(seconds)).await;
        }
    }
    std::future::pending().await
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

    const QUIETLY: Passing =
        Passing { tty: false, input: false, keep_output: true, extend_seconds: Some(3600) };

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
