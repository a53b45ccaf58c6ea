//! Artifacts, and links that need no key for some time.

use std::sync::Arc;

use axum::Json as Reply;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use cubicle_api as api;
use cubicle_model::{ArtifactId, Fault, Kind, Scope, Timestamp, hexadecimal};
use cubicle_store::{Artifact, ArtifactKind};
use futures_util::TryStreamExt;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::problem::{Answer, Problem};
use super::range;
use super::request::{Id, Paging, Query, paged};
use crate::app::{App, Caller};
use crate::redaction::kept;

const USUAL_SECONDS: u32 = 900;
const LONGEST_SECONDS: u32 = 7 * 24 * 3600;

#[derive(Debug, Default, serde::Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Lasting {
    /// Seconds that the link lives; 900 when absent.
    #[param(minimum = 1, maximum = 604800)]
    seconds: Option<u32>,
}

impl Lasting {
    pub(super) fn until(&self, now: Timestamp) -> Result<Timestamp, Fault> {
        let seconds = self.seconds.unwrap_or(USUAL_SECONDS);
        if !(1..=LONGEST_SECONDS).contains(&seconds) {
            return Err(Fault::new(Kind::Invalid, format!("a link lives 1 to {LONGEST_SECONDS} seconds")));
        }
        Ok(cubicle_model::lease::until(now, seconds))
    }
}

/// What makes a path usable without a key.
#[derive(Debug, Default, serde::Deserialize)]
pub(super) struct Signed {
    pub(super) expires: Option<i64>,
    pub(super) signature: Option<String>,
}

/// Whether a request brings a signature instead of a key. Whether it is a good one is for its handler to say.
pub(super) fn is_signed(path: &str, query: Option<&str>) -> bool {
    let has_signature = query.is_some_and(|query| query.contains("signature="));
    let can_have_one = path.starts_with("/api/v1/artifacts/")
        || path.strip_prefix("/api/v1/tasks/").is_some_and(|rest| rest.contains("/files/"));
    can_have_one && has_signature || path.starts_with("/preview/")
}

impl App {
    /// The signature of a path until a moment.
    pub(super) fn sign(&self, path: &str, until: Timestamp) -> String {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&self.settings.link_secret).expect("any length of key will do");
        mac.update(path.as_bytes());
        mac.update(&[0]);
        mac.update(&until.as_second().to_be_bytes());
        hexadecimal(&mac.finalize().into_bytes())
    }

    pub(super) fn is_good(&self, path: &str, until: i64, signature: &str) -> bool {
        let Ok(moment) = Timestamp::from_second(until) else { return false };
        if self.wall_now() >= moment {
            return false;
        }
        // The comparison takes as long for a near miss as for a far one.
        let (good, given) = (self.sign(path, moment), signature.as_bytes());
        good.len() == given.len() && good.bytes().zip(given).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
    }

    async fn artifact(&self, caller: &Caller, id: ArtifactId) -> Result<Artifact, Fault> {
        caller.must(Scope::Read)?;
        let artifact = self.store.artifact(id).await?;
        artifact
            .filter(|artifact| caller.sees(&artifact.tenant, &artifact.user))
            .ok_or_else(|| no_artifact(id))
    }
}

fn no_artifact(id: ArtifactId) -> Fault {
    Fault::new(Kind::NotFound, format!("there is no artifact {id}"))
}

/// List artifacts
#[utoipa::path(get, path = "/artifacts", tag = "artifacts", params(Paging),
    responses((status = 200, body = api::Page<api::Artifact>), (status = "default", body = api::ErrorBody)))]
pub(super) async fn list_artifacts(
    State(app): State<Arc<App>>,
    caller: Caller,
    Query(paging): Query<Paging>,
) -> Answer<Reply<api::Page<api::Artifact>>> {
    caller.must(Scope::Read)?;
    let page = paging.page()?;
    let artifacts = app.store.artifacts(caller.tenant().clone(), page.clone()).await?;
    let mut shown = paged(artifacts, &page, |artifact| artifact.id.to_string(), |artifact| artifact);
    shown.items.retain(|artifact| caller.sees(&artifact.tenant, &artifact.user));
    Ok(Reply(api::Page { items: shown.items.into_iter().map(show).collect(), next: shown.next }))
}

