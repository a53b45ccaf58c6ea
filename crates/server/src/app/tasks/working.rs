//! One task, from the moment it has a worker to its end. Every step can be taken again by the next server: the row says
//! which exec it is, the lease is asked for by the task's name, and neither comes into being twice.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use cubicle_guest::client::OutputLimits;
use cubicle_guest::journal::record::Kind as RecordKind;
use cubicle_model::lease::LeaseEnd;
use cubicle_model::task::TaskStatus;
use cubicle_model::{
    ExecId, Exit, Fault, Kind, LeaseId, LeaseStatus, Principal, Proof, RequestId, Scope, TaskId,
};
use cubicle_store::{AfterLease, Exec, LeaseFilter, Page, Task, TaskEnd, TaskPlace};
use cubicle_worker::Status;
use serde_json::json;
use tokio::sync::Notify;
use tracing::{Instrument, info, warn};

use super::WORKFLOW;
use super::verdict::{Verdict, Word, verdict};
use crate::app::leases::Granted;
use crate::app::live::Leased;
use crate::app::{App, Caller};
use crate::spans;

/// Between two looks at a lease that waits for room.
const WAITING: Duration = Duration::from_millis(200);
/// Before something that could not be had is asked for again.
const PAUSE: Duration = Duration::from_secs(1);
/// Of leases that ended before their task began.
const MOST_ROUNDS: u32 = 5;
/// Between being asked to end and being killed.
const GRACE: Duration = Duration::from_secs(10);
/// What is told of the output of a worker that died without a word.
const LAST_WORDS: usize = 2000;
const LONGEST_SUMMARY: usize = 16 * 1024;

/// How a worker ended, and what is left of its exec.
struct Ended {
    exit: Exit,
    exec: Option<Exec>,
}

impl App {
    /// Sees a task through to its end, in the background. Once at a time.
    pub(crate) fn attend_soon(self: &Arc<Self>, task: Task) {
        let Some(interruption) = self.workers.begin(task.id) else { return };
        let app = Arc::clone(self);
        let id = task.id;
        let attend = async move {
            // Dropped when the server stops, between two steps: the next one goes on.
            app.stopping.clone().run_until_cancelled_owned(app.attend(task, &interruption)).await;
            app.workers.end(id);
        };
        tokio::spawn(attend.instrument(spans::task(id)));
    }

    async fn attend(self: &Arc<Self>, task: Task, interruption: &Notify) {
        let ended = loop {
            match self.work(&task, interruption).await {
                Ok(ended) => break ended,
                // After this nobody knows what has become of it, and it is looked at again.
                Err(fault) if fault.kind() == Kind::Unavailable => {
                    warn!(error = %fault, "a task has to wait");
                    tokio::time::sleep(PAUSE).await;
                }
                Err(fault) => {
                    info!(error = %fault, "a task cannot be done");
                    let verdict = Verdict { status: TaskStatus::Failed, error_message: Some(said(&fault)) };
                    break self.result_of(&task, None, verdict, None).await;
                }
            }
        };
        self.conclude(task.id, ended).await;
    }

    async fn conclude(self: &Arc<Self>, id: TaskId, end: TaskEnd) {
        let finish = || self.store.finish_task(self.own_context(), id, end.clone());
        match self.insist(finish).await {
            Ok(ended) => {
                self.step("task_finished");
                self.task_ended(&ended);
                if let Some(lease) = ended.task.lease {
                    self.release_worker(lease).await;
                }
            }
            Err(fault) => {
                warn!(error = %fault, "the end of a task cannot be noted; the next round tries again");
            }
        }
        // Another one may begin.
        self.workers.something_to_do.notify_one();
    }

    async fn release_worker(self: &Arc<Self>, lease: LeaseId) {
        let release = || self.end(self.own_context(), lease, LeaseEnd::Released, AfterLease::Destroy);
        if let Err(fault) = self.insist(release).await {
            // Its time to live ends it all the same.
            warn!(%lease, error = %fault, "the lease of a task cannot be released");
        }
    }

