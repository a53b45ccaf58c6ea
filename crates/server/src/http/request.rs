//! What handlers take from a request. A refusal is always a `Problem`.

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use cubicle_guest::client::ClientError;
use cubicle_model::{Fault, Kind};
use cubicle_store::Page;
use futures_util::StreamExt;
use futures_util::stream::{self, Stream};
use serde::de::DeserializeOwned;

use super::problem::Problem;
use super::strict;
use crate::app::Caller;

/// JSON bodies; files are streamed and have no limit of their own.
pub(super) const LARGEST_JSON: usize = 24 * 1024 * 1024;
const MOST_DISCARDED: usize = 256 * 1024 * 1024;
/// Of the whole of a JSON body.
const BODY_PATIENCE: Duration = Duration::from_secs(120);
/// Of each piece of any body: a client that sends nothing for so long is sent away.
const PIECE_PATIENCE: Duration = Duration::from_secs(30);

fn invalid(text: impl Into<String>) -> Problem {
    Problem::from(Fault::new(Kind::Invalid, text))
}

/// A JSON body.
pub(crate) struct Json<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let bytes = body(request).await?;
        if bytes.is_empty() {
            return Err(invalid("the body is empty; JSON is expected"));
        }
        parse(&bytes).map(Self)
    }
}

/// A JSON body that may hold a secret: what is wrong with it is said by its place alone, as the words of a parser repeat
/// what they have read, and a refusal is logged.
pub(crate) struct Confidential<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Confidential<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let bytes = body(request).await?;
        if bytes.trim_ascii_start().first() != Some(&b'{') {
            return Err(invalid("the body is not a JSON object"));
        }
        strict::from_slice(&bytes).map(Self).map_err(|error| {
            let (line, column) = (error.line(), error.column());
            let fault = Fault::new(
                Kind::Invalid,
                format!("the body is not what is expected, at line {line}, column {column}"),
            );
            fault.hint("the OpenAPI document says what is; what was sent is not repeated, as it may hold a secret").into()
        })
    }
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        return Err(invalid("the body is not a JSON object"));
    }
    strict::from_slice(bytes).map_err(|error| invalid(format!("the body is not what is expected: {error}")))
}

/// A JSON body that may be left out.
pub(crate) struct MaybeJson<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned + Default> FromRequest<S> for MaybeJson<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let bytes = body(request).await?;
        if bytes.is_empty() {
            return Ok(Self(T::default()));
        }
        parse(&bytes).map(Self)
    }
}

/// A body of bytes.
pub(crate) struct Whole(pub(crate) Vec<u8>);

impl<S: Send + Sync> FromRequest<S> for Whole {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        body(request).await.map(Self)
    }
}

/// A body as it comes, as long as it comes.
pub(super) fn pieces(body: Body) -> impl Stream<Item = std::io::Result<Bytes>> + Send + Unpin {
    let pieces = body.into_data_stream();
    Box::pin(stream::unfold(Some(pieces), |pieces| async move {
        let mut pieces = pieces?;
        match tokio::time::timeout(PIECE_PATIENCE, pieces.next()).await {
            Ok(Some(Ok(piece))) => Some((Ok(piece), Some(pieces))),
            Ok(Some(Err(error))) => Some((Err(std::io::Error::other(error)), None)),
            Ok(None) => None,
            Err(_) => Some((Err(std::io::ErrorKind::TimedOut.into()), None)),
        }
    }))
}

/// Reads a short body that nobody wants: the connection could not be used again with the rest of it in the way.
pub(super) async fn discard(body: Body) {
    const MOST: usize = 256 * 1024;
    let mut pieces = body.into_data_stream();
    let reading = async {
        let mut length = 0;
        while let Some(Ok(piece)) = pieces.next().await {
            length += piece.len();
            if length > MOST {
                break;
            }
        }
    };
    // Whoever is slower loses only the connection.
    let _ = tokio::time::timeout(Duration::from_secs(1), reading).await;
}

fn broken_off(error: &std::io::Error) -> Problem {
    match error.kind() {
        std::io::ErrorKind::TimedOut => Problem::with_status(late(), StatusCode::REQUEST_TIMEOUT),
        _ => invalid("the body cannot be read"),
    }
}

fn late() -> Fault {
    Fault::new(Kind::Invalid, "the body did not come in time")
}

/// The fault of whoever sends a file, or of the sandbox that takes it.
pub(super) fn while_sending(error: ClientError) -> Fault {
    match error {
        ClientError::Input(error) if error.kind() == std::io::ErrorKind::TimedOut => late(),
        ClientError::Input(error) => Fault::new(Kind::Invalid, "the body broke off").because(error),
        error => error.into(),
    }
}

