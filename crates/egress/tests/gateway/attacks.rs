//! What a hostile client tries. Every name is what the gateway keeps to.

use std::time::Duration;

use cubicle_egress::{Limits, Terms};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::origin::{Origin, ok};
use crate::world::{
    BOUND, CONTROL_PLANE, EVERYWHERE, HERE, World, exchange, hangs_up, limits, read_head, read_to_end,
    ruleset,
};

/// A world in which `good.example` answers on 80, and so would everything else.
async fn good() -> (World, Origin) {
    let world = World::new("allow good.example").await;
    let origin = Origin::plain(ok("reached")).await;
    for place in ["good.example:80", "evil.example:80"] {
        world.place(place, &origin);
    }
    (world, origin)
}

async fn is_refused(world: &World, request: &str) {
    let answer = world.send(request).await;
    let status: u16 = answer.get(9..12).and_then(|status| status.parse().ok()).unwrap_or(0);
    assert!((400..600).contains(&status) && !answer.contains("reached"), "{request:?}: {answer:?}");
}

#[tokio::test]
async fn a_host_header_cannot_name_another_host() {
    let (world, origin) = good().await;
    for request in [
        "GET http://good.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        "GET http://good.example/ HTTP/1.1\r\nHost: good.example\r\nHost: evil.example\r\n\r\n",
        "GET http://good.example/ HTTP/1.1\r\nHost: good.example:81\r\n\r\n",
        "GET http://good.example/ HTTP/1.1\r\nHost: good.example@evil.example\r\n\r\n",
        "GET http://good.example/ HTTP/1.1\r\nHost: good.example, evil.example\r\n\r\n",
        "CONNECT good.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\n",
    ] {
        is_refused(&world, request).await;
    }
    assert_eq!(origin.connections(), 0);
}

#[tokio::test]
async fn requests_in_a_tunnel_cannot_name_another_host() {
    let (world, origin) = good().await;
    for request in [
        "GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        "GET http://evil.example/ HTTP/1.1\r\nHost: good.example\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\n",
    ] {
        let mut tunnel = world.tunnel("good.example:80").await.unwrap();
        let answer = exchange(&mut tunnel, request).await;
        assert!(answer.starts_with("HTTP/1.1 4"), "{request:?}: {answer}");
    }
    // Nor the second request, after a good first one.
    let mut tunnel = world.tunnel("good.example:80").await.unwrap();
    assert!(exchange(&mut tunnel, "GET / HTTP/1.1\r\nHost: good.example\r\n\r\n").await.ends_with("reached"));
    assert!(
        exchange(&mut tunnel, "GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n")
            .await
            .starts_with("HTTP/1.1 421")
    );
    assert_eq!(origin.requests().len(), 1);
}

#[tokio::test]
async fn the_name_in_tls_cannot_be_another() {
    let world =
        World::new("allow good.example; allow good.example:8443; allow 93.184.216.34; deny evil.example")
            .await;
    let origin = Origin::tls(world.certificate("evil.example"), |_| ok("reached")).await;
    for place in ["good.example:443", "good.example:8443", "93.184.216.34:443"] {
        world.place(place, &origin);
        let tunnel = world.tunnel(place).await.unwrap();
        let error = world.tls(tunnel, "evil.example", false).await.unwrap_err().to_string();
        assert!(error.contains("UnrecognisedName"), "{place}: {error}");
    }
    // A client that hides the name gets no further with a name of its own choice.
    let tunnel = world.tunnel("good.example:443").await.unwrap();
    assert!(world.tls(tunnel, "93.184.216.34", false).await.is_err());
    assert_eq!(origin.requests().len(), 0);
    assert_eq!(
        world.bill().denials.iter().map(|denial| denial.count).sum::<u64>(),
        4,
        "{:?}",
        world.denials()
    );
}

#[tokio::test]
async fn the_name_in_tls_cannot_be_a_denied_one_where_everything_is_open() {
    let world = World::new("open; deny evil.example").await;
    let origin = Origin::tls(world.certificate("evil.example"), |_| ok("reached")).await;
    world.place("good.example:443", &origin);
    let tunnel = world.tunnel("good.example:443").await.unwrap();
    assert!(world.tls(tunnel, "evil.example", false).await.is_err());
    assert_eq!(origin.requests().len(), 0);
}

