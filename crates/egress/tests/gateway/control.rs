//! The gateway behind a socket, as a control plane drives it.

use std::net::TcpListener;
use std::os::unix::net::UnixStream;

use cubicle_egress::control::{Common, ListenerKind, Remote, TermsText, serve};
use cubicle_egress::credentials::{Credential, Form};
use cubicle_egress::secret::Secret;
use cubicle_egress::{Base, Terms};
use cubicle_model::egress::Scheme;
use cubicle_model::{Kind, SandboxId};

use crate::origin::{Origin, ok};
use crate::world::{World, exchange, hangs_up, limits, ruleset};

fn text(policy: &str) -> TermsText {
    TermsText { policy: policy.parse().unwrap(), credentials: Vec::new(), bases: Vec::new(), record: false }
}

/// The control plane's end, where the sandbox's proxy is, and a world that still has its origins.
async fn started() -> (Remote, std::net::SocketAddr, World, SandboxId) {
    let mut world = World::empty(limits());
    let gateway = std::mem::replace(&mut world.gateway, World::empty(limits()).gateway);
    let (ours, theirs) = UnixStream::pair().unwrap();
    tokio::spawn(serve(gateway, theirs));
    let remote = Remote::new(ours).unwrap();
    let bundles = [("web".parse().unwrap(), "allow a.example".to_owned())].into();
    let own = vec![("198.41.0.4".parse().unwrap(), None)];
    remote.common(Common { bundles, own }).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let sandbox = world.sandbox;
    remote.listener(sandbox, ListenerKind::Proxy, listener.try_clone().unwrap().into()).await.unwrap();
    (remote, listener.local_addr().unwrap(), world, sandbox)
}

async fn get(proxy: std::net::SocketAddr, url: &str) -> String {
    let host = url.split('/').nth(2).unwrap();
    let mut stream = tokio::net::TcpStream::connect(proxy).await.unwrap();
    exchange(&mut stream, &format!("GET {url} HTTP/1.1\r\nHost: {host}\r\n\r\n")).await
}

#[tokio::test]
async fn a_sandbox_is_attached_changed_billed_and_detached_over_a_socket() {
    let (remote, proxy, world, sandbox) = started().await;
    let origin = Origin::plain(ok("reached")).await;
    world.place("a.example:80", &origin);
    remote.attach(sandbox, text("allow @web")).await.unwrap();
    assert_eq!(remote.attached().await.unwrap(), [sandbox]);
    assert!(get(proxy, "http://a.example/").await.ends_with("reached"));
    remote.change(sandbox, text("allow b.example")).await.unwrap();
    assert!(get(proxy, "http://a.example/").await.starts_with("HTTP/1.1 403"));
    let bill = remote.bill(sandbox).await.unwrap();
    assert_eq!((bill.lines.len(), bill.denials.len()), (1, 1));
    // Times are counted to the end of a request, so only they may differ from what was told before.
    let last = remote.detach(sandbox).await.unwrap().unwrap();
    assert_eq!((last.lines[0].requests, last.denials), (bill.lines[0].requests, bill.denials));
    assert_eq!(remote.detach(sandbox).await.unwrap(), None);
}

#[tokio::test]
async fn terms_that_cannot_be_used_leave_the_old_ones_in_force() {
    let (remote, proxy, world, sandbox) = started().await;
    let origin = Origin::plain(ok("reached")).await;
    world.place("a.example:80", &origin);
    remote.attach(sandbox, text("allow @web")).await.unwrap();
    let fault = remote.change(sandbox, text("allow @nothing")).await.unwrap_err();
    assert_eq!(
        (fault.kind(), fault.message()),
        (Kind::Invalid, "there is no bundle '@nothing'; there are: @web")
    );
    assert!(get(proxy, "http://a.example/").await.ends_with("reached"));
    let stranger = SandboxId::from_random([9; 16]);
    assert_eq!(remote.bill(stranger).await.unwrap_err().kind(), Kind::NotFound);
    let bad =
        Common { bundles: [("web".parse().unwrap(), "allow\n\nallow x y".into())].into(), own: Vec::new() };
    let fault = remote.common(bad).await.unwrap_err();
    assert_eq!(
        fault.message(),
        "in the bundle '@web': line 1, column 6: 'allow' of what? a host, a network or a URL is missing"
    );
}

#[tokio::test]
async fn secrets_and_bases_and_recordings_go_over_the_socket() {
    let (remote, proxy, world, sandbox) = started().await;
    let origin = Origin::tls(world.certificate("api.example"), |_| ok("x")).await;
    world.place("api.example:443", &origin);
    let credential = Credential {
        name: "KEY".into(),
        secret: Some(Secret::new("very-secret-value")),
        host: "api.example".parse().unwrap(),
        port: 443,
        form: Form::Header("x-api-key".parse().unwrap()),
        even_plain: false,
    };
    let base =
        Base { name: "api".into(), scheme: Scheme::Https, host: "api.example".parse().unwrap(), port: 443 };
    let policy = "deny b.example";
    let terms = Terms {
        credentials: vec![credential],
        bases: vec![base],
        record: true,
        ..Terms::of(ruleset(policy))
    };
    let terms = TermsText::new(policy.parse().unwrap(), &terms.credentials, &terms.bases, terms.record);
    assert!(!format!("{terms:?}{:?}", terms.credentials).contains("secret-value"));
    remote.attach(sandbox, terms).await.unwrap();
    assert!(get(proxy, "http://api.egress.internal/v1").await.ends_with('x'));
    assert!(origin.requests()[0].contains("x-api-key: very-secret-value\r\n"));
    let policy = remote.recording(sandbox).await.unwrap();
    assert_eq!(policy.to_string(), "allowlist\nallow GET https://api.example\n");
}

#[tokio::test]
async fn without_a_control_plane_there_is_no_way_out() {
    let (remote, proxy, world, sandbox) = started().await;
    let origin = Origin::plain(ok("reached")).await;
    world.place("a.example:80", &origin);
    remote.attach(sandbox, text("allow @web")).await.unwrap();
    let mut stream = tokio::net::TcpStream::connect(proxy).await.unwrap();
    let request = "GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n";
    assert!(exchange(&mut stream, request).await.ends_with("reached"));
    drop(remote);
    assert!(hangs_up(&mut stream).await);
}

#[tokio::test]
async fn a_gateway_that_is_gone_is_told_as_unavailable() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let remote = Remote::new(ours).unwrap();
    drop(theirs);
    for _ in 0..2 {
        assert_eq!(remote.attached().await.unwrap_err().kind(), Kind::Unavailable);
    }
}
