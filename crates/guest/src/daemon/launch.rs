//! Starting an exec.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use cubicle_model::{Command, ExecId, Stdin};
use cubicle_sys::spawn::{self, Program, Spawn, SpawnError, Step, Strings};
use cubicle_sys::{clock, file_identity, terminal};
use rustix::event::epoll::EventFlags;
use rustix::fs::{Mode, OFlags};
use rustix::pipe::PipeFlags;

use super::exec::{Exec, Live, Truncation, Which};
use super::execute::Execution;
use super::http::Refusal;
use super::input::Input;
use super::server::{Server, Token};
use super::spec::{BUILTIN, CheckedSpec};
use super::timers::Due;
use super::tree::{self, Tag};
use super::zygotes::{Held, WarmStart};
use super::{Workload, output};
use crate::journal::{Draft, Kind};
use crate::wire;

/// A longer command is shortened in its `start` record.
const LONGEST_KEPT_COMMAND: usize = 32 * 1024;
pub(super) const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Both sides of an exec's standard streams.
struct Streams {
    stdin: Arc<OwnedFd>,
    child: [OwnedFd; 2],
    stdout: OwnedFd,
    stderr: Option<OwnedFd>,
    input: Input,
}

/// What an exec has beside its spec.
#[derive(Debug, Default)]
pub(super) struct Beside {
    pub(super) tool_name: Option<String>,
    pub(super) execution: Option<Box<Execution>>,
    /// Its standard input, instead of what the spec says.
    pub(super) stdin: Option<OwnedFd>,
    /// There when an interpreter that is ready may run it.
    pub(super) warm: Option<WarmStart>,
}

impl Server {
    /// Starts an exec and writes its `start` record. After an error nothing runs and nothing is recorded.
    pub(super) fn launch(&mut self, spec: &CheckedSpec) -> Result<u32, Refusal> {
        self.launch_with(spec, &mut Beside::default())
    }

    /// The same; what is beside the spec is left there after an error.
    pub(super) fn launch_with(&mut self, spec: &CheckedSpec, beside: &mut Beside) -> Result<u32, Refusal> {
        if self.execs.live_count() >= self.settings.max_execs {
            let most = self.settings.max_execs;
            return Err(Refusal::new(429, "too_many_execs", format!("{most} execs run already"))
                .hint("wait for one to end, or end one"));
        }
        let number = self.execs.next_number();
        let id = spec.exec_id.unwrap_or_else(|| ExecId::from_random(self.random()));
        let (command, command_shortened) = shortened(&spec.command);
        let mut start = wire::Start {
            exec_id: id,
            command,
            command_shortened,
            cwd: spec.cwd.clone(),
            tty: spec.tty.is_some(),
            pid: i32::MAX,
            tool_name: beside.tool_name.clone(),
            warm: false,
        };
        let longest = serde_json::to_vec(&start).map_or(LONGEST_KEPT_COMMAND * 2, |start| start.len());
        if !self.journal.has_room_for(longest, output::kept_free(self.execs.live_count() + 1)) {
            return Err(Refusal::new(507, "journal_full", "the sandbox's journal has reached its limit")
                .hint("go on in a new sandbox, or make one with a larger journal limit"));
        }
        let mut streams = self.open_streams(spec).map_err(|error| {
            Refusal::new(503, "no_descriptors", format!("cannot open the exec's streams: {error}"))
        })?;
        if let Some(stdin) = beside.stdin.take() {
            streams.stdin = stdin.into();
        }
        let tag = Tag::of(number);
        let oom_kills_before = self.oom.count();
        let held = beside.warm.as_ref().and_then(|warm| self.hold(warm, spec, &streams, tag));
        let pid = match &held {
            Some(held) => held.pid,
            None => self.spawn(spec, &streams, tag)?,
        };
        (start.pid, start.warm) = (pid, held.is_some());
        let payload = serde_json::to_vec(&start).expect("a start has only string keys");
        let draft = Draft {
            kind: Kind::Start,
            exec: number,
            time_us: clock::unix_micros(),
            stream_offset: 0,
            payload: &payload,
        };
        let appended = match self.journal.append_from_reserve(&[draft]) {
            Ok(appended) => appended,
            Err(error) => {
                tree::kill(tag);
                return Err(Refusal::new(
                    507,
                    "journal_unwritable",
                    format!("cannot write the journal: {error}"),
                )
                .hint("make room on the filesystem of the data directory"));
            }
        };
        let timeout_due = spec.timeout_nanos.map(|nanos| clock::boot_nanos().saturating_add(nanos));
        let Streams { stdin: _, child: _, stdout, stderr, input } = streams;
        let live = Live {
            pid,
            stdout: Some(stdout),
            stderr,
            input,
            has_terminal: spec.tty.is_some(),
            reaped: None,
            timed_out: false,
            ended_by_us: false,
            oom_kills_before,
            truncated: Truncation::default(),
            lost: Default::default(),
            timeout_due,
        };
        self.execs.insert(Exec {
            id,
            number,
            start_seq: appended.seq,
            start_offset: appended.offset,
            output: Default::default(),
            exit: None,
            exit_end: None,
            eof_end: None,
            ending: None,
            execution: beside.execution.take(),
            live: Some(Box::new(live)),
        });
        self.watch_streams(number);
        if let Some(held) = held {
            self.let_go(&held);
        }
        if let Some(due) = timeout_due {
            self.timers.add(due, Due::Timeout(number));
        }
        Ok(number)
    }

