//! What a well-behaved client gets.

use std::net::SocketAddr;

use cubicle_egress::{Limits, Terms};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::origin::{Origin, ok};
use crate::world::{BOUND, World, exchange, hangs_up, limits, read_answer, read_to_end, ruleset};

#[tokio::test]
async fn a_plain_request_reaches_an_allowed_host() {
    let world = World::new("allow a.example").await;
    let origin = Origin::plain(ok("hello")).await;
    world.place("a.example:80", &origin);
    let answer = world
        .send(
            "POST http://A.example/x?y=z HTTP/1.1\r\nHost: a.example\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\n\
             Proxy-Authorization: Basic eDp5\r\nX-Kept: 1\r\nContent-Length: 3\r\n\r\nabc",
        )
        .await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nhello"), "{answer}");
    let seen = origin.requests().pop().unwrap();
    assert!(seen.starts_with("POST /x?y=z HTTP/1.1\r\n"), "{seen}");
    assert!(seen.contains("host: a.example\r\n") && seen.contains("x-kept: 1\r\n"), "{seen}");
    assert!(seen.contains("via: 1.1 cubicle-test\r\n") && seen.ends_with("\r\n\r\nabc"), "{seen}");
    for gone in ["x-hop", "proxy-", "connection: close"] {
        assert!(!seen.contains(gone), "{seen}");
    }
    world.until("the bill", |world| world.bill().lines.iter().any(|line| line.bytes_received == 5)).await;
    let line = world.bill().lines.pop().unwrap();
    assert_eq!(
        (line.host.to_string(), line.port, line.method.as_deref()),
        ("a.example".into(), 80, Some("POST"))
    );
    assert_eq!((line.requests, line.failures, line.bytes_sent), (1, 0, 3));
    world.until("the log", |world| !world.log.lock().unwrap().is_empty()).await;
    let log = world.log.lock().unwrap().pop().unwrap();
    assert!(log.contains("\"POST a.example:80\" 200 5 3 "), "{log}");
}

#[tokio::test]
async fn a_denied_request_is_told_the_rule_and_what_to_do() {
    let world = World::new("allow a.example; deny *.evil.example").await;
    for (url, says) in [
        (
            "http://b.example/",
            "no rule of the policy allows it\nto allow it, add 'allow http://b.example' to the policy\n",
        ),
        ("http://x.evil.example/", "x.evil.example:80 is denied by the rule 'deny *.evil.example'\n"),
    ] {
        let answer = world.get(url).await;
        assert!(answer.starts_with("HTTP/1.1 403 Forbidden\r\n") && answer.ends_with(says), "{answer}");
    }
    let answer = world.tunnel("b.example:443").await.unwrap_err();
    assert!(answer.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{answer}");
    assert!(answer.ends_with("add 'allow https://b.example' to the policy\n"), "{answer}");
    assert_eq!(world.names.asked(), Vec::<String>::new());
    assert_eq!(
        world.denials(),
        ["b.example:443: not allowed", "b.example:80: not allowed", "x.evil.example:80: deny *.evil.example"]
    );
}

#[tokio::test]
async fn a_sandbox_without_a_network_reaches_nothing() {
    let world = World::new("none").await;
    let answer = world.tunnel("a.example:443").await.unwrap_err();
    assert!(answer.contains("this sandbox has no network (its policy is 'none')"), "{answer}");
}

#[tokio::test]
async fn a_tunnel_carries_tls_from_end_to_end() {
    let world = World::new("allow a.example").await;
    let origin = Origin::tls(world.certificate("a.example"), |_| ok("secret")).await;
    world.place("a.example:443", &origin);
    let stream = world.tunnel("a.example:443").await.unwrap();
    let mut stream = world.tls(stream, "a.example", false).await.unwrap();
    for _ in 0..3 {
        let answer = exchange(&mut stream, "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n").await;
        assert!(answer.ends_with("secret"), "{answer}");
    }
    drop(stream);
    world.until("the tunnel's end", |world| world.log.lock().unwrap().len() == 1).await;
    let line = world.bill().lines.pop().unwrap();
    assert_eq!((&line.method, line.requests, origin.connections()), (&None, 1, 1));
    assert!(line.bytes_sent > 300 && line.bytes_received > 300, "{line:?}");
}

#[tokio::test]
async fn a_client_may_speak_before_it_is_answered() {
    let world = World::new("allow a.example").await;
    let origin = Origin::plain(ok("early")).await;
    world.place("a.example:80", &origin);
    let mut stream = world.connect().await;
    let early = "CONNECT a.example:80 HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\nHost: a.example\r\n\r\n";
    stream.write_all(early.as_bytes()).await.unwrap();
    let accepted = crate::world::read_head(&mut stream).await;
    assert!(accepted.starts_with("HTTP/1.1 200 Connected"), "{accepted}");
    assert!(read_answer(&mut stream).await.ends_with("early"));
}

#[tokio::test]
async fn much_data_goes_through_a_tunnel_unchanged_in_both_directions() {
    let world = World::new("allow tcp://a.example:9000").await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    world.names.set("a.example", &["93.184.216.34"]);
    world.dial.lead("93.184.216.34:9000".parse().unwrap(), listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let (mut from, mut to) = stream.into_split();
        tokio::io::copy(&mut from, &mut to).await.unwrap();
    });
    let stream = world.tunnel("a.example:9000").await.unwrap();
    let sent: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect();
    let (mut from, mut to) = stream.into_split();
    let writing = sent.clone();
    tokio::spawn(async move {
        to.write_all(&writing).await.unwrap();
        to.shutdown().await.unwrap();
    });
    let mut back = Vec::new();
    from.read_to_end(&mut back).await.unwrap();
    assert!(back == sent, "{} of {} bytes came back", back.len(), sent.len());
}

