//! `/api/v1/execs`, and those of one sandbox.

use std::sync::Arc;
use std::time::Duration;

use axum::Json as Reply;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use cubicle_api as api;
use cubicle_model::{ExecId, ExecSpec, Fault, Kind, Reuse, SandboxId, Scope, Stdin, TtySize};
use cubicle_store::Exec;

use super::problem::Answer;
use super::request::{Id, IdempotencyKey, Json, Paging, Query, Whole, paged};
use super::stream;
use crate::app::execs::{ExecRequest, LARGEST_OUTPUT, Program, Told};
use crate::app::leases::{LeaseRequest, fingerprint};
use crate::app::{App, Caller};
use crate::redaction::Masks;

/// Of each stream, unless something else is asked for.
const USUAL_OUTPUT: u32 = 1024 * 1024;
/// A one-shot lease that nobody releases, because its server was killed, ends by itself.
const ONE_SHOT_TTL: u32 = 3600;

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Filter {
    /// Only those that run, or only those that have ended.
    running: Option<bool>,
}

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Close {
    /// Whether nothing comes after this.
    #[serde(default)]
    close: bool,
}

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Grace {
    /// Seconds between TERM and KILL.
    #[param(minimum = 0, maximum = 600)]
    grace_seconds: Option<f64>,
}

/// Run something in a sandbox
///
/// Answers when it has ended, or with `background` as soon as it has started. A repeated `exec_id` never runs twice.
#[utoipa::path(post, operation_id = "create_exec", path = "/sandboxes/{sandbox_id}/execs", tag = "execs", params(("sandbox_id" = String, Path),
        ("idempotency-key" = Option<String>, Header, description = "Makes the call repeatable, as `exec_id` does")),
    request_body = api::CreateExec,
    responses((status = 200, description = "It has ended", body = api::Exec), (status = 201, description = "It has started", body = api::Exec),
        (status = "default", body = api::ErrorBody)))]
pub(super) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(sandbox): Id<SandboxId>,
    IdempotencyKey(key): IdempotencyKey,
    Json(asked): Json<api::CreateExec>,
) -> Answer<(StatusCode, Reply<api::Exec>)> {
    let exec_id = exec_id(&caller, asked.exec_id.as_deref(), key.as_deref())?;
    let request = ExecRequest {
        spec: ExecSpec {
            command: asked.command,
            cwd: asked.cwd,
            env: asked.env,
            stdin: asked.stdin,
            tty: asked.tty,
            timeout_seconds: asked.timeout_seconds,
            exec_id,
        },
        program: Program::Command,
        policy: asked.policy,
        background: asked.background,
        output_limit: output_limit(asked.output_limit_bytes)?,
    };
    let told = app.create_exec(&caller, sandbox, request).await?;
    answer(&app, told).await
}

/// Run something in a sandbox of its own
///
/// Lease, exec and release in one call.
#[utoipa::path(post, operation_id = "run_once", path = "/execs", tag = "execs", request_body = api::CreateOneShot,
    params(("idempotency-key" = Option<String>, Header, description = "Makes the call repeatable")),
    responses((status = 200, description = "It has ended", body = api::Exec), (status = 201, description = "It has started", body = api::Exec),
        (status = "default", body = api::ErrorBody)))]
pub(super) async fn one_shot(
    State(app): State<Arc<App>>,
    caller: Caller,
    IdempotencyKey(key): IdempotencyKey,
    Json(asked): Json<api::CreateOneShot>,
) -> Answer<(StatusCode, Reply<api::Exec>)> {
    if asked.stdin == Stdin::Stream {
        return Err(Fault::new(Kind::Invalid, "an exec of one call has no stdin that is sent later")
            .hint("give the text, or acquire a lease")
            .into());
    }
    let exec_id = exec_id(&caller, asked.exec_id.as_deref(), key.as_deref())?;
    let ttl =
        asked.timeout_seconds.map_or(ONE_SHOT_TTL, |seconds| (seconds.clamp(0.0, 604_000.0) as u32) + 60);
    let lease = LeaseRequest {
        template: asked.template,
        user: asked.user,
        workflow: "one-shot".into(),
        request: exec_id.map(|id| id.to_string()),
        ttl_seconds: Some(ttl),
        heartbeat_seconds: None,
        gifts: super::leases::gifts(Default::default(), asked.files, asked.limits, asked.secrets)?,
        egress: super::leases::egress(asked.egress),
        may_wait: false,
        one_shot: true,
        preferred: Vec::new(),
    };
    let request = ExecRequest {
        spec: ExecSpec {
            command: asked.command,
            cwd: asked.cwd,
            env: asked.env,
            stdin: asked.stdin,
            tty: None,
            timeout_seconds: asked.timeout_seconds,
            exec_id,
        },
        program: Program::Command,
        policy: None,
        background: asked.background,
        output_limit: output_limit(asked.output_limit_bytes)?,
    };
    let told = app.create_one_shot(&caller, lease, Reuse::Never, request).await?;
    answer(&app, told).await
}

