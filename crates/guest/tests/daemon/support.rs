//! A real `sandboxd` in a temporary directory, and the plainest client that can talk to it.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cubicle_guest::hello::{self, Key, Nonce};
pub(crate) use cubicle_guest::journal::Kind;
use cubicle_guest::journal::Reader;
use cubicle_guest::journal::record;
use cubicle_model::{ExecId, SandboxId};
use serde_json::Value;

/// Bounds every wait; nothing that works comes near it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Sandbox {
    daemon: Child,
    pub(crate) directory: tempfile::TempDir,
    id: SandboxId,
    key: Key,
}

pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: Kind,
    pub(crate) seq: u64,
    pub(crate) exec: u32,
    pub(crate) stream_offset: u64,
    pub(crate) payload: Vec<u8>,
}

pub(crate) struct Client {
    pub(crate) stream: BufReader<UnixStream>,
}

impl Sandbox {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    pub(crate) fn start_with(arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let id = SandboxId::from_random([7; 16]);
        std::fs::write(directory.path().join("key"), [9; 32]).unwrap();
        Self::start_in(directory, id, arguments)
    }

    fn start_in(directory: tempfile::TempDir, id: SandboxId, arguments: &[&str]) -> Self {
        let path = |name: &str| directory.path().join(name);
        let socket = path("socket");
        let _ = std::fs::remove_file(&socket);
        #[expect(clippy::disallowed_methods, reason = "the test needs the daemon as a process")]
        let daemon = Command::new(env!("CARGO_BIN_EXE_sandboxd"))
            .args(["--listen", &format!("unix:{}", socket.display()), "--sandbox", &id.to_string()])
            .args(["--key-file".as_ref(), path("key").as_os_str()])
            .args(["--journal".as_ref(), path("journal").as_os_str()])
            .args(arguments)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let sandbox = Self { daemon, directory, id, key: Key::new([9; 32]) };
        wait_until("the daemon listens", || UnixStream::connect(&socket).is_ok());
        sandbox
    }

    /// Kills the daemon at once and starts another one on the same journal.
    pub(crate) fn restart(mut self) -> Self {
        self.daemon.kill().unwrap();
        self.daemon.wait().unwrap();
        let directory = std::mem::replace(&mut self.directory, tempfile::tempdir().unwrap());
        let id = self.id;
        drop(self);
        Self::start_in(directory, id, &[])
    }

    pub(crate) fn journal_path(&self) -> PathBuf {
        self.directory.path().join("journal")
    }

    pub(crate) fn daemon_pid(&self) -> u32 {
        self.daemon.id()
    }

    pub(crate) fn wait_for_end(&mut self) -> Option<i32> {
        let mut code = None;
        wait_until("the daemon ends", || {
            code = self.daemon.try_wait().unwrap();
            code.is_some()
        });
        code.and_then(|status| status.code())
    }

