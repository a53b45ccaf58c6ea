//! Typed ids: a prefix and 26 lower-case base32 characters, valid as DNS labels and as file names.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
const BODY: usize = 26;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{given}' is not {article} id: expected '{prefix}-' and {BODY} characters of a-z and 2-7")]
pub struct ParseIdError {
    given: String,
    prefix: &'static str,
    article: &'static str,
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal, $article:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name([u8; BODY]);

        impl $name {
            pub const PREFIX: &'static str = $prefix;

            /// Randomness is passed in: 128 bits from the caller's source.
            pub fn from_random(bits: [u8; 16]) -> Self {
                Self(encode(bits))
            }

            fn body(&self) -> &str {
                std::str::from_utf8(&self.0).expect("the alphabet is ASCII")
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&format!(concat!($prefix, "-{}"), self.body()))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "-{}"), self.body())
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;

            fn from_str(given: &str) -> Result<Self, ParseIdError> {
                given
                    .strip_prefix(concat!($prefix, "-"))
                    .and_then(|body| <[u8; BODY]>::try_from(body.as_bytes()).ok())
                    .filter(|body| body.iter().all(|c| ALPHABET.contains(c)))
                    .map(Self)
                    .ok_or_else(|| ParseIdError {
                        given: given.chars().take(80).collect(),
                        prefix: $prefix,
                        article: $article,
                    })
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
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

id!(
    /// One isolated place where code runs.
    SandboxId, "sbx", "a sandbox"
);
id!(
    /// One process tree in a sandbox.
    ExecId, "exec", "an exec"
);
id!(
    /// One data directory. Everything made on a host carries it, and sweeps touch only their own.
    InstanceId, "inst", "an instance"
);

id!(
    /// The exclusive right to one sandbox for some time.
    LeaseId, "lease", "a lease"
);
id!(
    /// A key of the API; not its secret.
    KeyId, "key", "a key"
);
id!(
    /// Something that happened.
    EventId, "evt", "an event"
);
id!(
    /// A file that outlives its sandbox.
    ArtifactId, "art", "an artifact"
);
id!(
    /// One AI coding worker that was given a prompt.
    TaskId, "task", "a task"
);
id!(
    /// A receiver that is told of what happens.
    WebhookId, "hook", "a webhook"
);
id!(
    /// One thing that one receiver is told.
    DeliveryId, "dlv", "a delivery"
);
id!(
    /// One server with its own sandboxes. Several may share a database.
    NodeId, "node", "a node"
);
id!(
    /// One request to the API; goes through log lines and audit.
    RequestId, "req", "a request"
);

fn encode(bits: [u8; 16]) -> [u8; BODY] {
    let mut value = u128::from_be_bytes(bits);
    let mut body = [0; BODY];
    for c in body.iter_mut().rev() {
        *c = ALPHABET[(value & 31) as usize];
        value >>= 5;
    }
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_survives_text_and_json() {
        let id = SandboxId::from_random(*b"0123456789abcdef");
        assert_eq!(id.to_string().parse::<SandboxId>().unwrap(), id);
        let json = serde_json::to_string(&id).unwrap();
        assert_eq!(serde_json::from_str::<SandboxId>(&json).unwrap(), id);
    }

    #[test]
    fn an_id_is_a_dns_label_and_a_file_name() {
        let text = ExecId::from_random([0xff; 16]).to_string();
        assert!(text.len() <= 63);
        assert!(text.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-'));
    }

    #[test]
    fn nonsense_is_refused_with_what_was_expected() {
        for given in [
            "",
            "sbx-",
            "sbx-../../../../../../../etc/pass",
            "exec-aaaaaaaaaaaaaaaaaaaaaaaaaa",
            "sbx-AAAAAAAAAAAAAAAAAAAAAAAAAA",
        ] {
            let error = given.parse::<SandboxId>().unwrap_err().to_string();
            assert!(error.contains("expected 'sbx-'"), "{error}");
        }
    }

    #[test]
    fn different_randomness_gives_different_ids() {
        assert_ne!(SandboxId::from_random([1; 16]), SandboxId::from_random([2; 16]));
    }
}
