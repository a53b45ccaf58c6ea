//! How a connection opens: both sides prove that they know the sandbox's key before anything else is said.
//!
//! The sandbox speaks first with one JSON line, the host answers with one and may send its first request right behind
//! it. Nothing here does I/O; randomness and the key are passed in.

use std::fmt;

use cubicle_model::SandboxId;
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

/// The protocols this build speaks.
pub const PROTOCOLS: Protocols = Protocols { min: 1, max: 1 };
/// No line of the opening is longer, its newline included.
pub const LONGEST_LINE: usize = 1024;
/// A connection that has not said hello by then is closed.
pub const PATIENCE_SECONDS: u64 = 10;

const SANDBOXD: &str = "sandboxd";
const CLIENT_LABEL: &[u8] = b"cubicle client 1";
const SANDBOX_LABEL: &[u8] = b"cubicle sandbox 1";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Protocols {
    pub min: u32,
    pub max: u32,
}

/// The secret that one sandbox shares with whoever may use it.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; 32]);

impl Key {
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The key of one sandbox, from the secret of the data directory that made it.
    pub fn derive(secret: &[u8], sandbox: SandboxId) -> Self {
        Self(mac(secret, &[b"cubicle key 1", sandbox.to_string().as_bytes()]))
    }

    /// For handing the key to the process that needs it; never for showing it.
    pub fn expose(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(redacted)")
    }
}

/// 32 bytes that are used once, as 64 hexadecimal digits on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nonce(pub [u8; 32]);

impl Serialize for Nonce {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&hex(&self.0))
    }
}

impl<'de> Deserialize<'de> for Nonce {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(from)?;
        unhex(&text).map(Self).ok_or_else(|| serde::de::Error::custom("expected 64 hexadecimal digits"))
    }
}

/// The first line, from the sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerHello {
    pub cubicle: String,
    pub protocol: Protocols,
    pub sandbox: SandboxId,
    #[serde(default)]
    pub features: Vec<String>,
    pub nonce: Nonce,
}

/// The second line, from the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientHello {
    pub protocol: u32,
    pub nonce: Nonce,
    /// A MAC has the size of a nonce.
    pub proof: Nonce,
}

/// The third line, from the sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServerAnswer {
    Proof(Nonce),
    Error(Refusal),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    pub code: String,
    pub message: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HelloError {
    #[error("the other side does not speak the opening of a sandbox connection")]
    NotAHello,
    #[error(
        "the sandbox speaks protocol {} to {}, this build {} to {}: use a build of the sandbox's time, or make the sandbox anew",
        .theirs.min, .theirs.max, PROTOCOLS.min, PROTOCOLS.max
    )]
    NoCommonProtocol { theirs: Protocols },
    #[error("the client speaks protocol {theirs}, this sandbox {} to {}: use a build of the sandbox's time", PROTOCOLS.min, PROTOCOLS.max)]
    UnknownProtocol { theirs: u32 },
    #[error("this is sandbox {found}, not {wanted}")]
    OtherSandbox { wanted: SandboxId, found: SandboxId },
    #[error("the proof does not match: the other side does not have this sandbox's key")]
    WrongKey,
    #[error("the sandbox refused the connection: {message} ({code})")]
    Refused { code: String, message: String },
}

impl HelloError {
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotAHello => "not_a_hello",
            Self::NoCommonProtocol { .. } | Self::UnknownProtocol { .. } => "protocol_mismatch",
            Self::OtherSandbox { .. } => "other_sandbox",
            Self::WrongKey => "wrong_key",
            Self::Refused { .. } => "refused",
        }
    }
}

/// What the sandbox says first.
pub fn greet(sandbox: SandboxId, features: &[&str], nonce: Nonce) -> ServerHello {
    ServerHello {
        cubicle: SANDBOXD.into(),
        protocol: PROTOCOLS,
        sandbox,
        features: features.iter().map(|feature| (*feature).into()).collect(),
        nonce,
    }
}

