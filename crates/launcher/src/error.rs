//! What went wrong while a plan was carried out.

use std::io;

use cubicle_model::Kind;
use serde::{Deserialize, Serialize};

/// A failure as it is told to the caller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{message}")]
pub struct Failed {
    #[serde(with = "kind_code")]
    pub kind: Kind,
    pub message: String,
    pub hint: Option<String>,
}

impl Failed {
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: None }
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// Names the step in which a system call failed.
pub(crate) trait Step<T> {
    fn step(self, what: impl FnOnce() -> String) -> Result<T, Failed>;
}

impl<T, E: Into<io::Error>> Step<T> for Result<T, E> {
    fn step(self, what: impl FnOnce() -> String) -> Result<T, Failed> {
        self.map_err(|error| {
            let error: io::Error = error.into();
            let kind = match error.raw_os_error() {
                Some(libc::EAGAIN | libc::ENOMEM | libc::ENOSPC | libc::EMFILE | libc::ENFILE) => Kind::Full,
                Some(libc::EPERM | libc::EACCES) => Kind::Denied,
                _ => Kind::Internal,
            };
            Failed::new(kind, format!("{}: {error}", what()))
        })
    }
}

mod kind_code {
    use cubicle_model::Kind;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(kind: &Kind, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(kind.code())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Kind, D::Error> {
        let code = std::borrow::Cow::<'de, str>::deserialize(from)?;
        Kind::from_code(&code).ok_or_else(|| serde::de::Error::custom(format!("unknown kind {code}")))
    }
}
