//! The guest of a fake sandbox: opens connections as `sandboxd` does, and answers from memory. Commands have no
//! processes; a script or a few built-in commands say what they print and how they end.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use cubicle_guest::client::Listening;
use cubicle_guest::hello::{self, Key, Nonce};
use cubicle_guest::journal::record::{Draft, Kind, encode_header};
use cubicle_guest::wire;
use cubicle_model::{Command, ExecId, ExecSpec, Exit, Mount, SandboxId};
use serde::Serialize;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;

use super::{Sandbox, Shared};

const LONGEST_HEAD: usize = 16 * 1024;
const LONGEST_BODY: usize = 4 * 1024 * 1024;

/// What a command does: `None` leaves it to the built-in `true`, `false`, `echo`, `cat` and `printenv`.
pub type Script = Arc<dyn Fn(&View, &ExecSpec) -> Option<Scripted> + Send + Sync>;

/// What a command can see of its sandbox.
#[derive(Debug, Clone)]
pub struct View {
    pub sandbox: SandboxId,
    pub env: BTreeMap<String, String>,
    pub files: BTreeMap<String, Vec<u8>>,
    pub mounts: Vec<Mount>,
}

/// What a command printed and how it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scripted {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub exit: Exit,
}

impl Scripted {
    pub fn prints(stdout: impl Into<Vec<u8>>) -> Self {
        Self { stdout: stdout.into(), stderr: vec![], exit: Exit::Code(0) }
    }

    pub fn ends(exit: Exit) -> Self {
        Self { stdout: vec![], stderr: vec![], exit }
    }
}

/// What the guest remembers of its execs.
#[derive(Debug)]
pub(super) struct Execs {
    records: BTreeMap<ExecId, Vec<u8>>,
    next_seq: u64,
}

impl Default for Execs {
    fn default() -> Self {
        Self { records: BTreeMap::new(), next_seq: 1 }
    }
}

impl Execs {
    /// The file that a real guest would have: all records in the order of their seq.
    pub(super) fn journal(&self) -> Vec<u8> {
        let first_seq = |records: &Vec<u8>| {
            cubicle_guest::journal::record::peek(records).ok().flatten().map_or(0, |header| header.seq)
        };
        let mut execs: Vec<&Vec<u8>> = self.records.values().collect();
        execs.sort_by_key(|records| first_seq(records));
        let header = cubicle_guest::journal::record::FILE_HEADER;
        header.into_iter().chain(execs.into_iter().flatten().copied()).collect()
    }
}

/// Serves one connection until the client hangs up or the sandbox ends.
pub(super) async fn serve(
    stream: UnixStream,
    id: SandboxId,
    key: Key,
    host: Weak<Shared>,
    mut alive: watch::Receiver<bool>,
) {
    tokio::select! {
        // The sandbox ended, and its connections end with it, whatever they were doing.
        _ = alive.wait_for(|alive| !*alive) => {}
        // The client hung up or broke the protocol; a daemon closes the connection and goes on.
        _ = converse(stream, id, &key, &host) => {}
    }
}

async fn converse(stream: UnixStream, id: SandboxId, key: &Key, host: &Weak<Shared>) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    // Nothing here is secret, so the nonce need not be random.
    let nonce = Nonce([7; 32]);
    stream.write_all(&hello::line(&hello::greet(id, &["exec", "files", "ports"], nonce))).await?;
    let mut line = Vec::new();
    (&mut stream).take(hello::LONGEST_LINE as u64).read_until(b'\n', &mut line).await?;
    let answer = hello::parse_client_hello(&line)
        .and_then(|client| hello::admit(&client, id, key, nonce))
        .map_err(|error| (error.code(), error.to_string()));
    match answer {
        Ok(answer) => stream.write_all(&hello::line(&answer)).await?,
        Err((code, message)) => {
            let refusal = hello::ServerAnswer::Error(hello::Refusal { code: code.into(), message });
            return stream.write_all(&hello::line(&refusal)).await;
        }
    }
    while let Some(request) = read_request(&mut stream).await? {
        let Some(shared) = host.upgrade() else { return Ok(()) };
        match answer_to(&shared, id, &request) {
            Answer::Plain { status, media, body } => {
                let head = format!(
                    "HTTP/1.1 {status}\r\nContent-Type: {media}\r\nContent-Length: {}\r\n\r\n",
                    body.len()
                );
                stream.write_all(&[head.as_bytes(), &body].concat()).await?;
            }
            Answer::Records(records) => {
                let mut all = format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: {}\r\nTransfer-Encoding: chunked\r\n\r\n",
                    wire::JOURNAL
                )
                .into_bytes();
                if !records.is_empty() {
                    all.extend_from_slice(format!("{:x}\r\n", records.len()).as_bytes());
                    all.extend_from_slice(&records);
                    all.extend_from_slice(b"\r\n");
                }
                all.extend_from_slice(b"0\r\n\r\n");
                stream.write_all(&all).await?;
            }
            Answer::Join(address) => {
                let mut inside = TcpStream::connect(address).await?;
                stream
                    .write_all(
                        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n",
                    )
                    .await?;
                tokio::io::copy_bidirectional(&mut stream, &mut inside).await?;
                return Ok(());
            }
        }
    }
    Ok(())
}