/// Get an artifact
#[utoipa::path(get, path = "/artifacts/{artifact_id}", tag = "artifacts", params(("artifact_id" = String, Path)),
    responses((status = 200, body = api::Artifact), (status = "default", body = api::ErrorBody)))]
pub(super) async fn get_artifact(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<ArtifactId>,
) -> Answer<Reply<api::Artifact>> {
    Ok(Reply(show(app.artifact(&caller, id).await?)))
}

/// The bytes of an artifact
///
/// With a key, or with the signature of a link. With `Range: bytes=…` a part of it.
#[utoipa::path(get, path = "/artifacts/{artifact_id}/content", tag = "artifacts", params(("artifact_id" = String, Path)),
    responses((status = 200, body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 206, description = "A part", body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 416, description = "There is no such part", body = api::ErrorBody),
        (status = "default", body = api::ErrorBody)))]
pub(super) async fn artifact_content(
    State(app): State<Arc<App>>,
    caller: Option<axum::Extension<Caller>>,
    Id(id): Id<ArtifactId>,
    Query(signed): Query<Signed>,
    headers: HeaderMap,
) -> Answer<Response> {
    let artifact = match (caller, signed.expires, signed.signature) {
        (_, Some(until), Some(signature)) => {
            if !app.is_good(&content_path(id), until, &signature) {
                return Err(Problem::unauthenticated("this link is not good, or not any more"));
            }
            app.store.artifact(id).await?.ok_or_else(|| no_artifact(id))?
        }
        (Some(axum::Extension(caller)), ..) => app.artifact(&caller, id).await?,
        (None, ..) => return Err(Problem::unauthenticated("a key is needed")),
    };
    let part = range::asked(&headers, artifact.size)?;
    let masks = match artifact.kind {
        // What programs printed: it leaves as it does everywhere else.
        ArtifactKind::Journal => {
            Some(app.masks(&artifact.tenant).await?).filter(|masks| !masks.known.is_empty())
        }
        ArtifactKind::File => None,
    };
    let is_as_kept = masks.is_none();
    let bytes = match masks {
        Some(masks) => {
            let journal = app.blobs.read(&artifact.location, None).await?;
            kept::masked(journal, artifact.size, part.clone().unwrap_or(0..artifact.size), masks)
        }
        None => app.blobs.read(&artifact.location, part.clone()).await?,
    };
    let body = Body::from_stream(bytes.map_err(|fault| std::io::Error::other(fault.to_string())));
    let mut response = range::response(body, artifact.size, part);
    let out = response.headers_mut();
    // Whatever it is, a browser shows it to nobody: it is downloaded.
    out.insert(header::CONTENT_DISPOSITION, HeaderValue::from_static("attachment"));
    // The digest is of what is kept.
    if is_as_kept && let Ok(tag) = HeaderValue::from_str(&format!("\"{}\"", artifact.sha256)) {
        out.insert(header::ETAG, tag);
    }
    Ok(response)
}

/// A link to the bytes of an artifact that needs no key
#[utoipa::path(post, path = "/artifacts/{artifact_id}/link", tag = "artifacts", params(("artifact_id" = String, Path), Lasting),
    responses((status = 200, body = api::SignedUrl), (status = "default", body = api::ErrorBody)))]
pub(super) async fn artifact_link(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<ArtifactId>,
    Query(lasting): Query<Lasting>,
) -> Answer<Reply<api::SignedUrl>> {
    app.artifact(&caller, id).await?;
    let expires_at = lasting.until(app.wall_now())?;
    let path = content_path(id);
    let signature = app.sign(&path, expires_at);
    let url =
        format!("{}{path}?expires={}&signature={signature}", app.settings.address, expires_at.as_second());
    Ok(Reply(api::SignedUrl { url, expires_at }))
}

fn content_path(id: ArtifactId) -> String {
    format!("/api/v1/artifacts/{id}/content")
}

fn show(artifact: Artifact) -> api::Artifact {
    api::Artifact {
        artifact_id: artifact.id.to_string(),
        kind: artifact.kind.name().into(),
        name: artifact.name,
        subject: artifact.subject,
        media_type: artifact.media_type,
        size: artifact.size,
        sha256: artifact.sha256,
        created_at: artifact.created_at,
        expires_at: artifact.expires_at,
    }
}
