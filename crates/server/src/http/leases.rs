//! `/api/v1/leases`.

use std::sync::Arc;

use axum::Json as Reply;
use axum::extract::State;
use axum::http::StatusCode;
use cubicle_api as api;
use cubicle_model::egress::LeaseEgress;
use cubicle_model::{Fault, FileToWrite, Kind, Lease, LeaseId, LeaseStatus, SecretName};

use super::problem::Answer;
use super::request::{Id, IdempotencyKey, MaybeJson, Paging, Query, paged};
use crate::app::leases::{Gifts, LeaseRequest, SecretGifts};
use crate::app::{App, Caller};

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Filter {
    /// `QUEUED`, `ACTIVE`, `EXPIRED` or `RELEASED`.
    #[param(value_type = Option<String>, pattern = "^(QUEUED|ACTIVE|EXPIRED|RELEASED)$")]
    status: Option<LeaseStatus>,
    workflow: Option<String>,
}

/// Acquire a lease
///
/// Idempotent for (user, workflow, request), or for an `Idempotency-Key`. The answer comes at once: `warm`, `cold`, in the
/// queue with its position, or the error `full`.
#[utoipa::path(post, operation_id = "acquire_lease", path = "/leases", tag = "leases", request_body = Option<api::CreateLease>,
    params(("idempotency-key" = Option<String>, Header, description = "Makes the call repeatable, as `request` does")),
    responses((status = 201, body = api::Lease), (status = 200, description = "The same was asked for before", body = api::Lease),
        (status = 202, description = "Waits in the queue", body = api::Lease), (status = "default", body = api::ErrorBody)))]
pub(super) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    IdempotencyKey(key): IdempotencyKey,
    MaybeJson(asked): MaybeJson<api::CreateLease>,
) -> Answer<(StatusCode, Reply<api::Lease>)> {
    let asked = LeaseRequest {
        template: asked.template,
        user: asked.user,
        workflow: asked.workflow,
        request: asked.request.or(key),
        ttl_seconds: asked.ttl_seconds,
        heartbeat_seconds: asked.heartbeat_seconds,
        gifts: gifts(asked.env, asked.files, asked.limits, asked.secrets)?,
        egress: egress(asked.egress),
        may_wait: asked.queue,
        one_shot: false,
        preferred: Vec::new(),
    };
    let before = app.now();
    let obtained = app.acquire(&caller, asked).await?;
    let status = match obtained.position {
        Some(_) => StatusCode::ACCEPTED,
        None if obtained.lease.created_at < before => StatusCode::OK,
        None => StatusCode::CREATED,
    };
    Ok((status, Reply(show(&app, obtained.lease, obtained.position))))
}

/// List leases
#[utoipa::path(get, operation_id = "list_leases", path = "/leases", tag = "leases", params(Filter, Paging),
    responses((status = 200, body = api::Page<api::Lease>), (status = "default", body = api::ErrorBody)))]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    Query(filter): Query<Filter>,
    Query(paging): Query<Paging>,
) -> Answer<Reply<api::Page<api::Lease>>> {
    let page = paging.page()?;
    let leases = app.leases(&caller, filter.status, filter.workflow, page.clone()).await?;
    Ok(Reply(paged(leases, &page, |lease| lease.id.to_string(), |lease| show(&app, lease, None))))
}

/// Get a lease
#[utoipa::path(get, operation_id = "get_lease", path = "/leases/{lease_id}", tag = "leases", params(("lease_id" = String, Path)),
    responses((status = 200, body = api::Lease), (status = "default", body = api::ErrorBody)))]
pub(super) async fn get(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<LeaseId>,
) -> Answer<Reply<api::Lease>> {
    caller.must(cubicle_model::Scope::Read)?;
    let lease = app.lease(&caller, id).await?;
    let position = match lease.status {
        LeaseStatus::Queued => app.store.position(lease.node, id).await?,
        _ => None,
    };
    Ok(Reply(show(&app, lease, position)))
}

/// Renew a lease
#[utoipa::path(post, operation_id = "renew_lease", path = "/leases/{lease_id}/heartbeat", tag = "leases", params(("lease_id" = String, Path)),
    responses((status = 200, body = api::Lease), (status = "default", body = api::ErrorBody)))]
pub(super) async fn heartbeat(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<LeaseId>,
) -> Answer<Reply<api::Lease>> {
    let lease = app.heartbeat(&caller, id).await?;
    Ok(Reply(show(&app, lease, None)))
}

/// Give a lease back
///
/// Its sandbox is destroyed, unless its template says otherwise. Twice is as good as once.
#[utoipa::path(delete, operation_id = "release_lease", path = "/leases/{lease_id}", tag = "leases", params(("lease_id" = String, Path)),
    responses((status = 200, body = api::Lease), (status = "default", body = api::ErrorBody)))]
pub(super) async fn release(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<LeaseId>,
) -> Answer<Reply<api::Lease>> {
    let lease = app.release(&caller, id).await?;
    Ok(Reply(show(&app, lease, None)))
}

pub(super) fn egress(asked: api::LeaseEgress) -> LeaseEgress {
    LeaseEgress { policy: asked.policy, record: asked.record, ..LeaseEgress::default() }
}

pub(super) fn gifts(
    env: std::collections::BTreeMap<String, String>,
    files: Vec<api::NewFile>,
    limits: cubicle_model::LimitRequest,
    secrets: api::GivenSecrets,
) -> Result<Gifts, Fault> {
    let file = |file: api::NewFile| {
        let bytes = file.content.bytes().map_err(|error| {
            Fault::new(Kind::Invalid, format!("'{}' is not base64: {error}", file.path.escape_default()))
        })?;
        let path = match file.path.starts_with('/') {
            true => file.path,
            false => format!("/workspace/{}", file.path),
        };
        Ok(FileToWrite { path, bytes, mode: file.mode & 0o777 })
    };
    let secret = |name: String| -> Result<SecretName, Fault> {
        name.parse().map_err(|error| Fault::new(Kind::Invalid, format!("{error}")))
    };
    let secrets = SecretGifts {
        files: secrets.files.into_iter().map(secret).collect::<Result<_, Fault>>()?,
        env: secrets
            .env
            .into_iter()
            .map(|(variable, name)| Ok((variable, secret(name)?)))
            .collect::<Result<_, Fault>>()?,
    };
    Ok(Gifts {
        env,
        files: files.into_iter().map(file).collect::<Result<_, Fault>>()?,
        limits,
        secrets,
        mounts: Vec::new(),
    })
}

fn show(app: &App, lease: Lease, position: Option<u64>) -> api::Lease {
    api::Lease {
        lease_id: lease.id.to_string(),
        sandbox_id: lease.sandbox.map(|id| id.to_string()),
        status: lease.status,
        admission: lease.admission,
        tenant: lease.tenant.to_string(),
        user: lease.user.to_string(),
        template: lease.template.name.to_string(),
        workflow: lease.workflow,
        request: lease.request,
        ttl_seconds: lease.ttl_seconds,
        heartbeat_seconds: lease.heartbeat_seconds,
        created_at: lease.created_at,
        expires_at: lease.expires_at,
        ended_at: lease.ended_at,
        ended_because: lease.ended_because,
        queue: position
            .map(|position| api::QueuePlace { position, estimated_seconds: app.estimate(position) }),
    }
}
