//! What can go wrong between the host and a sandbox.

use std::io;

use cubicle_model::{Fault, Kind};

use crate::hello::HelloError;
use crate::journal::record::CorruptRecord;
use crate::wire::ErrorBody;

/// A failure of one request. Everything a sandbox says is taken with care: texts are shortened and have no control
/// characters, so that they can be shown.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("the sandbox cannot be reached")]
    Unavailable(#[source] io::Error),
    #[error("{message}")]
    Refused { status: u16, code: String, message: String, hint: Option<String> },
    #[error("the connection to the sandbox was not accepted")]
    Hello(#[from] HelloError),
    #[error("the sandbox broke the protocol: {0}")]
    Protocol(&'static str),
    #[error("the sandbox sent a damaged journal record")]
    Corrupt(#[from] CorruptRecord),
    #[error("the sandbox's answer is longer than {limit} bytes")]
    TooLong { limit: usize },
    #[error("the request cannot be sent: {0}")]
    Invalid(&'static str),
    #[error("what is to be sent cannot be read")]
    Input(#[source] io::Error),
    #[error("what was received cannot be passed on")]
    Output(#[source] io::Error),
}

const LONGEST_TEXT: usize = 1024;

impl ClientError {
    /// A refusal as the sandbox put it, whatever it put there.
    pub(super) fn refused(status: u16, body: &[u8]) -> Self {
        match serde_json::from_slice::<ErrorBody>(body) {
            Ok(ErrorBody { error }) => Self::Refused {
                status,
                code: harmless_code(error.code),
                message: harmless(&error.message),
                hint: error.hint.map(|hint| harmless(&hint)),
            },
            Err(_) => Self::Refused {
                status,
                code: "unknown".into(),
                message: format!("the sandbox answered with status {status} and no reason"),
                hint: None,
            },
        }
    }

    pub(super) fn hung_up() -> Self {
        Self::Unavailable(io::Error::new(io::ErrorKind::UnexpectedEof, "the sandbox closed the connection"))
    }

    pub(super) fn too_late() -> Self {
        Self::Unavailable(io::Error::new(io::ErrorKind::TimedOut, "the sandbox did not answer in time"))
    }

    /// The code of a refusal, as in `docs/errors`.
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Refused { code, .. } => Some(code),
            _ => None,
        }
    }
}

fn harmless_code(code: String) -> String {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    if code.len() <= 64 && !code.is_empty() && code.bytes().all(plain) { code } else { "unknown".into() }
}

fn harmless(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(LONGEST_TEXT).collect()
}

impl From<ClientError> for Fault {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Refused { status, message, hint, .. } => {
                let kind = match status {
                    404 => Kind::NotFound,
                    401 | 403 => Kind::Denied,
                    409 | 412 => Kind::Conflict,
                    429 | 503 | 507 => Kind::Full,
                    400..500 => Kind::Invalid,
                    _ => Kind::Internal,
                };
                let fault = Self::new(kind, message);
                match hint {
                    Some(hint) => fault.hint(hint),
                    None => fault,
                }
            }
            ClientError::Unavailable(source) => {
                Self::new(Kind::Unavailable, "the sandbox cannot be reached").because(source)
            }
            ClientError::Hello(source) => {
                let kind = match &source {
                    HelloError::NotAHello | HelloError::Refused { .. } => Kind::Internal,
                    HelloError::NoCommonProtocol { .. } | HelloError::UnknownProtocol { .. } => Kind::Invalid,
                    HelloError::OtherSandbox { .. } | HelloError::WrongKey => Kind::Denied,
                };
                Self::new(kind, source.to_string()).because(source)
            }
            ClientError::TooLong { .. } => {
                Self::new(Kind::Invalid, error.to_string()).hint("read a part of it, or stream it")
            }
            ClientError::Invalid(_) => Self::new(Kind::Invalid, error.to_string()),
            ClientError::Protocol(_)
            | ClientError::Corrupt(_)
            | ClientError::Input(_)
            | ClientError::Output(_) => Self::new(Kind::Internal, error.to_string()).because(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_shown_without_what_could_harm_a_terminal() {
        let body = br#"{"error":{"code":"x\u001b[2J","message":"a\u001b]0;owned\u0007\nb","hint":"h\r"}}"#;
        let ClientError::Refused { code, message, hint, .. } = ClientError::refused(400, body) else {
            panic!("not a refusal")
        };
        assert_eq!((code.as_str(), message.as_str()), ("unknown", "a ]0;owned  b"));
        assert_eq!(hint.as_deref(), Some("h "));
    }

    #[test]
    fn a_refusal_becomes_the_fault_that_a_caller_can_act_on() {
        let table = [
            (404, Kind::NotFound),
            (403, Kind::Denied),
            (409, Kind::Conflict),
            (412, Kind::Conflict),
            (422, Kind::Invalid),
            (413, Kind::Invalid),
            (503, Kind::Full),
            (507, Kind::Full),
            (500, Kind::Internal),
        ];
        for (status, kind) in table {
            assert_eq!(Fault::from(ClientError::refused(status, b"not json")).kind(), kind, "{status}");
        }
    }
}
