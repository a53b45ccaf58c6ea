//! Clients of every kind, each of which goes on until it is told to stop and remembers what went wrong.

use std::fmt;
use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::{BOUND, Server};

const CLIENTS: usize = 200;
/// Between a refusal for want of room and the next attempt.
const NO_ROOM: Duration = Duration::from_millis(500);

#[derive(Debug, Default)]
struct Counts {
    one_shots: AtomicU64,
    leases: AtomicU64,
    execs: AtomicU64,
    streamed: AtomicU64,
    looks: AtomicU64,
    full: AtomicU64,
}

/// What a client does again and again.
type Kind = fn(&Client) -> Result<(), String>;

/// What a crowd has done.
pub(crate) struct Done {
    one_shots: u64,
    leases: u64,
    execs: u64,
    streamed: u64,
    looks: u64,
    full: u64,
    pub(crate) wrong: Vec<String>,
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { one_shots, leases, execs, streamed, looks, full, .. } = self;
        write!(
            f,
            "{one_shots} one-shots, {leases} leases with {execs} execs, {streamed} streams, {looks} looks, "
        )?;
        write!(f, "{full} times no room")
    }
}

impl Done {
    pub(crate) fn everybody_did_something(&self) {
        for (what, count) in [
            ("one-shots", self.one_shots),
            ("leases", self.leases),
            ("execs", self.execs),
            ("streams", self.streamed),
        ] {
            assert!(count > 0, "there were no {what}: {self}");
        }
    }
}

pub(crate) struct Crowd {
    stop: Arc<AtomicBool>,
    counts: Arc<Counts>,
    wrong: Arc<Mutex<Vec<String>>>,
    clients: Vec<JoinHandle<()>>,
}

impl Crowd {
    pub(crate) fn gather(server: &Server) -> Self {
        let (stop, counts, wrong) = (Arc::<AtomicBool>::default(), Arc::<Counts>::default(), Arc::default());
        let kinds: [Kind; 5] = [Client::one_shot, Client::lease, Client::lease, Client::stream, Client::look];
        let clients = (0..CLIENTS)
            .map(|number| {
                let client = Client {
                    address: server.address.clone(),
                    key: server.admin_key(),
                    agent: ureq::Agent::config_builder()
                        .http_status_as_error(false)
                        .timeout_global(Some(BOUND))
                        .build()
                        .into(),
                    stop: Arc::clone(&stop),
                    counts: Arc::clone(&counts),
                    number,
                };
                let (kind, wrong) = (kinds[number % kinds.len()], Arc::clone(&wrong));
                let thread = std::thread::Builder::new().stack_size(256 * 1024);
                let goes_on = move || {
                    while !client.stop.load(Ordering::SeqCst) {
                        if let Err(what) = kind(&client) {
                            let wrong: &Mutex<Vec<String>> = &wrong;
                            wrong.lock().expect("nobody panics with it").push(what);
                        }
                    }
                };
                thread.spawn(goes_on).expect("a thread can be made")
            })
            .collect();
        Self { stop, counts, wrong, clients }
    }

    /// Waits until then, or until enough has gone wrong.
    pub(crate) fn goes_on_until(&self, then: Instant) {
        while Instant::now() < then && self.wrong.lock().expect("nobody panics with it").len() < 100 {
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Lets every client finish what it has begun.
    pub(crate) fn disperse(self) -> Done {
        self.stop.store(true, Ordering::SeqCst);
        for client in self.clients {
            client.join().expect("a client does not panic");
        }
        let count = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
        Done {
            one_shots: count(&self.counts.one_shots),
            leases: count(&self.counts.leases),
            execs: count(&self.counts.execs),
            streamed: count(&self.counts.streamed),
            looks: count(&self.counts.looks),
            full: count(&self.counts.full),
            wrong: std::mem::take(&mut self.wrong.lock().expect("nobody panics with it")),
        }
    }
}

struct Client {
    address: String,
    key: String,
    agent: ureq::Agent,
    stop: Arc<AtomicBool>,
    counts: Arc<Counts>,
    number: usize,
}

impl Client {
    fn bytes(&self, method: &str, path: &str, body: &[u8]) -> Result<(u16, Vec<u8>), String> {
        let request = ureq::http::Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.address))
            .header("authorization", format!("Bearer {}", self.key))
            .body(body)
            .map_err(|error| error.to_string())?;
        let failed = |error: &dyn std::fmt::Display| format!("{method} {path}: {error}");
        let mut response = self.agent.run(request).map_err(|error| failed(&error))?;
        let mut bytes = Vec::new();
        response.body_mut().as_reader().read_to_end(&mut bytes).map_err(|error| failed(&error))?;
        Ok((response.status().as_u16(), bytes))
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> Result<Value, String> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let (status, bytes) = self.bytes(method, path, body.as_bytes())?;
        let text = String::from_utf8_lossy(&bytes);
        match status {
            200..300 => Ok(serde_json::from_slice(&bytes).unwrap_or_default()),
            _ => Err(format!("{method} {path} {body}: {status} {text}")),
        }
    }

