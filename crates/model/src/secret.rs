//! Values that a server keeps for a tenant and shows to nobody: what they are called and where they come from.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::Scope;
use crate::template::is_variable_name;

const LONGEST_NAME: usize = 64;

/// What a secret is called. It may be the name of a variable, and may stand in a path.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SecretName(String);

/// What was given is not repeated: it may be a secret that stands where its name should.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "a secret is called by 1 to {LONGEST_NAME} of A-Z, a-z, 0-9, '_', '.' and '-', beginning with a letter"
)]
pub struct NotASecretName;

impl SecretName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SecretName {
    type Err = NotASecretName;

    fn from_str(given: &str) -> Result<Self, NotASecretName> {
        let allowed = |c: u8| c.is_ascii_alphanumeric() || b"_.-".contains(&c);
        let good = given.len() <= LONGEST_NAME
            && given.starts_with(|c: char| c.is_ascii_alphabetic())
            && given.bytes().all(allowed);
        if good { Ok(Self(given.into())) } else { Err(NotASecretName) }
    }
}

impl TryFrom<String> for SecretName {
    type Error = NotASecretName;

    fn try_from(given: String) -> Result<Self, NotASecretName> {
        given.parse()
    }
}

impl From<SecretName> for String {
    fn from(name: SecretName) -> Self {
        name.0
    }
}

impl fmt::Display for SecretName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// Where the value of a secret is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SecretSource {
    /// In the store, sealed.
    Value,
    /// In a file of the server, read whenever it is needed.
    File(PathBuf),
    /// In a variable that the server was started with.
    Environment(String),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadSource {
    #[error("'{0}' is not the absolute path of a file of the server")]
    Relative(String),
    #[error("'{0}' cannot be the name of a variable")]
    Variable(String),
}

impl SecretSource {
    pub fn name(&self) -> &'static str {
        match self {
            Self::Value => "value",
            Self::File(_) => "file",
            Self::Environment(_) => "environment",
        }
    }

    /// What somebody must be allowed to set a secret of this source: what lies on the server is for whoever runs the server
    /// to give away.
    pub fn needs(&self) -> Scope {
        match self {
            Self::Value => Scope::Manage,
            Self::File(_) | Self::Environment(_) => Scope::Admin,
        }
    }

    pub fn check(&self) -> Result<(), BadSource> {
        match self {
            Self::Value => Ok(()),
            Self::File(path) if path.is_absolute() && !path.as_os_str().as_encoded_bytes().contains(&0) => {
                Ok(())
            }
            Self::File(path) => Err(BadSource::Relative(path.display().to_string())),
            Self::Environment(name) if is_variable_name(name) => Ok(()),
            Self::Environment(name) => Err(BadSource::Variable(name.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_has_a_name_that_can_be_a_variable_or_part_of_a_path() {
        for good in ["A", "ANTHROPIC_API_KEY", "db.password", "x-1", &"k".repeat(64)] {
            assert_eq!(good.parse::<SecretName>().unwrap().as_str(), good);
        }
        for bad in ["", "1A", "_A", ".", "a/b", "a b", "a\n", "ä", "a=b", &"k".repeat(65)] {
            assert!(bad.parse::<SecretName>().is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_not_a_name_is_not_repeated() {
        let refusal = "sk/very+secret".parse::<SecretName>().unwrap_err();
        assert!(!format!("{refusal} {refusal:?}").contains("very"));
        let refusal = serde_json::from_str::<SecretName>(r#""sk/very+secret""#).unwrap_err();
        assert!(!refusal.to_string().contains("very"));
    }

    #[test]
    fn what_lies_on_the_server_is_given_away_by_administrators_alone() {
        let table = [
            (SecretSource::Value, r#""value""#, Scope::Manage),
            (SecretSource::File("/run/key".into()), r#"{"file":"/run/key"}"#, Scope::Admin),
            (SecretSource::Environment("KEY".into()), r#"{"environment":"KEY"}"#, Scope::Admin),
        ];
        for (source, json, scope) in table {
            assert_eq!(source.needs(), scope);
            assert_eq!(source.check(), Ok(()));
            assert_eq!(serde_json::to_string(&source).unwrap(), json);
            assert_eq!(serde_json::from_str::<SecretSource>(json).unwrap(), source);
        }
        for bad in [
            SecretSource::File("key".into()),
            SecretSource::File("/a\0b".into()),
            SecretSource::File(PathBuf::new()),
            SecretSource::Environment(String::new()),
            SecretSource::Environment("A=B".into()),
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }
}