struct Request {
    method: String,
    path: String,
    query: String,
    body: Vec<u8>,
}

async fn read_request(stream: &mut BufReader<UnixStream>) -> io::Result<Option<Request>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let room = (LONGEST_HEAD - head.len().min(LONGEST_HEAD)) as u64;
        if stream.take(room).read_until(b'\n', &mut head).await? == 0 {
            return Ok(None);
        }
    }
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut parsed = httparse::Request::new(&mut headers);
    let bad = || io::Error::from(io::ErrorKind::InvalidData);
    if !parsed.parse(&head).map_err(|_| bad())?.is_complete() {
        return Err(bad());
    }
    let length = parsed.headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-length"));
    let length = match length {
        Some(header) => {
            std::str::from_utf8(header.value).ok().and_then(|text| text.parse().ok()).ok_or_else(bad)?
        }
        None => 0,
    };
    if length > LONGEST_BODY {
        return Err(bad());
    }
    let target = parsed.path.unwrap_or_default();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let (method, path, query) =
        (parsed.method.unwrap_or_default().to_owned(), path.to_owned(), query.to_owned());
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    Ok(Some(Request { method, path, query, body }))
}

enum Answer {
    Plain { status: &'static str, media: &'static str, body: Vec<u8> },
    Records(Vec<u8>),
    Join(std::net::SocketAddr),
}

impl Answer {
    fn json(value: &impl Serialize) -> Self {
        Self::Plain { status: "200 OK", media: wire::JSON, body: json(value) }
    }

    fn refuse(status: &'static str, code: &str, message: impl Into<String>) -> Self {
        let error = wire::ErrorDetail { code: code.into(), message: message.into(), hint: None };
        Self::Plain { status, media: wire::JSON, body: json(&wire::ErrorBody { error }) }
    }
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("wire types have only string keys")
}

fn answer_to(shared: &Shared, id: SandboxId, request: &Request) -> Answer {
    let now = (shared.clock)();
    let script = shared.script.clone();
    shared
        .with(id, |sandbox| Ok(route(sandbox, now, &script, request)))
        .unwrap_or_else(|fault| Answer::refuse("404 Not Found", fault.kind().code(), fault.message()))
}

fn route(sandbox: &mut Sandbox, now: Duration, script: &Script, request: &Request) -> Answer {
    let segments: Vec<&str> = request.path.trim_start_matches('/').splitn(2, '/').collect();
    let bad = |error: serde_json::Error| Answer::refuse("400 Bad Request", "invalid", error.to_string());
    match (request.method.as_str(), segments.as_slice()) {
        ("GET", ["health"]) => Answer::json(&wire::Health {
            status: "healthy".into(),
            state: wire::Activity::Idle,
            sandbox: sandbox.placement.id,
            environments: Vec::new(),
            capacity: 0,
            current_load: 0,
            uptime_seconds: 0,
            execs_running: 0,
            deadline_seconds: sandbox.deadline.saturating_sub(now).as_secs(),
            connections: 1,
            journal: wire::JournalState {
                next_seq: sandbox.execs.next_seq,
                bytes: 0,
                limit: sandbox.limits.journal.value,
            },
        }),
        ("GET", ["receipt"]) => Answer::json(&sandbox.seen().receipt),
        ("POST", ["exec"]) => match serde_json::from_slice(&request.body) {
            Ok(spec) => exec(sandbox, now, script, &spec),
            Err(error) => bad(error),
        },
        ("GET", ["exec", exec]) => {
            match exec.parse().ok().and_then(|exec| sandbox.execs.records.get(&exec)) {
                Some(records) => Answer::Records(from_seq(records, &request.query).to_vec()),
                None => Answer::refuse("404 Not Found", "not_found", "there is no such exec"),
            }
        }
        ("POST", ["execute"]) => {
            Answer::refuse("503 Service Unavailable", "unavailable", "the fake guest runs no code")
        }
        ("POST", ["bind"]) => match serde_json::from_slice::<wire::BindRequest>(&request.body) {
            Ok(late) => {
                sandbox.env.extend(late.env);
                Answer::json(&serde_json::json!({}))
            }
            Err(error) => bad(error),
        },
        ("POST", ["deadline"]) => match serde_json::from_slice::<wire::DeadlineRequest>(&request.body) {
            Ok(wire::DeadlineRequest { seconds }) => {
                sandbox.deadline = now + Duration::from_secs(seconds);
                Answer::json(&wire::DeadlineRequest { seconds })
            }
            Err(error) => bad(error),
        },
        ("PUT", ["files", path]) => {
            sandbox.files.insert(format!("/{path}"), request.body.clone());
            Answer::json(&serde_json::json!({}))
        }
        ("GET", ["files", path]) => match sandbox.files.get(&format!("/{path}")) {
            Some(bytes) => {
                Answer::Plain { status: "200 OK", media: "application/octet-stream", body: bytes.clone() }
            }
            None => Answer::refuse("404 Not Found", "not_found", format!("there is no file /{path}")),
        },
        ("GET", ["ports", port]) => match port.parse().ok().and_then(|port| sandbox.stand_in(port)) {
            Some(address) => Answer::Join(address),
            None => {
                Answer::refuse("502 Bad Gateway", "nobody_listens", format!("nobody listens on port {port}"))
            }
        },
        _ => Answer::refuse("404 Not Found", "not_found", "the fake guest does not know this route"),
    }
}

