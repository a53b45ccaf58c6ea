//! Tenants, keys and the audit log.

use std::sync::Arc;

use axum::Json as Reply;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use cubicle_api as api;
use cubicle_model::audit::{Entry, Head, detail_digest};
use cubicle_model::{Fault, KeyId, Kind, Name, NodeId, Proof, Tenant, Timestamp, Usage};
use cubicle_store::{AuditFilter, Key};

use super::problem::Answer;
use super::request::{Id, IdempotencyKey, IfMatch, Json, Paging, Query, paged};
use super::templates::etag;
use crate::app::admin::KeyRequest;
use crate::app::{App, Caller};

/// Make a tenant
#[utoipa::path(post, path = "/tenants", tag = "administration", request_body = api::CreateTenant,
    responses((status = 201, body = api::Tenant), (status = "default", body = api::ErrorBody)))]
pub(super) async fn create_tenant(
    State(app): State<Arc<App>>,
    caller: Caller,
    Json(asked): Json<api::CreateTenant>,
) -> Answer<Response> {
    let tenant = app.create_tenant(&caller, &asked.name, asked.quota, asked.weight).await?;
    Ok(tagged(StatusCode::CREATED, tenant, None))
}

/// List tenants
#[utoipa::path(get, path = "/tenants", tag = "administration", params(Paging),
    responses((status = 200, body = api::Page<api::Tenant>), (status = "default", body = api::ErrorBody)))]
pub(super) async fn list_tenants(
    State(app): State<Arc<App>>,
    caller: Caller,
    Query(paging): Query<Paging>,
) -> Answer<Reply<api::Page<api::Tenant>>> {
    let page = paging.page()?;
    let tenants = app.tenants(&caller, page.clone()).await?;
    Ok(Reply(paged(tenants, &page, |tenant| tenant.name.to_string(), |tenant| show_tenant(tenant, None))))
}

/// Get a tenant, its quota and what it uses
#[utoipa::path(get, path = "/tenants/{name}", tag = "administration", params(("name" = String, Path)),
    responses((status = 200, body = api::Tenant), (status = "default", body = api::ErrorBody)))]
pub(super) async fn get_tenant(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(name): Id<String>,
) -> Answer<Response> {
    let (tenant, usage) = app.tenant(&caller, &name).await?;
    Ok(tagged(StatusCode::OK, tenant, Some(usage)))
}

/// Replace a tenant's quota and weight
#[utoipa::path(put, path = "/tenants/{name}", tag = "administration", request_body = api::ReplaceTenant,
    params(("name" = String, Path), ("if-match" = Option<String>, Header, description = "The ETag that was seen")),
    responses((status = 200, body = api::Tenant), (status = "default", body = api::ErrorBody)))]
pub(super) async fn replace_tenant(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(name): Id<String>,
    IfMatch(version): IfMatch,
    Json(asked): Json<api::ReplaceTenant>,
) -> Answer<Response> {
    let tenant = app.replace_tenant(&caller, &name, asked.quota, asked.weight, version).await?;
    Ok(tagged(StatusCode::OK, tenant, None))
}

/// Make a key
///
/// Its secret is in the answer, this once.
#[utoipa::path(post, path = "/keys", tag = "administration", request_body = api::CreateKey,
    params(("idempotency-key" = Option<String>, Header, description = "A repeated call makes no second key")),
    responses((status = 201, body = api::NewKey), (status = "default", body = api::ErrorBody)))]
pub(super) async fn create_key(
    State(app): State<Arc<App>>,
    caller: Caller,
    IdempotencyKey(repeatable): IdempotencyKey,
    Json(asked): Json<api::CreateKey>,
) -> Answer<(StatusCode, Reply<api::NewKey>)> {
    let asked = KeyRequest {
        label: asked.label,
        tenant: asked.tenant,
        user: asked.user,
        scopes: asked.scopes,
        requests_per_second: asked.requests_per_second,
        expires_at: asked.expires_at,
    };
    let (key, secret) = app.create_key(&caller, asked, repeatable).await?;
    Ok((StatusCode::CREATED, Reply(api::NewKey { key: show_key(key), secret: secret.expose().into() })))
}

