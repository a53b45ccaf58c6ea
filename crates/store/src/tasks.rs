//! Tasks: what an AI worker was given, where it runs, and what came of it. What it made is in its directory.

use std::collections::{BTreeMap, BTreeSet};

use cubicle_model::task::{TaskStatus, order};
use cubicle_model::webhook::EventType;
use cubicle_model::{
    EventId, ExecId, Fault, Isolation, Kind, LeaseId, Name, NodeId, SandboxId, TaskId, Timestamp, UserName,
};
use serde_json::{Value as Json, json};

use crate::sql::{Conditions, Row, Sql, Value, damaged, json as stored, values};
use crate::{
    Context, Listener, Page, Store, Told, audit, events, locks, not_found, repeat, tenants, webhooks,
};

/// So many failures in a row, of one agent in one conversation, are told of.
const FAILING_AFTER: i64 = 3;
/// What receivers compare, wherever a task ran.
const SOURCE: &str = "kubernetes";

#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// Counts up as tasks arrive.
    pub number: i64,
    pub id: TaskId,
    pub tenant: Name,
    /// Whose key asked for it.
    pub owner: UserName,
    pub conversation_id: String,
    pub interface_type: String,
    /// Whom the assistant talks to.
    pub user_name: Option<String>,
    /// The agent.
    pub model: String,
    pub task_description: String,
    pub context_files: Vec<String>,
    pub missing_context_files: Vec<String>,
    pub timeout_minutes: u32,
    pub save_to_shared: bool,
    /// Where `save_to_shared` put them.
    pub saved_files: Vec<String>,
    /// What else was asked for, as the server reads it.
    pub options: Json,
    pub notify_url: Option<String>,
    /// The task that failed before this one.
    pub retry_of: Option<TaskId>,
    pub attempt: u32,
    pub status: TaskStatus,
    /// Whose disk has its directory, and who runs it.
    pub node: NodeId,
    pub job_name: Option<String>,
    /// Chosen before it is started, so that it is started once.
    pub exec: Option<ExecId>,
    pub lease: Option<LeaseId>,
    pub sandbox: Option<SandboxId>,
    pub isolation: Option<Isolation>,
    pub deadline: Option<Timestamp>,
    /// When somebody asked for its end.
    pub cancelled_at: Option<Timestamp>,
    /// What its worker told of its end.
    pub said: Option<Json>,
    pub started_at: Option<Timestamp>,
    pub completed_at: Option<Timestamp>,
    pub duration_seconds: Option<u64>,
    pub exit_code: Option<i32>,
    pub output_files: Option<Json>,
    pub summary: Option<String>,
    pub error_message: Option<String>,
    pub usage: Option<Json>,
    pub created_at: Timestamp,
    pub updated_at: Option<Timestamp>,
    /// Of the event that tells of its end.
    pub event: EventId,
}

/// What a task is to be.
#[derive(Debug, Clone)]
pub struct NewTask {
    pub id: TaskId,
    pub tenant: Name,
    pub owner: UserName,
    pub conversation_id: String,
    pub interface_type: String,
    pub user_name: Option<String>,
    pub model: String,
    pub task_description: String,
    pub context_files: Vec<String>,
    pub missing_context_files: Vec<String>,
    pub timeout_minutes: u32,
    pub save_to_shared: bool,
    pub options: Json,
    pub notify_url: Option<String>,
    pub retry_of: Option<TaskId>,
    pub attempt: u32,
    /// How many may wait on this node.
    pub longest_queue: u64,
    /// An idempotency key, and what was asked for under it.
    pub once: Option<(String, String)>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum CreatedTask {
    New(Task),
    /// The same was asked for before under its idempotency key.
    Again(Task),
}

/// Where a task runs.
#[derive(Debug, Clone, Copy)]
pub struct TaskPlace {
    pub lease: LeaseId,
    pub sandbox: SandboxId,
    pub isolation: Isolation,
}

/// What came of a task.
#[derive(Debug, Clone)]
pub struct TaskEnd {
    pub status: TaskStatus,
    pub exit_code: Option<i32>,
    pub output_files: Json,
    pub saved_files: Vec<String>,
    pub summary: Option<String>,
    pub error_message: Option<String>,
    pub usage: Option<Json>,
}

/// A task that has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct EndedTask {
    pub task: Task,
    /// Not set where it had ended before.
    pub just_now: bool,
}

