//! Files of a sandbox: `/api/v1/sandboxes/{id}/files` and its siblings.

use std::sync::Arc;

use axum::Json as Reply;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use cubicle_api as api;
use cubicle_guest::client as guest;
use cubicle_model::{Fault, Kind, SandboxId};
use futures_util::{StreamExt, stream};
use tokio_util::io::StreamReader;

use super::problem::Answer;
use super::range;
use super::request::{self, Id, Json, Query};
use crate::app::{App, Caller};

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct At {
    /// Absolute, or in `/workspace`.
    #[param(min_length = 1, pattern = r"^[^\x00]+$")]
    path: String,
}

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Write {
    /// Absolute, or in `/workspace`.
    #[param(min_length = 1, pattern = r"^[^\x00]+$")]
    path: String,
    /// Permission bits in octal, as in 0755.
    #[param(pattern = "^0?[0-7]{1,3}$")]
    mode: Option<String>,
    /// Whether missing directories are made.
    #[serde(default = "yes")]
    parents: bool,
    /// Whether a file that is there already is a refusal.
    #[serde(default)]
    must_be_new: bool,
}

fn yes() -> bool {
    true
}

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Below {
    #[serde(default = "workspace")]
    #[param(min_length = 1, pattern = r"^[^\x00]+$")]
    path: String,
    /// Everything below, not only what is directly in it.
    #[serde(default)]
    recursive: bool,
}

fn workspace() -> String {
    "/workspace".into()
}

/// Read a file
///
/// With `Range: bytes=…` a part of it.
#[utoipa::path(get, operation_id = "read_file", path = "/sandboxes/{sandbox_id}/files", tag = "files", params(("sandbox_id" = String, Path), At),
    responses((status = 200, body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 206, description = "A part", body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 416, description = "There is no such part", body = api::ErrorBody),
        (status = "default", body = api::ErrorBody)))]
pub(super) async fn read(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    Query(at): Query<At>,
    headers: HeaderMap,
) -> Answer<Response> {
    let path = checked(&at.path)?;
    let guest = app.files_to_read(&caller, id).await?;
    let part = match headers.contains_key(header::RANGE) {
        true => range::asked(&headers, guest.stat(path).await.map_err(Fault::from)?.size)?,
        false => None,
    };
    let file = guest.open_file(path, part.clone()).await.map_err(Fault::from)?;
    let mut response = range::response(Body::from_stream(pieces(file.body)), file.size, part);
    if let Some(etag) = file.etag.and_then(|etag| HeaderValue::from_str(&etag).ok()) {
        response.headers_mut().insert(header::ETAG, etag);
    }
    Ok(response)
}

/// Write a file
///
/// Replaces what is there in one step, or not at all.
#[utoipa::path(put, operation_id = "write_file", path = "/sandboxes/{sandbox_id}/files", tag = "files", params(("sandbox_id" = String, Path), Write),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 200, body = api::Entry), (status = "default", body = api::ErrorBody)))]
pub(super) async fn write(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    Query(how): Query<Write>,
    body: Body,
) -> Answer<Reply<api::Entry>> {
    let path = checked(&how.path)?;
    let mode = match how.mode.as_deref() {
        None => None,
        Some(text) => {
            let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
            Some(mode.ok_or_else(|| {
                Fault::new(Kind::Invalid, format!("'{}' are not permission bits", text.escape_default()))
            })?)
        }
    };
    let guest = app.files_to_write(&caller, id).await?;
    let options = guest::WriteFile { mode, parents: how.parents, must_be_new: how.must_be_new };
    let mut reader = StreamReader::new(request::pieces(body));
    let outcome = guest.write_file_from(path, &mut reader, options).await;
    let outcome = outcome.map(drop).map_err(request::while_sending);
    app.file_deed(&caller, "file.write", id, path, outcome).await?;
    Ok(Reply(entry(guest.stat(path).await.map_err(Fault::from)?)))
}

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Remove {
    #[param(min_length = 1, pattern = r"^[^\x00]+$")]
    path: String,
    /// A directory with everything in it.
    #[serde(default)]
    recursive: bool,
}

/// Remove a file or a directory
#[utoipa::path(delete, operation_id = "remove_file", path = "/sandboxes/{sandbox_id}/files", tag = "files", params(("sandbox_id" = String, Path), Remove),
    responses((status = 204, description = "Removed"), (status = "default", body = api::ErrorBody)))]
pub(super) async fn remove(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    Query(what): Query<Remove>,
) -> Answer<StatusCode> {
    let path = checked(&what.path)?;
    let guest = app.files_to_write(&caller, id).await?;
    let outcome = guest.remove(path, what.recursive).await.map_err(Fault::from);
    app.file_deed(&caller, "file.remove", id, path, outcome).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// List a directory
#[utoipa::path(get, operation_id = "list_files", path = "/sandboxes/{sandbox_id}/files/list", tag = "files", params(("sandbox_id" = String, Path), Below),
    responses((status = 200, body = api::Listing), (status = "default", body = api::ErrorBody)))]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    Query(below): Query<Below>,
) -> Answer<Reply<api::Listing>> {
    let guest = app.files_to_read(&caller, id).await?;
    let listing = guest.list(checked(&below.path)?, below.recursive).await.map_err(Fault::from)?;
    Ok(Reply(api::Listing {
        path: listing.path,
        entries: listing.entries.into_iter().map(entry).collect(),
        truncated: listing.truncated,
    }))
}

/// What is at a path
#[utoipa::path(get, operation_id = "stat_file", path = "/sandboxes/{sandbox_id}/files/stat", tag = "files", params(("sandbox_id" = String, Path), At),
    responses((status = 200, body = api::Entry), (status = "default", body = api::ErrorBody)))]
