//! A server, and requests to it.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::host::{BINARY, Host, send, wait};

/// Long enough for any host; only a hang gets there.
pub(crate) const BOUND: Duration = Duration::from_secs(60);

pub(crate) struct Server {
    pub(crate) host: Host,
    child: Option<Child>,
    pub(crate) address: String,
    flags: Vec<String>,
    /// Of every server that is started here.
    environment: Vec<(String, String)>,
    agent: ureq::Agent,
    /// What it wrote to its log and to people since it was up.
    said: Arc<Mutex<Vec<String>>>,
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: ureq::http::HeaderMap,
    pub(crate) text: String,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("not JSON: {self:?}"))
    }

    /// The body of a request that must succeed.
    pub(crate) fn ok(self) -> Value {
        assert!((200..300).contains(&self.status), "{self:?}");
        self.json()
    }

    /// The code of a request that must fail with this status, in the one shape of errors.
    pub(crate) fn refused(&self, status: u16) -> String {
        assert_eq!(self.status, status, "{self:?}");
        let error = &self.json()["error"];
        assert!(error["message"].as_str().is_some_and(|text| !text.is_empty()), "{self:?}");
        assert_eq!(error["request_id"], self.header("x-request-id"), "{self:?}");
        error["code"].as_str().unwrap_or_default().to_owned()
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}

/// How a request is made.
#[derive(Default, Clone)]
pub(crate) struct With<'a> {
    pub(crate) key: Option<&'a str>,
    pub(crate) headers: &'a [(&'a str, &'a str)],
}

impl Server {
    /// A server with a small pool; `None` where the host cannot run sandboxes.
    pub(crate) fn start() -> Option<Self> {
        Self::start_with(&["--pool-size", "2"])
    }

    pub(crate) fn start_with(flags: &[&str]) -> Option<Self> {
        Some(Self::start_on(Host::new()?, flags, &[]))
    }

    pub(crate) fn start_on(host: Host, flags: &[&str], environment: &[(&str, &str)]) -> Self {
        Self::start_at(host, "127.0.0.1:0", flags, environment)
    }

