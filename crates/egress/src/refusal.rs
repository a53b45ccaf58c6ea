//! Why an attempt came to nothing, as each protocol says it.

use std::io;

use cubicle_model::egress::{Denied, Host, HostName};
use hyper::StatusCode;

/// What the client is told. Every variant is something the client, its owner or the operator can act on.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("{0}")]
    Policy(Denied),
    #[error("{0}")]
    Request(BadRequest),
    #[error("the budget of this sandbox is used up: {0}")]
    Budget(Spent),
    #[error("too many connections are open")]
    Busy,
    #[error("the secret '{secret}', which is bound to {host}, is not set")]
    SecretMissing { secret: String, host: HostName },
    #[error("{host}:{port} cannot be reached: {failure}")]
    Upstream { host: Host, port: u16, failure: Failure },
}

/// What is wrong with a request itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadRequest {
    #[error("this is a proxy: send the whole URL, as in GET http://example.org/ HTTP/1.1")]
    NotAProxyRequest,
    #[error("https:// goes through CONNECT")]
    HttpsWithoutConnect,
    #[error("CONNECT takes host:port, and a connection of its own")]
    Connect,
    #[error("'{0}' is not a host: {1}")]
    Host(String, String),
    #[error("the URL holds a user name or a password")]
    UserInfo,
    #[error("the host of the request ({request}) is not the host of its Host header ({header})")]
    HostMismatch { request: String, header: String },
    #[error("the request has no Host header, or several")]
    NoHost,
    #[error("the name in TLS ({tls}) is not the host that was asked for ({asked})")]
    TlsMismatch { asked: String, tls: String },
    #[error("the request could be read in two ways: {0}")]
    Smuggling(&'static str),
    #[error("the request came through this gateway before")]
    Loop,
    #[error("the body is larger than the gateway takes")]
    TooLarge,
    #[error("only TLS and HTTP go through this port; another protocol needs a rule tcp://{0}:{1}")]
    OtherProtocol(Host, u16),
    #[error("this virtual host is not configured: {0}")]
    NoSuchBase(HostName),
    #[error("of other protocols only WebSockets go through plain requests; the rest works through CONNECT")]
    Upgrade,
    #[error("a WebSocket is asked for by a GET of HTTP/1.1 without a body, with a key, in version 13")]
    WebSocket,
    #[error("the gateway has no authority for inspection")]
    NoAuthority,
    #[error("the policy has changed, and this connection must be made anew")]
    Changed,
    #[error("this is not HTTP/1.1 as it is written")]
    Malformed,
}

/// Which part of a budget is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Spent {
    #[error("too many requests in a second; the next may come in {0} ms")]
    Rate(u64),
    #[error("too many connections at the same time")]
    Connections,
    #[error("bytes sent")]
    Sent,
    #[error("bytes received")]
    Received,
}

/// What went wrong on the way to the other side.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Failure {
    #[error("the name does not resolve ({0})")]
    Unresolved(String),
    #[error("the name has no address")]
    NoAddress,
    #[error("no answer from a name server in time")]
    ResolveTimeout,
    #[error("the connection was refused")]
    Refused,
    #[error("no connection in time")]
    ConnectTimeout,
    #[error("the gateway is out of file descriptors")]
    OutOfDescriptors,
    #[error("{0}")]
    Connect(io::ErrorKind),
    #[error("its certificate has expired or is not valid yet")]
    CertificateTime,
    #[error("its certificate is for another name")]
    CertificateName,
    #[error("its certificate was issued by nobody whom this host trusts")]
    CertificateIssuer,
    #[error("its certificate is not accepted ({0})")]
    Certificate(String),
    #[error("TLS failed ({0})")]
    Tls(String),
    #[error("no answer in time")]
    AnswerTimeout,
    #[error("its answer is not HTTP, or its head is too long")]
    BadAnswer,
    #[error("the connection broke before the answer came")]
    Broken,
}

impl Failure {
    pub(crate) fn connecting(error: &io::Error) -> Self {
        const EMFILE: i32 = 24;
        const ENFILE: i32 = 23;
        match (error.raw_os_error(), error.kind()) {
            (Some(EMFILE | ENFILE), _) => Self::OutOfDescriptors,
            (_, io::ErrorKind::ConnectionRefused) => Self::Refused,
            (_, io::ErrorKind::TimedOut) => Self::ConnectTimeout,
            (_, kind) => Self::Connect(kind),
        }
    }

