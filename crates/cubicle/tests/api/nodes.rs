//! Two servers on one database: whichever is asked, the one that has it answers.

use std::io::Read;

use cubicle_tests_postgresql::Cluster;
use serde_json::{Value, json};

use crate::client::{Server, With, eventually};
use crate::host::Host;

struct Pair {
    first: Server,
    second: Server,
    /// Of the first server. Both know it: they have one database.
    key: String,
    _cluster: Cluster,
}

impl Pair {
    fn start() -> Option<Self> {
        let (here, there) = (Host::new()?, Host::new()?);
        let cluster = Cluster::own()?;
        let url = cluster.fresh_database();
        let start = |host| Server::start_on(host, &["--pool-size", "1"], &[("DB_URL", &url)]);
        let (first, second) = (start(here), start(there));
        let key = first.admin_key();
        Some(Self { first, second, key, _cluster: cluster })
    }

    /// Asks the second server with the key of the first.
    fn ask(&self, method: &str, path: &str, body: &Value) -> crate::client::Reply {
        self.second.with_key(method, path, body, &self.key)
    }
}

#[test]
fn whatever_one_server_has_can_be_used_through_the_other() {
    let Some(pair) = Pair::start() else { return };
    let (lease, sandbox) = pair.first.lease(&json!({ "ttl_seconds": 60 }));
    let execs = format!("/api/v1/sandboxes/{sandbox}/execs");
    let exec = pair.ask("POST", &execs, &json!({ "command": "echo through; exit 3" })).ok();
    assert_eq!(
        (&exec["result"]["exit_code"], &exec["result"]["stdout"]["content"]),
        (&json!(3), &json!("through\n"))
    );

    // Bytes in both directions.
    let files = format!("/api/v1/sandboxes/{sandbox}/files?path=large");
    let large: Vec<u8> = (0..3_000_000u32).map(|number| b'a' + (number % 23) as u8).collect();
    let with = With { key: Some(&pair.key), headers: &[] };
    assert_eq!(pair.second.request("PUT", &files, &large, &with).status, 200);
    assert_eq!(pair.second.request("GET", &files, b"", &with).text.as_bytes(), large);

    // A stream is passed on while it is written, to its end.
    let asked = json!({ "command": "echo begun $((6*7)); until [ -e go ]; do sleep 0.05; done; echo ended", "background": true });
    let id = pair.ask("POST", &execs, &asked).ok()["exec_id"].as_str().expect("an id").to_owned();
    let authorization = format!("Bearer {}", pair.key);
    let response = ureq::get(format!("{}/api/v1/execs/{id}/output", pair.second.address))
        .header("authorization", &authorization)
        .header("accept", "text/event-stream")
        .call()
        .expect("it streams");
    let mut stream = response.into_body().into_reader();
    let mut seen = String::new();
    let mut read = |until: &str| {
        let mut piece = [0; 1024];
        while !seen.contains(until) {
            let length = stream.read(&mut piece).expect("the stream goes on");
            assert!(length > 0, "the stream ended before '{until}': {seen}");
            seen.push_str(&String::from_utf8_lossy(&piece[..length]));
        }
    };
    read("begun 42");
    pair.ask("PUT", &format!("/api/v1/sandboxes/{sandbox}/files?path=go"), &json!({})).ok();
    read("event: eof");

    // A heartbeat reaches the sandbox, and a release destroys it.
    let renewed = pair.ask("POST", &format!("/api/v1/leases/{lease}/heartbeat"), &json!({})).ok();
    assert_eq!(renewed["status"], "ACTIVE");
    assert_eq!(pair.ask("DELETE", &format!("/api/v1/leases/{lease}"), &json!({})).ok()["status"], "RELEASED");
    eventually("a destroyed sandbox", || {
        (pair.ask("GET", &format!("/api/v1/sandboxes/{sandbox}"), &json!({})).ok()["state"] == "gone")
            .then_some(())
    });
    // What it printed is where its sandbox was.
    let output = pair.ask("GET", &format!("/api/v1/execs/{id}/output"), &json!({}));
    assert_eq!((output.status, output.text.as_str()), (200, "begun 42\nended\n"));
}

