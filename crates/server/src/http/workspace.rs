//! Files that outlive sandboxes: `/api/v1/workspace`, and `/api/v1/skills`.

use std::io::SeekFrom;
use std::sync::Arc;

use axum::Json as Reply;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use cubicle_api as api;
use cubicle_model::{Fault, Kind};
use cubicle_tools::Workspace;
use cubicle_workspace::Condition;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio_util::io::ReaderStream;

use super::problem::Answer;
use super::range;
use super::request::{self, Id, Json, Query};
use crate::app::tools::CallersBench;
use crate::app::workspace::HowWritten;
use crate::app::{App, Caller};

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Which {
    /// A directory, relative to `/workspace/shared`; all of it unless given.
    #[param(max_length = 1024)]
    list: Option<String>,
    /// Everything below, not only what is directly in it.
    #[serde(default)]
    recursive: bool,
    /// Instead of a directory: files whose path matches, as `data/**/*.csv`.
    #[param(min_length = 1, max_length = 256)]
    glob: Option<String>,
}

/// List files of the shared workspace
#[utoipa::path(get, operation_id = "list_workspace", path = "/workspace/files", tag = "workspace", params(Which),
    responses((status = 200, body = api::SharedFiles), (status = 404, description = "There is no such directory", body = api::ErrorBody),
        (status = "default", body = api::ErrorBody)))]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    Query(which): Query<Which>,
) -> Answer<Reply<Value>> {
    if which.glob.is_some() && (which.list.is_some() || which.recursive) {
        return Err(Fault::new(Kind::Invalid, "'glob' goes without 'list' and 'recursive'").into());
    }
    match which.glob {
        Some(pattern) => call(app, caller, "glob_workspace", json!({ "pattern": pattern })).await,
        None => {
            let arguments = json!({ "path": which.list.unwrap_or_default(), "recursive": which.recursive });
            call(app, caller, "list_workspace", arguments).await
        }
    }
}

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct AtVersion {
    /// An earlier version, as the list of versions names it.
    #[param(minimum = 1)]
    version: Option<u64>,
}

/// Read a file of the shared workspace
///
/// With `Range: bytes=…` a part of it.
#[utoipa::path(get, operation_id = "read_workspace", path = "/workspace/files/{*path}", tag = "workspace", params(("path" = String, Path), AtVersion),
    responses((status = 200, body = Vec<u8>, content_type = "*/*"),
        (status = 206, description = "A part", body = Vec<u8>, content_type = "*/*"),
        (status = 304, description = "It is as `If-None-Match` says"),
        (status = 416, description = "There is no such part", body = api::ErrorBody),
        (status = "default", body = api::ErrorBody)))]
pub(super) async fn read(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(path): Id<String>,
    Query(AtVersion { version }): Query<AtVersion>,
    headers: HeaderMap,
) -> Answer<Response> {
    let content = app.open_shared(&caller, path, version).await?;
    let tag = quoted(&content.etag)?;
    if headers.get(header::IF_NONE_MATCH) == Some(&tag) {
        return Ok((StatusCode::NOT_MODIFIED, [(header::ETAG, tag)]).into_response());
    }
    let part = range::asked(&headers, content.size)?;
    let mut file = tokio::fs::File::from_std(content.file);
    let (start, length) = part.as_ref().map_or((0, content.size), |part| (part.start, part.end - part.start));
    if start > 0 {
        let moved = file.seek(SeekFrom::Start(start)).await;
        moved.map_err(|error| Fault::new(Kind::Internal, "the file cannot be read").because(error))?;
    }
    let body = Body::from_stream(ReaderStream::new(file.take(length)));
    let mut response = range::response(body, content.size, part);
    let out = response.headers_mut();
    out.insert(header::ETAG, tag);
    if let Ok(kind) = HeaderValue::from_str(&content.kind)
        && !could_act(&content.kind)
    {
        out.insert(header::CONTENT_TYPE, kind);
    }
    Ok(response)
}

/// Types that a browser would run rather than show.
fn could_act(kind: &str) -> bool {
    ["html", "xml", "javascript"].iter().any(|part| kind.contains(part))
}

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Put {
    /// Whether it can be run. A file that is replaced stays what it is unless this is given.
    executable: Option<bool>,
}

/// Write a file of the shared workspace
///
/// Replaces what is there in one step, or not at all; what was there is kept as a version. With `If-Match` only the state
/// that was seen is replaced; with `If-None-Match: *` nothing is.
#[utoipa::path(put, operation_id = "write_workspace", path = "/workspace/files/{*path}", tag = "workspace",
    params(("path" = String, Path), Put, ("if-match" = Option<String>, Header, description = "The ETag that was seen", pattern = r#"^("[0-9a-f-]{1,80}"|\*)$"#)),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 200, body = api::SharedWritten), (status = 201, body = api::SharedWritten),
        (status = "default", body = api::ErrorBody)))]
pub(super) async fn write(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(path): Id<String>,
    Query(Put { executable }): Query<Put>,
    headers: HeaderMap,
    body: Body,
) -> Answer<Response> {
    let how = HowWritten { condition: condition(&headers)?, executable };
    let written = app.write_shared(&caller, path, how, request::pieces(body)).await?;
    let status = if written.created { StatusCode::CREATED } else { StatusCode::OK };
    let tag = quoted(&written.etag)?;
    let shown = api::SharedWritten {
        path: written.path,
        size: written.size,
        created: written.created,
        etag: format!("\"{}\"", written.etag),
    };
    Ok((status, [(header::ETAG, tag)], Reply(shown)).into_response())
}

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Delete {
    /// A directory with everything in it.
    #[serde(default)]
    recursive: bool,
}