#[tokio::test]
async fn a_tunnel_to_an_address_needs_a_rule_for_it() {
    let (world, origin) = good().await;
    world.place("93.184.216.34:443", &origin);
    for place in
        ["93.184.216.34:443", "[2606:4700::1]:443", "127.0.0.1:443", "[::1]:443", "169.254.169.254:80"]
    {
        let answer = world.tunnel(place).await.unwrap_err();
        assert!(answer.starts_with("HTTP/1.1 403 "), "{place}: {answer}");
    }
    assert_eq!(world.dial.dialed(), Vec::new());
}

#[tokio::test]
async fn no_spelling_of_a_refused_address_is_reached() {
    let world = World::new("open").await;
    for host in [
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0x7f.0.0.1",
        "0177.0.0.1",
        "127.0.0.1.",
        "0",
        "0.0.0.0",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
        "[64:ff9b::127.0.0.1]",
        "[64:ff9b::a9fe:a9fe]",
        "[2002:7f00:1::]",
        "[fe80::1]",
        "[fe80::1%25eth0]",
        "[fd00:ec2::254]",
        "[fc00::1]",
        "169.254.169.254",
        "2852039166",
        "10.0.0.1",
        "192.168.0.1",
        "172.16.0.1",
        "100.64.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "168.63.129.16",
        "[::ffff:0:127.0.0.1]",
        "[2001:0:4136:e378:8000:63bf:80ff:fffe]",
    ] {
        let answer = world.tunnel(&format!("{host}:80")).await.unwrap_err();
        assert!(answer.starts_with("HTTP/1.1 4"), "{host}: {answer}");
        let answer = world.get(&format!("http://{host}/")).await;
        assert!(answer.starts_with("HTTP/1.1 4"), "{host}: {answer}");
    }
    assert_eq!(world.dial.dialed(), Vec::new());
    assert_eq!(world.names.asked(), Vec::<String>::new());
}

#[tokio::test]
async fn a_name_that_leads_inwards_is_not_followed() {
    let world = World::new("open").await;
    for (index, address) in [
        "127.0.0.1",
        "10.1.2.3",
        "169.254.169.254",
        "::1",
        "::ffff:10.0.0.1",
        "64:ff9b::a00:1",
        "fd00:ec2::254",
        "0.0.0.0",
        "100.100.100.200",
        "fe80::1",
    ]
    .iter()
    .enumerate()
    {
        let name = format!("rebind{index}.example");
        world.names.set(&name, &[address]);
        let answer = world.get(&format!("http://{name}/")).await;
        assert!(
            answer.starts_with("HTTP/1.1 403 ") && answer.contains("refused unless a rule names it"),
            "{answer}"
        );
    }
    assert_eq!(world.dial.dialed(), Vec::new());
}

#[tokio::test]
async fn a_name_that_changes_its_mind_is_checked_every_time() {
    let world = World::new("open").await;
    let origin = Origin::plain(ok("inside")).await;
    // First public, then private, and once both.
    world.names.sequence("rebind.example", &[&["93.184.216.34"], &["10.0.0.1"]]);
    world.names.set("both.example", &["10.0.0.1", "93.184.216.34"]);
    world.dial.lead("10.0.0.1:80".parse().unwrap(), origin.at);
    world.get("http://rebind.example/").await;
    world.get("http://rebind.example/").await;
    world.get("http://both.example/").await;
    assert!(
        world.dial.dialed().iter().all(|to| to.ip().to_string() == "93.184.216.34"),
        "{:?}",
        world.dial.dialed()
    );
    assert_eq!(origin.connections(), 0);
}

