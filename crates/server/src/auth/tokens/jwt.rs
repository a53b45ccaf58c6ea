//! A token as it is written (RFC 7515, compact): three parts, of which the third signs the first two.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::Value;

use super::Unacceptable;
use super::algorithm::Algorithm;
use super::key_set::PublicKey;

/// Real ones have one or two thousand bytes.
const LONGEST: usize = 16 * 1024;
/// What a token may say that it is: an access token (RFC 9068), or any JWT. A logout token or a proof of possession is
/// signed by the same issuer, and must not open anything.
const TYPES: [&str; 2] = ["jwt", "at+jwt"];

/// A token whose signature has not been checked.
#[derive(Debug)]
pub(super) struct Unverified<'a> {
    pub(super) algorithm: Algorithm,
    pub(super) key_id: Option<String>,
    claims: Value,
    signed: &'a str,
    signature: Vec<u8>,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    typ: Option<String>,
    crit: Option<Value>,
}

/// Whether somebody means this to be a token. Keys have no dots.
pub(crate) fn looks_like_one(text: &str) -> bool {
    let letters = |part: &str| part.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-' || c == b'_');
    let parts: Vec<_> = text.splitn(4, '.').collect();
    // The signature is absent where there is none, and such a token is refused as what it is.
    parts.len() == 3 && parts.iter().all(|part| letters(part)) && !parts[0].is_empty() && !parts[1].is_empty()
}

impl<'a> Unverified<'a> {
    pub(super) fn parse(text: &'a str) -> Result<Self, Unacceptable> {
        if text.len() > LONGEST {
            return Err(Unacceptable::Damaged("it is longer than any token"));
        }
        let (signed, signature) = text.rsplit_once('.').ok_or(Unacceptable::Damaged("it has no parts"))?;
        let (header, claims) = signed.split_once('.').ok_or(Unacceptable::Damaged("it has two parts"))?;
        let header: Header = json(header).ok_or(Unacceptable::Damaged("its header cannot be read"))?;
        let algorithm =
            Algorithm::named(&header.alg).ok_or_else(|| Unacceptable::Algorithm(shown(&header.alg)))?;
        if header.crit.is_some() {
            return Err(Unacceptable::Critical);
        }
        if let Some(given) = &header.typ {
            let lower = given.to_ascii_lowercase();
            if !TYPES.contains(&lower.strip_prefix("application/").unwrap_or(&lower)) {
                return Err(Unacceptable::Type(shown(given)));
            }
        }
        let claims: Value = json(claims)
            .filter(Value::is_object)
            .ok_or(Unacceptable::Damaged("its claims cannot be read"))?;
        let signature = URL_SAFE_NO_PAD
            .decode(signature)
            .map_err(|_| Unacceptable::Damaged("its signature cannot be read"))?;
        Ok(Self { algorithm, key_id: header.kid, claims, signed, signature })
    }

    /// Who it says it is of; nobody vouches for that yet.
    pub(super) fn alleged_issuer(&self) -> Option<&str> {
        self.claims["iss"].as_str()
    }

    /// What it claims, which is the word of whoever has this key.
    pub(super) fn verify(self, key: &PublicKey) -> Result<Value, Unacceptable> {
        if key.has_signed(self.algorithm, self.signed.as_bytes(), &self.signature) {
            return Ok(self.claims);
        }
        Err(Unacceptable::Signature)
    }
}

fn json<T: for<'de> Deserialize<'de>>(part: &str) -> Option<T> {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).ok()?).ok()
}

/// A word of a stranger, fit for a message.
fn shown(given: &str) -> String {
    given.chars().filter(char::is_ascii_graphic).filter(|c| *c != '"' && *c != '\\').take(20).collect()
}
