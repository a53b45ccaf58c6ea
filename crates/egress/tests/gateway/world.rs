//! A gateway with one or two sandboxes, in a world that is made up.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use cubicle_egress::{AccessLine, Authority, Dial, Gateway, Limits, Listeners, Names, Outside, Terms};
use cubicle_model::egress::{Bill, Bundles, HostName, OwnAddress, OwnAddresses, Policy, Ruleset};
use cubicle_model::{SandboxId, Timestamp};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::origin::{Certificate, Issuing, Origin};

/// No test waits longer than this for anything.
pub(crate) const BOUND: Duration = Duration::from_secs(20);
/// The address of the control plane.
pub(crate) const CONTROL_PLANE: &str = "198.41.0.4:7070";
/// Another address of the host on which the gateway runs, and a port at which the control plane is on every one of them.
pub(crate) const HERE: &str = "198.41.0.9";
pub(crate) const EVERYWHERE: u16 = 7171;
/// Now is in the middle of 2025.
const NOW: i64 = 1_750_000_000;

pub(crate) struct World {
    pub(crate) gateway: Gateway,
    pub(crate) sandbox: SandboxId,
    pub(crate) proxy: SocketAddr,
    pub(crate) dns: SocketAddr,
    pub(crate) forward: SocketAddr,
    pub(crate) names: Arc<FakeNames>,
    pub(crate) dial: Arc<FakeDial>,
    pub(crate) log: Arc<Mutex<Vec<String>>>,
    pub(crate) issuing: Issuing,
    authority_pem: String,
}

/// A test that changes the limits begins with these.
pub(crate) fn limits() -> Limits {
    Limits { head_deadline: BOUND, connect_deadline: BOUND, ..Limits::default() }
}

impl World {
    pub(crate) async fn new(policy: &str) -> Self {
        Self::with(limits(), Terms::of(ruleset(policy))).await
    }

    pub(crate) async fn with(limits: Limits, terms: Terms) -> Self {
        let world = Self::empty(limits);
        let (listeners, proxy, dns, forward) = listeners();
        world.gateway.attach(world.sandbox, listeners, terms).unwrap();
        Self { proxy, dns, forward, ..world }
    }

    /// A gateway without a sandbox.
    pub(crate) fn empty(limits: Limits) -> Self {
        let issuing = Issuing::new("the outside");
        let mut roots = RootCertStore::empty();
        roots.add(issuing.root.clone()).unwrap();
        let (names, dial) = (Arc::new(FakeNames::default()), Arc::new(FakeDial::default()));
        let log = Arc::new(Mutex::new(Vec::new()));
        let lines = Arc::clone(&log);
        let outside = Outside {
            names: Arc::clone(&names) as Arc<dyn Names>,
            dial: Arc::clone(&dial) as Arc<dyn Dial>,
            roots: Arc::new(roots),
            clock: Arc::new(|| Timestamp::from_second(NOW).unwrap()),
            log: Some(Arc::new(move |line: &AccessLine| lines.lock().unwrap().push(line.to_string()))),
        };
        let files = Authority::generate(Timestamp::from_second(NOW).unwrap()).unwrap();
        let authority = Authority::load(&files).unwrap();
        let gateway = Gateway::new("cubicle-test", limits, outside, Some(authority)).unwrap();
        let sandbox = SandboxId::from_random([1; 16]);
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
        let (proxy, dns, forward) = (nowhere, nowhere, nowhere);
        Self {
            gateway,
            sandbox,
            proxy,
            dns,
            forward,
            names,
            dial,
            log,
            issuing,
            authority_pem: files.certificate_pem,
        }
    }

    /// Attaches another sandbox, and says where its proxy is.
    pub(crate) fn another(&self, number: u8, policy: &str) -> SocketAddr {
        let (listeners, proxy, _, _) = listeners();
        let sandbox = SandboxId::from_random([number; 16]);
        self.gateway.attach(sandbox, listeners, Terms::of(ruleset(policy))).unwrap();
        proxy
    }

    pub(crate) fn change(&self, policy: &str) {
        self.gateway.change(self.sandbox, Terms::of(ruleset(policy))).unwrap();
    }

    pub(crate) fn bill(&self) -> Bill {
        self.gateway.bill(self.sandbox).unwrap()
    }

    /// The rules by which attempts were denied, each once.
    pub(crate) fn denials(&self) -> Vec<String> {
        self.bill().denials.into_iter().map(|denial| format!("{}: {}", denial.target, denial.rule)).collect()
    }

