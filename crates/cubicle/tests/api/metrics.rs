//! What Prometheus is told: checked by its own tool, on a server that has done all kinds of work.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::json;

use crate::client::{Server, With, eventually};

/// Says what is wrong with a text, if anything; nothing where the tool is not installed.
fn complaints_of_promtool(text: &str) -> Option<String> {
    #[expect(clippy::disallowed_methods, reason = "the Makefile says where the tool was unpacked")]
    let named = std::env::var_os("CUBICLE_TEST_PROMTOOL").filter(|path| !path.is_empty());
    let program = named.map_or_else(|| PathBuf::from("promtool"), PathBuf::from);
    #[expect(clippy::disallowed_methods, reason = "a black-box test asks another program")]
    let child = Command::new(&program)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => {
            let test = std::thread::current().name().unwrap_or("a test").to_owned();
            let _ = writeln!(
                std::io::stderr(),
                "skipped: {test}: {} cannot be started: {error}; scripts/setup-ci unpacks it",
                program.display()
            );
            return None;
        }
    };
    let mut stdin = child.stdin.take().expect("stdin is piped");
    stdin.write_all(text.as_bytes()).expect("the tool reads");
    drop(stdin);
    let output = child.wait_with_output().expect("the tool is ours");
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    match output.status.success() {
        true => Some(said),
        false => Some(format!("{}: {said}", output.status)),
    }
}

fn scrape(server: &Server) -> String {
    server.request("GET", "/metrics", b"", &With { key: Some(""), headers: &[] }).text
}

/// The value of a sample, by its name and labels as they are written.
fn value(text: &str, sample: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' ')?.parse().ok())
}

#[test]
fn metrics_of_a_server_that_has_worked_pass_promtool() {
    let Some(server) = Server::start_with(&["--pool-size", "1", "--capacity", "3"]) else { return };
    // Success, failure, time-out, a refusal, a private template, files, a queue.
    // Sandboxes of what ended just now may still be on their way out.
    let once_there_is_room = |path: &str, asked: &serde_json::Value| {
        eventually("room", || {
            let answer = server.post(path, asked);
            (answer.status != 429).then(|| answer.ok())
        })
    };
    let exec = |asked: &serde_json::Value| once_there_is_room("/api/v1/execs", asked);
    exec(
        &json!({ "command": "python3 -c 'sum(range(3000000))' || true", "files": [{ "path": "a", "content": "x" }] }),
    );
    exec(&json!({ "command": "exit 1" }));
    exec(&json!({ "command": "sleep 60", "timeout_seconds": 0.2 }));
    server.post("/api/v1/execs", &json!({ "command": [] })).refused(400);
    server.put("/api/v1/templates/quiet-plan", &json!({ "pool": { "size": 0, "ceiling": 0 } })).ok();
    let lease = |asked: &serde_json::Value| {
        let lease = once_there_is_room("/api/v1/leases", asked);
        lease["sandbox_id"].as_str().expect("a lease has a sandbox").to_owned()
    };
    let private = lease(&json!({ "template": "quiet-plan" }));
    let sandbox = lease(&json!({}));
    lease(&json!({}));
    let queued = server.post("/api/v1/leases", &json!({ "queue": true }));
    assert_eq!(queued.status, 202, "{queued:?}");

    let samples: &[(&str, f64)] = &[
        ("cubicle_queue_depth", 1.0),
        ("cubicle_sandbox_capacity", 3.0),
        ("cubicle_active_leases{template=\"default\"}", 2.0),
        ("cubicle_active_leases{template=\"(private)\"}", 1.0),
        ("cubicle_pool_idle{template=\"default\"}", 0.0),
        ("cubicle_sandboxes{state=\"leased\",template=\"default\"}", 2.0),
        ("cubicle_failures_total{reason=\"error\"}", 1.0),
        ("cubicle_failures_total{reason=\"timeout\"}", 1.0),
        ("cubicle_run_seconds_count{template=\"default\"}", 3.0),
        ("cubicle_exec_seconds_count{template=\"default\"}", 3.0),
        ("cubicle_lease_seconds_count{template=\"default\"}", 3.0),
        ("cubicle_http_request_seconds_count{method=\"POST\",route=\"/api/v1/execs\",status=\"400\"}", 1.0),
    ];
    let text = eventually("the work shows in the metrics", || {
        let text = scrape(&server);
        samples.iter().all(|(sample, expected)| value(&text, sample) == Some(*expected)).then_some(text)
    });
    for positive in [
        "cubicle_backend_seconds_count{operation=\"create\"}",
        "cubicle_backend_seconds_count{operation=\"bind\"}",
        "cubicle_backend_seconds_count{operation=\"archive\"}",
        "cubicle_backend_seconds_count{operation=\"destroy\"}",
        "cubicle_journal_archived_bytes_total",
        "cubicle_journal_live_bytes{template=\"default\"}",
        "cubicle_exec_cpu_seconds_total{mode=\"user\",template=\"default\"}",
        "cubicle_acquire_seconds_count{admission=\"cold\"}",
    ] {
        assert!(value(&text, positive).is_some_and(|value| value > 0.0), "{positive} is missing:\n{text}");
    }
    assert!(!text.contains("quiet-plan"), "the name of a tenant's own template is told to everybody");
    assert!(!text.contains(&sandbox) && !text.contains(&private), "an id is told to everybody");

    let Some(complaints) = complaints_of_promtool(&text) else { return };
    assert_eq!(complaints, "", "of:\n{text}");
    // That the tool complains at all is a part of the test.
    let bad = complaints_of_promtool("a_seconds_total{x=\"1\"} 1\n").expect("it was started before");
    assert_ne!(bad, "");
}

