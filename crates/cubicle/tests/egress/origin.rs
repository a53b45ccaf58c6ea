//! The servers of the outside: they keep every byte that they are sent, and answer by path.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::sync::{Arc, Mutex};

use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// What ordinary answers say, so that whoever reads it has got through.
pub(crate) const REACHED: &str = "REACHED";
/// How many bytes `/flood` sends at least.
const FLOOD: usize = 100 << 20;

#[derive(Clone, Default)]
pub(crate) struct Outside(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    connections: Vec<Connection>,
    pages: HashMap<String, Page>,
    /// Below these only what is there is there.
    trees: Vec<String>,
    datagrams: Vec<String>,
}

struct Connection {
    at: String,
    said: Vec<u8>,
}

type Page = Arc<dyn Fn(&Request) -> Vec<u8> + Send + Sync>;

/// A request as it came.
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> &str {
        let found = self.head.lines().filter_map(|line| line.split_once(':'));
        found
            .into_iter()
            .find(|(own, _)| own.eq_ignore_ascii_case(name))
            .map_or("", |(_, value)| value.trim())
    }
}

/// An answer with a body.
pub(crate) fn answer(status: &str, headers: &str, body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n{headers}\r\n", body.len());
    [head.as_bytes(), body].concat()
}

impl Outside {
    /// HTTP on this address, within TLS where there is a certificate.
    pub(crate) fn web(&self, at: &str, tls: Option<Arc<ServerConfig>>) {
        self.listen(at, move |outside, index, stream| {
            // Handshakes fail, clients hang up, and some paths break the connection.
            let _ = match &tls {
                None => outside.serve(index, stream.try_clone()?, stream),
                Some(config) => {
                    let connection = ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)?;
                    let raw = stream.try_clone()?;
                    outside.serve(index, raw, StreamOwned::new(connection, stream))
                }
            };
            Ok(())
        });
    }

    /// Speaks first, and then sends back whatever comes.
    pub(crate) fn echo(&self, at: &str, greeting: &'static str) {
        self.listen(at, move |outside, index, mut stream| {
            stream.write_all(greeting.as_bytes())?;
            let mut bytes = [0; 4096];
            loop {
                let length = stream.read(&mut bytes)?;
                if length == 0 {
                    return Ok(());
                }
                outside.heard(index, &bytes[..length]);
                stream.write_all(&bytes[..length])?;
            }
        });
    }

    pub(crate) fn datagrams(&self, at: &str) {
        let socket = UdpSocket::bind(at).expect("the network is ours");
        let (outside, at) = (self.clone(), at.to_owned());
        std::thread::spawn(move || {
            let mut bytes = [0; 2048];
            while let Ok((length, from)) = socket.recv_from(&mut bytes) {
                let said = format!("{at}: {}", String::from_utf8_lossy(&bytes[..length]));
                outside.lock().datagrams.push(said);
                let _ = socket.send_to(REACHED.as_bytes(), from);
            }
        });
    }

    fn listen(
        &self,
        at: &str,
        serve: impl Fn(&Self, usize, TcpStream) -> io::Result<()> + Send + Sync + 'static,
    ) {
        let listener = TcpListener::bind(at).unwrap_or_else(|error| panic!("{at}: {error}"));
        let (outside, at, serve) = (self.clone(), at.to_owned(), Arc::new(serve));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let index = {
                    let mut state = outside.lock();
                    state.connections.push(Connection { at: at.clone(), said: Vec::new() });
                    state.connections.len() - 1
                };
                let (outside, serve) = (outside.clone(), Arc::clone(&serve));
                let thread = std::thread::Builder::new().stack_size(256 * 1024);
                thread.spawn(move || drop(serve(&outside, index, stream))).expect("a thread can be started");
            }
        });
    }

    /// What the path is answered with.
    pub(crate) fn page(&self, path: &str, page: impl Fn(&Request) -> Vec<u8> + Send + Sync + 'static) {
        self.lock().pages.insert(path.to_owned(), Arc::new(page));
    }

    /// A file, as it is.
    pub(crate) fn file(&self, path: &str, kind: &str, bytes: impl Into<Vec<u8>>) {
        let (headers, bytes) = (format!("content-type: {kind}\r\n"), bytes.into());
        self.page(path, move |_| answer("200 OK", &headers, &bytes));
    }

    /// Every file below a directory, by its path there.
    pub(crate) fn tree(&self, at: &str, directory: &Path) {
        self.lock().trees.push(at.to_owned());
        let mut left = vec![directory.to_owned()];
        while let Some(place) = left.pop() {
            for entry in std::fs::read_dir(&place).expect("the directory is ours").flatten() {
                let path = entry.path();
                if path.is_dir() {
                    left.push(path);
                    continue;
                }
                let below = path.strip_prefix(directory).expect("it is below").to_str().expect("UTF-8");
                let kind = match path.extension().and_then(|name| name.to_str()) {
                    Some("html") => "text/html",
                    Some("json") => "application/json",
                    _ => "application/octet-stream",
                };
                // An index stands for its directory.
                let below = below.trim_end_matches("index.html").trim_end_matches("index.json");
                let below = if kind == "application/json" { below.trim_end_matches('/') } else { below };
                self.file(&format!("{at}{below}"), kind, std::fs::read(&path).expect("the file is ours"));
            }
        }
    }

    /// What was said on connections to this address, or to any port of it.
    pub(crate) fn said_at(&self, at: &str) -> Vec<String> {
        let state = self.lock();
        let all_ports = format!("{at}:");
        let is_there = |own: &str| own == at || own.starts_with(&all_ports);
        let there = state.connections.iter().filter(|connection| is_there(&connection.at));
        there.map(|connection| String::from_utf8_lossy(&connection.said).into_owned()).collect()
    }

    /// Whether anybody outside was told this.
    pub(crate) fn heard_of(&self, text: &str) -> bool {
        let state = self.lock();
        let within = |said: &[u8]| said.windows(text.len()).any(|part| part == text.as_bytes());
        state.connections.iter().any(|connection| within(&connection.said))
            || state.datagrams.iter().any(|said| said.contains(text))
    }

    /// Begins anew, as if nobody had ever come.
    pub(crate) fn forget(&self) {
        let mut state = self.lock();
        state.datagrams.clear();
        state.connections.iter_mut().for_each(|connection| {
            connection.at.clear();
            connection.said.clear();
        });
    }

    pub(crate) fn received_datagrams(&self) -> Vec<String> {
        self.lock().datagrams.clone()
    }

    fn heard(&self, index: usize, bytes: &[u8]) {
        self.lock().connections[index].said.extend_from_slice(bytes);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().expect("nobody panics with it")
    }

    fn serve(&self, index: usize, raw: TcpStream, mut stream: impl Read + Write) -> io::Result<()> {
        let mut bytes = Vec::new();
        let mut piece = vec![0; 64 * 1024];
        loop {
            let Some((length, request)) = complete(&bytes) else {
                let length = stream.read(&mut piece)?;
                if length == 0 {
                    return Ok(());
                }
                self.heard(index, &piece[..length]);
                bytes.extend_from_slice(&piece[..length]);
                continue;
            };
            bytes.drain(..length);
            self.respond(&raw, &mut stream, &request)?;
            if request.header("connection").eq_ignore_ascii_case("close") {
                return Ok(());
            }
        }
    }

    fn respond(&self, raw: &TcpStream, stream: &mut impl Write, request: &Request) -> io::Result<()> {
        let (page, is_tree) = {
            let state = self.lock();
            let page = state.pages.get(&request.path).cloned();
            (page, state.trees.iter().any(|tree| request.path.starts_with(tree.as_str())))
        };
        match (page, request.path.as_str()) {
            (Some(page), _) => stream.write_all(&page(request))?,
            (None, _) if is_tree => stream.write_all(&answer("404 Not Found", "", "nothing is here"))?,
            // An error page that shows the visitor what he sent, as some do.
            (None, "/echo") => {
                let headers = format!("x-seen: {}\r\n", request.header("authorization"));
                let said = format!("you sent:\n{}\n{}", request.head, String::from_utf8_lossy(&request.body));
                stream.write_all(&answer("500 Broken", &headers, said))?;
            }
            (None, "/redirect") => {
                let to = format!("location: {}\r\n", request.query);
                stream.write_all(&answer("302 Found", &to, ""))?;
            }
            (None, "/garbage") => stream.write_all(b"\x00\x01 this is not HTTP\r\n\r\n")?,
            (None, "/hang") => {
                stream.flush()?;
                std::thread::park();
            }
            (None, "/reset") => {
                let linger = Some(std::time::Duration::ZERO);
                rustix::net::sockopt::set_socket_linger(raw, linger).map_err(io::Error::from)?;
                raw.shutdown(std::net::Shutdown::Read)?;
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            (None, "/half") => {
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nhalf")?;
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            (None, "/headers") => {
                stream.write_all(b"HTTP/1.1 200 OK\r\n")?;
                let line = format!("x-long: {}\r\n", "y".repeat(64 * 1024));
                for _ in 0..FLOOD / line.len() {
                    stream.write_all(line.as_bytes())?;
                }
                stream.write_all(b"\r\n")?;
            }
            (None, "/flood") => {
                stream.write_all(format!("HTTP/1.1 200 OK\r\ncontent-length: {FLOOD}\r\n\r\n").as_bytes())?;
                for _ in 0..FLOOD / (64 * 1024) {
                    stream.write_all(&[b'x'; 64 * 1024])?;
                }
            }
            (None, _) => {
                let said = format!("{REACHED} {} {}\n", request.method, request.path);
                stream.write_all(&answer("200 OK", "", said))?;
            }
        }
        stream.flush()
    }
}

/// The request at the front, when all of it is there, and its length.
fn complete(bytes: &[u8]) -> Option<(usize, Request)> {
    let head = bytes.windows(4).position(|part| part == b"\r\n\r\n")? + 4;
    let text = String::from_utf8_lossy(&bytes[..head]).into_owned();
    let target = text.split(' ').nth(1).unwrap_or("/");
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut request = Request {
        method: text.split(' ').next().unwrap_or_default().to_owned(),
        path: path.to_owned(),
        query: query.to_owned(),
        head: text.clone(),
        body: Vec::new(),
    };
    let length = if request.header("transfer-encoding").is_empty() {
        head + request.header("content-length").parse::<usize>().unwrap_or(0)
    } else {
        head + bytes[head..].windows(5).position(|part| part == b"0\r\n\r\n")? + 5
    };
    request.body = bytes.get(head..length)?.to_vec();
    Some((length, request))
}
