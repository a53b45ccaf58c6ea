//! `/api/v1/tasks`.

use std::ops::Range;
use std::sync::Arc;

use axum::Json as Reply;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use cubicle_api as api;
use cubicle_model::task::TaskStatus;
use cubicle_model::{Fault, Kind, TaskId};
use cubicle_store::Task;
use cubicle_worker::OutputFile;
use cubicle_worker::status::Usage;
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio_util::io::ReaderStream;

use super::links::{Lasting, Signed};
use super::problem::{Answer, Problem};
use super::range;
use super::request::{Id, IdAnd, IdempotencyKey, Json, Paging, Query, paged};
use crate::app::tasks::{Options, Spawned, TaskRequest, TaskResult};
use crate::app::{App, Caller};

/// Where nobody says which.
const CONVERSATION: &str = "default";
const INTERFACE: &str = "api";
/// Of what an agent did, in one answer.
const MOST_EVENTS: u64 = 4 * 1024 * 1024;

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Filter {
    #[param(max_length = 255, pattern = r"^[^\x00]*$")]
    conversation_id: Option<String>,
    /// `pending`, `submitted`, `running`, `success`, `failed`, `timeout` or `cancelled`.
    #[param(value_type = Option<String>, pattern = "^(pending|submitted|running|success|failed|timeout|cancelled)$")]
    status: Option<TaskStatus>,
}

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Waiting {
    /// Answer as soon as it has ended, or after so many seconds.
    #[param(maximum = 300)]
    wait: Option<u32>,
}

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Including {
    /// Names of output files whose contents are wanted, with commas between them.
    #[param(max_length = 8192, pattern = r"^[^\x00]*$")]
    include: Option<String>,
}

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct From {
    /// The first byte that is wanted.
    offset: Option<u64>,
}

/// Give a worker something to do
///
/// The task waits where all workers are busy; `position` says how many are before it. Its end is the event
/// `worker_completed`.
#[utoipa::path(post, operation_id = "create_task", path = "/tasks", tag = "tasks", request_body = api::CreateTask,
    params(("idempotency-key" = Option<String>, Header, description = "Makes the call repeatable")),
    responses((status = 201, body = api::Task), (status = 200, description = "The same was asked for before", body = api::Task),
        (status = "default", body = api::ErrorBody)))]
pub(super) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    IdempotencyKey(key): IdempotencyKey,
    Json(asked): Json<api::CreateTask>,
) -> Answer<(StatusCode, Reply<api::Task>)> {
    let asked = TaskRequest {
        task_description: asked.task_description,
        context_files: asked.context_files,
        model: asked.model,
        timeout_minutes: asked.timeout_minutes,
        save_to_shared: asked.save_to_shared,
        conversation_id: asked.conversation_id.unwrap_or_else(|| CONVERSATION.into()),
        interface_type: asked.interface_type.unwrap_or_else(|| INTERFACE.into()),
        user_name: asked.user_name,
        notify_url: asked.notify_url,
        options: Options {
            command: asked.command,
            template: asked.template,
            provider_model: asked.provider_model,
            max_turns: asked.max_turns,
            max_tokens: asked.max_tokens,
            max_cost_usd: asked.max_cost_usd,
            repo: asked.repo,
            asked_context_files: Vec::new(),
        },
    };
    let spawned = app.spawn_task(&caller, asked, key).await?;
    let status = if spawned.again { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, Reply(show(&app, spawned).await?)))
}

/// List tasks, the newest first
#[utoipa::path(get, operation_id = "list_tasks", path = "/tasks", tag = "tasks", params(Filter, Paging),
    responses((status = 200, body = api::Page<api::Task>), (status = "default", body = api::ErrorBody)))]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    Query(filter): Query<Filter>,
    Query(paging): Query<Paging>,
) -> Answer<Reply<api::Page<api::Task>>> {
    let page = paging.page()?;
    let tasks = app.task_list(&caller, filter.conversation_id, filter.status, page.clone()).await?;
    let shown = paged(tasks, &page, |task| task.number.to_string(), |task| task);
    let mut items = Vec::with_capacity(shown.items.len());
    for task in shown.items {
        items.push(show(&app, Spawned { task, position: None, again: false }).await?);
    }
    Ok(Reply(api::Page { items, next: shown.next }))
}

/// Get a task
///
/// With `wait` the answer comes when the task has ended, or when the time is over.
#[utoipa::path(get, operation_id = "get_task", path = "/tasks/{task_id}", tag = "tasks", params(("task_id" = String, Path), Waiting),
    responses((status = 200, body = api::Task), (status = "default", body = api::ErrorBody)))]
pub(super) async fn get(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<TaskId>,
    Query(waiting): Query<Waiting>,
) -> Answer<Reply<api::Task>> {
    let found = app.task(&caller, id, waiting.wait.unwrap_or(0).into()).await?;
    Ok(Reply(show(&app, found).await?))
}

/// What came of a task
///
/// Readable while it runs, and after its sandbox is gone.
#[utoipa::path(get, operation_id = "get_task_result", path = "/tasks/{task_id}/result", tag = "tasks",
    params(("task_id" = String, Path), Including),
    responses((status = 200, body = api::TaskResult), (status = "default", body = api::ErrorBody)))]
