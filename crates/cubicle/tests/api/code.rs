//! Code: the contract of `POST /execute`, field by field, through the server.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::client::{Server, eventually};

fn execute(server: &Server, sandbox: &str, asked: &Value) -> Value {
    server.post(&format!("/api/v1/sandboxes/{sandbox}/execute"), asked).ok()
}

fn decoded(value: &Value) -> String {
    let bytes = STANDARD.decode(value.as_str().expect("contents are base64")).expect("contents are base64");
    String::from_utf8(bytes).expect("the test wrote text")
}

#[test]
fn code_gets_its_files_and_gives_back_what_it_made() {
    let Some(server) = Server::start() else { return };
    let (_, sandbox) = server.lease(&json!({}));
    let code = "import json, os\n\
        rows = open('data.csv').read().split()\n\
        print(len(rows))\n\
        os.makedirs('deep/er', exist_ok=True)\n\
        json.dump(rows, open('result.json', 'w'))\n\
        open('deep/er/note.txt', 'w').write('nested')\n\
        os.makedirs('__pycache__', exist_ok=True); open('__pycache__/x.pyc', 'w').write('no')\n\
        open('.hidden', 'w').write('no')\n";
    let asked = json!({
        "tool_name": "python_execute", "code": code, "timeout_seconds": 30,
        "files": { "data.csv": STANDARD.encode("a\nb\nc\n") },
    });
    let done = execute(&server, &sandbox, &asked);
    assert_eq!(done["status"], "success", "{done}");
    assert_eq!((&done["output"], &done["stdout"]), (&json!("3\n"), &json!("3\n")));
    assert_eq!(
        (&done["stderr"], &done["exit_code"], &done["timed_out"]),
        (&json!(""), &json!(0), &json!(false))
    );
    assert!(done["execution_time_ms"].as_f64().is_some_and(|took| took > 0.0), "{done}");
    let files = done["files_produced"].as_object().expect("files");
    assert_eq!(files.keys().collect::<Vec<_>>(), ["deep/er/note.txt", "result.json"], "{done}");
    assert_eq!(decoded(&files["result.json"]), r#"["a", "b", "c"]"#);
    // Everything, where that is asked for; nothing that is as it was.
    let all = json!({ "code": "open('.later', 'w').write('x')", "all_files": true });
    let done = execute(&server, &sandbox, &all);
    assert_eq!(done["files_produced"].as_object().expect("files").keys().collect::<Vec<_>>(), [".later"]);
}

#[test]
fn code_ends_as_it_ends() {
    let Some(server) = Server::start() else { return };
    let (_, sandbox) = server.lease(&json!({}));
    let table = [
        (json!({ "code": "raise SystemExit(3)" }), "error", 3, false),
        (json!({ "code": "1/0" }), "error", 1, false),
        (json!({ "code": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)" }), "error", 137, false),
        (json!({ "code": "import time; time.sleep(60)", "timeout_seconds": 0.3 }), "timeout", 124, true),
        (json!({ "code": "exit 4", "language": "bash" }), "error", 4, false),
        (json!({ "code": "print(input())", "stdin": "hello\n" }), "success", 0, false),
        (
            json!({ "code": "import os; assert os.environ['A'] == 'b'", "env": { "A": "b" } }),
            "success",
            0,
            false,
        ),
        (json!({ "code": "import os; assert os.getcwd() == '/tmp'", "cwd": "/tmp" }), "success", 0, false),
    ];
    for (asked, status, code, timed_out) in table {
        let done = execute(&server, &sandbox, &asked);
        let seen = (&done["status"], &done["exit_code"], &done["timed_out"]);
        assert_eq!(seen, (&json!(status), &json!(code), &json!(timed_out)), "{asked}: {done}");
    }
    let done = execute(&server, &sandbox, &json!({ "code": "1/0" }));
    let stderr = done["stderr"].as_str().expect("text");
    assert!(stderr.contains("ZeroDivisionError") && stderr.contains("main.py\", line 1"), "{stderr}");
    let bytes = json!({ "code": "import sys; sys.stdout.buffer.write(b'a\\xffb')" });
    let done = execute(&server, &sandbox, &bytes);
    assert_eq!(done["output"], "a\u{fffd}b");
    assert_eq!(STANDARD.decode(done["stdout_base64"].as_str().expect("bytes")).expect("base64"), b"a\xffb");
}

#[test]
fn nothing_runs_when_the_request_is_bad() {
    let Some(server) = Server::start() else { return };
    let (_, sandbox) = server.lease(&json!({}));
    let path = format!("/api/v1/sandboxes/{sandbox}/execute");
    let many: serde_json::Map<String, Value> =
        (0..1001).map(|number| (format!("f{number}"), json!(""))).collect();
    let table = [
        json!({}),
        json!({ "code": "open('ran', 'w')", "files": { "a": "%%%" } }),
        json!({ "code": "open('ran', 'w')", "files": { "/etc/passwd": "" } }),
        json!({ "code": "open('ran', 'w')", "files": { "../up": "" } }),
        json!({ "code": "open('ran', 'w')", "files": many }),
        json!({ "code": "open('ran', 'w')", "language": "cobol" }),
        json!({ "code": "open('ran', 'w')", "timeout_seconds": 0 }),
        json!({ "code": "open('ran', 'w')", "timeout_seconds": -1 }),
        json!({ "code": "open('ran', 'w')", "cwd": "relative" }),
        json!({ "code": "open('ran', 'w')", "surprise": 1 }),
        json!({ "code": "open('ran', 'w')", "requirements": ["-r /etc/passwd"] }),
        json!({ "code": "open('ran', 'w')", "requirements": ["x @ https://example.org/x.whl"] }),
        json!({ "code": "open('ran', 'w')", "language": "bash", "requirements": ["six"] }),
        json!({ "code": "open('ran', 'w')", "python_index": "https://example.org/simple" }),
        json!({ "code": "open('ran', 'w')", "place": { "template": "default" } }),
    ];
    for asked in table {
        let refused = server.post(&path, &asked);
        assert!([400, 422].contains(&refused.status), "{asked}: {refused:?}");
        assert!(refused.json()["error"]["message"].as_str().is_some_and(|text| !text.is_empty()));
    }
    let unknown = server.post(&path, &json!({ "code": "1", "env_name": "nobody-made-it" }));
    assert!([400, 404].contains(&unknown.status), "{unknown:?}");
    assert_eq!(server.prints(&sandbox, "ls /workspace | grep -c ran || true"), "0\n");
}

#[test]
fn code_without_a_sandbox_gets_a_fresh_one_that_is_gone_afterwards() {
    let Some(server) = Server::start() else { return };
    let big = 6 * 1024 * 1024;
    let code = format!("open('big.bin', 'wb').write(b'x' * {big}); print(open('main.txt').read())");
    let files = json!({ "main.txt": STANDARD.encode("hello") });
    let done = server.post("/api/v1/execute", &json!({ "code": code, "files": files })).ok();
    assert_eq!((&done["status"], &done["output"]), (&json!("success"), &json!("hello\n")), "{done}");
    // Too large for the answer, and kept although its sandbox is gone.
    let reference = &done["files_referenced"][0];
    assert_eq!((&reference["name"], &reference["bytes"]), (&json!("big.bin"), &json!(big)), "{done}");
    let kept = server.get(reference["url"].as_str().expect("an address"));
    assert_eq!((kept.status, kept.text.len()), (200, big));
    let sandbox = done["sandbox_id"].as_str().expect("an id").to_owned();
    eventually("the sandbox of a one-shot", || {
        let sandbox = server.get(&format!("/api/v1/sandboxes/{sandbox}")).ok();
        (sandbox["state"] == "gone").then_some(())
    });
    let next = server.post("/api/v1/execute", &json!({ "code": "import os; print(os.listdir('.'))" })).ok();
    assert!(!next["output"].as_str().expect("text").contains("big.bin"), "{next}");
}

#[test]
fn a_kept_sandbox_is_used_again_where_its_template_says_so() {
    let Some(server) = Server::start() else { return };
    let recipe = json!({ "reuse": "same_user", "pool": { "size": 0, "min_idle": 0, "ceiling": 0 } });
    server.put("/api/v1/templates/kept", &recipe).ok();
    let place = json!({ "template": "kept" });
    let first =
        server.post("/api/v1/execute", &json!({ "code": "open('note', 'w').write('1')", "place": place }));
    let first = first.ok()["sandbox_id"].clone();
    let again = eventually("the kept sandbox", || {
        let done =
            server.post("/api/v1/execute", &json!({ "code": "print(open('note').read())", "place": place }));
        let done = done.ok();
        (done["sandbox_id"] == first).then_some(done)
    });
    assert_eq!(again["output"], "1\n");
}

#[test]
fn a_repeated_id_is_the_same_execution() {
    let Some(server) = Server::start() else { return };
    let (_, sandbox) = server.lease(&json!({}));
    let id = "exec-cccccccccccccccccccccccccc";
    let code = "open('count', 'a').write('x'); print(len(open('count').read()))";
    let first = execute(&server, &sandbox, &json!({ "code": code, "exec_id": id }));
    let second = execute(&server, &sandbox, &json!({ "code": code, "exec_id": id }));
    assert_eq!((&first["output"], &second["output"]), (&json!("1\n"), &json!("1\n")), "{second}");
    let other = json!({ "code": "print(2)", "exec_id": id });
    assert_eq!(server.post(&format!("/api/v1/sandboxes/{sandbox}/execute"), &other).refused(409), "conflict");
}

#[test]
fn a_template_brings_languages_of_its_own() {
    let Some(server) = Server::start() else { return };
    let recipe = json!({ "languages": { "awk": ["awk", "-f", "{file}"] } });
    server.put("/api/v1/templates/with-awk", &recipe).ok();
    let place = json!({ "template": "with-awk" });
    let asked = json!({ "code": "BEGIN { print 6 * 7 }", "language": "awk", "place": place });
    let done = server.post("/api/v1/execute", &asked).ok();
    assert_eq!((&done["status"], &done["output"]), (&json!("success"), &json!("42\n")), "{done}");
    let asked = json!({ "code": "BEGIN { print 6 * 7 }", "language": "awk" });
    assert_eq!(server.post("/api/v1/execute", &asked).refused(400), "invalid");
}

#[test]
fn a_sandbox_says_how_it_is() {
    let Some(server) = Server::start() else { return };
    let (_, sandbox) = server.lease(&json!({}));
    let health = server.get(&format!("/api/v1/sandboxes/{sandbox}/health")).ok();
    assert_eq!((&health["status"], &health["state"]), (&json!("healthy"), &json!("idle")), "{health}");
    assert_eq!((&health["environments"], &health["current_load"]), (&json!([]), &json!(0)));
    assert!(health["capacity"].as_u64().is_some_and(|capacity| capacity > 0), "{health}");
    assert!(health["uptime_seconds"].is_u64(), "{health}");
}

#[test]
fn a_hundred_clients_at_once_all_get_their_answers() {
    let Some(server) = Server::start_with(&["--pool-size", "4"]) else { return };
    let (_, sandbox) = server.lease(&json!({}));
    let outputs: Vec<String> = std::thread::scope(|scope| {
        let (server, sandbox) = (&server, &sandbox);
        let clients: Vec<_> = (0..100)
            .map(|number| {
                scope.spawn(move || {
                    let asked = json!({ "code": format!("print({number} * 2)") });
                    eventually("room for code", || {
                        let answer = server.post(&format!("/api/v1/sandboxes/{sandbox}/execute"), &asked);
                        // A sandbox takes so much at once, and says so at once.
                        (answer.status != 429)
                            .then(|| answer.ok()["output"].as_str().unwrap_or("?").to_owned())
                    })
                })
            })
            .collect();
        clients.into_iter().map(|client| client.join().expect("a client ends well")).collect()
    });
    let expected: Vec<String> = (0..100).map(|number| format!("{}\n", number * 2)).collect();
    assert_eq!(outputs, expected);
}

#[test]
fn output_of_code_is_masked_like_any_other() {
    let Some(server) = Server::start() else { return };
    let bound = json!([{ "host": "private.example", "form": "bearer" }]);
    server.put("/api/v1/secrets/token", &json!({ "value": "hunter2-hunter2", "bindings": bound })).ok();
    let done = server.post("/api/v1/execute", &json!({ "code": "print('hunter2-' + 'hunter2')" })).ok();
    assert!(!done["output"].as_str().expect("text").contains("hunter2"), "{done}");
    assert_eq!(done["redacted"], 1);
}
