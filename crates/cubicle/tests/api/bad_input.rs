//! Nonsense gets a clear answer, and nothing is lost by it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::json;

use crate::client::{Server, With, eventually};

#[test]
fn malformed_requests_are_refused_with_what_was_expected() {
    let Some(server) = Server::start() else { return };
    let (_, sandbox) = server.lease(&json!({}));
    let execs = format!("/api/v1/sandboxes/{sandbox}/execs");
    let files = format!("/api/v1/sandboxes/{sandbox}/files?path=x");
    let table: &[(&str, &str, &[u8])] = &[
        ("POST", "/api/v1/leases", b"{"),
        ("POST", "/api/v1/leases", b"[]"),
        ("POST", "/api/v1/leases", b"{\"ttl_seconds\": \"soon\"}"),
        ("POST", "/api/v1/leases", b"{\"ttl_seconds\": 0}"),
        ("POST", "/api/v1/leases", b"{\"ttl_seconds\": 99999999}"),
        ("POST", "/api/v1/leases", b"{\"tll_seconds\": 5}"),
        ("POST", "/api/v1/leases", b"{\"limits\": {\"memory\": 1}}"),
        ("POST", "/api/v1/leases", b"{\"limits\": [null, null]}"),
        ("POST", "/api/v1/leases", b"{\"env\": {\"A=B\": \"x\"}}"),
        ("POST", "/api/v1/leases", b"{\"env\": {\"A\": \"x\\u0000y\"}}"),
        (
            "POST",
            "/api/v1/leases",
            b"{\"files\": [{\"path\": \"a\", \"content\": \"!\", \"encoding\": \"base64\"}]}",
        ),
        ("POST", "/api/v1/leases", b"\xff\xfe"),
        ("POST", &execs, b"{}"),
        ("POST", &execs, b""),
        ("POST", &execs, b"{\"command\": []}"),
        ("POST", &execs, b"{\"command\": \" \"}"),
        ("POST", &execs, b"{\"command\": \"true\", \"timeout_seconds\": 0}"),
        ("POST", &execs, b"{\"command\": \"true\", \"timeout_seconds\": -1}"),
        ("POST", &execs, b"{\"command\": \"true\", \"exec_id\": \"mine\"}"),
        ("POST", &execs, b"{\"command\": [\"a\\u0000b\"]}"),
        ("POST", &execs, b"{\"command\": \"true\", \"cwd\": \"relative\"}"),
        ("POST", &execs, b"{\"command\": \"true\", \"tty\": [24, 80]}"),
        ("POST", "/api/v1/execs", b"{\"command\": \"true\", \"cwd\": \"\"}"),
        ("PUT", "/api/v1/templates/UPPER", b"{}"),
        ("PUT", "/api/v1/templates/x", b"{\"pool\": {\"size\": 9, \"ceiling\": 1}}"),
        ("PUT", "/api/v1/templates/x", b"{\"pool\": [1, 1, 1]}"),
        ("POST", &format!("/api/v1/sandboxes/{sandbox}/previews/0"), b""),
        ("GET", &format!("/api/v1/sandboxes/{sandbox}/ports/0"), b""),
        ("GET", "/api/v1/execs/exec-aaaaaaaaaaaaaaaaaaaaaaaaaa/output?from=-1", b""),
        ("PUT", "/api/v1/templates/x", b"{\"root\": {\"directory\": \"relative\"}}"),
        ("GET", "/api/v1/leases?limit=0", b""),
        ("GET", "/api/v1/leases?limit=many", b""),
        ("GET", "/api/v1/leases?status=SLEEPING", b""),
        ("GET", "/api/v1/leases/not-an-id", b""),
        ("PUT", &format!("{files}&mode=rwx"), b"x"),
        ("GET", &format!("/api/v1/sandboxes/{sandbox}/files"), b""),
    ];
    for (method, path, body) in table {
        let answer = server.request(method, path, body, &With::default());
        assert_eq!(answer.refused(400), "invalid", "{method} {path} {}", String::from_utf8_lossy(body));
    }
    assert_eq!(server.get("/api/v1/nowhere").refused(404), "not_found");
    let other = server.request("PATCH", "/api/v1/leases", b"", &With::default());
    assert_eq!(other.refused(405), "invalid");
    assert!(["GET", "POST"].iter().all(|method| other.header("allow").contains(method)), "{other:?}");
    assert_eq!(server.get("/api/v1/leases/lease-aaaaaaaaaaaaaaaaaaaaaaaaaa").refused(404), "not_found");
    assert_eq!(server.post("/api/v1/leases", &json!({ "template": "none-such" })).refused(404), "not_found");
    assert_eq!(server.prints(&sandbox, "echo still fine"), "still fine\n");
}