#[derive(Debug, Clone, Default)]
pub struct TaskFilter {
    pub tenant: Option<Name>,
    pub owner: Option<UserName>,
    pub conversation: Option<String>,
    pub status: Option<TaskStatus>,
}

const COLUMNS: &str = "id, task_id, tenant, owner, conversation_id, interface_type, user_name, model, \
    task_description, context_files, missing_context_files, timeout_minutes, save_to_shared, saved_files, options, \
    notify_url, retry_of, attempt, status, node, job_name, exec_id, lease_id, sandbox_id, isolation, deadline, \
    cancelled_at, said, started_at, completed_at, duration_seconds, exit_code, output_files, summary, error_message, \
    usage, created_at, updated_at, event_id";
const ACTIVE: &str = "status IN ('submitted', 'running')";

impl Store {
    /// Notes a task that waits for a worker of this node.
    pub async fn create_task(&self, context: Context, new: NewTask) -> Result<CreatedTask, Fault> {
        self.write_durably(move |sql| create(sql, &context, &new)).await
    }

    pub async fn task(&self, id: TaskId) -> Result<Option<Task>, Fault> {
        self.read(move |sql| task(sql, id)).await
    }

    /// The newest first. A page begins after the number of a task.
    pub async fn tasks(&self, filter: TaskFilter, page: Page) -> Result<Vec<Task>, Fault> {
        self.read(move |sql| list(sql, &filter, &page)).await
    }

    /// The place of a waiting task, counted from 1; none where it does not wait.
    pub async fn task_position(&self, node: NodeId, id: TaskId) -> Result<Option<u64>, Fault> {
        self.read(move |sql| {
            let place = line(sql, node)?.iter().position(|one| *one == id);
            Ok(place.map(|index| index as u64 + 1))
        })
        .await
    }

    /// Gives the next waiting task of this node a worker, unless so many have one already. `exec` is the one that it will
    /// be.
    pub async fn submit_next_task(
        &self,
        context: Context,
        most: u64,
        exec: ExecId,
    ) -> Result<Option<Task>, Fault> {
        self.write(move |sql| {
            let node = context.node;
            let statement = "SELECT DISTINCT tenant FROM worker_tasks WHERE node = ?1 AND status = 'pending'";
            let rows = sql.rows(statement, values![node])?;
            let held: BTreeSet<Name> =
                rows.into_iter().map(|mut row| row.parsed()).collect::<Result<_, Fault>>()?;
            if held.is_empty() {
                return Ok(None);
            }
            // Whoever counts the workers of a node counts alone.
            locks::tenants_and_node(sql, &held, node)?;
            if active(sql, node)? >= most {
                return Ok(None);
            }
            let Some(next) = line(sql, node)?.into_iter().next() else { return Ok(None) };
            // One of a tenant that has come since the locks were taken is served the next time.
            if !held.contains(&found(sql, next)?.tenant) {
                return Ok(None);
            }
            let set = "exec_id = ?4, job_name = ?5";
            let job = format!("ai-worker-{next}");
            become_(sql, &context, next, TaskStatus::Submitted, set, &[exec.into(), job.into()])
        })
        .await
    }

