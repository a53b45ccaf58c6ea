//! What an environment is called by: its contents.

use std::fmt;
use std::str::FromStr;

use cubicle_model::hexadecimal;
use serde::{Deserialize, Deserializer, Serialize};
use sha2::{Digest, Sha256};

const LENGTH: usize = 64;

/// The same key is the same tree. It stands in paths, so that it can hold nothing but lower-case hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct EnvKey(String);

impl EnvKey {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self(hexadecimal(&Sha256::digest(bytes)))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Where sandboxes see the tree.
    pub fn target(&self) -> String {
        format!("/mnt/envs/{}", self.0)
    }

    /// What an environment is called that nobody gave a name.
    pub(crate) fn nickname(&self) -> String {
        format!("env-{}", &self.0[..12])
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotAKey;

impl fmt::Display for NotAKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the key of an environment is {LENGTH} lower-case hexadecimal digits")
    }
}

impl std::error::Error for NotAKey {}

impl FromStr for EnvKey {
    type Err = NotAKey;

    fn from_str(given: &str) -> Result<Self, NotAKey> {
        let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if given.len() == LENGTH && given.bytes().all(digit) { Ok(Self(given.into())) } else { Err(NotAKey) }
    }
}

impl fmt::Display for EnvKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for EnvKey {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}
