//! Contexts: what a cell tells, and what happens when its interpreter misbehaves.

mod faults;
mod golden;
mod languages;
mod life;

use serde_json::{Value, json};

use crate::support::{Frame, Kind, Reply, Sandbox, frames, output};

pub(crate) const ACCEPT: &str = "Accept: application/x-cubicle-journal\r\n";

/// A cell that has ended.
pub(crate) struct Ran {
    pub(crate) frames: Vec<Frame>,
    /// Every `cell` record, with parts put together.
    pub(crate) events: Vec<Value>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl std::fmt::Debug for Ran {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { events, stdout, stderr, .. } = self;
        f.debug_struct("Ran").field("events", events).field("stdout", stdout).field("stderr", stderr).finish()
    }
}

impl Ran {
    pub(crate) fn new(frames: Vec<Frame>) -> Self {
        let text = |kind| String::from_utf8_lossy(&output(&frames, kind)).into_owned();
        let (stdout, stderr) = (text(Kind::Stdout), text(Kind::Stderr));
        let mut events = Vec::new();
        let mut parts = String::new();
        for frame in frames.iter().filter(|frame| frame.kind == Kind::Cell) {
            let event: Value = serde_json::from_slice(&frame.payload).unwrap();
            if event["event"] != "part" {
                assert_eq!(parts, "", "something came between parts");
                events.push(event);
                continue;
            }
            parts.push_str(event["text"].as_str().unwrap());
            if event["last"] == true {
                events.push(serde_json::from_str(&std::mem::take(&mut parts)).unwrap());
            }
        }
        Self { frames, events, stdout, stderr }
    }

    pub(crate) fn named(&self, name: &str) -> Vec<&Value> {
        self.events.iter().filter(|event| event["event"] == name).collect()
    }

    pub(crate) fn only(&self, name: &str) -> Option<&Value> {
        let found = self.named(name);
        assert!(found.len() <= 1, "{name} in {self:?}");
        found.first().copied()
    }

    pub(crate) fn status(&self) -> &str {
        self.only("end").unwrap()["status"].as_str().unwrap()
    }

    pub(crate) fn count(&self) -> u64 {
        self.only("end").unwrap()["execution_count"].as_u64().unwrap()
    }

    pub(crate) fn text(&self) -> Option<&str> {
        self.only("result").map(|result| result["data"]["text/plain"].as_str().unwrap())
    }

    pub(crate) fn error(&self) -> Option<(&str, &str)> {
        self.only("error").map(|error| (error["name"].as_str().unwrap(), error["value"].as_str().unwrap()))
    }
}

impl Sandbox {
    pub(crate) fn try_context(&self, mut request: Value) -> Reply {
        let cwd = self.directory.path().display().to_string();
        request.as_object_mut().unwrap().entry("cwd").or_insert_with(|| cwd.into());
        self.json("POST", "/contexts", &request)
    }

    pub(crate) fn context(&self, request: Value) -> String {
        let reply = self.try_context(request);
        assert_eq!(reply.status, 201, "{}", reply.text());
        reply.value()["context_id"].as_str().unwrap().to_owned()
    }

    pub(crate) fn python(&self) -> String {
        self.context(json!({}))
    }

    pub(crate) fn try_cell(&self, id: &str, request: &Value) -> Reply {
        let target = format!("/contexts/{id}/execute");
        self.connect().request("POST", &target, ACCEPT, request.to_string().as_bytes())
    }

    pub(crate) fn cell(&self, id: &str, code: &str) -> Ran {
        self.cell_with(id, &json!({ "code": code }))
    }

    pub(crate) fn cell_with(&self, id: &str, request: &Value) -> Ran {
        let reply = self.try_cell(id, request);
        assert_eq!(reply.status, 200, "{}", String::from_utf8_lossy(&reply.body));
        Ran::new(frames(&reply.body))
    }

    pub(crate) fn context_state(&self, id: &str) -> String {
        self.request("GET", &format!("/contexts/{id}"), b"").value()["state"].as_str().unwrap().to_owned()
    }

    /// Starts a cell on a connection of its own, and returns when it has printed this.
    pub(crate) fn begin_cell(&self, id: &str, code: &str, printed: &str) -> Begun {
        let mut client = self.connect();
        let body = json!({ "code": code }).to_string();
        client.send("POST", &format!("/contexts/{id}/execute"), ACCEPT, body.as_bytes());
        let (status, _) = client.reply_head();
        assert_eq!(status, 200);
        let mut begun = Begun { client, bytes: Vec::new() };
        let printed = format!("{printed}\n");
        while !String::from_utf8_lossy(&begun.bytes).contains(&printed) {
            let chunk = begun.client.chunk().expect("the cell goes on");
            begun.bytes.extend_from_slice(&chunk);
        }
        begun
    }
}

pub(crate) struct Begun {
    client: crate::support::Client,
    bytes: Vec<u8>,
}

impl Begun {
    pub(crate) fn ended(mut self) -> Ran {
        while let Some(chunk) = self.client.chunk() {
            self.bytes.extend_from_slice(&chunk);
        }
        Ran::new(frames(&self.bytes))
    }
}
