//! What every request passes: an id, a caller, a problem's body, headers, and a line in the log.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{ConnectInfo, MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::middleware::Next;
use axum::response::Response;
use cubicle_model::RequestId;
use tokio::time::Instant;
use tracing::{debug, error, info};

use super::problem::Problem;
use crate::app::{App, Caller};
use crate::auth::Refusal;

/// Answered without a key: they say nothing about anybody.
const OPEN: [&str; 4] = ["/health", "/ready", "/api/v1/openapi.json", "/metrics"];

pub(super) async fn gate(
    State(app): State<Arc<App>>,
    ConnectInfo(from): ConnectInfo<SocketAddr>,
    mut request: Request,
    next: Next,
) -> Response {
    let started = Instant::now();
    let id = RequestId::from_random(app.surroundings.bits());
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let response = match admit(&app, &mut request, from, id).await {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.render(id),
    };
    let mut response = match response.extensions().get::<Problem>().cloned() {
        Some(problem) => {
            log(&problem, id, &path);
            problem.render(id)
        }
        None => response,
    };
    let status = response.status().as_u16();
    let headers = response.headers_mut();
    // An id is letters and digits.
    if let Ok(value) = HeaderValue::from_str(&id.to_string()) {
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
    app.metrics.request(route.unwrap_or_else(|| "none".into()), status, took);
    debug!(request = %id, %method, path, status, ?took, "request answered");
    response
}

fn log(problem: &Problem, id: RequestId, path: &str) {
    let (code, message, cause) = (problem.code(), problem.message(), problem.cause());
    if problem.status().is_server_error() && code == "internal" {
        error!(request = %id, path, code, message, cause, "request failed");
    } else {
        info!(request = %id, path, code, message, cause, "request refused");
    }
}

/// Finds out who asks, and leaves it with the request.
async fn admit(app: &App, request: &mut Request, from: SocketAddr, id: RequestId) -> Result<(), Problem> {
    let path = request.uri().path();
    if OPEN.contains(&path) || super::links::is_signed(path, request.uri().query()) {
        return Ok(());
    }
    let principal = match secret(request.headers()) {
        Some(secret) => app.authenticate(secret).await.map_err(|refusal| match refusal {
            Refusal::Unknown(why) => Problem::unauthenticated(why),
            Refusal::TooMany(wait) => Problem::too_many(wait),
            Refusal::Fault(fault) => fault.into(),
        })?,
        None if app.settings.keyless => {
            refuse_foreign_host(request.headers())?;
            app.everybody()?
        }
        None => return Err(Problem::unauthenticated("a key is needed")),
    };
    request.extensions_mut().insert(Caller { principal, from: Some(from.ip().to_string()), request: id });
    Ok(())
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
