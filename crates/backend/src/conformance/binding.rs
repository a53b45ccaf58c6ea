//! What a ready sandbox can be given.

use std::sync::Arc;
use std::time::Duration;

use cubicle_guest::client::Listening;
use cubicle_model::{
    Binding, FileToWrite, Kind, Lifetime, LimitRequest, Listener, Mount, SandboxId, SecretFile, SecretsToGive,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::inside::Inside;
use super::{Harness, Verdict, destroyed, insist, made};
use crate::{Backend, Bound};

/// Only a hang gets there.
const PATIENCE: Duration = Duration::from_secs(20);

/// A ready sandbox with this binding, or why this backend cannot have it.
async fn bound(
    harness: &dyn Harness,
    backend: &Arc<dyn Backend>,
    part: &str,
    late: &Binding,
) -> Result<(SandboxId, Bound), Verdict> {
    if !backend.probe().await.capabilities.binds_late.iter().any(|can| can == part) {
        return Err(Verdict::Skipped(format!("this backend does not bind {part} late")));
    }
    for _ in 0..16 {
        let place = harness.placement(Lifetime::Bound);
        made(&**backend, &place).await;
        match backend.bind(place.id, late).await {
            Ok(bound) => return Ok((place.id, bound)),
            // A failure leaves the sandbox unfit for use, so this one is given up.
            Err(fault) if fault.kind() == Kind::Unavailable => destroyed(&**backend, place.id).await,
            Err(fault) => panic!("{part} cannot be bound: {fault}: {:?}", fault.way_out()),
        }
    }
    panic!("sixteen binds in a row were not available");
}

pub async fn bind_gives_environment_variables(harness: &dyn Harness) -> Verdict {
    let backend = harness.open().await;
    let late =
        Binding { env: [("GREETING".to_owned(), "hello = 世界".to_owned())].into(), ..Default::default() };
    let (id, _) = match bound(harness, &backend, "env", &late).await {
        Ok(bound) => bound,
        Err(skipped) => return skipped,
    };
    let inside = Inside::new(harness, &backend, id).await;
    assert_eq!(inside.output(&["printenv", "GREETING"]).await, "hello = 世界\n");
    Verdict::Holds
}

pub async fn bind_gives_files(harness: &dyn Harness) -> Verdict {
    let backend = harness.open().await;
    let path = "/workspace/deep/er/note.txt".to_owned();
    let file = FileToWrite { path: path.clone(), bytes: b"a note\n".to_vec(), mode: 0o644 };
    let late = Binding { files: vec![file], ..Default::default() };
    let (id, _) = match bound(harness, &backend, "files", &late).await {
        Ok(bound) => bound,
        Err(skipped) => return skipped,
    };
    assert_eq!(Inside::new(harness, &backend, id).await.output(&["cat", &path]).await, "a note\n");
    Verdict::Holds
}

pub async fn bind_changes_limits_and_amends_the_receipt(harness: &dyn Harness) -> Verdict {
    let backend = harness.open().await;
    // Asking for a limit that this host cannot enforce would be refused, and rightly.
    let enforced = backend.probe().await.capabilities.limits;
    let can = |name: &str| enforced.get(name).is_some_and(Result::is_ok);
    if !can("memory") || !can("pids") {
        return Verdict::Skipped("this host does not enforce memory and pids limits".into());
    }
    let limits = LimitRequest { memory: Some(64 << 20), pids: Some(32), ..Default::default() };
    let late = Binding { limits, ..Default::default() };
    let (id, bound) = match bound(harness, &backend, "limits", &late).await {
        Ok(bound) => bound,
        Err(skipped) => return skipped,
    };
    let later = super::observed(&*backend, id).await.expect("the sandbox is there");
    let later = later.receipt.expect("a ready sandbox has a receipt").limits;
    for (when, limits) in [("at once", bound.amendment.limits), ("later", later)] {
        for (name, value) in [("memory", 64 << 20), ("pids", 32)] {
            let found: Vec<_> = limits.iter().filter(|limit| limit.name == name).collect();
            let [limit] = found[..] else { panic!("{name} is there {} times {when}", found.len()) };
            assert_eq!((limit.value, limit.asked), (value, true), "{name}, {when}");
        }
    }
    assert_eq!(Inside::new(harness, &backend, id).await.output(&["echo", "fits"]).await, "fits\n");
    Verdict::Holds
}

pub async fn bind_gives_mounts(harness: &dyn Harness) -> Verdict {
    let backend = harness.open().await;
    std::fs::write(harness.scratch().join("from-the-host"), "mounted\n")
        .expect("the scratch directory is writable");
    let mount = Mount { source: harness.scratch().into(), target: "/mnt/shared".into(), read_only: true };
    let late = Binding { mounts: vec![mount], ..Default::default() };
    let (id, _) = match bound(harness, &backend, "mounts", &late).await {
        Ok(bound) => bound,
        Err(skipped) => return skipped,
    };
    let inside = Inside::new(harness, &backend, id).await;
    assert_eq!(inside.output(&["cat", "/mnt/shared/from-the-host"]).await, "mounted\n");
    Verdict::Holds
}

pub async fn bind_gives_listeners(harness: &dyn Harness) -> Verdict {
    let backend = harness.open().await;
    let asked = [Listener::udp(53), Listener::tcp(3128), Listener::tcp(443).everywhere()];
    let late = Binding { listeners: asked.into(), ..Default::default() };
    let (id, bound) = match bound(harness, &backend, "listeners", &late).await {
        Ok(bound) => bound,
        Err(skipped) => return skipped,
    };
    // What connects to the port that the second one was asked for arrives there.
    let Ok([Listening::Udp(_), Listening::Tcp(listener), Listening::Tcp(_)]) =
        <[Listening; 3]>::try_from(bound.listeners)
    else {
        panic!("the listeners are not what was asked for, in that order");
    };
    let inside = Inside::new(harness, &backend, id).await;
    let both = async { tokio::join!(answer(listener), inside.talk(3128, b"from inside")) };
    let (outside_heard, inside_heard) =
        tokio::time::timeout(PATIENCE, both).await.expect("the two sides talk");
    assert_eq!(outside_heard, b"from inside");
    assert_eq!(inside_heard, b"from outside");
    Verdict::Holds
}

pub async fn a_listener_that_is_bound_again_has_what_waited_there(harness: &dyn Harness) -> Verdict {
    let backend = harness.open().await;
    let late = Binding { listeners: vec![Listener::tcp(3128)], ..Default::default() };
    let (id, first) = match bound(harness, &backend, "listeners", &late).await {
        Ok(bound) => bound,
        Err(skipped) => return skipped,
    };
    assert!(first.amendment.is_empty(), "{:?}", first.amendment);
    drop(first);
    let inside = Inside::new(harness, &backend, id).await;
    let outside = async {
        // Nobody has the socket outside, and still it can be connected to.
        let mut last = None;
        for _ in 0..3 {
            last =
                insist(async || backend.bind(id, &late).await).await.expect("it binds again").listeners.pop();
        }
        let Some(Listening::Tcp(listener)) = last else { panic!("the listener is not there any more") };
        answer(listener).await
    };
    let both = async {
        let talk = inside.begin(3128, b"from inside").await;
        tokio::join!(outside, talk.hear())
    };
    let (outside_heard, inside_heard) =
        tokio::time::timeout(PATIENCE, both).await.expect("the two sides talk");
    assert_eq!(outside_heard, b"from inside");
    assert_eq!(inside_heard, b"from outside");
    Verdict::Holds
}

pub async fn bind_gives_secrets_that_the_receipt_names_and_no_record_holds(harness: &dyn Harness) -> Verdict {
    let backend = harness.open().await;
    let secrets = secrets("file-hunter2", "env-hunter2");
    let late = Binding { secrets, ..Default::default() };
    let (id, bound) = match bound(harness, &backend, "secrets", &late).await {
        Ok(bound) => bound,
        Err(skipped) => return skipped,
    };
    let named = |names: &std::collections::BTreeSet<String>| names.iter().cloned().collect::<Vec<_>>();
    let receipt = super::observed(&*backend, id).await.expect("the sandbox is there").receipt;
    let receipt = receipt.expect("a ready sandbox has a receipt");
    for (when, said) in [("at once", &bound.amendment.secrets), ("later", &receipt.secrets)] {
        assert_eq!(named(&said.files), ["token"], "{when}");
        assert_eq!(named(&said.env), ["API_KEY"], "{when}");
    }
    let mut journal = Vec::new();
    let written = insist(async || backend.journal(id).await).await.expect("there is a journal");
    std::io::Read::read_to_end(&mut written.expect("there is a journal"), &mut journal)
        .expect("it can be read");
    let told = serde_json::to_vec(&receipt).expect("a receipt is plain JSON");
    for place in [journal, told, format!("{bound:?}").into_bytes()] {
        assert!(!place.windows(7).any(|window| window == b"hunter2"), "a secret was told");
    }
    let inside = Inside::new(harness, &backend, id).await;
    assert_eq!(inside.output(&["cat", "/var/secrets/token"]).await, "file-hunter2");
    assert_eq!(inside.output(&["printenv", "API_KEY"]).await, "env-hunter2\n");
    Verdict::Holds
}

fn secrets(file: &str, variable: &str) -> SecretsToGive {
    let name = "token".parse().expect("a plain name");
    SecretsToGive {
        files: vec![SecretFile { name, bytes: file.into() }],
        env: [("API_KEY".to_owned(), variable.to_owned())].into(),
    }
}

/// Accepts one connection, says something and returns what it hears.
async fn answer(listener: std::net::TcpListener) -> Vec<u8> {
    let listener = TcpListener::from_std(listener).expect("a listening socket that does not block");
    let (mut connection, _) = listener.accept().await.expect("the listener works");
    connection.write_all(b"from outside").await.expect("the connection works");
    connection.shutdown().await.expect("the connection can be half closed");
    let mut heard = Vec::new();
    connection.read_to_end(&mut heard).await.expect("the connection ends");
    heard
}

pub async fn bind_of_what_cannot_be_bound_late_is_denied(harness: &dyn Harness) -> Verdict {
    let backend = harness.open().await;
    let can = backend.probe().await.capabilities.binds_late;
    let one_of_each = [
        ("env", Binding { env: [("A".to_owned(), "1".to_owned())].into(), ..Default::default() }),
        (
            "files",
            Binding {
                files: vec![FileToWrite { path: "/workspace/a".into(), bytes: vec![], mode: 0o644 }],
                ..Default::default()
            },
        ),
        (
            "limits",
            Binding { limits: LimitRequest { pids: Some(64), ..Default::default() }, ..Default::default() },
        ),
        (
            "mounts",
            Binding {
                mounts: vec![Mount {
                    source: harness.scratch().into(),
                    target: "/mnt/a".into(),
                    read_only: true,
                }],
                ..Default::default()
            },
        ),
        ("listeners", Binding { listeners: vec![Listener::tcp(8080)], ..Default::default() }),
        ("secrets", Binding { secrets: secrets("a", "b"), ..Default::default() }),
    ];
    let mut tried = 0;
    for (part, late) in one_of_each {
        if can.iter().any(|name| name == part) {
            continue;
        }
        let place = harness.placement(Lifetime::Bound);
        made(&*backend, &place).await;
        let fault =
            insist(async || backend.bind(place.id, &late).await).await.expect_err("it cannot be bound late");
        assert_eq!(fault.kind(), Kind::Denied, "{part}: {fault}");
        assert!(fault.way_out().is_some(), "{part}: the refusal does not say what to do");
        destroyed(&*backend, place.id).await;
        tried += 1;
    }
    if tried == 0 { Verdict::Skipped("this backend binds everything late".into()) } else { Verdict::Holds }
}

pub async fn bind_to_what_is_absent_is_not_found(harness: &dyn Harness) -> Verdict {
    let backend = harness.open().await;
    let id = harness.placement(Lifetime::Bound).id;
    let fault =
        insist(async || backend.bind(id, &Binding::default()).await).await.expect_err("nothing is there");
    assert_eq!(fault.kind(), Kind::NotFound, "{fault}");
    Verdict::Holds
}
