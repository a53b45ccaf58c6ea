//! Leases: exclusive, idempotent, renewed and given back.

use serde_json::{Value, json};

use crate::client::{Server, eventually};

#[test]
fn a_lease_gives_a_ready_sandbox_and_its_release_destroys_it() {
    let Some(server) = Server::start() else { return };
    let (lease, sandbox) = server.lease(&json!({}));
    assert_eq!(server.prints(&sandbox, "echo hello"), "hello\n");
    let shown = server.get(&format!("/api/v1/sandboxes/{sandbox}")).ok();
    assert_eq!(shown["state"], "leased");
    let receipt = server.get(&format!("/api/v1/sandboxes/{sandbox}/receipt")).ok();
    assert_eq!(receipt["sandbox"], sandbox);
    assert_eq!(receipt["contradictions"], json!([]));

    let released = server.delete(&format!("/api/v1/leases/{lease}")).ok();
    assert_eq!((&released["status"], &released["ended_because"]), (&json!("RELEASED"), &json!("released")));
    let again = server.delete(&format!("/api/v1/leases/{lease}")).ok();
    assert_eq!(again["ended_at"], released["ended_at"], "the second release changed something");
    let gone = |server: &Server| {
        let state = server.get(&format!("/api/v1/sandboxes/{sandbox}")).ok()["state"].clone();
        (state == "gone").then_some(())
    };
    eventually("a released sandbox", || gone(&server));
    let refused = server.post(&format!("/api/v1/sandboxes/{sandbox}/execs"), &json!({ "command": "true" }));
    assert_eq!(refused.refused(409), "conflict");
}

#[test]
fn the_same_request_from_a_hundred_connections_gets_one_lease() {
    let Some(server) = Server::start() else { return };
    let asked = json!({ "workflow": "build", "request": "r-1" });
    let leases: Vec<Value> = std::thread::scope(|scope| {
        let asking: Vec<_> =
            (0..100).map(|_| scope.spawn(|| server.post("/api/v1/leases", &asked).ok())).collect();
        asking.into_iter().map(|one| one.join().expect("every request is answered")).collect()
    });
    let ids: std::collections::BTreeSet<_> =
        leases.iter().map(|lease| lease["lease_id"].to_string()).collect();
    assert_eq!(ids.len(), 1, "{ids:?}");
    let active = server.get("/api/v1/leases?status=ACTIVE").ok();
    assert_eq!(active["items"].as_array().map(Vec::len), Some(1));
    let other = json!({ "workflow": "build", "request": "r-1", "ttl_seconds": 7 });
    assert_eq!(server.post("/api/v1/leases", &other).refused(409), "conflict");
}

#[test]
fn two_leases_never_share_a_sandbox() {
    let Some(server) = Server::start() else { return };
    let sandboxes: Vec<String> = std::thread::scope(|scope| {
        let asking: Vec<_> = (0..12).map(|_| scope.spawn(|| server.lease(&json!({})).1)).collect();
        asking.into_iter().map(|one| one.join().expect("every request is answered")).collect()
    });
    let different: std::collections::BTreeSet<_> = sandboxes.iter().collect();
    assert_eq!(different.len(), sandboxes.len());
}

#[test]
fn a_lease_brings_variables_files_and_limits() {
    let Some(server) = Server::start() else { return };
    let asked = json!({
        "env": { "GREETING": "hello" },
        "files": [{ "path": "in/data.bin", "content": "AP8B", "encoding": "base64" }, { "path": "/workspace/a.sh", "content": "echo ran", "mode": 0o755 }],
        "limits": { "pids": 77, "memory": 200_000_000 },
    });
    let (_, sandbox) = server.lease(&asked);
    assert_eq!(
        server.prints(&sandbox, "echo $GREETING; od -An -tx1 in/data.bin; ./a.sh"),
        "hello\n 00 ff 01\nran\n"
    );
    let receipt = server.get(&format!("/api/v1/sandboxes/{sandbox}/receipt")).ok();
    let limit = |name: &str| {
        let limits = receipt["limits"].as_array().expect("a receipt has limits");
        limits.iter().rfind(|limit| limit["name"] == name).map(|limit| limit["value"].clone())
    };
    assert_eq!(limit("pids"), Some(json!(77)), "{receipt}");
    // A size that is fixed when a sandbox is made needs a new one.
    let lease = server.post("/api/v1/leases", &json!({ "limits": { "tmp": 1_000_000 } })).ok();
    assert_eq!(lease["admission"], "cold");
}

