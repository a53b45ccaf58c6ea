//! `/api/v1/webhooks`: receivers, and what they were told. `/api/webhooks/worker-complete`: workers tell that their task has
//! ended.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Json as Reply;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use cubicle_api as api;
use cubicle_egress::secret::Secret;
use cubicle_model::webhook::DeliveryState;
use cubicle_model::{DeliveryId, Fault, Kind, RequestId, TaskId, WebhookId};
use cubicle_store::{Actor, Attempt, Delivery, DeliveryFilter, Endpoint, EndpointChange};
use futures_util::StreamExt;

use super::problem::{Answer, Problem};
use super::request::{Confidential, Id, Json, Paging, Query, paged, pieces};
use crate::app::webhooks::EndpointRequest;
use crate::app::{App, Caller};
use crate::webhooks::{Call, Unheard};

/// Of what a worker says.
const LARGEST_CALL: usize = 64 * 1024;
const CALL_PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, Default, serde::Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Token {
    /// Of this task alone: part of the address that its worker was given.
    token: Option<String>,
}

/// A worker tells that its task has ended
///
/// Needs no key: `token` is the task's own, and where the server has a webhook secret the raw body is signed, by
/// `X-Webhook-Signature` or by the headers of Standard Webhooks. The same word again gets the same answer.
#[utoipa::path(post, path = "/api/webhooks/worker-complete", tag = "webhooks", security(()), params(Token),
    request_body = api::WorkerCompletion,
    responses((status = 200, body = api::WorkerHeard),
        (status = 401, description = "The call is not signed, or not with a secret of this server", body = api::ErrorBody),
        (status = 403, description = "The token is not that of this task", body = api::ErrorBody),
        (status = 415, description = "The body is not application/json", body = api::ErrorBody),
        (status = 422, description = "The body does not tell the end of a task", body = api::ErrorBody),
        (status = "default", body = api::ErrorBody)))]
pub(super) async fn worker_complete(
    State(app): State<Arc<App>>,
    ConnectInfo(from): ConnectInfo<SocketAddr>,
    axum::Extension(id): axum::Extension<RequestId>,
    Query(token): Query<Token>,
    request: Request,
) -> Answer<Reply<api::WorkerHeard>> {
    let (head, body) = request.into_parts();
    if !is_json(&head.headers) {
        super::request::discard(body).await;
        let fault = Fault::new(Kind::Invalid, "the body must be of the type application/json");
        return Err(Problem::with_status(fault, StatusCode::UNSUPPORTED_MEDIA_TYPE));
    }
    let body = whole(body).await?;
    let text = |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok());
    let standard = text("webhook-id").zip(text("webhook-timestamp")).zip(text("webhook-signature"));
    let call = Call {
        token: token.token.as_deref(),
        signature: text("x-webhook-signature"),
        standard: standard.map(|((id, time), signature)| (id, time, signature)),
        body: &body,
    };
    let from = Some(from.ip().to_string());
    let actor = Actor { tenant: None, name: "worker".into(), key: None, from, request: Some(id) };
    let event = app.hear(actor, call).await.map_err(refused)?;
    Ok(Reply(api::WorkerHeard { status: "accepted".into(), event_id: event.to_string() }))
}

fn refused(why: Unheard) -> Problem {
    let text = why.to_string();
    match why {
        Unheard::Unsigned => Problem::unsigned(&text),
        Unheard::WrongToken => Fault::new(Kind::Denied, text)
            .hint("call the address that the worker was given, with its '?token='")
            .into(),
        Unheard::NotACompletion(_) => {
            Problem::with_status(Fault::new(Kind::Invalid, text), StatusCode::UNPROCESSABLE_ENTITY)
        }
        Unheard::Fault(fault) => fault.into(),
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let given = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let mut parts = given.split(';').map(str::trim);
    let is_json = parts.next().is_some_and(|kind| kind.eq_ignore_ascii_case("application/json"));
    is_json && parts.all(|part| part.eq_ignore_ascii_case("charset=utf-8"))
}

async fn whole(body: Body) -> Result<Vec<u8>, Problem> {
    let mut pieces = pieces(body);
    let reading = async {
        let mut bytes = Vec::new();
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(|_| Fault::new(Kind::Invalid, "the body broke off"))?;
            if bytes.len() + piece.len() > LARGEST_CALL {
                let fault = Fault::new(Kind::Invalid, format!("the body has at most {LARGEST_CALL} bytes"));
                return Err(Problem::with_status(fault, StatusCode::PAYLOAD_TOO_LARGE));
            }
            bytes.extend_from_slice(&piece);
        }
        Ok(bytes)
    };
    let late = || Fault::new(Kind::Invalid, "the body did not come in time");
    tokio::time::timeout(CALL_PATIENCE, reading)
        .await
        .unwrap_or_else(|_| Err(Problem::with_status(late(), StatusCode::REQUEST_TIMEOUT)))
}