    /// Asks for something that there may be no room for just now; none once it is time to stop.
    fn make_room(&self, path: &str, body: &Value) -> Result<Option<Value>, String> {
        loop {
            let (status, bytes) = self.bytes("POST", path, body.to_string().as_bytes())?;
            let value: Value = serde_json::from_slice(&bytes).unwrap_or_default();
            match status {
                200..300 => return Ok(Some(value)),
                429 if value["error"]["code"] == "full" => {
                    self.counts.full.fetch_add(1, Ordering::SeqCst);
                    if self.stop.load(Ordering::SeqCst) {
                        return Ok(None);
                    }
                    std::thread::sleep(NO_ROOM);
                }
                _ => return Err(format!("POST {path} {body}: {status} {value}")),
            }
        }
    }

    fn one_shot(&self) -> Result<(), String> {
        let word = format!("word-{}", self.number);
        let asked = json!({ "command": ["echo", word] });
        let Some(exec) = self.make_room("/api/v1/execs", &asked)? else { return Ok(()) };
        if exec["result"]["stdout"]["content"] != format!("{word}\n") || exec["result"]["exit_code"] != 0 {
            return Err(format!("a one-shot of {word} printed {exec}"));
        }
        self.counts.one_shots.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// A lease with everything that can be done with one.
    fn lease(&self) -> Result<(), String> {
        let asked = json!({ "env": { "NUMBER": self.number.to_string() }, "ttl_seconds": 300 });
        let Some(lease) = self.make_room("/api/v1/leases", &asked)? else { return Ok(()) };
        let id = lease["lease_id"].as_str().unwrap_or_default().to_owned();
        let used = self.use_lease(&lease);
        let released = self.ask("DELETE", &format!("/api/v1/leases/{id}"), &Value::Null)?;
        if released["status"] != "RELEASED" {
            return Err(format!("a release left {released}"));
        }
        self.counts.leases.fetch_add(1, Ordering::SeqCst);
        used
    }

    fn use_lease(&self, lease: &Value) -> Result<(), String> {
        let id = lease["lease_id"].as_str().unwrap_or_default();
        let sandbox =
            lease["sandbox_id"].as_str().ok_or_else(|| format!("a lease without a sandbox: {lease}"))?;
        let file = format!("/api/v1/sandboxes/{sandbox}/files?path=in/data");
        let data = vec![b'a' + (self.number % 26) as u8; 20_000];
        let (status, answer) = self.bytes("PUT", &file, &data)?;
        if status != 200 {
            return Err(format!("PUT {file}: {status} {}", String::from_utf8_lossy(&answer)));
        }
        for round in 1..=3 {
            let asked =
                json!({ "command": "echo x >> count; echo $NUMBER $(wc -l < count) $(wc -c < in/data)" });
            let exec = self.ask("POST", &format!("/api/v1/sandboxes/{sandbox}/execs"), &asked)?;
            let expected = format!("{} {round} 20000\n", self.number);
            if exec["result"]["stdout"]["content"] != expected {
                return Err(format!("an exec did not print {expected:?}: {exec}"));
            }
            self.counts.execs.fetch_add(1, Ordering::SeqCst);
            self.ask("POST", &format!("/api/v1/leases/{id}/heartbeat"), &Value::Null)?;
        }
        let (status, read) = self.bytes("GET", &file, b"")?;
        if status != 200 || read != data {
            return Err(format!("GET {file}: {status}, {} bytes", read.len()));
        }
        Ok(())
    }

    /// Output that is read while it is written, by two readers, and once more when its sandbox is gone.
    fn stream(&self) -> Result<(), String> {
        let asked = json!({ "command": "for i in $(seq 1 200); do echo line $i; done", "background": true });
        let Some(exec) = self.make_room("/api/v1/execs", &asked)? else { return Ok(()) };
        let expected: String = (1..=200).map(|number| format!("line {number}\n")).collect();
        let path = format!("/api/v1/execs/{}/output", exec["exec_id"].as_str().unwrap_or_default());
        for reader in 1..=3 {
            let (status, bytes) = self.bytes("GET", &path, b"")?;
            if status != 200 || bytes != expected.as_bytes() {
                let text = String::from_utf8_lossy(&bytes).into_owned();
                return Err(format!(
                    "reader {reader} of {path}: {status}, {} bytes: {text:.200}",
                    bytes.len()
                ));
            }
        }
        self.counts.streamed.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// Whoever only looks.
    fn look(&self) -> Result<(), String> {
        for path in [
            "/api/v1/leases?limit=20",
            "/api/v1/sandboxes?limit=20",
            "/api/v1/execs?running=true&limit=20",
            "/ready",
        ] {
            self.ask("GET", path, &Value::Null)?;
        }
        let (status, _) = self.bytes("GET", "/metrics", b"")?;
        if status != 200 {
            return Err(format!("GET /metrics: {status}"));
        }
        self.counts.looks.fetch_add(1, Ordering::SeqCst);
        // A dashboard, not a flood.
        std::thread::sleep(Duration::from_millis(500));
        Ok(())
    }
}
