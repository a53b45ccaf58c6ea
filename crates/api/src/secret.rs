//! Secrets: they are set, bound and removed, and never shown.

use std::fmt;

use cubicle_model::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a secret is to be: exactly one of `value`, `from_file` and `from_environment`.
///
/// Whoever says where a secret goes must know it, so that all of it is said each time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PutSecret {
    /// The value itself. No answer ever holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, min_length = 1, max_length = 65536, write_only)]
    pub value: Option<SecretText>,
    /// A file of the server, read whenever it is needed; for administrators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(pattern = r"^/[^\x00]*$", example = "/run/secrets/key")]
    pub from_file: Option<String>,
    /// A variable that the server was started with; for administrators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(pattern = r"^[^=\x00]+$", example = "DATABASE_PASSWORD")]
    pub from_environment: Option<String>,
    /// Where it goes. Absent keeps what is said already; the key of a known provider goes to that provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 64)]
    pub bindings: Option<Vec<Binding>>,
}

/// A value that is not shown, not even by accident.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SecretText(String);

impl SecretText {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// For whoever keeps it.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0.into_bytes()
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretText(…)")
    }
}

/// Where a secret goes, in which form, and from which sandboxes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Binding {
    /// The whole name of a host, without wildcards.
    #[schema(example = "api.example.com", max_length = 254)]
    pub host: String,
    #[serde(default = "https")]
    #[schema(minimum = 1, maximum = 65535, default = 443)]
    pub port: u16,
    /// How a request carries it: `bearer`, `header:NAME`, `basic:USER` or `query:NAME`.
    #[schema(example = "header:x-api-key", pattern = "^(bearer|(header|basic|query):.{1,128})$")]
    pub form: String,
    /// Programs in a sandbox reach the host as `http://BASE.egress.internal`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "example", pattern = "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
    pub base: Option<String>,
    /// It goes out without TLS too, and its base URL leads to plain HTTP.
    #[serde(default)]
    pub even_plain: bool,
    /// Templates whose sandboxes it is for; absent means all of the tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_items = 1)]
    pub templates: Option<Vec<String>>,
}

fn https() -> u16 {
    443
}

/// A secret, without its value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Secret {
    pub name: String,
    /// The ETag, for `If-Match`; grows with every change. 0 for the key of a provider that only the server's environment has.
    pub version: i64,
    /// `value`, `file` or `environment`.
    #[schema(example = "value")]
    pub source: String,
    /// The file or the variable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    pub bindings: Vec<Binding>,
    /// Whether there is a value now. Requests that would carry it are refused otherwise.
    pub available: bool,
    /// Why there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub because: Option<String>,
    /// What whoever set it should know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub created_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub updated_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated_by: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_not_shown_by_accident() {
        let put: PutSecret = serde_json::from_str(r#"{"value": "sk-very-secret"}"#).unwrap();
        assert!(!format!("{put:?}").contains("very"));
        assert_eq!(put.value.unwrap().into_bytes(), b"sk-very-secret");
    }

    #[test]
    fn a_binding_goes_over_tls_unless_it_says_otherwise() {
        let binding: Binding = serde_json::from_str(r#"{"host": "a.example", "form": "bearer"}"#).unwrap();
        assert_eq!((binding.port, binding.even_plain, binding.templates), (443, false, None));
    }
}