#[tokio::test]
async fn a_server_that_speaks_first_is_heard() {
    let world = World::new("allow a.example:2525").await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    world.names.set("a.example", &["93.184.216.34"]);
    world.dial.lead("93.184.216.34:2525".parse().unwrap(), listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"220 ready\r\n").await.unwrap();
        let mut line = [0; 6];
        stream.read_exact(&mut line).await.unwrap();
        stream.write_all(b"250 hello\r\n").await.unwrap();
    });
    let mut stream = world.tunnel("a.example:2525").await.unwrap();
    let mut greeting = [0; 11];
    stream.read_exact(&mut greeting).await.unwrap();
    assert_eq!(&greeting, b"220 ready\r\n");
    stream.write_all(b"HELO\r\n").await.unwrap();
    assert_eq!(read_to_end(&mut stream).await, "250 hello\r\n");
}

#[tokio::test]
async fn a_short_message_of_another_protocol_is_not_waited_for() {
    let world = World::new("allow a.example:7000").await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    world.names.set("a.example", &["93.184.216.34"]);
    world.dial.lead("93.184.216.34:7000".parse().unwrap(), listener.local_addr().unwrap());
    let mut tunnel = world.tunnel("a.example:7000").await.unwrap();
    let (mut upstream, _) = listener.accept().await.unwrap();
    tunnel.write_all(b"PING").await.unwrap();
    let mut message = [0; 4];
    tokio::time::timeout(BOUND / 2, upstream.read_exact(&mut message)).await.expect("it arrives").unwrap();
    assert_eq!(&message, b"PING");
}