#[tokio::test]
async fn the_control_plane_is_reached_by_one_request_alone() {
    let hook = "allow POST http://control.example:7070/hooks/task-1 private";
    let world = World::new(&format!("open; {hook}; allow 198.41.0.4:7070")).await;
    let origin = Origin::plain(ok("control plane")).await;
    world.place("control.example:7070", &origin);
    world.names.set("control.example", &["198.41.0.4"]);
    world.dial.lead(CONTROL_PLANE.parse().unwrap(), origin.at);
    for url in [
        "http://control.example:7070/api/v1/leases",
        "http://198.41.0.4:7070/",
        "http://control.example:7070/hooks/task-1",
    ] {
        let answer = world.get(url).await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{url}: {answer}");
    }
    assert!(world.tunnel("control.example:7070").await.is_err());
    let post = "POST http://control.example:7070/hooks/task-1 HTTP/1.1\r\nHost: control.example:7070\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
    assert!(world.send(post).await.ends_with("control plane"));
    is_refused(&world, &post.replace("task-1", "task-2")).await;
    is_refused(&world, &post.replace("hooks/task-1", "hooks/../api")).await;
    assert_eq!(origin.requests().len(), 1);
}

#[tokio::test]
async fn a_control_plane_on_every_address_is_refused_at_each_of_them() {
    let hook = "allow POST http://hook.example:7171/hooks/task-1 private";
    let world = World::new(&format!("open; {hook}; allow 198.41.0.9; allow tcp://198.41.0.9:7171")).await;
    let origin = Origin::plain(ok("control plane")).await;
    for port in [EVERYWHERE, 8080] {
        world.dial.lead(format!("{HERE}:{port}").parse().unwrap(), origin.at);
    }
    world.dial.lead(format!("198.41.0.10:{EVERYWHERE}").parse().unwrap(), origin.at);
    for name in ["host.example", "hook.example"] {
        world.names.set(name, &[HERE]);
    }
    for url in
        ["http://198.41.0.9:7171/", "http://host.example:7171/", "http://hook.example:7171/hooks/task-1"]
    {
        let answer = world.get(url).await;
        assert!(answer.contains("198.41.0.9 is an address of the control plane"), "{url}: {answer}");
    }
    assert!(world.tunnel("host.example:7171").await.is_err());
    assert_eq!(origin.connections(), 0);
    let post = "POST http://hook.example:7171/hooks/task-1 HTTP/1.1\r\nHost: hook.example:7171\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
    assert!(world.send(post).await.ends_with("control plane"));
    // Another port of the host, and another host at that port.
    for url in ["http://host.example:8080/", "http://198.41.0.10:7171/"] {
        assert!(world.get(url).await.ends_with("control plane"), "{url}");
    }
}

#[tokio::test]
async fn the_form_of_a_request_hides_nothing() {
    let (world, origin) = good().await;
    for request in [
        "GET http://good.example@evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        "GET http://user:good.example@evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        "GET http://evil.example\\@good.example/ HTTP/1.1\r\nHost: good.example\r\n\r\n",
        "GET http://good.example%2eevil.example/ HTTP/1.1\r\nHost: good.example\r\n\r\n",
        "GET http://good.example%00.evil.example/ HTTP/1.1\r\nHost: good.example\r\n\r\n",
        "GET http://evil.example#good.example/ HTTP/1.1\r\nHost: good.example\r\n\r\n",
        "GET http://good.example:80@evil.example:80/ HTTP/1.1\r\nHost: good.example\r\n\r\n",
        "GET //evil.example/ HTTP/1.1\r\nHost: good.example\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: good.example\r\n\r\n",
        "GET evil.example HTTP/1.1\r\nHost: good.example\r\n\r\n",
        "GET good.example:80 HTTP/1.1\r\nHost: good.example\r\n\r\n",
        "GET * HTTP/1.1\r\nHost: good.example\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nHost: good.example\r\n\r\n",
        "GET https://good.example/ HTTP/1.1\r\nHost: good.example\r\n\r\n",
        "GET ftp://good.example/ HTTP/1.1\r\nHost: good.example\r\n\r\n",
        "GET file:///etc/passwd HTTP/1.1\r\nHost: good.example\r\n\r\n",
        "GET http:/good.example/ HTTP/1.1\r\nHost: good.example\r\n\r\n",
        "GET http://[good.example]/ HTTP/1.1\r\nHost: good.example\r\n\r\n",
        "GET http://good.example:080x/ HTTP/1.1\r\nHost: good.example\r\n\r\n",
        "GET http://g\u{f6}od.example/ HTTP/1.1\r\nHost: good.example\r\n\r\n",
        "GET http://good.example/ HTTP/2.0\r\nHost: good.example\r\n\r\n",
        "GET http://good.example/\r\nHost: good.example\r\n\r\n",
        "CONNECT good.example HTTP/1.1\r\n\r\n",
        "CONNECT http://good.example:443/ HTTP/1.1\r\n\r\n",
        "CONNECT good.example:443@evil.example:443 HTTP/1.1\r\n\r\n",
    ] {
        is_refused(&world, request).await;
    }
    assert_eq!(origin.connections(), 0);
}

