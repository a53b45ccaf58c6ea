//! Seals values for the store, and opens them again. A sealed text names the key that made it, so that keys can be replaced
//! one after the other, and is good for one version of one secret alone.

use std::fmt;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cubicle_egress::secret::Secret;
use cubicle_model::{Name, SecretName, hexadecimal};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use sha2::{Digest, Sha256};

/// The form of a sealed text: `1.KEY.BASE64`, of a nonce and what follows it.
const FORM: &str = "1";

/// The keys of a server. The first one seals, and all of them open.
#[derive(Clone)]
pub struct SealingKeys(Arc<[SealingKey]>);

struct SealingKey {
    id: String,
    key: LessSafeKey,
}

/// Says nothing of what stands there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotSealingKeys {
    #[error("there is no key")]
    Empty,
    #[error("line {0} is not a key, which is 32 bytes in base64")]
    Line(usize),
}

/// Whose value it is. A sealed text that is moved to another row cannot be opened there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Whose<'a> {
    pub(crate) tenant: &'a Name,
    pub(crate) name: &'a SecretName,
    pub(crate) version: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unopened {
    #[error(
        "it was sealed with the key '{0}', which this server does not have: add that key as another line of the \
         file with the server's keys, or set the secret again"
    )]
    NoKey(String),
    #[error("what the store has of it is damaged or of another secret: set it again")]
    Damaged,
}

impl SealingKeys {
    /// One key on each line. Empty lines and those that begin with `#` are passed over.
    pub fn parse(text: &str) -> Result<Self, NotSealingKeys> {
        let lines = text.lines().map(str::trim).enumerate();
        let keys = lines
            .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
            .map(|(number, line)| SealingKey::parse(line).ok_or(NotSealingKeys::Line(number + 1)))
            .collect::<Result<Vec<_>, _>>()?;
        if keys.is_empty() { Err(NotSealingKeys::Empty) } else { Ok(Self(keys.into())) }
    }

    /// A single key.
    pub fn one(bits: [u8; 32]) -> Self {
        Self([SealingKey::new(&bits).expect("32 bytes are a key")].into())
    }

    /// The line for a new key.
    pub fn line(bits: [u8; 32]) -> String {
        STANDARD.encode(bits)
    }

    /// Whether what was sealed with this key can be opened.
    pub fn can_open(&self, sealed: &str) -> bool {
        parts(sealed).is_some_and(|(id, _)| self.key(id).is_some())
    }

    pub(crate) fn is_of_first_key(&self, sealed: &str) -> bool {
        parts(sealed).is_some_and(|(id, _)| self.first().id == id)
    }

    /// `nonce` is never the same twice: 96 random bits.
    pub(crate) fn seal(&self, whose: Whose<'_>, value: &[u8], nonce: [u8; NONCE_LEN]) -> Option<String> {
        let first = self.first();
        let mut bytes = value.to_vec();
        let about = Aad::from(whose.text());
        let tag = first
            .key
            .seal_in_place_separate_tag(Nonce::assume_unique_for_key(nonce), about, &mut bytes)
            // Only a value of many gigabytes is too long.
            .ok()?;
        let whole = [&nonce, bytes.as_slice(), tag.as_ref()].concat();
        Some(format!("{FORM}.{}.{}", first.id, STANDARD.encode(whole)))
    }

    pub(crate) fn open(&self, whose: Whose<'_>, sealed: &str) -> Result<Secret, Unopened> {
        let (id, bytes) = parts(sealed).ok_or(Unopened::Damaged)?;
        let key = self.key(id).ok_or_else(|| Unopened::NoKey(id.to_owned()))?;
        let bytes = STANDARD.decode(bytes).map_err(|_| Unopened::Damaged)?;
        let (nonce, rest) = bytes.split_at_checked(NONCE_LEN).ok_or(Unopened::Damaged)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| Unopened::Damaged)?;
        let mut rest = rest.to_vec();
        let opened = key.key.open_in_place(nonce, Aad::from(whose.text()), &mut rest);
        opened.map(|value| Secret::new(&*value)).map_err(|_| Unopened::Damaged)
    }

    fn first(&self) -> &SealingKey {
        self.0.first().expect("a ring of keys is parsed only where there is one")
    }

    fn key(&self, id: &str) -> Option<&SealingKey> {
        self.0.iter().find(|key| key.id == id)
    }
}

impl SealingKey {
    fn parse(line: &str) -> Option<Self> {
        Self::new(&STANDARD.decode(line).ok()?)
    }

    /// Absent where it is not of the length of a key.
    fn new(bytes: &[u8]) -> Option<Self> {
        let key = UnboundKey::new(&AES_256_GCM, bytes).ok()?;
        let mut hash = Sha256::new();
        hash.update(b"cubicle: the id of a sealing key");
        hash.update(bytes);
        let id = hexadecimal(&hash.finalize()[..4]);
        Some(Self { id, key: LessSafeKey::new(key) })
    }
}

