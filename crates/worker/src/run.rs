//! The course of a task: its place is prepared, its agent runs, and what came of it is written down and told.

use std::any::Any;
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cubicle_model::Timestamp;
use cubicle_model::task::TaskStatus;

use crate::agents::{self, Agent, Job, Outcome, Told};
use crate::event::What;
use crate::process::{Cut, Ending, Interruption, Launch, Watch};
use crate::prompt::{self, SUMMARY};
use crate::record::{Record, clip};
use crate::repo::{Git, NotCloned, Repository};
use crate::status::Usage;
use crate::verdict::{self, Verdict};
use crate::webhook::{Webhook, proxy_for};
use crate::{Assignment, Completion, Status, outputs, skills};

/// What a worker has beside its assignment.
#[derive(Debug)]
pub struct Surroundings<'a> {
    pub variables: BTreeMap<String, String>,
    /// What tasks share, as `/workspace/shared`.
    pub shared: PathBuf,
    /// A private directory for the agent, made if it is not there.
    pub state: PathBuf,
    pub now: fn() -> Timestamp,
    pub interruption: &'a Interruption,
}

/// Not for agents: whoever knows it can tell completions.
const SECRET: &str = "WEBHOOK_SECRET";
const LONGEST_PROMPT: u64 = 4 << 20;
const LONGEST_SUMMARY: usize = 16 * 1024;
/// Between being asked to end and being killed.
const GRACE: Duration = Duration::from_secs(5);
/// For the patch, which is made also when the time of the task is over.
const PATCH_TIME: Duration = Duration::from_secs(20);
/// For the one question about the summary.
const SUMMARY_TIME: Duration = Duration::from_secs(120);

/// Runs the task to its end, whatever that is, and leaves `status.json`, also when the worker itself breaks. Only a task
/// directory that cannot be written to is an error.
pub fn run(
    task: &Assignment,
    around: &Surroundings<'_>,
    tell: impl FnMut(&[u8]),
) -> Result<TaskStatus, String> {
    let started_at = (around.now)();
    let directory = directory(task);
    // What an earlier try left would be taken for ours if this one died.
    _ = fs::remove_file(directory.join("status.json"));
    let went = catch_unwind(AssertUnwindSafe(|| go(task, around, &directory, started_at, tell)));
    let status = went.unwrap_or_else(|panic| Ok(broken(started_at, (around.now)(), panic.as_ref())))?;
    write_status(&directory, &status)?;
    tell_webhook(task, around, &status);
    Ok(status.status)
}

fn go(
    task: &Assignment,
    around: &Surroundings<'_>,
    directory: &Path,
    started_at: Timestamp,
    tell: impl FnMut(&[u8]),
) -> Result<Status, String> {
    let mut record = Record::create(directory, around.now, tell)
        .map_err(|error| format!("cannot write to {}: {error}", directory.display()))?;
    let mut course = Course {
        task,
        around,
        directory: directory.to_owned(),
        started_at,
        started: Instant::now(),
        record: &mut record,
        told: Told::default(),
        exit_code: None,
        variables: around.variables.clone().into_iter().filter(|(name, _)| name != SECRET).collect(),
        repository: None,
    };
    let verdict = course.go();
    Ok(course.conclude(verdict))
}

/// What is left to say when the worker broke.
fn broken(started_at: Timestamp, completed_at: Timestamp, panic: &(dyn Any + Send)) -> Status {
    let why = panic.downcast_ref::<String>().map(String::as_str);
    let why = why.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("panic");
    Status {
        status: TaskStatus::Failed,
        started_at,
        completed_at,
        duration_seconds: u64::try_from(completed_at.duration_since(started_at).as_secs()).unwrap_or(0),
        exit_code: None,
        output_files: Vec::new(),
        summary: String::new(),
        error_message: Some(format!("the worker broke, which is a fault of ours: {why}")),
        logs_truncated: true,
        usage: None,
    }
}

fn directory(task: &Assignment) -> PathBuf {
    match Path::new(&task.prompt).parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => ".".into(),
    }
}

