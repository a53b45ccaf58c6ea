//! Connections that leave HTTP, where the rules allow the request that they begin with.

use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cubicle_egress::credentials::{Credential, Form};
use cubicle_egress::secret::Secret;
use cubicle_egress::{Base, Limits, Terms};
use cubicle_model::egress::Scheme;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::world::{BOUND, World, hangs_up, limits, read_head, ruleset};

const SECRET: &str = "very-secret-value";
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";

fn asking(url: &str, more: &str) -> String {
    let host = url.split('/').nth(2).unwrap();
    format!(
        "GET {url} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n{more}\r\n"
    )
}

fn accept(key: &str) -> String {
    let input = format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    let hash = ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, input.as_bytes());
    STANDARD.encode(hash)
}

/// An origin that takes every offer, and then sends back what it gets, with a greeting before it.
async fn serve(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    heads: &Mutex<Vec<String>>,
    greeting: &str,
) {
    let head = read_head(stream).await;
    let key = head.lines().find_map(|line| line.strip_prefix("sec-websocket-key: ")).unwrap_or("");
    let answer = format!(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Accept: {}\r\nX-Seen: yes\r\n\r\n{greeting}",
        accept(key)
    );
    heads.lock().unwrap().push(head);
    stream.write_all(answer.as_bytes()).await.unwrap();
    let mut bytes = [0; 4096];
    while let Ok(length) = stream.read(&mut bytes).await {
        if length == 0 || stream.write_all(&bytes[..length]).await.is_err() {
            return;
        }
    }
}

/// The heads that the origin has seen.
async fn echoing(world: &World, greeting: &'static str) -> Arc<Mutex<Vec<String>>> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    world.names.set("ws.example", &["93.184.216.34"]);
    world.dial.lead("93.184.216.34:80".parse().unwrap(), listener.local_addr().unwrap());
    let heads = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&heads);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let kept = Arc::clone(&kept);
            tokio::spawn(async move { serve(&mut stream, &kept, greeting).await });
        }
    });
    heads
}

/// An origin that gives this answer to every request.
async fn answering(world: &World, answer: String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    world.names.set("ws.example", &["93.184.216.34"]);
    world.dial.lead("93.184.216.34:80".parse().unwrap(), listener.local_addr().unwrap());
    tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            read_head(&mut stream).await;
            let _ = stream.write_all(answer.as_bytes()).await;
            held.push(stream);
        }
    });
}