impl fmt::Debug for SealingKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|key| &key.id)).finish()
    }
}

impl Whose<'_> {
    /// No name holds a NUL, so that no two have the same text.
    fn text(&self) -> String {
        format!("cubicle secret\0{}\0{}\0{}", self.tenant, self.name, self.version)
    }
}

fn parts(sealed: &str) -> Option<(&str, &str)> {
    sealed.strip_prefix(FORM)?.strip_prefix('.')?.split_once('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(of: &[u8]) -> SealingKeys {
        let lines: Vec<_> = of.iter().map(|byte| SealingKeys::line([*byte; 32])).collect();
        SealingKeys::parse(&lines.join("\n")).unwrap()
    }

    fn check(
        tenant: &str,
        name: &str,
        version: i64,
        keys: &SealingKeys,
        sealed: &str,
    ) -> Result<String, Unopened> {
        let (tenant, name) = (tenant.parse().unwrap(), name.parse().unwrap());
        let opened = keys.open(Whose { tenant: &tenant, name: &name, version }, sealed)?;
        Ok(String::from_utf8(opened.reveal().to_vec()).unwrap())
    }

    fn sealed(keys: &SealingKeys, nonce: u8) -> String {
        let (tenant, name) = ("acme".parse().unwrap(), "KEY".parse().unwrap());
        keys.seal(Whose { tenant: &tenant, name: &name, version: 3 }, b"sk-1", [nonce; 12]).unwrap()
    }

    #[test]
    fn a_sealed_value_is_opened_for_its_own_version_of_its_own_secret_alone() {
        let keys = keys(&[1]);
        let sealed = sealed(&keys, 7);
        assert_eq!(check("acme", "KEY", 3, &keys, &sealed).unwrap(), "sk-1");
        for (tenant, name, version) in [("other", "KEY", 3), ("acme", "KEY2", 3), ("acme", "KEY", 4)] {
            assert_eq!(check(tenant, name, version, &keys, &sealed), Err(Unopened::Damaged));
        }
    }

    #[test]
    fn a_sealed_text_does_not_show_its_value_and_is_never_the_same() {
        let keys = keys(&[1]);
        let (one, two) = (sealed(&keys, 7), sealed(&keys, 8));
        assert_ne!(one, two);
        assert!(!one.contains("sk-1") && !one.contains(&STANDARD.encode("sk-1")[..4]), "{one}");
    }

    #[test]
    fn whatever_is_changed_or_cut_cannot_be_opened() {
        let keys = keys(&[1]);
        let whole = sealed(&keys, 7);
        for at in 0..whole.len() {
            let mut bytes = whole.clone().into_bytes();
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(bytes).unwrap();
            assert!(check("acme", "KEY", 3, &keys, &changed).is_err(), "{changed}");
            assert!(check("acme", "KEY", 3, &keys, &whole[..at]).is_err(), "{}", &whole[..at]);
        }
    }

    #[test]
    fn the_first_key_seals_and_every_key_opens() {
        let (old, both, new) = (keys(&[1]), keys(&[2, 1]), keys(&[2]));
        let before = sealed(&old, 7);
        assert_eq!(check("acme", "KEY", 3, &both, &before).unwrap(), "sk-1");
        assert!(both.can_open(&before) && !both.is_of_first_key(&before));
        let after = sealed(&both, 7);
        assert!(both.is_of_first_key(&after));
        assert_eq!(check("acme", "KEY", 3, &new, &after).unwrap(), "sk-1");
        assert!(!new.can_open(&before));
        let refusal = check("acme", "KEY", 3, &new, &before).unwrap_err();
        assert!(matches!(&refusal, Unopened::NoKey(id) if before.contains(id.as_str())));
        assert!(refusal.to_string().contains("add that key"), "{refusal}");
    }

    #[test]
    fn a_file_of_keys_is_read_line_by_line_and_never_repeated() {
        let (one, two) = (SealingKeys::line([1; 32]), SealingKeys::line([2; 32]));
        let good = format!("# new\n{one}\r\n\n  {two}  \n");
        assert_eq!(SealingKeys::parse(&good).unwrap().0.len(), 2);
        let short = STANDARD.encode([1; 31]);
        let table = [
            (String::new(), NotSealingKeys::Empty),
            ("# none\n".into(), NotSealingKeys::Empty),
            (format!("{one}\n{short}"), NotSealingKeys::Line(2)),
            (format!("\n{}", &one[..40]), NotSealingKeys::Line(2)),
            (format!("{one}{two}"), NotSealingKeys::Line(1)),
        ];
        for (text, expected) in table {
            assert_eq!(SealingKeys::parse(&text).unwrap_err(), expected, "{text}");
        }
        let shown = format!("{:?}", SealingKeys::parse(&one).unwrap());
        assert!(!shown.contains(&one[..8]) && shown.len() < 20, "{shown}");
    }
}
