use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;

use cubicle_guest::hello;
use cubicle_guest::journal::Kind;
use serde_json::json;

use crate::support::*;

#[test]
fn what_cannot_be_run_is_refused_and_leaves_no_record() {
    let sandbox = Sandbox::start();
    let plain = sandbox.directory.path().join("plain");
    std::fs::write(&plain, "just text").unwrap();
    let script = sandbox.directory.path().join("script");
    std::fs::write(&script, "no interpreter line\n").unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let table = [
        (json!({ "command": ["no-such-program"], "cwd": "/" }), 422, "command_not_found"),
        (json!({ "command": ["/no/such/program"], "cwd": "/" }), 422, "command_not_found"),
        (json!({ "command": ["/etc/passwd/x"], "cwd": "/" }), 422, "command_not_found"),
        (json!({ "command": [plain], "cwd": "/" }), 422, "not_executable"),
        (json!({ "command": [script], "cwd": "/" }), 422, "not_executable"),
        (json!({ "command": ["/usr"], "cwd": "/" }), 422, "not_executable"),
        (json!({ "command": "true", "cwd": "/no/such/directory" }), 422, "cwd_missing"),
        (json!({ "command": "true", "cwd": "/etc/passwd" }), 422, "cwd_missing"),
        (json!({ "command": ["true", "x".repeat(200_000)], "cwd": "/" }), 422, "arguments_too_long"),
        (json!({ "command": [], "cwd": "/" }), 400, "invalid"),
        (json!({ "command": ["a\0b"], "cwd": "/" }), 400, "invalid"),
        (json!({ "command": "true", "cwd": "relative" }), 400, "invalid"),
        (json!({ "command": "true", "timeout_seconds": 0 }), 400, "invalid"),
        (json!({ "command": "true", "timeout_seconds": -1 }), 400, "invalid"),
        (json!({ "command": 7 }), 400, "invalid"),
        (json!({}), 400, "invalid"),
    ];
    for (spec, status, code) in table {
        let reply = sandbox.json("POST", "/exec", &spec);
        assert_eq!((reply.status, reply.code().as_str()), (status, code), "{spec}: {}", reply.text());
        assert!(!reply.value()["error"]["message"].as_str().unwrap().is_empty());
    }
    assert!(sandbox.journal().iter().all(|frame| frame.kind == Kind::Place));
    assert_eq!(stdout(&sandbox.shell("echo fine")), "fine\n");
}

#[test]
fn almost_two_megabytes_of_arguments_reach_the_program() {
    let sandbox = Sandbox::start();
    let mut command = vec!["sh".to_owned(), "-c".to_owned(), "echo $#".to_owned()];
    command.extend((0..19).map(|_| "a".repeat(100_000)));
    let frames = sandbox.run(&json!({ "command": command, "cwd": "/" }));
    assert_eq!(stdout(&frames), "18\n");
    assert_eq!(payload(&frames, Kind::Start)["command_shortened"], json!(true));
    let mut command = vec!["true".to_owned()];
    command.extend((0..30).map(|_| "a".repeat(100_000)));
    let reply = sandbox.json("POST", "/exec", &json!({ "command": command, "cwd": "/" }));
    assert_eq!(reply.code(), "arguments_too_long");
    let longer = json!({ "command": "a".repeat(5_000_000) });
    let reply = sandbox.json("POST", "/exec", &longer);
    assert_eq!((reply.status, reply.code().as_str()), (413, "body_too_long"));
}

#[test]
fn a_timeout_of_a_year_is_taken() {
    let sandbox = Sandbox::start();
    let frames = sandbox.run(&json!({ "command": "echo ok", "cwd": "/", "timeout_seconds": 31_536_000 }));
    assert_eq!(stdout(&frames), "ok\n");
}

#[test]
fn binary_output_and_output_without_a_newline_are_kept_as_they_are() {
    let sandbox = Sandbox::start();
    let frames = sandbox.shell("printf '\\000\\377\\200x'");
    assert_eq!(output(&frames, Kind::Stdout), b"\0\xff\x80x");
    let reply = sandbox.json(
        "POST",
        "/exec",
        &json!({ "command": "printf '\\377\\200'; printf end >&2", "cwd": "/" }),
    );
    assert!(reply.text().contains("\"base64\":\"/4A=\""), "{}", reply.text());
    assert!(reply.text().contains("\"text\":\"end\""), "{}", reply.text());
}

