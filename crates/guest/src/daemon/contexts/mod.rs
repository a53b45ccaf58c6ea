//! Contexts: interpreters that keep their state from one cell to the next.
//!
//! A context is an exec whose standard input is a socket to the daemon. What it prints is output like any other; what it
//! tells over the socket becomes `cell` records of the same journal. A restart gives it another exec and leaves its id.

mod cells;
mod channel;
mod language;

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::AsFd;

use cubicle_model::{Command, ExecId, Stdin};
use cubicle_sys::clock;
use rustix::event::epoll::EventFlags;

use self::cells::{Running, Span};
use self::channel::Channel;
pub use self::channel::decode_context_event;
use self::language::Language;
use super::connection::{Connection, Phase};
use super::ending;
use super::http::{self, Head, Refusal};
use super::launch::Beside;
use super::routes::{Answer, parse, to_value};
use super::server::{Server, Token};
use super::spec::{self, CheckedSpec};
use super::stream::{Format, Stream, Until};
use crate::wire::context::{Cell, ContextList, ContextState, CreateContext, LONGEST_CELL, MOST_CONTEXTS};
use crate::wire::{self};

/// How long the beginning of a cell may wait for its end, to be sent with it.
const HOLD_NANOS: u64 = 2_000_000;

#[derive(Debug, Default)]
pub(super) struct Contexts {
    all: BTreeMap<ExecId, Context>,
    /// Which context an exec is the interpreter of.
    by_exec: BTreeMap<u32, ExecId>,
    /// The last cells of every interpreter, also of one that is gone: whoever reads one of them comes to its end.
    cells: BTreeMap<u32, VecDeque<Span>>,
    /// Cells that have ended, and whose `end` could not be written yet.
    unwritten: Vec<cells::Unwritten>,
}

#[derive(Debug)]
struct Context {
    id: ExecId,
    plan: Plan,
    /// Its interpreter.
    exec: u32,
    /// Absent when its interpreter has ended or is not to be listened to any more.
    channel: Option<Channel>,
    ready: bool,
    /// Cells that the interpreter was given.
    count: u64,
    running: Option<Running>,
    /// The cell before was interrupted, perhaps too late for it: the next one must not take that for its own.
    stale_interrupt: bool,
}

/// What a context is started with, the first time and every other.
#[derive(Debug, Clone)]
struct Plan {
    language: Language,
    program: String,
    cwd: String,
    env: BTreeMap<String, String>,
    env_name: Option<String>,
}

impl Context {
    fn state(&self) -> ContextState {
        match (&self.channel, &self.running) {
            (None, _) => ContextState::Dead,
            (Some(_), Some(_)) => ContextState::Busy,
            (Some(_), None) => ContextState::Idle,
        }
    }
}

impl Contexts {
    fn of_exec(&mut self, number: u32) -> Option<&mut Context> {
        self.all.get_mut(self.by_exec.get(&number)?)
    }

    fn find(&mut self, id: &str) -> Result<&mut Context, Refusal> {
        let id: ExecId =
            id.parse().map_err(|error: cubicle_model::ParseIdError| Refusal::invalid(error.to_string()))?;
        self.all.get_mut(&id).ok_or_else(|| {
            Refusal::new(404, "context_not_found", "this sandbox has no such context")
                .hint("GET /contexts lists those that it has")
        })
    }

    /// Where a cell's last record ends, once that is known.
    pub(super) fn cell_end(&self, exec: u32, begin: u64) -> Option<u64> {
        self.cells.get(&exec)?.iter().rev().find(|span| span.begin == begin)?.end
    }
}

impl Server {
    /// `parts` is the path behind `/contexts`.
    pub(super) fn answer_contexts(
        &mut self,
        connection: &mut Connection,
        head: &Head,
        parts: &[&str],
        body: &[u8],
    ) -> Result<Answer, Refusal> {
        match (head.method.as_str(), parts) {
            ("POST", []) => self.create_context(parse(body)?),
            ("GET", []) => {
                let contexts = self.contexts.all.values().map(|context| self.shown(context)).collect();
                Ok(Answer::Json(200, to_value(&ContextList { contexts })))
            }
            ("GET", [id]) => {
                let id = self.contexts.find(id)?.id;
                Ok(self.show_context(200, id))
            }
            ("DELETE", [id]) => self.delete_context(id),
            ("POST", [id, "execute"]) => self.execute_cell(connection, head, id, parse(body)?),
            ("GET", [id, "output"]) => self.show_cell(connection, head, id),
            ("POST", [id, "interrupt"]) => self.interrupt_context(id),
            ("POST", [id, "restart"]) => self.restart_context(id),
            (_, [] | [_] | [_, "execute" | "output" | "interrupt" | "restart"]) => {
                let (method, path) = (&head.method, &head.path);
                Err(Refusal::new(405, "method_not_allowed", format!("{path} cannot be asked to {method}")))
            }
            _ => Err(Refusal::new(404, "no_such_route", format!("there is nothing at {}", head.path))),
        }
    }