impl Sandbox {
    /// Where the listener on this port is really to be found.
    fn stand_in(&self, port: u16) -> Option<std::net::SocketAddr> {
        self.listeners.iter().find_map(|(listener, kept)| match kept {
            Listening::Tcp(kept) if listener.port == port => kept.local_addr().ok(),
            _ => None,
        })
    }
}

fn exec(sandbox: &mut Sandbox, now: Duration, script: &Script, spec: &ExecSpec) -> Answer {
    let number = u32::try_from(sandbox.execs.records.len() + 1).unwrap_or(u32::MAX);
    let fresh = || ExecId::from_random(u128::from(number).to_be_bytes());
    let exec_id = spec.exec_id.unwrap_or_else(fresh);
    if let Some(records) = sandbox.execs.records.get(&exec_id) {
        return Answer::Records(records.clone());
    }
    let mut env = sandbox.env.clone();
    env.extend(spec.env.clone());
    let view = View {
        sandbox: sandbox.placement.id,
        env,
        files: sandbox.files.clone(),
        mounts: sandbox.mounts.clone(),
    };
    let Some(outcome) = script(&view, spec).or_else(|| builtin(&view, spec)) else {
        return Answer::refuse(
            "422 Unprocessable Entity",
            "command_not_found",
            "the fake guest has no such command",
        );
    };
    let totals =
        wire::StreamBytes { stdout: outcome.stdout.len() as u64, stderr: outcome.stderr.len() as u64 };
    let start = wire::Start {
        exec_id,
        command: spec.command.clone(),
        command_shortened: false,
        cwd: spec.cwd.clone().unwrap_or_else(|| "/workspace".into()),
        tty: spec.tty.is_some(),
        pid: 2,
        tool_name: None,
        warm: false,
    };
    let timed_out = outcome.exit == Exit::TimedOut;
    let exited = wire::Exited { exit: outcome.exit, timed_out, user_us: 0, sys_us: 0, max_rss_kb: 0 };
    let drafts = [
        (Kind::Start, json(&start)),
        (Kind::Stdout, outcome.stdout),
        (Kind::Stderr, outcome.stderr),
        (Kind::Exit, json(&exited)),
        (Kind::Eof, json(&totals)),
    ];
    let mut records = Vec::new();
    for (kind, payload) in drafts {
        if payload.is_empty() {
            continue;
        }
        let time_us = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
        let draft = Draft { kind, exec: number, time_us, stream_offset: 0, payload: &payload };
        records.extend_from_slice(&encode_header(&draft, sandbox.execs.next_seq));
        records.extend_from_slice(&payload);
        sandbox.execs.next_seq += 1;
    }
    sandbox.execs.records.insert(exec_id, records.clone());
    Answer::Records(records)
}

/// The records from the seq that the query asks for.
fn from_seq<'a>(records: &'a [u8], query: &str) -> &'a [u8] {
    let wanted =
        query.split('&').find_map(|pair| pair.strip_prefix("from=")).and_then(|seq| seq.parse().ok());
    let mut rest = records;
    while let Ok(Some((record, length))) = cubicle_guest::journal::record::decode(rest) {
        if record.header.seq >= wanted.unwrap_or(0) {
            break;
        }
        rest = &rest[length..];
    }
    rest
}

fn builtin(view: &View, spec: &ExecSpec) -> Option<Scripted> {
    let words: Vec<&str> = match &spec.command {
        Command::Shell(text) => text.split_whitespace().collect(),
        Command::Argv(argv) => argv.iter().map(String::as_str).collect(),
    };
    let (program, arguments) = words.split_first()?;
    let found = |bytes: Option<Vec<u8>>| bytes.map_or(Scripted::ends(Exit::Code(1)), Scripted::prints);
    Some(match *program {
        "true" => Scripted::ends(Exit::Code(0)),
        "false" => Scripted::ends(Exit::Code(1)),
        "echo" => Scripted::prints(format!("{}\n", arguments.join(" "))),
        "printenv" => found(view.env.get(*arguments.first()?).map(|value| format!("{value}\n").into_bytes())),
        "cat" => found(read(view, arguments.first()?)),
        _ => return None,
    })
}

/// A file that was bound, or one of a mounted directory of the host.
fn read(view: &View, path: &str) -> Option<Vec<u8>> {
    view.files.get(path).cloned().or_else(|| {
        view.mounts.iter().find_map(|mount| {
            let below = Path::new(path).strip_prefix(&mount.target).ok()?;
            std::fs::read(mount.source.join(below)).ok()
        })
    })
}
