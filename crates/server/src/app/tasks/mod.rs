//! Tasks: an AI worker is given a prompt, and its work comes back. What is asked for becomes a directory and a row here;
//! `reconcile::tasks` sees to the rest.

mod asked;
mod assignment;
mod result;
mod tools;
mod verdict;
mod working;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cubicle_model::task::TaskStatus;
use cubicle_model::webhook::EventType;
use cubicle_model::{EventId, Fault, Kind, Name, Scope, TaskId};
use cubicle_store::{CreatedTask, EndedTask, NewTask, Page, Task, TaskFilter};
use cubicle_worker::Completion;
use cubicle_workspace::Tree;
use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::{info, warn};

use super::leases::fingerprint;
use super::{App, Caller};

pub(crate) use asked::{Options, TaskRequest};
pub(crate) use assignment::WEBHOOK_BASE;
pub(crate) use result::TaskResult;
pub(crate) use tools::Conversation;

/// What makes the leases of tasks known among those of a tenant.
const WORKFLOW: &str = "cubicle-task";
/// Whoever waits for a task of another node is told of its end a little later.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
const LONGEST_WAIT: u64 = 300;
const MOST_CONVERSATION: usize = 255;

/// The tasks of this node that somebody sees through to their end.
#[derive(Debug, Default)]
pub(crate) struct Workers {
    /// Woken when somebody asked for a task's end.
    attended: Mutex<HashMap<TaskId, Arc<Notify>>>,
    /// Wakes whoever gives tasks their workers.
    pub(crate) something_to_do: Notify,
}

impl Workers {
    fn attended(&self) -> MutexGuard<'_, HashMap<TaskId, Arc<Notify>>> {
        self.attended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// None where somebody attends to it already.
    fn begin(&self, id: TaskId) -> Option<Arc<Notify>> {
        match self.attended().entry(id) {
            std::collections::hash_map::Entry::Occupied(_) => None,
            std::collections::hash_map::Entry::Vacant(free) => Some(Arc::clone(free.insert(Arc::default()))),
        }
    }

    fn end(&self, id: TaskId) {
        self.attended().remove(&id);
    }

    fn interrupt(&self, id: TaskId) {
        if let Some(attending) = self.attended().get(&id) {
            attending.notify_one();
        }
    }
}

/// A task, and its place in the queue where it waits.
#[derive(Debug, Clone)]
pub(crate) struct Spawned {
    pub(crate) task: Task,
    pub(crate) position: Option<u64>,
    /// The same was asked for before.
    pub(crate) again: bool,
}

impl App {
    /// Something about a tenant's tree, which takes its time.
    pub(super) async fn in_tree_of<T: Send + 'static>(
        &self,
        tenant: &Name,
        work: impl FnOnce(&Tree) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Fault> {
        let tree = self.shared.of(tenant);
        let done = tokio::task::spawn_blocking(move || work(&tree)).await;
        done.map_err(|error| {
            Fault::new(Kind::Internal, "work on the shared workspace broke off").because(error)
        })?
    }

    /// Gives a worker something to do. Its place in the queue is known when this returns.
    pub(crate) async fn spawn_task(
        self: &Arc<Self>,
        caller: &Caller,
        asked: TaskRequest,
        key: Option<String>,
    ) -> Result<Spawned, Fault> {
        caller.must(Scope::Run)?;
        let checked = self.check_task(caller, &asked).await?;
        let once = key.map(|key| (format!("task/{key}"), fingerprint(&asked)));
        let (app, caller) = (Arc::clone(self), caller.clone());
        self.to_its_end(async move { app.make_task(&caller, checked, once, None).await }).await
    }