/// List keys
#[utoipa::path(get, path = "/keys", tag = "administration", params(Paging),
    responses((status = 200, body = api::Page<api::Key>), (status = "default", body = api::ErrorBody)))]
pub(super) async fn list_keys(
    State(app): State<Arc<App>>,
    caller: Caller,
    Query(paging): Query<Paging>,
) -> Answer<Reply<api::Page<api::Key>>> {
    let page = paging.page()?;
    let keys = app.keys_of(&caller, page.clone()).await?;
    Ok(Reply(paged(keys, &page, |key| key.id.to_string(), show_key)))
}

/// Get a key, without its secret
#[utoipa::path(get, path = "/keys/{key_id}", tag = "administration", params(("key_id" = String, Path)),
    responses((status = 200, body = api::Key), (status = "default", body = api::ErrorBody)))]
pub(super) async fn get_key(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<KeyId>,
) -> Answer<Reply<api::Key>> {
    Ok(Reply(show_key(app.key(&caller, id).await?)))
}

/// Revoke a key
#[utoipa::path(delete, path = "/keys/{key_id}", tag = "administration", params(("key_id" = String, Path)),
    responses((status = 200, body = api::Key), (status = "default", body = api::ErrorBody)))]
pub(super) async fn revoke_key(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<KeyId>,
) -> Answer<Reply<api::Key>> {
    Ok(Reply(show_key(app.revoke_key(&caller, id).await?)))
}

#[derive(Debug, Default, serde::Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Deeds {
    actor: Option<String>,
    /// As in `exec.create`.
    action: Option<String>,
    subject: Option<String>,
    #[param(value_type = Option<String>, format = DateTime)]
    since: Option<Timestamp>,
    #[param(value_type = Option<String>, format = DateTime)]
    until: Option<Timestamp>,
    /// All entries of this node in the order of their chain, of all tenants; for administrators.
    #[param(pattern = "^node-[a-z2-7]{26}$")]
    node: Option<String>,
}

/// Who did what
#[utoipa::path(get, operation_id = "list_audit", path = "/audit", tag = "administration", params(Deeds, Paging),
    responses((status = 200, body = api::Page<api::AuditEntry>), (status = "default", body = api::ErrorBody)))]
pub(super) async fn audit(
    State(app): State<Arc<App>>,
    caller: Caller,
    Query(deeds): Query<Deeds>,
    Query(paging): Query<Paging>,
) -> Answer<Reply<api::Page<api::AuditEntry>>> {
    let page = paging.page()?;
    if let Some(node) = &deeds.node {
        let node: NodeId = node.parse().map_err(|error| Fault::new(Kind::Invalid, format!("{error}")))?;
        let after = page.after.as_deref().unwrap_or("0").parse();
        let after = after.map_err(|_| Fault::new(Kind::Invalid, "'after' is not from a page before"))?;
        let entries = app.audit_chain(&caller, node, after, page.limit + 1).await?;
        let page = paged(entries, &page, |entry| entry.seq.to_string(), |entry| entry);
        return Ok(Reply(show_entries(&app, page).await?));
    }
    let filter = AuditFilter {
        tenant: None,
        actor: deeds.actor,
        action: deeds.action,
        subject: deeds.subject,
        since: deeds.since,
        until: deeds.until,
    };
    let entries = app.audit(&caller, filter, page.clone()).await?;
    let key = |entry: &Entry| format!("{}/{}/{}", entry.deed.time.as_millisecond(), entry.node, entry.seq);
    Ok(Reply(show_entries(&app, paged(entries, &page, key, |entry| entry)).await?))
}

/// The newest entry of every node's log
///
/// Keep a copy elsewhere: `cubicle audit verify` finds a cut tail by it.
#[utoipa::path(get, path = "/audit/heads", tag = "administration",
    responses((status = 200, body = Vec<api::AuditHead>), (status = "default", body = api::ErrorBody)))]