async fn read_exactly(stream: &mut (impl AsyncRead + Unpin), length: usize) -> String {
    let mut bytes = vec![0; length];
    let reading = stream.read_exact(&mut bytes);
    tokio::time::timeout(BOUND, reading).await.expect("bytes come in time").unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[tokio::test]
async fn a_websocket_that_the_rules_allow_goes_through_the_proxy_and_is_counted() {
    let world = World::new("allow GET http://ws.example/chat").await;
    let heads = echoing(&world, "hi").await;
    let mut stream = world.connect().await;
    stream
        .write_all(asking("http://ws.example/chat", "Sec-WebSocket-Protocol: x\r\n").as_bytes())
        .await
        .unwrap();
    let head = read_head(&mut stream).await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    assert!(head.contains("upgrade: websocket\r\n") && head.contains("x-seen: yes\r\n"), "{head}");
    assert_eq!(read_exactly(&mut stream, 2).await, "hi");
    // Bytes that would be a suspicious request are none here.
    let bytes = "POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n\0\u{1}";
    for _ in 0..3 {
        stream.write_all(bytes.as_bytes()).await.unwrap();
        assert_eq!(read_exactly(&mut stream, bytes.len()).await, bytes);
    }
    let seen = heads.lock().unwrap()[0].clone();
    assert!(
        seen.starts_with("GET /chat HTTP/1.1\r\n") && seen.contains("via: 1.1 cubicle-test\r\n"),
        "{seen}"
    );
    assert!(
        seen.contains("upgrade: websocket\r\n") && seen.contains("sec-websocket-protocol: x\r\n"),
        "{seen}"
    );
    drop(stream);
    world.until("the end of the WebSocket", |world| !world.log.lock().unwrap().is_empty()).await;
    let line = &world.bill().lines[0];
    assert_eq!(
        (line.requests, line.bytes_sent, line.bytes_received),
        (1, 3 * bytes.len() as u64, 3 * bytes.len() as u64 + 2)
    );
    assert!(world.log.lock().unwrap()[0].contains("\"GET ws.example:80\" 101 "), "{:?}", world.log);
}

#[tokio::test]
async fn a_websocket_that_no_rule_allows_is_refused_before_anything_is_resolved() {
    let world = World::new("allow GET http://ws.example/chat; allow POST http://ws.example").await;
    echoing(&world, "").await;
    for url in ["http://ws.example/other", "http://elsewhere.example/chat", "http://169.254.169.254/chat"] {
        assert!(world.send(asking(url, "")).await.starts_with("HTTP/1.1 403 "), "{url}");
    }
    assert_eq!(world.dial.dialed(), []);
    assert_eq!(world.names.asked(), Vec::<String>::new());
}

#[tokio::test]
async fn a_request_for_a_websocket_that_means_something_else_reaches_nobody() {
    let world = World::new("allow ws.example").await;
    let heads = echoing(&world, "").await;
    let proper = asking("http://ws.example/", "");
    for (from, to) in [
        ("GET", "POST"),
        ("Version: 13", "Version: 8"),
        (KEY, "short"),
        ("Upgrade: websocket", "Upgrade: websocket\r\nContent-Length: 3"),
        ("Upgrade: websocket", "Upgrade: websocket\r\nTransfer-Encoding: chunked"),
        ("Sec-WebSocket-Key", "Sec-WebSocket-Kee"),
    ] {
        let answer = world.send(proper.replacen(from, to, 1)).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{to}: {answer}");
    }
    assert_eq!(heads.lock().unwrap().len(), 0);
    // Naming the key as its own connection's does not take it from the other side.
    let mut stream = world.connect().await;
    let named = proper
        .replace("Connection: Upgrade", "Connection: Upgrade, Sec-WebSocket-Key, Sec-WebSocket-Version");
    stream.write_all(named.as_bytes()).await.unwrap();
    assert!(read_head(&mut stream).await.starts_with("HTTP/1.1 101 "));
    assert!(heads.lock().unwrap()[0].contains(&format!("sec-websocket-key: {KEY}\r\n")));
}

#[tokio::test]
async fn nobody_leaves_http_by_an_answer_that_was_not_asked_for() {
    let good = accept(KEY);
    for (asked, answer) in [
        (
            true,
            "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
                .to_owned(),
        ),
        (
            true,
            format!(
                "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: {KEY}\r\n\r\n"
            ),
        ),
        (
            true,
            format!(
                "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c\r\nSec-WebSocket-Accept: {good}\r\n\r\n"
            ),
        ),
        (true, format!("HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Accept: {good}\r\n\r\n")),
        (
            false,
            format!(
                "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: {good}\r\n\r\n"
            ),
        ),
    ] {
        let world = World::new("allow ws.example").await;
        answering(&world, answer.clone()).await;
        let request = match asked {
            true => asking("http://ws.example/", ""),
            false => "GET http://ws.example/ HTTP/1.1\r\nHost: ws.example\r\n\r\n".to_owned(),
        };
        let got = world.send(request).await;
        assert!(got.starts_with("HTTP/1.1 502 "), "{answer}: {got}");
    }
}

#[tokio::test]
async fn a_host_that_refuses_a_websocket_answers_as_usual_and_the_next_request_is_decided() {
    let world = World::new("allow ws.example").await;
    answering(&world, "HTTP/1.1 426 Upgrade Required\r\ncontent-length: 2\r\n\r\nno".to_owned()).await;
    let mut stream = world.connect().await;
    // What is sent behind the offer is a request of its own when the offer is not taken.
    let behind =
        "GET http://elsewhere.example/ HTTP/1.1\r\nHost: elsewhere.example\r\nConnection: close\r\n\r\n";
    stream.write_all((asking("http://ws.example/", "") + behind).as_bytes()).await.unwrap();
    let answers = crate::world::read_to_end(&mut stream).await;
    assert!(answers.starts_with("HTTP/1.1 426 ") && answers.contains("HTTP/1.1 403 "), "{answers}");
}

#[tokio::test]
async fn new_terms_end_a_websocket_that_they_deny() {
    let world = World::new("allow ws.example").await;
    echoing(&world, "hi").await;
    let mut stream = world.connect().await;
    stream.write_all(asking("http://ws.example/", "").as_bytes()).await.unwrap();
    read_head(&mut stream).await;
    assert_eq!(read_exactly(&mut stream, 2).await, "hi");
    world.change("allow ws.example; allow b.example");
    stream.write_all(b"still").await.unwrap();
    assert_eq!(read_exactly(&mut stream, 5).await, "still");
    world.change("deny ws.example; allow b.example");
    assert!(hangs_up(&mut stream).await);
    assert_eq!(world.denials(), ["ws.example:80: deny ws.example"]);
}

#[tokio::test]
async fn a_websocket_is_bounded_by_the_budget_and_by_silence() {
    let world = World::new("allow ws.example; limit sent 1k").await;
    echoing(&world, "").await;
    let mut stream = world.connect().await;
    stream.write_all(asking("http://ws.example/", "").as_bytes()).await.unwrap();
    read_head(&mut stream).await;
    stream.write_all(&[b'x'; 4096]).await.unwrap();
    assert!(hangs_up(&mut stream).await);
    assert_eq!(world.denials(), ["ws.example:80: budget: bytes sent"]);

    let soon = Limits { idle: std::time::Duration::from_millis(300), ..limits() };
    let world = World::with(soon, Terms::of(ruleset("allow ws.example"))).await;
    echoing(&world, "").await;
    let mut stream = world.connect().await;
    stream.write_all(asking("http://ws.example/", "").as_bytes()).await.unwrap();
    read_head(&mut stream).await;
    assert!(hangs_up(&mut stream).await);
}

#[tokio::test]
async fn a_websocket_keeps_its_place_among_the_connections_of_its_sandbox() {
    let world = World::new("allow ws.example; limit connections 1").await;
    echoing(&world, "hi").await;
    let mut stream = world.connect().await;
    stream.write_all(asking("http://ws.example/", "").as_bytes()).await.unwrap();
    read_head(&mut stream).await;
    assert_eq!(read_exactly(&mut stream, 2).await, "hi");
    assert!(world.send("").await.starts_with("HTTP/1.1 503 "));
}

#[tokio::test]
async fn a_base_url_takes_a_websocket_to_tls_with_the_secret_added_and_masked_on_its_way_back() {
    let credential = Credential {
        name: "KEY".into(),
        secret: Some(Secret::new(SECRET)),
        host: "ws.example".parse().unwrap(),
        port: 443,
        form: Form::Bearer,
        even_plain: false,
    };
    let base =
        Base { name: "ws".into(), scheme: Scheme::Https, host: "ws.example".parse().unwrap(), port: 443 };
    let terms =
        Terms { credentials: vec![credential], bases: vec![base], ..Terms::of(ruleset("allow ws.example")) };
    let world = World::with(limits(), terms).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    world.names.set("ws.example", &["93.184.216.34"]);
    world.dial.lead("93.184.216.34:443".parse().unwrap(), listener.local_addr().unwrap());
    let tls = world.certificate("ws.example").acceptor();
    let heads = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&heads);
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = tls.accept(stream).await.unwrap();
        serve(&mut stream, &kept, "your key is very-secret-value! bye very-").await;
    });
    let mut stream = world.connect().await;
    let extensions = "Sec-WebSocket-Extensions: permessage-deflate\r\n";
    stream.write_all(asking("http://ws.egress.internal/realtime", extensions).as_bytes()).await.unwrap();
    assert!(read_head(&mut stream).await.starts_with("HTTP/1.1 101 "));
    // The last word could be the beginning of the secret. It comes nevertheless, as somebody may wait for it.
    let said = read_exactly(&mut stream, 40).await;
    assert!(
        said.starts_with("your key is ") && said.ends_with("! bye very-") && !said.contains(SECRET),
        "{said}"
    );
    let seen = heads.lock().unwrap()[0].clone();
    assert!(seen.contains(&format!("authorization: Bearer {SECRET}\r\n")), "{seen}");
    assert!(!seen.contains("permessage-deflate"), "{seen}");
}
