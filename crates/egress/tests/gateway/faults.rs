//! An outside that fails in every way.

use std::io;
use std::time::Duration;

use cubicle_egress::{Limits, Terms};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

use crate::origin::{Issuing, Origin, ok};
use crate::world::{World, exchange, hangs_up, limits, read_head, read_to_end, ruleset};

/// Short enough for a test that waits for it.
const SOON: Duration = Duration::from_millis(300);

async fn impatient(policy: &str) -> World {
    let limits =
        Limits { connect_deadline: SOON, answer_deadline: SOON, idle: SOON, head_deadline: SOON, ..limits() };
    World::with(limits, Terms::of(ruleset(policy))).await
}

/// An origin that does this with every connection after it has read a request.
async fn odd(world: &World, place: &str, answer: &'static [u8], hang: bool) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let origin = listener.local_addr().unwrap();
    world.names.set(place, &["93.184.216.34"]);
    world.dial.lead("93.184.216.34:80".parse().unwrap(), origin);
    tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            read_head(&mut stream).await;
            let _ = stream.write_all(answer).await;
            if hang {
                held.push(stream);
            }
        }
    });
}

#[tokio::test]
async fn every_way_of_not_being_reached_has_its_answer() {
    let world = impatient("allow *.example").await;
    world.names.set("refused.example", &["93.184.216.1"]);
    world.names.set("hanging.example", &["93.184.216.2"]);
    world.names.set("unreachable.example", &["93.184.216.3"]);
    world.names.set("exhausted.example", &["93.184.216.4"]);
    world.names.set("empty.example", &[]);
    for port in [80, 443] {
        world.dial.hang(&format!("93.184.216.2:{port}"));
        world.dial.fail(&format!("93.184.216.3:{port}"), io::ErrorKind::HostUnreachable);
        world.dial.exhaust(&format!("93.184.216.4:{port}"));
    }
    for (name, status, says) in [
        (
            "gone.example",
            502,
            "the name does not resolve (no such name)\ncheck the spelling of the host name\n",
        ),
        ("empty.example", 502, "the name has no address\n"),
        ("refused.example", 502, "the connection was refused\n"),
        ("hanging.example", 504, "no connection in time\ntry again later\n"),
        ("unreachable.example", 502, "host unreachable\n"),
        ("exhausted.example", 503, "out of file descriptors\n"),
    ] {
        let answer = world.get(&format!("http://{name}/")).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")) && answer.contains(says),
            "{name}: {answer}"
        );
        let answer = world.tunnel(&format!("{name}:443")).await.unwrap_err();
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")) && answer.contains(says),
            "{name}: {answer}"
        );
    }
    // That the outside fails is not the sandbox's doing.
    assert_eq!(world.denials(), Vec::<String>::new());
    assert!(world.bill().lines.iter().all(|line| line.failures == line.requests), "{:?}", world.bill());
}

#[tokio::test]
async fn the_next_address_is_tried_when_one_fails() {
    let world = World::new("allow a.example").await;
    let origin = Origin::plain(ok("second")).await;
    world.names.set("a.example", &["93.184.216.1", "93.184.216.2"]);
    world.dial.lead("93.184.216.2:80".parse().unwrap(), origin.at);
    assert!(world.get("http://a.example/").await.ends_with("second"));
}

#[tokio::test]
async fn a_certificate_that_is_not_right_is_refused_and_explained() {
    let world = World::new("allow *.example; inspect *.example").await;
    let stranger = Issuing::new("a stranger");
    let cases = [
        (
            "expired.example",
            world.issuing.valid("expired.example", 2020, 2021),
            "has expired or is not valid yet",
        ),
        (
            "early.example",
            world.issuing.valid("early.example", 2035, 2036),
            "has expired or is not valid yet",
        ),
        ("other.example", world.certificate("another.example"), "is for another name"),
        (
            "stranger.example",
            stranger.certificate("stranger.example"),
            "issued by nobody whom this host trusts",
        ),
    ];
    for (name, certificate, says) in cases {
        let origin = Origin::tls(certificate, |_| ok("x")).await;
        world.place(&format!("{name}:443"), &origin);
        let tunnel = world.tunnel(&format!("{name}:443")).await.unwrap();
        let mut tunnel = world.tls(tunnel, name, true).await.unwrap();
        let answer = exchange(&mut tunnel, &format!("GET / HTTP/1.1\r\nHost: {name}\r\n\r\n")).await;
        assert!(answer.starts_with("HTTP/1.1 502 ") && answer.contains(says), "{name}: {answer}");
        assert_eq!(origin.requests().len(), 0);
    }
}

