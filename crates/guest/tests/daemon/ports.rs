use std::io::{BufRead, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};

use cubicle_guest::wire;
use cubicle_model::Listener;
use rustix::net::{AddressFamily, SocketType};
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

/// Asks for listeners and takes the descriptors that come with the answer.
fn listen(sandbox: &Sandbox, listeners: &[Listener]) -> (Vec<Listener>, Vec<OwnedFd>) {
    let mut client = sandbox.connect();
    client.send("POST", "/listen", "", json!({ "listeners": listeners }).to_string().as_bytes());
    let (mut bytes, mut descriptors) = ([0; 4096], Vec::new());
    let stream = client.stream.get_ref().as_fd();
    let read = cubicle_sys::socket::receive_with_all(stream, &mut bytes, &mut descriptors).unwrap();
    let answer = String::from_utf8_lossy(&bytes[..read]).into_owned();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    let listened: wire::Listened = serde_json::from_str(body).unwrap();
    (listened.listeners, descriptors)
}

#[test]
fn a_listener_made_in_the_sandbox_is_accepted_outside() {
    let sandbox = Sandbox::start();
    let asked = [Listener::tcp(0), Listener::udp(0), Listener::tcp(0).everywhere()];
    let (made, descriptors) = listen(&sandbox, &asked);
    let [tcp, udp, everywhere] = descriptors.try_into().expect("as many as were asked for");
    for (made, asked) in made.iter().zip(asked) {
        assert_eq!(Listener { port: 0, ..*made }, asked);
    }
    let tcp = TcpListener::from(tcp);
    assert_eq!(tcp.local_addr().unwrap(), made[0].socket_address().into());
    let mut inside = TcpStream::connect(tcp.local_addr().unwrap()).unwrap();
    let (mut outside, _) = tcp.accept().unwrap();
    inside.write_all(b"ping").unwrap();
    let mut got = [0; 4];
    outside.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"ping");

    let udp = UdpSocket::from(udp);
    let inside = UdpSocket::bind("127.0.0.1:0").unwrap();
    inside.send_to(b"question", made[1].socket_address()).unwrap();
    wait_until("the datagram is there", || udp.peek(&mut [0; 16]).is_ok());
    let mut got = [0; 16];
    let (count, from) = udp.recv_from(&mut got).unwrap();
    assert_eq!((&got[..count], from), (&b"question"[..], inside.local_addr().unwrap()));

    let everywhere = TcpListener::from(everywhere);
    let to = SocketAddrV4::new(Ipv4Addr::new(127, 128, 3, 4), made[2].port);
    let _inside = TcpStream::connect(to).unwrap();
    let (outside, _) = everywhere.accept().unwrap();
    assert_eq!(outside.local_addr().unwrap(), to.into(), "the name that was meant can be told");
}

#[test]
fn nobody_can_take_the_port_of_a_listener_that_was_let_go() {
    let sandbox = Sandbox::start();
    let asked = [Listener::tcp(0), Listener::udp(0), Listener::tcp(0).everywhere()];
    let (made, descriptors) = listen(&sandbox, &asked);
    drop(descriptors);
    let _waits = TcpStream::connect(made[0].socket_address()).unwrap();
    for address in ["127.0.0.1", "0.0.0.0", "127.128.0.9"] {
        // The standard library allows others the address of a TCP listener, and so tries what an intruder would.
        if address != "127.128.0.9" {
            assert!(TcpListener::bind((address, made[0].port)).is_err(), "{address}");
            assert!(UdpSocket::bind((address, made[1].port)).is_err(), "{address}");
        }
        assert!(TcpListener::bind((address, made[2].port)).is_err(), "{address}");
    }
    let sharing = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None).unwrap();
    rustix::net::sockopt::set_socket_reuseaddr(&sharing, true).unwrap();
    rustix::net::sockopt::set_socket_reuseport(&sharing, true).unwrap();
    assert!(rustix::net::bind(&sharing, &made[1].socket_address()).is_err());
    let taken = sandbox.json("POST", "/listen", &json!({ "listeners": [made[0].everywhere()] }));
    assert_eq!((taken.status, taken.code().as_str()), (409, "port_taken"));

    let (again, descriptors) = listen(&sandbox, &made);
    assert_eq!(again, made);
    let mut descriptors = descriptors.into_iter();
    let tcp = TcpListener::from(descriptors.next().unwrap());
    assert!(tcp.accept().is_ok(), "the connection that waited is there");
}

#[test]
fn a_request_for_listeners_that_makes_no_sense_is_refused_and_makes_none() {
    let sandbox = Sandbox::start();
    let refused = |listeners: serde_json::Value| {
        let reply = sandbox.json("POST", "/listen", &json!({ "listeners": listeners }));
        (reply.status, reply.code())
    };
    let tcp = |port: u16| json!(Listener::tcp(port));
    let invalid = (400, "invalid".to_owned());
    assert_eq!(refused(json!([])), invalid);
    assert_eq!(refused(json!(vec![tcp(0); 17])), invalid);
    assert_eq!(refused(json!([tcp(5000), tcp(5000)])), invalid);
    assert_eq!(refused(json!([{ "protocol": "sctp", "address": "loopback", "port": 1 }])), invalid);
    assert_eq!(refused(json!([{ "protocol": "tcp", "address": "10.0.0.1", "port": 1 }])), invalid);
    assert_eq!(refused(json!([{ "protocol": "tcp", "address": "loopback", "port": 65536 }])), invalid);
    assert_eq!(sandbox.json("POST", "/listen", &json!({ "port": 80 })).code(), "invalid");

    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let free = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let taken = other.local_addr().unwrap().port();
    assert_eq!(refused(json!([Listener::udp(port), tcp(taken)])), (409, "port_taken".to_owned()));
    assert!(UdpSocket::bind(("127.0.0.1", port)).is_ok(), "after a refusal nothing is kept");
    for _ in 0..4 {
        listen(&sandbox, &[Listener::tcp(0); 16]);
    }
    assert_eq!(refused(json!([tcp(0)])), (429, "too_many_listeners".to_owned()));
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