#[tokio::test]
async fn a_request_cannot_hide_another_behind_it() {
    let hidden = "GET http://good.example/hidden HTTP/1.1\r\nHost: good.example\r\n\r\n";
    for framing in [
        "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        "Content-Length: 5\r\nContent-Length: 0\r\n",
        "Content-Length: 0\r\nContent-Length: 0\r\n",
        "Content-Length: 0, 0\r\n",
        "Content-Length: +0\r\n",
        "Transfer-Encoding: identity, chunked\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding: \x0bchunked\r\n",
        "Transfer-Encoding : chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "X: y\r\n Transfer-Encoding: chunked\r\n",
        "X: y\nTransfer-Encoding: chunked\r\n",
    ] {
        let (world, origin) = good().await;
        let request = format!(
            "POST http://good.example/ HTTP/1.1\r\nHost: good.example\r\n{framing}\r\n0\r\n\r\n{hidden}"
        );
        let answer = world.send(&request).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{framing:?}: {answer}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{framing:?}: {answer}");
        assert!(origin.requests().is_empty(), "{framing:?}: {:?}", origin.requests());
    }
}

#[tokio::test]
async fn a_later_request_of_a_connection_is_checked_as_the_first() {
    let (world, origin) = good().await;
    let mut stream = world.connect().await;
    let good = "GET http://good.example/ HTTP/1.1\r\nHost: good.example\r\n\r\n";
    assert!(exchange(&mut stream, good).await.ends_with("reached"));
    let bad = "POST http://good.example/ HTTP/1.1\r\nHost: good.example\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    stream.write_all(format!("{bad}{good}").as_bytes()).await.unwrap();
    let answer = read_to_end(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 400 ") && !answer.contains("reached"), "{answer}");
    assert_eq!(origin.requests().len(), 1);
}

#[tokio::test]
async fn chunks_that_are_not_clear_reach_nobody_in_full() {
    for chunks in [
        "5\r\nhelloX\r\n0\r\n\r\n",
        "-1\r\n\r\n0\r\n\r\n",
        "0x5\r\nhello\r\n0\r\n\r\n",
        "5 \r\nhello\r\n0\r\n\r\n",
        "5\nhello\n0\n\n",
        "ffffffffffffffff\r\n",
        "10000000000000000000\r\n",
        "\r\n0\r\n\r\n",
        &format!("5;{}\r\nhello\r\n0\r\n\r\n", "x".repeat(5000)),
        &format!("0\r\nx: {}\r\n\r\n", "x".repeat(200_000)),
    ] {
        let (world, origin) = good().await;
        let request = format!(
            "POST http://good.example/ HTTP/1.1\r\nHost: good.example\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}"
        );
        let mut stream = world.connect().await;
        // The gateway may hang up while it is still being sent.
        let _ = stream.write_all(request.as_bytes()).await;
        let answer = read_to_end(&mut stream).await;
        assert!(!answer.contains("reached"), "{}: {answer}", &chunks[..chunks.len().min(40)]);
        assert!(origin.requests().is_empty(), "{:?}", origin.requests());
    }
}

#[tokio::test]
async fn no_header_can_be_smuggled_into_what_is_sent() {
    let (world, origin) = good().await;
    for request in [
        "GET http://good.example/\rX-Injected:1 HTTP/1.1\r\nHost: good.example\r\n\r\n",
        "GET http://good.example/ HTTP/1.1\r\nHost: good.example\r\nX: a\rX-Injected: 1\r\n\r\n",
        "GET http://good.example/ HTTP/1.1\r\nHost: good.example\r\nX: a\0X-Injected: 1\r\n\r\n",
        "GET http://good.example/ HTTP/1.1\r\nHost: good.example\r\nX Injected: 1\r\n\r\n",
        "GET http://good.example/ HTTP/1.1\r\nHost: good.example\r\n: 1\r\n\r\n",
        "CONNECT good.example:443\r\nX-Injected: 1 HTTP/1.1\r\n\r\n",
    ] {
        is_refused(&world, request).await;
    }
    // What is encoded stays encoded.
    let answer = world.get("http://good.example/%0d%0aX-Injected:%201?q=%0d%0a").await;
    assert!(answer.ends_with("reached"), "{answer}");
    let seen = origin.requests();
    assert_eq!(seen.len(), 1);
    assert!(seen[0].starts_with("GET /%0d%0aX-Injected:%201?q=%0d%0a HTTP/1.1\r\n"), "{}", seen[0]);
    assert!(!seen[0].to_ascii_lowercase().contains("\nx-injected"), "{}", seen[0]);
}

#[tokio::test]
async fn the_gateway_removes_nothing_on_demand_that_a_request_means() {
    let (world, origin) = good().await;
    let request = "POST http://good.example/ HTTP/1.1\r\nHost: good.example\r\nContent-Length: 2\r\n\
                   Connection: close, host, content-length, via\r\n\r\nok";
    assert!(world.send(request).await.ends_with("reached"));
    let seen = origin.requests().pop().unwrap();
    assert!(seen.contains("host: good.example\r\n") && seen.contains("content-length: 2\r\n"), "{seen}");
    assert!(seen.contains("via: 1.1 cubicle-test\r\n"), "{seen}");
}

#[tokio::test]
async fn plain_http_2_is_not_spoken() {
    let (world, origin) = good().await;
    // An offer is ignored, as the protocol allows.
    let upgrade = "GET http://good.example/ HTTP/1.1\r\nHost: good.example\r\nConnection: Upgrade, HTTP2-Settings\r\n\
                   Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n";
    let mut stream = world.connect().await;
    let answer = exchange(&mut stream, upgrade).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("reached"), "{answer}");
    let seen = origin.requests().pop().unwrap().to_ascii_lowercase();
    assert!(!seen.contains("upgrade") && !seen.contains("http2-settings"), "{seen}");
    // The preface is no request.
    let preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    assert_eq!(world.send(preface).await, "");
    let mut tunnel = world.tunnel("good.example:80").await.unwrap();
    tunnel.write_all(preface.as_bytes()).await.unwrap();
    assert!(hangs_up(&mut tunnel).await);
    // Other protocols are not waited for, and neither is HTTP/2 beside one that is spoken.
    for protocols in ["TLS/1.0", "connect-udp", "h2c, websocket", "websocket, h2c", "websocket\r\nUpgrade: x"]
    {
        let upgrade = format!(
            "GET http://good.example/ HTTP/1.1\r\nHost: good.example\r\nConnection: upgrade\r\nUpgrade: {protocols}\r\n\r\n"
        );
        let answer = world.send(upgrade).await;
        assert!(answer.starts_with("HTTP/1.1 501"), "{protocols}: {answer}");
    }
    assert_eq!(origin.requests().len(), 1);
}