    /// Puts an origin where the name leads to: `a.example:443` at a public address of its own.
    pub(crate) fn place(&self, place: &str, origin: &Origin) {
        let (name, port) = place.rsplit_once(':').unwrap();
        let address = self.names.public(name);
        self.dial.lead(SocketAddr::new(address, port.parse().unwrap()), origin.at);
    }

    pub(crate) fn certificate(&self, name: &str) -> Certificate {
        self.issuing.certificate(name)
    }

    pub(crate) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.proxy).await.unwrap()
    }

    /// Sends bytes to the proxy, and reads until it hangs up.
    pub(crate) async fn send(&self, bytes: impl AsRef<[u8]>) -> String {
        let mut stream = self.connect().await;
        stream.write_all(bytes.as_ref()).await.unwrap();
        read_to_end(&mut stream).await
    }

    /// A GET through the proxy, on a connection of its own.
    pub(crate) async fn get(&self, url: &str) -> String {
        let host = url.split('/').nth(2).unwrap();
        self.send(format!("GET {url} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")).await
    }

    /// A tunnel, or the answer that refused it.
    pub(crate) async fn tunnel(&self, to: &str) -> Result<TcpStream, String> {
        let mut stream = self.connect().await;
        stream.write_all(format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n").as_bytes()).await.unwrap();
        let head = read_head(&mut stream).await;
        if head.starts_with("HTTP/1.1 200 ") {
            Ok(stream)
        } else {
            Err(head + &read_to_end(&mut stream).await)
        }
    }

    /// TLS inside of a tunnel. The client trusts the outside and, when it is inspected, the gateway.
    pub(crate) async fn tls(
        &self,
        stream: TcpStream,
        name: &str,
        inspected: bool,
    ) -> io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        if inspected {
            roots.add(CertificateDer::from_pem_slice(self.authority_pem.as_bytes()).unwrap()).unwrap();
        } else {
            roots.add(self.issuing.root.clone()).unwrap();
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_details(provider, Arc::new(Clock))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        tokio::time::timeout(BOUND, connector.connect(name, stream)).await.expect("TLS ends in time")
    }

    /// Waits until something is so.
    pub(crate) async fn until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let waited = tokio::time::timeout(BOUND, async {
            while !is_so(self) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        waited.await.unwrap_or_else(|_| panic!("{what} did not come to be; bill: {:?}", self.bill()));
    }
}

#[derive(Debug)]
struct Clock;

impl rustls::time_provider::TimeProvider for Clock {
    fn current_time(&self) -> Option<rustls::pki_types::UnixTime> {
        Some(rustls::pki_types::UnixTime::since_unix_epoch(Duration::from_secs(NOW.unsigned_abs())))
    }
}

pub(crate) fn ruleset(policy: &str) -> Ruleset {
    let own: SocketAddr = CONTROL_PLANE.parse().unwrap();
    let own = OwnAddresses::new([
        OwnAddress { address: own.ip(), port: Some(own.port()) },
        OwnAddress { address: "0.0.0.0".parse().unwrap(), port: Some(EVERYWHERE) },
    ]);
    policy.parse::<Policy>().unwrap().resolve(&Bundles::default(), &own).unwrap()
}

fn listeners() -> (Listeners, SocketAddr, SocketAddr, SocketAddr) {
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    let forward = TcpListener::bind("0.0.0.0:0").unwrap();
    // Names are answered at one port of both kinds, which may be taken for one of them.
    let (udp, tcp) = (0..100)
        .find_map(|_| {
            let udp = UdpSocket::bind("127.0.0.1:0").ok()?;
            let tcp = TcpListener::bind(udp.local_addr().ok()?).ok()?;
            Some((udp, tcp))
        })
        .expect("a port is free for both kinds");
    let at = (proxy.local_addr().unwrap(), udp.local_addr().unwrap(), forward.local_addr().unwrap());
    (
        Listeners { proxy: vec![proxy], forward: vec![forward], dns_udp: vec![udp], dns_tcp: vec![tcp] },
        at.0,
        at.1,
        at.2,
    )
}

/// Names of the outside.
#[derive(Default)]
pub(crate) struct FakeNames {
    /// What a name leads to: one list per question, the last one for ever.
    known: Mutex<HashMap<String, Vec<Vec<IpAddr>>>>,
    asked: Mutex<Vec<String>>,
}

impl FakeNames {
    pub(crate) fn set(&self, name: &str, addresses: &[&str]) {
        self.sequence(name, &[addresses]);
    }

    pub(crate) fn sequence(&self, name: &str, answers: &[&[&str]]) {
        let parse = |addresses: &&[&str]| addresses.iter().map(|address| address.parse().unwrap()).collect();
        self.known.lock().unwrap().insert(name.to_owned(), answers.iter().map(parse).collect());
    }

    /// The public address of a name, made when it is first needed. An address is its own.
    fn public(&self, name: &str) -> IpAddr {
        if let Ok(address) = name.trim_matches(['[', ']']).parse() {
            return address;
        }
        let mut known = self.known.lock().unwrap();
        let next = u8::try_from(known.len()).unwrap();
        known.entry(name.to_owned()).or_insert_with(|| vec![vec![IpAddr::from([93, 184, 216, next])]])[0][0]
    }

    /// Every name that was asked for.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

#[async_trait]
impl Names for FakeNames {
    async fn resolve(&self, name: &HostName) -> io::Result<Vec<IpAddr>> {
        self.asked.lock().unwrap().push(name.to_string());
        let mut known = self.known.lock().unwrap();
        let answers = known.get_mut(name.as_str()).ok_or_else(|| io::Error::other("no such name"))?;
        Ok(if answers.len() > 1 { answers.remove(0) } else { answers[0].clone() })
    }
}

/// Connections to the outside, which lead to origins on this host.
#[derive(Default)]
pub(crate) struct FakeDial {
    leads: Mutex<HashMap<SocketAddr, Lead>>,
    dialed: Mutex<Vec<SocketAddr>>,
}

#[derive(Clone, Copy)]
enum Lead {
    To(SocketAddr),
    Nowhere,
    Failing(io::ErrorKind),
    OutOfDescriptors,
}

impl FakeDial {
    pub(crate) fn lead(&self, from: SocketAddr, to: SocketAddr) {
        self.leads.lock().unwrap().insert(from, Lead::To(to));
    }

    pub(crate) fn hang(&self, at: &str) {
        self.leads.lock().unwrap().insert(at.parse().unwrap(), Lead::Nowhere);
    }

    pub(crate) fn fail(&self, at: &str, kind: io::ErrorKind) {
        self.leads.lock().unwrap().insert(at.parse().unwrap(), Lead::Failing(kind));
    }

    pub(crate) fn exhaust(&self, at: &str) {
        self.leads.lock().unwrap().insert(at.parse().unwrap(), Lead::OutOfDescriptors);
    }

    /// Every address that a connection was tried to.
    pub(crate) fn dialed(&self) -> Vec<SocketAddr> {
        self.dialed.lock().unwrap().clone()
    }
}

#[async_trait]
impl Dial for FakeDial {
    async fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        self.dialed.lock().unwrap().push(to);
        let lead = self.leads.lock().unwrap().get(&to).copied();
        match lead {
            Some(Lead::To(origin)) => TcpStream::connect(origin).await,
            Some(Lead::Nowhere) => std::future::pending().await,
            Some(Lead::Failing(kind)) => Err(kind.into()),
            Some(Lead::OutOfDescriptors) => Err(io::Error::from_raw_os_error(24)),
            None => Err(io::ErrorKind::ConnectionRefused.into()),
        }
    }

    fn is_here(&self, address: IpAddr) -> bool {
        address.to_string() == HERE
    }
}

pub(crate) async fn read_to_end(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut bytes = Vec::new();
    // An end that is not announced is an end too.
    let _ = tokio::time::timeout(BOUND, stream.read_to_end(&mut bytes))
        .await
        .expect("the other side hangs up in time");
    String::from_utf8_lossy(&bytes).into_owned()
}

pub(crate) async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut bytes = Vec::new();
    let reading = async {
        while !bytes.ends_with(b"\r\n\r\n") {
            match stream.read_u8().await {
                Ok(byte) => bytes.push(byte),
                Err(_) => break,
            }
        }
    };
    tokio::time::timeout(BOUND, reading).await.expect("a head comes in time");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// An answer with its body, on a connection that stays open.
pub(crate) async fn read_answer(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let head = read_head(stream).await;
    let length = head
        .to_ascii_lowercase()
        .lines()
        .find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    let reading = stream.read_exact(&mut body);
    tokio::time::timeout(BOUND, reading).await.expect("a body comes in time").unwrap();
    head + &String::from_utf8_lossy(&body)
}

pub(crate) async fn exchange(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), request: &str) -> String {
    stream.write_all(request.as_bytes()).await.unwrap();
    read_answer(stream).await
}

/// Whether the other side has hung up.
pub(crate) async fn hangs_up(stream: &mut (impl AsyncRead + Unpin)) -> bool {
    let mut byte = [0];
    matches!(tokio::time::timeout(BOUND, stream.read(&mut byte)).await, Ok(Ok(0) | Err(_)))
}
