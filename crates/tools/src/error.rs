//! Why a tool did not do what it was asked.

use std::fmt;

use cubicle_guest::client::ClientError;
use cubicle_model::{Fault, Kind};
use serde::Serialize;

/// A refusal that an agent can act on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ToolError {
    /// As in `docs/errors`: a kind, or one of the finer codes of the guest.
    pub code: String,
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    #[serde(skip)]
    pub kind: Kind,
}

impl ToolError {
    pub fn new(kind: Kind, code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into(), hint: None, kind }
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Kind::Invalid, "invalid_argument", message)
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for ToolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "\nhint: {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for ToolError {}

impl From<Fault> for ToolError {
    fn from(fault: Fault) -> Self {
        let error = Self::new(fault.kind(), fault.kind().code(), fault.to_string());
        match fault.way_out() {
            Some(hint) => error.hint(hint),
            None => error,
        }
    }
}

impl From<ClientError> for ToolError {
    fn from(error: ClientError) -> Self {
        let code = error.code().map(str::to_owned);
        let error = Self::from(Fault::from(error));
        match code {
            Some(code) => Self { code, ..error },
            None => error,
        }
    }
}