    async fn work(self: &Arc<Self>, task: &Task, interruption: &Notify) -> Result<TaskEnd, Fault> {
        let ended = match self.run_worker_once(task, interruption).await? {
            Some(ended) => ended,
            None => {
                let why = Some("it was cancelled before it began".into());
                let verdict = Verdict { status: TaskStatus::Cancelled, error_message: why };
                return Ok(self.result_of(task, None, verdict, None).await);
            }
        };
        self.step("task_worker_ended");
        let id = task.id;
        let status = match self.in_tree_of(&task.tenant, move |tree| tree.status(id)).await {
            Err(fault) if fault.kind() == Kind::Unavailable => return Err(fault),
            status => status,
        };
        let word = match &status {
            Ok(Some(status)) => Word::Told(status),
            Ok(None) => Word::None,
            Err(fault) => Word::Nonsense(fault.to_string()),
        };
        let cancelled = self.is_cancelled(id).await?;
        let mut verdict = verdict(ended.exit, &word, cancelled);
        let is_silent = !matches!(word, Word::Told(_)) && verdict.status == TaskStatus::Failed;
        if let (true, Some(exec), Some(why)) = (is_silent, &ended.exec, &mut verdict.error_message)
            && let Some(words) = self.last_words(exec).await
        {
            why.push_str(&format!("; its last output was:\n{words}"));
        }
        let told = status.ok().flatten();
        Ok(self.result_of(task, Some(ended.exit), verdict, told).await)
    }

    async fn is_cancelled(&self, id: TaskId) -> Result<bool, Fault> {
        Ok(self.store.task(id).await?.is_none_or(|task| task.cancelled_at.is_some()))
    }

    /// An exec that was noted by a server that was killed before it started it was no process: another one takes its place.
    async fn run_worker_once(
        self: &Arc<Self>,
        task: &Task,
        interruption: &Notify,
    ) -> Result<Option<Ended>, Fault> {
        let mut task = task.clone();
        let mut left = MOST_ROUNDS;
        loop {
            let ended = self.run_worker(&task, interruption).await?;
            left -= 1;
            let (Some(Ended { exit: Exit::NotStarted, .. }), Some(before)) = (&ended, task.exec) else {
                return Ok(ended);
            };
            let fresh = ExecId::from_random(self.surroundings.bits());
            if left == 0 || !self.store.renew_task_exec(self.own_context(), task.id, before, fresh).await? {
                return Ok(ended);
            }
            info!(exec = %before, "the exec of a task was never started, and another one takes its place");
            task.exec = Some(fresh);
        }
    }

    /// Gives the task its sandbox, starts its worker, and waits for its end. None where its end was asked for before it began.
    async fn run_worker(
        self: &Arc<Self>,
        task: &Task,
        interruption: &Notify,
    ) -> Result<Option<Ended>, Fault> {
        let exec_id = task.exec.ok_or_else(|| Fault::new(Kind::Internal, "a task without an exec"))?;
        let mut exec = self.store.exec(exec_id).await?;
        if exec.is_none() {
            if self.is_cancelled(task.id).await? {
                return Ok(None);
            }
            let caller = self.for_owner(task);
            let Some(leased) = self.place(task, &caller).await? else { return Ok(None) };
            self.step("task_placed");
            self.create_exec(&caller, leased.sandbox, self.exec_for(task)?).await?;
            self.step("task_started");
            exec = self.store.exec(exec_id).await?;
        } else if let Some(known) = exec.as_ref().filter(|exec| exec.ended.is_none()) {
            self.start_again(task, known).await?;
        }
        let Some(exec) = exec else {
            return Err(Fault::new(Kind::Internal, "the exec of a task vanished"));
        };
        let deadline = jiff::SignedDuration::from_mins(i64::from(task.timeout_minutes));
        let now = self.own_context();
        let deadline = now.now.saturating_add(deadline).unwrap_or(now.now);
        if self.store.start_task(now, task.id, deadline).await?.is_some() {
            self.tell();
        }
        let exit = self.follow_worker(task.id, &exec, interruption).await?;
        Ok(Some(Ended { exit, exec: Some(exec) }))
    }

    /// The server that noted the exec may have been killed before it started it. The guest does not let it run twice.
    async fn start_again(self: &Arc<Self>, task: &Task, exec: &Exec) -> Result<(), Fault> {
        if self.live.get(exec.sandbox).is_none() {
            return Ok(());
        }
        let caller = self.for_owner(task);
        match self.create_exec(&caller, exec.sandbox, self.exec_for(task)?).await {
            // What it is told has changed since, as a secret may have; whatever became of it is seen from its journal.
            Err(fault) if matches!(fault.kind(), Kind::Conflict | Kind::NotFound) => Ok(()),
            started => started.map(drop),
        }
    }

