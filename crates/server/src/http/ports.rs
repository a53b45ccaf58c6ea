//! TCP into a sandbox: HTTP and WebSocket to one of its ports, with a key or by a signed preview link.

use std::str::FromStr;
use std::sync::Arc;

use axum::Json as Reply;
use axum::Router;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use axum::routing::any;
use cubicle_api as api;
use cubicle_guest::client::Guest;
use cubicle_model::{Fault, Kind, SandboxId, Scope, Timestamp};

use super::hand_on::hand_on;
use super::links::Lasting;
use super::problem::{Answer, Problem};
use super::request::{IdAnd, Query};
use crate::app::sandboxes::no_sandbox;
use crate::app::{App, Caller};

/// A port that somebody can listen on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Port(u16);

#[derive(Debug, thiserror::Error)]
#[error("a port is 1 to 65535")]
pub(super) struct NotAPort;

impl FromStr for Port {
    type Err = NotAPort;

    fn from_str(text: &str) -> Result<Self, NotAPort> {
        text.parse().ok().filter(|port| *port > 0).map(Self).ok_or(NotAPort)
    }
}

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/api/v1/sandboxes/{id}/ports/{port}", any(with_key))
        .route("/api/v1/sandboxes/{id}/ports/{port}/", any(with_key))
        .route("/api/v1/sandboxes/{id}/ports/{port}/{*rest}", any(with_key_below))
        .route("/preview/{token}/", any(preview))
        .route("/preview/{token}/{*rest}", any(preview_below))
}

/// A link to a port of a sandbox that needs no key
#[utoipa::path(post, operation_id = "create_preview", path = "/sandboxes/{sandbox_id}/previews/{port}", tag = "sandboxes",
    params(("sandbox_id" = String, Path), ("port" = u16, Path), Lasting),
    responses((status = 200, body = api::PortLink), (status = "default", body = api::ErrorBody)))]
pub(super) async fn link(
    State(app): State<Arc<App>>,
    caller: Caller,
    IdAnd(id, Port(port)): IdAnd<SandboxId, Port>,
    Query(lasting): Query<Lasting>,
) -> Answer<Reply<api::PortLink>> {
    caller.must(Scope::Run)?;
    app.in_use(&caller, id).await?;
    let expires_at = lasting.until(app.wall_now())?;
    let signature = app.sign(&subject(id, port), expires_at);
    // One segment, so that relative links of the page stay below it.
    let url = format!("{}/preview/{id}.{port}.{}.{signature}/", app.settings.address, expires_at.as_second());
    Ok(Reply(api::PortLink { url, expires_at }))
}

fn subject(id: SandboxId, port: u16) -> String {
    format!("port {id} {port}")
}

async fn with_key(
    State(app): State<Arc<App>>,
    caller: Caller,
    IdAnd(id, Port(port)): IdAnd<SandboxId, Port>,
    request: Request,
) -> Answer<Response> {
    caller.must(Scope::Run)?;
    let guest = app.guest_of(&caller, id).await?;
    forward(&guest, port, "", request).await
}

async fn with_key_below(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path((id, port, rest)): Path<(String, String, String)>,
    request: Request,
) -> Answer<Response> {
    caller.must(Scope::Run)?;
    let id: SandboxId = id.parse().map_err(|error| Fault::new(Kind::Invalid, format!("{error}")))?;
    let Port(port) = port.parse().map_err(|error: NotAPort| Fault::new(Kind::Invalid, error.to_string()))?;
    let guest = app.guest_of(&caller, id).await?;
    forward(&guest, port, &rest, request).await
}

async fn preview(
    State(app): State<Arc<App>>,
    Path(token): Path<String>,
    request: Request,
) -> Answer<Response> {
    by_token(&app, &token, "", request).await
}

async fn preview_below(
    State(app): State<Arc<App>>,
    Path((token, rest)): Path<(String, String)>,
    request: Request,
) -> Answer<Response> {
    by_token(&app, &token, &rest, request).await
}

async fn by_token(app: &App, token: &str, rest: &str, request: Request) -> Answer<Response> {
    let refused = || Problem::unauthenticated("this link is not good, or not any more");
    let mut parts = token.splitn(4, '.');
    let id: SandboxId = parts.next().and_then(|id| id.parse().ok()).ok_or_else(refused)?;
    let Port(port) = parts.next().and_then(|port| port.parse().ok()).ok_or_else(refused)?;
    let until: i64 = parts.next().and_then(|until| until.parse().ok()).ok_or_else(refused)?;
    let signature = parts.next().ok_or_else(refused)?;
    if Timestamp::from_second(until).is_err() || !app.is_good(&subject(id, port), until, signature) {
        return Err(refused());
    }
    let leased = app.live.get(id).ok_or_else(|| no_sandbox(id))?;
    forward(&leased.guest().await?, port, rest, request).await
}

/// Hands a request on to a port of the sandbox, and what comes back to whoever asked.
async fn forward(guest: &Guest, port: u16, rest: &str, mut request: Request) -> Answer<Response> {
    let tunnel = guest.port(port).await.map_err(|error| {
        let fault = Fault::from(error);
        match fault.kind() {
            Kind::Internal | Kind::NotFound => Problem::with_status(
                Fault::new(Kind::Unavailable, format!("nobody listens on port {port} of the sandbox"))
                    .hint("start a server there that listens on 127.0.0.1 or 0.0.0.0"),
                StatusCode::BAD_GATEWAY,
            ),
            _ => fault.into(),
        }
    })?;
    let bad_gateway = |error: &dyn std::fmt::Display| {
        let fault = Fault::new(Kind::Unavailable, "what listens there did not answer as an HTTP server does");
        Problem::with_status(fault.because(error.to_string()), StatusCode::BAD_GATEWAY)
    };
    let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
    let uri = format!("/{rest}{query}")
        .parse()
        .map_err(|_| Fault::new(Kind::Invalid, "the path cannot be handed on"))?;
    *request.uri_mut() = uri;
    // The key is for this server, and must not reach what runs in the sandbox.
    request.headers_mut().remove(header::AUTHORIZATION);
    request.headers_mut().remove("x-api-key");
    request.headers_mut().insert(header::HOST, HeaderValue::from_static("localhost"));
    let mut response = hand_on(tunnel, request).await.map_err(|error| bad_gateway(&error))?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return Ok(response);
    }
    // A page of a sandbox is a page of a stranger: it gets none of this server's cookies or rights.
    response.headers_mut().insert(
        "content-security-policy",
        HeaderValue::from_static("sandbox allow-scripts allow-forms allow-popups"),
    );
    response.headers_mut().insert("x-frame-options", HeaderValue::from_static("SAMEORIGIN"));
    Ok(response)
}
