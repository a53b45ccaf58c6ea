//! Names that people give: of tenants and templates, and of users.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize};

const LONGEST_NAME: usize = 63;
const LONGEST_USER: usize = 256;

/// The name of a tenant or a template: a DNS label, so that it can stand in a host name, a path and a file name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Name(String);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is not a name: expected 1 to {LONGEST_NAME} of a-z, 0-9 and '-', beginning and ending with a letter or a digit"
)]
pub struct NotAName(String);

impl FromStr for Name {
    type Err = NotAName;

    fn from_str(given: &str) -> Result<Self, NotAName> {
        let allowed = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
        let good = (1..=LONGEST_NAME).contains(&given.len())
            && given.bytes().all(allowed)
            && !given.starts_with('-')
            && !given.ends_with('-');
        if good { Ok(Self(given.into())) } else { Err(NotAName(given.chars().take(80).collect())) }
    }
}

/// Whoever an object belongs to within a tenant: the subject of a token, or what a key's maker called it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct UserName(String);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a user is called by 1 to {LONGEST_USER} bytes without control characters")]
pub struct NotAUser;

impl FromStr for UserName {
    type Err = NotAUser;

    fn from_str(given: &str) -> Result<Self, NotAUser> {
        let good = (1..=LONGEST_USER).contains(&given.len()) && !given.chars().any(char::is_control);
        if good { Ok(Self(given.into())) } else { Err(NotAUser) }
    }
}

macro_rules! text {
    ($name:ident) => {
        impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(from)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

text!(Name);
text!(UserName);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_dns_label() {
        for good in ["a", "default", "team-7", &"x".repeat(63)] {
            assert!(good.parse::<Name>().is_ok(), "{good}");
        }
        for bad in ["", "-a", "a-", "A", "a.b", "a/b", "ä", "a b", &"x".repeat(64)] {
            assert!(bad.parse::<Name>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_user_may_be_any_subject_of_a_token() {
        for good in ["ada", "auth0|5f7c8ec7c33c6c004bbafe82", "ada@example.org", "Ädä"] {
            assert!(good.parse::<UserName>().is_ok(), "{good}");
        }
        for bad in ["", "a\nb", "a\0", &"x".repeat(257)] {
            assert!(bad.parse::<UserName>().is_err(), "{bad:?}");
        }
    }
}
