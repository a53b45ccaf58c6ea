//! Secrets that are added on the way out, and what becomes of them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cubicle_egress::credentials::{Credential, Form};
use cubicle_egress::secret::Secret;
use cubicle_egress::{Base, Terms};
use cubicle_model::egress::Scheme;

use crate::origin::{Origin, ok};
use crate::world::{World, exchange, limits, ruleset};

const KEY: &str = "sk-ant-0123456789abcdef";

fn credential(host: &str, form: Form) -> Credential {
    let secret = Some(Secret::new(KEY));
    Credential {
        name: "API_KEY".into(),
        secret,
        host: host.parse().unwrap(),
        port: 443,
        form,
        even_plain: false,
    }
}

fn base(name: &str, host: &str) -> Base {
    Base { name: name.into(), scheme: Scheme::Https, host: host.parse().unwrap(), port: 443 }
}

fn terms(policy: &str, credentials: Vec<Credential>) -> Terms {
    Terms { credentials, bases: vec![base("api", "api.example")], ..Terms::of(ruleset(policy)) }
}

fn bearer() -> Vec<Credential> {
    vec![credential("api.example", Form::Bearer)]
}

async fn world(policy: &str, credentials: Vec<Credential>) -> World {
    World::with(limits(), terms(policy, credentials)).await
}

/// Answers with the whole request, as an error page does.
async fn echo(world: &World, name: &str) -> Origin {
    let origin = Origin::tls(world.certificate(name), |request| {
        let body = request.to_owned();
        format!(
            "HTTP/1.1 400 Bad\r\nx-echo: {}\r\ncontent-length: {}\r\n\r\n{body}",
            line(request, "authorization"),
            body.len()
        )
        .into()
    })
    .await;
    world.place(&format!("{name}:443"), &origin);
    origin
}

fn line<'a>(request: &'a str, name: &str) -> &'a str {
    request.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).unwrap_or("-")
}

#[tokio::test]
async fn a_base_url_leads_to_tls_with_the_secret_added() {
    for (form, expected) in [
        (Form::Bearer, format!("authorization: Bearer {KEY}\r\n")),
        (Form::Header("x-api-key".parse().unwrap()), format!("x-api-key: {KEY}\r\n")),
        (
            Form::Basic { user: "token".into() },
            "authorization: Basic dG9rZW46c2stYW50LTAxMjM0NTY3ODlhYmNkZWY=\r\n".into(),
        ),
        (Form::Query("key".into()), format!("POST /v1/messages?beta=1&key={KEY} HTTP/1.1\r\n")),
    ] {
        let world = world("allow https://api.example", vec![credential("api.example", form)]).await;
        let origin = Origin::tls(world.certificate("api.example"), |_| ok("answer")).await;
        world.place("api.example:443", &origin);
        let answer = world
            .send(
                "POST http://api.egress.internal/v1/messages?beta=1 HTTP/1.1\r\nHost: api.egress.internal\r\n\
                 Authorization: Bearer none\r\nAccept-Encoding: gzip\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}",
            )
            .await;
        assert!(answer.ends_with("answer"), "{answer}");
        let seen = origin.requests().pop().unwrap();
        assert!(seen.contains(&expected), "{seen}");
        assert!(
            seen.contains("host: api.example\r\n") && seen.contains("accept-encoding: identity\r\n"),
            "{seen}"
        );
        assert!(seen.ends_with("\r\n\r\n{}"), "{seen}");
        let bill = world.bill();
        assert_eq!((bill.lines[0].host.to_string().as_str(), bill.lines[0].port), ("api.example", 443));
        // What is written down about it does not hold the secret.
        let written = format!("{bill:?}{:?}{:?}", world.log.lock().unwrap(), world.gateway);
        assert!(!written.contains(KEY), "{written}");
    }
}

#[tokio::test]
async fn the_policy_decides_about_a_base_url_by_what_it_stands_for() {
    let world = world("allow POST https://api.example/v1/**", bearer()).await;
    let origin = Origin::tls(world.certificate("api.example"), |_| ok("x")).await;
    world.place("api.example:443", &origin);
    let answer = world.get("http://api.egress.internal/v1/messages").await;
    assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("api.example:443 is denied"), "{answer}");
    let answer = world.get("http://other.egress.internal/").await;
    assert!(answer.starts_with("HTTP/1.1 404") && answer.contains("other.egress.internal"), "{answer}");
    assert_eq!(origin.requests().len(), 0);
}

