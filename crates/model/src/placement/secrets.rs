//! Secrets that are put into a sandbox: the last resort, for programs that cannot do with what the gateway adds to
//! their requests. Nothing here can be serialised by mistake, and what is printed are names.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize};

/// Where the workload finds secret files.
pub const SECRETS_DIRECTORY: &str = "/var/secrets";

/// What a sandbox is given beside its ordinary files and variables.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct SecretsToGive {
    /// Below `/var/secrets`, read-only for the workload where it is another user than pid 1.
    pub files: Vec<SecretFile>,
    /// Added to the environment of every later exec.
    pub env: BTreeMap<String, String>,
}

impl SecretsToGive {
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && self.env.is_empty()
    }
}

impl fmt::Debug for SecretsToGive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&String> = self.env.keys().collect();
        f.debug_struct("SecretsToGive").field("files", &self.files).field("env", &names).finish()
    }
}

#[derive(Clone, PartialEq, Eq)]
pub struct SecretFile {
    pub name: SecretFileName,
    pub bytes: Vec<u8>,
}

impl fmt::Debug for SecretFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SecretFile").field(&self.name).finish()
    }
}

const LONGEST_NAME: usize = 64;

/// The name of a file in `/var/secrets`. It leads nowhere else, and hides nowhere.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct SecretFileName(String);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is not the name of a secret file: expected 1 to {LONGEST_NAME} of A-Z, a-z, 0-9, '.', '_' and '-', \
     not beginning with '.'"
)]
pub struct NotASecretFileName(String);

impl SecretFileName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SecretFileName {
    type Err = NotASecretFileName;

    fn from_str(given: &str) -> Result<Self, NotASecretFileName> {
        let allowed = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-');
        let good = (1..=LONGEST_NAME).contains(&given.len())
            && given.bytes().all(allowed)
            && !given.starts_with('.');
        if good { Ok(Self(given.into())) } else { Err(NotASecretFileName(given.chars().take(80).collect())) }
    }
}

impl fmt::Display for SecretFileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl<'de> Deserialize<'de> for SecretFileName {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(from)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_file_has_a_plain_name() {
        for good in ["a", "token", "TLS_key.pem", "-", "_", "a..b", &"x".repeat(64)] {
            assert!(good.parse::<SecretFileName>().is_ok(), "{good}");
        }
        for bad in ["", ".", "..", ".hidden", "a/b", "../a", "a b", "a\0", "ä", "a\n", &"x".repeat(65)] {
            assert!(bad.parse::<SecretFileName>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn secrets_are_printed_by_name_and_written_nowhere() {
        let file = SecretFile { name: "token".parse().unwrap(), bytes: b"hunter2".to_vec() };
        let env = [("API_KEY".to_owned(), "hunter3".to_owned())].into();
        let binding =
            crate::Binding { secrets: SecretsToGive { files: vec![file], env }, ..Default::default() };
        let printed = format!("{binding:?} {binding:#?}");
        assert!(printed.contains("token") && printed.contains("API_KEY"), "{printed}");
        // The bytes of a file would be printed as numbers.
        assert!(!printed.contains("hunter") && !printed.contains("104"), "{printed}");
        let written = serde_json::to_string(&binding).unwrap();
        assert!(!written.contains("hunter") && !written.contains("secrets"), "{written}");
    }
}