/// What the host answers.
pub fn introduce(
    hello: &ServerHello,
    wanted: SandboxId,
    key: &Key,
    nonce: Nonce,
) -> Result<ClientHello, HelloError> {
    if hello.sandbox != wanted {
        return Err(HelloError::OtherSandbox { wanted, found: hello.sandbox });
    }
    let protocol = hello.protocol.max.min(PROTOCOLS.max);
    if protocol < hello.protocol.min.max(PROTOCOLS.min) {
        return Err(HelloError::NoCommonProtocol { theirs: hello.protocol });
    }
    let proof = Nonce(client_proof(key, hello.nonce, nonce, wanted));
    Ok(ClientHello { protocol, nonce, proof })
}

/// The sandbox's judgement of the host's line, and its own proof.
pub fn admit(
    client: &ClientHello,
    sandbox: SandboxId,
    key: &Key,
    server_nonce: Nonce,
) -> Result<ServerAnswer, HelloError> {
    if client.protocol < PROTOCOLS.min || client.protocol > PROTOCOLS.max {
        return Err(HelloError::UnknownProtocol { theirs: client.protocol });
    }
    if !same(&client.proof.0, &client_proof(key, server_nonce, client.nonce, sandbox)) {
        return Err(HelloError::WrongKey);
    }
    Ok(ServerAnswer::Proof(Nonce(sandbox_proof(key, client.nonce, server_nonce, sandbox))))
}

/// The host's judgement of the sandbox's proof.
pub fn accept(
    answer: ServerAnswer,
    sandbox: SandboxId,
    key: &Key,
    server_nonce: Nonce,
    client_nonce: Nonce,
) -> Result<(), HelloError> {
    match answer {
        ServerAnswer::Error(Refusal { code, message }) => Err(HelloError::Refused { code, message }),
        ServerAnswer::Proof(proof) => {
            if same(&proof.0, &sandbox_proof(key, client_nonce, server_nonce, sandbox)) {
                Ok(())
            } else {
                Err(HelloError::WrongKey)
            }
        }
    }
}

pub fn parse_server_hello(line: &[u8]) -> Result<ServerHello, HelloError> {
    let hello: ServerHello = parse(line)?;
    if hello.cubicle == SANDBOXD { Ok(hello) } else { Err(HelloError::NotAHello) }
}

pub fn parse_client_hello(line: &[u8]) -> Result<ClientHello, HelloError> {
    parse(line)
}

pub fn parse_server_answer(line: &[u8]) -> Result<ServerAnswer, HelloError> {
    parse(line)
}

/// One line of the opening as it goes on the wire, with its newline.
pub fn line(message: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).expect("the messages of the opening have only string keys");
    line.push(b'\n');
    line
}

fn parse<'a, T: Deserialize<'a>>(line: &'a [u8]) -> Result<T, HelloError> {
    if line.len() > LONGEST_LINE {
        return Err(HelloError::NotAHello);
    }
    serde_json::from_slice(line).map_err(|_| HelloError::NotAHello)
}

fn client_proof(key: &Key, server: Nonce, client: Nonce, sandbox: SandboxId) -> [u8; 32] {
    mac(&key.0, &[CLIENT_LABEL, &server.0, &client.0, sandbox.to_string().as_bytes()])
}

fn sandbox_proof(key: &Key, client: Nonce, server: Nonce, sandbox: SandboxId) -> [u8; 32] {
    mac(&key.0, &[SANDBOX_LABEL, &client.0, &server.0, sandbox.to_string().as_bytes()])
}

