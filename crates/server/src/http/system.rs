//! Health, readiness, metrics, and what there is not.

use std::sync::Arc;

use axum::Json as Reply;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use cubicle_api as api;
use cubicle_model::{Fault, Kind, SandboxId};

use super::problem::{Answer, Problem};
use crate::app::App;
use crate::metrics::Form;

/// Whether the process lives
#[utoipa::path(get, path = "/health", tag = "system", security(()), responses((status = 200, body = api::Health)))]
pub(super) async fn health() -> Reply<api::Health> {
    Reply(api::Health { status: "ok".into(), version: env!("CARGO_PKG_VERSION").into() })
}

/// Whether it can do its work
#[utoipa::path(get, path = "/ready", tag = "system", security(()),
    responses((status = 200, body = api::Readiness), (status = 503, body = api::Readiness)))]
pub(super) async fn ready(State(app): State<Arc<App>>) -> (StatusCode, Reply<api::Readiness>) {
    let check = |name: &str, outcome: Result<(), Fault>| api::ReadinessCheck {
        name: name.into(),
        ok: outcome.is_ok(),
        because: outcome.err().map(|fault| fault.to_string()),
    };
    let stopping = match app.stopping.is_cancelled() {
        true => Err(Fault::new(Kind::Unavailable, "the server is stopping")),
        false => Ok(()),
    };
    let checks = vec![
        check("store", app.store.ping().await),
        // One that does not exist: anybody may ask this often, and a list costs as much as there are sandboxes.
        check("backend", app.backend.observe(SandboxId::from_random([0; 16])).await.map(drop)),
        check("serving", stopping),
    ];
    let ready = checks.iter().all(|check| check.ok);
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Reply(api::Readiness { ready, checks }))
}

/// Metrics for Prometheus
#[utoipa::path(get, path = "/metrics", tag = "system", security(()),
    responses((status = 200, description = "In the format that is asked for", content((String = "text/plain"), (String = "application/openmetrics-text"))),
        (status = "default", body = api::ErrorBody)))]
pub(super) async fn metrics(State(app): State<Arc<App>>, headers: HeaderMap) -> Answer<Response> {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let form = Form::asked(accept);
    let text = app.metrics.text(&app.snapshot().await?, form);
    Ok(([(header::CONTENT_TYPE, form.media_type())], text).into_response())
}

pub(super) async fn openapi(document: Arc<String>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], document.as_str().to_owned()).into_response()
}

/// Which methods there are is in the `Allow` header.
pub(super) async fn no_such_method(method: Method, uri: Uri) -> Problem {
    let fault = Fault::new(Kind::Invalid, format!("{method} is not possible at {}", uri.path()))
        .hint("/api/v1/openapi.json lists what there is");
    Problem::with_status(fault, StatusCode::METHOD_NOT_ALLOWED)
}

pub(super) async fn nothing_here(uri: Uri) -> Problem {
    Fault::new(Kind::NotFound, format!("there is nothing at {}", uri.path()))
        .hint("/api/v1/openapi.json lists what there is")
        .into()
}