pub(super) async fn stat(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    Query(at): Query<At>,
) -> Answer<Reply<api::Entry>> {
    let guest = app.files_to_read(&caller, id).await?;
    Ok(Reply(entry(guest.stat(checked(&at.path)?).await.map_err(Fault::from)?)))
}

/// Make a directory
#[utoipa::path(post, path = "/sandboxes/{sandbox_id}/files/directories", tag = "files", params(("sandbox_id" = String, Path), At),
    responses((status = 204, description = "Made"), (status = "default", body = api::ErrorBody)))]
pub(super) async fn make_directory(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    Query(at): Query<At>,
) -> Answer<StatusCode> {
    let path = checked(&at.path)?;
    let guest = app.files_to_write(&caller, id).await?;
    let outcome = guest.make_directory(path, None).await.map_err(Fault::from);
    app.file_deed(&caller, "file.mkdir", id, path, outcome).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Move a file or a directory
#[utoipa::path(post, operation_id = "move_file", path = "/sandboxes/{sandbox_id}/files/move", tag = "files", params(("sandbox_id" = String, Path)),
    request_body = api::Move, responses((status = 204, description = "Moved"), (status = "default", body = api::ErrorBody)))]
pub(super) async fn rename(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    Json(what): Json<api::Move>,
) -> Answer<StatusCode> {
    let (from, to) = (checked(&what.from)?, checked(&what.to)?);
    let guest = app.files_to_write(&caller, id).await?;
    let outcome = guest.rename(from, to, what.replace).await.map_err(Fault::from);
    app.file_deed(&caller, "file.move", id, from, outcome).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Unpack a tar archive into a directory
#[utoipa::path(put, operation_id = "unpack_archive", path = "/sandboxes/{sandbox_id}/files/archive", tag = "files", params(("sandbox_id" = String, Path), At),
    request_body(content = Vec<u8>, content_type = "application/x-tar"),
    responses((status = 200, body = api::Unpacked), (status = "default", body = api::ErrorBody)))]
pub(super) async fn unpack(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    Query(at): Query<At>,
    body: Body,
) -> Answer<Reply<api::Unpacked>> {
    let path = checked(&at.path)?;
    let guest = app.files_to_write(&caller, id).await?;
    let mut reader = StreamReader::new(request::pieces(body));
    let outcome = guest.put_archive(path, &mut reader).await.map_err(request::while_sending);
    let done = app.file_deed(&caller, "file.unpack", id, path, outcome).await?;
    Ok(Reply(api::Unpacked {
        files: done.files,
        directories: done.directories,
        links: done.links,
        bytes: done.bytes,
    }))
}

/// A directory as a tar archive
#[utoipa::path(get, operation_id = "pack_archive", path = "/sandboxes/{sandbox_id}/files/archive", tag = "files", params(("sandbox_id" = String, Path), At),
    responses((status = 200, body = Vec<u8>, content_type = "application/x-tar"), (status = "default", body = api::ErrorBody)))]
pub(super) async fn pack(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    Query(at): Query<At>,
) -> Answer<Response> {
    let guest = app.files_to_read(&caller, id).await?;
    let body = guest.get_archive(checked(&at.path)?).await.map_err(Fault::from)?;
    Ok(([(header::CONTENT_TYPE, "application/x-tar")], Body::from_stream(pieces(body))).into_response())
}

/// Watch a directory
///
/// Changes as NDJSON, as they happen.
#[utoipa::path(get, operation_id = "watch_files", path = "/sandboxes/{sandbox_id}/files/watch", tag = "files", params(("sandbox_id" = String, Path), Below),
    responses((status = 200, body = Object, content_type = "application/x-ndjson"), (status = "default", body = api::ErrorBody)))]
pub(super) async fn watch(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    Query(below): Query<Below>,
) -> Answer<Response> {
    let guest = app.files_to_read(&caller, id).await?;
    let watch = guest.watch(checked(&below.path)?, below.recursive).await.map_err(Fault::from)?;
    let lines = stream::try_unfold(watch, |mut watch| async move {
        let change = watch.next().await.map_err(std::io::Error::other)?;
        Ok::<_, std::io::Error>(change.map(|change| {
            let line = serde_json::json!({ "event": change.event, "path": change.path, "to": change.to });
            (Bytes::from(format!("{line}\n")), watch)
        }))
    });
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(lines)).into_response())
}

fn pieces(body: guest::Body) -> impl futures_util::Stream<Item = std::io::Result<Bytes>> + Send {
    stream::try_unfold(body, |mut body| async move {
        let piece = match body.next().await {
            Ok(Some(piece)) => Some(Bytes::copy_from_slice(piece)),
            Ok(None) => None,
            Err(error) => return Err(std::io::Error::other(error)),
        };
        Ok(piece.map(|piece| (piece, body)))
    })
    .boxed()
}

fn checked(path: &str) -> Result<&str, Fault> {
    if path.is_empty() || path.contains('\0') {
        return Err(Fault::new(Kind::Invalid, "'path' is empty or holds a NUL byte"));
    }
    Ok(path)
}

fn entry(entry: guest::Entry) -> api::Entry {
    api::Entry {
        name: entry.name,
        path: entry.path,
        path_encoded: entry.path_encoded,
        kind: match entry.kind {
            guest::EntryKind::File => api::EntryKind::File,
            guest::EntryKind::Directory => api::EntryKind::Directory,
            guest::EntryKind::Symlink => api::EntryKind::Symlink,
            guest::EntryKind::Other => api::EntryKind::Other,
        },
        size: entry.size,
        mode: entry.mode,
        mtime: entry.mtime,
        target: entry.target,
    }
}