    pub(crate) fn start_at(host: Host, listen: &str, flags: &[&str], environment: &[(&str, &str)]) -> Self {
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(BOUND))
            // A server that answers before it has read a request closes the connection, maybe just when it is used again.
            .max_idle_connections(0)
            .build()
            .into();
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let environment = environment.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let mut server = Self {
            host,
            child: None,
            address: String::new(),
            flags,
            environment,
            agent,
            said: Arc::default(),
        };
        server.run(listen, &[]);
        server
    }

    fn run(&mut self, listen: &str, environment: &[(&str, &str)]) {
        let mut command = self.host.command(BINARY, &["up", "--listen", listen]);
        command.args(&self.flags).env("CUBICLE_LOG", "warn,cubicle_server=info");
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.envs(environment.iter().copied());
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the built program starts");
        let mut lines = BufReader::new(child.stderr.take().expect("stderr is piped"));
        let mut said = String::new();
        self.address = loop {
            let mut line = String::new();
            if lines.read_line(&mut line).expect("stderr can be read") == 0 {
                // A step that it takes before it is up may be the deadly one.
                assert!(!environment.is_empty(), "the server ended: {said}");
                self.child = Some(child);
                return;
            }
            if let Some(address) = line.trim().strip_prefix("Cubicle is up at ") {
                break address.to_owned();
            }
            said.push_str(&line);
        };
        let test = std::thread::current().name().unwrap_or("a test").to_owned();
        let said = Arc::clone(&self.said);
        // Shown with the test's own output when it fails.
        std::thread::spawn(move || {
            for line in lines.lines().map_while(Result::ok) {
                eprintln!("[{test}] {line}");
                said.lock().expect("nobody panics with it").push(line);
            }
        });
        self.child = Some(child);
    }

    /// As if the power went for this one process.
    pub(crate) fn kill(&mut self) {
        let mut child = self.child.take().expect("the server runs");
        child.kill().expect("the server is ours");
        child.wait().expect("the server is ours");
    }

    /// The lines of its log so far that are JSON.
    pub(crate) fn log(&self) -> Vec<Value> {
        let lines = self.said.lock().expect("nobody panics with it");
        lines.iter().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    pub(crate) fn stop(&mut self) -> i32 {
        let mut child = self.child.take().expect("the server runs");
        send(&child, 15);
        wait(&mut child).code().unwrap_or(-1)
    }

    /// At the same address, on the same data.
    pub(crate) fn start_again(&mut self) {
        self.start_again_with(&[]);
    }

    pub(crate) fn start_again_with(&mut self, environment: &[(&str, &str)]) {
        let listen = self.address.trim_start_matches("http://").to_owned();
        self.run(&listen, environment);
    }

    /// Waits until the server has ended by itself, and says how.
    pub(crate) fn wait_for_death(&mut self, of: &str) -> Option<i32> {
        let mut child = self.child.take().expect("the server runs");
        let start = Instant::now();
        loop {
            if let Some(status) = child.try_wait().expect("the server is ours") {
                return status.code();
            }
            assert!(start.elapsed() < BOUND, "the server never came to '{of}'");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Everything that it has written so far.
    pub(crate) fn said(&self) -> String {
        self.said.lock().expect("nobody panics with it").join("\n")
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().expect("the server runs").id()
    }

    /// Waits until it has written a line with this text.
    pub(crate) fn waits_to_say(&self, text: &str) {
        eventually(text, || {
            let said = self.said.lock().expect("nobody panics with it");
            said.iter().any(|line| line.contains(text)).then_some(())
        });
    }

    pub(crate) fn admin_key(&self) -> String {
        let path = self.host.data_dir().join("server/admin.key");
        std::fs::read_to_string(path).expect("the first key is written").trim().to_owned()
    }

    pub(crate) fn request(&self, method: &str, path: &str, body: &[u8], with: &With<'_>) -> Reply {
        let admin = self.admin_key();
        let key = with.key.unwrap_or(&admin);
        let mut request =
            ureq::http::Request::builder().method(method).uri(format!("{}{path}", self.address));
        if !key.is_empty() {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        for (name, value) in with.headers {
            request = request.header(*name, *value);
        }
        // Nobody reads a body of these, and a server that has answered hangs up on one that is still on its way.
        let body = if ["GET", "DELETE"].contains(&method) { b"" } else { body };
        let request = request.body(body).expect("a request can be made");
        let mut response = self.agent.run(request).unwrap_or_else(|error| panic!("{method} {path}: {error}"));
        let mut bytes = Vec::new();
        response.body_mut().as_reader().read_to_end(&mut bytes).expect("the answer can be read");
        Reply {
            status: response.status().as_u16(),
            headers: response.headers().clone(),
            text: String::from_utf8_lossy(&bytes).into_owned(),
        }
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        self.request("GET", path, b"", &With::default())
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Reply {
        self.request("POST", path, body.to_string().as_bytes(), &With::default())
    }

    pub(crate) fn put(&self, path: &str, body: &Value) -> Reply {
        self.request("PUT", path, body.to_string().as_bytes(), &With::default())
    }

    pub(crate) fn delete(&self, path: &str) -> Reply {
        self.request("DELETE", path, b"", &With::default())
    }

    pub(crate) fn with_key(&self, method: &str, path: &str, body: &Value, key: &str) -> Reply {
        self.request(method, path, body.to_string().as_bytes(), &With { key: Some(key), headers: &[] })
    }

    /// A stream of the server, read while it is written.
    pub(crate) fn stream(&self, path: &str, headers: &[(&str, &str)]) -> BufReader<Box<dyn Read + Send>> {
        let mut request = ureq::http::Request::builder()
            .uri(format!("{}{path}", self.address))
            .header("authorization", format!("Bearer {}", self.admin_key()));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response =
            self.agent.run(request.body(()).expect("a request can be made")).expect("the server answers");
        assert_eq!(response.status(), 200);
        BufReader::new(Box::new(response.into_body().into_reader()))
    }

    /// The ids of a new lease and its sandbox.
    pub(crate) fn lease(&self, asked: &Value) -> (String, String) {
        let lease = self.post("/api/v1/leases", asked).ok();
        assert_eq!(lease["status"], "ACTIVE", "{lease}");
        let text = |name: &str| lease[name].as_str().expect("a lease has ids").to_owned();
        (text("lease_id"), text("sandbox_id"))
    }

    /// What a command in a sandbox prints.
    pub(crate) fn prints(&self, sandbox: &str, command: &str) -> String {
        let exec =
            self.post(&format!("/api/v1/sandboxes/{sandbox}/execs"), &json!({ "command": command })).ok();
        assert_eq!(exec["result"]["exit_code"], 0, "{exec}");
        exec["result"]["stdout"]["content"].as_str().expect("it was waited for").to_owned()
    }

    /// A key of a tenant and user of its own.
    pub(crate) fn key_of(&self, tenant: &str, user: &str, scopes: &[&str]) -> String {
        let made = self.post("/api/v1/tenants", &json!({ "name": tenant }));
        assert!(made.status == 201 || made.status == 409, "{made:?}");
        let asked = json!({ "label": "test", "tenant": tenant, "user": user, "scopes": scopes });
        self.post("/api/v1/keys", &asked).ok()["secret"].as_str().expect("a new key has a secret").to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Waits for a condition, with a bound.
pub(crate) fn eventually<T>(what: &str, mut holds: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = holds() {
            return found;
        }
        assert!(start.elapsed() < BOUND, "{what}: still not so after {BOUND:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
