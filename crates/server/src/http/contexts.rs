//! Contexts of a sandbox: interpreters that keep their state.

use std::sync::Arc;

use axum::Json as Reply;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use cubicle_api as api;
use cubicle_guest::client::{CellGathering, OutputLimits};
use cubicle_guest::wire;
use cubicle_guest::wire::context::{CellStatus, ContextState};
use cubicle_model::{ExecId, Fault, SandboxId};
use futures_util::stream;

use super::problem::Answer;
use super::request::{Id, IdAnd, IdempotencyKey, Json};
use super::stream::{Form, render, streamed};
use crate::app::code::{AskedEnvironment, CellOutputs};
use crate::app::{App, Caller};
use crate::journal::fanout::SharedFrame;

/// What an answer that is no stream holds of what a cell printed, and of what it showed.
const LARGEST_ANSWER: usize = 8 * 1024 * 1024;

/// Make a context
///
/// An interpreter that keeps its state from one cell to the next.
#[utoipa::path(post, operation_id = "create_context", path = "/sandboxes/{sandbox_id}/contexts", tag = "contexts",
    params(("sandbox_id" = String, Path), ("idempotency-key" = Option<String>, Header, description = "Makes the call repeatable")),
    request_body = api::CreateContext,
    responses((status = 201, body = api::Context), (status = "default", body = api::ErrorBody)))]
pub(super) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(sandbox): Id<SandboxId>,
    IdempotencyKey(key): IdempotencyKey,
    Json(asked): Json<api::CreateContext>,
) -> Answer<(StatusCode, Reply<api::Context>)> {
    let start = wire::context::CreateContext {
        exec_id: super::execs::exec_id(&caller, None, key.as_deref())?,
        language: asked.language.clone(),
        cwd: asked.cwd,
        env: asked.env,
        env_name: asked.env_name.clone(),
    };
    let environment = AskedEnvironment {
        language: asked.language.as_deref(),
        requirements: &asked.requirements,
        name: asked.env_name.as_deref(),
        index: asked.python_index.as_deref(),
    };
    let context = app.create_context(&caller, sandbox, start, environment).await?;
    Ok((StatusCode::CREATED, Reply(show(sandbox, context))))
}

/// List contexts
#[utoipa::path(get, operation_id = "list_contexts", path = "/sandboxes/{sandbox_id}/contexts", tag = "contexts", params(("sandbox_id" = String, Path)),
    responses((status = 200, body = api::Contexts), (status = "default", body = api::ErrorBody)))]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(sandbox): Id<SandboxId>,
) -> Answer<Reply<api::Contexts>> {
    let contexts = app.contexts(&caller, sandbox).await?;
    Ok(Reply(api::Contexts { contexts: contexts.into_iter().map(|one| show(sandbox, one)).collect() }))
}

/// Get a context
#[utoipa::path(get, operation_id = "get_context", path = "/sandboxes/{sandbox_id}/contexts/{context_id}", tag = "contexts",
    params(("sandbox_id" = String, Path), ("context_id" = String, Path)),
    responses((status = 200, body = api::Context), (status = "default", body = api::ErrorBody)))]
pub(super) async fn get(
    State(app): State<Arc<App>>,
    caller: Caller,
    IdAnd(sandbox, id): IdAnd<SandboxId, ExecId>,
) -> Answer<Reply<api::Context>> {
    Ok(Reply(show(sandbox, app.context(&caller, sandbox, id).await?)))
}

/// Delete a context
///
/// Its process ends, with everything it started.
#[utoipa::path(delete, operation_id = "delete_context", path = "/sandboxes/{sandbox_id}/contexts/{context_id}", tag = "contexts",
    params(("sandbox_id" = String, Path), ("context_id" = String, Path)),
    responses((status = 204, description = "It is gone"), (status = "default", body = api::ErrorBody)))]
pub(super) async fn delete(
    State(app): State<Arc<App>>,
    caller: Caller,
    IdAnd(sandbox, id): IdAnd<SandboxId, ExecId>,
) -> Answer<StatusCode> {
    app.delete_context(&caller, sandbox, id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Interrupt a context
///
/// As Ctrl-C does. A context that runs nothing is left as it is.
#[utoipa::path(post, operation_id = "interrupt_context", path = "/sandboxes/{sandbox_id}/contexts/{context_id}/interrupt", tag = "contexts",
    params(("sandbox_id" = String, Path), ("context_id" = String, Path)),
    responses((status = 204, description = "It was told"), (status = "default", body = api::ErrorBody)))]
