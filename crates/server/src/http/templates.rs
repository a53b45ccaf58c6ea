//! `/api/v1/templates`.

use std::sync::Arc;

use axum::Json as Reply;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use cubicle_api as api;
use cubicle_model::{Scope, Template};

use super::problem::Answer;
use super::request::{Id, IfMatch, Json, Paging, Query, paged};
use crate::app::{App, Caller};

#[derive(Debug, Default, serde::Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Shared {
    /// Everybody's template instead of the tenant's own; for administrators.
    #[serde(default)]
    shared: bool,
}

/// List templates
#[utoipa::path(get, operation_id = "list_templates", path = "/templates", tag = "templates", params(Paging),
    responses((status = 200, body = api::Page<api::Template>), (status = "default", body = api::ErrorBody)))]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    Query(paging): Query<Paging>,
) -> Answer<Reply<api::Page<api::Template>>> {
    let page = paging.page()?;
    let templates = app.list_templates(&caller, page.clone()).await?;
    Ok(Reply(paged(templates, &page, |template| template.at.to_string(), show)))
}

/// Get a template
///
/// The tenant's own, or else everybody's.
#[utoipa::path(get, operation_id = "get_template", path = "/templates/{name}", tag = "templates", params(("name" = String, Path)),
    responses((status = 200, body = api::Template), (status = "default", body = api::ErrorBody)))]
pub(super) async fn get(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(name): Id<String>,
) -> Answer<Response> {
    caller.must(Scope::Read)?;
    Ok(tagged(StatusCode::OK, app.find_template(caller.tenant(), &name).await?))
}

/// Make or replace a template
///
/// With `If-Match` only the version that was seen is replaced; with `If-None-Match: *` nothing is.
#[utoipa::path(put, operation_id = "put_template", path = "/templates/{name}", tag = "templates", request_body = api::PutTemplate,
    params(("name" = String, Path), Shared, ("if-match" = Option<String>, Header, description = "The ETag that was seen")),
    responses((status = 200, body = api::Template), (status = 201, body = api::Template), (status = "default", body = api::ErrorBody)))]
pub(super) async fn put(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(name): Id<String>,
    Query(Shared { shared }): Query<Shared>,
    IfMatch(version): IfMatch,
    Json(recipe): Json<api::PutTemplate>,
) -> Answer<Response> {
    let template = app.put_template(&caller, &name, shared, recipe.0, version).await?;
    let status = if template.version == 1 { StatusCode::CREATED } else { StatusCode::OK };
    Ok(tagged(status, template))
}

/// Delete a template
#[utoipa::path(delete, operation_id = "delete_template", path = "/templates/{name}", tag = "templates",
    params(("name" = String, Path), Shared, ("if-match" = Option<String>, Header, description = "The ETag that was seen")),
    responses((status = 204, description = "Deleted"), (status = "default", body = api::ErrorBody)))]
pub(super) async fn delete(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(name): Id<String>,
    Query(Shared { shared }): Query<Shared>,
    IfMatch(version): IfMatch,
) -> Answer<StatusCode> {
    app.delete_template(&caller, &name, shared, version).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn tagged(status: StatusCode, template: Template) -> Response {
    let tag = etag(template.version);
    let mut response = (status, Reply(show(template))).into_response();
    response.headers_mut().insert(header::ETAG, tag);
    response
}

pub(super) fn etag(version: i64) -> HeaderValue {
    // A number and two quotes.
    HeaderValue::from_str(&format!("\"{version}\"")).unwrap_or(HeaderValue::from_static("\"0\""))
}

fn show(template: Template) -> api::Template {
    api::Template {
        name: template.at.name.to_string(),
        shared: template.at.owner.is_none(),
        recipe: template.recipe,
        version: template.version,
        created_at: template.created_at,
        updated_at: template.updated_at,
    }
}
