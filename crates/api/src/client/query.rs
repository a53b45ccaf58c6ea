//! The query of an address.

use std::fmt::{Display, Write};

#[derive(Debug, Clone, Default)]
pub(super) struct Query(String);

impl Query {
    pub(super) fn with(mut self, name: &str, value: impl Display) -> Self {
        self.0.push(if self.0.is_empty() { '?' } else { '&' });
        self.0.push_str(name);
        self.0.push('=');
        self.0.push_str(&encoded(&value.to_string()));
        self
    }

    pub(super) fn maybe(self, name: &str, value: Option<impl Display>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    pub(super) fn on(&self, path: &str) -> String {
        format!("{path}{}", self.0)
    }
}

/// Percent-encoded, everything but what no part of an address gives a meaning to.
pub(super) fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(byte as char),
            // Writing to a string does not fail.
            _ => _ = write!(encoded, "%{byte:02X}"),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_a_meaning_in_an_address_is_encoded() {
        let query = Query::default().with("path", "/a b&c=é").maybe("none", None::<u8>).with("limit", 5);
        assert_eq!(query.on("/files"), "/files?path=%2Fa%20b%26c%3D%C3%A9&limit=5");
        assert_eq!(Query::default().on("/files"), "/files");
    }
}
