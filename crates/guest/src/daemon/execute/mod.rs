//! `POST /execute`: code is staged, run as an exec, and what it made is told.
//!
//! The request is checked whole before anything happens. A short one is read and staged right away; a long one is read,
//! and its files are written, by a thread, so that nobody waits for it.

pub mod check;
mod language;
mod outcome;

use std::sync::Arc;

use cubicle_model::{Command, ExecId, Stdin};
use cubicle_sys::{clock, file_identity};

pub use language::Language;
pub(super) use language::{COLD_PY, ZYGOTE_PY};
pub(super) use outcome::{Outcome, texts};

use super::Workload;
use super::building::Afterwards;
use super::connection::{Connection, Phase};
use super::files::produced::{self, Found, Scope};
use super::files::stage::{self, Fingerprint, Staged, Staging};
use super::http::{Body, Head, Refusal};
use super::launch::Beside;
use super::routes::{Answer, to_value};
use super::server::Server;
use super::spec::CheckedSpec;
use super::workers::Task;
use super::zygotes::WarmStart;
use crate::wire;
use crate::wire::execute::{EnvUsed, Produced};
use check::Checked;

/// A longer body is read by a thread.
pub(super) const SHORT_BODY: usize = 64 * 1024;
/// Files up to their caps in base64, code and input in quotes.
pub(super) const LONGEST_BODY: u64 = 64 * 1024 * 1024;
/// With more files, staging is left to a thread.
const FEW_FILES: usize = 16;
const PRIVATE: &str = "/tmp/.cubicle-";
const OUTPUT_VARIABLE: &str = "OUTPUT_DIR";
const DEFAULT_OUTPUT: &str = "/workspace/output";

/// What is known of an exec that is an execute.
#[derive(Debug)]
pub(super) struct Execution {
    scope: Arc<Scope>,
    private: String,
    code_name: &'static str,
    environment: Option<EnvUsed>,
    pub(super) started_us: u64,
    pub(super) exited_us: Option<u64>,
}

impl Execution {
    pub(super) fn environment(&self) -> Option<&str> {
        self.environment.as_ref().map(|used| used.name.as_str())
    }
}

/// Code that may run as soon as it is staged.
#[derive(Debug)]
pub(super) struct Admitted {
    pub(super) id: ExecId,
    pub(super) staging: Staging,
    spec: CheckedSpec,
    tool_name: Option<String>,
    all_files: bool,
    environment: Option<EnvUsed>,
    warm: Option<WarmStart>,
    language: Language,
}

/// Whether a request's body is left to a thread.
pub(super) fn is_long(head: &Head) -> bool {
    match head.body {
        Body::Length(length) => length > SHORT_BODY as u64,
        Body::Chunked => true,
    }
}

/// Reads and checks a request, in a thread.
pub(super) fn read(body: &mut dyn std::io::Read) -> std::io::Result<Result<Checked, Refusal>> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    body.take(LONGEST_BODY + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LONGEST_BODY {
        let message = format!("the body is longer than {LONGEST_BODY} bytes");
        return Ok(Err(
            Refusal::new(413, "body_too_long", message).hint("send large files with PUT /files/{path}")
        ));
    }
    Ok(check::parse(&bytes))
}

impl Server {
    /// Takes code that was checked. What needs time is left to a thread, and comes back to `launch_execute`.
    pub(super) fn begin_execute(
        &mut self,
        connection: &mut Connection,
        head: Head,
        mut checked: Checked,
    ) -> Result<Answer, Refusal> {
        if let Some(exec) = checked.exec_id.and_then(|id| self.execs.number_of(&id)) {
            return self.follow_execute(connection, &head, exec);
        }
        self.check_room(checked.exec_id)?;
        let Some(environment) = self.environment_for(&mut checked)? else {
            let (name, keep_alive) = (checked.env_name.clone().unwrap_or_default(), head.keep_alive);
            return Ok(Answer::building(name, Afterwards::Execute(head, Box::new(checked)), keep_alive));
        };
        let admitted = self.admit(checked, environment);
        if admitted.staging.files.len() > FEW_FILES {
            self.staging.push(admitted.id);
            return Ok(Answer::Worker(Task::Stage { head, admitted: Box::new(admitted) }));
        }
        let stage = || stage::stage(&admitted.staging);
        let staged = self.as_workload(stage)??;
        self.launch_execute(connection, &head, admitted, staged)
    }