/// List execs of a sandbox
#[utoipa::path(get, operation_id = "list_sandbox_execs", path = "/sandboxes/{sandbox_id}/execs", tag = "execs", params(("sandbox_id" = String, Path), Filter, Paging),
    responses((status = 200, body = api::Page<api::Exec>), (status = "default", body = api::ErrorBody)))]
pub(super) async fn list_of_sandbox(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(sandbox): Id<SandboxId>,
    Query(filter): Query<Filter>,
    Query(paging): Query<Paging>,
) -> Answer<Reply<api::Page<api::Exec>>> {
    let page = paging.page()?;
    let execs = app.execs(&caller, Some(sandbox), filter.running, page.clone()).await?;
    let masks = app.masks(caller.tenant()).await?;
    Ok(Reply(paged(execs, &page, |exec| exec.id.to_string(), |exec| show(exec, &masks))))
}

/// List execs
#[utoipa::path(get, operation_id = "list_execs", path = "/execs", tag = "execs", params(Filter, Paging),
    responses((status = 200, body = api::Page<api::Exec>), (status = "default", body = api::ErrorBody)))]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    Query(filter): Query<Filter>,
    Query(paging): Query<Paging>,
) -> Answer<Reply<api::Page<api::Exec>>> {
    let page = paging.page()?;
    let execs = app.execs(&caller, None, filter.running, page.clone()).await?;
    let masks = app.masks(caller.tenant()).await?;
    Ok(Reply(paged(execs, &page, |exec| exec.id.to_string(), |exec| show(exec, &masks))))
}

/// Get an exec
#[utoipa::path(get, operation_id = "get_exec", path = "/execs/{exec_id}", tag = "execs", params(("exec_id" = String, Path)),
    responses((status = 200, body = api::Exec), (status = "default", body = api::ErrorBody)))]
pub(super) async fn get(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<ExecId>,
) -> Answer<Reply<api::Exec>> {
    let exec = app.exec(&caller, id).await?;
    let masks = app.masks(&exec.tenant).await?;
    Ok(Reply(show(exec, &masks)))
}

/// The output of an exec
///
/// From any seq on, while it runs and afterwards, as `text/event-stream` (resumable by `Last-Event-ID`),
/// `application/x-ndjson`, or plain bytes.
#[utoipa::path(get, operation_id = "read_output", path = "/execs/{exec_id}/output", tag = "execs", params(("exec_id" = String, Path), stream::From),
    responses((status = 200, description = "Frames, or bytes", content((api::OutputFrame = "text/event-stream"),
        (api::OutputFrame = "application/x-ndjson"), (Vec<u8> = "application/octet-stream"))), (status = "default", body = api::ErrorBody)))]
pub(super) async fn output(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<ExecId>,
    Query(from): Query<stream::From>,
    headers: HeaderMap,
) -> Answer<Response> {
    let exec = app.exec(&caller, id).await?;
    stream::output(&app, exec, &from, &headers).await
}

/// Write to an exec's standard input
#[utoipa::path(post, operation_id = "write_stdin", path = "/execs/{exec_id}/stdin", tag = "execs", params(("exec_id" = String, Path), Close),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 204, description = "Taken"), (status = "default", body = api::ErrorBody)))]
pub(super) async fn stdin(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<ExecId>,
    Query(Close { close }): Query<Close>,
    Whole(bytes): Whole,
) -> Answer<StatusCode> {
    app.stdin(&caller, id, &bytes, close).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Send a signal to an exec
#[utoipa::path(post, operation_id = "signal_exec", path = "/execs/{exec_id}/signal", tag = "execs", params(("exec_id" = String, Path)), request_body = api::Signal,
    responses((status = 204, description = "Sent"), (status = "default", body = api::ErrorBody)))]
pub(super) async fn signal(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<ExecId>,
    Json(asked): Json<api::Signal>,
) -> Answer<StatusCode> {
    let signal = serde_json::from_value(asked.signal)
        .map_err(|_| Fault::new(Kind::Invalid, "a signal is a name, as in \"TERM\", or a number"))?;
    app.signal(&caller, id, signal).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Change the size of an exec's terminal
#[utoipa::path(post, operation_id = "resize_exec", path = "/execs/{exec_id}/resize", tag = "execs", params(("exec_id" = String, Path)), request_body = api::Resize,
    responses((status = 204, description = "Changed"), (status = "default", body = api::ErrorBody)))]