struct Course<'a, 'r> {
    task: &'a Assignment,
    around: &'a Surroundings<'a>,
    directory: PathBuf,
    started_at: Timestamp,
    started: Instant,
    record: &'a mut Record<'r>,
    told: Told,
    /// Of the agent.
    exit_code: Option<i32>,
    /// What the worker was given, without its secrets.
    variables: BTreeMap<String, String>,
    repository: Option<Repository>,
}

impl<'a> Course<'a, '_> {
    fn go(&mut self) -> Verdict {
        let prepared = self.prepare();
        match prepared {
            Ok((agent, job, launch)) => self.work(agent, &job, &launch),
            Err(verdict) => verdict,
        }
    }

    fn prepare(&mut self) -> Result<(&'static dyn Agent, Job<'a>, Launch), Verdict> {
        let agent = agents::find(&self.task.agent).map_err(Verdict::failed)?;
        let asked = read_text(Path::new(&self.task.prompt), LONGEST_PROMPT)
            .map_err(|error| Verdict::failed(format!("the prompt {}: {error}", self.task.prompt)))?;
        let cannot = |what: &Path, error: std::io::Error| {
            Verdict::failed(format!("cannot make {}: {error}", what.display()))
        };
        for needed in [self.directory.join("output"), self.around.state.clone()] {
            fs::create_dir_all(&needed).map_err(|error| cannot(&needed, error))?;
        }
        self.repository = self.clone_repository()?;
        let skills = self.copy_skills(agent);
        let place =
            self.repository.as_ref().map_or(&self.directory, |repository| &repository.directory).clone();
        let job = Job {
            assignment: self.task,
            prompt: prompt::framed(&asked, &self.directory, &self.around.shared, &place, &skills),
            directory: place,
            state: self.around.state.clone(),
            variables: self.variables.clone(),
        };
        let plan = agent.prepare(&job).map_err(Verdict::failed)?;
        for (path, text) in &plan.files {
            let path = self.around.state.join(path);
            let parent = path.parent().unwrap_or(&self.around.state);
            let written = fs::create_dir_all(parent).and_then(|()| fs::write(&path, text));
            written.map_err(|error| cannot(&path, error))?;
        }
        Ok((agent, job, plan.launch))
    }

    fn work(&mut self, agent: &dyn Agent, job: &Job<'_>, launch: &Launch) -> Verdict {
        let deadline = self.deadline();
        let watch = Watch { deadline, idle: Duration::from_secs(self.task.idle_seconds), grace: GRACE };
        // Who has no last word of its own has no first one either.
        if !agent.must_have_the_last_word() {
            let agent = self.task.agent.clone();
            self.record.event(What::Started { agent, version: None, model: self.task.model.clone() });
        }
        let ending = match self.attend(agent, launch, watch) {
            Ok(ending) => ending,
            Err(error) => {
                return Verdict::failed(format!("cannot start {}: {error}", launch.program.display()));
            }
        };
        self.exit_code = ending.code;
        let verdict = verdict::of(self.task, &self.told, &ending, agent.must_have_the_last_word());
        if verdict.status == TaskStatus::Success {
            self.see_to_summary(agent, job, deadline);
        }
        verdict
    }

    /// Runs a program of the agent and keeps what it says.
    fn attend(&mut self, agent: &dyn Agent, launch: &Launch, watch: Watch) -> std::io::Result<Ending> {
        let (task, record, told) = (self.task, &mut *self.record, &mut self.told);
        launch.run(watch, self.around.interruption, |stream, line| {
            record.raw(line);
            for what in agent.hear(stream, line, told) {
                record.event(what);
            }
            used_up(task, told)
        })
    }

    /// Whoever has made something is asked once to say what.
    fn see_to_summary(&mut self, agent: &dyn Agent, job: &Job<'_>, deadline: Instant) {
        if self.summary_file().is_some() {
            return;
        }
        let question = self.around.state.join("question.md");
        let Some(launch) = agent.ask_again(job, &self.told, question.clone()) else { return };
        if let Err(error) = fs::write(&question, prompt::ask_for_summary(&self.directory)) {
            self.record.note(format!("the agent cannot be asked for a summary: {error}"));
            return;
        }
        self.told.begin_another_run();
        self.record.note("there is no summary, so the agent is asked for one");
        // What is said now is about the summary, and must not become the verdict.
        let before = (self.told.outcome.clone(), self.told.last_text.clone());
        let watch =
            Watch { deadline: deadline.min(Instant::now() + SUMMARY_TIME), idle: SUMMARY_TIME, grace: GRACE };
        if let Err(error) = self.attend(agent, &launch, watch) {
            self.record.note(format!("the agent cannot be asked: {error}"));
        }
        (self.told.outcome, self.told.last_text) = before;
        if self.summary_file().is_none() {
            let text = self.last_words();
            let path = self.directory.join("output").join(SUMMARY);
            match fs::write(&path, &text) {
                Ok(()) => self.record.note("the summary was taken from the agent's last words"),
                Err(error) => self.record.note(format!("the summary cannot be written: {error}")),
            }
        }
    }

    fn git(&self) -> Git<'_> {
        Git {
            task: &self.directory,
            state: &self.around.state,
            variables: &self.variables,
            interruption: self.around.interruption,
            deadline: self.deadline(),
        }
    }

    fn deadline(&self) -> Instant {
        self.started + Duration::from_secs(self.task.timeout_seconds)
    }

    fn clone_repository(&mut self) -> Result<Option<Repository>, Verdict> {
        let cloned = self.git().repository(self.task.repo.as_deref());
        cloned.map_err(|trouble| match trouble {
            NotCloned::Cut(cut) => verdict::cut(self.task, &cut),
            NotCloned::Failed(why) => Verdict::failed(format!(
                "the repository cannot be cloned: {why} — is it there, and does the task's egress policy allow its host?"
            )),
        })
    }

    fn copy_skills(&mut self, agent: &dyn Agent) -> Vec<String> {
        let Some(directory) = agent.skills() else { return Vec::new() };
        let copied = skills::copy(&self.around.shared.join("skills"), &self.around.state.join(directory));
        for why in copied.left_out {
            self.record.note(format!("a skill was left out: {why}"));
        }
        copied.names
    }

    /// What was changed in the repository is a result, also of a task that failed.
    fn hand_over_changes(&mut self) {
        let Some(repository) = self.repository.take() else { return };
        // Whoever cancels a task may still want what it has done.
        let undisturbed = Interruption::default();
        let deadline = Instant::now() + PATCH_TIME;
        let git = Git { deadline, interruption: &undisturbed, ..self.git() };
        match git.write_patch(&repository, &self.directory.join("output")) {
            Ok(true) => {}
            Ok(false) => self.record.note("nothing was changed in the repository"),
            Err(why) => self.record.note(format!("the changes cannot be written as a patch: {why}")),
        }
    }

    fn summary_file(&self) -> Option<String> {
        let text = read_text(&self.directory.join("output").join(SUMMARY), 1 << 20).ok()?;
        (!text.trim().is_empty()).then_some(text)
    }

    fn last_words(&self) -> String {
        match &self.told.outcome {
            Some(Outcome::Done { text }) if !text.trim().is_empty() => text.clone(),
            _ => self.told.last_text.clone(),
        }
    }

    fn conclude(&mut self, verdict: Verdict) -> Status {
        self.hand_over_changes();
        let summary = self.summary_file().unwrap_or_else(|| self.last_words());
        let summary = clip(summary.trim().to_owned(), LONGEST_SUMMARY);
        let text = verdict.message.clone().unwrap_or_else(|| summary.clone());
        self.record.event(What::Result { status: verdict.status, text });
        let logs_truncated = self.record.finish();
        let usage = self.told.usage;
        Status {
            status: verdict.status,
            started_at: self.started_at,
            completed_at: (self.around.now)(),
            duration_seconds: self.started.elapsed().as_secs_f64().round() as u64,
            exit_code: self.exit_code,
            output_files: outputs::list(&self.directory.join("output")),
            summary,
            error_message: verdict.message,
            logs_truncated,
            usage: (usage != Usage::default()).then_some(usage),
        }
    }
}