    fn as_workload<T>(&self, act: impl FnOnce() -> T) -> Result<T, Refusal> {
        match self.settings.workload {
            Workload::OneUid => Ok(act()),
            Workload::TwoUids { uid, gid } => file_identity::with(uid, gid, || Ok(act())).map_err(|error| {
                Refusal::new(500, "no_identity", format!("cannot act as the workload: {error}"))
            }),
        }
    }

    /// How many pieces of code run, or are about to.
    pub(super) fn load(&self) -> usize {
        let running = |exec: &&super::exec::Exec| exec.exit.is_none() && exec.execution.is_some();
        self.execs.iter().filter(running).count() + self.staging.len()
    }

    fn check_room(&self, id: Option<ExecId>) -> Result<(), Refusal> {
        let capacity = self.settings.max_executes;
        if self.load() >= capacity {
            let message = format!("{capacity} pieces of code run already, as many as this sandbox takes");
            return Err(Refusal::new(429, "at_capacity", message).hint("try again when one has ended"));
        }
        if id.is_some_and(|id| self.staging.contains(&id)) {
            return Err(Refusal::new(409, "exec_beginning", "an exec of this id is about to begin")
                .hint("try again: the same id attaches to it then"));
        }
        Ok(())
    }

    fn admit(&mut self, checked: Checked, environment: Option<EnvUsed>) -> Admitted {
        let python = environment.as_ref().and_then(|used| self.environments.used(&used.name));
        let python = python.map_or("python3".to_owned(), |environment| environment.python.clone());
        let id = checked.exec_id.unwrap_or_else(|| ExecId::from_random(self.random()));
        let mut env = checked.env;
        if environment.is_some() {
            self.enter_environment(&mut env, &python);
        }
        let output = match env.get(OUTPUT_VARIABLE).or_else(|| self.settings.env.get(OUTPUT_VARIABLE)) {
            Some(output) if output.starts_with('/') => output.clone(),
            _ => DEFAULT_OUTPUT.to_owned(),
        };
        env.insert(OUTPUT_VARIABLE.into(), output.clone());
        let private = format!("{PRIVATE}{id}");
        let code_name = checked.language.file_name();
        let file = format!("{private}/{code_name}");
        let warm = (checked.warm && checked.language == Language::Python).then(|| WarmStart {
            environment: environment.as_ref().map(|used| used.name.clone()),
            python: python.clone(),
            file: file.clone(),
        });
        let spec = CheckedSpec {
            exec_id: Some(id),
            command: Command::Argv(checked.language.shown_command(&python)),
            arguments: checked.language.command(&python, &file),
            cwd: checked.cwd.clone(),
            env,
            stdin: checked.stdin.map_or(Stdin::Closed, Stdin::Text),
            tty: None,
            timeout_nanos: checked.timeout_nanos,
        };
        let staging = Staging {
            cwd: checked.cwd,
            files: checked.files,
            output,
            private,
            code_name,
            code: checked.code,
        };
        Admitted {
            id,
            staging,
            spec,
            tool_name: checked.tool_name,
            all_files: checked.all_files,
            environment,
            warm,
            language: checked.language,
        }
    }

    /// Programs that the code starts see the environment, too.
    pub(super) fn enter_environment(
        &self,
        env: &mut std::collections::BTreeMap<String, String>,
        python: &str,
    ) {
        let Some((bin, _)) = python.rsplit_once('/') else { return };
        if !env.contains_key("PATH") {
            let path = self.settings.env.get("PATH").map_or("/usr/local/bin:/usr/bin:/bin", String::as_str);
            env.insert("PATH".into(), format!("{bin}:{path}"));
        }
        if let Some((prefix, "bin")) = bin.rsplit_once('/') {
            env.entry("VIRTUAL_ENV".into()).or_insert_with(|| prefix.to_owned());
        }
    }

