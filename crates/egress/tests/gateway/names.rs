//! Programs that know of no proxy: names, and the addresses that they lead to.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

use crate::origin::{Origin, ok};
use crate::world::{BOUND, World, exchange, hangs_up};

const A: u16 = 1;
const AAAA: u16 = 28;
const TXT: u16 = 16;

fn question(name: &str, kind: u16) -> Vec<u8> {
    let mut bytes = vec![7, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        bytes.push(u8::try_from(label.len()).unwrap());
        bytes.extend_from_slice(label.as_bytes());
    }
    bytes.push(0);
    bytes.extend_from_slice(&kind.to_be_bytes());
    bytes.extend_from_slice(&[0, 1]);
    bytes
}

/// The code of the reply, and the address in it.
fn understood(reply: &[u8]) -> (u8, Option<Ipv4Addr>) {
    let address = (reply[7] == 1).then(|| {
        let octets: [u8; 4] = reply[reply.len() - 4..].try_into().unwrap();
        Ipv4Addr::from(octets)
    });
    (reply[3] & 0xf, address)
}

async fn ask(world: &World, name: &str, kind: u16) -> (u8, Option<Ipv4Addr>) {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.send_to(&question(name, kind), world.dns).await.unwrap();
    let mut reply = [0; 512];
    let length =
        tokio::time::timeout(BOUND, socket.recv(&mut reply)).await.expect("a reply in time").unwrap();
    understood(&reply[..length])
}

#[tokio::test]
async fn an_allowed_name_leads_through_the_gateway() {
    let world = World::new("").await;
    let port = world.forward.port();
    world.change(&format!("allow tcp://db.example:{port}; allow web.example:{port}"));
    let origin = Origin::plain(ok("forwarded")).await;
    for name in ["db.example", "web.example"] {
        world.place(&format!("{name}:{port}"), &origin);
        let (code, address) = ask(&world, name, A).await;
        assert_eq!(code, 0);
        let mut stream = TcpStream::connect(SocketAddr::new(address.unwrap().into(), port)).await.unwrap();
        let answer = exchange(&mut stream, &format!("GET / HTTP/1.1\r\nHost: {name}:{port}\r\n\r\n")).await;
        assert!(answer.ends_with("forwarded"), "{answer}");
    }
    // An address that stands for no name leads nowhere.
    let mut stream =
        TcpStream::connect(SocketAddr::new(Ipv4Addr::new(127, 200, 0, 1).into(), port)).await.unwrap();
    assert!(hangs_up(&mut stream).await);
    assert_eq!(origin.requests().len(), 2);
}

#[tokio::test]
async fn a_forwarded_connection_is_decided_when_it_is_made() {
    let world = World::new("").await;
    let port = world.forward.port();
    world.change(&format!("allow a.example:{port}"));
    let origin = Origin::plain(ok("x")).await;
    world.place(&format!("a.example:{port}"), &origin);
    let (_, address) = ask(&world, "a.example", A).await;
    world.change("allow b.example");
    let mut stream = TcpStream::connect(SocketAddr::new(address.unwrap().into(), port)).await.unwrap();
    assert!(hangs_up(&mut stream).await);
    assert_eq!(origin.connections(), 0);
    assert_eq!(world.denials(), [format!("a.example:{port}: not allowed")]);
}

#[tokio::test]
async fn names_are_answered_over_tcp_too() {
    let world = World::new("allow a.example").await;
    let mut stream = TcpStream::connect(world.dns).await.unwrap();
    for _ in 0..2 {
        let question = question("a.example", A);
        stream.write_u16(u16::try_from(question.len()).unwrap()).await.unwrap();
        stream.write_all(&question).await.unwrap();
        let length = stream.read_u16().await.unwrap();
        let mut reply = vec![0; usize::from(length)];
        stream.read_exact(&mut reply).await.unwrap();
        assert_eq!(understood(&reply), (0, Some(Ipv4Addr::new(127, 128, 0, 1))));
    }
    stream.write_u16(60_000).await.unwrap();
    assert!(hangs_up(&mut stream).await);
}

#[tokio::test]
async fn only_names_that_can_be_reached_exist() {
    let world = World::new("allow a.example; allow *.w.example; deny x.w.example").await;
    for (name, kind, code, has_address) in [
        ("a.example", A, 0, true),
        ("A.Example", A, 0, true),
        ("a.example", AAAA, 0, false),
        ("a.example", TXT, 0, false),
        ("y.w.example", A, 0, true),
        ("x.w.example", A, 3, false),
        ("b.example", A, 3, false),
        ("localhost", A, 0, true),
        ("api.egress.internal", A, 3, false),
        ("1.0.0.127.in-addr.arpa", 12, 3, false),
    ] {
        let (found, address) = ask(&world, name, kind).await;
        assert_eq!((found, address.is_some()), (code, has_address), "{name} {kind}");
    }
}

#[tokio::test]
async fn a_name_carries_nothing_out() {
    let world = World::new("allow *.w.example").await;
    for index in 0..50 {
        ask(&world, &format!("stolen{index}.evil.example"), TXT).await;
        ask(&world, &format!("stolen{index}.w.example"), A).await;
        ask(&world, &format!("stolen{index}.w.example"), TXT).await;
    }
    assert_eq!(world.names.asked(), Vec::<String>::new());
    assert_eq!(world.dial.dialed(), Vec::new());
    assert_eq!(world.bill().denials.len(), 50);
}