#[test]
fn a_terminal_and_a_port_of_another_server_are_reached_through_this_one() {
    let Some(pair) = Pair::start() else { return };
    let (_, sandbox) = pair.first.lease(&json!({}));
    let asked = json!({ "command": ["python3", "-m", "http.server", "8000", "--bind", "127.0.0.1"], "background": true });
    pair.ask("POST", &format!("/api/v1/sandboxes/{sandbox}/execs"), &asked).ok();
    let page = format!("/api/v1/sandboxes/{sandbox}/ports/8000/");
    eventually("a server in the sandbox", || {
        let answer = pair.ask("GET", &page, &json!({}));
        (answer.status == 200).then(|| assert!(answer.text.contains("Directory listing"), "{answer:?}"))
    });
    let mut terminal = terminal(&pair.second, &pair.key, &sandbox);
    let mut seen = Vec::new();
    let mut piece = [0; 1024];
    while !String::from_utf8_lossy(&seen).contains("42") {
        let length = terminal.read(&mut piece).expect("the terminal says something");
        assert!(length > 0, "the terminal ended: {}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&piece[..length]);
    }
}

/// A WebSocket to a terminal in which something is printed, from its first byte on.
fn terminal(server: &Server, key: &str, sandbox: &str) -> impl Read {
    use std::io::Write;
    let address = server.address.trim_start_matches("http://");
    let mut stream = std::net::TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(crate::client::BOUND)).expect("a timeout can be set");
    let request = format!(
        "GET /api/v1/sandboxes/{sandbox}/terminal?command=echo%20$((6*7)) HTTP/1.1\r\nhost: {address}\r\n\
         authorization: Bearer {key}\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
         sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).expect("it takes the request");
    let mut head = [0; 12];
    stream.read_exact(&mut head).expect("it answers");
    assert_eq!(&head, b"HTTP/1.1 101");
    stream
}

#[test]
fn what_a_server_has_that_is_down_is_unavailable_and_its_rows_are_not() {
    let Some(mut pair) = Pair::start() else { return };
    let (lease, sandbox) = pair.first.lease(&json!({}));
    pair.first.kill();
    let refused =
        pair.ask("POST", &format!("/api/v1/sandboxes/{sandbox}/execs"), &json!({ "command": "true" }));
    assert_eq!(refused.refused(503), "unavailable");
    assert!(refused.text.contains(pair.first.address.trim_start_matches("http://")), "{refused:?}");
    assert_eq!(pair.ask("GET", &format!("/api/v1/leases/{lease}"), &json!({})).ok()["status"], "ACTIVE");
    pair.first.start_again();
    let exec =
        pair.ask("POST", &format!("/api/v1/sandboxes/{sandbox}/execs"), &json!({ "command": "true" })).ok();
    assert_eq!(exec["result"]["exit_code"], 0);
    // A request that was handed on once is not handed on again.
    let circle = With { key: Some(&pair.key), headers: &[("x-cubicle-handed-on-by", "node-a")] };
    let path = format!("/api/v1/sandboxes/{sandbox}/receipt");
    let refused = pair.second.request("GET", &path, b"", &circle);
    assert_eq!(refused.refused(409), "conflict");
    assert!(refused.text.contains(&pair.first.address), "{refused:?}");
}

#[test]
fn another_tenant_sees_nothing_through_another_server() {
    let Some(pair) = Pair::start() else { return };
    let (lease, sandbox) = pair.first.lease(&json!({}));
    let foreign = pair.first.key_of("other", "eve", &["read", "run"]);
    for (method, path) in [
        ("GET", format!("/api/v1/sandboxes/{sandbox}/receipt")),
        ("GET", format!("/api/v1/sandboxes/{sandbox}/files?path=x")),
        ("DELETE", format!("/api/v1/leases/{lease}")),
        ("POST", format!("/api/v1/leases/{lease}/heartbeat")),
    ] {
        let answer = pair.second.with_key(method, &path, &json!({}), &foreign);
        assert_eq!(answer.refused(404), "not_found", "{method} {path}");
    }
}

#[test]
fn a_server_does_not_touch_what_is_over_on_another() {
    let Some(pair) = Pair::start() else { return };
    let (lease, sandbox) = pair.first.lease(&json!({ "ttl_seconds": 1 }));
    let exec = pair
        .first
        .post(&format!("/api/v1/sandboxes/{sandbox}/execs"), &json!({ "command": "echo kept" }))
        .ok();
    eventually("an expired lease", || {
        (pair.first.get(&format!("/api/v1/leases/{lease}")).ok()["status"] == "EXPIRED").then_some(())
    });
    eventually("its sandbox", || {
        let shown = pair.first.host.cubicle(&["ls", "--quiet"]);
        (!String::from_utf8_lossy(&shown.stdout).contains(&sandbox)).then_some(())
    });
    let output = format!("/api/v1/execs/{}/output", exec["exec_id"].as_str().expect("an id"));
    assert_eq!(pair.first.get(&output).text, "kept\n", "its journal was not kept");
}