    /// Notes where a task runs. Twice is as good as once.
    pub async fn place_task(&self, context: Context, id: TaskId, place: TaskPlace) -> Result<(), Fault> {
        self.write(move |sql| {
            sql.run(
                "UPDATE worker_tasks SET lease_id = ?2, sandbox_id = ?3, isolation = ?4, updated_at = ?5 \
                 WHERE task_id = ?1 AND completed_at IS NULL",
                values![id, place.lease, place.sandbox, stored(&place.isolation)?, context.now],
            )
            .map(drop)
        })
        .await
    }

    /// The exec of a task never came to be a process: another one takes its place. Says whether it was still that one.
    pub async fn renew_task_exec(
        &self,
        context: Context,
        id: TaskId,
        before: ExecId,
        fresh: ExecId,
    ) -> Result<bool, Fault> {
        self.write(move |sql| {
            let changed = sql.run(
                "UPDATE worker_tasks SET exec_id = ?3, updated_at = ?4 \
                 WHERE task_id = ?1 AND exec_id = ?2 AND completed_at IS NULL",
                values![id, before, fresh, context.now],
            )?;
            Ok(changed > 0)
        })
        .await
    }

    /// Its worker runs. Says nothing where it had been noted before.
    pub async fn start_task(
        &self,
        context: Context,
        id: TaskId,
        deadline: Timestamp,
    ) -> Result<Option<Task>, Fault> {
        self.write(move |sql| {
            let set = "started_at = ?4, deadline = ?5";
            let values = [context.now.into(), deadline.into()];
            become_(sql, &context, id, TaskStatus::Running, set, &values)
        })
        .await
    }

    /// Somebody wants the end of a task. One that waits ends at once; of one that runs it is noted.
    pub async fn cancel_task(&self, context: Context, id: TaskId) -> Result<EndedTask, Fault> {
        self.write_durably(move |sql| {
            let before = task_alone(sql, id)?;
            if before.status.has_ended() || before.cancelled_at.is_some() {
                return Ok(EndedTask { task: before, just_now: false });
            }
            audit::append(sql, &context, "task.cancel", &id.to_string(), "ok", None)?;
            let statement = "UPDATE worker_tasks SET cancelled_at = ?2, updated_at = ?2 WHERE task_id = ?1";
            sql.run(statement, values![id, context.now])?;
            if before.status == TaskStatus::Pending {
                let end = TaskEnd {
                    status: TaskStatus::Cancelled,
                    exit_code: None,
                    output_files: json!([]),
                    saved_files: Vec::new(),
                    summary: None,
                    error_message: Some("it was cancelled before it began".into()),
                    usage: None,
                };
                return finish(sql, &context, id, &end);
            }
            Ok(EndedTask { task: found(sql, id)?, just_now: false })
        })
        .await
    }

    /// Keeps what a worker told of its end, the first time, and says which event tells or will tell of it.
    pub async fn worker_said(&self, context: Context, id: TaskId, said: Json) -> Result<Task, Fault> {
        self.write_durably(move |sql| {
            let before = task_alone(sql, id)?;
            if before.said.is_some() || before.status.has_ended() {
                return Ok(before);
            }
            let statement = "UPDATE worker_tasks SET said = ?2, updated_at = ?3 WHERE task_id = ?1";
            sql.run(statement, values![id, said.to_string(), context.now])?;
            found(sql, id)
        })
        .await
    }

    /// Ends a task; one that has ended before stays as it ended.
    pub async fn finish_task(&self, context: Context, id: TaskId, end: TaskEnd) -> Result<EndedTask, Fault> {
        self.write_durably(move |sql| finish(sql, &context, id, &end)).await
    }

    /// How many tasks of a node wait, and how many have a worker.
    pub async fn count_tasks(&self, node: NodeId) -> Result<(u64, u64), Fault> {
        self.read(move |sql| Ok((pending(sql, node)?, active(sql, node)?))).await
    }

    /// How many have a worker, on all nodes.
    pub async fn running_tasks_count(&self) -> Result<u64, Fault> {
        self.read(|sql| {
            let statement = format!("SELECT COUNT(*) FROM worker_tasks WHERE {ACTIVE}");
            sql.number(&statement, &[]).map(i64::unsigned_abs)
        })
        .await
    }