#[tokio::test]
async fn a_secret_that_comes_back_is_masked_without_changing_the_length() {
    let world = world("allow https://api.example", bearer()).await;
    let origin = echo(&world, "api.example").await;
    let answer = world.get("http://api.egress.internal/").await;
    assert!(origin.requests()[0].contains(KEY));
    assert!(!answer.contains(KEY), "{answer}");
    let stars = "*".repeat(KEY.len());
    assert!(answer.contains(&format!("x-echo: Bearer {stars}\r\n")), "{answer}");
    assert!(answer.contains(&format!("authorization: Bearer {stars}\r\n")), "{answer}");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert_eq!(line(head, "content-length").parse(), Ok(body.len()));
}

#[tokio::test]
async fn an_error_page_gives_no_secret_away_however_it_is_cut_or_spelled() {
    let world = world("allow https://api.example", bearer()).await;
    let origin = Origin::tls(world.certificate("api.example"), |_| {
        let spelled = [
            KEY.to_owned(),
            STANDARD.encode(format!("user:{KEY}")),
            KEY.bytes().map(|byte| format!("%{byte:02X}")).collect(),
        ];
        // Three bytes at a time, and once more in the reason, a header and a trailer.
        let page = spelled.join(" and ");
        let chunks: String = page.as_bytes().chunks(3).map(|part| format!("{:x}\r\n{}\r\n", part.len(), String::from_utf8_lossy(part))).collect();
        format!(
            "HTTP/1.1 500 Bad key {KEY}\r\nwww-authenticate: Bearer error={KEY}\r\ntransfer-encoding: chunked\r\ntrailer: x-key\r\n\r\n{chunks}0\r\nx-key: {KEY}\r\n\r\n"
        )
        .into()
    })
    .await;
    world.place("api.example:443", &origin);
    let answer = world.get("http://api.egress.internal/").await;
    assert!(
        answer.starts_with("HTTP/1.1 500 ") && answer.contains("www-authenticate: Bearer error=***"),
        "{answer}"
    );
    // Without the framing of the chunks, as a client puts them together.
    let body: String = answer.split("\r\n\r\n").nth(1).unwrap().split("\r\n").skip(1).step_by(2).collect();
    let encoded = STANDARD.encode(format!("user:{KEY}"));
    for part in [KEY, &encoded[8..encoded.len() - 4], &KEY[KEY.len() / 2..], "%6B%65%79"] {
        assert!(!answer.contains(part) && !body.contains(part), "{part}: {answer}");
    }
}

#[tokio::test]
async fn a_secret_goes_to_no_host_that_looks_like_its_own() {
    let world = world("allow *.example; allow *.evil; inspect *.example; inspect *.evil", bearer()).await;
    for name in ["xapi.example", "api.example.evil", "api-example.evil", "a.api.example"] {
        let origin = echo(&world, name).await;
        let tunnel = world.tunnel(&format!("{name}:443")).await.unwrap();
        let mut tunnel = world.tls(tunnel, name, true).await.unwrap();
        exchange(&mut tunnel, &format!("GET / HTTP/1.1\r\nHost: {name}\r\n\r\n")).await;
        let seen = origin.requests().pop().unwrap();
        assert!(!seen.contains(KEY), "{name}: {seen}");
    }
}

#[tokio::test]
async fn a_secret_does_not_go_in_plain_text() {
    let world = world("allow api.example", bearer()).await;
    let origin = Origin::plain(ok("x")).await;
    world.place("api.example:80", &origin);
    world.place("api.example:443", &origin);
    world.get("http://api.example/").await;
    world.get("http://api.example:443/").await;
    assert_eq!(origin.requests().len(), 2);
    assert!(
        origin.requests().iter().all(|request| !request.contains("authorization")),
        "{:?}",
        origin.requests()
    );
}

#[tokio::test]
async fn another_sandbox_has_nothing_of_it() {
    let world = world("allow https://api.example", bearer()).await;
    let origin = echo(&world, "api.example").await;
    let other = world.another(2, "allow *.example; inspect api.example");
    let mut stream = tokio::net::TcpStream::connect(other).await.unwrap();
    let request = "GET http://api.egress.internal/ HTTP/1.1\r\nHost: api.egress.internal\r\n\r\n";
    assert!(exchange(&mut stream, request).await.starts_with("HTTP/1.1 404"));
    assert_eq!(origin.requests().len(), 0);
}

