//! `/api/v1/leases/{id}/egress`, `/api/v1/execs/{id}/egress` and `/api/v1/egress`.

use std::sync::Arc;

use axum::Json as Reply;
use axum::extract::State;
use cubicle_api as api;
use cubicle_model::egress::Bill;
use cubicle_model::{ExecId, Fault, Kind, LeaseId};

use super::problem::Answer;
use super::request::{Id, Json};
use crate::app::egress::{EgressView, Whose};
use crate::app::{App, Caller};
use crate::redaction::Masks;

/// What a lease may reach, and what it has reached
#[utoipa::path(get, operation_id = "get_lease_egress", path = "/leases/{lease_id}/egress", tag = "egress", params(("lease_id" = String, Path)),
    responses((status = 200, body = api::Egress), (status = "default", body = api::ErrorBody)))]
pub(super) async fn of_lease(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<LeaseId>,
) -> Answer<Reply<api::Egress>> {
    let view = app.egress_of_lease(&caller, id).await?;
    let masks = app.masks(&app.lease(&caller, id).await?.tenant).await?;
    Ok(Reply(show(view, &masks)))
}

/// Change what a lease may reach
///
/// Holds for what is open, too, when the answer comes. A policy that cannot be read leaves the one before in force.
#[utoipa::path(put, operation_id = "change_lease_egress", path = "/leases/{lease_id}/egress", tag = "egress", params(("lease_id" = String, Path)),
    request_body = api::LeaseEgress,
    responses((status = 200, body = api::Egress), (status = "default", body = api::ErrorBody)))]
pub(super) async fn change(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<LeaseId>,
    Json(asked): Json<api::LeaseEgress>,
) -> Answer<Reply<api::Egress>> {
    let view = app.change_egress(&caller, id, asked.policy, asked.record).await?;
    let masks = app.masks(&app.lease(&caller, id).await?.tenant).await?;
    Ok(Reply(show(view, &masks)))
}

/// What an exec has reached
///
/// Execs of one sandbox that run at the same time share its network, and each other's lines.
#[utoipa::path(get, operation_id = "get_exec_egress", path = "/execs/{exec_id}/egress", tag = "egress", params(("exec_id" = String, Path)),
    responses((status = 200, body = api::Bill), (status = "default", body = api::ErrorBody)))]
pub(super) async fn of_exec(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<ExecId>,
) -> Answer<Reply<api::Bill>> {
    let bill = app.bill_of_exec(&caller, id).await?;
    let masks = app.masks(&app.exec(&caller, id).await?.tenant).await?;
    Ok(Reply(show_bill(bill, &masks)))
}

/// List bundles
#[utoipa::path(get, operation_id = "list_bundles", path = "/egress/bundles", tag = "egress",
    responses((status = 200, body = Vec<api::Bundle>), (status = "default", body = api::ErrorBody)))]
pub(super) async fn bundles(State(app): State<Arc<App>>, caller: Caller) -> Answer<Reply<Vec<api::Bundle>>> {
    let bundle = |(name, rules): (cubicle_model::Name, String)| api::Bundle { name: name.to_string(), rules };
    Ok(Reply(app.bundles(&caller)?.into_iter().map(bundle).collect()))
}

/// Explain what would become of a request
///
/// Nothing is resolved and nothing is reached.
#[utoipa::path(post, operation_id = "explain_egress", path = "/egress/explain", tag = "egress", request_body = api::Explain,
    responses((status = 200, body = api::Explanation), (status = "default", body = api::ErrorBody)))]
pub(super) async fn explain(
    State(app): State<Arc<App>>,
    caller: Caller,
    Json(asked): Json<api::Explain>,
) -> Answer<Reply<api::Explanation>> {
    let whose = match (asked.policy, asked.lease_id, asked.template) {
        (Some(policy), None, None) => Whose::Policy(policy),
        (None, Some(lease), None) => {
            let wrong = |_| Fault::new(Kind::Invalid, "'lease_id' is not the id of a lease");
            Whose::Lease(lease.parse().map_err(wrong)?)
        }
        (None, None, template) => Whose::Template(template.unwrap_or_else(|| "default".into())),
        _ => {
            return Err(Fault::new(Kind::Invalid, "name one of 'policy', 'lease_id' and 'template'").into());
        }
    };
    let explained = app.explain(&caller, whose, &asked.url).await?;
    Ok(Reply(api::Explanation { allowed: explained.allowed, explanation: explained.explanation }))
}

fn show(view: EgressView, masks: &Masks) -> api::Egress {
    let EgressView { policy, said_by, record, bill, minimal } = view;
    api::Egress { policy, said_by, record, bill: show_bill(bill, masks), minimal_policy: minimal }
}

/// Hosts are named by programs inside, which may put anything into a name.
pub(super) fn show_bill(bill: Bill, masks: &Masks) -> api::Bill {
    let mut shown = api::Bill::from(bill);
    shown.lines.iter_mut().for_each(|line| masks.known.text(&mut line.host));
    shown.denials.iter_mut().for_each(|denial| masks.known.text(&mut denial.target));
    shown
}
