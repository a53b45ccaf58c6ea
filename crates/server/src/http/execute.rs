//! `/api/v1/execute`, the same in one sandbox, and Python environments.

use std::sync::Arc;

use axum::Json as Reply;
use axum::extract::State;
use axum::http::StatusCode;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cubicle_api as api;
use cubicle_envs::{Listed, Ready};
use cubicle_guest::wire::{self, Activity};
use cubicle_model::{Exit, Fault, Kind, SandboxId};

use super::problem::Answer;
use super::request::{Id, IdAnd, IdempotencyKey, Json};
use crate::app::code::{CodePlace, CodeRequest, CodeTold};
use crate::app::{App, Caller};

/// Run code in a sandbox
///
/// Answers when it has ended. Nothing runs when the request is bad; more code at once than a sandbox takes is 429.
#[utoipa::path(post, operation_id = "execute_in_sandbox", path = "/sandboxes/{sandbox_id}/execute", tag = "code",
    params(("sandbox_id" = String, Path), ("idempotency-key" = Option<String>, Header, description = "Makes the call repeatable, as `exec_id` does")),
    request_body = api::Execute,
    responses((status = 200, description = "It has ended", body = api::Executed), (status = "default", body = api::ErrorBody)))]
pub(super) async fn in_sandbox(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(sandbox): Id<SandboxId>,
    IdempotencyKey(key): IdempotencyKey,
    Json(asked): Json<api::Execute>,
) -> Answer<Reply<api::Executed>> {
    if asked.place != api::ExecutePlace::default() {
        return Err(Fault::new(Kind::Invalid, "'place' is for code that names no sandbox")
            .hint("leave it out, or use POST /api/v1/execute")
            .into());
    }
    let (asked, _) = request(&caller, asked, key.as_deref())?;
    let done = app.execute(&caller, sandbox, asked).await?;
    answer(&app, done).await
}

/// Run code
///
/// In a sandbox that is kept and has what the code needs, or in a fresh one, which is gone afterwards unless its template says
/// otherwise.
#[utoipa::path(post, operation_id = "execute", path = "/execute", tag = "code",
    params(("idempotency-key" = Option<String>, Header, description = "Makes the call repeatable, as `exec_id` does")),
    request_body = api::Execute,
    responses((status = 200, description = "It has ended", body = api::Executed), (status = "default", body = api::ErrorBody)))]
pub(super) async fn anywhere(
    State(app): State<Arc<App>>,
    caller: Caller,
    IdempotencyKey(key): IdempotencyKey,
    Json(asked): Json<api::Execute>,
) -> Answer<Reply<api::Executed>> {
    let (asked, place) = request(&caller, asked, key.as_deref())?;
    let place = CodePlace {
        template: place.template,
        user: place.user,
        gifts: super::leases::gifts(Default::default(), Vec::new(), place.limits, place.secrets)?,
        egress: super::leases::egress(place.egress),
    };
    let done = app.execute_once(&caller, place, asked).await?;
    answer(&app, done).await
}

/// How a sandbox is
#[utoipa::path(get, operation_id = "sandbox_health", path = "/sandboxes/{sandbox_id}/health", tag = "code", params(("sandbox_id" = String, Path)),
    responses((status = 200, body = api::SandboxHealth), (status = "default", body = api::ErrorBody)))]
pub(super) async fn health(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(sandbox): Id<SandboxId>,
) -> Answer<Reply<api::SandboxHealth>> {
    let health = app.health_of(&caller, sandbox).await?;
    Ok(Reply(api::SandboxHealth {
        status: health.status,
        state: match health.state {
            Activity::Idle => "idle",
            Activity::Busy => "busy",
            Activity::Warming => "warming",
        }
        .into(),
        environments: health.environments.into_iter().map(show_inside).collect(),
        capacity: health.capacity as u64,
        current_load: health.current_load as u64,
        uptime_seconds: health.uptime_seconds,
    }))
}

/// Environments of a sandbox
#[utoipa::path(get, operation_id = "list_sandbox_envs", path = "/sandboxes/{sandbox_id}/envs", tag = "code", params(("sandbox_id" = String, Path)),
    responses((status = 200, body = api::Environments), (status = "default", body = api::ErrorBody)))]
pub(super) async fn envs_of_sandbox(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(sandbox): Id<SandboxId>,
) -> Answer<Reply<api::Environments>> {
    let environments = app.environments_of(&caller, sandbox).await?;
    Ok(Reply(api::Environments { environments: environments.into_iter().map(show_inside).collect() }))
}