#[tokio::test]
async fn a_missing_secret_is_an_answer_and_a_rotated_one_is_used_at_once() {
    let missing = vec![Credential { secret: None, ..credential("api.example", Form::Bearer) }];
    let world = world("allow https://api.example", missing).await;
    let origin = Origin::tls(world.certificate("api.example"), |_| ok("x")).await;
    world.place("api.example:443", &origin);
    let answer = world.get("http://api.egress.internal/").await;
    assert!(answer.starts_with("HTTP/1.1 502"), "{answer}");
    assert!(answer.ends_with("set it with: cubicle secrets set API_KEY\n"), "{answer}");
    let mut stream = world.connect().await;
    let request = "GET http://api.egress.internal/ HTTP/1.1\r\nHost: api.egress.internal\r\n\r\n";
    for secret in ["first-secret-value", "second-secret-value"] {
        let rotated =
            vec![Credential { secret: Some(Secret::new(secret)), ..credential("api.example", Form::Bearer) }];
        world.gateway.change(world.sandbox, terms("allow https://api.example", rotated)).unwrap();
        assert!(exchange(&mut stream, request).await.ends_with('x'));
        let seen = origin.requests().pop().unwrap();
        assert!(seen.contains(&format!("authorization: Bearer {secret}\r\n")), "{seen}");
    }
}

#[tokio::test]
async fn only_hosts_that_the_policy_names_are_inspected() {
    let world = world("allow *.example; inspect api.example", bearer()).await;
    let (inspected, other) = (echo(&world, "api.example").await, echo(&world, "b.example").await);
    // The client sees the gateway's certificate here, and the origin's own there.
    let tunnel = world.tunnel("api.example:443").await.unwrap();
    assert!(world.tls(tunnel, "api.example", false).await.is_err());
    let tunnel = world.tunnel("b.example:443").await.unwrap();
    assert!(world.tls(tunnel, "b.example", true).await.is_err());
    let tunnel = world.tunnel("api.example:443").await.unwrap();
    let mut tunnel = world.tls(tunnel, "api.example", true).await.unwrap();
    let answer =
        exchange(&mut tunnel, "GET / HTTP/1.1\r\nHost: api.example\r\nAuthorization: mine\r\n\r\n").await;
    assert!(!answer.contains(KEY) && answer.contains("****"), "{answer}");
    assert!(inspected.requests()[0].contains(&format!("authorization: Bearer {KEY}\r\n")));
    let tunnel = world.tunnel("b.example:443").await.unwrap();
    let mut tunnel = world.tls(tunnel, "b.example", false).await.unwrap();
    let answer =
        exchange(&mut tunnel, "GET / HTTP/1.1\r\nHost: b.example\r\nAuthorization: mine\r\n\r\n").await;
    assert!(answer.contains("authorization: mine") || answer.contains("Authorization: mine"), "{answer}");
    assert_eq!(other.requests().len(), 1);
}

#[tokio::test]
async fn inspected_requests_are_decided_one_by_one() {
    let world = world("allow GET https://api.example/v1/**; inspect api.example", bearer()).await;
    let origin = Origin::tls(world.certificate("api.example"), |_| ok("x")).await;
    world.place("api.example:443", &origin);
    for (request, status) in [
        ("GET /v1/a HTTP/1.1\r\nHost: api.example\r\n\r\n", 200),
        ("GET /v2/a HTTP/1.1\r\nHost: api.example\r\n\r\n", 403),
        ("DELETE /v1/a HTTP/1.1\r\nHost: api.example\r\n\r\n", 403),
        ("GET /v1/a HTTP/1.1\r\nHost: other.example\r\n\r\n", 421),
        ("GET https://other.example/v1/a HTTP/1.1\r\nHost: api.example\r\n\r\n", 400),
    ] {
        let tunnel = world.tunnel("api.example:443").await.unwrap();
        let mut tunnel = world.tls(tunnel, "api.example", true).await.unwrap();
        let answer = exchange(&mut tunnel, request).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {answer}");
    }
    assert_eq!(origin.requests().len(), 1);
}
