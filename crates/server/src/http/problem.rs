//! From a fault to an answer, once.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use cubicle_model::{Fault, Kind, RequestId};
use std::time::Duration;

/// What every handler may fail with.
pub(crate) type Answer<T> = Result<T, Problem>;

#[derive(Debug, Clone)]
pub(crate) struct Problem {
    status: StatusCode,
    code: &'static str,
    message: String,
    hint: Option<String>,
    retry_after: Option<Duration>,
    /// For the log alone.
    cause: Option<String>,
}

impl Problem {
    pub(crate) fn unauthenticated(message: &str) -> Self {
        Self {
            status: StatusCode::UNAUTHORIZED,
            code: "unauthenticated",
            message: message.into(),
            hint: Some("send 'Authorization: Bearer KEY'; 'cubicle up' says where the first key is".into()),
            retry_after: None,
            cause: None,
        }
    }

    pub(crate) fn too_many(wait: Duration) -> Self {
        Self {
            status: StatusCode::TOO_MANY_REQUESTS,
            code: "rate_limited",
            message: "this key makes more requests than it may".into(),
            hint: Some("slow down, or ask for a higher rate".into()),
            retry_after: Some(wait),
            cause: None,
        }
    }

    pub(crate) fn with_status(fault: Fault, status: StatusCode) -> Self {
        Self { status, ..Self::from(fault) }
    }

    pub(crate) fn code(&self) -> &'static str {
        self.code
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

    /// The body, now that the request's id is known.
    pub(crate) fn render(&self, request: RequestId) -> Response {
        let body = cubicle_api::ErrorBody {
            error: cubicle_api::Error {
                code: self.code.into(),
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
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
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
            code: fault.kind().code(),
            message: fault.message().to_owned(),
            hint: fault.way_out().map(str::to_owned),
            retry_after,
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