    /// Runs code that is staged.
    pub(super) fn launch_execute(
        &mut self,
        connection: &mut Connection,
        head: &Head,
        admitted: Admitted,
        staged: Staged,
    ) -> Result<Answer, Refusal> {
        let Admitted { staging, spec, tool_name, all_files, environment, language, warm, .. } = admitted;
        let Staging { cwd, output, private, code_name, .. } = staging;
        let told = self.told.iter().filter(|print| print.changed >= staged.moment).cloned().collect();
        let scope = Arc::new(Scope { cwd, output, all_files, before: staged, told });
        let execution = Execution {
            scope,
            private,
            code_name,
            environment,
            started_us: clock::unix_micros(),
            exited_us: None,
        };
        let mut beside = Beside { tool_name, execution: Some(Box::new(execution)), warm, stdin: None };
        match self.launch_with(&spec, &mut beside) {
            Ok(exec) => {
                if let Some(warm) = &beside.warm {
                    self.ensure_zygote(warm.environment.as_deref());
                }
                self.follow_execute(connection, head, exec)
            }
            Err(refusal) => {
                if let Some(execution) = beside.execution {
                    self.take_code_away(&execution);
                }
                Err(match refusal.code {
                    "command_not_found" => not_available(&language, &spec.arguments[0]),
                    _ => refusal,
                })
            }
        }
    }

    /// Records for those who ask for them, or else one answer when it is over.
    fn follow_execute(
        &mut self,
        connection: &mut Connection,
        head: &Head,
        exec: u32,
    ) -> Result<Answer, Refusal> {
        if [wire::JOURNAL, wire::EVENT_STREAM, wire::NDJSON].iter().any(|media| head.accepts(media)) {
            return self.stream_started(connection, head, exec);
        }
        if self.execs.get(exec).is_some_and(|exec| exec.execution.is_none()) {
            return Err(not_an_execute());
        }
        Ok(Answer::Phase(Phase::Executing { exec, keep_alive: head.keep_alive }))
    }

    /// What an execute made, as a task for a thread unless it is little work to see that there is nothing.
    pub(super) fn produced_by(&self, head: &Head, exec: u32) -> Result<Answer, Refusal> {
        let found = self.execs.get(exec).and_then(|exec| exec.execution.as_deref());
        let scope = Arc::clone(&found.ok_or_else(not_an_execute)?.scope);
        if self.as_workload(|| produced::is_nothing(&scope))? {
            return Ok(Answer::Json(200, to_value(&Produced::default())));
        }
        Ok(Answer::Worker(Task::Finish { scope, outcome: None, keep_alive: head.keep_alive }))
    }

    /// The answer to an execute that has come to its exit, as a task for a thread.
    pub(super) fn finish_execute(&mut self, exec: u32, keep_alive: bool) -> Option<Task> {
        let found = self.execs.get(exec)?;
        let end = found.exit_end?;
        let execution = found.execution.as_deref()?;
        let outcome = Outcome::collect(&self.journal, found, end, execution);
        Some(Task::Finish {
            scope: Arc::clone(&execution.scope),
            outcome: Some(Box::new(outcome)),
            keep_alive,
        })
    }

    pub(super) fn forget_code(&mut self, exec: u32) {
        let Some(found) = self.execs.get_mut(exec) else { return };
        if let Some(execution) = found.execution.take() {
            self.take_code_away(&execution);
            if let Some(found) = self.execs.get_mut(exec) {
                found.execution = Some(execution);
            }
        }
    }

    /// A place that outlives its daemon keeps nothing of what ran.
    pub(super) fn forget_all_code(&self) {
        for exec in self.execs.iter().filter(|exec| exec.live.is_some()) {
            if let Some(execution) = &exec.execution {
                self.take_code_away(execution);
            }
        }
    }

    fn take_code_away(&self, execution: &Execution) {
        // What cannot be removed is in the sandbox's own place for such things.
        let _ = self.as_workload(|| stage::unstage(&execution.private, execution.code_name));
    }

    /// Notes what an answer told, so that the next one does not tell it again.
    pub(super) fn note_told(&mut self, told: Vec<Fingerprint>) {
        if !told.is_empty() {
            self.told = told;
        }
    }
}

/// Looks for what was made, in a thread.
pub(super) fn look(scope: &Scope) -> Found {
    produced::produced(scope)
}

fn not_an_execute() -> Refusal {
    Refusal::new(409, "not_an_execute", "this exec was not begun by POST /execute, or by an earlier sandboxd")
        .hint("list its working directory with GET /files?list=PATH")
}

fn not_available(language: &Language, program: &str) -> Refusal {
    let program: String = program.chars().take(200).collect();
    let message = format!("there is no {program:?} in the sandbox to run {}", language.name());
    Refusal::new(422, "language_unavailable", message)
        .hint("install it in the sandbox's root, or choose a template that has it")
}