#[tokio::test]
async fn socks_reaches_names_and_addresses() {
    let world = World::new("allow a.example; allow 93.184.216.34; allow 2606:4700::1").await;
    let origin = Origin::plain(ok("socks")).await;
    for place in ["a.example:80", "93.184.216.34:80", "[2606:4700::1]:80"] {
        world.place(place, &origin);
    }
    let v6: std::net::Ipv6Addr = "2606:4700::1".parse().unwrap();
    let name = [&[3, 9][..], b"a.example"].concat();
    for (address, host) in [
        (name, "a.example"),
        (vec![1, 93, 184, 216, 34], "93.184.216.34"),
        ([&[4][..], &v6.octets()].concat(), "[2606:4700::1]"),
    ] {
        let mut stream = world.connect().await;
        stream.write_all(&[5, 1, 0]).await.unwrap();
        stream.write_all(&[&[5, 1, 0][..], &address, &[0, 80]].concat()).await.unwrap();
        let mut reply = [0; 12];
        stream.read_exact(&mut reply).await.unwrap();
        assert_eq!(reply, [5, 0, 5, 0, 0, 1, 0, 0, 0, 0, 0, 0], "{host}");
        let answer = exchange(&mut stream, &format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")).await;
        assert!(answer.ends_with("socks"), "{answer}");
    }
}

#[tokio::test]
async fn socks_refusals_have_their_codes() {
    let world = World::new("allow a.example; allow gone.example; allow deny.example private").await;
    world.names.set("a.example", &["93.184.216.34"]);
    world.names.set("deny.example", &["169.254.169.254"]);
    for (request, code) in [
        (&b"\x05\x01\x00\x03\x09b.example\x01\xbb"[..], 2),
        (b"\x05\x01\x00\x01\x7f\x00\x00\x01\x01\xbb", 2),
        (b"\x05\x01\x00\x03\x0cdeny.example\x01\xbb", 2),
        (b"\x05\x01\x00\x03\x09a.example\x01\xbb", 5),
        (b"\x05\x01\x00\x03\x0cgone.example\x01\xbb", 4),
        (b"\x05\x02\x00\x03\x09a.example\x01\xbb", 7),
        (b"\x05\x03\x00\x01\x00\x00\x00\x00\x00\x00", 7),
        (b"\x05\x01\x00\x09xxxx", 8),
        (b"\x05\x01\x00\x03\x0a2130706433\x00\x50", 1),
    ] {
        let answer = world.send([b"\x05\x01\x00", request].concat()).await;
        assert_eq!(answer.as_bytes()[..4], [5, 0, 5, code], "{request:?}");
    }
    // Whoever insists on a password gets nowhere.
    assert_eq!(world.send(b"\x05\x01\x02").await.as_bytes()[0], 5);
}

#[tokio::test]
async fn upstream_connections_are_kept_for_one_sandbox_and_never_shared() {
    let world = World::new("allow a.example").await;
    let other = world.another(2, "allow a.example");
    let origin = Origin::plain(ok("x")).await;
    world.place("a.example:80", &origin);
    let request = "GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n";
    for _ in 0..3 {
        let mut stream = world.connect().await;
        exchange(&mut stream, request).await;
        exchange(&mut stream, request).await;
    }
    assert_eq!((origin.requests().len(), origin.connections()), (6, 1));
    let mut stream = TcpStream::connect(other).await.unwrap();
    exchange(&mut stream, request).await;
    assert_eq!((origin.requests().len(), origin.connections()), (7, 2));
}

#[tokio::test]
async fn a_kept_connection_that_has_ended_is_replaced() {
    let world = World::new("allow a.example").await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    world.names.set("a.example", &["93.184.216.34"]);
    world.dial.lead("93.184.216.34:80".parse().unwrap(), listener.local_addr().unwrap());
    tokio::spawn(async move {
        // Each connection serves one request, says that it stays open, and does not.
        while let Ok((mut stream, _)) = listener.accept().await {
            crate::world::read_head(&mut stream).await;
            stream.write_all(&ok("once")).await.unwrap();
        }
    });
    for _ in 0..5 {
        let answer = world.get("http://a.example/").await;
        assert!(answer.ends_with("once"), "{answer}");
    }
}

#[tokio::test]
async fn new_terms_hold_for_what_is_open() {
    let world = World::new("allow a.example; allow b.example").await;
    let origin = Origin::tls(world.certificate("a.example"), |_| ok("x")).await;
    let plain = Origin::plain(ok("plain")).await;
    world.place("a.example:443", &origin);
    world.place("b.example:80", &plain);
    let stream = world.tunnel("a.example:443").await.unwrap();
    let mut tunnel = world.tls(stream, "a.example", false).await.unwrap();
    let request = "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n";
    exchange(&mut tunnel, request).await;
    let mut kept = world.connect().await;
    let plain_request = "GET http://b.example/ HTTP/1.1\r\nHost: b.example\r\n\r\n";
    assert!(exchange(&mut kept, plain_request).await.ends_with("plain"));
    // A change that still allows both leaves them alone.
    world.change("allow *.example");
    assert!(exchange(&mut tunnel, request).await.ends_with('x'));
    assert!(exchange(&mut kept, plain_request).await.ends_with("plain"));
    world.change("allow c.example");
    assert!(hangs_up(&mut tunnel).await);
    assert!(exchange(&mut kept, plain_request).await.starts_with("HTTP/1.1 403"));
    assert_eq!(plain.requests().len(), 2);
}

#[tokio::test]
async fn a_detached_sandbox_has_no_connection_left_and_its_bill_is_given() {
    let world = World::new("allow a.example").await;
    let origin = Origin::tls(world.certificate("a.example"), |_| ok("x")).await;
    world.place("a.example:443", &origin);
    let stream = world.tunnel("a.example:443").await.unwrap();
    let mut tunnel = world.tls(stream, "a.example", false).await.unwrap();
    let bill = world.gateway.detach(world.sandbox).await.unwrap();
    assert_eq!(bill.lines.len(), 1);
    assert!(hangs_up(&mut tunnel).await);
    assert!(world.gateway.bill(world.sandbox).is_err());
    assert!(world.gateway.detach(world.sandbox).await.is_none());
    let refused = TcpStream::connect(world.proxy).await;
    assert!(refused.is_err(), "the listener is closed");
}

#[tokio::test]
async fn budgets_are_kept() {
    let world = World::new("allow a.example; limit requests 2/s; limit connections 2").await;
    let origin = Origin::plain(ok("x")).await;
    world.place("a.example:80", &origin);
    let mut stream = world.connect().await;
    let request = "GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n";
    exchange(&mut stream, request).await;
    exchange(&mut stream, request).await;
    let answer = exchange(&mut stream, request).await;
    assert!(answer.starts_with("HTTP/1.1 429 "), "{answer}");
    assert!(answer.contains("retry-after: 1\r\n"), "{answer}");
    let held = [world.connect().await, world.connect().await];
    let answer = until_told(world.proxy).await;
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("too many connections"), "{answer}");
    drop(held);
}