    /// Tasks of a node that have a worker, oldest first.
    pub async fn active_tasks(&self, node: NodeId) -> Result<Vec<Task>, Fault> {
        self.read(move |sql| {
            let statement =
                format!("SELECT {COLUMNS} FROM worker_tasks WHERE node = ?1 AND {ACTIVE} ORDER BY id");
            sql.rows(&statement, values![node])?.into_iter().map(read).collect()
        })
        .await
    }

    /// Tasks of a node that ended before, with what is on its disk. The directory goes first, then the row.
    pub async fn old_tasks(
        &self,
        node: NodeId,
        before: Timestamp,
        most: u32,
    ) -> Result<Vec<(Name, TaskId)>, Fault> {
        self.read(move |sql| {
            let rows = sql.rows(
                "SELECT tenant, task_id FROM worker_tasks WHERE completed_at < ?1 AND node = ?2 \
                 ORDER BY completed_at LIMIT ?3",
                values![before, node, most],
            )?;
            rows.into_iter().map(|mut row| Ok((row.parsed()?, row.parsed()?))).collect()
        })
        .await
    }

    /// Forgets tasks that have ended. Says how many there were.
    pub async fn forget_tasks(&self, ids: Vec<TaskId>) -> Result<u64, Fault> {
        self.write(move |sql| {
            let mut forgotten = 0;
            for id in &ids {
                let statement = "DELETE FROM worker_tasks WHERE task_id = ?1 AND completed_at IS NOT NULL";
                forgotten += sql.run(statement, values![*id])?;
            }
            Ok(forgotten)
        })
        .await
    }

    /// Of these tasks, those that the store knows: the rest of what is on a disk is nobody's.
    pub async fn known_tasks(&self, ids: Vec<TaskId>) -> Result<Vec<TaskId>, Fault> {
        self.read(move |sql| {
            let mut known = Vec::new();
            for id in &ids {
                let statement = "SELECT task_id FROM worker_tasks WHERE task_id = ?1";
                known.extend(sql.row(statement, values![*id])?.map(|_| *id));
            }
            Ok(known)
        })
        .await
    }
}

fn create(sql: &mut dyn Sql, context: &Context, new: &NewTask) -> Result<CreatedTask, Fault> {
    tenants::tenant_alone(sql, &new.tenant)?;
    if let Some((key, fingerprint)) = &new.once {
        let subject = new.id.to_string();
        let asked =
            repeat::Asked { tenant: &new.tenant, user: &new.owner, key, fingerprint, subject: &subject };
        if let repeat::Repeat::Again(subject) = repeat::reserve(sql, &asked, context.now)? {
            let before = subject.parse().map_err(|_| {
                Fault::new(Kind::Conflict, "this idempotency key was used before, for something else")
                    .hint("use another key for another request")
            })?;
            return Ok(CreatedTask::Again(found(sql, before)?));
        }
    }
    locks::node(sql, context.node)?;
    let waiting = pending(sql, context.node)?;
    if waiting >= new.longest_queue {
        return Err(Fault::new(Kind::Full, format!("{waiting} tasks wait for a worker"))
            .hint("try again when some of them have ended, or cancel some"));
    }
    let event = EventId::from_random(sql.fresh());
    sql.run(
        "INSERT INTO worker_tasks (task_id, tenant, owner, conversation_id, interface_type, user_name, model, \
         task_description, context_files, missing_context_files, timeout_minutes, save_to_shared, options, notify_url, \
         retry_of, attempt, status, node, created_at, event_id) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20)",
        values![
            new.id,
            &new.tenant,
            &new.owner,
            &new.conversation_id,
            &new.interface_type,
            new.user_name.as_ref(),
            &new.model,
            &new.task_description,
            stored(&new.context_files)?,
            stored(&new.missing_context_files)?,
            new.timeout_minutes,
            new.save_to_shared,
            new.options.to_string(),
            new.notify_url.as_ref(),
            new.retry_of,
            new.attempt,
            TaskStatus::Pending.name(),
            context.node,
            context.now,
            event,
        ],
    )?;
    let task = found(sql, new.id)?;
    let listener = Listener {
        task: task.id,
        tenant: task.tenant.clone(),
        conversation: task.conversation_id.clone(),
        notify_url: task.notify_url.clone(),
    };
    webhooks::listen(sql, context.now, &listener)?;
    tell(sql, context, &task)?;
    audit::append(sql, context, "task.create", &new.id.to_string(), "ok", Some(new.model.clone()))?;
    Ok(CreatedTask::New(task))
}