pub(super) async fn interrupt(
    State(app): State<Arc<App>>,
    caller: Caller,
    IdAnd(sandbox, id): IdAnd<SandboxId, ExecId>,
) -> Answer<StatusCode> {
    app.interrupt_context(&caller, sandbox, id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Restart a context
///
/// A new process with nothing of the old one's state.
#[utoipa::path(post, operation_id = "restart_context", path = "/sandboxes/{sandbox_id}/contexts/{context_id}/restart", tag = "contexts",
    params(("sandbox_id" = String, Path), ("context_id" = String, Path)),
    responses((status = 200, body = api::Context), (status = "default", body = api::ErrorBody)))]
pub(super) async fn restart(
    State(app): State<Arc<App>>,
    caller: Caller,
    IdAnd(sandbox, id): IdAnd<SandboxId, ExecId>,
) -> Answer<Reply<api::Context>> {
    Ok(Reply(show(sandbox, app.restart_context(&caller, sandbox, id).await?)))
}

/// Run a cell
///
/// As `text/event-stream` or `application/x-ndjson` in real time, otherwise as one JSON object when it has ended.
#[utoipa::path(post, operation_id = "execute_cell", path = "/sandboxes/{sandbox_id}/contexts/{context_id}/execute", tag = "contexts",
    params(("sandbox_id" = String, Path), ("context_id" = String, Path)), request_body = api::ExecuteCell,
    responses((status = 200, content((api::CellResult = "application/json"), (api::OutputFrame = "text/event-stream"),
        (api::OutputFrame = "application/x-ndjson"))), (status = "default", body = api::ErrorBody)))]
pub(super) async fn execute(
    State(app): State<Arc<App>>,
    caller: Caller,
    IdAnd(sandbox, id): IdAnd<SandboxId, ExecId>,
    headers: HeaderMap,
    Json(asked): Json<api::ExecuteCell>,
) -> Answer<Response> {
    let cell = wire::context::Cell { code: asked.code, timeout_seconds: asked.timeout_seconds };
    let outputs = app.execute_cell(&caller, sandbox, id, cell).await?;
    match Form::asked(&headers) {
        Form::Plain => Ok(Reply(gather(outputs).await?).into_response()),
        form => {
            let frames = stream::unfold(Some(outputs), move |outputs| async move {
                let mut outputs = outputs?;
                match outputs.next().await {
                    Ok(Some(frame)) => {
                        Some((Ok(render(form, &SharedFrame::new(frame), None)), Some(outputs)))
                    }
                    Ok(None) => None,
                    Err(fault) => Some((Err(std::io::Error::other(fault.to_string())), None)),
                }
            });
            Ok(streamed(form, frames))
        }
    }
}

/// The whole of a cell as one answer.
async fn gather(mut outputs: CellOutputs) -> Result<api::CellResult, Fault> {
    let limits = OutputLimits { stdout: LARGEST_ANSWER, stderr: LARGEST_ANSWER };
    let mut gathering = CellGathering::new(limits);
    let mut seq = 0;
    while let Some(frame) = outputs.next().await? {
        seq = if seq == 0 { frame.seq } else { seq };
        gathering.take(&frame.as_frame())?;
    }
    let cell = gathering.outcome()?;
    let shown = cell.displays.into_iter().map(|data| api::CellOutput { is_result: false, data });
    let result = cell.result.map(|data| api::CellOutput { is_result: true, data });
    let results = shown.chain(result).collect();
    Ok(api::CellResult {
        status: name(cell.status).into(),
        execution_count: cell.execution_count,
        stdout: String::from_utf8_lossy(&cell.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&cell.stderr).into_owned(),
        results,
        error: cell.error.map(|error| api::CellError {
            name: error.name,
            value: error.value,
            traceback: error.traceback,
        }),
        truncated: cell.stdout_truncated || cell.stderr_truncated || cell.omitted > 0,
        seq,
    })
}

fn name(status: CellStatus) -> &'static str {
    match status {
        CellStatus::Success => "success",
        CellStatus::Error => "error",
        CellStatus::Interrupted => "interrupted",
        CellStatus::Timeout => "timeout",
        CellStatus::Died => "died",
    }
}

fn show(sandbox: SandboxId, context: wire::context::Context) -> api::Context {
    api::Context {
        context_id: context.context_id.to_string(),
        exec_id: context.exec_id.to_string(),
        sandbox_id: sandbox.to_string(),
        language: context.language,
        cwd: context.cwd,
        state: match context.state {
            ContextState::Idle => "idle",
            ContextState::Busy => "busy",
            ContextState::Dead => "dead",
        }
        .into(),
        execution_count: context.execution_count,
        env_name: context.env_name,
    }
}
