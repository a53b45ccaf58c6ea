//! Running one exec as if the caller had started the command directly: input, output, signals and the window size
//! pass through until it ends. Where it runs, in a sandbox of this machine or behind a server, is the two modules' matter.

pub(crate) mod local;
pub(crate) mod server;

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use cubicle_model::{Exit, Fault, Kind, TtySize};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use crate::input;
use crate::output::{Kept, Output, Stream};
use crate::signals::{SIGCONT, SIGPIPE, SIGSTOP, SIGTSTP, SIGWINCH, Signals};
use crate::terminal::{self, RawMode};

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
}

impl Passing {
    /// Whether there is input to hand on: `/dev/null` is empty and need not be streamed.
    pub(crate) fn streams_input(self) -> bool {
        self.input && (self.tty || !input::is_empty())
    }

    /// The size of the terminal that the command is given.
    pub(crate) fn size(self) -> Option<TtySize> {
        self.tty.then(|| terminal::size().unwrap_or_default())
    }
}

/// How it went.
#[derive(Debug)]
pub(crate) struct Attended {
    pub(crate) exit: Exit,
    pub(crate) duration: Duration,
    /// Empty unless the output was kept.
    pub(crate) output: Kept,
}

/// What can be done to an exec while it runs.
pub(crate) trait Exec {
    async fn stdin(&self, bytes: Vec<u8>, close: bool) -> Result<(), Fault>;
    async fn signal(&self, number: i32) -> Result<(), Fault>;
    async fn resize(&self, size: TtySize) -> Result<(), Fault>;
    /// Ends the whole tree.
    async fn end(&self) -> Result<(), Fault>;
    /// Waits for the end, and says how it was where that is known.
    async fn wait(&self) -> Result<Option<Exit>, Fault>;
    /// Keeps the sandbox from ending while the exec is attended.
    async fn keep_alive(&self) -> Infallible;
}

/// What an exec says, in order.
pub(crate) trait Frames {
    /// None where nothing more is known.
    async fn next(&mut self) -> Result<Option<Frame>, Fault>;
}

#[derive(Debug)]
pub(crate) enum Frame {
    Output(Stream, Vec<u8>),
    /// Some output is not in the journal.
    Incomplete,
    /// Everything that the command printed came before. What still holds its output open runs in the background.
    Ended(Exit),
}

/// Passes everything through until the command, which has just been started, ended.
async fn attend(
    exec: &impl Exec,
    frames: impl Frames,
    passing: Passing,
    started: Instant,
    signals: &mut Signals,
) -> Result<Attended, Fault> {
    // Dropped on every way out of this function, which gives the terminal back.
    let _raw = if passing.tty { RawMode::enter()? } else { None };
    let mut output = if passing.keep_output { Output::Keep(Kept::default()) } else { Output::PassOn };
    let reader_left = Notify::new();
    let ended = tokio::select! {
        ended = follow(frames, &mut output, &reader_left) => ended,
        exit = forward(exec, passing.tty, signals) => Ok(Ended { exit, incomplete: true }),
        // Input, broken pipes and deadlines are of no use once the command ended, so these may be dropped anywhere.
        never = feed(exec, passing.streams_input()) => match never {},
        never = part_with_reader(exec, &reader_left) => match never {},
        never = exec.keep_alive() => match never {},
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

/// Delivers output until the command ended.
async fn follow(mut frames: impl Frames, output: &mut Output, reader_left: &Notify) -> Result<Ended, Fault> {
    let mut incomplete = false;
    let mut closed = Vec::new();
    loop {
        let (to, bytes) = match frames.next().await? {
            Some(Frame::Output(to, bytes)) => (to, bytes),
            Some(Frame::Incomplete) => {
                incomplete = true;
                continue;
            }
            Some(Frame::Ended(exit)) => return Ok(Ended { exit, incomplete }),
            None => return Ok(Ended { exit: Exit::Unknown, incomplete }),
        };
        if closed.contains(&to) {
            continue;
        }
        match output.take(to, &bytes).await {
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
async fn part_with_reader(exec: &impl Exec, reader_left: &Notify) -> Infallible {
    reader_left.notified().await;
    _ = exec.signal(SIGPIPE).await;
    sleep(AFTER_BROKEN_PIPE).await;
    _ = exec.end().await;
    std::future::pending().await
}

/// Never ends: when there is no more input, or nobody who wants it, that is no end of the exec.
async fn feed(exec: &impl Exec, stream_input: bool) -> Infallible {
    if stream_input {
        let mut input = input::stream();
        let mut wanted = true;
        while let Some(chunk) = input.recv().await {
            // The command closed its input or ended. Started directly, it would leave the rest unread too.
            wanted = exec.stdin(chunk, false).await.is_ok();
            if !wanted {
                break;
            }
        }
        if wanted {
            _ = exec.stdin(Vec::new(), true).await;
        }
    }
    std::future::pending().await
}

/// Hands signals on to the command, and returns when it ended by one while nobody reads its output. A sandbox that
/// cannot be reached shows in the output stream, so failures here are left to it.
async fn forward(exec: &impl Exec, tty: bool, signals: &mut Signals) -> Exit {
    let mut told = None;
    loop {
        tokio::select! {
            number = signals.next() => told = hand_on(exec, tty, number).await.or(told),
            // Asking again after the next signal gives the same answer.
            exit = end_unread(exec, told) => return exit,
        }
    }
}

/// A signal that ends programs that do not catch it, and whether the command still ran when it came.
#[derive(Debug, Clone, Copy)]
struct Told {
    number: i32,
    in_time: bool,
}

async fn hand_on(exec: &impl Exec, tty: bool, number: i32) -> Option<Told> {
    match number {
        SIGWINCH => {
            if let Some(size) = terminal::size().filter(|_| tty) {
                _ = exec.resize(size).await;
            }
            None
        }
        // The command has no terminal that could stop it, so it is stopped by force, and cubicle with it.
        SIGTSTP => {
            _ = exec.signal(SIGSTOP).await;
            _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::STOP);
            None
        }
        SIGCONT => {
            _ = exec.signal(SIGCONT).await;
            None
        }
        number => Some(Told { number, in_time: exec.signal(number).await.is_ok() }),
    }
}

/// Started directly, a command that waits for a reader dies by a signal all the same, and what nobody read is gone.
/// Here the output waits in the journal, so the end is told apart from its delivery.
async fn end_unread(exec: &impl Exec, told: Option<Told>) -> Exit {
    let Some(Told { number, in_time }) = told else { return std::future::pending().await };
    let Ok(exit) = exec.wait().await else { return std::future::pending().await };
    sleep(UNREAD).await;
    exit.filter(|_| in_time).unwrap_or(Exit::Signal(number))
}
