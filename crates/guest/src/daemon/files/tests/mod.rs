//! The routes over a temporary directory that stands for the sandbox's root.

mod archives;
mod paths;
mod producing;
mod reading;
mod tools;
mod watching;
mod writing;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use rustix::fs::{Mode, OFlags};
use tempfile::TempDir;

use super::root::Root;
use super::{KeepAlive, Request, serve_in};

/// A directory that holds a `root` and, beside it, something that must never be reached from there.
struct World {
    outside: TempDir,
    root: Root,
}

struct Answer {
    status: u16,
    head: String,
    body: Vec<u8>,
    keep_alive: Option<KeepAlive>,
}

impl Answer {
    fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&self.body)))
    }

    /// The code of a refusal, or nothing.
    fn code(&self) -> String {
        match self.status {
            200..400 => String::new(),
            _ => self.json()["error"]["code"].as_str().unwrap().to_owned(),
        }
    }

    fn message(&self) -> String {
        self.json()["error"]["message"].as_str().unwrap().to_owned()
    }
}

impl World {
    fn new() -> Self {
        let outside = tempfile::tempdir().unwrap();
        for directory in
            ["root/workspace", "root/proc/self", "root/sys", "root/dev/shm", "root/tmp", "secrets"]
        {
            std::fs::create_dir_all(outside.path().join(directory)).unwrap();
        }
        std::fs::write(outside.path().join("secrets/key"), "secret").unwrap();
        std::fs::write(outside.path().join("root/proc/self/environ"), "secret").unwrap();
        std::fs::write(outside.path().join("root/dev/disk"), "secret").unwrap();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(outside.path().join("root"), flags, Mode::empty()).unwrap();
        Self { outside, root: Root::new(fd).unwrap() }
    }

    /// A path inside the root, as the host sees it.
    fn host(&self, inside: &str) -> PathBuf {
        self.outside.path().join("root").join(inside.trim_start_matches('/'))
    }

    fn ask(&self, method: &str, target: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        self.ask_with(method, target, headers, Some(body.len() as u64), &mut &body[..])
    }

    fn get(&self, target: &str) -> Answer {
        self.ask("GET", target, &[], b"")
    }

    fn put(&self, target: &str, body: &[u8]) -> Answer {
        self.ask("PUT", target, &[], body)
    }

    fn ask_with(
        &self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        content_length: Option<u64>,
        body: &mut dyn Read,
    ) -> Answer {
        let request = request(method, target, headers, content_length);
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let reader = std::thread::spawn(move || {
            let mut received = Vec::new();
            (&theirs).read_to_end(&mut received).unwrap();
            received
        });
        let keep_alive = serve_in(&self.root, &request, body, &mut ours).ok();
        drop(ours);
        answer(&reader.join().unwrap(), keep_alive)
    }
}

fn request(method: &str, target: &str, headers: &[(&str, &str)], content_length: Option<u64>) -> Request {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    assert!(super::wants(method, path), "{path}");
    Request {
        method: method.into(),
        path: path.into(),
        query: query.into(),
        headers: headers.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect(),
        content_length,
    }
}

fn answer(received: &[u8], keep_alive: Option<KeepAlive>) -> Answer {
    let Some(end) = received.windows(4).position(|window| window == b"\r\n\r\n") else {
        return Answer { status: 0, head: String::new(), body: Vec::new(), keep_alive };
    };
    let head = String::from_utf8(received[..end].to_vec()).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let mut body = received[end + 4..].to_vec();
    if head.contains("transfer-encoding: chunked") {
        body = unchunked(&body);
    }
    Answer { status, head, body, keep_alive }
}

/// The body of a chunked answer, which may be broken off.
fn unchunked(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(line) = rest.windows(2).position(|window| window == b"\r\n") {
        let length = usize::from_str_radix(std::str::from_utf8(&rest[..line]).unwrap(), 16).unwrap();
        if length == 0 {
            break;
        }
        body.write_all(&rest[line + 2..line + 2 + length]).unwrap();
        rest = &rest[line + 4 + length..];
    }
    body
}