#[test]
fn a_heartbeat_renews_and_silence_ends_a_lease() {
    let Some(server) = Server::start() else { return };
    let (kept, _) = server.lease(&json!({ "ttl_seconds": 2, "heartbeat_seconds": 1 }));
    let (silent, sandbox) = server.lease(&json!({ "ttl_seconds": 2 }));
    let before = server.get(&format!("/api/v1/leases/{kept}")).ok()["expires_at"].clone();
    eventually("a lease without heartbeats", || {
        let beat = server.post(&format!("/api/v1/leases/{kept}/heartbeat"), &json!({}));
        assert_eq!(beat.status, 200, "{beat:?}");
        let lease = server.get(&format!("/api/v1/leases/{silent}")).ok();
        (lease["status"] == "EXPIRED").then_some(())
    });
    let lease = server.get(&format!("/api/v1/leases/{kept}")).ok();
    assert_eq!(lease["status"], "ACTIVE");
    assert_ne!(lease["expires_at"], before);
    let late = server.post(&format!("/api/v1/leases/{silent}/heartbeat"), &json!({}));
    assert_eq!(late.refused(409), "conflict");
    eventually("an expired sandbox", || {
        let state = server.get(&format!("/api/v1/sandboxes/{sandbox}")).ok()["state"].clone();
        (state == "gone").then_some(())
    });
}

#[test]
fn a_heartbeat_on_a_released_lease_is_refused_and_brings_nothing_back() {
    let Some(server) = Server::start() else { return };
    let (lease, sandbox) = server.lease(&json!({}));
    let released = server.delete(&format!("/api/v1/leases/{lease}")).ok();
    let beat = server.post(&format!("/api/v1/leases/{lease}/heartbeat"), &json!({}));
    assert_eq!(beat.refused(409), "conflict");
    let now = server.get(&format!("/api/v1/leases/{lease}")).ok();
    assert_eq!((&now["status"], &now["expires_at"]), (&json!("RELEASED"), &released["expires_at"]));
    eventually("a released sandbox", || {
        (server.get(&format!("/api/v1/sandboxes/{sandbox}")).ok()["state"] == "gone").then_some(())
    });
}

#[test]
fn an_exec_on_an_expiring_lease_runs_or_is_refused_and_never_lies() {
    let Some(server) = Server::start() else { return };
    let (lease, sandbox) = server.lease(&json!({ "ttl_seconds": 2 }));
    let execs = format!("/api/v1/sandboxes/{sandbox}/execs");
    let long = server.post(&execs, &json!({ "command": "echo begun; sleep 600", "background": true })).ok();
    let mut ran = 0;
    let refused = eventually("a lease that is over", || {
        let answer = server.post(&execs, &json!({ "command": "echo whole" }));
        if answer.status == 200 {
            // Cut off by the end of its lease it is not known how it ended; otherwise all of it is there.
            let result = answer.json()["result"].clone();
            let whole = result["exit_code"] == 0 && result["stdout"]["content"] == "whole\n";
            assert!(whole || result["exit"] == "unknown" || result["exit"] == "not_started", "{result}");
            ran += 1;
            return None;
        }
        Some(answer)
    });
    assert!(ran > 0, "nothing ran before the lease was over");
    // Refused by the row, or by the sandbox that went in between.
    assert!([409, 503].contains(&refused.status), "{refused:?}");
    eventually("the lease", || {
        (server.get(&format!("/api/v1/leases/{lease}")).ok()["status"] == "EXPIRED").then_some(())
    });
    let path = format!("/api/v1/execs/{}", long["exec_id"].as_str().expect("an id"));
    let ended = eventually("what ran when it was over", || {
        let exec = server.get(&path).ok();
        (exec["state"] == "ended").then_some(exec)
    });
    assert_ne!(ended["result"]["exit_code"], 0, "{ended}");
    assert_eq!(server.get(&format!("{path}/output")).text, "begun\n");
}