/// Register a webhook
///
/// A receiver of the tenant, told of everything of these types from now on. Its secret is in the answer, this once.
#[utoipa::path(post, operation_id = "create_webhook", path = "/webhooks", tag = "webhooks",
    request_body = api::CreateWebhook,
    responses((status = 201, body = api::NewWebhook), (status = "default", body = api::ErrorBody)))]
pub(super) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    Confidential(asked): Confidential<api::CreateWebhook>,
) -> Answer<(StatusCode, Reply<api::NewWebhook>)> {
    let asked = EndpointRequest {
        url: asked.url,
        events: asked.events,
        description: asked.description,
        enabled: asked.enabled,
        secret: asked.secret.map(|secret| Secret::new(secret.into_bytes())),
    };
    let (made, secret) = app.create_webhook(&caller, asked).await?;
    Ok((StatusCode::CREATED, Reply(api::NewWebhook { webhook: show(made), secret })))
}

/// List webhooks, without their secrets
#[utoipa::path(get, operation_id = "list_webhooks", path = "/webhooks", tag = "webhooks", params(Paging),
    responses((status = 200, body = api::Page<api::Webhook>), (status = "default", body = api::ErrorBody)))]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    Query(paging): Query<Paging>,
) -> Answer<Reply<api::Page<api::Webhook>>> {
    let page = paging.page()?;
    let all = app.webhooks(&caller, page.clone()).await?;
    Ok(Reply(paged(all, &page, |one| one.id.to_string(), show)))
}

/// Get a webhook, without its secret
#[utoipa::path(get, operation_id = "get_webhook", path = "/webhooks/{webhook_id}", tag = "webhooks",
    params(("webhook_id" = String, Path)),
    responses((status = 200, body = api::Webhook), (status = "default", body = api::ErrorBody)))]
pub(super) async fn get(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<WebhookId>,
) -> Answer<Reply<api::Webhook>> {
    Ok(Reply(show(app.webhook(&caller, id).await?)))
}

/// Change a webhook; what is not named stays
///
/// A receiver that answered 410 is disabled, and is enabled here.
#[utoipa::path(patch, operation_id = "change_webhook", path = "/webhooks/{webhook_id}", tag = "webhooks",
    request_body = api::ChangeWebhook, params(("webhook_id" = String, Path)),
    responses((status = 200, body = api::Webhook), (status = "default", body = api::ErrorBody)))]
pub(super) async fn change(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<WebhookId>,
    Json(asked): Json<api::ChangeWebhook>,
) -> Answer<Reply<api::Webhook>> {
    let api::ChangeWebhook { url, description, enabled } = asked;
    Ok(Reply(show(app.change_webhook(&caller, id, EndpointChange { url, description, enabled }).await?)))
}

/// Remove a webhook; what was not delivered yet is withdrawn
#[utoipa::path(delete, operation_id = "delete_webhook", path = "/webhooks/{webhook_id}", tag = "webhooks",
    params(("webhook_id" = String, Path)),
    responses((status = 204, description = "Removed"), (status = "default", body = api::ErrorBody)))]
pub(super) async fn delete(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<WebhookId>,
) -> Answer<StatusCode> {
    app.remove_webhook(&caller, id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Send a webhook a `ping`, to see whether it hears
#[utoipa::path(post, operation_id = "try_webhook", path = "/webhooks/{webhook_id}/test", tag = "webhooks",
    params(("webhook_id" = String, Path)),
    responses((status = 202, body = api::Delivery), (status = "default", body = api::ErrorBody)))]
pub(super) async fn test(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<WebhookId>,
) -> Answer<(StatusCode, Reply<api::Delivery>)> {
    let made = app.try_webhook(&caller, id).await?;
    Ok((StatusCode::ACCEPTED, Reply(show_delivery(made, Vec::new()))))
}

#[derive(Debug, Default, serde::Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Which {
    /// Only to this webhook.
    #[param(pattern = "^hook-[a-z2-7]{26}$")]
    webhook_id: Option<String>,
    /// Only about this task.
    #[param(pattern = "^task-[a-z2-7]{26}$")]
    task_id: Option<String>,
    /// `pending`, `delivered`, `dead` or `withdrawn`.
    #[param(pattern = "^(pending|delivered|dead|withdrawn)$")]
    state: Option<String>,
}

