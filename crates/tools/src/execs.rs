//! Running commands, and following those that go on.

use std::collections::BTreeMap;
use std::time::Duration;

use cubicle_model::{Command, ExecId, ExecSpec, Exit, Kind, SandboxId, Stdin};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout, timeout_at};

use crate::bench::{Bench, Follow, Output, What};
use crate::call::Watch;
use crate::error::ToolError;
use crate::output::{Kept, Pieces};

pub(crate) const USUAL_TIMEOUT: f64 = 300.0;
pub(crate) const LONGEST_TIMEOUT: f64 = 604_800.0;
pub(crate) const USUAL_OUTPUT: usize = 64 * 1024;
pub(crate) const LARGEST_OUTPUT: usize = 1024 * 1024;
const LONGEST_WAIT: f64 = 300.0;
/// When nothing comes for so long everything that there is has come.
const QUIET: Duration = Duration::from_millis(250);
/// For the rest of the output once a command has ended.
const LEFT_RUNNING: Duration = Duration::from_millis(500);
/// Output that comes fast is told of together.
const TOGETHER: Duration = Duration::from_millis(50);
/// Of one notice of progress; the rest is in the answer.
const LONGEST_NOTICE: usize = 16 * 1024;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Execute {
    command: String,
    #[serde(default)]
    timeout: Option<f64>,
    #[serde(default)]
    cwd: Option<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    #[serde(default)]
    stdin: Option<String>,
    #[serde(default)]
    background: bool,
    #[serde(default)]
    max_output_bytes: Option<usize>,
}

/// How an exec is doing, or how it ended.
#[derive(Debug, Serialize)]
pub(crate) struct Executed {
    pub(crate) exec_id: String,
    /// `running` or `ended`.
    pub(crate) state: &'static str,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    /// As a shell would say it; none while it runs.
    pub(crate) exit_code: Option<i32>,
    pub(crate) timed_out: bool,
    /// `exit`, `signal`, `out_of_memory`, `timeout` or `unknown`; none while it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ended_by: Option<&'static str>,
    pub(crate) stdout_truncated: bool,
    pub(crate) stderr_truncated: bool,
    /// What `exec_output` goes on from.
    pub(crate) next_seq: u64,
}

pub(crate) async fn execute(
    bench: &dyn Bench,
    sandbox: SandboxId,
    asked: Execute,
    watch: &dyn Watch,
) -> Result<Executed, ToolError> {
    if asked.command.trim().is_empty() {
        return Err(ToolError::invalid("'command' is empty"));
    }
    let most = output_limit(asked.max_output_bytes)?;
    let exec = bench.exec_id();
    let spec = ExecSpec {
        cwd: asked.cwd.map(|cwd| absolute(&cwd)),
        env: asked.env,
        stdin: asked.stdin.map_or(Stdin::Closed, Stdin::Text),
        // What is left to go on has no end of its own, unless it was given one.
        timeout_seconds: match (asked.timeout, asked.background) {
            (None, true) => None,
            (timeout, _) => Some(checked_timeout(timeout)?),
        },
        exec_id: Some(exec),
        ..ExecSpec::new(Command::Shell(asked.command))
    };
    if asked.background {
        bench.start(sandbox, spec).await?;
        return Ok(Executed::running(exec));
    }
    watch.starts(sandbox, exec);
    bench.start(sandbox, spec).await?;
    to_its_end(bench, sandbox, exec, most, watch).await
}