#[test]
fn a_full_host_says_so_or_lets_wait_in_line() {
    let Some(server) = Server::start_with(&["--pool-size", "0", "--capacity", "2"]) else { return };
    let (first, _) = server.lease(&json!({}));
    let (_second, _) = server.lease(&json!({}));
    let full = server.post("/api/v1/leases", &json!({}));
    assert_eq!(full.refused(429), "full");
    assert!(!full.header("retry-after").is_empty());
    let waits = server.post("/api/v1/leases", &json!({ "queue": true, "env": { "WAITED": "yes" } }));
    assert_eq!(waits.status, 202);
    let waits = waits.json();
    assert_eq!((&waits["status"], &waits["queue"]["position"]), (&json!("QUEUED"), &json!(1)));
    let id = waits["lease_id"].as_str().expect("a lease has an id").to_owned();
    server.delete(&format!("/api/v1/leases/{first}")).ok();
    let lease = eventually("a lease in the queue", || {
        let lease = server.get(&format!("/api/v1/leases/{id}")).ok();
        (lease["status"] == "ACTIVE").then_some(lease)
    });
    let sandbox = lease["sandbox_id"].as_str().expect("an active lease has a sandbox");
    assert_eq!(server.prints(sandbox, "echo $WAITED"), "yes\n");
}

#[test]
fn a_quota_is_kept_and_named() {
    let Some(server) = Server::start() else { return };
    let key = server.key_of("small", "ada", &["read", "run"]);
    server.put("/api/v1/tenants/small", &json!({ "quota": { "leases": 1, "execs": 1 } })).ok();
    let lease = server.with_key("POST", "/api/v1/leases", &json!({}), &key).ok();
    let refused = server.with_key("POST", "/api/v1/leases", &json!({}), &key);
    assert_eq!(refused.refused(429), "full");
    assert!(refused.text.contains("leases"), "{refused:?}");
    let execs = format!("/api/v1/sandboxes/{}/execs", lease["sandbox_id"].as_str().expect("it is active"));
    server.with_key("POST", &execs, &json!({ "command": "sleep 60", "background": true }), &key).ok();
    assert_eq!(server.with_key("POST", &execs, &json!({ "command": "true" }), &key).refused(429), "full");
    let tenant = server.get("/api/v1/tenants/small").ok();
    assert_eq!((&tenant["usage"]["leases"], &tenant["usage"]["execs"]), (&json!(1), &json!(1)));
}

#[test]
fn a_sandbox_that_dies_takes_its_lease_with_it() {
    let Some(server) = Server::start() else { return };
    let (lease, sandbox) = server.lease(&json!({}));
    let removed = server.host.cubicle(&["rm", &sandbox]);
    assert!(removed.status.success(), "{removed:?}");
    let ended = eventually("the lease of a dead sandbox", || {
        let lease = server.get(&format!("/api/v1/leases/{lease}")).ok();
        (lease["status"] == "EXPIRED").then_some(lease)
    });
    assert_eq!(ended["ended_because"], "sandbox_ended");
}

#[test]
fn templates_say_what_becomes_of_a_sandbox() {
    let Some(server) = Server::start() else { return };
    server.put("/api/v1/templates/mine", &json!({ "reuse": "same_user", "env": { "T": "1" } })).ok();
    let (first, sandbox) = server.lease(&json!({ "template": "mine" }));
    assert_eq!(server.prints(&sandbox, "echo $T; echo kept > note"), "1\n");
    server.delete(&format!("/api/v1/leases/{first}")).ok();
    let again = server.post("/api/v1/leases", &json!({ "template": "mine" })).ok();
    assert_eq!((&again["sandbox_id"], &again["admission"]), (&json!(sandbox), &json!("warm")));
    assert_eq!(server.prints(&sandbox, "cat note"), "kept\n");
    let other = server.key_of("default", "somebody-else", &["read", "run"]);
    server.delete(&format!("/api/v1/leases/{}", again["lease_id"].as_str().expect("it has an id"))).ok();
    let foreign = server.with_key("POST", "/api/v1/leases", &json!({ "template": "mine" }), &other).ok();
    assert_ne!(foreign["sandbox_id"], sandbox, "somebody else got a used sandbox");

    let stale = server.request(
        "PUT",
        "/api/v1/templates/mine",
        b"{}",
        &crate::client::With { headers: &[("if-match", "\"99\"")], ..Default::default() },
    );
    assert_eq!(stale.refused(409), "conflict");
    let current = server.get("/api/v1/templates/mine");
    let tag = current.header("etag").to_owned();
    let replaced = server.request(
        "PUT",
        "/api/v1/templates/mine",
        b"{}",
        &crate::client::With { headers: &[("if-match", &tag)], ..Default::default() },
    );
    assert_eq!(replaced.status, 200, "{replaced:?}");
    assert_eq!(server.delete("/api/v1/templates/mine").status, 204);
    assert_eq!(server.get("/api/v1/templates/mine").refused(404), "not_found");
}

