//! Execs: what they print is complete, what they return is what the kernel said, and none runs twice.

use std::io::{BufRead, Read};

use serde_json::{Value, json};

use crate::client::{Server, With, eventually};

#[test]
fn one_call_leases_runs_and_releases() {
    let Some(server) = Server::start() else { return };
    let exec = server
        .post("/api/v1/execs", &json!({ "command": ["sh", "-c", "echo out; echo err >&2; exit 7"] }))
        .ok();
    let result = &exec["result"];
    assert_eq!((&result["exit"], &result["exit_code"]), (&json!({ "code": 7 }), &json!(7)));
    assert_eq!(
        (&result["stdout"]["content"], &result["stderr"]["content"]),
        (&json!("out\n"), &json!("err\n"))
    );
    let lease = exec["lease_id"].as_str().expect("it had a lease");
    eventually("the lease of a one-shot", || {
        let lease = server.get(&format!("/api/v1/leases/{lease}")).ok();
        (lease["status"] == "RELEASED").then_some(())
    });
    // Its output stays readable.
    let path =
        format!("/api/v1/execs/{}/output?stream=stdout", exec["exec_id"].as_str().expect("it has an id"));
    assert_eq!(server.get(&path).text, "out\n");
}

#[test]
fn an_exit_is_what_the_kernel_said() {
    let Some(server) = Server::start() else { return };
    let (_, sandbox) = server.lease(&json!({ "limits": { "memory": 64_000_000 } }));
    let path = format!("/api/v1/sandboxes/{sandbox}/execs");
    let table = [
        (json!({ "command": "exit 3" }), json!({ "code": 3 }), 3),
        (json!({ "command": "kill -9 $$" }), json!({ "signal": 9 }), 137),
        (json!({ "command": "sleep 60", "timeout_seconds": 0.2 }), json!("timed_out"), 124),
        (json!({ "command": ["python3", "-c", "x = bytearray(10**9)"] }), json!("oom"), 137),
    ];
    for (asked, exit, code) in table {
        let exec = server.post(&path, &asked).ok();
        assert_eq!((&exec["result"]["exit"], &exec["result"]["exit_code"]), (&exit, &json!(code)), "{asked}");
    }
    let refused = server.post(&path, &json!({ "command": ["/no/such/program"] }));
    assert!((400..500).contains(&refused.status), "{refused:?}");
}

#[test]
fn an_exec_that_is_refused_says_why_and_claims_no_process() {
    let Some(server) = Server::start() else { return };
    let (_, sandbox) = server.lease(&json!({}));
    for (id, background) in
        [("exec-eeeeeeeeeeeeeeeeeeeeeeeeee", false), ("exec-ffffffffffffffffffffffffff", true)]
    {
        let asked = json!({ "command": ["/no/such/program"], "exec_id": id, "background": background });
        let refused = server.post(&format!("/api/v1/sandboxes/{sandbox}/execs"), &asked);
        assert_eq!(refused.refused(400), "invalid");
        let exec = eventually("a refused exec", || {
            let exec = server.get(&format!("/api/v1/execs/{id}")).ok();
            (exec["state"] == "ended").then_some(exec)
        });
        let result = &exec["result"];
        assert_eq!((&result["exit"], &result["exit_code"]), (&json!("not_started"), &json!(125)), "{exec}");
        assert_eq!(result["refused"], refused.json()["error"]["message"], "a refusal says why");
    }
}

#[test]
fn an_exec_id_never_runs_twice() {
    let Some(server) = Server::start() else { return };
    let (_, sandbox) = server.lease(&json!({}));
    let path = format!("/api/v1/sandboxes/{sandbox}/execs");
    let asked = json!({ "command": "echo line >> /workspace/log; cat /workspace/log", "exec_id": "exec-bbbbbbbbbbbbbbbbbbbbbbbbbb" });
    let outputs: Vec<Value> = std::thread::scope(|scope| {
        let asking: Vec<_> = (0..20).map(|_| scope.spawn(|| server.post(&path, &asked).ok())).collect();
        asking.into_iter().map(|one| one.join().expect("every request is answered")).collect()
    });
    for output in &outputs {
        assert_eq!(output["result"]["stdout"]["content"], "line\n");
    }
    let other = json!({ "command": "true", "exec_id": "exec-bbbbbbbbbbbbbbbbbbbbbbbbbb" });
    assert_eq!(server.post(&path, &other).refused(409), "conflict");
    let with = With { headers: &[("idempotency-key", "k1")], ..With::default() };
    let body = json!({ "command": "date +%s%N" }).to_string();
    let first = server.request("POST", &path, body.as_bytes(), &with).ok();
    let again = server.request("POST", &path, body.as_bytes(), &with).ok();
    assert_eq!(first["exec_id"], again["exec_id"]);
    assert_eq!(first["result"]["stdout"], again["result"]["stdout"]);
}