/// The waiting tasks of a node in the order in which they will be served.
fn line(sql: &mut dyn Sql, node: NodeId) -> Result<Vec<TaskId>, Fault> {
    let statement = format!(
        "SELECT tenant, conversation_id, COUNT(*) FROM worker_tasks WHERE node = ?1 AND {ACTIVE} \
         GROUP BY tenant, conversation_id"
    );
    let active: BTreeMap<(String, String), u64> = sql
        .rows(&statement, values![node])?
        .into_iter()
        .map(|mut row| Ok(((row.text()?, row.text()?), row.unsigned()?)))
        .collect::<Result<_, Fault>>()?;
    let statement = "SELECT task_id, tenant, conversation_id FROM worker_tasks \
        WHERE node = ?1 AND status = 'pending' ORDER BY id";
    let waiting: Vec<(TaskId, (String, String))> = sql
        .rows(statement, values![node])?
        .into_iter()
        .map(|mut row| Ok((row.parsed()?, (row.text()?, row.text()?))))
        .collect::<Result<_, Fault>>()?;
    Ok(order(waiting, &active))
}

fn pending(sql: &mut dyn Sql, node: NodeId) -> Result<u64, Fault> {
    let statement = "SELECT COUNT(*) FROM worker_tasks WHERE node = ?1 AND status = 'pending'";
    sql.number(statement, values![node]).map(i64::unsigned_abs)
}

fn active(sql: &mut dyn Sql, node: NodeId) -> Result<u64, Fault> {
    let statement = format!("SELECT COUNT(*) FROM worker_tasks WHERE node = ?1 AND {ACTIVE}");
    sql.number(&statement, values![node]).map(i64::unsigned_abs)
}

/// Takes a task forward, with what else is set then. None where it is not where it could be taken from.
fn become_(
    sql: &mut dyn Sql,
    context: &Context,
    id: TaskId,
    next: TaskStatus,
    set: &str,
    with: &[Value],
) -> Result<Option<Task>, Fault> {
    let before = task_alone(sql, id)?;
    if !before.status.may_become(next) {
        return Ok(None);
    }
    let mut values = values![id, next.name(), context.now].to_vec();
    values.extend_from_slice(with);
    let statement = format!("UPDATE worker_tasks SET status = ?2, updated_at = ?3, {set} WHERE task_id = ?1");
    sql.run(&statement, &values)?;
    let task = found(sql, id)?;
    tell(sql, context, &task)?;
    Ok(Some(task))
}