#[test]
fn one_sandbox_can_be_scraped_with_a_key() {
    let Some(server) = Server::start() else { return };
    let (_, sandbox) = server.lease(&json!({}));
    let path = format!("/api/v1/sandboxes/{sandbox}/metrics");
    server.prints(&sandbox, "echo something for the journal");
    let json = server.get(&path).ok();
    assert_eq!((&json["sandbox_id"], &json["execs_running"]), (&json!(sandbox), &json!(0)));
    assert!(json["journal_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{json}");
    if let Some(memory) = json.get("memory_bytes") {
        assert!(memory.as_u64().is_some_and(|bytes| bytes > 0), "{json}");
        assert!(json["processes"].as_u64().is_some_and(|count| count >= 1), "{json}");
    }
    let plain = With { headers: &[("accept", "text/plain;version=0.0.4")], ..With::default() };
    let answer = server.request("GET", &path, b"", &plain);
    assert!(answer.header("content-type").starts_with("text/plain; version=0.0.4"), "{answer:?}");
    let running = format!("cubicle_sandbox_execs_running{{sandbox=\"{sandbox}\"}}");
    assert_eq!(value(&answer.text, &running), Some(0.0), "{answer:?}");
    let anonymous = With { key: Some(""), ..plain };
    assert_eq!(server.request("GET", &path, b"", &anonymous).refused(401), "unauthenticated");
    if let Some(complaints) = complaints_of_promtool(&answer.text) {
        assert_eq!(complaints, "", "of:\n{}", answer.text);
    }
}

#[test]
fn a_scraper_gets_the_format_that_it_asks_for() {
    let Some(server) = Server::start() else { return };
    let table = [
        ("", "text/plain; version=0.0.4; charset=utf-8"),
        ("text/plain;version=0.0.4", "text/plain; version=0.0.4; charset=utf-8"),
        (
            "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5",
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
        ),
    ];
    for (accept, expected) in table {
        let headers = [("accept", accept)];
        let headers = if accept.is_empty() { &headers[..0] } else { &headers[..] };
        let answer = server.request("GET", "/metrics", b"", &With { key: Some(""), headers });
        assert_eq!(answer.header("content-type"), expected, "{accept}");
        assert_eq!(answer.text.ends_with("# EOF\n"), expected.contains("openmetrics"), "{accept}");
    }
}