    fn watch_streams(&mut self, number: u32) {
        for which in [Which::Stdout, Which::Stderr] {
            let Some(live) = self.execs.live_mut(number) else { return };
            if let Some(pipe) = live.pipe(which).as_ref() {
                let watched = self.epoll.add(pipe.as_fd(), Token::Output(number, which), EventFlags::IN);
                if watched.is_err() {
                    // Without a watch nothing would ever be read; a closed pipe is at least seen by the process.
                    *live.pipe(which) = None;
                }
            }
        }
        self.write_input(number);
    }

    fn hold(&mut self, warm: &WarmStart, spec: &CheckedSpec, streams: &Streams, tag: Tag) -> Option<Held> {
        let base = self.settings.env.clone();
        let env = environment_of(&base, spec);
        let stdio = [streams.stdin.as_fd(), streams.child[0].as_fd(), streams.child[1].as_fd()];
        self.hold_warm(warm, &spec.cwd, &env, stdio, tag)
    }

    fn spawn(&self, spec: &CheckedSpec, streams: &Streams, tag: Tag) -> Result<i32, Refusal> {
        let env = environment_of(&self.settings.env, spec);
        let path = env.get("PATH").copied().unwrap_or(DEFAULT_PATH);
        let candidates = candidates(&spec.arguments[0], path);
        let candidates: Vec<&CStr> = candidates.iter().map(CString::as_c_str).collect();
        let variables: Vec<String> = env.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let working_directory = c_string(&spec.cwd);
        let program = match &self.settings.builtin_exe {
            Some(file) if spec.arguments[0] == BUILTIN => Program::File(file.as_fd()),
            _ => Program::FirstOf(&candidates),
        };
        spawn::spawn(&Spawn {
            program,
            arguments: &Strings::new(spec.arguments.iter().map(String::as_bytes)),
            environment: &Strings::new(variables.iter().map(String::as_bytes)),
            working_directory: &working_directory,
            stdio: [streams.stdin.as_fd(), streams.child[0].as_fd(), streams.child[1].as_fd()],
            has_terminal: spec.tty.is_some(),
            ids: self.settings.workload.ids(),
            tag: Some(spawn::Tag { value: tag.0, permit: self.settings.permit }),
        })
        .map_err(|error| refusal(&error, spec))
    }

    fn open_streams(&mut self, spec: &CheckedSpec) -> io::Result<Streams> {
        if let Some(size) = spec.tty {
            let open = || terminal::open(size.rows, size.columns);
            let pair = match self.settings.workload {
                Workload::TwoUids { uid, gid } => file_identity::with(uid, gid, open)?,
                Workload::OneUid => open()?,
            };
            let (stdin, stdout) = (pair.terminal.try_clone()?, pair.terminal.try_clone()?);
            let mut input = Input::terminal(pair.controller.try_clone()?);
            if let Stdin::Text(text) = &spec.stdin {
                input.push(text.as_bytes());
                input.close();
            }
            let child = [stdout, pair.terminal];
            return Ok(Streams { stdin: stdin.into(), child, stdout: pair.controller, stderr: None, input });
        }
        let (stdin, input) = match &spec.stdin {
            Stdin::Closed => (self.null()?, Input::none()),
            Stdin::Text(_) | Stdin::Stream => {
                let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
                rustix::io::ioctl_fionbio(&write, true)?;
                let mut input = Input::pipe(write);
                if let Stdin::Text(text) = &spec.stdin {
                    input.push(text.as_bytes());
                    input.close();
                }
                (read.into(), input)
            }
        };
        let (stdout, child_stdout) = output_pipe()?;
        let (stderr, child_stderr) = output_pipe()?;
        Ok(Streams { stdin, child: [child_stdout, child_stderr], stdout, stderr: Some(stderr), input })
    }