    pub(crate) fn tls(error: &io::Error) -> Self {
        use rustls::CertificateError as Certificate;
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        match inner {
            Some(rustls::Error::InvalidCertificate(reason)) => match reason {
                Certificate::Expired
                | Certificate::ExpiredContext { .. }
                | Certificate::NotValidYet
                | Certificate::NotValidYetContext { .. } => Self::CertificateTime,
                Certificate::NotValidForName | Certificate::NotValidForNameContext { .. } => {
                    Self::CertificateName
                }
                Certificate::UnknownIssuer | Certificate::BadSignature => Self::CertificateIssuer,
                other => Self::Certificate(format!("{other:?}")),
            },
            Some(other) => Self::Tls(other.to_string()),
            None if error.kind() == io::ErrorKind::TimedOut => Self::ConnectTimeout,
            None => Self::Tls(error.kind().to_string()),
        }
    }

    fn hint(&self) -> &'static str {
        match self {
            Self::Unresolved(_) | Self::NoAddress | Self::ResolveTimeout => {
                "check the spelling of the host name"
            }
            Self::Refused | Self::Connect(_) => "check host and port; nothing may be listening there",
            Self::ConnectTimeout | Self::AnswerTimeout => "try again later",
            Self::OutOfDescriptors => {
                "try again later; the operator can raise the gateway's limit of open files"
            }
            Self::CertificateTime | Self::CertificateName | Self::Certificate(_) => {
                "the other side must renew its certificate; the gateway does not talk to it until then"
            }
            Self::CertificateIssuer => {
                "if the issuer is to be trusted, the operator adds it to the host's certificates"
            }
            Self::Tls(_) | Self::BadAnswer | Self::Broken => {
                "try again; if it stays, the other side is at fault"
            }
        }
    }
}

impl Refusal {
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Policy(_) => StatusCode::FORBIDDEN,
            Self::Request(bad) => match bad {
                BadRequest::HostMismatch { .. } | BadRequest::TlsMismatch { .. } => {
                    StatusCode::MISDIRECTED_REQUEST
                }
                BadRequest::Loop => StatusCode::LOOP_DETECTED,
                BadRequest::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
                BadRequest::NoSuchBase(_) => StatusCode::NOT_FOUND,
                BadRequest::Upgrade => StatusCode::NOT_IMPLEMENTED,
                BadRequest::NoAuthority => StatusCode::SERVICE_UNAVAILABLE,
                _ => StatusCode::BAD_REQUEST,
            },
            Self::Budget(Spent::Rate(_)) => StatusCode::TOO_MANY_REQUESTS,
            Self::Budget(Spent::Connections) | Self::Busy => StatusCode::SERVICE_UNAVAILABLE,
            Self::Budget(Spent::Sent | Spent::Received) => StatusCode::FORBIDDEN,
            Self::SecretMissing { .. } => StatusCode::BAD_GATEWAY,
            Self::Upstream { failure, .. } => match failure {
                Failure::ResolveTimeout | Failure::ConnectTimeout | Failure::AnswerTimeout => {
                    StatusCode::GATEWAY_TIMEOUT
                }
                Failure::OutOfDescriptors => StatusCode::SERVICE_UNAVAILABLE,
                _ => StatusCode::BAD_GATEWAY,
            },
        }
    }

    /// The reply of SOCKS5 that comes nearest.
    pub(crate) fn socks(&self) -> u8 {
        match self {
            Self::Policy(_) | Self::Budget(_) => 0x02,
            Self::Request(_) | Self::Busy | Self::SecretMissing { .. } => 0x01,
            Self::Upstream { failure, .. } => match failure {
                Failure::Refused => 0x05,
                Failure::ConnectTimeout | Failure::AnswerTimeout | Failure::ResolveTimeout => 0x06,
                Failure::Unresolved(_) | Failure::NoAddress => 0x04,
                Failure::Connect(io::ErrorKind::NetworkUnreachable) => 0x03,
                Failure::Connect(io::ErrorKind::HostUnreachable) => 0x04,
                _ => 0x01,
            },
        }
    }

    /// What the client reads: what happened, and what can be done.
    pub(crate) fn text(&self) -> String {
        let hint = match self {
            Self::Policy(denied) => denied.remedy.clone(),
            Self::Request(_) => None,
            Self::Budget(Spent::Rate(_) | Spent::Connections) | Self::Busy => Some("try again later".into()),
            Self::Budget(_) => Some("a policy with a larger 'limit' gives more".into()),
            Self::SecretMissing { secret, .. } => Some(format!("set it with: cubicle secrets set {secret}")),
            Self::Upstream { failure, .. } => Some(failure.hint().into()),
        };
        match hint {
            Some(hint) => format!("cubicle egress: {self}\n{hint}\n"),
            None => format!("cubicle egress: {self}\n"),
        }
    }

    /// The refusal as a whole answer, for where no HTTP library is between us and the client. The connection ends.
    pub(crate) fn answer(&self) -> Vec<u8> {
        let text = self.text();
        let status = self.status();
        format!(
            "HTTP/1.1 {} {}\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{text}",
            status.as_u16(),
            status.canonical_reason().unwrap_or("Refused"),
            text.len(),
        )
        .into_bytes()
    }

    /// What decided, in few words, where it is the policy or the budget that refuses.
    pub(crate) fn rule(&self) -> Option<String> {
        match self {
            Self::Policy(denied) => Some(denied.rule()),
            Self::Budget(spent) => {
                Some(format!("budget: {spent}").split(';').next().unwrap_or("budget").to_owned())
            }
            Self::Request(bad) => Some(format!("bad request: {}", bad.name())),
            Self::Busy => Some("too many connections".into()),
            Self::SecretMissing { .. } | Self::Upstream { .. } => None,
        }
    }
}