#[tokio::test]
async fn an_origin_that_talks_nonsense_is_told_to_the_client() {
    for (answer, hang, status) in [
        (&b"\x00\x01\x02 garbage that is no HTTP\r\n\r\n"[..], false, 502),
        (b"SSH-2.0-OpenSSH_9.6\r\n", false, 502),
        (b"", false, 502),
        (b"HTTP/1.1 200 OK\r\ncontent-le", false, 502),
        (b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n", true, 502),
        (b"", true, 504),
        (b"HTTP/1.1 200 OK\r\n", true, 504),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello", false, 502),
    ] {
        let world = impatient("allow a.example").await;
        odd(&world, "a.example", answer, hang).await;
        let got = world.get("http://a.example/").await;
        assert!(got.starts_with(&format!("HTTP/1.1 {status} ")), "{answer:?}: {got}");
    }
}

/// Ends a connection without a goodbye.
fn reset(stream: tokio::net::TcpStream) {
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
}

#[tokio::test]
async fn an_origin_that_resets_is_told_and_counted_as_a_failure() {
    let world = World::new("allow a.example; allow tcp://a.example:9000").await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    world.names.set("a.example", &["93.184.216.34"]);
    for port in [80, 9000] {
        world.dial.lead(format!("93.184.216.34:{port}").parse().unwrap(), listener.local_addr().unwrap());
    }
    // Before its answer, and in the middle of it.
    for (said, expected) in
        [("", "HTTP/1.1 502 "), ("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf", "HTTP/1.1 200 ")]
    {
        let answer = async { world.get("http://a.example/").await };
        let origin = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            read_head(&mut stream).await;
            stream.write_all(said.as_bytes()).await.unwrap();
            // What was said has arrived when the client has seen its head; a reset would take it away before.
            world
                .until("the head of the answer", |world| {
                    said.is_empty() || world.bill().lines[0].bytes_received > 0
                })
                .await;
            reset(stream);
        };
        let (answer, ()) = tokio::join!(answer, origin);
        assert!(answer.starts_with(expected) && answer.len() < 400, "{answer}");
    }
    assert_eq!(world.bill().lines[0].failures, 2);
    // In a tunnel.
    let mut tunnel = world.tunnel("a.example:9000").await.unwrap();
    let (stream, _) = listener.accept().await.unwrap();
    reset(stream);
    assert!(hangs_up(&mut tunnel).await);
    world
        .until("the failure", |world| {
            world.bill().lines.iter().any(|line| line.port == 9000 && line.failures == 1)
        })
        .await;
}

#[tokio::test]
async fn a_head_without_end_does_not_fill_the_gateway() {
    let world = World::new("allow a.example").await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    world.names.set("a.example", &["93.184.216.34"]);
    world.dial.lead("93.184.216.34:80".parse().unwrap(), listener.local_addr().unwrap());
    let sending = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        read_head(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\n").await.unwrap();
        let line = format!("x-filler: {}\r\n", "x".repeat(8000));
        let mut sent = 0;
        while stream.write_all(line.as_bytes()).await.is_ok() {
            sent += line.len();
            assert!(sent < 100_000_000, "the gateway reads on");
        }
        sent
    });
    let answer = world.get("http://a.example/").await;
    assert!(answer.starts_with("HTTP/1.1 502 ") && answer.contains("its head is too long"), "{answer}");
    // It hung up long before all of it was sent; sockets hold a few megabytes.
    assert!(sending.await.unwrap() < 50_000_000);
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_not_taken_for_whole() {
    let world = impatient("allow a.example").await;
    odd(&world, "a.example", b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nonly this", false).await;
    let answer = world.get("http://a.example/").await;
    assert!(answer.contains("content-length: 100") && answer.ends_with("only this"), "{answer}");
    odd(&world, "a.example", b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n", true)
        .await;
    let answer = world.get("http://a.example/").await;
    assert!(!answer.ends_with("0\r\n\r\n"), "{answer}");
    assert!(world.bill().lines[0].failures >= 1, "{:?}", world.bill());
}

#[tokio::test]
async fn a_tunnel_in_which_nothing_moves_ends() {
    let world = impatient("allow tcp://a.example:9000").await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    world.names.set("a.example", &["93.184.216.34"]);
    world.dial.lead("93.184.216.34:9000".parse().unwrap(), listener.local_addr().unwrap());
    let mut tunnel = world.tunnel("a.example:9000").await.unwrap();
    let (mut upstream, _) = listener.accept().await.unwrap();
    assert!(hangs_up(&mut tunnel).await);
    assert!(hangs_up(&mut upstream).await);
}

#[tokio::test]
async fn a_client_that_hangs_up_ends_what_was_asked_for_it() {
    let world = World::new("allow tcp://a.example:9000").await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    world.names.set("a.example", &["93.184.216.34"]);
    world.dial.lead("93.184.216.34:9000".parse().unwrap(), listener.local_addr().unwrap());
    let tunnel = world.tunnel("a.example:9000").await.unwrap();
    let (mut upstream, _) = listener.accept().await.unwrap();
    drop(tunnel);
    assert_eq!(read_to_end(&mut upstream).await, "");
    drop(upstream);
    world.until("the end of the tunnel", |world| !world.log.lock().unwrap().is_empty()).await;
}