#[test]
fn the_sandbox_managers_dialect_keeps_its_exact_form() {
    let Some(server) = Server::start() else { return };
    let asked = json!({ "userId": "admin", "workflowId": "w", "requestId": "r", "ttlSeconds": 60 });
    let lease = server.post("/sandboxes/leases", &asked).ok();
    let names: Vec<_> = lease.as_object().expect("an object").keys().cloned().collect();
    assert_eq!(names, ["expiresAt", "leaseId", "sandboxId"]);
    assert_eq!(server.post("/sandboxes/leases", &asked).ok(), lease, "the same request got another lease");
    let key = server.key_of("default", "ada", &["read", "run"]);
    let foreign = json!({ "userId": "eve", "workflowId": "w", "requestId": "r" });
    assert_eq!(server.with_key("POST", "/sandboxes/leases", &foreign, &key).refused(403), "denied");
    let path = format!("/sandboxes/leases/{}", lease["leaseId"].as_str().expect("it has an id"));
    assert_eq!(server.delete(&path).status, 204);
    assert_eq!(server.delete(&path).status, 204);
}

#[test]
fn the_pool_is_kept_at_its_size_with_fresh_sandboxes() {
    let Some(server) = Server::start_with(&["--pool-size", "3"]) else { return };
    let idle = || -> std::collections::BTreeSet<String> {
        let all = server.get("/api/v1/sandboxes?state=idle").ok();
        let items = all["items"].as_array().expect("items").clone();
        items.iter().map(|sandbox| sandbox["sandbox_id"].as_str().expect("an id").to_owned()).collect()
    };
    let before = eventually("a full pool", || Some(idle()).filter(|idle| idle.len() == 3));
    let (lease, sandbox) = server.lease(&json!({}));
    assert!(before.contains(&sandbox), "a lease did not take a ready sandbox");
    let refilled = eventually("a pool that is full again", || Some(idle()).filter(|idle| idle.len() >= 3));
    assert!(!refilled.contains(&sandbox));
    server.delete(&format!("/api/v1/leases/{lease}")).ok();
    eventually("a destroyed sandbox", || {
        let state = server.get(&format!("/api/v1/sandboxes/{sandbox}")).ok()["state"].clone();
        (state == "gone").then_some(())
    });
    assert!(!idle().contains(&sandbox), "a used sandbox went back into the pool");
}

#[test]
fn a_sandbox_that_is_kept_for_its_caches_is_emptied_of_everything_else() {
    let Some(server) = Server::start() else { return };
    server.put("/api/v1/templates/cached", &json!({ "reuse": "env_cache" })).ok();
    let (first, sandbox) = server.lease(&json!({ "template": "cached" }));
    server.prints(&sandbox, "echo w > wheel; echo c > .cache/wheel; echo t > /tmp/note");
    let asked = json!({ "command": "sleep 600", "background": true });
    let exec = server.post(&format!("/api/v1/sandboxes/{sandbox}/execs"), &asked).ok();
    server.delete(&format!("/api/v1/leases/{first}")).ok();
    let again = server.post("/api/v1/leases", &json!({ "template": "cached" })).ok();
    assert_eq!(again["sandbox_id"], sandbox, "{again}");
    assert_eq!(
        server.prints(&sandbox, "ls; cat .cache/wheel; ls /tmp; pgrep sleep | wc -l"),
        "tools\nc\n0\n"
    );
    let exec = server.get(&format!("/api/v1/execs/{}", exec["exec_id"].as_str().expect("an id"))).ok();
    assert_eq!(exec["state"], "ended", "{exec}");
}

