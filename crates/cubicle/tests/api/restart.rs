//! A server that is killed and started again: what runs goes on, and nothing is lost, repeated or made up.

use std::io::Read;

use serde_json::{Value, json};

use crate::client::{Server, eventually};

#[test]
fn an_exec_goes_on_across_kill_and_restart_and_its_reader_resumes_at_its_byte() {
    let Some(mut server) = Server::start() else { return };
    let (lease, sandbox) = server.lease(&json!({}));
    let asked = json!({ "command": "for i in $(seq 1 40); do echo line $i; sleep 0.05; done; exit 5", "background": true });
    let exec = server.post(&format!("/api/v1/sandboxes/{sandbox}/execs"), &asked).ok();
    let path = format!("/api/v1/execs/{}/output", exec["exec_id"].as_str().expect("an id"));
    let mut first = vec![0; 600];
    let read = server.stream(&path, &[("accept", "text/event-stream")]).read(&mut first).expect("it begins");
    let seen = String::from_utf8_lossy(&first[..read]).into_owned();
    // Whole events only, as a browser takes them.
    let whole = &seen[..seen.rfind("\n\n").map_or(0, |end| end + 2)];
    server.kill();
    server.start_again();
    let last = whole.lines().rev().find_map(|line| line.strip_prefix("id: ")).unwrap_or("0").to_owned();
    let mut rest = String::new();
    let headers = [("accept", "text/event-stream"), ("last-event-id", last.as_str())];
    server.stream(&path, &headers).read_to_string(&mut rest).expect("it ends");
    let text: String = format!("{whole}{rest}")
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .map(|data| serde_json::from_str::<Value>(data).expect("data is JSON"))
        .filter(|frame| frame["kind"] == "stdout")
        .map(|frame| frame["content"].as_str().expect("text").to_owned())
        .collect();
    let expected: String = (1..=40).map(|number| format!("line {number}\n")).collect();
    assert_eq!(text, expected);
    let ended = eventually("the exec", || {
        let exec = server.get(&path.replace("/output", "")).ok();
        (exec["state"] == "ended").then_some(exec)
    });
    assert_eq!(ended["result"]["exit"], json!({ "code": 5 }));
    assert_eq!(server.get(&format!("/api/v1/leases/{lease}")).ok()["status"], "ACTIVE");
    assert_eq!(server.prints(&sandbox, "echo usable"), "usable\n");
}

#[test]
fn a_one_shot_is_finished_and_released_after_a_restart() {
    let Some(mut server) = Server::start() else { return };
    let id = "exec-dddddddddddddddddddddddddd";
    let asked = json!({ "command": "sleep 1; echo done", "exec_id": id, "background": true });
    let exec = server.post("/api/v1/execs", &asked).ok();
    server.kill();
    server.start_again();
    let ended = eventually("the exec", || {
        let exec = server.get(&format!("/api/v1/execs/{id}")).ok();
        (exec["state"] == "ended").then_some(exec)
    });
    assert_eq!(ended["result"]["exit_code"], 0);
    let lease = exec["lease_id"].as_str().expect("an id");
    eventually("its lease", || {
        (server.get(&format!("/api/v1/leases/{lease}")).ok()["status"] == "RELEASED").then_some(())
    });
    // Asked for again it does not run again.
    let again = server.post("/api/v1/execs", &json!({ "command": "sleep 1; echo done", "exec_id": id })).ok();
    assert_eq!(again["result"]["stdout"]["content"], "done\n");
}

#[test]
fn what_is_not_wanted_any_more_is_destroyed_at_the_next_start() {
    let Some(mut server) = Server::start() else { return };
    let (lease, sandbox) = server.lease(&json!({ "ttl_seconds": 1 }));
    server.kill();
    std::thread::sleep(std::time::Duration::from_millis(1200));
    server.start_again();
    eventually("an expired lease", || {
        (server.get(&format!("/api/v1/leases/{lease}")).ok()["status"] == "EXPIRED").then_some(())
    });
    eventually("its sandbox", || {
        let shown = server.host.cubicle(&["ls", "--quiet"]);
        (!String::from_utf8_lossy(&shown.stdout).contains(&sandbox)).then_some(())
    });
}

