//! What can go wrong between a caller and a server.

use cubicle_model::{Fault, Kind};

use super::Address;

type Cause = Box<dyn std::error::Error + Send + Sync>;

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nothing was sent, so the request can be made again.
    #[error("no server answers at {address}")]
    Unreachable {
        address: Address,
        #[source]
        cause: Cause,
    },
    /// Whether the request was carried out is not known.
    #[error("the connection to {address} broke")]
    Broken {
        address: Address,
        #[source]
        cause: Cause,
    },
    /// The server said no.
    #[error("{}", .error.message)]
    Refused { status: u16, error: crate::Error },
    #[error("{address} does not answer as a server of Cubicle does: {what}")]
    NotUnderstood { address: Address, what: String },
    /// What was to be sent cannot be read.
    #[error("cannot read what is to be sent")]
    Input(#[source] std::io::Error),
    /// What was received cannot be kept.
    #[error("cannot write what was received")]
    Output(#[source] std::io::Error),
}

impl ClientError {
    /// The code of the server's refusal.
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Refused { error, .. } => Some(&error.code),
            _ => None,
        }
    }

    /// Whether a server that is being started again may answer the same request.
    pub fn passes(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Broken { .. } => true,
            Self::Refused { status, .. } => matches!(status, 502..=504),
            Self::NotUnderstood { .. } | Self::Input(_) | Self::Output(_) => false,
        }
    }

    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { status: 404, .. })
    }
}

impl From<ClientError> for Fault {
    fn from(error: ClientError) -> Self {
        let message = error.to_string();
        match error {
            ClientError::Unreachable { address, cause } => {
                let fault = Self::new(Kind::Unavailable, message).because(cause);
                match address.is_loopback() {
                    true => fault.hint("start one with 'cubicle up', or name another with --server URL"),
                    false => fault.hint("check the address, or name another with --server URL"),
                }
            }
            ClientError::Broken { cause, .. } => Self::new(Kind::Unavailable, message)
                .because(cause)
                .hint("whether the request was carried out is not known; look before you repeat it"),
            ClientError::Refused { status, error } => refusal(status, error),
            ClientError::NotUnderstood { .. } => {
                Self::new(Kind::Invalid, message).hint("check the address; --server URL names another")
            }
            ClientError::Input(cause) => Self::new(Kind::Invalid, message).because(cause),
            ClientError::Output(cause) => Self::new(Kind::Internal, message).because(cause),
        }
    }
}

fn refusal(status: u16, error: crate::Error) -> Fault {
    let kind = match (error.code.as_str(), status) {
        ("unauthenticated", _) => Kind::Denied,
        ("full" | "rate_limited", _) => Kind::Full,
        (_, 401 | 403) => Kind::Denied,
        (_, 404) => Kind::NotFound,
        (_, 409 | 412) => Kind::Conflict,
        (_, 429) => Kind::Full,
        (_, 400..500) => Kind::Invalid,
        (_, 502..=504) => Kind::Unavailable,
        _ => Kind::Internal,
    };
    // Only a defect needs somebody who reads the server's log.
    let message = match kind {
        Kind::Internal => format!("{} (request {} in the server's log)", error.message, error.request_id),
        _ => error.message,
    };
    let fault = Fault::new(kind, message);
    match error.hint {
        _ if status == 401 => {
            fault.hint("name a key with --key-file FILE or CUBICLE_KEY; 'cubicle keys create' makes one")
        }
        Some(hint) => fault.hint(hint),
        None => fault,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: u16, code: &str) -> Fault {
        let error = crate::Error {
            code: code.into(),
            message: "no".into(),
            hint: Some("look".into()),
            request_id: "req-1".into(),
        };
        ClientError::Refused { status, error }.into()
    }

    #[test]
    fn a_refusal_is_of_the_kind_that_the_server_meant() {
        let table = [
            (400, "invalid", Kind::Invalid),
            (401, "unauthenticated", Kind::Denied),
            (403, "denied", Kind::Denied),
            (404, "not_found", Kind::NotFound),
            (409, "conflict", Kind::Conflict),
            (413, "invalid", Kind::Invalid),
            (416, "invalid", Kind::Invalid),
            (429, "full", Kind::Full),
            (429, "rate_limited", Kind::Full),
            (500, "internal", Kind::Internal),
            (503, "unavailable", Kind::Unavailable),
        ];
        for (status, code, kind) in table {
            assert_eq!(refused(status, code).kind(), kind, "{status} {code}");
        }
        assert_eq!(refused(404, "not_found").way_out(), Some("look"));
        assert!(refused(401, "unauthenticated").way_out().unwrap().contains("--key-file"));
        assert!(refused(500, "internal").message().contains("req-1"));
    }

    #[test]
    fn an_absent_server_comes_with_a_way_out() {
        let absent = |address: &str| {
            let cause = std::io::Error::from(std::io::ErrorKind::ConnectionRefused).into();
            Fault::from(ClientError::Unreachable { address: address.parse().unwrap(), cause })
        };
        let fault = absent("http://127.0.0.1:7878");
        assert_eq!(fault.message(), "no server answers at http://127.0.0.1:7878");
        assert!(fault.way_out().unwrap().contains("cubicle up"));
        assert!(!absent("https://example.com").way_out().unwrap().contains("cubicle up"));
    }
}