fn mac(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes a key of any length");
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

/// Takes the same time wherever the two differ.
fn same(one: &[u8; 32], other: &[u8; 32]) -> bool {
    let difference = one.iter().zip(other).fold(0, |sum, (a, b)| sum | (a ^ b));
    std::hint::black_box(difference) == 0
}

fn hex(bytes: &[u8; 32]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes
        .iter()
        .flat_map(|byte| [DIGITS[usize::from(byte >> 4)] as char, DIGITS[usize::from(byte & 15)] as char])
        .collect()
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    let digits: &[u8; 64] = text.as_bytes().try_into().ok()?;
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let high = char::from(pair[0]).to_digit(16)?;
        let low = char::from(pair[1]).to_digit(16)?;
        *byte = (high * 16 + low) as u8;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: Nonce = Nonce([1; 32]);
    const CLIENT: Nonce = Nonce([2; 32]);

    fn sandbox() -> SandboxId {
        SandboxId::from_random([7; 16])
    }

    fn key() -> Key {
        Key::derive(b"secret", sandbox())
    }

    fn exchange(client_key: &Key, server_key: &Key) -> Result<(), HelloError> {
        let greeting = parse_server_hello(&line(&greet(sandbox(), &["exec"], SERVER)))?;
        let ours = introduce(&greeting, sandbox(), client_key, CLIENT)?;
        let theirs = parse_client_hello(&line(&ours))?;
        let answer = admit(&theirs, sandbox(), server_key, SERVER)?;
        accept(parse_server_answer(&line(&answer))?, sandbox(), client_key, greeting.nonce, CLIENT)
    }

    #[test]
    fn two_sides_with_the_same_key_agree() {
        assert_eq!(exchange(&key(), &key()), Ok(()));
    }

    #[test]
    fn another_key_is_refused_by_the_sandbox() {
        assert_eq!(exchange(&Key::derive(b"other", sandbox()), &key()), Err(HelloError::WrongKey));
    }

    #[test]
    fn a_sandbox_without_the_key_is_refused_by_the_host() {
        let forged = ServerAnswer::Proof(Nonce([9; 32]));
        assert_eq!(accept(forged, sandbox(), &key(), SERVER, CLIENT), Err(HelloError::WrongKey));
    }

    #[test]
    fn a_proof_cannot_be_reflected() {
        let ours = introduce(&greet(sandbox(), &[], SERVER), sandbox(), &key(), CLIENT).unwrap();
        let reflected = ServerAnswer::Proof(ours.proof);
        assert_eq!(accept(reflected, sandbox(), &key(), SERVER, CLIENT), Err(HelloError::WrongKey));
    }

    #[test]
    fn a_sandbox_from_another_time_is_told_apart_by_its_protocols() {
        let mut greeting = greet(sandbox(), &[], SERVER);
        greeting.protocol = Protocols { min: 8, max: 9 };
        let error = introduce(&greeting, sandbox(), &key(), CLIENT).unwrap_err();
        assert_eq!(error.code(), "protocol_mismatch");
        assert!(error.to_string().contains("protocol 8 to 9"), "{error}");
        let future = ClientHello { protocol: 7, nonce: CLIENT, proof: CLIENT };
        assert_eq!(admit(&future, sandbox(), &key(), SERVER), Err(HelloError::UnknownProtocol { theirs: 7 }));
    }

    #[test]
    fn the_wrong_sandbox_is_named() {
        let wanted = SandboxId::from_random([8; 16]);
        let error = introduce(&greet(sandbox(), &[], SERVER), wanted, &key(), CLIENT).unwrap_err();
        assert_eq!(error, HelloError::OtherSandbox { wanted, found: sandbox() });
    }

    #[test]
    fn every_line_fits_its_cap() {
        let features = ["exec", "files", "ports", "accept", "listen", "journal"];
        assert!(line(&greet(sandbox(), &features, SERVER)).len() < LONGEST_LINE);
        assert!(line(&ServerAnswer::Proof(SERVER)).len() < LONGEST_LINE);
    }

    #[test]
    fn garbage_is_not_a_hello() {
        for garbage in [&b""[..], b"\n", b"GET / HTTP/1.1", b"{}", b"\xff\xfe", b"null", &[b'{'; 5000]] {
            assert_eq!(parse_server_hello(garbage), Err(HelloError::NotAHello));
            assert_eq!(parse_client_hello(garbage), Err(HelloError::NotAHello));
            assert_eq!(parse_server_answer(garbage), Err(HelloError::NotAHello));
        }
    }

    #[test]
    fn a_key_is_not_shown() {
        assert_eq!(format!("{:?}", key()), "Key(redacted)");
    }
}
