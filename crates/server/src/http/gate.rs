//! What every request passes: an id, a caller, a problem's body, headers, and a line in the log.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{ConnectInfo, MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use cubicle_model::{Fault, Name, RequestId};
use tokio::time::Instant;
use tracing::{Instrument, debug, error, info};

use super::elsewhere::{self, FromElsewhere};
use super::problem::Problem;
use super::request;
use crate::app::{App, Caller};
use crate::auth::Refusal;
use crate::spans;
use crate::webhooks::WebhookSettings;

/// Answered without a key: they say nothing about anybody.
const OPEN: [&str; 6] = [
    "/health",
    "/ready",
    "/api/v1/openapi.json",
    "/metrics",
    super::mcp::METADATA,
    super::mcp::METADATA_OF_MCP,
];

pub(super) async fn gate(
    State(app): State<Arc<App>>,
    ConnectInfo(from): ConnectInfo<SocketAddr>,
    mut asked: Request,
    next: Next,
) -> Response {
    let started = Instant::now();
    let id = RequestId::from_random(app.surroundings.bits());
    let method = asked.method().clone();
    let path = asked.uri().path().to_owned();
    let route = asked.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let traceparent = asked.headers().get("traceparent").and_then(|value| value.to_str().ok());
    let span = spans::request(id, method.as_str(), route.as_deref(), traceparent);
    spans::named(&span, &path);
    asked.extensions_mut().insert(id);
    let mut tenant = None;
    let answer = async {
        match admit(&app, &mut asked, from, id).await.map(|of| tenant = of) {
            Ok(()) => match elsewhere::place(&app, elsewhere::subject(&asked)).await {
                Ok(None) => next.run(asked).await,
                Ok(Some(place)) => elsewhere::forward(&app, &place, asked).await.unwrap_or_else(refused),
                Err(fault) => refused(fault),
            },
            Err(problem) => {
                // Not louder: anybody can have this said as often as they like.
                let (code, error, cause) = (problem.code(), problem.message(), problem.cause());
                debug!(%from, path, code, error, cause, "request not admitted");
                request::discard(asked.into_body()).await;
                super::mcp::challenged(&app, &path, problem.render(id))
            }
        }
    };
    let response = answer.instrument(span.clone()).await;
    let mut response = match response.extensions().get::<Problem>().cloned() {
        Some(problem) => {
            let problem = problem.masked(&app, tenant.as_ref()).await;
            span.in_scope(|| log(&problem, &path));
            problem.render(id)
        }
        None => response,
    };
    let status = response.status().as_u16();
    let is_from_elsewhere = response.extensions().get::<FromElsewhere>().is_some();
    let headers = response.headers_mut();
    // An id is letters and digits.
    if !is_from_elsewhere && let Ok(value) = HeaderValue::from_str(&id.to_string()) {
        headers.insert(cubicle_api::REQUEST_ID, value);
    }
    for (name, value) in [
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        ("referrer-policy", "no-referrer"),
        ("content-security-policy", "default-src 'none'; frame-ancestors 'none'"),
    ] {
        if !headers.contains_key(name) {
            headers.insert(name, HeaderValue::from_static(value));
        }
    }
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    let took = started.elapsed();
    app.metrics.request(method.as_str(), route.as_deref(), status, took);
    span.in_scope(|| debug!(path, status, ?took, "request answered"));
    span.record("status", status);
    response
}

fn refused(fault: Fault) -> Response {
    Problem::from(fault).into_response()
}

fn log(problem: &Problem, path: &str) {
    let (code, error, cause) = (problem.code(), problem.message(), problem.cause());
    if problem.status().is_server_error() && code == "internal" {
        error!(path, code, error, cause, "request failed");
    } else {
        info!(path, code, error, cause, "request refused");
    }
}

/// Finds out who asks, and leaves it with the request. Says which tenant that is of, where anybody needs to be known.
async fn admit(
    app: &App,
    request: &mut Request,
    from: SocketAddr,
    id: RequestId,
) -> Result<Option<Name>, Problem> {
    let path = request.uri().path();
    let is_webhook = path == WebhookSettings::PATH || path == app.settings.webhooks.path;
    if is_webhook || OPEN.contains(&path) || super::links::is_signed(path, request.uri().query()) {
        return Ok(None);
    }
    let principal = match secret(request.headers()) {
        Some(secret) => app.authenticate(secret).await.map_err(|refusal| match refusal {
            Refusal::Unknown(why) => Problem::unauthenticated(why),
            Refusal::Token(why) => Problem::unacceptable_token(&why),
            Refusal::TooMany(wait) => Problem::too_many(wait),
            Refusal::Fault(fault) => fault.into(),
        })?,
        None if app.settings.keyless => {
            refuse_foreign_host(request.headers())?;
            app.everybody()?
        }
        None => return Err(Problem::unauthenticated("a key is needed")),
    };
    let tenant = principal.tenant.clone();
    request.extensions_mut().insert(Caller { principal, from: Some(from.ip().to_string()), request: id });
    Ok(Some(tenant))
}

fn secret(headers: &HeaderMap) -> Option<&str> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let bearer = text("authorization").and_then(|value| {
        let (scheme, secret) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(secret.trim())
    });
    bearer.or_else(|| text("x-api-key"))
}

/// A page of another site that a browser on this host has open may be pointed here by its name (DNS rebinding). Without
/// keys only names of this host are answered.
fn refuse_foreign_host(headers: &HeaderMap) -> Result<(), Problem> {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or("localhost");
    let name = host
        .rsplit_once(':')
        .filter(|(_, port)| port.bytes().all(|c| c.is_ascii_digit()))
        .map_or(host, |(name, _)| name);
    let own = ["localhost", "127.0.0.1", "[::1]"].contains(&name) || name.ends_with(".localhost");
    let from_page = headers.get(header::ORIGIN).and_then(|origin| origin.to_str().ok());
    let own_page =
        from_page.is_none_or(|origin| origin.split_once("://").is_some_and(|(_, from)| from == host));
    if own && own_page {
        return Ok(());
    }
    Err(Problem::unauthenticated("without a key only requests of this host are answered"))
}