impl BadRequest {
    /// Bounded in number, as it becomes a line of a bill.
    fn name(&self) -> &'static str {
        match self {
            Self::NotAProxyRequest => "not a proxy request",
            Self::HttpsWithoutConnect => "https without CONNECT",
            Self::Connect => "CONNECT",
            Self::Host(..) => "not a host",
            Self::UserInfo => "user name in URL",
            Self::HostMismatch { .. } => "Host header mismatch",
            Self::NoHost => "no Host header",
            Self::TlsMismatch { .. } => "TLS name mismatch",
            Self::Smuggling(_) => "ambiguous framing",
            Self::Loop => "loop",
            Self::TooLarge => "body too large",
            Self::OtherProtocol(..) => "other protocol",
            Self::NoSuchBase(_) => "unknown virtual host",
            Self::Upgrade => "upgrade",
            Self::WebSocket => "malformed WebSocket",
            Self::NoAuthority => "no authority",
            Self::Changed => "policy changed",
            Self::Malformed => "malformed",
        }
    }
}

impl From<BadRequest> for Refusal {
    fn from(bad: BadRequest) -> Self {
        Self::Request(bad)
    }
}

impl From<Denied> for Refusal {
    fn from(denied: Denied) -> Self {
        Self::Policy(denied)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_told_in_every_protocol() {
        let policy = Refusal::Policy(Denied {
            what: "a.example:443".into(),
            reason: cubicle_model::egress::Reason::NotAllowed { near: None },
            remedy: Some("to allow it, add 'allow https://a.example' to the policy".into()),
        });
        assert_eq!((policy.status().as_u16(), policy.socks()), (403, 2));
        let answer = String::from_utf8(policy.answer()).unwrap();
        assert!(answer.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{answer}");
        assert!(answer.ends_with("add 'allow https://a.example' to the policy\n"), "{answer}");
        let host: Host = "a.example".parse().unwrap();
        for (failure, status, socks) in [
            (Failure::Refused, 502, 5),
            (Failure::ConnectTimeout, 504, 6),
            (Failure::Unresolved("x".into()), 502, 4),
            (Failure::CertificateName, 502, 1),
            (Failure::OutOfDescriptors, 503, 1),
        ] {
            let refusal = Refusal::Upstream { host: host.clone(), port: 443, failure };
            assert_eq!((refusal.status().as_u16(), refusal.socks()), (status, socks), "{refusal}");
        }
    }
}