fn finish(sql: &mut dyn Sql, context: &Context, id: TaskId, end: &TaskEnd) -> Result<EndedTask, Fault> {
    if !end.status.has_ended() {
        return Err(Fault::new(Kind::Internal, format!("'{}' ends no task", end.status.name())));
    }
    let before = task_alone(sql, id)?;
    if !before.status.may_become(end.status) {
        return Ok(EndedTask { task: before, just_now: false });
    }
    let seconds = |started| u64::try_from(context.now.duration_since(started).as_secs()).unwrap_or_default();
    let duration = before.started_at.map(seconds);
    sql.run(
        "UPDATE worker_tasks SET status = ?2, updated_at = ?3, completed_at = ?3, duration_seconds = ?4, \
         exit_code = ?5, output_files = ?6, summary = ?7, error_message = ?8, usage = ?9, saved_files = ?10 \
         WHERE task_id = ?1",
        values![
            id,
            end.status.name(),
            context.now,
            duration,
            end.exit_code.map(i64::from),
            end.output_files.to_string(),
            end.summary.as_ref(),
            end.error_message.as_ref(),
            end.usage.as_ref().map(Json::to_string),
            stored(&end.saved_files)?,
        ],
    )?;
    let task = found(sql, id)?;
    let mut series = events::Series::take(sql, &task.tenant)?;
    let data = json!({
        "event_type": "worker_completed",
        "source": SOURCE,
        "task_id": id,
        "status": task.status,
        "conversation_id": task.conversation_id,
        "interface_type": task.interface_type,
        "duration_seconds": task.duration_seconds,
        "error_message": task.error_message,
    });
    series.emit_as(sql, task.event, context.now, "worker_completed", &id.to_string(), &data)?;
    if has_failed(task.status) && failures_in_a_row(sql, &task)? == FAILING_AFTER {
        let data = json!({
            "task_id": id,
            "conversation_id": task.conversation_id,
            "model": task.model,
            "failures": FAILING_AFTER,
            "error_message": task.error_message,
        });
        series.emit(sql, context.now, "worker_failing", &id.to_string(), &data)?;
    }
    series.put_back(sql)?;
    let told = Told {
        tenant: task.tenant.clone(),
        task: id,
        event: task.event,
        event_type: EventType::WorkerCompleted,
        status: task.status.name().into(),
        body: completion(&task).to_string(),
        notify_url: task.notify_url.clone(),
    };
    webhooks::enqueue(sql, context.now, &told)?;
    Ok(EndedTask { task, just_now: true })
}

/// What receivers are told.
fn completion(task: &Task) -> Json {
    let files = task.output_files.as_ref().and_then(Json::as_array);
    let names: Vec<&Json> = files.into_iter().flatten().filter_map(|file| file.get("name")).collect();
    json!({
        "event_type": EventType::WorkerCompleted.name(),
        "source": SOURCE,
        "task_id": task.id,
        "status": task.status,
        "duration_seconds": task.duration_seconds.unwrap_or(0),
        "exit_code": task.exit_code,
        "output_files": names,
        "error_message": task.error_message,
    })
}

fn has_failed(status: TaskStatus) -> bool {
    matches!(status, TaskStatus::Failed | TaskStatus::Timeout)
}

/// How many tasks of its agent in its conversation failed one after the other up to this one; at most one more than is
/// told of, so that a row of failures is told of once.
fn failures_in_a_row(sql: &mut dyn Sql, task: &Task) -> Result<i64, Fault> {
    let rows = sql.rows(
        "SELECT status FROM worker_tasks WHERE conversation_id = ?1 AND tenant = ?2 AND model = ?3 \
         AND completed_at IS NOT NULL AND status <> 'cancelled' ORDER BY completed_at DESC, id DESC LIMIT ?4",
        values![&task.conversation_id, &task.tenant, &task.model, FAILING_AFTER + 1],
    )?;
    let mut failures = 0;
    for mut row in rows {
        if !has_failed(row.one_of(&TaskStatus::ALL, TaskStatus::name)?) {
            break;
        }
        failures += 1;
    }
    Ok(failures)
}

/// An event of what a task has become; its end has one of its own.
fn tell(sql: &mut dyn Sql, context: &Context, task: &Task) -> Result<(), Fault> {
    let data = json!({
        "status": task.status,
        "model": task.model,
        "conversation_id": task.conversation_id,
        "retry_of": task.retry_of,
    });
    let kind = format!("task.{}", task.status.name());
    events::emit(sql, &task.tenant, context.now, &kind, &task.id.to_string(), &data)
}