/// Follows an exec to its end.
pub(crate) async fn to_its_end(
    bench: &dyn Bench,
    sandbox: SandboxId,
    exec: ExecId,
    most: usize,
    watch: &dyn Watch,
) -> Result<Executed, ToolError> {
    let mut follow = bench.follow(sandbox, exec, 0).await?;
    let mut gathered = Gathered::new(exec, most);
    let mut notices = Notices::new(watch);
    loop {
        let next = notices.next(follow.as_mut());
        let next = match gathered.exit {
            None => next.await?,
            // What the command left running may hold its output open for as long as it likes.
            Some(_) => match timeout(LEFT_RUNNING, next).await {
                Ok(next) => next?,
                Err(_) => break,
            },
        };
        let Some(output) = next else { break };
        notices.take(&output);
        gathered.take(&output);
    }
    notices.tell().await;
    if gathered.exit.is_none() {
        return Err(ToolError::new(
            Kind::Unavailable,
            "unavailable",
            format!("how {exec} ended is not known"),
        )
        .hint("its sandbox may have ended before it did"));
    }
    Ok(gathered.executed())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExecOutput {
    exec_id: String,
    #[serde(default)]
    from_seq: u64,
    #[serde(default)]
    wait_seconds: f64,
    #[serde(default)]
    max_output_bytes: Option<usize>,
}

/// What an exec has printed since, waiting for something to come if that was asked for.
pub(crate) async fn exec_output(
    bench: &dyn Bench,
    sandbox: SandboxId,
    asked: ExecOutput,
) -> Result<Executed, ToolError> {
    let exec = exec_id(&asked.exec_id)?;
    let most = output_limit(asked.max_output_bytes)?;
    if !(0.0..=LONGEST_WAIT).contains(&asked.wait_seconds) {
        return Err(ToolError::invalid(format!("'wait_seconds' is 0 to {LONGEST_WAIT}")));
    }
    if i64::try_from(asked.from_seq).is_err() {
        return Err(ToolError::invalid("'from_seq' is not a seq"));
    }
    let mut follow = bench.follow(sandbox, exec, asked.from_seq).await?;
    let mut gathered = Gathered::new(exec, usize::MAX);
    gathered.next_seq = asked.from_seq;
    let wait = Instant::now() + Duration::from_secs_f64(asked.wait_seconds).max(QUIET);
    let mut deadline = wait;
    // The stream is not read again after it was too late, so that nothing is lost with it.
    while let Ok(next) = timeout_at(deadline, follow.next()).await {
        let Some(output) = next? else {
            gathered.is_complete = true;
            break;
        };
        gathered.take(&output);
        if gathered.size() >= most as u64 {
            break;
        }
        if gathered.size() > 0 {
            deadline = wait.min(Instant::now() + QUIET);
        }
    }
    Ok(gathered.executed())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExecStop {
    exec_id: String,
    #[serde(default)]
    grace_seconds: Option<f64>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Stopped {
    exec_id: String,
    stopped: bool,
}

pub(crate) async fn exec_stop(
    bench: &dyn Bench,
    sandbox: SandboxId,
    asked: ExecStop,
) -> Result<Stopped, ToolError> {
    let exec = exec_id(&asked.exec_id)?;
    let grace = match asked.grace_seconds {
        Some(seconds) if !(0.0..=600.0).contains(&seconds) => {
            return Err(ToolError::invalid("'grace_seconds' is 0 to 600"));
        }
        grace => grace.map(Duration::from_secs_f64),
    };
    bench.end(sandbox, exec, grace).await?;
    Ok(Stopped { exec_id: exec.to_string(), stopped: true })
}

/// What has been seen of an exec.
struct Gathered {
    exec: ExecId,
    stdout: Kept,
    stderr: Kept,
    exit: Option<(Exit, bool)>,
    is_complete: bool,
    next_seq: u64,
}

impl Gathered {
    fn new(exec: ExecId, most: usize) -> Self {
        let (stdout, stderr) = (Kept::new(most), Kept::new(most));
        Self { exec, stdout, stderr, exit: None, is_complete: false, next_seq: 0 }
    }

    fn take(&mut self, output: &Output) {
        self.next_seq = output.seq + 1;
        match &output.what {
            What::Stdout(bytes) => self.stdout.take(bytes),
            What::Stderr(bytes) => self.stderr.take(bytes),
            What::Exited { exit, timed_out } => self.exit = Some((*exit, *timed_out)),
            What::Other => {}
        }
    }

    fn size(&self) -> u64 {
        self.stdout.written + self.stderr.written
    }

    fn executed(self) -> Executed {
        let exit = self.exit;
        Executed {
            exec_id: self.exec.to_string(),
            state: if exit.is_some() || self.is_complete { "ended" } else { "running" },
            stdout_truncated: self.stdout.is_cut(),
            stderr_truncated: self.stderr.is_cut(),
            stdout: self.stdout.text(),
            stderr: self.stderr.text(),
            exit_code: exit.map(|(exit, _)| exit.shell_code()),
            timed_out: exit.is_some_and(|(_, timed_out)| timed_out),
            ended_by: exit.map(|(exit, _)| ended_by(exit)),
            next_seq: self.next_seq,
        }
    }
}

impl Executed {
    fn running(exec: ExecId) -> Self {
        Gathered::new(exec, 0).executed()
    }
}

fn ended_by(exit: Exit) -> &'static str {
    match exit {
        Exit::Code(_) => "exit",
        Exit::Signal(_) => "signal",
        Exit::Oom => "out_of_memory",
        Exit::TimedOut => "timeout",
        Exit::Unknown | Exit::NotStarted => "unknown",
    }
}

/// Tells a watcher of output in real time, without a notice for every byte.
struct Notices<'a> {
    watch: &'a dyn Watch,
    stdout: Pieces,
    stderr: Pieces,
    waiting: String,
    written: u64,
    due: Option<Instant>,
}

impl<'a> Notices<'a> {
    fn new(watch: &'a dyn Watch) -> Self {
        let (stdout, stderr) = (Pieces::default(), Pieces::default());
        Self { watch, stdout, stderr, waiting: String::new(), written: 0, due: None }
    }

    /// The next record; what waits to be told of is told of while none comes.
    async fn next(&mut self, follow: &mut dyn Follow) -> Result<Option<Output>, ToolError> {
        let next = follow.next();
        tokio::pin!(next);
        if let Some(due) = self.due {
            if let Ok(output) = timeout_at(due, &mut next).await {
                return output;
            }
            self.tell().await;
        }
        next.await
    }

    fn take(&mut self, output: &Output) {
        if !self.watch.listens() {
            return;
        }
        let (bytes, pieces) = match &output.what {
            What::Stdout(bytes) => (bytes, &mut self.stdout),
            What::Stderr(bytes) => (bytes, &mut self.stderr),
            What::Exited { .. } | What::Other => return,
        };
        self.written += bytes.len() as u64;
        let text = pieces.take(bytes);
        if self.waiting.len() < LONGEST_NOTICE {
            self.waiting.push_str(&text);
        }
        self.due.get_or_insert_with(|| Instant::now() + TOGETHER);
    }

    async fn tell(&mut self) {
        self.due = None;
        let text = std::mem::take(&mut self.waiting);
        if !text.is_empty() {
            self.watch.output(self.written, &text).await;
        }
    }
}

fn exec_id(text: &str) -> Result<ExecId, ToolError> {
    text.parse().map_err(|error: cubicle_model::ParseIdError| ToolError::invalid(error.to_string()))
}

pub(crate) fn output_limit(asked: Option<usize>) -> Result<usize, ToolError> {
    match asked.unwrap_or(USUAL_OUTPUT) {
        most if (1..=LARGEST_OUTPUT).contains(&most) => Ok(most),
        _ => Err(ToolError::invalid(format!("'max_output_bytes' is 1 to {LARGEST_OUTPUT}"))),
    }
}

pub(crate) fn checked_timeout(asked: Option<f64>) -> Result<f64, ToolError> {
    match asked.unwrap_or(USUAL_TIMEOUT) {
        seconds if seconds > 0.0 && seconds <= LONGEST_TIMEOUT => Ok(seconds),
        _ => {
            Err(ToolError::invalid(format!("'timeout' is more than 0 and at most {LONGEST_TIMEOUT} seconds")))
        }
    }
}

pub(crate) fn absolute(path: &str) -> String {
    if path.starts_with('/') { path.to_owned() } else { format!("/workspace/{path}") }
}