#[test]
fn a_sandbox_goes_from_idle_over_running_to_its_end_and_a_fresh_one_takes_its_place() {
    let Some(server) = Server::start_with(&["--pool-size", "1"]) else { return };
    let idle = || server.get("/api/v1/sandboxes?state=idle").ok()["items"][0]["sandbox_id"].clone();
    let first = eventually("an idle sandbox", || idle().as_str().map(str::to_owned));
    let state = || server.get(&format!("/api/v1/sandboxes/{first}")).ok()["state"].clone();
    assert_eq!(state(), "idle");
    let (lease, sandbox) = server.lease(&json!({}));
    assert_eq!((sandbox.as_str(), state()), (first.as_str(), json!("leased")));
    let asked = json!({ "command": "sleep 600", "background": true });
    let exec = server.post(&format!("/api/v1/sandboxes/{sandbox}/execs"), &asked).ok();
    assert_eq!(state(), "running");
    server.delete(&format!("/api/v1/execs/{}?grace_seconds=0", exec["exec_id"].as_str().expect("an id")));
    eventually("an exec that ended", || (state() == "leased").then_some(()));
    server.delete(&format!("/api/v1/leases/{lease}")).ok();
    assert!(["teardown", "gone"].contains(&state().as_str().expect("a state")));
    eventually("a sandbox that is gone", || (state() == "gone").then_some(()));
    let next = eventually("a fresh sandbox", || idle().as_str().map(str::to_owned));
    assert_ne!(next, first);
}

#[test]
fn a_run_that_succeeds_crashes_or_takes_too_long_gives_its_lease_back_and_is_torn_down() {
    let Some(server) = Server::start() else { return };
    let table = [
        (json!({ "command": "exit 0" }), json!({ "code": 0 })),
        (json!({ "command": "kill -SEGV $$" }), json!({ "signal": 11 })),
        (json!({ "command": "sleep 600", "timeout_seconds": 0.2 }), json!("timed_out")),
    ];
    for (asked, exit) in table {
        let exec = server.post("/api/v1/execs", &asked).ok();
        assert_eq!(exec["result"]["exit"], exit, "{asked}");
        let (lease, sandbox) =
            (exec["lease_id"].as_str().expect("an id"), exec["sandbox_id"].as_str().expect("an id"));
        eventually("its lease", || {
            (server.get(&format!("/api/v1/leases/{lease}")).ok()["status"] == "RELEASED").then_some(())
        });
        eventually("its sandbox", || {
            (server.get(&format!("/api/v1/sandboxes/{sandbox}")).ok()["state"] == "gone").then_some(())
        });
    }
}

#[test]
fn a_workflow_runs_in_a_sandbox_of_its_own_and_leaves_a_record_with_its_logs() {
    let Some(server) = Server::start() else { return };
    let asked =
        |request: &str| json!({ "userId": "root", "workflowId": "monthly-report", "requestId": request });
    let first = server.post("/sandboxes/leases", &asked("run-1")).ok();
    let second = server.post("/sandboxes/leases", &asked("run-2")).ok();
    assert_ne!(first["sandboxId"], second["sandboxId"], "a sandbox is for one run at a time");
    let sandbox = first["sandboxId"].as_str().expect("an id");
    let run = json!({ "command": "echo counted; echo warned >&2; exit 3" });
    let run = server.post(&format!("/api/v1/sandboxes/{sandbox}/execs"), &run).ok();
    let lease = first["leaseId"].as_str().expect("an id");
    assert_eq!(server.delete(&format!("/sandboxes/leases/{lease}")).status, 204);

    // Its sandbox is gone; the record says what ran for whom, how it ended and how much it logged, and leads to the log.
    let exec = run["exec_id"].as_str().expect("an id");
    let record = server.get(&format!("/api/v1/execs/{exec}")).ok();
    assert_eq!((&record["state"], &record["lease_id"]), (&json!("ended"), &first["leaseId"]), "{record}");
    let result = &record["result"];
    assert_eq!(
        (&result["exit_code"], &result["stdout_bytes"], &result["stderr_bytes"]),
        (&json!(3), &json!(8), &json!(7))
    );
    assert_eq!(server.get(&format!("/api/v1/leases/{lease}")).ok()["workflow"], "monthly-report");
    let journal = eventually("the journal", || {
        let kept = server.get("/api/v1/artifacts").ok();
        let mut kept = kept["items"].as_array()?.clone().into_iter();
        kept.find(|kept| kept["subject"] == first["sandboxId"] && kept["kind"] == "journal")
    });
    assert!(journal["size"].as_u64().is_some_and(|size| size > 0), "{journal}");
    let log = server.get(&format!("/api/v1/execs/{exec}/output"));
    assert!(log.text.contains("counted") || log.text.contains("Y291bnRlZA"), "{log:?}");
}