    pub(crate) fn raw(&self) -> UnixStream {
        let stream = UnixStream::connect(self.directory.path().join("socket")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    pub(crate) fn connect(&self) -> Client {
        self.connect_and_send(b"")
    }

    /// Sends the first request together with the hello.
    pub(crate) fn connect_and_send(&self, request: &[u8]) -> Client {
        let mut stream = BufReader::new(self.raw());
        let mut line = Vec::new();
        stream.read_until(b'\n', &mut line).unwrap();
        let greeting = hello::parse_server_hello(&line).unwrap();
        let nonce = Nonce([3; 32]);
        let ours = hello::introduce(&greeting, self.id, &self.key, nonce).unwrap();
        stream.get_mut().write_all(&[&hello::line(&ours), request].concat()).unwrap();
        line.clear();
        stream.read_until(b'\n', &mut line).unwrap();
        let answer = hello::parse_server_answer(&line).unwrap();
        hello::accept(answer, self.id, &self.key, greeting.nonce, nonce).unwrap();
        Client { stream }
    }

    /// One request on a connection of its own.
    pub(crate) fn request(&self, method: &str, target: &str, body: &[u8]) -> Reply {
        self.connect().request(method, target, "", body)
    }

    pub(crate) fn json(&self, method: &str, target: &str, body: &Value) -> Reply {
        self.request(method, target, body.to_string().as_bytes())
    }

    /// Runs something to its end and gives all its records.
    pub(crate) fn run(&self, spec: &Value) -> Vec<Frame> {
        let reply = self.connect().request(
            "POST",
            "/exec",
            "Accept: application/x-cubicle-journal\r\n",
            spec.to_string().as_bytes(),
        );
        assert_eq!(reply.status, 200, "{}", String::from_utf8_lossy(&reply.body));
        frames(&reply.body)
    }

    pub(crate) fn shell(&self, script: &str) -> Vec<Frame> {
        self.run(&serde_json::json!({ "command": script, "cwd": "/" }))
    }

    /// Starts something and leaves it.
    pub(crate) fn background(&self, spec: &Value) -> ExecId {
        let reply = self.json("POST", "/exec?background=true", spec);
        assert_eq!(reply.status, 201, "{}", String::from_utf8_lossy(&reply.body));
        serde_json::from_value(reply.value()["exec_id"].clone()).unwrap()
    }

    pub(crate) fn status(&self, id: ExecId) -> Value {
        self.request("GET", &format!("/exec/{id}?wait=false"), b"").value()
    }

    pub(crate) fn wait_for(&self, id: ExecId, moment: &str) -> Value {
        self.request("GET", &format!("/exec/{id}?wait={moment}"), b"").value()
    }

    /// The journal as it is on disk, read as the host reads it.
    pub(crate) fn journal(&self) -> Vec<Frame> {
        let reader = Reader::new(std::fs::File::open(self.journal_path()).unwrap());
        reader
            .map(|entry| {
                let entry = entry.unwrap();
                Frame {
                    kind: entry.header.kind,
                    seq: entry.header.seq,
                    exec: entry.header.exec,
                    stream_offset: entry.header.stream_offset,
                    payload: entry.payload,
                }
            })
            .collect()
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // SIGTERM lets it end what it started.
        let _ = cubicle_sys::signal::send(self.daemon.id() as i32, 15);
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if !matches!(self.daemon.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

impl Client {
    pub(crate) fn send(&mut self, method: &str, target: &str, headers: &str, body: &[u8]) {
        let mut request = format!(
            "{method} {target} HTTP/1.1\r\nHost: sandbox\r\nContent-Length: {}\r\n{headers}\r\n",
            body.len()
        )
        .into_bytes();
        request.extend_from_slice(body);
        self.stream.get_mut().write_all(&request).unwrap();
    }

    pub(crate) fn request(&mut self, method: &str, target: &str, headers: &str, body: &[u8]) -> Reply {
        self.send(method, target, headers, body);
        self.reply()
    }

    pub(crate) fn reply_head(&mut self) -> (u16, String) {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert_ne!(self.stream.read_line(&mut head).unwrap(), 0, "closed after {head:?}");
        }
        (head[9..12].parse().unwrap(), head)
    }

    pub(crate) fn reply(&mut self) -> Reply {
        let (status, head) = self.reply_head();
        let mut body = Vec::new();
        let lower = head.to_ascii_lowercase();
        if lower.contains("transfer-encoding: chunked") {
            while let Some(chunk) = self.chunk() {
                body.extend_from_slice(&chunk);
            }
        } else if let Some((_, rest)) = lower.split_once("content-length: ") {
            body = vec![0; rest.lines().next().unwrap().parse().unwrap()];
            self.stream.read_exact(&mut body).unwrap();
        }
        Reply { status, head, body }
    }

    pub(crate) fn chunk(&mut self) -> Option<Vec<u8>> {
        let mut line = String::new();
        assert_ne!(self.stream.read_line(&mut line).unwrap(), 0, "closed in the middle of a body");
        let len = usize::from_str_radix(line.trim_end(), 16).unwrap();
        let mut chunk = vec![0; len + 2];
        self.stream.read_exact(&mut chunk).unwrap();
        chunk.truncate(len);
        (len > 0).then_some(chunk)
    }
}

impl Reply {
    pub(crate) fn value(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&self.body)))
    }

    pub(crate) fn code(&self) -> String {
        self.value()["error"]["code"].as_str().unwrap_or_default().to_owned()
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }
}

pub(crate) fn frames(mut bytes: &[u8]) -> Vec<Frame> {
    let mut frames = Vec::new();
    while !bytes.is_empty() {
        let (record, len) = record::decode(bytes).unwrap().expect("a stream has whole records");
        frames.push(Frame {
            kind: record.header.kind,
            seq: record.header.seq,
            exec: record.header.exec,
            stream_offset: record.header.stream_offset,
            payload: record.payload.to_vec(),
        });
        bytes = &bytes[len..];
    }
    frames
}

pub(crate) fn output(frames: &[Frame], kind: Kind) -> Vec<u8> {
    frames.iter().filter(|frame| frame.kind == kind).flat_map(|frame| frame.payload.clone()).collect()
}

pub(crate) fn stdout(frames: &[Frame]) -> String {
    String::from_utf8(output(frames, Kind::Stdout)).unwrap()
}

/// The payload of the only record of a kind.
pub(crate) fn payload(frames: &[Frame], kind: Kind) -> Value {
    let found: Vec<&Frame> = frames.iter().filter(|frame| frame.kind == kind).collect();
    assert_eq!(found.len(), 1, "{kind:?} in {frames:?}");
    serde_json::from_slice(&found[0].payload).unwrap()
}

pub(crate) fn exit(frames: &[Frame]) -> Value {
    payload(frames, Kind::Exit)["exit"].clone()
}

pub(crate) fn wait_until(what: &str, mut happened: impl FnMut() -> bool) {
    let start = Instant::now();
    while !happened() {
        assert!(start.elapsed() < PATIENCE, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Whether a process is there and not a zombie.
pub(crate) fn is_alive(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit_once(") ").unwrap().1.starts_with(['Z', 'X']))
}