pub(super) async fn resize(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<ExecId>,
    Json(size): Json<api::Resize>,
) -> Answer<StatusCode> {
    app.resize(&caller, id, TtySize { rows: size.rows, columns: size.columns }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// End an exec
///
/// The whole tree: TERM, a grace, KILL. One that has ended stays as it is.
#[utoipa::path(delete, operation_id = "end_exec", path = "/execs/{exec_id}", tag = "execs", params(("exec_id" = String, Path), Grace),
    responses((status = 204, description = "Ended"), (status = "default", body = api::ErrorBody)))]
pub(super) async fn end(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<ExecId>,
    Query(Grace { grace_seconds }): Query<Grace>,
) -> Answer<StatusCode> {
    let grace = match grace_seconds {
        Some(seconds) if !(0.0..=600.0).contains(&seconds) => {
            return Err(Fault::new(Kind::Invalid, "'grace_seconds' is 0 to 600").into());
        }
        grace => grace.map(Duration::from_secs_f64),
    };
    app.end_exec(&caller, id, grace).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The id that was given, or one that follows from the idempotency key.
pub(super) fn exec_id(
    caller: &Caller,
    given: Option<&str>,
    key: Option<&str>,
) -> Result<Option<ExecId>, Fault> {
    caller.must(Scope::Run)?;
    if let Some(given) = given {
        return given.parse().map(Some).map_err(|error| Fault::new(Kind::Invalid, format!("{error}")));
    }
    let Some(key) = key else { return Ok(None) };
    let name = fingerprint(&(caller.tenant(), &caller.principal.user, "exec", key));
    let bits =
        u128::from_str_radix(&name, 16).map_err(|error| Fault::new(Kind::Internal, format!("{error}")))?;
    Ok(Some(ExecId::from_random(bits.to_be_bytes())))
}

pub(super) fn output_limit(asked: Option<u32>) -> Result<usize, Fault> {
    let limit = asked.unwrap_or(USUAL_OUTPUT) as usize;
    if limit > LARGEST_OUTPUT {
        return Err(Fault::new(
            Kind::Invalid,
            format!("an answer holds at most {LARGEST_OUTPUT} bytes of a stream"),
        )
        .hint("read the rest from /execs/{exec_id}/output"));
    }
    Ok(limit)
}

async fn answer(app: &App, told: Told) -> Answer<(StatusCode, Reply<api::Exec>)> {
    let Told { exec, output, egress, redacted, .. } = told;
    let masks = app.masks(&exec.tenant).await?;
    let status = if exec.ended.is_some() { StatusCode::OK } else { StatusCode::CREATED };
    let mut shown = show(exec, &masks);
    if let Some(result) = &mut shown.result {
        if let Some(output) = output {
            result.stdout = Some(api::BytesText::of(output.stdout));
            result.stderr = Some(api::BytesText::of(output.stderr));
            result.stdout_truncated = output.stdout_truncated;
            result.stderr_truncated = output.stderr_truncated;
            result.redacted = redacted;
        }
        result.egress = egress.map(|bill| super::egress::show_bill(bill, &masks));
    }
    Ok((status, Reply(shown)))
}

/// What the store knows of an exec, as people may see it.
fn show(mut exec: Exec, masks: &Masks) -> api::Exec {
    masks.known.json(&mut exec.command);
    exec.refused.iter_mut().for_each(|why| masks.known.text(why));
    let refused = exec.refused;
    let result = exec.ended.map(|ended| api::Result {
        exit: ended.exit,
        exit_code: ended.exit.shell_code(),
        ended_at: ended.at,
        duration_ms: ended.duration_us as f64 / 1000.0,
        stdout_bytes: ended.stdout_bytes,
        stderr_bytes: ended.stderr_bytes,
        stdout: None,
        stderr: None,
        stdout_truncated: false,
        stderr_truncated: false,
        redacted: 0,
        refused,
        egress: None,
    });
    api::Exec {
        exec_id: exec.id.to_string(),
        sandbox_id: exec.sandbox.to_string(),
        lease_id: exec.lease.to_string(),
        user: exec.user.to_string(),
        command: serde_json::from_value(exec.command).unwrap_or(cubicle_model::Command::Shell(String::new())),
        state: if result.is_some() { api::ExecState::Ended } else { api::ExecState::Running },
        created_at: exec.created_at,
        result,
    }
}