    fn create_context(&mut self, request: CreateContext) -> Result<Answer, Refusal> {
        let plan = self.plan_context(&request)?;
        if let Some(id) = request.exec_id {
            if self.contexts.all.contains_key(&id) {
                return Ok(self.show_context(200, id));
            }
            if self.execs.number_of(&id).is_some() {
                return Err(Refusal::new(409, "exec_id_taken", "another exec had this id already")
                    .hint("choose another id, or leave it to the sandbox"));
            }
        }
        if self.contexts.all.len() >= MOST_CONTEXTS {
            let message = format!("the sandbox has {MOST_CONTEXTS} contexts already");
            return Err(Refusal::new(429, "too_many_contexts", message).hint("delete one first"));
        }
        let id = request.exec_id.unwrap_or_else(|| ExecId::from_random(self.random()));
        let (exec, channel) = self.launch_context(id, &plan)?;
        let context = Context {
            id,
            plan,
            exec,
            channel: Some(channel),
            ready: false,
            count: 0,
            running: None,
            stale_interrupt: false,
        };
        self.contexts.all.insert(id, context);
        self.contexts.by_exec.insert(exec, id);
        Ok(self.show_context(201, id))
    }

    fn plan_context(&self, request: &CreateContext) -> Result<Plan, Refusal> {
        let language = Language::parse(request.language.as_deref())?;
        let cwd = spec::check_directory(request.cwd.clone())?;
        spec::check_environment(&request.env)?;
        let program = match &request.env_name {
            None if language == Language::JavaScript => self.find_node(&request.env)?,
            None => language.program().to_owned(),
            Some(_) if language != Language::Python => {
                return Err(Refusal::invalid("only python has environments"));
            }
            Some(name) => {
                let found = self.environments.get(name).ok_or_else(|| {
                    let name: String = name.chars().take(100).collect();
                    Refusal::new(404, "env_not_found", format!("this sandbox has no environment {name:?}"))
                })?;
                found.python.clone()
            }
        };
        let mut env = std::collections::BTreeMap::new();
        if request.env_name.is_some() {
            self.enter_environment(&mut env, &program);
        }
        env.extend(request.env.clone());
        let env_name = request.env_name.clone();
        Ok(Plan { language, program, cwd, env, env_name })
    }

    /// A shell starts Node, and would only say that there is none where nobody reads it.
    fn find_node(&self, env: &BTreeMap<String, String>) -> Result<String, Refusal> {
        let path = env.get("PATH").or_else(|| self.settings.env.get("PATH"));
        let mut candidates = path.map_or("/usr/local/bin:/usr/bin:/bin", String::as_str).split(':');
        let found = candidates.find(|directory| std::path::Path::new(directory).join("node").exists());
        match found {
            Some(directory) => Ok(format!("{directory}/node")),
            None => {
                Err(Refusal::new(422, "command_not_found", "there is no program \"node\" in the sandbox")
                    .hint("install it in the sandbox, or use another language"))
            }
        }
    }