    /// The directory first, so that whoever finds the row finds everything. What is left without a row is swept away.
    async fn make_task(
        self: &Arc<Self>,
        caller: &Caller,
        asked: TaskRequest,
        once: Option<(String, String)>,
        repeats: Option<&Task>,
    ) -> Result<Spawned, Fault> {
        let id = TaskId::from_random(self.surroundings.bits());
        let (prompt, context_files) = (asked.task_description.clone(), asked.context_files.clone());
        let made = self
            .in_tree_of(caller.tenant(), move |tree| tree.create_task(id, &prompt, &context_files))
            .await?;
        self.step("task_directory_made");
        let options = serde_json::to_value(&asked.options)
            .map_err(|error| Fault::new(Kind::Internal, "a task cannot be written").because(error))?;
        let new = NewTask {
            id,
            tenant: caller.tenant().clone(),
            owner: caller.principal.user.clone(),
            conversation_id: asked.conversation_id,
            interface_type: asked.interface_type,
            user_name: asked.user_name,
            model: asked.model,
            task_description: asked.task_description,
            context_files: made.copied,
            missing_context_files: made.missing,
            timeout_minutes: asked.timeout_minutes.unwrap_or(self.settings.workers.default_timeout_minutes),
            save_to_shared: asked.save_to_shared,
            options,
            notify_url: asked.notify_url,
            retry_of: repeats.map(|task| task.id),
            attempt: repeats.map_or(1, |task| task.attempt.saturating_add(1)),
            longest_queue: self.settings.workers.longest_queue,
            once,
        };
        let created = self.store.create_task(caller.context(self), new).await;
        if !matches!(created, Ok(CreatedTask::New(_)))
            && let Err(fault) = self.remove_task_directory(caller.tenant(), id).await
        {
            warn!(task = %id, error = %fault, "the directory of a task that is none cannot be removed");
        }
        match created? {
            CreatedTask::New(task) => {
                self.step("task_noted");
                info!(task = %id, model = task.model, "task waits for a worker");
                self.tell();
                let position = self.store.task_position(self.node, id).await?;
                self.workers.something_to_do.notify_one();
                Ok(Spawned { task, position, again: false })
            }
            CreatedTask::Again(task) => self.with_position(task, true).await,
        }
    }

    pub(crate) async fn remove_task_directory(&self, tenant: &Name, id: TaskId) -> Result<(), Fault> {
        self.in_tree_of(tenant, move |tree| tree.remove_task(id)).await
    }

    pub(crate) async fn remove_unnoted_tasks(&self, tenant: &Name) -> Result<(), Fault> {
        let there = self.in_tree_of(tenant, |tree| tree.task_ids()).await?;
        let known = self.store.known_tasks(there.clone()).await?;
        for id in there.into_iter().filter(|id| !known.contains(id)) {
            info!(task = %id, "removing the directory of a task that was never noted");
            self.remove_task_directory(tenant, id).await?;
        }
        Ok(())
    }

    async fn with_position(&self, task: Task, again: bool) -> Result<Spawned, Fault> {
        let position = match task.status {
            TaskStatus::Pending => self.store.task_position(task.node, task.id).await?,
            _ => None,
        };
        Ok(Spawned { task, position, again })
    }

    /// A task that exists for the caller.
    pub(super) async fn own_task(&self, caller: &Caller, id: TaskId) -> Result<Task, Fault> {
        caller.must(Scope::Read)?;
        let task = self.store.task(id).await?;
        task.filter(|task| caller.sees(&task.tenant, &task.owner)).ok_or_else(|| {
            Fault::new(Kind::NotFound, format!("there is no task {id}"))
                .hint("GET /api/v1/tasks lists what there is")
        })
    }

    /// A task, at once, or as soon as it has ended within so many seconds.
    pub(crate) async fn task(&self, caller: &Caller, id: TaskId, wait: u64) -> Result<Spawned, Fault> {
        if wait > LONGEST_WAIT {
            let text = format!("'wait' is at most {LONGEST_WAIT} seconds");
            return Err(Fault::new(Kind::Invalid, text).hint("ask again when it has passed"));
        }
        let until = Instant::now() + Duration::from_secs(wait);
        let mut happened = self.something_happened.subscribe();
        loop {
            happened.mark_unchanged();
            let task = self.own_task(caller, id).await?;
            let now = Instant::now();
            if task.status.has_ended() || now >= until || self.stopping.is_cancelled() {
                return self.with_position(task, false).await;
            }
            let pause = LOOK_AGAIN.min(until - now);
            // Dropping any of them loses nothing: the task is read again.
            tokio::select! {
                _ = happened.changed() => {}
                () = tokio::time::sleep(pause) => {}
                () = self.stopping.cancelled() => {}
            }
        }
    }

