//! Servers that stand for the outside.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// An HTTP server that keeps what it was sent, byte by byte, and answers what it was told to.
#[derive(Clone)]
pub(crate) struct Origin {
    pub(crate) at: SocketAddr,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    requests: Vec<String>,
    connections: usize,
}

impl Origin {
    /// Answers every request with these bytes.
    pub(crate) async fn plain(answer: impl Into<Vec<u8>>) -> Self {
        let answer = answer.into();
        Self::start(None, move |_| answer.clone()).await
    }

    /// Answers by what it was sent.
    pub(crate) async fn answering(answer: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static) -> Self {
        Self::start(None, answer).await
    }

    pub(crate) async fn tls(
        certificate: Certificate,
        answer: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static,
    ) -> Self {
        Self::start(Some(certificate), answer).await
    }

    async fn start(
        certificate: Option<Certificate>,
        answer: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Seen::default()));
        let answer = Arc::new(answer);
        let tls = certificate.map(|certificate| TlsAcceptor::from(certificate.config()));
        let kept = Arc::clone(&seen);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                kept.lock().unwrap().connections += 1;
                let (kept, answer, tls) = (Arc::clone(&kept), Arc::clone(&answer), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        None => serve(stream, &kept, &*answer).await,
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                serve(stream, &kept, &*answer).await;
                            }
                        }
                    }
                });
            }
        });
        Self { at, seen }
    }

    pub(crate) fn requests(&self) -> Vec<String> {
        self.seen.lock().unwrap().requests.clone()
    }

    pub(crate) fn connections(&self) -> usize {
        self.seen.lock().unwrap().connections
    }
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    seen: &Mutex<Seen>,
    answer: &(dyn Fn(&str) -> Vec<u8> + Send + Sync),
) {
    let mut bytes = Vec::new();
    let mut piece = [0; 16 * 1024];
    loop {
        if let Some(length) = complete(&bytes) {
            let request = String::from_utf8_lossy(&bytes[..length]).into_owned();
            bytes.drain(..length);
            let answer = answer(&request);
            seen.lock().unwrap().requests.push(request);
            if stream.write_all(&answer).await.is_err() {
                return;
            }
            continue;
        }
        match stream.read(&mut piece).await {
            Ok(length) if length > 0 => bytes.extend_from_slice(&piece[..length]),
            _ => return,
        }
    }
}

/// The length of the request at the front, when all of it is there.
fn complete(bytes: &[u8]) -> Option<usize> {
    let head = bytes.windows(4).position(|part| part == b"\r\n\r\n")? + 4;
    let text = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase();
    if text.contains("transfer-encoding: chunked") {
        return bytes[head..].windows(5).position(|part| part == b"0\r\n\r\n").map(|end| head + end + 5);
    }
    let length =
        text.lines().find_map(|line| line.strip_prefix("content-length: ")?.trim().parse::<usize>().ok());
    let length = head + length.unwrap_or(0);
    (bytes.len() >= length).then_some(length)
}

/// An answer with a body.
pub(crate) fn ok(body: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// Whoever issues the certificates of the outside.
pub(crate) struct Issuing {
    issuer: Issuer<'static, KeyPair>,
    pub(crate) root: CertificateDer<'static>,
}

#[derive(Clone)]
pub(crate) struct Certificate {
    chain: Vec<CertificateDer<'static>>,
    key: Arc<Vec<u8>>,
}

impl Issuing {
    pub(crate) fn new(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root = params.self_signed(&key).unwrap().der().clone();
        Self { issuer: Issuer::new(params, key), root }
    }

    pub(crate) fn certificate(&self, name: &str) -> Certificate {
        self.valid(name, 2020, 2040)
    }

    pub(crate) fn valid(&self, name: &str, from: i32, until: i32) -> Certificate {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(from, 1, 1);
        params.not_after = rcgen::date_time_ymd(until, 1, 1);
        let leaf = params.signed_by(&key, &self.issuer).unwrap();
        Certificate { chain: vec![leaf.der().clone()], key: Arc::new(key.serialize_der()) }
    }
}

impl Certificate {
    /// For origins that a test writes by itself.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.config())
    }

    fn config(&self) -> Arc<rustls::ServerConfig> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let key = PrivateKeyDer::try_from(self.key.to_vec()).unwrap();
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(self.chain.clone(), key)
            .unwrap();
        Arc::new(config)
    }
}