impl Which {
    fn filter(self) -> Result<DeliveryFilter, Fault> {
        let invalid = |text: String| Fault::new(Kind::Invalid, text);
        let state = |name: String| {
            let known = DeliveryState::ALL.into_iter().find(|state| state.name() == name);
            known.ok_or_else(|| invalid("'state' is pending, delivered, dead or withdrawn".into()))
        };
        let endpoint = self.webhook_id.map(|id| id.parse().map_err(|error| invalid(format!("{error}"))));
        let task = |id: String| id.parse::<TaskId>().map_err(|error| invalid(format!("{error}")));
        Ok(DeliveryFilter {
            tenant: None,
            endpoint: endpoint.transpose()?,
            subject: self.task_id.map(task).transpose()?.map(|task| task.to_string()),
            state: self.state.map(state).transpose()?,
        })
    }
}

/// List what receivers were told, the newest first
#[utoipa::path(get, operation_id = "list_deliveries", path = "/webhooks/deliveries", tag = "webhooks",
    params(Which, Paging),
    responses((status = 200, body = api::Page<api::Delivery>), (status = "default", body = api::ErrorBody)))]
pub(super) async fn deliveries(
    State(app): State<Arc<App>>,
    caller: Caller,
    Query(which): Query<Which>,
    Query(paging): Query<Paging>,
) -> Answer<Reply<api::Page<api::Delivery>>> {
    let page = paging.page()?;
    let all = app.deliveries(&caller, which.filter()?, page.clone()).await?;
    Ok(Reply(paged(all, &page, Delivery::cursor, |one| show_delivery(one, Vec::new()))))
}

/// Get a delivery with every attempt
#[utoipa::path(get, operation_id = "get_delivery", path = "/webhooks/deliveries/{delivery_id}", tag = "webhooks",
    params(("delivery_id" = String, Path)),
    responses((status = 200, body = api::Delivery), (status = "default", body = api::ErrorBody)))]
pub(super) async fn delivery(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<DeliveryId>,
) -> Answer<Reply<api::Delivery>> {
    let (delivery, attempts) = app.delivery(&caller, id).await?;
    Ok(Reply(show_delivery(delivery, attempts)))
}

/// Send a delivery again, under its id, as often as a new one
#[utoipa::path(post, operation_id = "replay_delivery", path = "/webhooks/deliveries/{delivery_id}/replay",
    tag = "webhooks", params(("delivery_id" = String, Path)),
    responses((status = 202, body = api::Delivery), (status = "default", body = api::ErrorBody)))]
pub(super) async fn replay(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<DeliveryId>,
) -> Answer<(StatusCode, Reply<api::Delivery>)> {
    let replayed = app.replay(&caller, id).await?;
    Ok((StatusCode::ACCEPTED, Reply(show_delivery(replayed, Vec::new()))))
}

fn show(endpoint: Endpoint) -> api::Webhook {
    api::Webhook {
        webhook_id: endpoint.id.to_string(),
        url: endpoint.url,
        events: endpoint.events.iter().map(|event| event.name().to_owned()).collect(),
        description: endpoint.description,
        enabled: endpoint.enabled,
        created_by: endpoint.created_by,
        created_at: endpoint.created_at,
        updated_at: endpoint.updated_at,
    }
}

fn show_delivery(delivery: Delivery, attempts: Vec<Attempt>) -> api::Delivery {
    let is_pending = delivery.state == DeliveryState::Pending;
    api::Delivery {
        delivery_id: delivery.id.to_string(),
        webhook_id: delivery.endpoint.map(|id| id.to_string()),
        url: delivery.url,
        event_type: delivery.event_type,
        event_id: delivery.event.map(|id| id.to_string()),
        subject: delivery.subject,
        conversation_id: delivery.conversation,
        state: delivery.state.name().into(),
        attempts: delivery.attempts,
        next_at: is_pending.then_some(delivery.next_at),
        last_status: delivery.last_status,
        last_error: delivery.last_error,
        created_at: delivery.created_at,
        ended_at: delivery.ended_at,
        log: attempts.into_iter().map(show_attempt).collect(),
    }
}

fn show_attempt(attempt: Attempt) -> api::DeliveryAttempt {
    api::DeliveryAttempt {
        number: attempt.number,
        time: attempt.time,
        took_ms: u64::try_from(attempt.took.as_millis()).unwrap_or(u64::MAX),
        status: attempt.status,
        error: attempt.error,
        answer: attempt.answer,
    }
}