#[test]
fn a_connection_without_the_key_gets_nowhere() {
    let sandbox = Sandbox::start();
    for opening in [
        &b"GET /health HTTP/1.1\r\n\r\n"[..],
        b"{\"protocol\":1}\n",
        b"\n",
        &[b'x'; 4096],
        format!(
            "{{\"protocol\":1,\"nonce\":\"{0}\",\"proof\":\"{0}\"}}\nGET /health HTTP/1.1\r\n\r\n",
            "ab".repeat(32)
        )
        .as_bytes(),
        format!("{{\"protocol\":9,\"nonce\":\"{0}\",\"proof\":\"{0}\"}}\n", "ab".repeat(32)).as_bytes(),
    ] {
        let mut stream = sandbox.raw();
        stream.write_all(opening).unwrap();
        let mut answer = String::new();
        // The daemon may close before it has read everything, which a client sees as a reset.
        let _ = stream.read_to_string(&mut answer);
        let lines: Vec<&str> = answer.lines().collect();
        assert_eq!(lines.len(), 2, "{answer}");
        assert!(hello::parse_server_hello(lines[0].as_bytes()).is_ok());
        assert!(lines[1].starts_with("{\"error\":{\"code\":"), "{answer}");
    }
}

#[test]
fn malformed_requests_are_refused_and_the_daemon_lives() {
    let sandbox = Sandbox::start();
    let endless = format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "a".repeat(20_000));
    for (request, status) in [
        ("\x01\x02\x03 garbage\r\n\r\n", 400),
        ("POST /exec HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        ("POST /exec HTTP/1.1\r\nContent-Length: 9999999999\r\n\r\n", 413),
        ("POST /exec HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (endless.as_str(), 431),
    ] {
        let mut client = sandbox.connect();
        client.stream.get_mut().write_all(request.as_bytes()).unwrap();
        assert_eq!(client.reply().status, status, "{request:.60}");
    }
    assert_eq!(sandbox.request("GET", "/nowhere", b"").code(), "no_such_route");
    assert_eq!(sandbox.request("PUT", "/exec", b"").code(), "method_not_allowed");
    assert_eq!(sandbox.request("GET", "/exec/nonsense", b"").code(), "invalid");
    assert_eq!(sandbox.request("GET", "/exec/exec-aaaaaaaaaaaaaaaaaaaaaaaaaa", b"").code(), "exec_not_found");
    assert_eq!(sandbox.request("GET", "/health", b"").value()["status"], json!("healthy"));
}

#[test]
fn requests_that_arrive_in_pieces_or_together_are_answered_one_by_one() {
    let sandbox = Sandbox::start();
    let mut client = sandbox.connect();
    let body = json!({ "command": "echo hi", "cwd": "/" }).to_string();
    let request = format!("POST /exec HTTP/1.1\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    for byte in request.as_bytes() {
        client.stream.get_mut().write_all(&[*byte]).unwrap();
    }
    assert!(client.reply().text().ends_with("{\"exit\":0}\n"));
    let twice = format!("{request}GET /health HTTP/1.1\r\n\r\n{request}");
    client.stream.get_mut().write_all(twice.as_bytes()).unwrap();
    assert!(client.reply().text().ends_with("{\"exit\":0}\n"));
    assert_eq!(client.reply().value()["status"], json!("healthy"));
    assert!(client.reply().text().ends_with("{\"exit\":0}\n"));
}

#[test]
fn a_deadline_ends_the_sandbox_and_can_be_extended() {
    let mut sandbox = Sandbox::start_with(&["--deadline-seconds", "2"]);
    let reply = sandbox.json("POST", "/deadline", &json!({ "seconds": 3600 }));
    assert_eq!(reply.value()["deadline_seconds"], json!(3599));
    let frames = sandbox.shell("sleep 1000 >/dev/null 2>&1 & echo $!");
    let pid: i32 = stdout(&frames).trim().parse().unwrap();
    sandbox.json("POST", "/deadline", &json!({ "seconds": 0 }));
    assert_eq!(sandbox.wait_for_end(), Some(75));
    wait_until("what ran in it is gone", || !is_alive(pid));
}

#[test]
fn a_sandbox_whose_journal_was_removed_ends() {
    let mut sandbox = Sandbox::start_with(&["--deadline-seconds", "3600"]);
    // It listens before it looks at its journal, and one that never had a name cannot lose it.
    sandbox.request("GET", "/health", b"");
    std::fs::remove_file(sandbox.journal_path()).unwrap();
    assert_eq!(sandbox.wait_for_end(), Some(cubicle_guest::daemon::EXIT_FORGOTTEN));
}