/// Make an environment and attach it to a sandbox
#[utoipa::path(post, operation_id = "create_sandbox_env", path = "/sandboxes/{sandbox_id}/envs", tag = "code", params(("sandbox_id" = String, Path)),
    request_body = api::CreateEnvironment,
    responses((status = 201, body = api::Environment), (status = "default", body = api::ErrorBody)))]
pub(super) async fn create_env_in_sandbox(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(sandbox): Id<SandboxId>,
    Json(asked): Json<api::CreateEnvironment>,
) -> Answer<(StatusCode, Reply<api::Environment>)> {
    let api::CreateEnvironment { name, requirements, python_index } = asked;
    let ready = app.attach_environment(&caller, sandbox, name, requirements, python_index).await?;
    Ok((StatusCode::CREATED, Reply(show_ready(&ready, app.now()))))
}

/// Detach an environment from a sandbox
///
/// It stays in the cache for others.
#[utoipa::path(delete, operation_id = "delete_sandbox_env", path = "/sandboxes/{sandbox_id}/envs/{name}", tag = "code",
    params(("sandbox_id" = String, Path), ("name" = String, Path)),
    responses((status = 204, description = "It is not attached any more"), (status = "default", body = api::ErrorBody)))]
pub(super) async fn delete_env_in_sandbox(
    State(app): State<Arc<App>>,
    caller: Caller,
    IdAnd(sandbox, name): IdAnd<SandboxId, String>,
) -> Answer<StatusCode> {
    app.detach_environment(&caller, sandbox, &name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Environments
///
/// Those that the tenant has made or used.
#[utoipa::path(get, operation_id = "list_envs", path = "/envs", tag = "code",
    responses((status = 200, body = api::Environments), (status = "default", body = api::ErrorBody)))]
pub(super) async fn envs(State(app): State<Arc<App>>, caller: Caller) -> Answer<Reply<api::Environments>> {
    let environments = app.list_environments(&caller).await?;
    Ok(Reply(api::Environments { environments: environments.into_iter().map(show_listed).collect() }))
}

/// Make an environment
///
/// Code that names it, or asks for the same requirements, finds it ready.
#[utoipa::path(post, operation_id = "create_env", path = "/envs", tag = "code", request_body = api::CreateEnvironment,
    responses((status = 201, body = api::Environment), (status = "default", body = api::ErrorBody)))]
pub(super) async fn create_env(
    State(app): State<Arc<App>>,
    caller: Caller,
    Json(asked): Json<api::CreateEnvironment>,
) -> Answer<(StatusCode, Reply<api::Environment>)> {
    let api::CreateEnvironment { name, requirements, python_index } = asked;
    let ready = app.create_environment(&caller, name, requirements, python_index).await?;
    Ok((StatusCode::CREATED, Reply(show_ready(&ready, app.now()))))
}

/// Forget an environment
#[utoipa::path(delete, operation_id = "delete_env", path = "/envs/{name}", tag = "code", params(("name" = String, Path)),
    responses((status = 204, description = "It is forgotten"), (status = "default", body = api::ErrorBody)))]
