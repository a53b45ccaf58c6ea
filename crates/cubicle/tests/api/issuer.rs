//! An identity provider on loopback: it describes itself, publishes keys, and signs whatever a test wants signed.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair,
    RSA_PKCS1_SHA256, RSA_PSS_SHA256, RsaKeyPair, RsaPublicKeyComponents,
};
use serde_json::{Value, json};

/// A key that signs by one algorithm.
pub(crate) struct SigningKey {
    pub(crate) id: String,
    pub(crate) algorithm: &'static str,
    pair: Pair,
}

enum Pair {
    Rsa(RsaKeyPair),
    Ec(EcdsaKeyPair),
    Ed(Ed25519KeyPair),
}

fn encoded(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

impl SigningKey {
    /// `None` for RSA where there is no `openssl`, which makes the key.
    pub(crate) fn new(id: &str, algorithm: &'static str) -> Option<Self> {
        let random = SystemRandom::new();
        let ec = |how| {
            let made = EcdsaKeyPair::generate_pkcs8(how, &random).expect("a key can be made");
            Pair::Ec(EcdsaKeyPair::from_pkcs8(how, made.as_ref(), &random).expect("it is a key"))
        };
        let pair = match algorithm {
            "RS256" | "PS256" => Pair::Rsa(rsa()?),
            "ES256" => ec(&ECDSA_P256_SHA256_FIXED_SIGNING),
            "ES384" => ec(&ECDSA_P384_SHA384_FIXED_SIGNING),
            "EdDSA" => {
                let made = Ed25519KeyPair::generate_pkcs8(&random).expect("a key can be made");
                Pair::Ed(Ed25519KeyPair::from_pkcs8(made.as_ref()).expect("it is a key"))
            }
            other => panic!("no key signs by {other}"),
        };
        Some(Self { id: id.to_owned(), algorithm, pair })
    }

    /// The public half, as issuers publish it.
    pub(crate) fn published(&self) -> Value {
        let point = |size: usize, curve: &str, bytes: &[u8]| {
            let (x, y) = bytes[1..].split_at(size);
            json!({ "kty": "EC", "crv": curve, "x": encoded(x), "y": encoded(y) })
        };
        let mut key = match (&self.pair, self.algorithm) {
            (Pair::Rsa(pair), _) => {
                let public = RsaPublicKeyComponents::<Vec<u8>>::from(pair.public());
                json!({ "kty": "RSA", "n": encoded(public.n), "e": encoded(public.e) })
            }
            (Pair::Ec(pair), "ES384") => point(48, "P-384", pair.public_key().as_ref()),
            (Pair::Ec(pair), _) => point(32, "P-256", pair.public_key().as_ref()),
            (Pair::Ed(pair), _) => json!({ "kty": "OKP", "crv": "Ed25519", "x": encoded(pair.public_key()) }),
        };
        key["kid"] = json!(self.id);
        key["use"] = json!("sig");
        key
    }

    pub(crate) fn sign(&self, claims: &Value) -> String {
        self.sign_as(&json!({ "alg": self.algorithm, "kid": self.id, "typ": "at+jwt" }), claims)
    }

    /// With this header, whatever it says.
    pub(crate) fn sign_as(&self, header: &Value, claims: &Value) -> String {
        let signed = format!("{}.{}", encoded(header.to_string()), encoded(claims.to_string()));
        let random = SystemRandom::new();
        let signature = match &self.pair {
            Pair::Rsa(pair) => {
                let padding: &dyn ring::signature::RsaEncoding =
                    if self.algorithm == "PS256" { &RSA_PSS_SHA256 } else { &RSA_PKCS1_SHA256 };
                let mut signature = vec![0; pair.public().modulus_len()];
                pair.sign(padding, &random, signed.as_bytes(), &mut signature).expect("it signs");
                signature
            }
            Pair::Ec(pair) => pair.sign(&random, signed.as_bytes()).expect("it signs").as_ref().to_vec(),
            Pair::Ed(pair) => pair.sign(signed.as_bytes()).as_ref().to_vec(),
        };
        format!("{signed}.{}", encoded(signature))
    }
}

fn rsa() -> Option<RsaKeyPair> {
    #[expect(clippy::disallowed_methods, reason = "the library that signs does not make such keys")]
    let made = std::process::Command::new("openssl")
        .args(["genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-outform", "DER"])
        .output()
        .ok()
        .filter(|made| made.status.success())?;
    // Versions of openssl differ in which of the two forms they write.
    let pair = RsaKeyPair::from_pkcs8(&made.stdout).or_else(|_| RsaKeyPair::from_der(&made.stdout));
    Some(pair.expect("openssl makes such keys"))
}

/// Claims that are good for five minutes.
pub(crate) fn claims(issuer: &str, user: &str) -> Value {
    let now = seconds();
    json!({ "iss": issuer, "sub": user, "aud": "cubicle", "iat": now, "exp": now + 300 })
}

pub(crate) fn seconds() -> i64 {
    #[expect(clippy::disallowed_methods, reason = "an issuer has a clock of its own")]
    let now = std::time::SystemTime::now();
    let since = now.duration_since(std::time::UNIX_EPOCH).expect("it is after 1970");
    i64::try_from(since.as_secs()).expect("it is before the end of time")
}

/// The same claims with some of them replaced; null removes one.
pub(crate) fn changed(claims: &Value, changes: &Value) -> Value {
    let mut all = claims.clone();
    for (name, value) in changes.as_object().expect("changes are an object") {
        match value {
            Value::Null => drop(all.as_object_mut().expect("claims are an object").remove(name)),
            value => all[name] = value.clone(),
        }
    }
    all
}

/// The HTTP side of it.
pub(crate) struct Issuer {
    at: SocketAddr,
    documents: Arc<Mutex<BTreeMap<String, String>>>,
    asked_for_keys: Arc<AtomicUsize>,
    stopping: Arc<AtomicBool>,
    serving: Option<JoinHandle<()>>,
}

impl Issuer {
    pub(crate) fn start(keys: &[&SigningKey]) -> Self {
        Self::start_at("127.0.0.1:0".parse().expect("an address"), keys)
    }

    pub(crate) fn start_at(at: SocketAddr, keys: &[&SigningKey]) -> Self {
        let listener = TcpListener::bind(at).expect("loopback has room");
        let mut issuer = Self {
            at: listener.local_addr().expect("it listens"),
            documents: Arc::default(),
            asked_for_keys: Arc::default(),
            stopping: Arc::default(),
            serving: None,
        };
        let description = json!({ "issuer": issuer.name(), "jwks_uri": issuer.jwks_url() });
        issuer.put("/.well-known/openid-configuration", &description);
        issuer.publish(keys);
        let (documents, stopping) = (Arc::clone(&issuer.documents), Arc::clone(&issuer.stopping));
        let asked = Arc::clone(&issuer.asked_for_keys);
        issuer.serving = Some(std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stopping.load(Ordering::SeqCst) {
                    return;
                }
                // Whoever asks may hang up at any time.
                _ = stream.and_then(|stream| answer(stream, &documents, &asked));
            }
        }));
        issuer
    }

    /// What it writes into its tokens.
    pub(crate) fn name(&self) -> String {
        format!("http://{}", self.at)
    }

    pub(crate) fn jwks_url(&self) -> String {
        format!("http://{}/keys", self.at)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.at
    }

    /// From now on it has these keys and no others.
    pub(crate) fn publish(&self, keys: &[&SigningKey]) {
        let keys: Vec<_> = keys.iter().map(|key| key.published()).collect();
        self.publish_as(&json!({ "keys": keys }));
    }

    pub(crate) fn publish_as(&self, set: &Value) {
        self.put("/keys", set);
    }

    fn put(&self, path: &str, document: &Value) {
        self.documents.lock().expect("nobody panics with it").insert(path.to_owned(), document.to_string());
    }

    pub(crate) fn asked_for_keys(&self) -> usize {
        self.asked_for_keys.load(Ordering::SeqCst)
    }
}

fn answer(
    mut stream: TcpStream,
    documents: &Mutex<BTreeMap<String, String>>,
    asked: &AtomicUsize,
) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    let path = request.split(' ').nth(1).unwrap_or_default();
    if path == "/keys" {
        asked.fetch_add(1, Ordering::SeqCst);
    }
    let document = documents.lock().expect("nobody panics with it").get(path).cloned();
    let (status, body) = document.map_or(("404 Not Found", String::new()), |document| ("200 OK", document));
    write!(stream, "HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

impl Drop for Issuer {
    /// From now on nobody answers at its address.
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::SeqCst);
        _ = TcpStream::connect(self.at);
        if let Some(serving) = self.serving.take() {
            serving.join().expect("the issuer ends well");
        }
    }
}