    /// Opened once, when the first exec needs it.
    fn null(&mut self) -> io::Result<Arc<OwnedFd>> {
        if let Some(null) = &self.null {
            return Ok(Arc::clone(null));
        }
        let null = rustix::fs::open(c"/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Arc::clone(self.null.insert(Arc::new(null))))
    }
}

fn environment_of<'a>(
    base: &'a BTreeMap<String, String>,
    spec: &'a CheckedSpec,
) -> BTreeMap<&'a str, &'a str> {
    let mut env: BTreeMap<&str, &str> =
        base.iter().chain(&spec.env).map(|(name, value)| (name.as_str(), value.as_str())).collect();
    if spec.tty.is_some() {
        env.entry("TERM").or_insert("xterm-256color");
    }
    env
}

/// The process's end blocks, ours does not.
fn output_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&read, true)?;
    Ok((read, write))
}

fn c_string(text: &str) -> CString {
    // Checked specs have no zero byte; without one this cannot fail.
    CString::new(text).unwrap_or_default()
}

pub(super) fn candidates(program: &str, path: &str) -> Vec<CString> {
    if program.contains('/') {
        return vec![c_string(program)];
    }
    // As in every shell, an empty entry is the working directory.
    path.split(':')
        .map(|directory| match directory {
            "" => c_string(&format!("./{program}")),
            directory => c_string(&format!("{directory}/{program}")),
        })
        .collect()
}

fn shortened(command: &Command) -> (Command, bool) {
    let cut = |text: &str, room: usize| {
        let end = (0..=room.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text[..end].to_owned()
    };
    match command {
        Command::Shell(script) if script.len() <= LONGEST_KEPT_COMMAND => (command.clone(), false),
        Command::Shell(script) => (Command::Shell(cut(script, LONGEST_KEPT_COMMAND)), true),
        Command::Argv(arguments) => {
            // Quotes and a comma are counted, so that many short arguments are long too.
            let mut room = LONGEST_KEPT_COMMAND;
            let mut kept = Vec::new();
            for argument in arguments {
                if argument.len() + 3 > room {
                    kept.push(cut(argument, room.saturating_sub(3)));
                    return (Command::Argv(kept), true);
                }
                room -= argument.len() + 3;
                kept.push(argument.clone());
            }
            (Command::Argv(kept), false)
        }
    }
}

fn refusal(failed: &SpawnError, spec: &CheckedSpec) -> Refusal {
    let program = spec.arguments[0].chars().take(200).collect::<String>();
    let reason = &failed.error;
    let errno = rustix::io::Errno::from_io_error(reason);
    match (failed.step, errno) {
        (Step::Execute, Some(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR)) => {
            let refusal = Refusal::new(422, "command_not_found", format!("there is no program {program:?} in the sandbox"));
            if program.contains('/') {
                refusal.hint("check the path; if the file is there, the interpreter in its first line or its dynamic loader is missing")
            } else {
                refusal.hint("install it in the sandbox, or give the path of the program")
            }
        }
        (Step::Execute, Some(rustix::io::Errno::TOOBIG)) => {
            Refusal::new(422, "arguments_too_long", "the kernel does not take that many bytes of arguments and environment")
                .hint("one argument can have 128 KiB, all together about 2 MiB: pass more through standard input or a file")
        }
        (Step::Execute, Some(rustix::io::Errno::NOMEM | rustix::io::Errno::AGAIN)) | (Step::Clone, _) => {
            Refusal::new(503, "no_resources", format!("the sandbox has no room for another process: {reason}"))
                .hint("end something in the sandbox, or give it higher limits")
        }
        (Step::Execute, _) => Refusal::new(422, "not_executable", format!("{program:?} cannot be run: {reason}"))
            .hint("make the file executable (chmod +x); a script needs an interpreter line such as #!/bin/sh"),
        (Step::WorkingDirectory, _) => {
            Refusal::new(422, "cwd_missing", format!("cannot enter the working directory {:?}: {reason}", spec.cwd))
                .hint("make the directory first, or name another one")
        }
        (Step::Killed, _) => Refusal::new(503, "killed_at_start", "the process was killed before it ran its program"),
        (Step::Session | Step::Terminal | Step::Stdio | Step::Tag | Step::Identity, _) => {
            Refusal::new(500, "internal", format!("cannot prepare the process ({:?}): {reason}", failed.step))
        }
    }
}
