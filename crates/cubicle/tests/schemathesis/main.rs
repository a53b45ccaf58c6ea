//! Requests that nobody would think of: schemathesis makes them up from the OpenAPI document, valid ones and others, and
//! looks at every answer. No answer may be a defect, have a status that is not documented, or a body of another form.
//!
//! `CUBICLE_API_CASES` says how many at least (2000), `CUBICLE_API_SEED` which ones (1).

#[path = "../api/client.rs"]
#[allow(dead_code, reason = "other suites use more of it")]
mod client;
#[path = "../host/mod.rs"]
#[allow(dead_code, reason = "other suites use more of it")]
mod host;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use client::{Server, eventually};

/// Long enough for ten thousand cases on a slow host; only a hang gets there.
const BOUND: Duration = Duration::from_secs(1800);
/// Whatever is asked for is answered by then: the longest exec is half a second.
const REQUEST_TIMEOUT: &str = "30";
/// Two are left out. `positive_data_acceptance`: that a moment must be in the future, or a command one that exists, cannot be
/// said in a schema. `use_after_free`: what was ended or revoked stays readable, as a record.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
    response_headers_conformance,response_schema_conformance,negative_data_rejection,missing_required_header,\
    unsupported_method,allow_header_conformance,ensure_resource_availability,ignored_auth";

fn variable(name: &str) -> Option<String> {
    #[expect(clippy::disallowed_methods, reason = "whoever starts the test says what it is to do")]
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

fn number(name: &str, default: u64) -> u64 {
    variable(name)
        .map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// The program that scripts/setup-ci installed, or one that is in the path.
fn program() -> Option<PathBuf> {
    let program = variable("CUBICLE_TEST_SCHEMATHESIS").map_or_else(|| "schemathesis".into(), PathBuf::from);
    #[expect(clippy::disallowed_methods, reason = "a black-box test asks another program")]
    let version = Command::new(&program).arg("--version").stdin(Stdio::null()).output();
    match version {
        Ok(output) if output.status.success() => Some(program),
        outcome => {
            let why = match outcome {
                Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
                Err(error) => error.to_string(),
            };
            let _ = writeln!(
                std::io::stderr(),
                "skipped: made_up_requests_get_documented_answers: {} does not start: {why}; scripts/setup-ci installs it",
                program.display()
            );
            None
        }
    }
}

/// Things to be found by their ids.
fn prepare(server: &Server) -> Value {
    let (lease, sandbox) = server.lease(&json!({ "ttl_seconds": 7200 }));
    let execs = format!("/api/v1/sandboxes/{sandbox}/execs");
    let ended = server.post(&execs, &json!({ "command": "echo prepared" })).ok();
    let waits = json!({ "command": "cat", "stdin": "stream", "background": true, "timeout_seconds": 7200 });
    let running = server.post(&execs, &waits).ok();
    let gone = server.post("/api/v1/execs", &json!({ "command": "echo kept" })).ok();
    let artifact = eventually("a kept journal", || {
        server.get("/api/v1/artifacts").ok()["items"][0]["artifact_id"].as_str().map(str::to_owned)
    });
    let keys = server.get("/api/v1/keys").ok();
    let key = &keys["items"][0]["key_id"];
    json!({
        "sandbox_id": [sandbox, gone["sandbox_id"]],
        "lease_id": [lease],
        "exec_id": [ended["exec_id"], running["exec_id"], gone["exec_id"]],
        "running": running["exec_id"],
        "artifact_id": [artifact],
        "key_id": [key],
    })
}

/// What it printed, when it has ended well.
fn run(program: &Path, server: &Server, cases: u64, seed: u64) -> String {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/schemathesis");
    let printed = server.host.scratch().join("printed");
    let file =
        || std::fs::File::options().append(true).create(true).open(&printed).expect("scratch is writable");
    #[expect(clippy::disallowed_methods, reason = "a black-box test asks another program")]
    let mut child = Command::new(program)
        .arg("--config-file")
        .arg(here.join("schemathesis.toml"))
        .args(["run", &format!("{}/api/v1/openapi.json", server.address)])
        .args(["--url", &server.address, "--checks", CHECKS, "--no-color", "--continue-on-failure"])
        .args(["--phases", "examples,coverage,fuzzing,stateful", "--request-timeout", REQUEST_TIMEOUT])
        // About fifty operations, and each phase makes some more.
        .args(["--max-examples", &(cases / 50).max(1).to_string(), "--seed", &seed.to_string()])
        .args(["--header", &format!("Authorization: Bearer {}", server.admin_key())])
        .env("SCHEMATHESIS_HOOKS", here.join("hooks.py"))
        // Nothing is written beside the hooks.
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("CUBICLE_PREPARED", prepare(server).to_string())
        // It keeps notes where it is started.
        .current_dir(server.host.scratch())
        .stdin(Stdio::null())
        .stdout(file())
        .stderr(file())
        .spawn()
        .expect("it started before");
    let started = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("the child is ours") {
            break status;
        }
        if started.elapsed() > BOUND {
            child.kill().expect("the child is ours");
            panic!("it did not end within {BOUND:?}");
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let printed = std::fs::read_to_string(&printed).expect("it printed something");
    assert!(status.success(), "{status} with the seed {seed}:\n{printed}");
    printed
}

/// `4685 generated, 4685 passed` of the summary.
fn generated(printed: &str) -> u64 {
    let line = printed.lines().find(|line| line.contains(" generated, "));
    let count = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    count.unwrap_or_else(|| panic!("it does not say how many cases it made:\n{printed}"))
}

#[test]
fn made_up_requests_get_documented_answers() {
    let Some(program) = program() else { return };
    let (cases, seed) = (number("CUBICLE_API_CASES", 2000), number("CUBICLE_API_SEED", 1));
    // A small host: most of what is asked for finds no room, which is an answer like any other.
    let flags = ["--pool-size", "1", "--capacity", "6", "--lease-ttl", "2s", "--sandbox-timeout", "1s"];
    let Some(server) = Server::start_with(&flags) else { return };
    let printed = run(&program, &server, cases, seed);
    let made = generated(&printed);
    let _ = writeln!(std::io::stderr(), "schemathesis: {made} cases with the seed {seed}");
    assert!(made >= cases, "only {made} cases:\n{printed}");

    // What schemathesis may have overlooked, the server has counted and logged.
    let metrics = server.get("/metrics").text;
    let defects: Vec<&str> = metrics
        .lines()
        .filter(|line| line.starts_with("cubicle_http_request_seconds_count") && line.contains("status=\"5"))
        .collect();
    assert_eq!(defects, Vec::<&str>::new());
    let errors: Vec<Value> = server.log().into_iter().filter(|line| line["level"] == "ERROR").collect();
    assert_eq!(errors, Vec::<Value>::new());
    let alive = eventually("room for one more", || {
        let exec = server.post("/api/v1/execs", &json!({ "command": "echo still fine" }));
        (exec.status == 200).then(|| exec.json())
    });
    assert_eq!(alive["result"]["stdout"]["content"], "still fine\n", "{alive}");
}