pub(super) async fn result(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<TaskId>,
    Query(including): Query<Including>,
) -> Answer<Reply<api::TaskResult>> {
    let names = including.include.unwrap_or_default();
    let names = names.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect();
    let result = app.task_result(&caller, id, names).await?;
    Ok(Reply(show_result(&app, result).await?))
}

/// Ask for the end of a task
///
/// One that waits has ended when the answer comes; of one that runs, `cancelled_at` is set and its end follows.
#[utoipa::path(post, operation_id = "cancel_task", path = "/tasks/{task_id}/cancel", tag = "tasks", params(("task_id" = String, Path)),
    responses((status = 200, body = api::Task), (status = "default", body = api::ErrorBody)))]
pub(super) async fn cancel(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<TaskId>,
) -> Answer<Reply<api::Task>> {
    let found = app.cancel_task(&caller, id).await?;
    Ok(Reply(show(&app, found).await?))
}

/// Do a task that has ended again
///
/// A task of its own, with a directory of its own; `retry_of` names the one before.
#[utoipa::path(post, operation_id = "retry_task", path = "/tasks/{task_id}/retry", tag = "tasks", params(("task_id" = String, Path)),
    responses((status = 201, body = api::Task), (status = "default", body = api::ErrorBody)))]
pub(super) async fn retry(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<TaskId>,
) -> Answer<(StatusCode, Reply<api::Task>)> {
    let spawned = app.retry_task(&caller, id).await?;
    Ok((StatusCode::CREATED, Reply(show(&app, spawned).await?)))
}

/// What the agent of a task did, one line of JSON each
///
/// From `offset` on; `x-next-offset` says where the next part begins.
#[utoipa::path(get, operation_id = "get_task_events", path = "/tasks/{task_id}/events", tag = "tasks",
    params(("task_id" = String, Path), From),
    responses((status = 200, body = String, content_type = "application/x-ndjson"), (status = "default", body = api::ErrorBody)))]
pub(super) async fn events(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<TaskId>,
    Query(from): Query<From>,
) -> Answer<Response> {
    let offset = from.offset.unwrap_or(0);
    let mut bytes =
        app.task_events(&caller, id, offset, MOST_EVENTS).await?.map_or(Vec::new(), |piece| piece.bytes);
    // Whole lines only: the last one may still be written.
    let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    if bytes.len() as u64 != MOST_EVENTS || whole > 0 {
        bytes.truncate(whole);
    }
    let next = offset.saturating_add(bytes.len() as u64);
    let task = app.task(&caller, id, 0).await?.task;
    app.masks(&task.tenant).await?.known.bytes(&mut bytes);
    let mut response = Response::new(Body::from(bytes));
    let out = response.headers_mut();
    out.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    out.insert("x-next-offset", HeaderValue::from(next));
    Ok(response)
}

/// List the files that a task made
#[utoipa::path(get, operation_id = "list_task_files", path = "/tasks/{task_id}/files", tag = "tasks", params(("task_id" = String, Path)),
    responses((status = 200, body = api::TaskFiles), (status = "default", body = api::ErrorBody)))]
pub(super) async fn files(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<TaskId>,
) -> Answer<Reply<api::TaskFiles>> {
    let files = app.task_files(&caller, id).await?;
    Ok(Reply(api::TaskFiles { files: files.into_iter().map(show_file).collect() }))
}

/// Read a file that a task made
///
/// With a key, or with the signature of a link. With `Range: bytes=…` a part of it.
#[utoipa::path(get, operation_id = "read_task_file", path = "/tasks/{task_id}/files/{*path}", tag = "tasks",
    params(("task_id" = String, Path), ("path" = String, Path)),
    responses((status = 200, body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 206, description = "A part", body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 416, description = "There is no such part", body = api::ErrorBody),
        (status = "default", body = api::ErrorBody)))]
pub(super) async fn file(
    State(app): State<Arc<App>>,
    caller: Option<axum::Extension<Caller>>,
    IdAnd(id, name): IdAnd<TaskId, String>,
    Query(signed): Query<Signed>,
    headers: HeaderMap,
) -> Answer<Response> {
    let (file, size, kind) = match (caller, signed.expires, signed.signature) {
        (_, Some(until), Some(signature)) => {
            if !app.is_good(&file_path(id, &name), until, &signature) {
                return Err(Problem::unauthenticated("this link is not good, or not any more"));
            }
            app.linked_task_file(id, name).await?
        }
        (Some(axum::Extension(caller)), ..) => app.task_file(&caller, id, name).await?,
        (None, ..) => return Err(Problem::unauthenticated("a key is needed")),
    };
    let part = range::asked(&headers, size)?;
    let body = content(file, part.clone().unwrap_or(0..size)).await?;
    let mut response = range::response(body, size, part);
    let out = response.headers_mut();
    // Whatever it is, a browser shows it to nobody: it is downloaded.
    out.insert(header::CONTENT_DISPOSITION, HeaderValue::from_static("attachment"));
    if let Ok(kind) = HeaderValue::from_str(&kind) {
        out.insert("x-media-type", kind);
    }
    Ok(response)
}

