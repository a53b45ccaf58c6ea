//! Clients that go on asking, whatever becomes of the server, and remember what they were promised.

use std::io::{BufRead, BufReader};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};

use crate::client::Server;

/// What was acknowledged.
#[derive(Debug, Default)]
pub(crate) struct Promises {
    /// Execs by id, with what they print.
    pub(crate) execs: Mutex<Vec<(String, String)>>,
    pub(crate) released: Mutex<Vec<String>>,
    pub(crate) keys: Mutex<Vec<String>>,
    /// Whatever went wrong for a client that should not have.
    pub(crate) wrong: Mutex<Vec<String>>,
}

pub(crate) struct Load {
    pub(crate) promises: Arc<Promises>,
    stop: Arc<AtomicBool>,
    clients: Vec<JoinHandle<()>>,
}

impl Load {
    pub(crate) fn start(server: &Server) -> Self {
        let promises = Arc::new(Promises::default());
        let stop = Arc::new(AtomicBool::new(false));
        let number = Arc::new(AtomicU64::new(1));
        let kinds: [fn(&Client); 4] = [Client::one_shots, Client::leases, Client::readers, Client::keys];
        let clients = kinds
            .into_iter()
            .enumerate()
            .map(|(index, kind)| {
                let client = Client {
                    address: server.address.clone(),
                    key: server.admin_key(),
                    agent: ureq::Agent::config_builder()
                        .http_status_as_error(false)
                        .timeout_global(Some(Duration::from_secs(60)))
                        .build()
                        .into(),
                    promises: Arc::clone(&promises),
                    stop: Arc::clone(&stop),
                    number: Arc::clone(&number),
                    name: index,
                };
                std::thread::spawn(move || kind(&client))
            })
            .collect();
        Self { promises, stop, clients }
    }

    /// Lets every client finish what it has begun.
    pub(crate) fn finish(self) -> Arc<Promises> {
        self.stop.store(true, Ordering::SeqCst);
        for client in self.clients {
            client.join().expect("a client does not panic");
        }
        self.promises
    }
}

struct Client {
    address: String,
    key: String,
    agent: ureq::Agent,
    promises: Arc<Promises>,
    stop: Arc<AtomicBool>,
    number: Arc<AtomicU64>,
    name: usize,
}

/// Nobody knows how it ended, or it is known that it never ran.
fn ended_without_a_word(exec: &Value) -> bool {
    exec.is_null() || exec["result"]["exit"] == "unknown" || exec["result"]["exit"] == "not_started"
}