/// The whole body. One that is too large is read on for a while, because a client that is still sending does not hear the
/// answer.
async fn body(request: Request) -> Result<Vec<u8>, Problem> {
    let mut pieces = pieces(request.into_body());
    let (mut bytes, mut length) = (Vec::new(), 0);
    let reading = async {
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(|error| broken_off(&error))?;
            length += piece.len();
            if length <= LARGEST_JSON {
                bytes.extend_from_slice(&piece);
            } else if length <= MOST_DISCARDED {
                bytes = Vec::new();
            } else {
                break;
            }
        }
        Ok(())
    };
    tokio::time::timeout(BODY_PATIENCE, reading)
        .await
        .unwrap_or_else(|_| Err(Problem::with_status(late(), StatusCode::REQUEST_TIMEOUT)))?;
    if length > LARGEST_JSON {
        return Err(Problem::with_status(
            Fault::new(Kind::Invalid, format!("the body is too large: {LARGEST_JSON} bytes are possible"))
                .hint("write large files through /files, which streams them"),
            StatusCode::PAYLOAD_TOO_LARGE,
        ));
    }
    Ok(bytes)
}

/// The query of a request.
pub(crate) struct Query<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let query = axum::extract::Query::<T>::from_request_parts(parts, state).await;
        query.map(|query| Self(query.0)).map_err(|rejection| invalid(rejection.body_text()))
    }
}

/// An id, or a name, in the path.
pub(crate) struct Id<T>(pub(crate) T);

impl<S: Send + Sync, T: FromStr<Err: Display>> FromRequestParts<S> for Id<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let text = Path::<String>::from_request_parts(parts, state).await;
        let text = text.map_err(|rejection| invalid(rejection.body_text()))?.0;
        text.parse().map(Self).map_err(|error: T::Err| invalid(error.to_string()))
    }
}

/// A path of two parts: an id and something else.
pub(crate) struct IdAnd<T, U>(pub(crate) T, pub(crate) U);

impl<S: Send + Sync, T: FromStr<Err: Display>, U: FromStr<Err: Display>> FromRequestParts<S> for IdAnd<T, U> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let texts = Path::<(String, String)>::from_request_parts(parts, state).await;
        let (id, rest) = texts.map_err(|rejection| invalid(rejection.body_text()))?.0;
        let id = id.parse().map_err(|error: T::Err| invalid(error.to_string()))?;
        let rest = rest.parse().map_err(|error: U::Err| invalid(error.to_string()))?;
        Ok(Self(id, rest))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let caller = parts.extensions.get::<Self>().cloned();
        caller.ok_or_else(|| Problem::unauthenticated("a key is needed"))
    }
}

/// `?after=…&limit=…` of every list.
#[derive(Debug, Clone, Default, serde::Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Paging {
    /// `next` of the page before.
    #[param(max_length = 256, pattern = r"^[^\x00]*$")]
    pub(crate) after: Option<String>,
    /// At most so many items.
    #[param(minimum = 1, maximum = 1000)]
    pub(crate) limit: Option<u32>,
}

impl Paging {
    pub(crate) fn page(&self) -> Result<Page, Problem> {
        let limit = self.limit.unwrap_or(100);
        if !(1..=Page::LARGEST).contains(&limit) {
            return Err(invalid(format!("'limit' is 1 to {}", Page::LARGEST)));
        }
        let after = self.after.clone();
        if after.as_ref().is_some_and(|after| after.len() > 256 || after.contains('\0')) {
            return Err(invalid("'after' is not from a page before"));
        }
        Ok(Page { after, limit })
    }
}

/// A page of what the store gave, which is one more item where there is a next page.
pub(crate) fn paged<T, U>(
    mut items: Vec<T>,
    page: &Page,
    key: impl Fn(&T) -> String,
    show: impl Fn(T) -> U,
) -> cubicle_api::Page<U> {
    let more = items.len() > page.limit as usize;
    items.truncate(page.limit as usize);
    let next = items.last().filter(|_| more).map(key);
    cubicle_api::Page { items: items.into_iter().map(show).collect(), next }
}

/// What `If-Match` says: the version that the caller saw.
pub(crate) struct IfMatch(pub(crate) Option<i64>);

impl<S: Send + Sync> FromRequestParts<S> for IfMatch {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let header =
            |name| parts.headers.get(name).and_then(|value: &axum::http::HeaderValue| value.to_str().ok());
        if header("if-none-match") == Some("*") {
            return Ok(Self(Some(0)));
        }
        match header("if-match") {
            None | Some("*") => Ok(Self(None)),
            Some(tag) => {
                let version = tag.trim_matches('"').parse();
                version
                    .map(|version| Self(Some(version)))
                    .map_err(|_| invalid("If-Match is not an ETag of this server"))
            }
        }
    }
}

/// What makes a creation repeatable.
pub(crate) struct IdempotencyKey(pub(crate) Option<String>);

impl<S: Send + Sync> FromRequestParts<S> for IdempotencyKey {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let Some(value) = parts.headers.get(cubicle_api::IDEMPOTENCY_KEY) else { return Ok(Self(None)) };
        let visible = |text: &&str| text.bytes().all(|c| c.is_ascii_graphic());
        let text = value.to_str().ok().filter(|text| (1..=256).contains(&text.len())).filter(visible);
        text.map(|text| Self(Some(text.to_owned())))
            .ok_or_else(|| invalid("an idempotency key has 1 to 256 visible characters"))
    }
}