#[tokio::test]
async fn other_protocols_do_not_pass_through_the_ports_of_the_web() {
    let (world, origin) = good().await;
    world.place("good.example:443", &origin);
    for (port, bytes) in [
        (443, &b"SSH-2.0-OpenSSH_9.6\r\n"[..]),
        (443, b"\x00\x00\x00\x08\x04\xd2\x16\x2f"),
        (443, b"\x16\x03\x01\x00\x05hello"),
        (80, b"SSH-2.0-OpenSSH_9.6\r\n"),
        (80, b"*1\r\n$4\r\nPING\r\n"),
    ] {
        let mut tunnel = world.tunnel(&format!("good.example:{port}")).await.unwrap();
        tunnel.write_all(bytes).await.unwrap();
        let mut answer = Vec::new();
        let _ = tokio::time::timeout(BOUND, tunnel.read_to_end(&mut answer)).await.expect("the tunnel ends");
        assert!(answer.len() < 20, "{answer:?}");
    }
    assert_eq!(origin.requests(), Vec::<String>::new());
}

#[tokio::test]
async fn a_redirect_is_the_clients_to_follow_and_leads_nowhere_new() {
    let world = World::new("allow good.example").await;
    let redirect = "HTTP/1.1 302 Found\r\nlocation: http://169.254.169.254/latest/meta-data/\r\ncontent-length: 0\r\n\r\n";
    let origin = Origin::plain(redirect).await;
    world.place("good.example:80", &origin);
    let answer = world.get("http://good.example/").await;
    assert!(
        answer.starts_with("HTTP/1.1 302") && answer.contains("location: http://169.254.169.254/"),
        "{answer}"
    );
    assert!(world.get("http://169.254.169.254/latest/meta-data/").await.starts_with("HTTP/1.1 403"));
    assert_eq!(world.dial.dialed().len(), 1);
}