    /// A sandbox for the task, as soon as there is one. None where its end was asked for in the meantime.
    async fn place(self: &Arc<Self>, task: &Task, caller: &Caller) -> Result<Option<Arc<Leased>>, Fault> {
        let mut round = 1;
        loop {
            if self.is_cancelled(task.id).await? {
                return Ok(None);
            }
            let pause = match self.acquire_row(caller, self.lease_for(task, round).await?, None).await {
                Ok(Granted::Ready { lease, leased, .. }) => {
                    let isolation = self.store.target(leased.sandbox).await?.isolation;
                    let place = TaskPlace { lease: lease.id, sandbox: leased.sandbox, isolation };
                    self.store.place_task(self.own_context(), task.id, place).await?;
                    return Ok(Some(leased));
                }
                Ok(Granted::Waits { .. }) => WAITING,
                Ok(Granted::Ended { lease }) if round < MOST_ROUNDS => {
                    info!(lease = %lease.id, "a lease ended before its task began");
                    round += 1;
                    continue;
                }
                Ok(Granted::Ended { lease }) => {
                    let because = lease.ended_because.map_or("ended", LeaseEnd::name);
                    let text = format!("no sandbox could be had for it: the last one was {because}");
                    return Err(
                        Fault::new(Kind::Conflict, text).hint("'cubicle doctor' shows what is missing")
                    );
                }
                // Room comes when others have ended.
                Err(fault) if fault.kind() == Kind::Full => PAUSE,
                Err(fault) => return Err(fault),
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// Waits for the end of a worker; ends it when somebody asks for that.
    async fn follow_worker(
        self: &Arc<Self>,
        id: TaskId,
        exec: &Exec,
        interruption: &Notify,
    ) -> Result<Exit, Fault> {
        if let Some(ended) = self.store.exec(exec.id).await?.and_then(|exec| exec.ended) {
            return Ok(ended.exit);
        }
        let nothing = OutputLimits { stdout: 0, stderr: 0 };
        let mut following = pin!(self.gather(exec, nothing));
        let mut asked = self.is_cancelled(id).await?;
        loop {
            if asked {
                self.end_worker(exec).await;
            }
            // Dropping a wait loses nothing: the row says whether its end was asked for, and is looked at now and then.
            let followed = tokio::select! {
                followed = &mut following => followed,
                () = interruption.notified() => {
                    asked = self.is_cancelled(id).await?;
                    continue;
                }
                () = tokio::time::sleep(PAUSE * 5) => {
                    asked = self.is_cancelled(id).await?;
                    continue;
                }
            };
            return match followed {
                Ok(outcome) => Ok(outcome.exit),
                Err(fault) if fault.kind() == Kind::Unavailable && self.live.get(exec.sandbox).is_some() => {
                    Err(fault)
                }
                // Its sandbox ended under it, or it never came to run.
                Err(fault) => {
                    info!(error = %fault, "a worker has no known end");
                    let noted = self.store.exec(exec.id).await?.and_then(|exec| exec.ended);
                    Ok(noted.map_or(Exit::Unknown, |ended| ended.exit))
                }
            };
        }
    }

    async fn end_worker(self: &Arc<Self>, exec: &Exec) {
        let Some(leased) = self.live.get(exec.sandbox) else { return };
        let ended = match leased.guest().await {
            Ok(guest) => guest.end(exec.id, Some(GRACE)).await.map_err(Fault::from),
            Err(fault) => Err(fault),
        };
        if let Err(fault) = ended {
            warn!(error = %fault, "a worker could not be told to end");
        }
    }

    /// The end of what a worker printed, as people may see it.
    async fn last_words(self: &Arc<Self>, exec: &Exec) -> Option<String> {
        let mut output = self.output(exec.clone(), 0).await.ok()?;
        let mut words = Vec::new();
        while let Ok(Some(frame)) = output.next().await {
            if matches!(frame.frame.kind, RecordKind::Stdout | RecordKind::Stderr) {
                words.extend_from_slice(&frame.frame.bytes);
                let surplus = words.len().saturating_sub(LAST_WORDS);
                words.drain(..surplus);
            }
        }
        let text = String::from_utf8_lossy(&words).trim().to_owned();
        (!text.is_empty()).then_some(text)
    }

    /// What came of a task: the files that are there, and what its worker says of them.
    async fn result_of(
        self: &Arc<Self>,
        task: &Task,
        exit: Option<Exit>,
        verdict: Verdict,
        told: Option<Status>,
    ) -> TaskEnd {
        let Verdict { mut status, mut error_message } = verdict;
        let id = task.id;
        let files = self.in_tree_of(&task.tenant, move |tree| tree.output_files(id)).await;
        let files = files.unwrap_or_else(|fault| {
            warn!(error = %fault, "what a task made cannot be listed");
            Vec::new()
        });
        let mut saved_files = Vec::new();
        if task.save_to_shared && status == TaskStatus::Success {
            match self.in_tree_of(&task.tenant, move |tree| tree.save_outputs(id)).await {
                Ok(saved) => saved_files = saved,
                Err(fault) => {
                    status = TaskStatus::Failed;
                    error_message = Some(format!("what it made could not be saved: {}", said(&fault)));
                }
            }
        }
        let written =
            told.as_ref().map(|told| told.summary.clone()).filter(|summary| !summary.trim().is_empty());
        let summary = match written {
            Some(mut summary) => {
                clip(&mut summary);
                Some(summary)
            }
            None => self.summary_file(task).await,
        };
        let mut end = TaskEnd {
            status,
            exit_code: exit
                .filter(|exit| !matches!(exit, Exit::Unknown | Exit::NotStarted))
                .map(Exit::shell_code),
            output_files: serde_json::to_value(&files).unwrap_or_else(|_| json!([])),
            saved_files,
            summary,
            error_message,
            usage: told.and_then(|told| told.usage).and_then(|usage| serde_json::to_value(usage).ok()),
        };
        self.mask_result(task, &mut end).await;
        end
    }

    /// What a worker writes may hold a secret, as everything may that a program prints.
    async fn mask_result(&self, task: &Task, end: &mut TaskEnd) {
        let texts = [&mut end.summary, &mut end.error_message];
        match self.insist(|| self.masks(&task.tenant)).await {
            Ok(masks) => texts.into_iter().flatten().for_each(|text| masks.known.text(text)),
            Err(fault) => {
                warn!(error = %fault, "the words of a worker cannot be masked, and are left out");
                texts.into_iter().for_each(|text| *text = None);
            }
        }
    }

    async fn summary_file(&self, task: &Task) -> Option<String> {
        let id = task.id;
        let most = Some(LONGEST_SUMMARY as u64);
        let read = self
            .in_tree_of(&task.tenant, move |tree| tree.read_task_file(id, "output/summary.md", 0, most))
            .await;
        let text = String::from_utf8_lossy(&read.ok()?.bytes).trim().to_owned();
        (!text.is_empty()).then_some(text)
    }

    /// Whoever asked for the task, as its worker's lease and exec are theirs.
    fn for_owner(&self, task: &Task) -> Caller {
        Caller {
            principal: Principal {
                tenant: task.tenant.clone(),
                user: task.owner.clone(),
                scopes: BTreeSet::from([Scope::Read, Scope::Run]),
                proof: Proof::Nothing,
            },
            from: None,
            request: RequestId::from_random(self.surroundings.bits()),
        }
    }

    /// Leases whose task has ended: their server was killed in between.
    pub(crate) async fn release_leftovers(self: &Arc<Self>) -> Result<(), Fault> {
        let filter = LeaseFilter {
            status: Some(LeaseStatus::Active),
            workflow: Some(WORKFLOW.into()),
            ..LeaseFilter::default()
        };
        let page = Page { after: None, limit: Page::LARGEST };
        for lease in self.store.leases(filter, page).await? {
            let id = lease.request.split('/').next().and_then(|id| id.parse::<TaskId>().ok());
            let Some(id) = id.filter(|_| lease.node == self.node) else { continue };
            let task = self.store.task(id).await?;
            let is_over = task.is_some_and(|task| task.tenant == lease.tenant && task.status.has_ended());
            if is_over {
                self.release_worker(lease.id).await;
            }
        }
        Ok(())
    }
}

/// With the way out.
fn said(fault: &Fault) -> String {
    match fault.way_out() {
        Some(hint) => format!("{fault}; {hint}"),
        None => fault.to_string(),
    }
}

fn clip(text: &mut String) {
    if text.len() > LONGEST_SUMMARY {
        let end = (0..=LONGEST_SUMMARY).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
}
