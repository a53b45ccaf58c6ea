//! Every line of the log says what it is about.

use serde_json::{Value, json};

use crate::client::{Server, eventually};

fn line(server: &Server, message: &str) -> Value {
    eventually(message, || server.log().into_iter().find(|line| line["message"] == message))
}

#[test]
fn every_line_about_a_request_has_its_ids() {
    let Some(server) = Server::start() else { return };
    let (lease, sandbox) = server.lease(&json!({}));
    let execs = format!("/api/v1/sandboxes/{sandbox}/execs");
    let refused = server.post(&execs, &json!({ "command": "true", "cwd": "/not/there" }));
    assert!((400..500).contains(&refused.status), "{refused:?}");
    let request = refused.header("x-request-id");
    for message in ["an exec was not started", "request refused"] {
        let line = line(&server, message);
        let ids = (&line["request"], &line["lease"], &line["sandbox"]);
        assert_eq!(ids, (&json!(request), &json!(lease), &json!(sandbox)), "{line}");
        assert_eq!(line["route"], "/api/v1/sandboxes/{sandbox_id}/execs", "{line}");
        for constant in ["timestamp", "level", "target"] {
            assert!(line[constant].is_string(), "{line}");
        }
    }
    let exec = line(&server, "an exec was not started")["exec"].as_str().expect("an id").to_owned();
    assert!(exec.starts_with("exec-"), "{exec}");

    // What goes on after the answer is still about the request that began it.
    let released = server.delete(&format!("/api/v1/leases/{lease}"));
    let ended = line(&server, "lease ended");
    let ids = (&ended["request"], &ended["lease"]);
    assert_eq!(ids, (&json!(released.header("x-request-id")), &json!(lease)), "{ended}");

    for line in server.log().iter().filter(|line| line.get("path").is_some()) {
        assert!(line["request"].as_str().is_some_and(|id| id.starts_with("req-")), "{line}");
    }
}

#[test]
fn what_a_one_shot_leaves_to_the_background_has_the_ids_of_its_request() {
    let Some(server) = Server::start() else { return };
    let answer = server.post("/api/v1/execs", &json!({ "command": "true" }));
    let (request, exec) = (answer.header("x-request-id").to_owned(), answer.ok());
    let ended = eventually("the end of its lease", || {
        server
            .log()
            .into_iter()
            .find(|line| line["message"] == "lease ended" && line["lease"] == exec["lease_id"])
    });
    let ids = (&ended["request"], &ended["sandbox"], &ended["exec"]);
    assert_eq!(ids, (&json!(request), &exec["sandbox_id"], &exec["exec_id"]), "{ended}");
}