fn task(sql: &mut dyn Sql, id: TaskId) -> Result<Option<Task>, Fault> {
    sql.row(&format!("SELECT {COLUMNS} FROM worker_tasks WHERE task_id = ?1"), values![id])?
        .map(read)
        .transpose()
}

fn found(sql: &mut dyn Sql, id: TaskId) -> Result<Task, Fault> {
    task(sql, id)?.ok_or_else(|| not_found("task"))
}

/// The same, and nobody else changes it until the transaction ends. What the transaction writes beside it is locked first.
fn task_alone(sql: &mut dyn Sql, id: TaskId) -> Result<Task, Fault> {
    let task = found(sql, id)?;
    locks::tenant(sql, &task.tenant)?;
    match sql.and_lock() {
        "" => Ok(task),
        lock => {
            let statement = format!("SELECT {COLUMNS} FROM worker_tasks WHERE task_id = ?1{lock}");
            sql.row(&statement, values![id])?.map(read).ok_or_else(|| not_found("task"))?
        }
    }
}

fn list(sql: &mut dyn Sql, filter: &TaskFilter, page: &Page) -> Result<Vec<Task>, Fault> {
    let after = page.after.as_ref().map(|after| {
        let wrong = |_| Fault::new(Kind::Invalid, "'after' is not from a page before");
        after.parse::<i64>().map_err(wrong)
    });
    let rows = Conditions::default()
        .and_if("tenant = ?", filter.tenant.as_ref())
        .and_if("owner = ?", filter.owner.as_ref())
        .and_if("conversation_id = ?", filter.conversation.as_ref())
        .and_if("status = ?", filter.status.map(TaskStatus::name))
        .and_if("id < ?", after.transpose()?)
        .select(sql, COLUMNS, "worker_tasks", "id DESC", page.one_more())?;
    rows.into_iter().map(read).collect()
}

fn read(mut row: Row) -> Result<Task, Fault> {
    Ok(Task {
        number: row.int()?,
        id: row.parsed()?,
        tenant: row.parsed()?,
        owner: row.parsed()?,
        conversation_id: row.text()?,
        interface_type: row.text()?,
        user_name: row.optional_text()?,
        model: row.text()?,
        task_description: row.text()?,
        context_files: row.optional_json()?.unwrap_or_default(),
        missing_context_files: row.optional_json()?.unwrap_or_default(),
        timeout_minutes: small(&mut row)?,
        save_to_shared: row.flag()?,
        saved_files: row.optional_json()?.unwrap_or_default(),
        options: row.json()?,
        notify_url: row.optional_text()?,
        retry_of: row.optional_parsed()?,
        attempt: small(&mut row)?,
        status: row.one_of(&TaskStatus::ALL, TaskStatus::name)?,
        node: row.parsed()?,
        job_name: row.optional_text()?,
        exec: row.optional_parsed()?,
        lease: row.optional_parsed()?,
        sandbox: row.optional_parsed()?,
        isolation: row.optional_json()?,
        deadline: row.optional_time()?,
        cancelled_at: row.optional_time()?,
        said: row.optional_json()?,
        started_at: row.optional_time()?,
        completed_at: row.optional_time()?,
        duration_seconds: row.optional_unsigned()?,
        exit_code: row
            .optional_int()?
            .map(i32::try_from)
            .transpose()
            .map_err(|_| damaged("an exit code is too large"))?,
        output_files: row.optional_json()?,
        summary: row.optional_text()?,
        error_message: row.optional_text()?,
        usage: row.optional_json()?,
        created_at: row.time()?,
        updated_at: row.optional_time()?,
        event: row.parsed()?,
    })
}

fn small(row: &mut Row) -> Result<u32, Fault> {
    u32::try_from(row.int()?).map_err(|_| damaged("a number is out of range"))
}
