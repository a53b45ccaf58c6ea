use std::io::{BufRead, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;

use serde_json::json;

use crate::support::*;

const UPGRADE: &str = "Connection: Upgrade\r\nUpgrade: tcp\r\n";

/// Answers each connection with what it got, in upper case, when the other side is done.
fn shouting_server() -> (u16, std::thread::JoinHandle<()>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let serving = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut text = Vec::new();
        stream.read_to_end(&mut text).unwrap();
        stream.write_all(&text.to_ascii_uppercase()).unwrap();
    });
    (port, serving)
}

#[test]
fn a_port_of_the_sandbox_is_reached_and_each_direction_closes_on_its_own() {
    let sandbox = Sandbox::start();
    let (port, serving) = shouting_server();
    let mut client = sandbox.connect();
    client.send("GET", &format!("/ports/{port}"), UPGRADE, b"");
    assert_eq!(client.reply_head().0, 101);
    let sent = "hello ".repeat(200_000);
    let mut writer = client.stream.get_ref().try_clone().unwrap();
    let to_send = sent.clone();
    let writing = std::thread::spawn(move || {
        writer.write_all(to_send.as_bytes()).unwrap();
        writer.shutdown(Shutdown::Write).unwrap();
    });
    let mut answer = String::new();
    client.stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, sent.to_ascii_uppercase());
    writing.join().unwrap();
    serving.join().unwrap();
}

#[test]
fn a_port_where_nobody_listens_is_a_clear_error() {
    let sandbox = Sandbox::start();
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    let reply = sandbox.connect().request("GET", &format!("/ports/{free}"), UPGRADE, b"");
    assert_eq!((reply.status, reply.code().as_str()), (502, "port_closed"));
    assert_eq!(sandbox.request("GET", "/ports/80", b"").code(), "upgrade_required");
    for port in ["0", "65536", "x", ""] {
        assert_eq!(sandbox.request("GET", &format!("/ports/{port}"), b"").code(), "invalid");
    }
}

#[test]
fn a_listener_made_in_the_sandbox_is_accepted_outside() {
    let sandbox = Sandbox::start();
    let mut client = sandbox.connect();
    client.send("POST", "/listen", "", json!({ "port": 0 }).to_string().as_bytes());
    let mut bytes = [0; 4096];
    let (read, descriptor) =
        cubicle_sys::socket::receive_with(client.stream.get_ref().as_fd(), &mut bytes).unwrap();
    let answer = String::from_utf8_lossy(&bytes[..read]).into_owned();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let listener = TcpListener::from(descriptor.expect("a descriptor comes with the answer"));
    let port = listener.local_addr().unwrap().port();
    assert!(answer.contains(&format!("{{\"port\":{port}}}")), "{answer}");
    let mut inside = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    let (mut outside, _) = listener.accept().unwrap();
    inside.write_all(b"ping").unwrap();
    let mut got = [0; 4];
    outside.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"ping");
    let taken = sandbox.json("POST", "/listen", &json!({ "port": port }));
    assert_eq!((taken.status, taken.code().as_str()), (409, "port_taken"));
}

#[test]
fn the_guest_opens_a_parked_connection() {
    let sandbox = Sandbox::start();
    let none = sandbox.json("POST", "/accept/open", &json!({ "name": "x", "port": 1 }));
    assert_eq!(none.code(), "none_parked");
    let mut parked = sandbox.connect();
    parked.send("POST", "/accept", UPGRADE, b"");
    assert_eq!(parked.reply_head().0, 101);
    let (port, serving) = shouting_server();
    let opened = sandbox.json("POST", "/accept/open", &json!({ "name": "proxy", "port": port }));
    assert_eq!(opened.status, 200, "{}", opened.text());
    let mut line = String::new();
    parked.stream.read_line(&mut line).unwrap();
    assert_eq!(line, "{\"open\":\"proxy\"}\n");
    parked.stream.get_mut().write_all(b"through").unwrap();
    parked.stream.get_ref().shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    parked.stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "THROUGH");
    serving.join().unwrap();
}

#[test]
fn files_are_served_on_the_same_connection() {
    let sandbox = Sandbox::start();
    let path = sandbox.directory.path().join("file with space");
    let target = format!("/files/{}", path.display()).replace(' ', "%20");
    let mut client = sandbox.connect();
    let reply = client.request("PUT", &target, "", b"content");
    assert!((200..300).contains(&reply.status), "{} {}", reply.head, reply.text());
    assert_eq!(std::fs::read(&path).unwrap(), b"content");
    assert_eq!(client.request("GET", &target, "", b"").body, b"content");
    assert_eq!(client.request("GET", "/health", "", b"").status, 200);
}

#[test]
fn a_request_right_behind_the_hello_is_answered_behind_the_proof() {
    let sandbox = Sandbox::start();
    let (port, serving) = shouting_server();
    let upgrade = format!("GET /ports/{port} HTTP/1.1\r\n{UPGRADE}\r\n");
    let list = "GET /files?list=/ HTTP/1.1\r\n\r\n";
    for (request, status) in [(upgrade.as_str(), 101), (list, 200), ("GET /health HTTP/1.1\r\n\r\n", 200)] {
        let mut client = sandbox.connect_and_send(request.as_bytes());
        assert_eq!(client.reply_head().0, status, "{request}");
    }
    serving.join().unwrap();
}