pub(super) async fn delete_env(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(name): Id<String>,
) -> Answer<StatusCode> {
    app.delete_environment(&caller, &name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// What is asked for, in the sandbox's words.
fn request(
    caller: &Caller,
    asked: api::Execute,
    key: Option<&str>,
) -> Result<(CodeRequest, api::ExecutePlace), Fault> {
    let exec_id = super::execs::exec_id(caller, asked.exec_id.as_deref(), key)?;
    let output_limit = super::execs::output_limit(asked.output_limit_bytes)?;
    let execute = wire::execute::Execute {
        tool_name: asked.tool_name,
        code: asked.code,
        language: asked.language,
        requirements: asked.requirements,
        env_name: asked.env_name,
        timeout_seconds: asked.timeout_seconds,
        files: asked.files,
        python_index: asked.python_index,
        cwd: asked.cwd,
        env: asked.env,
        stdin: asked.stdin,
        exec_id,
        all_files: asked.all_files,
        host: Default::default(),
    };
    Ok((CodeRequest { execute, background: false, output_limit }, asked.place))
}

async fn answer(app: &App, done: CodeTold) -> Answer<Reply<api::Executed>> {
    let CodeTold { told, environment } = done;
    let masks = app.masks(&told.exec.tenant).await?;
    let Some(ended) = told.exec.ended else {
        return Err(Fault::new(Kind::Unavailable, "what came of the code is not known yet")
            .hint(format!("ask for {} again", told.exec.id))
            .into());
    };
    if ended.exit == Exit::NotStarted {
        let mut why = told.exec.refused.unwrap_or_else(|| "it never reached its sandbox".into());
        masks.known.text(&mut why);
        return Err(Fault::new(Kind::Unavailable, format!("the code was not started: {why}")).into());
    }
    let made = told.made.unwrap_or_default();
    let referenced = made.produced.files_referenced.into_iter().map(|file| {
        let artifact = made.kept.get(&file.name);
        let url = match artifact {
            Some(id) => format!("/api/v1/artifacts/{id}/content"),
            None => {
                let path = encoded(&file.path);
                format!("/api/v1/sandboxes/{}/files?path={path}", told.exec.sandbox)
            }
        };
        let artifact_id = artifact.map(ToString::to_string);
        api::FileReference { name: file.name, bytes: file.bytes, url, artifact_id }
    });
    let (status, timed_out) = match ended.exit {
        Exit::TimedOut => (api::ExecuteStatus::Timeout, true),
        Exit::Code(0) => (api::ExecuteStatus::Success, false),
        _ => (api::ExecuteStatus::Error, false),
    };
    let output = told.output.map(|output| {
        (text(output.stdout), text(output.stderr), output.stdout_truncated, output.stderr_truncated)
    });
    let ((stdout, stdout_base64), (stderr, stderr_base64), stdout_truncated, stderr_truncated) =
        output.unwrap_or_default();
    Ok(Reply(api::Executed {
        status,
        output: stdout.clone(),
        stdout,
        stderr,
        stdout_base64,
        stderr_base64,
        stdout_truncated,
        stderr_truncated,
        exit_code: ended.exit.shell_code(),
        timed_out,
        execution_time_ms: ended.duration_us as f64 / 1000.0,
        files_produced: made.produced.files_produced,
        files_referenced: referenced.collect(),
        files_incomplete: made.produced.files_incomplete,
        env: environment.map(|chosen| api::EnvironmentUsed {
            cache: if chosen.is_hit() { api::CacheUse::Hit } else { api::CacheUse::Miss },
            build_ms: chosen.ready.map_or(0.0, |ready| ready.build.as_secs_f64() * 1000.0),
            name: chosen.name,
        }),
        exec_id: told.exec.id.to_string(),
        sandbox_id: told.exec.sandbox.to_string(),
        redacted: told.redacted,
        egress: told.egress.map(|bill| super::egress::show_bill(bill, &masks)),
    }))
}

/// Text, and the bytes themselves where they are none.
fn text(bytes: Vec<u8>) -> (String, Option<String>) {
    match String::from_utf8(bytes) {
        Ok(text) => (text, None),
        Err(error) => {
            let exact = STANDARD.encode(error.as_bytes());
            (String::from_utf8_lossy(error.as_bytes()).into_owned(), Some(exact))
        }
    }
}

/// A path as a part of a query.
fn encoded(path: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte);
    path.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

fn show_inside(environment: wire::execute::Environment) -> api::Environment {
    let wire::execute::Environment { name, packages, python_version, created_at, last_used_at, .. } =
        environment;
    api::Environment { name, packages, python_version, created_at, last_used_at }
}

fn show_listed(listed: Listed) -> api::Environment {
    let Listed { name, packages, python_version, created_at, last_used_at, .. } = listed;
    api::Environment { name: name.to_string(), packages, python_version, created_at, last_used_at }
}

fn show_ready(ready: &Ready, now: cubicle_model::Timestamp) -> api::Environment {
    api::Environment {
        name: ready.name.to_string(),
        packages: ready.packages.clone(),
        python_version: ready.python_version.clone(),
        created_at: ready.created_at,
        last_used_at: now,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_no_text_are_not_lost() {
        assert_eq!(text(b"plain".to_vec()), ("plain".into(), None));
        let (shown, exact) = text(b"a\xffb".to_vec());
        assert_eq!(shown, "a\u{fffd}b");
        assert_eq!(STANDARD.decode(exact.unwrap()).unwrap(), b"a\xffb");
    }

    #[test]
    fn a_path_in_a_query_is_what_it_was() {
        assert_eq!(encoded("/workspace/a b&c/ü.png"), "/workspace/a%20b%26c/%C3%BC.png");
    }
}
