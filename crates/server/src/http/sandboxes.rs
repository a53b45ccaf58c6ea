//! `/api/v1/sandboxes`.

use std::sync::Arc;
use std::time::Duration;

use axum::Json as Reply;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use cubicle_api as api;
use cubicle_model::{Sandbox, SandboxId, SandboxState};

use super::problem::Answer;
use super::request::{Id, Paging, Query, paged};
use crate::app::{App, Caller};

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Filter {
    /// `creating`, `idle`, `leased`, `teardown` or `gone`.
    #[param(value_type = Option<String>, pattern = "^(creating|idle|leased|teardown|gone)$")]
    state: Option<SandboxState>,
    /// Also those of which nothing is left.
    #[serde(default)]
    gone: bool,
}

/// List sandboxes
#[utoipa::path(get, operation_id = "list_sandboxes", path = "/sandboxes", tag = "sandboxes", params(Filter, Paging),
    responses((status = 200, body = api::Page<api::Sandbox>), (status = "default", body = api::ErrorBody)))]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    Query(filter): Query<Filter>,
    Query(paging): Query<Paging>,
) -> Answer<Reply<api::Page<api::Sandbox>>> {
    let page = paging.page()?;
    let sandboxes = app.sandboxes(&caller, filter.state, filter.gone, page.clone()).await?;
    Ok(Reply(paged(sandboxes, &page, |sandbox| sandbox.id.to_string(), |sandbox| show(sandbox, false))))
}

/// Get a sandbox
#[utoipa::path(get, operation_id = "get_sandbox", path = "/sandboxes/{sandbox_id}", tag = "sandboxes", params(("sandbox_id" = String, Path)),
    responses((status = 200, body = api::Sandbox), (status = "default", body = api::ErrorBody)))]
pub(super) async fn get(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
) -> Answer<Reply<api::Sandbox>> {
    let sandbox = app.sandbox(&caller, id).await?;
    let page = cubicle_store::Page { after: None, limit: 1 };
    let running = sandbox.state == SandboxState::Leased
        && !app.execs(&caller, Some(id), Some(true), page).await?.is_empty();
    Ok(Reply(show(sandbox, running)))
}

/// The isolation receipt of a sandbox
#[utoipa::path(get, operation_id = "get_receipt", path = "/sandboxes/{sandbox_id}/receipt", tag = "sandboxes", params(("sandbox_id" = String, Path)),
    responses((status = 200, body = Object), (status = "default", body = api::ErrorBody)))]
pub(super) async fn receipt(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
) -> Answer<Reply<serde_json::Value>> {
    Ok(Reply(app.receipt(&caller, id).await?))
}

/// What a sandbox uses
///
/// As JSON, or for Prometheus where `Accept` asks for `text/plain`.
#[utoipa::path(get, operation_id = "get_sandbox_metrics", path = "/sandboxes/{sandbox_id}/metrics", tag = "sandboxes", params(("sandbox_id" = String, Path)),
    responses((status = 200, content((api::SandboxMetrics = "application/json"), (String = "text/plain"))), (status = "default", body = api::ErrorBody)))]
pub(super) async fn metrics(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    headers: HeaderMap,
) -> Answer<Response> {
    let health = app.health_of(&caller, id).await?;
    let consumed = app.backend.consumption(id).await?.unwrap_or_default();
    let shown = api::SandboxMetrics {
        sandbox_id: id.to_string(),
        execs_running: health.execs_running as u64,
        memory_bytes: consumed.memory_bytes,
        cpu_seconds: consumed.cpu_us.map(|spent| Duration::from_micros(spent).as_secs_f64()),
        processes: consumed.processes,
        journal_bytes: health.journal.bytes,
        journal_limit_bytes: health.journal.limit,
        journal_next_seq: health.journal.next_seq,
        deadline_seconds: health.deadline_seconds,
    };
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    if !accept.contains("text/plain") {
        return Ok(Reply(shown).into_response());
    }
    let media = crate::metrics::Form::Prometheus.media_type();
    Ok(([(header::CONTENT_TYPE, media)], crate::metrics::of_sandbox(&shown)).into_response())
}

fn show(sandbox: Sandbox, running: bool) -> api::Sandbox {
    let state = if running { "running" } else { sandbox.state.name() };
    api::Sandbox {
        sandbox_id: sandbox.id.to_string(),
        state: state.into(),
        lease_id: sandbox.lease.map(|id| id.to_string()),
        user: sandbox.user.map(|user| user.to_string()),
        template: sandbox.template.name.to_string(),
        isolation: sandbox.isolation,
        node: sandbox.node.to_string(),
        created_at: sandbox.created_at,
        ready_at: sandbox.ready_at,
        ended_at: sandbox.ended_at,
        ended_because: sandbox.ended_because,
    }
}