#[test]
fn a_one_shot_that_is_asked_for_again_is_the_same_or_refused() {
    let Some(server) = Server::start() else { return };
    let asked = |command: &str| json!({ "command": command, "exec_id": "exec-cccccccccccccccccccccccccc" });
    let first = server.post("/api/v1/execs", &asked("date +%s%N")).ok();
    let again = server.post("/api/v1/execs", &asked("date +%s%N")).ok();
    assert_eq!(
        (&first["exec_id"], &first["result"]["stdout"]),
        (&again["exec_id"], &again["result"]["stdout"])
    );
    let lease = format!("/api/v1/leases/{}", first["lease_id"].as_str().expect("it had a lease"));
    eventually("the lease has ended", || (server.get(&lease).ok()["status"] == "RELEASED").then_some(()));
    assert_eq!(server.post("/api/v1/execs", &asked("echo other")).refused(409), "conflict");
    let again = server.post("/api/v1/execs", &asked("date +%s%N")).ok();
    assert_eq!(first["result"]["stdout"], again["result"]["stdout"]);
}

#[test]
fn output_can_be_read_from_any_seq_in_every_form() {
    let Some(server) = Server::start() else { return };
    let (_, sandbox) = server.lease(&json!({}));
    let asked = json!({ "command": "for i in 1 2 3 4 5; do echo line $i; sleep 0.05; done; printf '\\377\\000' >&2", "background": true });
    let exec = server.post(&format!("/api/v1/sandboxes/{sandbox}/execs"), &asked).ok();
    assert_eq!(exec["state"], "running");
    let path = format!("/api/v1/execs/{}/output", exec["exec_id"].as_str().expect("it has an id"));
    let mut lines = String::new();
    server.stream(&path, &[("accept", "application/x-ndjson")]).read_to_string(&mut lines).expect("it ends");
    let frames: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect();
    let text: String = frames
        .iter()
        .filter(|frame| frame["kind"] == "stdout")
        .map(|frame| frame["content"].as_str().expect("text"))
        .collect();
    assert_eq!(text, "line 1\nline 2\nline 3\nline 4\nline 5\n");
    let bytes = frames.iter().find(|frame| frame["kind"] == "stderr").expect("it wrote to stderr");
    assert_eq!((&bytes["content"], &bytes["encoding"]), (&json!("/wA="), &json!("base64")));
    assert_eq!(frames.last().expect("there are frames")["kind"], "eof");
    // Resume after the third frame, as a browser does.
    let third = frames[2]["seq"].to_string();
    let mut rest = String::new();
    let headers = [("accept", "text/event-stream"), ("last-event-id", third.as_str())];
    server.stream(&path, &headers).read_to_string(&mut rest).expect("it ends");
    let ids: Vec<&str> = rest.lines().filter_map(|line| line.strip_prefix("id: ")).collect();
    let expected: Vec<String> = frames[3..].iter().map(|frame| frame["seq"].to_string()).collect();
    assert_eq!(ids, expected);
    assert_eq!(server.get(&format!("{path}?stream=stdout")).text, text);
}

#[test]
fn an_exec_takes_input_signals_and_an_end() {
    let Some(server) = Server::start() else { return };
    let (_, sandbox) = server.lease(&json!({}));
    let execs = format!("/api/v1/sandboxes/{sandbox}/execs");
    let start =
        |asked: Value| server.post(&execs, &asked).ok()["exec_id"].as_str().expect("it has an id").to_owned();
    let ended = |id: &str| {
        eventually("an exec", || {
            let exec = server.get(&format!("/api/v1/execs/{id}")).ok();
            (exec["state"] == "ended").then_some(exec)
        })
    };
    let cat = start(json!({ "command": "cat", "stdin": "stream", "background": true }));
    let post = |path: String, body: &[u8]| server.request("POST", &path, body, &With::default());
    assert_eq!(post(format!("/api/v1/execs/{cat}/stdin"), b"one ").status, 204);
    assert_eq!(post(format!("/api/v1/execs/{cat}/stdin?close=true"), b"two").status, 204);
    assert_eq!(ended(&cat)["result"]["exit_code"], 0);
    assert_eq!(server.get(&format!("/api/v1/execs/{cat}/output")).text, "one two");

    let sleeping = start(json!({ "command": ["sleep", "60"], "background": true }));
    assert_eq!(
        server.post(&format!("/api/v1/execs/{sleeping}/signal"), &json!({ "signal": "USR1" })).status,
        204
    );
    assert_eq!(ended(&sleeping)["result"]["exit"], json!({ "signal": 10 }));

    let stubborn = start(json!({ "command": "trap '' TERM; sleep 60 & wait; sleep 60", "background": true }));
    let running = server.get(&format!("/api/v1/sandboxes/{sandbox}")).ok();
    assert_eq!(running["state"], "running");
    assert_eq!(server.delete(&format!("/api/v1/execs/{stubborn}?grace_seconds=0.2")).status, 204);
    assert_eq!(ended(&stubborn)["state"], "ended");
    assert_eq!(server.delete(&format!("/api/v1/execs/{stubborn}")).status, 204);
    let late = post(format!("/api/v1/execs/{stubborn}/stdin"), b"x");
    assert_eq!(late.refused(409), "conflict");
}

