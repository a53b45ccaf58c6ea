//! `/api/v1/secrets`. A value comes in here and nowhere goes out.

use std::sync::Arc;

use axum::Json as Reply;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use cubicle_api as api;
use cubicle_egress::secret::Secret;
use cubicle_model::{CredentialBinding, Fault, Kind, SecretName, SecretSource};

use super::problem::Answer;
use super::request::{Confidential, Id, IfMatch, Paging, Query, paged};
use super::templates::etag;
use crate::app::secrets::SecretRequest;
use crate::app::{App, Caller};
use crate::secrets::Held;

/// List secrets
///
/// Without their values. Whoever may not change secrets does not see which there are.
#[utoipa::path(get, operation_id = "list_secrets", path = "/secrets", tag = "secrets", params(Paging),
    responses((status = 200, body = api::Page<api::Secret>), (status = "default", body = api::ErrorBody)))]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    Query(paging): Query<Paging>,
) -> Answer<Reply<api::Page<api::Secret>>> {
    let page = paging.page()?;
    let secrets = app.list_secrets(&caller, &page).await?;
    Ok(Reply(paged(secrets, &page, |held| held.name.to_string(), show)))
}

/// Get a secret, without its value
#[utoipa::path(get, operation_id = "get_secret", path = "/secrets/{secret_name}", tag = "secrets",
    params(("secret_name" = String, Path)),
    responses((status = 200, body = api::Secret), (status = "default", body = api::ErrorBody)))]
pub(super) async fn get(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(name): Id<SecretName>,
) -> Answer<Response> {
    Ok(tagged(StatusCode::OK, app.secret(&caller, &name).await?))
}

/// Set or replace a secret
///
/// Running sandboxes get the new value. With `If-Match` only the version that was seen is replaced; with
/// `If-None-Match: *` nothing is. What is the same already keeps its version.
#[utoipa::path(put, operation_id = "put_secret", path = "/secrets/{secret_name}", tag = "secrets",
    request_body = api::PutSecret,
    params(("secret_name" = String, Path), ("if-match" = Option<String>, Header, description = "The ETag that was seen")),
    responses((status = 200, body = api::Secret), (status = 201, body = api::Secret), (status = "default", body = api::ErrorBody)))]
pub(super) async fn put(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(name): Id<SecretName>,
    IfMatch(version): IfMatch,
    Confidential(asked): Confidential<api::PutSecret>,
) -> Answer<Response> {
    let (held, is_new) = app.set_secret(&caller, name, read(asked)?, version).await?;
    Ok(tagged(if is_new { StatusCode::CREATED } else { StatusCode::OK }, held))
}

/// Remove a secret
///
/// Requests of running sandboxes to where it went are sent without it from now on.
#[utoipa::path(delete, operation_id = "delete_secret", path = "/secrets/{secret_name}", tag = "secrets",
    params(("secret_name" = String, Path), ("if-match" = Option<String>, Header, description = "The ETag that was seen")),
    responses((status = 204, description = "Removed"), (status = "default", body = api::ErrorBody)))]
pub(super) async fn delete(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(name): Id<SecretName>,
    IfMatch(version): IfMatch,
) -> Answer<StatusCode> {
    app.remove_secret(&caller, name, version).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn tagged(status: StatusCode, held: Held) -> Response {
    let tag = etag(held.version);
    let mut response = (status, Reply(show(held))).into_response();
    response.headers_mut().insert(header::ETAG, tag);
    response
}

fn read(asked: api::PutSecret) -> Result<SecretRequest, Fault> {
    let (source, value) = match (asked.value, asked.from_file, asked.from_environment) {
        (Some(value), None, None) => (SecretSource::Value, Some(Secret::new(value.into_bytes()))),
        (None, Some(path), None) => (SecretSource::File(path.into()), None),
        (None, None, Some(name)) => (SecretSource::Environment(name), None),
        _ => {
            let text = "a secret has exactly one of 'value', 'from_file' and 'from_environment'";
            return Err(Fault::new(Kind::Invalid, text));
        }
    };
    let bindings = asked.bindings.map(|all| all.into_iter().map(read_binding).collect()).transpose()?;
    Ok(SecretRequest { source, value, bindings })
}

fn read_binding(asked: api::Binding) -> Result<CredentialBinding, Fault> {
    fn part<T: std::str::FromStr<Err: std::fmt::Display>>(what: &str, text: &str) -> Result<T, Fault> {
        text.parse().map_err(|error| Fault::new(Kind::Invalid, format!("'{what}' of a binding: {error}")))
    }
    let templates = asked.templates.map(|all| all.iter().map(|name| part("templates", name)).collect());
    Ok(CredentialBinding {
        host: part("host", &asked.host)?,
        port: asked.port,
        form: part("form", &asked.form)?,
        base: asked.base.map(|base| part("base", &base)).transpose()?,
        even_plain: asked.even_plain,
        templates: templates.transpose()?,
    })
}

fn show(held: Held) -> api::Secret {
    let warning = held.warning();
    let from = match &held.source {
        SecretSource::Value => None,
        SecretSource::File(path) => Some(path.display().to_string()),
        SecretSource::Environment(name) => Some(name.clone()),
    };
    let record = held.record;
    api::Secret {
        name: held.name.to_string(),
        version: held.version,
        source: held.source.name().into(),
        from,
        bindings: held.bindings.into_iter().map(show_binding).collect(),
        available: held.value.is_ok(),
        because: held.value.err(),
        warning,
        created_at: record.as_ref().map(|record| record.created_at),
        updated_at: record.as_ref().map(|record| record.updated_at),
        updated_by: record.map(|record| record.updated_by),
    }
}

fn show_binding(binding: CredentialBinding) -> api::Binding {
    api::Binding {
        host: binding.host.to_string(),
        port: binding.port,
        form: binding.form.to_string(),
        base: binding.base.map(|base| base.to_string()),
        even_plain: binding.even_plain,
        templates: binding.templates.map(|all| all.iter().map(ToString::to_string).collect()),
    }
}
