//! From a fault to an answer, once.

use std::borrow::Cow;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use cubicle_model::{Fault, Kind, Name, RequestId};
use cubicle_tools::ToolError;
use std::time::Duration;

use crate::app::App;
use crate::auth::tokens::Unacceptable;

/// What every handler may fail with.
pub(crate) type Answer<T> = Result<T, Problem>;

#[derive(Debug, Clone)]
pub(crate) struct Problem {
    status: StatusCode,
    code: Cow<'static, str>,
    message: String,
    hint: Option<String>,
    retry_after: Option<Duration>,
    /// Whether it is about a token, for which RFC 6750 has words of its own.
    of_token: bool,
    /// For the log alone.
    cause: Option<String>,
}

impl Problem {
    pub(crate) fn unauthenticated(message: &str) -> Self {
        Self {
            status: StatusCode::UNAUTHORIZED,
            code: "unauthenticated".into(),
            message: message.into(),
            hint: Some("send 'Authorization: Bearer KEY'; 'cubicle up' says where the first key is".into()),
            retry_after: None,
            of_token: false,
            cause: None,
        }
    }

    /// Of a call that brings a signature instead of a key.
    pub(crate) fn unsigned(message: &str) -> Self {
        let hint = "sign the raw body with the secret that the worker was given: 'X-Webhook-Signature: sha256=HEX', or the \
            headers of Standard Webhooks";
        Self { hint: Some(hint.into()), ..Self::unauthenticated(message) }
    }

    pub(crate) fn unacceptable_token(why: &Unacceptable) -> Self {
        Self { hint: Some(why.way_out().into()), of_token: true, ..Self::unauthenticated(&why.to_string()) }
    }

    pub(crate) fn too_many(wait: Duration) -> Self {
        Self {
            status: StatusCode::TOO_MANY_REQUESTS,
            code: "rate_limited".into(),
            message: "these are more requests than this key, or this token's subject, may make".into(),
            hint: Some("slow down, or ask for a higher rate".into()),
            retry_after: Some(wait),
            of_token: false,
            cause: None,
        }
    }

    pub(crate) fn with_status(fault: Fault, status: StatusCode) -> Self {
        Self { status, ..Self::from(fault) }
    }

    pub(crate) fn code(&self) -> &str {
        &self.code
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    pub(crate) fn cause(&self) -> Option<&str> {
        self.cause.as_deref()
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// As whoever asked may see it: a refusal often repeats what was sent.
    pub(crate) async fn masked(mut self, app: &App, tenant: Option<&Name>) -> Self {
        let masks = match tenant {
            Some(tenant) => app.masks(tenant).await.ok(),
            None => None,
        };
        for text in [Some(&mut self.message), self.hint.as_mut()].into_iter().flatten() {
            match &masks {
                Some(masks) => masks.known.text(text),
                // Whatever is known must do.
                None => *text = app.settings.log_masks.text(text).into_owned(),
            }
        }
        self
    }

    /// The body, now that the request's id is known.
    pub(crate) fn render(&self, request: RequestId) -> Response {
        let body = cubicle_api::ErrorBody {
            error: cubicle_api::Error {
                code: self.code.clone().into_owned(),
                message: self.message.clone(),
                hint: self.hint.clone(),
                request_id: request.to_string(),
            },
        };
        let mut response = (self.status, axum::Json(body)).into_response();
        if let Some(wait) = self.retry_after {
            let seconds = HeaderValue::from(wait.as_secs().max(1));
            response.headers_mut().insert(header::RETRY_AFTER, seconds);
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, self.challenge());
        }
        response
    }

    fn challenge(&self) -> HeaderValue {
        let plain = HeaderValue::from_static("Bearer");
        if !self.of_token {
            return plain;
        }
        // What may not stand between the quotes of a header is in the body.
        let allowed = |c: &char| matches!(c, ' '..='~') && !matches!(c, '"' | '\\');
        let message: String = self.message.chars().filter(allowed).collect();
        let text = format!("Bearer error=\"invalid_token\", error_description=\"{message}\"");
        HeaderValue::try_from(text).unwrap_or(plain)
    }
}

impl From<ToolError> for Problem {
    /// With the tool's own code, which is finer than a kind.
    fn from(error: ToolError) -> Self {
        let fault = Fault::new(error.kind, error.message);
        Self { code: error.code.into(), hint: error.hint, ..Self::from(fault) }
    }
}

impl From<Fault> for Problem {
    fn from(fault: Fault) -> Self {
        let (status, retry_after) = match fault.kind() {
            Kind::NotFound => (StatusCode::NOT_FOUND, None),
            Kind::Invalid => (StatusCode::BAD_REQUEST, None),
            Kind::Conflict => (StatusCode::CONFLICT, None),
            Kind::Denied => (StatusCode::FORBIDDEN, None),
            Kind::Full => (StatusCode::TOO_MANY_REQUESTS, Some(Duration::from_secs(1))),
            Kind::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, Some(Duration::from_secs(1))),
            Kind::Internal => (StatusCode::INTERNAL_SERVER_ERROR, None),
        };
        let cause = std::error::Error::source(&fault).map(|cause| {
            let mut text = cause.to_string();
            let mut deeper = cause.source();
            while let Some(cause) = deeper {
                text = format!("{text}: {cause}");
                deeper = cause.source();
            }
            text
        });
        Self {
            status,
            code: fault.kind().code().into(),
            message: fault.message().to_owned(),
            hint: fault.way_out().map(str::to_owned),
            retry_after,
            of_token: false,
            cause,
        }
    }
}

impl IntoResponse for Problem {
    /// The gate renders it, which knows the request's id.
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}