#[tokio::test]
async fn a_byte_budget_ends_a_tunnel_and_a_download() {
    let policy = "allow a.example; allow tcp://a.example:9000; limit received 10k; limit sent 5k";
    let world = World::new(policy).await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    world.names.set("a.example", &["93.184.216.0"]);
    world.dial.lead("93.184.216.0:9000".parse().unwrap(), listener.local_addr().unwrap());
    let mut tunnel = world.tunnel("a.example:9000").await.unwrap();
    tunnel.write_all(&[0; 6000]).await.unwrap();
    assert!(hangs_up(&mut tunnel).await);
    assert_eq!(world.denials(), ["a.example:9000: budget: bytes sent"]);

    let world = World::new(policy).await;
    let origin = Origin::plain(ok(&"x".repeat(20_000))).await;
    world.place("a.example:80", &origin);
    let answer = world.get("http://a.example/").await;
    assert!(answer.len() < 20_000, "{}", answer.len());
    // What comes after it is told why.
    let answer = world.get("http://a.example/").await;
    assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains("used up: bytes received"), "{answer}");
    assert!(world.tunnel("a.example:9000").await.unwrap_err().contains("used up: bytes received"));
    assert_eq!(origin.requests().len(), 1);
}

#[tokio::test]
async fn heads_count_towards_the_budget_as_bodies_do() {
    let world = World::new("allow a.example; limit sent 5k").await;
    let origin = Origin::plain(ok("")).await;
    world.place("a.example:80", &origin);
    let carry = |part: &str| {
        let data = "x".repeat(2000);
        match part {
            "path" => format!("GET http://a.example/{data} HTTP/1.1\r\nHost: a.example\r\n\r\n"),
            _ => format!("GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\nX-Data: {data}\r\n\r\n"),
        }
    };
    for part in ["path", "field", "path", "field"] {
        world.send(carry(part).replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n")).await;
    }
    assert_eq!(origin.requests().len(), 2);
    assert_eq!(world.denials(), ["a.example:80: budget: bytes sent"]);
}

#[tokio::test]
async fn a_recorded_run_is_allowed_and_becomes_a_policy() {
    let terms = Terms { record: true, ..Terms::of(ruleset("deny evil.example; inspect c.example")) };
    let world = World::with(limits(), terms).await;
    let (plain, tls) =
        (Origin::plain(ok("x")).await, Origin::tls(world.certificate("b.example"), |_| ok("x")).await);
    let inspected = Origin::tls(world.certificate("c.example"), |_| ok("x")).await;
    world.place("a.example:80", &plain);
    world.place("b.example:443", &tls);
    world.place("c.example:443", &inspected);
    world.names.set("meta.example", &["169.254.169.254"]);
    assert!(world.get("http://a.example/").await.starts_with("HTTP/1.1 200"));
    let tunnel = world.tunnel("b.example:443").await.unwrap();
    let mut tunnel = world.tls(tunnel, "b.example", false).await.unwrap();
    exchange(&mut tunnel, "GET / HTTP/1.1\r\nHost: b.example\r\n\r\n").await;
    let tunnel = world.tunnel("c.example:443").await.unwrap();
    let mut tunnel = world.tls(tunnel, "c.example", true).await.unwrap();
    exchange(&mut tunnel, "PUT / HTTP/1.1\r\nHost: c.example\r\ncontent-length: 0\r\n\r\n").await;
    assert!(world.get("http://evil.example/").await.starts_with("HTTP/1.1 403"));
    assert!(world.get("http://meta.example/").await.starts_with("HTTP/1.1 403"));
    let policy = world.gateway.recording(world.sandbox).unwrap().minimal_policy().to_string();
    assert_eq!(
        policy,
        "allowlist\nallow GET http://a.example\nallow https://b.example\nallow PUT https://c.example\ninspect c.example:443\n"
    );
}

#[tokio::test]
async fn a_rule_for_requests_holds_for_each_of_them() {
    let world =
        World::new("allow GET http://a.example/v1/**; allow b.example; deny POST http://b.example").await;
    let origin = Origin::plain(ok("x")).await;
    world.place("a.example:80", &origin);
    world.place("b.example:80", &origin);
    for (url, status) in [
        ("http://a.example/v1/x", 200),
        ("http://a.example/v2/x", 403),
        ("http://a.example/v1/../v2/x", 403),
        ("http://a.example/v1/%2e%2e/v2", 403),
        ("http://b.example/", 200),
    ] {
        let answer = world.get(url).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{url}: {answer}");
    }
    // In a tunnel as well.
    let mut tunnel = world.tunnel("a.example:80").await.unwrap();
    assert!(
        exchange(&mut tunnel, "GET /v1/x HTTP/1.1\r\nHost: a.example\r\n\r\n")
            .await
            .starts_with("HTTP/1.1 200")
    );
    assert!(
        exchange(&mut tunnel, "GET /v2/x HTTP/1.1\r\nHost: a.example\r\n\r\n")
            .await
            .starts_with("HTTP/1.1 403")
    );
    assert_eq!(origin.requests().len(), 3);
}

#[tokio::test]
async fn a_head_request_and_an_empty_answer_leave_the_connection_usable() {
    let world = World::new("allow a.example").await;
    let origin = Origin::answering(|request| {
        if request.starts_with("HEAD") {
            b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n".to_vec()
        } else {
            b"HTTP/1.1 204 No Content\r\n\r\n".to_vec()
        }
    })
    .await;
    world.place("a.example:80", &origin);
    let mut stream = world.connect().await;
    for method in ["HEAD", "GET", "HEAD"] {
        let request = format!("{method} http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let head = crate::world::read_head(&mut stream).await;
        assert!(head.starts_with("HTTP/1.1 20"), "{head}");
    }
    assert_eq!(origin.connections(), 1);
}

#[tokio::test]
async fn an_upload_in_chunks_arrives_and_waits_for_its_go_ahead() {
    let world = World::new("allow a.example").await;
    let origin = Origin::plain(ok("done")).await;
    world.place("a.example:80", &origin);
    let mut stream = world.connect().await;
    let head = "PUT http://a.example/up HTTP/1.1\r\nHost: a.example\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    assert!(crate::world::read_head(&mut stream).await.starts_with("HTTP/1.1 100 "));
    let answer = exchange(&mut stream, "5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n").await;
    assert!(answer.ends_with("done"), "{answer}");
    let seen = origin.requests().pop().unwrap();
    assert!(seen.contains("hello") && seen.contains(" world") && !seen.contains("expect"), "{seen}");
}

#[tokio::test]
async fn the_bound_on_all_connections_holds_for_all_sandboxes_together() {
    let world =
        World::with(Limits { connections: 2, ..limits() }, Terms::of(ruleset("allow a.example"))).await;
    let other = world.another(2, "allow a.example");
    let held = [world.connect().await, world.connect().await];
    assert!(until_told(other).await.starts_with("HTTP/1.1 503 "));
    drop(held);
}

/// Connects, says nothing and leaves, until the proxy has something to say about that: that there is no room, once it
/// has accepted the connections that were made before.
async fn until_told(proxy: SocketAddr) -> String {
    let telling = async {
        loop {
            let mut stream = TcpStream::connect(proxy).await.unwrap();
            // The proxy may have closed it already.
            let _ = stream.shutdown().await;
            let told = read_to_end(&mut stream).await;
            if !told.is_empty() {
                return told;
            }
        }
    };
    tokio::time::timeout(BOUND, telling).await.expect("there is no room in time")
}