/// Which limit of the budget is passed.
fn used_up(task: &Assignment, told: &Told) -> Option<Cut> {
    let used = &told.usage;
    let tokens = used.input_tokens + used.output_tokens;
    let over = |what: &str, used: u64, limit: Option<u64>| {
        let limit = limit.filter(|limit| used > *limit)?;
        Some(Cut::Budget(format!("{used} {what} of {limit}")))
    };
    let cost = || {
        let (used, limit) = (used.cost_usd?, task.max_cost_usd?);
        (used > limit).then(|| Cut::Budget(format!("{used:.4} USD of {limit:.4}")))
    };
    over("tokens", tokens, task.max_tokens)
        .or_else(|| over("turns", used.turns, task.max_turns))
        .or_else(cost)
}

/// The text of a regular file.
fn read_text(path: &Path, longest: u64) -> Result<String, String> {
    use rustix::fs::{Mode, OFlags, open};
    // Whatever the agent put there, opening it must not wait for somebody at the other end.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = fs::File::from(open(path, flags, Mode::empty()).map_err(|error| error.to_string())?);
    let about = file.metadata().map_err(|error| error.to_string())?;
    if !about.is_file() || about.len() > longest {
        return Err(format!("not a file of at most {longest} bytes"));
    }
    let mut bytes = Vec::new();
    file.take(longest).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Whole or not at all, and after everything else of the task.
fn write_status(directory: &Path, status: &Status) -> Result<(), String> {
    let (path, fresh) = (directory.join("status.json"), directory.join(".status.json.new"));
    _ = fs::remove_file(&fresh);
    let written = serde_json::to_vec_pretty(status).map_err(std::io::Error::from).and_then(|text| {
        let mut file = fs::OpenOptions::new().write(true).create_new(true).open(&fresh)?;
        file.write_all(&text)?;
        file.sync_all()?;
        fs::rename(&fresh, &path)
    });
    written.map_err(|error| {
        _ = fs::remove_file(&fresh);
        format!("cannot write {}: {error}", path.display())
    })
}

fn tell_webhook(task: &Assignment, around: &Surroundings<'_>, status: &Status) {
    let Some(url) = &task.webhook else { return };
    let variable = |name: &str| around.variables.get(name).cloned();
    let secret = variable(SECRET).filter(|secret| !secret.is_empty());
    let webhook = Webhook {
        url,
        secret: secret.as_deref(),
        proxy: proxy_for(url, variable),
        time: (around.now)().as_second(),
    };
    if let Err(error) = webhook.tell(&Completion::of(task.task_id, status)) {
        // The server sees the end of this process, too.
        eprintln!("run-task: the webhook was not told: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_breaks_leaves_a_status() {
        let directory = tempfile::tempdir().unwrap();
        let prompt = directory.path().join("prompt.md");
        fs::write(&prompt, "x").unwrap();
        let id = cubicle_model::TaskId::from_random([3; 16]).to_string();
        let arguments = ["--run-task", prompt.to_str().unwrap(), "--task-id", &id].map(str::to_owned);
        let variable = |name: &str| match name {
            "TASK_AGENT" => Some("custom".to_owned()),
            "TASK_COMMAND" => Some(r#"["/bin/echo", "hello"]"#.to_owned()),
            _ => None,
        };
        let task = Assignment::read(&arguments, variable).unwrap();
        let around = Surroundings {
            variables: BTreeMap::new(),
            shared: directory.path().join("shared"),
            state: directory.path().join("state"),
            now: || Timestamp::UNIX_EPOCH,
            interruption: &Interruption::default(),
        };
        let ran = run(&task, &around, |_| panic!("nobody listens"));
        assert_eq!(ran, Ok(TaskStatus::Failed));
        let status = fs::read(directory.path().join("status.json")).unwrap();
        let status: Status = serde_json::from_slice(&status).unwrap();
        assert!(status.error_message.unwrap().contains("nobody listens"));
        assert!(!directory.path().join(".status.json.new").exists());
        let ran = run(&task, &around, |_| {});
        assert_eq!(ran, Ok(TaskStatus::Success));
    }
}