#[test]
fn a_pool_that_is_larger_than_anything_is_as_large_as_there_is_room() {
    let Some(server) = Server::start_with(&["--pool-size", "0", "--capacity", "3"]) else { return };
    let huge = json!({ "pool": { "size": u32::MAX, "ceiling": u32::MAX } });
    server.put("/api/v1/templates/huge", &huge).ok();
    eventually("a full host", || {
        let sandboxes = server.get("/api/v1/sandboxes?state=idle").ok();
        (sandboxes["items"].as_array().map(Vec::len) == Some(3)).then_some(())
    });
    server.delete("/api/v1/templates/huge");
    let exec = eventually("room again", || {
        let exec = server.post("/api/v1/execs", &json!({ "command": "echo fine" }));
        (exec.status == 200).then(|| exec.json())
    });
    assert_eq!(exec["result"]["exit_code"], 0, "{exec}");
}

#[test]
fn a_body_that_is_too_large_is_refused() {
    let Some(server) = Server::start() else { return };
    let huge = format!("{{\"workflow\": \"{}\"}}", "x".repeat(30 * 1024 * 1024));
    let refused = server.request("POST", "/api/v1/leases", huge.as_bytes(), &With::default());
    assert_eq!(refused.refused(413), "invalid");
    let files = json!({ "files": [{ "path": "a", "content": "x".repeat(17 * 1024 * 1024) }] });
    let refused = server.post("/api/v1/leases", &files);
    assert_eq!(refused.refused(400), "invalid");
    assert!(refused.text.contains("/files"), "{refused:?}");
}

#[test]
fn a_client_that_never_finishes_its_request_is_sent_away() {
    let Some(server) = Server::start() else { return };
    let mut slow: Vec<TcpStream> = (0..50)
        .map(|_| {
            let mut stream =
                TcpStream::connect(server.address.trim_start_matches("http://")).expect("it listens");
            stream.write_all(b"GET /health HTTP/1.1\r\nx: ").expect("it takes the beginning");
            stream
        })
        .collect();
    assert_eq!(server.get("/health").status, 200, "others are served meanwhile");
    for stream in &mut slow {
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout can be set");
        let mut answer = Vec::new();
        // Closed, with or without a word; a server that waits for ever runs into the timeout above.
        if let Err(error) = stream.read_to_end(&mut answer) {
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
        }
    }
}