    /// Starts an interpreter. After an error nothing runs.
    fn launch_context(&mut self, exec_id: ExecId, plan: &Plan) -> Result<(u32, Channel), Refusal> {
        let no_descriptors = |error: std::io::Error| {
            Refusal::new(503, "no_descriptors", format!("cannot open the context's streams: {error}"))
        };
        let (mut channel, theirs) = Channel::new().map_err(no_descriptors)?;
        // Whoever reads the journal is not helped by the program that the daemon brings.
        let command = Command::Argv(vec![plan.program.clone(), "<context>".into()]);
        let spec = CheckedSpec {
            exec_id: Some(exec_id),
            command,
            arguments: plan.language.arguments(&plan.program),
            cwd: plan.cwd.clone(),
            env: plan.env.clone(),
            stdin: Stdin::Closed,
            tty: None,
            timeout_nanos: None,
        };
        let number = self.launch_with(&spec, &mut Beside { stdin: Some(theirs), ..Beside::default() })?;
        if let Some(kernel) = plan.language.kernel() {
            channel.push(&format!("kernel {}", kernel.len()), kernel.as_bytes());
        }
        channel.waits_for_room = channel.flush();
        let flags = if channel.waits_for_room { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
        if let Err(error) = self.epoll.add(channel.fd().as_fd(), Token::Context(number), flags) {
            self.end_exec(number, 0, false);
            return Err(no_descriptors(error));
        }
        Ok((number, channel))
    }

    fn shown(&self, context: &Context) -> wire::context::Context {
        wire::context::Context {
            context_id: context.id,
            exec_id: self.execs.get(context.exec).map_or(context.id, |exec| exec.id),
            language: context.plan.language.name().into(),
            cwd: context.plan.cwd.clone(),
            state: context.state(),
            execution_count: context.count,
            env_name: context.plan.env_name.clone(),
        }
    }

    fn show_context(&self, status: u16, id: ExecId) -> Answer {
        let shown = self.contexts.all.get(&id).map(|context| self.shown(context));
        Answer::Json(status, to_value(&shown))
    }

    fn delete_context(&mut self, id: &str) -> Result<Answer, Refusal> {
        let (id, exec) = {
            let context = self.contexts.find(id)?;
            (context.id, context.exec)
        };
        self.abandon(exec);
        let answer = self.show_context(200, id);
        self.contexts.all.remove(&id);
        self.end_exec(exec, ending::GRACE_NANOS, false);
        Ok(answer)
    }

    fn restart_context(&mut self, id: &str) -> Result<Answer, Refusal> {
        let (id, old, plan) = {
            let context = self.contexts.find(id)?;
            (context.id, context.exec, context.plan.clone())
        };
        // The new one is there before the old one goes: a restart that is refused takes nothing away.
        let (exec, channel) = self.launch_context(ExecId::from_random(self.random()), &plan)?;
        self.abandon(old);
        self.end_exec(old, 0, false);
        self.contexts.by_exec.insert(exec, id);
        if let Some(context) = self.contexts.all.get_mut(&id) {
            (context.exec, context.channel) = (exec, Some(channel));
            (context.ready, context.count, context.stale_interrupt) = (false, 0, false);
        }
        Ok(self.show_context(200, id))
    }

    /// Listens to an interpreter no more. Its cell ends here.
    fn abandon(&mut self, exec: u32) {
        self.drain_output(exec);
        self.end_cell_of_the_dead(exec);
        self.contexts.by_exec.remove(&exec);
        if let Some(spans) = self.contexts.cells.get_mut(&exec) {
            spans.drain(..spans.len().saturating_sub(1));
            spans.shrink_to_fit();
        }
    }

    fn interrupt_context(&mut self, id: &str) -> Result<Answer, Refusal> {
        let (id, exec) = {
            let context = self.contexts.find(id)?;
            if context.state() == ContextState::Dead {
                return Err(dead());
            }
            (context.id, context.exec)
        };
        self.interrupt_cell(exec);
        Ok(self.show_context(200, id))
    }

    fn execute_cell(
        &mut self,
        connection: &mut Connection,
        head: &Head,
        id: &str,
        cell: Cell,
    ) -> Result<Answer, Refusal> {
        if cell.code.len() > LONGEST_CELL {
            return Err(Refusal::new(
                413,
                "body_too_long",
                format!("the code is longer than {LONGEST_CELL} bytes"),
            )
            .hint("write it to a file first, and run that"));
        }
        let timeout_nanos = cell.timeout_seconds.map(spec::timeout).transpose()?;
        let exec = {
            let context = self.contexts.find(id)?;
            match context.state() {
                ContextState::Idle => context.exec,
                ContextState::Dead => return Err(dead()),
                ContextState::Busy => {
                    return Err(Refusal::new(409, "context_busy", "this context runs a cell already")
                        .hint("wait for its end, interrupt it, or use another context"));
                }
            }
        };
        let begin = self.begin_cell(exec, &cell.code, timeout_nanos)?;
        let mut stream = self.cell_stream(connection, head, exec, begin.seq, begin.offset);
        // Most cells are short: their beginning, output and end then go out together, and wake their reader once.
        stream.held_until = Some(clock::boot_nanos() + HOLD_NANOS);
        Ok(Answer::Phase(Phase::Streaming(Box::new(stream))))
    }

    /// A cell's records from a seq on, up to its end: of the cell that the record belongs to, or of the last one.
    fn show_cell(&mut self, connection: &mut Connection, head: &Head, id: &str) -> Result<Answer, Refusal> {
        let from = self.first_seq(head)?;
        let exec = self.contexts.find(id)?.exec;
        let spans = self.contexts.cells.get(&exec);
        let span = spans.and_then(|spans| match from {
            None => spans.back(),
            Some(from) => spans.iter().rev().find(|span| span.begin <= from),
        });
        let Some(begin) = span.map(|span| span.begin) else {
            return Err(Refusal::new(
                404,
                "cell_not_found",
                "this context has no such cell, or not any more",
            )
            .hint("GET /exec/{id}?from=SEQ has all records of an interpreter"));
        };
        let unreadable = |error: std::io::Error| {
            Refusal::new(500, "journal_unreadable", format!("cannot read the journal: {error}"))
        };
        let offset = self.journal.offset_of(from.unwrap_or(begin).max(begin)).map_err(unreadable)?;
        let stream = self.cell_stream(connection, head, exec, begin, offset);
        Ok(Answer::Phase(Phase::Streaming(Box::new(stream))))
    }

    fn cell_stream(
        &self,
        connection: &mut Connection,
        head: &Head,
        exec: u32,
        begin: u64,
        offset: u64,
    ) -> Stream {
        let format = Format::wanted(head);
        let exec_id = self.execs.get(exec).map(|exec| exec.id.to_string()).unwrap_or_default();
        let extra = format!("X-Cubicle-Exec: {exec_id}\r\nX-Cubicle-Seq: {begin}\r\n");
        http::write_chunked_head(connection.outbox(), format.media(), &extra);
        Stream::new(offset, Some(exec), format, Until::Cell(begin), head.keep_alive)
    }
}

fn dead() -> Refusal {
    Refusal::new(409, "context_dead", "the interpreter of this context has ended")
        .hint("restart the context, which begins without its state, or delete it")
}
