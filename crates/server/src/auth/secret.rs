//! Secrets of keys: shown once, kept as a hash.

use std::fmt;

use cubicle_model::hexadecimal;
use sha2::{Digest, Sha256};

const PREFIX: &str = "cub_";
const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// 256 random bits. A slow hash would add nothing: nobody can guess them.
#[derive(Clone, PartialEq, Eq)]
pub struct KeySecret(String);

impl KeySecret {
    pub fn from_random(bits: [u8; 32]) -> Self {
        let mut text = String::from(PREFIX);
        let (mut value, mut filled) = (0u32, 0);
        for byte in bits {
            value = (value << 8) | u32::from(byte);
            filled += 8;
            while filled >= 5 {
                filled -= 5;
                text.push(ALPHABET[(value >> filled) as usize & 31].into());
            }
            value &= (1 << filled) - 1;
        }
        text.push(ALPHABET[(value << (5 - filled)) as usize & 31].into());
        Self(text)
    }

    /// For whoever it is shown to.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for KeySecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeySecret(…)")
    }
}

/// What the store keeps of a secret, in hexadecimal.
pub fn hash_of_secret(secret: &str) -> String {
    hexadecimal(&Sha256::digest(secret))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_long_different_and_not_shown_by_accident() {
        let (one, two) = (KeySecret::from_random([1; 32]), KeySecret::from_random([2; 32]));
        assert_ne!(one, two);
        assert_eq!(one.expose().len(), PREFIX.len() + 52);
        assert!(!format!("{one:?}").contains(&one.expose()[4..]));
        assert_ne!(hash_of_secret(one.expose()), hash_of_secret(two.expose()));
    }
}
