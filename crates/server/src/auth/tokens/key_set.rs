//! The public keys of an issuer, as a JWK set (RFC 7517) has them.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::Value;

use super::algorithm::{Algorithm, Material};

/// More keys than this are nobody's rotation.
const MOST_KEYS: usize = 100;
/// 2048 bits; a shorter one can be broken.
const SHORTEST_MODULUS: usize = 256;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct KeySet {
    keys: Vec<PublicKey>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PublicKey {
    id: Option<String>,
    /// Where the issuer says so, the key is used with this alone.
    algorithm: Option<Algorithm>,
    material: Material,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotAKeySet {
    #[error("it is not a JWK set")]
    Unreadable,
    #[error(
        "it has no key that signatures can be checked with (RSA of 2048 bits and more, P-256, P-384, Ed25519)"
    )]
    NothingUsable,
    #[error("it has more than {MOST_KEYS} keys")]
    TooMany,
}

impl KeySet {
    /// A key that cannot be used here is left out: an issuer may have keys for other purposes.
    pub(super) fn parse(text: &[u8]) -> Result<Self, NotAKeySet> {
        #[derive(Deserialize)]
        struct Written {
            keys: Vec<Value>,
        }
        let written: Written = serde_json::from_slice(text).map_err(|_| NotAKeySet::Unreadable)?;
        if written.keys.len() > MOST_KEYS {
            return Err(NotAKeySet::TooMany);
        }
        let keys: Vec<_> = written.keys.into_iter().filter_map(PublicKey::parse).collect();
        if keys.is_empty() { Err(NotAKeySet::NothingUsable) } else { Ok(Self { keys }) }
    }

    /// The key that a token names. One that names none is for the only key that fits it, if there is only one.
    pub(super) fn find(&self, id: Option<&str>, algorithm: Algorithm) -> Option<&PublicKey> {
        let mut fitting =
            self.keys.iter().filter(|key| key.fits(algorithm) && (id.is_none() || key.id.as_deref() == id));
        let first = fitting.next()?;
        (id.is_some() || fitting.next().is_none()).then_some(first)
    }

    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }
}

/// As RFC 7517 and RFC 7518 write it; unknown members are ignored.
#[derive(Deserialize)]
struct WrittenKey {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    purpose: Option<String>,
    key_ops: Option<Vec<String>>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

impl PublicKey {
    fn parse(written: Value) -> Option<Self> {
        let written: WrittenKey = serde_json::from_value(written).ok()?;
        if written.purpose.as_deref().is_some_and(|purpose| purpose != "sig") {
            return None;
        }
        if written.key_ops.as_ref().is_some_and(|uses| !uses.iter().any(|one| one == "verify")) {
            return None;
        }
        let algorithm = match &written.alg {
            Some(name) => Some(Algorithm::named(name)?),
            None => None,
        };
        let material = written.material()?;
        if algorithm.is_some_and(|algorithm| !material.fits(algorithm)) {
            return None;
        }
        Some(Self { id: written.kid, algorithm, material })
    }

    fn fits(&self, algorithm: Algorithm) -> bool {
        self.material.fits(algorithm) && self.algorithm.is_none_or(|only| only == algorithm)
    }

    pub(super) fn has_signed(&self, algorithm: Algorithm, message: &[u8], signature: &[u8]) -> bool {
        self.fits(algorithm) && self.material.has_signed(algorithm, message, signature)
    }
}

impl WrittenKey {
    fn material(&self) -> Option<Material> {
        match (self.kty.as_str(), self.crv.as_deref()) {
            ("RSA", _) => {
                let (n, e) = (number(self.n.as_deref())?, number(self.e.as_deref())?);
                (n.len() >= SHORTEST_MODULUS).then_some(Material::Rsa { n, e })
            }
            ("EC", Some("P-256")) => self.point(32).map(Material::P256),
            ("EC", Some("P-384")) => self.point(48).map(Material::P384),
            ("OKP", Some("Ed25519")) => coordinate(self.x.as_deref(), 32).map(Material::Ed25519),
            _ => None,
        }
    }

    fn point(&self, size: usize) -> Option<Vec<u8>> {
        let (x, y) = (coordinate(self.x.as_deref(), size)?, coordinate(self.y.as_deref(), size)?);
        Some([&[4], x.as_slice(), &y].concat())
    }
}

fn number(text: Option<&str>) -> Option<Vec<u8>> {
    let bytes = URL_SAFE_NO_PAD.decode(text?).ok()?;
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    Some(bytes[zeros..].to_vec())
}

fn coordinate(text: Option<&str>, size: usize) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text?).ok().filter(|bytes| bytes.len() == size)
}