#[tokio::test]
async fn a_request_that_comes_back_is_stopped() {
    let world = World::new("allow good.example; allow 93.184.216.34:3128").await;
    let origin = Origin::plain(ok("reached")).await;
    world.place("good.example:80", &origin);
    let looped =
        "GET http://good.example/ HTTP/1.1\r\nHost: good.example\r\nVia: 1.0 other, 1.1 cubicle-test\r\n\r\n";
    let answer = world.send(looped).await;
    assert!(answer.starts_with("HTTP/1.1 508 "), "{answer}");
    // Another gateway's name is no loop.
    let chained = "GET http://good.example/ HTTP/1.1\r\nHost: good.example\r\nVia: 1.1 cubicle-other\r\nConnection: close\r\n\r\n";
    assert!(world.send(chained).await.ends_with("reached"));
}

#[tokio::test]
async fn a_tunnel_to_the_gateway_itself_is_bounded_where_a_rule_allows_it() {
    let world = World::new("allow tcp://gateway.example:3128; limit connections 4").await;
    world.names.set("gateway.example", &["93.184.216.34"]);
    world.dial.lead("93.184.216.34:3128".parse().unwrap(), world.proxy);
    let mut stream = world.connect().await;
    let connect = "CONNECT gateway.example:3128 HTTP/1.1\r\nHost: gateway.example:3128\r\n\r\n";
    let mut depth = 0;
    loop {
        stream.write_all(connect.as_bytes()).await.unwrap();
        let head = read_head(&mut stream).await;
        if !head.starts_with("HTTP/1.1 200 ") {
            assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
            break;
        }
        depth += 1;
        assert!(depth <= 4, "the loop goes on");
    }
    assert_eq!(depth, 3 + 1);
    // Without the rule there is no first step, whatever else is open.
    let world = World::new("open").await;
    assert!(world.tunnel(&world.proxy.to_string()).await.unwrap_err().starts_with("HTTP/1.1 403 "));
}

#[tokio::test]
async fn a_client_that_never_finishes_its_head_is_dropped() {
    let limits = Limits { head_deadline: Duration::from_millis(300), ..limits() };
    let world = World::with(limits, Terms::of(ruleset("allow good.example"))).await;
    for beginning in [
        "",
        "C",
        "CONNECT good.example:443 HTTP/1.1\r\nX: ",
        "GET http://good.example/ HTTP/1.1\r\nX: ",
        "\x05",
        "\x05\x01\x00\x05\x01",
    ] {
        let mut stream = world.connect().await;
        stream.write_all(beginning.as_bytes()).await.unwrap();
        read_to_end(&mut stream).await;
    }
}