async fn content(file: std::fs::File, part: Range<u64>) -> Result<Body, Fault> {
    let mut file = tokio::fs::File::from_std(file);
    let unreadable = |error| Fault::new(Kind::Unavailable, "the file cannot be read").because(error);
    file.seek(std::io::SeekFrom::Start(part.start)).await.map_err(unreadable)?;
    Ok(Body::from_stream(ReaderStream::new(file.take(part.end - part.start))))
}

/// A link to a file that a task made, which needs no key
#[utoipa::path(post, operation_id = "link_task_file", path = "/tasks/{task_id}/links/{*path}", tag = "tasks",
    params(("task_id" = String, Path), ("path" = String, Path), Lasting),
    responses((status = 200, body = api::SignedUrl), (status = "default", body = api::ErrorBody)))]
pub(super) async fn link(
    State(app): State<Arc<App>>,
    caller: Caller,
    IdAnd(id, name): IdAnd<TaskId, String>,
    Query(lasting): Query<Lasting>,
) -> Answer<Reply<api::SignedUrl>> {
    app.task_file(&caller, id, name.clone()).await?;
    let expires_at = lasting.until(app.wall_now())?;
    let path = file_path(id, &name);
    let signature = app.sign(&path, expires_at);
    let url =
        format!("{}{path}?expires={}&signature={signature}", app.settings.address, expires_at.as_second());
    Ok(Reply(api::SignedUrl { url, expires_at }))
}

fn file_path(id: TaskId, name: &str) -> String {
    let keep = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(byte);
    let encoded: String = name
        .as_bytes()
        .iter()
        .map(|byte| if keep(byte) { char::from(*byte).to_string() } else { format!("%{byte:02X}") })
        .collect();
    format!("/api/v1/tasks/{id}/files/{encoded}")
}

async fn show(app: &App, found: Spawned) -> Result<api::Task, Fault> {
    let Spawned { task, position, .. } = found;
    let masks = app.masks(&task.tenant).await?;
    let mut task_description = task.task_description;
    masks.known.text(&mut task_description);
    Ok(api::Task {
        task_id: task.id.to_string(),
        status: task.status,
        position,
        conversation_id: task.conversation_id,
        interface_type: task.interface_type,
        user_name: task.user_name,
        model: task.model,
        task_description,
        context_files: task.context_files,
        missing_context_files: task.missing_context_files,
        timeout_minutes: task.timeout_minutes,
        save_to_shared: task.save_to_shared,
        saved_files: task.saved_files,
        job_name: task.job_name,
        lease_id: task.lease.map(|id| id.to_string()),
        sandbox_id: task.sandbox.map(|id| id.to_string()),
        exec_id: task.exec.map(|id| id.to_string()),
        isolation: task.isolation,
        retry_of: task.retry_of.map(|id| id.to_string()),
        attempt: task.attempt,
        cancelled_at: task.cancelled_at,
        started_at: task.started_at,
        completed_at: task.completed_at,
        duration_seconds: task.duration_seconds,
        exit_code: task.exit_code,
        output_files: task
            .output_files
            .map(|files| serde_json::from_value::<Vec<api::TaskFile>>(files).unwrap_or_default()),
        summary: task.summary,
        error_message: task.error_message,
        usage: show_usage(task.usage),
        created_at: task.created_at,
        updated_at: task.updated_at,
    })
}

fn show_usage(kept: Option<serde_json::Value>) -> Option<api::TaskUsage> {
    let usage: Usage = serde_json::from_value(kept?).ok()?;
    Some(api::TaskUsage {
        input_tokens: usage.input_tokens,
        output_tokens: usage.output_tokens,
        cached_tokens: usage.cached_tokens,
        turns: usage.turns,
        cost_usd: usage.cost_usd,
    })
}

fn show_file(file: OutputFile) -> api::TaskFile {
    api::TaskFile { name: file.name, size: file.size, kind: file.kind }
}

async fn show_result(app: &App, result: TaskResult) -> Result<api::TaskResult, Fault> {
    let TaskResult { task, files, egress, patch, contents } = result;
    let masks = app.masks(&task.tenant).await?;
    let Task { id, status, duration_seconds, exit_code, saved_files, missing_context_files, .. } = task;
    Ok(api::TaskResult {
        task_id: id.to_string(),
        status,
        duration_seconds,
        exit_code,
        output_files: files.into_iter().map(show_file).collect(),
        saved_files,
        missing_context_files,
        summary: task.summary,
        error_message: task.error_message,
        usage: show_usage(task.usage),
        egress: egress.map(|bill| super::egress::show_bill(bill, &masks)),
        patch,
        contents: contents
            .into_iter()
            .map(|(name, file)| {
                let truncated = (file.bytes.len() as u64) < file.size;
                let content = api::BytesText::of(file.bytes);
                (name, api::TaskFileContent { kind: file.kind, size: file.size, content, truncated })
            })
            .collect(),
    })
}