    pub(crate) async fn task_list(
        &self,
        caller: &Caller,
        conversation: Option<String>,
        status: Option<TaskStatus>,
        page: Page,
    ) -> Result<Vec<Task>, Fault> {
        caller.must(Scope::Read)?;
        if conversation.as_ref().is_some_and(|id| id.contains('\0') || id.chars().count() > MOST_CONVERSATION)
        {
            let text = format!("'conversation_id' has at most {MOST_CONVERSATION} characters, and no NUL");
            return Err(Fault::new(Kind::Invalid, text));
        }
        let filter = TaskFilter {
            tenant: Some(caller.tenant().clone()),
            owner: caller.listed_user(),
            conversation,
            status,
        };
        self.store.tasks(filter, page).await
    }

    /// Asks for the end of a task. One that has ended stays as it is.
    pub(crate) async fn cancel_task(self: &Arc<Self>, caller: &Caller, id: TaskId) -> Result<Spawned, Fault> {
        caller.must(Scope::Run)?;
        self.own_task(caller, id).await?;
        let ended = self.store.cancel_task(caller.context(self), id).await?;
        self.step("task_cancelled");
        self.task_ended(&ended);
        self.workers.interrupt(id);
        self.tell();
        self.with_position(ended.task, false).await
    }

    /// The same again, as a task of its own: what the one before made stays as it is.
    pub(crate) async fn retry_task(self: &Arc<Self>, caller: &Caller, id: TaskId) -> Result<Spawned, Fault> {
        caller.must(Scope::Run)?;
        let before = self.own_task(caller, id).await?;
        if !before.status.has_ended() {
            return Err(Fault::new(Kind::Conflict, format!("{id} has not ended")).hint("cancel it first"));
        }
        let asked = TaskRequest::again(&before)?;
        let checked = self.check_task(caller, &asked).await?;
        let (app, caller) = (Arc::clone(self), caller.clone());
        self.to_its_end(async move { app.make_task(&caller, checked, None, Some(&before)).await }).await
    }

    /// A worker told of its end. Whether that is so is seen from its sandbox; the event of the end has the id that comes back.
    pub(crate) async fn worker_said(&self, id: TaskId, said: Completion) -> Result<EventId, Fault> {
        let status = said.status;
        let kept = serde_json::to_value(&said)
            .map_err(|error| Fault::new(Kind::Internal, "a completion cannot be written").because(error))?;
        let task = match self.store.worker_said(self.own_context(), id, kept).await {
            Ok(task) => task,
            Err(fault) if fault.kind() == Kind::NotFound => return self.ended_elsewhere(id, &said).await,
            Err(fault) => return Err(fault),
        };
        let first = task.said.as_ref().and_then(|said| said.get("status")).and_then(|said| said.as_str());
        let (before, known) = match task.status.has_ended() {
            true => ("has ended as", Some(task.status.name())),
            false => ("was told to be", first),
        };
        match known {
            Some(known) if known != status.name() => {
                let text = format!("{id} {before} '{known}' before; '{}' changes nothing", status.name());
                Err(Fault::new(Kind::Conflict, text))
            }
            _ => Ok(task.event),
        }
    }

    /// Nobody here sees the sandbox of such a task: it has ended when its worker says so, and the first word counts.
    async fn ended_elsewhere(&self, id: TaskId, said: &Completion) -> Result<EventId, Fault> {
        let (status, body) = (said.status.name(), super::webhooks::body(said)?);
        let event_type = EventType::WorkerCompleted;
        let heard =
            self.store.worker_completed(self.own_context(), id, event_type, status.into(), body).await?;
        if heard.is_new {
            self.tell();
            self.webhooks.wake();
        } else if heard.status != status {
            let text = format!("{id} has ended as '{}' before; '{status}' changes nothing", heard.status);
            return Err(Fault::new(Kind::Conflict, text));
        }
        Ok(heard.event)
    }

    /// A task has ended in the store.
    pub(super) fn task_ended(&self, ended: &EndedTask) {
        if !ended.just_now {
            return;
        }
        let task = &ended.task;
        self.metrics.task_ended(task);
        self.webhooks.wake();
        self.tell();
        self.workers.something_to_do.notify_one();
        info!(task = %task.id, status = task.status.name(), error = task.error_message, "task ended");
    }
}

/// What whoever asks for a worker is told where there are none.
fn off() -> Fault {
    Fault::new(Kind::Denied, "AI workers are off on this server")
        .hint("start it with 'cubicle up --workers', or set AI_WORKER_ENABLED=true")
}