#[test]
fn a_graceful_stop_finishes_what_is_under_way() {
    let Some(mut server) = Server::start() else { return };
    let (_, sandbox) = server.lease(&json!({}));
    let address = server.address.clone();
    let key = server.admin_key();
    let waiting = std::thread::spawn(move || {
        let body = json!({ "command": "sleep 1; echo finished" }).to_string();
        let answer = ureq::post(format!("{address}/api/v1/sandboxes/{sandbox}/execs"))
            .header("authorization", format!("Bearer {key}"))
            .send(body.as_bytes());
        answer.map(|mut answer| answer.body_mut().read_to_string().unwrap_or_default())
    });
    eventually("a running exec", || {
        let running = server.get("/api/v1/execs?running=true").ok();
        (!running["items"].as_array().expect("items").is_empty()).then_some(())
    });
    assert_eq!(server.stop(), 0);
    let answer = waiting.join().expect("the client ended").expect("the request was answered");
    assert!(answer.contains("finished"), "{answer}");
}

#[test]
fn the_first_key_and_settings_survive() {
    let Some(mut server) = Server::start() else { return };
    let before = server.admin_key();
    let key = server.key_of("acme", "ada", &["read"]);
    server.put("/api/v1/templates/mine", &json!({ "env": { "A": "1" } })).ok();
    server.kill();
    server.start_again();
    assert_eq!(server.admin_key(), before);
    assert_eq!(server.with_key("GET", "/api/v1/whoami", &json!({}), &key).ok()["user"], "ada");
    assert_eq!(server.get("/api/v1/templates/mine").ok()["recipe"]["env"]["A"], "1");
}

#[test]
fn a_lease_with_limits_that_only_a_new_sandbox_can_have_survives_a_restart() {
    let Some(mut server) = Server::start() else { return };
    let (lease, sandbox) = server.lease(&json!({ "limits": { "tmp": 5_000_000 } }));
    server.kill();
    server.start_again();
    assert_eq!(server.prints(&sandbox, "echo usable"), "usable\n");
    assert_eq!(server.get(&format!("/api/v1/leases/{lease}")).ok()["status"], "ACTIVE");
}

#[test]
fn a_lease_whose_server_was_killed_while_its_sandbox_was_made_is_prepared_by_the_next() {
    for step in ["sandbox_noted", "sandbox_made", "sandbox_bound"] {
        let Some(mut server) = Server::start_with(&["--pool-size", "0"]) else { return };
        server.kill();
        server.start_again_with(&[("CUBICLE_KILL_AT", &format!("{step}:1"))]);
        let asked = json!({ "request": "r", "env": { "WORD": "given" }, "limits": { "tmp": 5_000_000 } });
        let lost = ureq::post(format!("{}/api/v1/leases", server.address))
            .header("authorization", format!("Bearer {}", server.admin_key()))
            .send(asked.to_string().as_bytes());
        assert!(lost.is_err(), "the server was not killed at '{step}'");
        server.wait_for_death(step);
        server.start_again();
        let lease = server.post("/api/v1/leases", &asked).ok();
        assert_eq!(lease["status"], "ACTIVE", "{step}: {lease}");
        let sandbox = lease["sandbox_id"].as_str().expect("an active lease has a sandbox");
        assert_eq!(server.prints(sandbox, "echo $WORD"), "given\n", "{step}");
    }
}

#[test]
fn an_exec_that_never_reached_its_sandbox_is_known_not_to_have_run() {
    let Some(mut server) = Server::start() else { return };
    let (_, sandbox) = server.lease(&json!({}));
    server.kill();
    server.start_again_with(&[("CUBICLE_KILL_AT", "exec_noted:1")]);
    let id = "exec-gggggggggggggggggggggggggg";
    let lost = ureq::post(format!("{}/api/v1/sandboxes/{sandbox}/execs", server.address))
        .header("authorization", format!("Bearer {}", server.admin_key()))
        .send(json!({ "command": "touch ran", "exec_id": id }).to_string().as_bytes());
    assert!(lost.is_err(), "the server was not killed");
    server.wait_for_death("exec_noted");
    server.start_again();
    let exec = eventually("an exec that was only noted", || {
        let exec = server.get(&format!("/api/v1/execs/{id}")).ok();
        (exec["state"] == "ended").then_some(exec)
    });
    assert_eq!(exec["result"]["exit"], "not_started", "{exec}");
    assert!(exec["result"]["refused"].as_str().is_some_and(|why| why.contains("never reached")), "{exec}");
    assert_eq!(server.prints(&sandbox, "ls ran 2>/dev/null; true"), "");
}