#[test]
fn a_client_that_hangs_up_does_not_end_what_it_asked_for() {
    let Some(server) = Server::start() else { return };
    let (_, sandbox) = server.lease(&json!({}));
    let id = "exec-cccccccccccccccccccccccccc";
    let body = json!({ "command": "sleep 1; echo survived", "exec_id": id }).to_string();
    {
        use std::io::Write;
        let at = server.address.trim_start_matches("http://");
        let mut stream = std::net::TcpStream::connect(at).expect("the server listens");
        write!(
            stream,
            "POST /api/v1/sandboxes/{sandbox}/execs HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-length: {}\r\n\r\n{body}",
            server.admin_key(),
            body.len()
        )
        .expect("a request can be sent");
        eventually("an exec that was asked for", || {
            (server.get(&format!("/api/v1/execs/{id}")).status == 200).then_some(())
        });
    }
    let exec = eventually("an exec without its caller", || {
        let exec = server.get(&format!("/api/v1/execs/{id}")).ok();
        (exec["state"] == "ended").then_some(exec)
    });
    assert_eq!(exec["result"]["exit_code"], 0);
    assert_eq!(server.get(&format!("/api/v1/execs/{id}/output")).text, "survived\n");
}

#[test]
fn everything_about_an_object_is_one_stream() {
    let Some(server) = Server::start() else { return };
    let (lease, sandbox) = server.lease(&json!({}));
    let exec =
        server.post(&format!("/api/v1/sandboxes/{sandbox}/execs"), &json!({ "command": "echo seen" })).ok();
    let mut output = String::new();
    let path = format!("/api/stream/{}", exec["exec_id"].as_str().expect("it has an id"));
    server.stream(&path, &[]).read_to_string(&mut output).expect("it ends");
    assert!(output.contains("event: stdout") && output.contains("seen"), "{output}");

    let mut events = server.stream(&format!("/api/stream/{lease}"), &[]);
    server.delete(&format!("/api/v1/leases/{lease}")).ok();
    let mut told = String::new();
    events.read_to_string(&mut told).expect("it ends with the lease");
    let kinds: Vec<&str> = told.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
    assert_eq!(kinds, ["lease.active", "lease.released"]);
    assert_eq!(server.get("/api/stream/nonsense").refused(400), "invalid");
}

#[test]
fn the_start_of_an_exec_is_told_while_it_runs() {
    let Some(server) = Server::start() else { return };
    let (_, sandbox) = server.lease(&json!({}));
    let execs = format!("/api/v1/sandboxes/{sandbox}/execs");
    let events = server.stream("/api/v1/events?after=0", &[("accept", "application/x-ndjson")]);
    // Without an end to wait for it ends by itself, late.
    let script = "for i in $(seq 500); do [ -e /tmp/go ] && exit 7; sleep 0.02; done";
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| server.post(&execs, &json!({ "command": script })).ok());
        let lines = events.lines().map(|line| line.expect("a line can be read"));
        let mut events = lines.filter_map(|line| serde_json::from_str::<Value>(&line).ok());
        let started = events.find(|event| event["type"] == "exec.started").expect("events go on");
        let id = started["subject"].as_str().expect("a text").to_owned();
        assert_eq!(server.get(&format!("/api/v1/execs/{id}")).ok()["state"], "running");
        server.post(&execs, &json!({ "command": "touch /tmp/go" })).ok();
        assert_eq!(waiting.join().expect("an answer")["result"]["exit_code"], 7);
    });
}

#[test]
fn events_count_without_gaps_and_resume() {
    let Some(server) = Server::start() else { return };
    for _ in 0..3 {
        let (lease, _) = server.lease(&json!({}));
        server.delete(&format!("/api/v1/leases/{lease}")).ok();
    }
    let read = |after: &str, count: usize| {
        let stream =
            server.stream(&format!("/api/v1/events?after={after}"), &[("accept", "application/x-ndjson")]);
        let lines =
            stream.lines().map(|line| line.expect("a line can be read")).filter(|line| !line.is_empty());
        lines
            .take(count)
            .map(|line| serde_json::from_str(&line).expect("a line is JSON"))
            .collect::<Vec<Value>>()
    };
    let first = read("0", 6);
    let seqs: Vec<i64> = first.iter().map(|event| event["seq"].as_i64().expect("a number")).collect();
    assert_eq!(seqs, (1..=6).collect::<Vec<i64>>());
    assert_eq!(read("4", 2), first[4..6]);
}