impl Client {
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::SeqCst)
    }

    fn fresh(&self) -> u64 {
        self.number.fetch_add(1, Ordering::SeqCst)
    }

    fn wrong(&self, what: String) {
        self.promises.wrong.lock().expect("nobody panics with it").push(what);
    }

    /// One try; none when the server went away in the middle.
    fn try_once(&self, method: &str, path: &str, body: &Value) -> Option<(u16, Value)> {
        let request = ureq::http::Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.address))
            .header("authorization", format!("Bearer {}", self.key))
            .body(body.to_string())
            .expect("a request can be made");
        let mut response = self.agent.run(request).ok()?;
        let text = response.body_mut().read_to_string().ok()?;
        let value = serde_json::from_str(&text).ok()?;
        // It was killed while it was stopping, or its database was not there: nothing was promised.
        (response.status() != 503).then_some((response.status().as_u16(), value))
    }

    /// Asks until there is an answer, as every client of a server that may be restarted does.
    fn insist(&self, method: &str, path: &str, body: &Value) -> Value {
        for _ in 0..2000 {
            match self.try_once(method, path, body) {
                Some((200..300, value)) => return value,
                Some((429, _)) | None => std::thread::sleep(Duration::from_millis(10)),
                Some((status, value)) => {
                    self.wrong(format!("{method} {path} {body}: {status} {value}"));
                    return Value::Null;
                }
            }
        }
        self.wrong(format!("{method} {path} was never answered"));
        Value::Null
    }

    fn exec_id(&self) -> String {
        let mut number = self.fresh();
        let mut body = String::new();
        for _ in 0..26 {
            body.push(char::from(b'a' + (number % 26) as u8));
            number /= 26;
        }
        format!("exec-{body}")
    }

    /// The same id again and again until it is answered: it runs once.
    fn one_shots(&self) {
        while self.goes_on() {
            let (id, word) = (self.exec_id(), format!("word-{}", self.fresh()));
            let asked = json!({ "command": format!("echo {word}"), "exec_id": id });
            let exec = self.insist("POST", "/api/v1/execs", &asked);
            let result = &exec["result"];
            // A sandbox that was being made for it may have died with the server; then nobody knows, and says so.
            if ended_without_a_word(&exec) {
                continue;
            }
            if result["exit_code"] != 0 || result["stdout"]["content"] != format!("{word}\n") {
                self.wrong(format!("{id} printed {result}, not {word}"));
            }
            self.promises.execs.lock().expect("nobody panics with it").push((id, format!("{word}\n")));
        }
    }

    /// A lease with gifts, which counts how often things happened in its sandbox.
    fn leases(&self) {
        while self.goes_on() {
            let request = format!("request-{}", self.fresh());
            let asked = json!({ "workflow": "load", "request": request, "ttl_seconds": 600, "env": { "WORD": request } });
            let lease = self.insist("POST", "/api/v1/leases", &asked);
            if lease["status"] != "ACTIVE" {
                // Given up with the server that was making it; the request is over, and the next one is new.
                continue;
            }
            let sandbox = lease["sandbox_id"].as_str().unwrap_or_default().to_owned();
            for round in 1..=2 {
                let id = self.exec_id();
                let asked =
                    json!({ "command": "echo x >> count; echo $WORD $(wc -l < count)", "exec_id": id });
                let exec = self.insist("POST", &format!("/api/v1/sandboxes/{sandbox}/execs"), &asked);
                let printed = exec["result"]["stdout"]["content"].as_str().unwrap_or_default().to_owned();
                let expected = format!("{request} {round}\n");
                // An exec that was noted and never started is known not to have run.
                if ended_without_a_word(&exec) {
                    break;
                }
                if printed != expected {
                    self.wrong(format!("{id} in {sandbox} printed {printed:?}, not {expected:?}"));
                }
                self.promises.execs.lock().expect("nobody panics with it").push((id, expected));
            }
            let id = lease["lease_id"].as_str().unwrap_or_default().to_owned();
            self.insist("DELETE", &format!("/api/v1/leases/{id}"), &json!({}));
            self.promises.released.lock().expect("nobody panics with it").push(id);
        }
    }

    /// Follows an exec line by line, resuming after whatever it saw last.
    fn readers(&self) {
        while self.goes_on() {
            let lease = self.insist(
                "POST",
                "/api/v1/leases",
                &json!({ "workflow": "readers", "request": format!("r{}", self.fresh()) }),
            );
            let Some(sandbox) = lease["sandbox_id"].as_str().filter(|_| lease["status"] == "ACTIVE") else {
                continue;
            };
            let id = self.exec_id();
            let asked = json!({ "command": "for i in $(seq 1 60); do echo line $i; sleep 0.02; done", "exec_id": id, "background": true });
            self.insist("POST", &format!("/api/v1/sandboxes/{sandbox}/execs"), &asked);
            let mut text = String::new();
            let mut last = 0;
            let mut complete = false;
            for _ in 0..2000 {
                complete = self.read_on(&id, &mut last, &mut text);
                if complete {
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            let expected: String = (1..=60).map(|number| format!("line {number}\n")).collect();
            let exec = self.insist("GET", &format!("/api/v1/execs/{id}"), &json!({}));
            let known = !ended_without_a_word(&exec);
            if known && (!complete || text != expected) {
                self.wrong(format!("{id}: a reader saw {text:?} (complete: {complete})"));
            }
            let lease = lease["lease_id"].as_str().unwrap_or_default().to_owned();
            self.insist("DELETE", &format!("/api/v1/leases/{lease}"), &json!({}));
            self.promises.released.lock().expect("nobody panics with it").push(lease);
        }
    }

    /// Reads until the stream ends or breaks; says whether the exec's output is complete.
    fn read_on(&self, id: &str, last: &mut u64, text: &mut String) -> bool {
        let response = self
            .agent
            .get(format!("{}/api/v1/execs/{id}/output", self.address))
            .header("authorization", format!("Bearer {}", self.key))
            .header("accept", "application/x-ndjson")
            .header("last-event-id", last.to_string())
            .call();
        let Ok(response) = response else { return false };
        if response.status() == 404 {
            // Never started: known by its row.
            return true;
        }
        if response.status() != 200 {
            return false;
        }
        for line in BufReader::new(response.into_body().into_reader()).lines() {
            let Ok(line) = line else { return false };
            let Ok(frame) = serde_json::from_str::<Value>(&line) else { return false };
            *last = frame["seq"].as_u64().unwrap_or(*last);
            if frame["kind"] == "stdout" {
                text.push_str(frame["content"].as_str().unwrap_or_default());
            }
            if frame["kind"] == "eof" {
                return true;
            }
        }
        false
    }

    /// Keys are promised to survive everything.
    fn keys(&self) {
        while self.goes_on() {
            let asked =
                json!({ "label": format!("key {} of {}", self.fresh(), self.name), "scopes": ["read"] });
            // Not repeated: a key whose answer was lost is nobody's.
            if let Some((201, key)) = self.try_once("POST", "/api/v1/keys", &asked) {
                let secret = key["secret"].as_str().unwrap_or_default().to_owned();
                self.promises.keys.lock().expect("nobody panics with it").push(secret);
            }
            std::thread::sleep(Duration::from_millis(30));
        }
    }
}
