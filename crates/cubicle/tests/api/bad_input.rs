//! Nonsense gets a clear answer, and nothing is lost by it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::json;

use crate::client::{Server, With};

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
        ("PUT", "/api/v1/templates/UPPER", b"{}"),
        ("PUT", "/api/v1/templates/x", b"{\"pool\": {\"size\": 9, \"ceiling\": 1}}"),
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
    assert_eq!(server.get("/api/v1/leases/lease-aaaaaaaaaaaaaaaaaaaaaaaaaa").refused(404), "not_found");
    assert_eq!(server.post("/api/v1/leases", &json!({ "template": "none-such" })).refused(404), "not_found");
    assert_eq!(server.prints(&sandbox, "echo still fine"), "still fine\n");
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
