//! Contexts: what one cell makes, the next one has.

use std::io::BufRead;

use serde_json::{Value, json};

use crate::client::{Server, With, eventually};

struct Context<'a> {
    server: &'a Server,
    path: String,
}

impl<'a> Context<'a> {
    fn new(server: &'a Server, sandbox: &str) -> Self {
        let made = server.post(&format!("/api/v1/sandboxes/{sandbox}/contexts"), &json!({})).ok();
        assert_eq!((&made["language"], &made["state"]), (&json!("python"), &json!("idle")), "{made}");
        let id = made["context_id"].as_str().expect("an id");
        Self { server, path: format!("/api/v1/sandboxes/{sandbox}/contexts/{id}") }
    }

    fn cell(&self, code: &str) -> Value {
        self.server.post(&format!("{}/execute", self.path), &json!({ "code": code })).ok()
    }
}

#[test]
fn state_is_kept_from_one_cell_to_the_next() {
    let Some(server) = Server::start() else { return };
    let (_, sandbox) = server.lease(&json!({}));
    let context = Context::new(&server, &sandbox);
    let first = context.cell("x = 20\nprint('set')");
    assert_eq!((&first["status"], &first["stdout"]), (&json!("success"), &json!("set\n")), "{first}");
    assert_eq!((&first["execution_count"], &first["results"]), (&json!(1), &json!([])));
    let second = context.cell("x * 2 + 2");
    assert_eq!(second["results"][0]["data"]["text/plain"], "42", "{second}");
    assert_eq!(second["results"][0]["is_result"], true);
    let third = context.cell("1/0");
    assert_eq!((&third["status"], &third["error"]["name"]), (&json!("error"), &json!("ZeroDivisionError")));
    assert_eq!(context.cell("x")["results"][0]["data"]["text/plain"], "20", "an error takes nothing away");
    let shown = server.get(&context.path).ok();
    assert_eq!((&shown["execution_count"], &shown["state"]), (&json!(4), &json!("idle")), "{shown}");
    // Another context has nothing of it.
    let other = Context::new(&server, &sandbox);
    assert_eq!(other.cell("x")["error"]["name"], "NameError");
    assert_eq!(
        server.get(&format!("/api/v1/sandboxes/{sandbox}/contexts")).ok()["contexts"]
            .as_array()
            .map(Vec::len),
        Some(2)
    );
}

#[test]
fn a_cell_is_a_stream_that_can_be_read_again() {
    let Some(server) = Server::start() else { return };
    let (_, sandbox) = server.lease(&json!({}));
    let context = Context::new(&server, &sandbox);
    let asked = json!({ "code": "print('one')\nprint('two')\n3" }).to_string();
    let with = With { key: None, headers: &[("accept", "application/x-ndjson")] };
    let reply = server.request("POST", &format!("{}/execute", context.path), asked.as_bytes(), &with);
    let frames: Vec<Value> =
        reply.text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let kinds: Vec<&str> = frames.iter().map(|frame| frame["kind"].as_str().expect("a kind")).collect();
    assert_eq!((kinds.first(), kinds.last()), (Some(&"cell"), Some(&"cell")), "{frames:?}");
    assert_eq!(frames[0]["data"]["event"], "begin");
    assert_eq!(frames.last().map(|frame| &frame["data"]["event"]), Some(&json!("end")));
    let printed: String = frames.iter().filter_map(|frame| frame["content"].as_str()).collect();
    assert_eq!(printed, "one\ntwo\n");
    // The same frames, from the exec that the context is.
    let id = context.path.rsplit('/').next().expect("an id");
    let seq = frames[1]["seq"].as_u64().expect("a seq");
    let mut again = server
        .stream(&format!("/api/v1/execs/{id}/output?from={seq}"), &[("accept", "application/x-ndjson")]);
    let mut line = String::new();
    again.read_line(&mut line).expect("a line");
    assert_eq!(serde_json::from_str::<Value>(&line).expect("JSON"), frames[1]);
}

#[test]
fn a_context_can_be_interrupted_restarted_and_deleted() {
    let Some(server) = Server::start() else { return };
    let (_, sandbox) = server.lease(&json!({}));
    let context = Context::new(&server, &sandbox);
    context.cell("kept = 1");
    assert_eq!(
        server.post(&format!("{}/interrupt", context.path), &json!({})).status,
        204,
        "idle is no error"
    );
    let interrupted = std::thread::scope(|scope| {
        let running = scope.spawn(|| context.cell("import time\ntime.sleep(60)"));
        eventually("a busy context", || (server.get(&context.path).ok()["state"] == "busy").then_some(()));
        // The signal may come before the sleep begins, and is meant for it.
        eventually("an interrupted context", || {
            server.post(&format!("{}/interrupt", context.path), &json!({}));
            (server.get(&context.path).ok()["state"] == "idle").then_some(())
        });
        running.join().expect("the cell ends")
    });
    assert_eq!(interrupted["status"], "interrupted", "{interrupted}");
    assert_eq!(context.cell("kept")["results"][0]["data"]["text/plain"], "1", "an interrupt keeps the state");
    let timeout = json!({ "code": "while True: pass", "timeout_seconds": 0.3 });
    let late = server.post(&format!("{}/execute", context.path), &timeout).ok();
    assert_eq!(late["status"], "timeout", "{late}");
    let restarted = server.post(&format!("{}/restart", context.path), &json!({})).ok();
    let id = restarted["context_id"].as_str().expect("an id");
    let path = format!("/api/v1/sandboxes/{sandbox}/contexts/{id}");
    let context = Context { server: &server, path };
    assert_eq!(context.cell("kept")["error"]["name"], "NameError", "a restart takes everything");
    let died = context.cell("import os; os._exit(3)");
    assert_eq!(died["status"], "died", "{died}");
    assert_eq!(
        server.post(&format!("{}/execute", context.path), &json!({ "code": "1" })).refused(409),
        "conflict"
    );
    assert_eq!(server.delete(&context.path).status, 204);
    assert_eq!(server.get(&context.path).refused(404), "not_found");
}

#[test]
fn a_context_outlives_its_server() {
    let Some(mut server) = Server::start() else { return };
    let (_, sandbox) = server.lease(&json!({}));
    let path = {
        let context = Context::new(&server, &sandbox);
        context.cell("x = 42");
        context.path
    };
    server.kill();
    server.start_again();
    let context = Context { server: &server, path };
    assert_eq!(context.cell("x")["results"][0]["data"]["text/plain"], "42");
}