pub(super) async fn audit_heads(
    State(app): State<Arc<App>>,
    caller: Caller,
) -> Answer<Reply<Vec<api::AuditHead>>> {
    let heads = app.audit_heads(&caller).await?;
    let show = |head: Head| api::AuditHead { node: head.node.to_string(), seq: head.seq, hash: head.hash };
    Ok(Reply(heads.into_iter().map(show).collect()))
}

/// Who the server takes you for
#[utoipa::path(get, path = "/whoami", tag = "administration",
    responses((status = 200, body = api::WhoAmI), (status = "default", body = api::ErrorBody)))]
pub(super) async fn who_am_i(State(app): State<Arc<App>>, caller: Caller) -> Reply<api::WhoAmI> {
    let principal = caller.principal;
    let token = match (principal.proof, &app.tokens) {
        (Proof::Token { expires_at }, Some(tokens)) => {
            Some(api::ShownToken { issuer: tokens.issuer().to_owned(), expires_at })
        }
        _ => None,
    };
    Reply(api::WhoAmI {
        tenant: principal.tenant.to_string(),
        user: principal.user.to_string(),
        key_id: principal.key().map(|key| key.to_string()),
        scopes: principal.scopes,
        token,
    })
}

fn tagged(status: StatusCode, tenant: Tenant, usage: Option<Usage>) -> Response {
    let tag = etag(tenant.version);
    let mut response = (status, Reply(show_tenant(tenant, usage))).into_response();
    response.headers_mut().insert(header::ETAG, tag);
    response
}

fn show_tenant(tenant: Tenant, usage: Option<Usage>) -> api::Tenant {
    api::Tenant {
        name: tenant.name.to_string(),
        quota: tenant.quota,
        weight: tenant.weight,
        usage,
        created_at: tenant.created_at,
        version: tenant.version,
    }
}

fn show_key(key: Key) -> api::Key {
    api::Key {
        key_id: key.id.to_string(),
        label: key.label,
        tenant: key.tenant.to_string(),
        user: key.user.to_string(),
        scopes: key.scopes,
        requests_per_second: key.requests_per_second,
        created_at: key.created_at,
        expires_at: key.expires_at,
        revoked_at: key.revoked_at,
    }
}

/// Entries as people may see them: each is masked for the tenant that it tells of.
async fn show_entries(app: &App, page: api::Page<Entry>) -> Result<api::Page<api::AuditEntry>, Fault> {
    let mut items = Vec::with_capacity(page.items.len());
    for entry in page.items {
        let tenant = entry.deed.tenant.as_deref().and_then(|tenant| tenant.parse::<Name>().ok());
        let detail = entry.deed.detail.clone();
        let masked = match (&detail, tenant) {
            (None, _) => None,
            (Some(detail), Some(tenant)) => {
                let mut text = detail.clone();
                app.masks(&tenant).await?.everything.text(&mut text);
                Some(text)
            }
            (Some(detail), None) => Some(app.settings.log_masks.text(detail).into_owned()),
        };
        items.push(show_entry(entry, masked));
    }
    Ok(api::Page { items, next: page.next })
}

fn show_entry(entry: Entry, detail: Option<String>) -> api::AuditEntry {
    let deed = entry.deed;
    let detail_sha256 = deed.detail.as_deref().filter(|written| Some(*written) != detail.as_deref());
    let detail_sha256 = detail_sha256.map(detail_digest);
    api::AuditEntry {
        node: entry.node.to_string(),
        seq: entry.seq,
        time: deed.time,
        tenant: deed.tenant,
        actor: deed.actor,
        key: deed.key,
        action: deed.action,
        subject: deed.subject,
        from: deed.from,
        request: deed.request,
        outcome: deed.outcome,
        detail,
        detail_sha256,
        hash: entry.hash,
    }
}
