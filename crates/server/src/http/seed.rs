//! The sandbox manager's dialect, on its exact wire form.

use std::sync::Arc;

use axum::Json as Reply;
use axum::extract::State;
use axum::http::StatusCode;
use cubicle_api as api;
use cubicle_model::egress::LeaseEgress;
use cubicle_model::{Fault, Kind, LeaseId};

use super::problem::Answer;
use super::request::{Id, Json};
use crate::app::leases::{Gifts, LeaseRequest};
use crate::app::{App, Caller};

/// Acquire a lease (sandbox manager)
#[utoipa::path(post, operation_id = "manager_acquire_lease", path = "/sandboxes/leases", tag = "sandbox manager", request_body = api::AcquireLease,
    responses((status = 200, body = api::AcquiredLease), (status = "default", body = api::ErrorBody)))]
pub(super) async fn acquire(
    State(app): State<Arc<App>>,
    caller: Caller,
    Json(asked): Json<api::AcquireLease>,
) -> Answer<Reply<api::AcquiredLease>> {
    let asked = LeaseRequest {
        template: "default".into(),
        user: Some(asked.user_id),
        workflow: asked.workflow_id,
        request: Some(asked.request_id),
        ttl_seconds: asked.ttl_seconds,
        heartbeat_seconds: None,
        gifts: Gifts::default(),
        egress: LeaseEgress::default(),
        may_wait: false,
        one_shot: false,
        preferred: Vec::new(),
    };
    let lease = app.acquire(&caller, asked).await?.lease;
    let sandbox = lease.sandbox.ok_or_else(|| Fault::new(Kind::Conflict, "the lease has ended"))?;
    Ok(Reply(api::AcquiredLease {
        lease_id: lease.id.to_string(),
        sandbox_id: sandbox.to_string(),
        expires_at: lease.expires_at,
    }))
}

/// Give a lease back (sandbox manager)
#[utoipa::path(delete, operation_id = "manager_release_lease", path = "/sandboxes/leases/{lease_id}", tag = "sandbox manager", params(("lease_id" = String, Path)),
    responses((status = 204, description = "Given back"), (status = "default", body = api::ErrorBody)))]
pub(super) async fn release(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<LeaseId>,
) -> Answer<StatusCode> {
    app.release(&caller, id).await?;
    Ok(StatusCode::NO_CONTENT)
}
