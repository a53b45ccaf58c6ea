//! One transport-free error: a kind that a caller can act on, a text for the user, and a way out.

use std::error::Error as StdError;
use std::fmt;

/// What a caller can do about a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The object does not exist (any more).
    NotFound,
    /// The request cannot be carried out as it stands.
    Invalid,
    /// The request contradicts what is there.
    Conflict,
    /// Not allowed, or not possible with the isolation that was asked for.
    Denied,
    /// No room now; the same request may succeed later.
    Full,
    /// The other side cannot be reached now; the outcome of the request is unknown.
    Unavailable,
    /// A defect or a failing host.
    Internal,
}

impl Kind {
    pub const ALL: [Self; 7] = [
        Self::NotFound,
        Self::Invalid,
        Self::Conflict,
        Self::Denied,
        Self::Full,
        Self::Unavailable,
        Self::Internal,
    ];

    /// The kind with this code.
    pub fn from_code(code: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.code() == code)
    }

    pub fn code(self) -> &'static str {
        match self {
            Self::NotFound => "not_found",
            Self::Invalid => "invalid",
            Self::Conflict => "conflict",
            Self::Denied => "denied",
            Self::Full => "full",
            Self::Unavailable => "unavailable",
            Self::Internal => "internal",
        }
    }

    /// Whether the same request may succeed later without being changed.
    pub fn retryable(self) -> bool {
        match self {
            Self::Full | Self::Unavailable => true,
            Self::NotFound | Self::Invalid | Self::Conflict | Self::Denied | Self::Internal => false,
        }
    }
}

/// A failure with what the user is told. `Display` is the user's text; the cause is for the log.
#[derive(Debug)]
pub struct Fault {
    kind: Kind,
    message: String,
    hint: Option<String>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Fault {
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: None, source: None }
    }

    /// What the user can do about it.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub fn because(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }

    pub fn message(&self) -> &str {
        &self.message
    }

    pub fn way_out(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for Fault {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_succeed_later_is_retryable() {
        let all = [
            (Kind::NotFound, false),
            (Kind::Invalid, false),
            (Kind::Conflict, false),
            (Kind::Denied, false),
            (Kind::Full, true),
            (Kind::Unavailable, true),
            (Kind::Internal, false),
        ];
        for (kind, expected) in all {
            assert_eq!(kind.retryable(), expected, "{}", kind.code());
        }
    }
}