/// Delete a file of the shared workspace
///
/// Its last version is kept.
#[utoipa::path(delete, operation_id = "delete_workspace", path = "/workspace/files/{*path}", tag = "workspace",
    params(("path" = String, Path), Delete, ("if-match" = Option<String>, Header, description = "The ETag that was seen", pattern = r#"^("[0-9a-f-]{1,80}"|\*)$"#)),
    responses((status = 200, body = api::SharedDeleted), (status = "default", body = api::ErrorBody)))]
pub(super) async fn delete(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(path): Id<String>,
    Query(Delete { recursive }): Query<Delete>,
    headers: HeaderMap,
) -> Answer<Reply<api::SharedDeleted>> {
    let deleted = app.delete_shared(&caller, path, recursive, condition(&headers)?).await?;
    Ok(Reply(api::SharedDeleted { path: deleted.path, files: deleted.files as u64 }))
}

/// Move a file or a directory of the shared workspace
#[utoipa::path(post, operation_id = "move_workspace", path = "/workspace/move", tag = "workspace", request_body = api::MoveShared,
    responses((status = 204, description = "Moved"), (status = "default", body = api::ErrorBody)))]
pub(super) async fn rename(
    State(app): State<Arc<App>>,
    caller: Caller,
    Json(asked): Json<api::MoveShared>,
) -> Answer<StatusCode> {
    let Reply(_) = call(app, caller, "move_workspace", json!(asked)).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Of {
    /// Relative to `/workspace/shared`.
    #[param(min_length = 1, max_length = 1024)]
    path: String,
}

/// Earlier versions of a file of the shared workspace
///
/// Also of one that was deleted.
#[utoipa::path(get, operation_id = "list_workspace_versions", path = "/workspace/versions", tag = "workspace", params(Of),
    responses((status = 200, body = api::SharedVersions), (status = 404, description = "There never was such a file", body = api::ErrorBody),
        (status = "default", body = api::ErrorBody)))]
pub(super) async fn versions(
    State(app): State<Arc<App>>,
    caller: Caller,
    Query(Of { path }): Query<Of>,
) -> Answer<Reply<api::SharedVersions>> {
    let found = app.shared_versions(&caller, path.clone()).await?;
    let show = |version: cubicle_workspace::Version| api::SharedVersion {
        version: version.version,
        size: version.size,
        modified: version.modified,
    };
    Ok(Reply(api::SharedVersions { path, versions: found.into_iter().map(show).collect() }))
}

/// List skills
#[utoipa::path(get, operation_id = "list_skills", path = "/skills", tag = "workspace",
    responses((status = 200, body = api::Skills), (status = "default", body = api::ErrorBody)))]
pub(super) async fn list_skills(State(app): State<Arc<App>>, caller: Caller) -> Answer<Reply<Value>> {
    call(app, caller, "list_skills", json!({})).await
}

/// Get a skill
#[utoipa::path(get, operation_id = "get_skill", path = "/skills/{skill_name}", tag = "workspace", params(("skill_name" = String, Path)),
    responses((status = 200, body = api::Skill), (status = "default", body = api::ErrorBody)))]
pub(super) async fn get_skill(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(name): Id<String>,
) -> Answer<Reply<Value>> {
    call(app, caller, "get_skill", json!({ "name": name })).await
}

/// Create a skill
///
/// By the rules of the Agent Skills format, whole or not at all.
#[utoipa::path(post, operation_id = "create_skill", path = "/skills", tag = "workspace", request_body = api::CreateSkill,
    responses((status = 201, body = api::Skill), (status = "default", body = api::ErrorBody)))]
pub(super) async fn create_skill(
    State(app): State<Arc<App>>,
    caller: Caller,
    Json(asked): Json<api::CreateSkill>,
) -> Answer<(StatusCode, Reply<Value>)> {
    Ok((StatusCode::CREATED, call(app, caller, "create_skill", json!(asked)).await?))
}

async fn call(app: Arc<App>, caller: Caller, tool: &str, arguments: Value) -> Answer<Reply<Value>> {
    let bench = CallersBench { app, caller, session: None };
    Ok(Reply(bench.work(tool, arguments).await?))
}

fn condition(headers: &HeaderMap) -> Result<Condition, Fault> {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    match (text(header::IF_MATCH), text(header::IF_NONE_MATCH)) {
        (None | Some("*"), None) => Ok(Condition::Always),
        (None, Some("*")) => Ok(Condition::MustBeNew),
        (Some(tag), None) => {
            let bare = tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"'));
            let bare =
                bare.ok_or_else(|| Fault::new(Kind::Invalid, "If-Match is not an ETag of this server"))?;
            Ok(Condition::Unchanged(bare.into()))
        }
        _ => Err(Fault::new(Kind::Invalid, "a file is written with If-Match: ETAG or If-None-Match: *")),
    }
}

fn quoted(etag: &str) -> Result<HeaderValue, Fault> {
    HeaderValue::from_str(&format!("\"{etag}\""))
        .map_err(|error| Fault::new(Kind::Internal, "an ETag has no form").because(error))
}