#[tokio::test]
async fn a_client_that_does_not_read_is_dropped() {
    let limits = Limits { idle: Duration::from_millis(300), ..limits() };
    let world =
        World::with(limits, Terms::of(ruleset("allow good.example; allow tcp://good.example:9000"))).await;
    let body = "x".repeat(64 << 20);
    let origin = Origin::plain(ok(&body)).await;
    world.place("good.example:80", &origin);
    world.place("good.example:9000", &origin);
    let request = "GET http://good.example/ HTTP/1.1\r\nHost: good.example\r\n\r\n";
    let mut plain = world.connect().await;
    plain.write_all(request.as_bytes()).await.unwrap();
    let mut tunnel = world.tunnel("good.example:9000").await.unwrap();
    tunnel.write_all(b"GET / HTTP/1.1\r\nHost: good.example\r\n\r\n").await.unwrap();
    world.until("the end of both", |world| world.log.lock().unwrap().len() == 2).await;
    let bill = world.bill();
    assert!(bill.lines.iter().all(|line| line.bytes_received < 64 << 20), "{bill:?}");
}

#[tokio::test]
async fn a_head_that_is_too_long_is_refused() {
    let (world, origin) = good().await;
    let many = "X-Filler: y\r\n".repeat(10_000);
    let long = format!("X-Filler: {}\r\n", "y".repeat(200_000));
    for filler in [many, long] {
        for start in ["GET http://good.example/ HTTP/1.1", "CONNECT good.example:443 HTTP/1.1"] {
            let mut stream = world.connect().await;
            // The gateway may answer and hang up while it is still being sent.
            let _ =
                stream.write_all(format!("{start}\r\nHost: good.example\r\n{filler}\r\n").as_bytes()).await;
            let answer = read_to_end(&mut stream).await;
            assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{start}: {answer}");
        }
    }
    assert_eq!(origin.connections(), 0);
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused() {
    let limits = Limits { request_body: 1000, ..limits() };
    let world = World::with(limits, Terms::of(ruleset("allow good.example"))).await;
    let origin = Origin::plain(ok("reached")).await;
    world.place("good.example:80", &origin);
    let head = "POST http://good.example/ HTTP/1.1\r\nHost: good.example\r\n";
    let announced = world.send(format!("{head}Content-Length: 1001\r\n\r\n{}", "x".repeat(1001))).await;
    assert!(announced.starts_with("HTTP/1.1 413 "), "{announced}");
    let chunked = world
        .send(format!("{head}Transfer-Encoding: chunked\r\n\r\n3e9\r\n{}\r\n0\r\n\r\n", "x".repeat(1001)))
        .await;
    assert!(chunked.starts_with("HTTP/1.1 413 "), "{chunked}");
    assert_eq!(origin.requests().len(), 0);
}

#[tokio::test]
async fn an_older_socks_is_not_spoken() {
    let (world, origin) = good().await;
    let answer = world.send(b"\x04\x01\x00\x50\x5d\xb8\xd8\x22user\x00").await;
    assert!(!answer.contains("reached"), "{answer:?}");
    assert_eq!(origin.connections(), 0);
}

#[tokio::test]
async fn a_tunnel_is_not_opened_inside_of_a_connection_for_requests() {
    let (world, origin) = good().await;
    let mut stream = world.connect().await;
    let good = "GET http://good.example/ HTTP/1.1\r\nHost: good.example\r\n\r\n";
    assert!(exchange(&mut stream, good).await.ends_with("reached"));
    stream.write_all(b"CONNECT evil.example:80 HTTP/1.1\r\nHost: evil.example:80\r\n\r\n").await.unwrap();
    let answer = read_to_end(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("a connection of its own"), "{answer}");
    assert_eq!(origin.connections(), 1);
}

#[tokio::test]
async fn an_answer_cannot_be_mistaken_for_two() {
    let world = World::new("allow good.example").await;
    let smuggled = "HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\nreachedHTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\npoison";
    let origin = Origin::plain(smuggled).await;
    world.place("good.example:80", &origin);
    let mut stream = world.connect().await;
    let request = "GET http://good.example/ HTTP/1.1\r\nHost: good.example\r\n\r\n";
    for _ in 0..3 {
        stream.write_all(request.as_bytes()).await.unwrap();
        let head = read_head(&mut stream).await;
        let mut body = [0; 7];
        if head.starts_with("HTTP/1.1 200") {
            stream.read_exact(&mut body).await.unwrap();
            assert_eq!(&body, b"reached");
        } else {
            assert!(head.starts_with("HTTP/1.1 502"), "{head}");
            break;
        }
    }
}