#[test]
fn a_client_that_never_finishes_its_body_is_sent_away() {
    let Some(server) = Server::start() else { return };
    let (_, sandbox) = server.lease(&json!({}));
    let paths = [
        ("POST", "/api/v1/leases".to_owned(), "408"),
        ("POST", format!("/api/v1/sandboxes/{sandbox}/execs"), "408"),
        ("PUT", format!("/api/v1/sandboxes/{sandbox}/files?path=never"), "400"),
        ("PUT", format!("/api/v1/sandboxes/{sandbox}/files/archive?path=unpacked"), "400"),
    ];
    let mut slow: Vec<(TcpStream, &str)> = paths
        .iter()
        .map(|(method, path, status)| {
            let mut stream =
                TcpStream::connect(server.address.trim_start_matches("http://")).expect("it listens");
            let key = server.admin_key();
            let head = format!(
                "{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n\
                 content-length: 100000\r\n\r\n{{\"command\""
            );
            stream.write_all(head.as_bytes()).expect("it takes the beginning");
            (stream, *status)
        })
        .collect();
    assert_eq!(server.prints(&sandbox, "echo others are served"), "others are served\n");
    for (stream, status) in &mut slow {
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout can be set");
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).expect("a silent client is told why it is sent away");
        assert_eq!(String::from_utf8_lossy(&answer), format!("HTTP/1.1 {status}"));
    }
    let missing = server.get(&format!("/api/v1/sandboxes/{sandbox}/files?path=never"));
    assert_eq!(missing.refused(404), "not_found", "half a file was written");
}

#[test]
fn ids_that_nobody_has_are_not_found_on_any_route() {
    let Some(server) = Server::start() else { return };
    let body = "aaaaaaaaaaaaaaaaaaaaaaaaaa";
    let (lease, sandbox) = (format!("/api/v1/leases/lease-{body}"), format!("/api/v1/sandboxes/sbx-{body}"));
    let (exec, artifact) = (format!("/api/v1/execs/exec-{body}"), format!("/api/v1/artifacts/art-{body}"));
    let table = [
        ("GET", lease.clone()),
        ("DELETE", lease.clone()),
        ("POST", format!("{lease}/heartbeat")),
        ("GET", sandbox.clone()),
        ("GET", format!("{sandbox}/receipt")),
        ("GET", format!("{sandbox}/metrics")),
        ("GET", format!("{sandbox}/execs")),
        ("POST", format!("{sandbox}/execs")),
        ("GET", format!("{sandbox}/files?path=x")),
        ("PUT", format!("{sandbox}/files?path=x")),
        ("GET", format!("{sandbox}/ports/80/")),
        ("GET", exec.clone()),
        ("DELETE", exec.clone()),
        ("GET", format!("{exec}/output")),
        ("POST", format!("{exec}/stdin")),
        ("GET", artifact.clone()),
        ("GET", format!("{artifact}/content")),
        ("GET", format!("/api/stream/exec-{body}")),
        ("GET", format!("/api/stream/lease-{body}")),
    ];
    for (method, path) in table {
        let body: &[u8] = if path.ends_with("execs") { b"{\"command\": \"true\"}" } else { b"" };
        let answer = server.request(method, &path, body, &With::default());
        assert_eq!(answer.refused(404), "not_found", "{method} {path}");
    }
}

#[test]
fn a_second_server_and_a_taken_port_are_named() {
    let Some(server) = Server::start() else { return };
    let at = server.address.trim_start_matches("http://").to_owned();
    let taken = server.host.cubicle(&["up", "--listen", &at]);
    assert_eq!(taken.status.code(), Some(125), "{taken:?}");
    assert!(String::from_utf8_lossy(&taken.stderr).contains("cannot listen"), "{taken:?}");
    let second = server.host.cubicle(&["up", "--listen", "127.0.0.1:0"]);
    assert_eq!(second.status.code(), Some(125), "{second:?}");
    assert!(String::from_utf8_lossy(&second.stderr).contains("another server has"), "{second:?}");
    assert_eq!(server.get("/health").status, 200, "the first server is not disturbed");
}

#[test]
fn a_database_of_a_newer_version_is_left_alone() {
    let Some(mut server) = Server::start() else { return };
    server.stop();
    let file = server.host.data_dir().join("server/cubicle.db");
    let database = rusqlite::Connection::open(&file).expect("it is a database");
    database.execute("INSERT INTO schema_steps (step) VALUES (9999)", []).expect("it can be changed");
    drop(database);
    let refused = server.host.cubicle(&["up", "--listen", "127.0.0.1:0"]);
    assert_eq!(refused.status.code(), Some(125), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("newer version"), "{refused:?}");
}
