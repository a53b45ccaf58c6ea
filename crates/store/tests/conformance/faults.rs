//! Databases that are locked, away, or not to be trusted.

use std::path::Path;

use cubicle_model::{Fault, Kind};
use cubicle_store::{Repeat, Store};
use cubicle_tests_postgresql::{Cluster, command};

use crate::children::{child, said};
use crate::world::{Database, World, at_once, eventually, in_time, random, skipped};

fn is_clear(fault: &Fault) {
    assert_eq!(fault.kind(), Kind::Unavailable, "{fault:?}");
    assert!(fault.way_out().is_some(), "{fault:?}");
}

#[test]
fn a_sqlite_database_that_somebody_holds_is_told_and_got_over() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cubicle.db");
    let at = Database::Sqlite(path.clone());
    let store = at.open().unwrap();
    let world = in_time(World::new(at, store));
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    // Many at once are all told, and readers are not held up.
    let refused = in_time(async {
        let (store, context) = (world.store.clone(), world.context());
        let reader =
            tokio::spawn(async move { store.lease(cubicle_model::LeaseId::from_random([1; 16])).await });
        let writers = at_once((0..300).map(|_| {
            let (store, context, ask) = (world.store.clone(), context.clone(), world.ask("acme"));
            async move { store.acquire(context, ask).await }
        }));
        let refused = writers.await;
        assert_eq!(reader.await.unwrap().unwrap(), None);
        refused
    });
    for outcome in refused {
        is_clear(&outcome.unwrap_err());
    }
    other.execute_batch("ROLLBACK").unwrap();
    in_time(async {
        assert!(world.all_sandboxes().await.is_empty(), "nothing was half done");
        world.granted(world.ask("acme")).await;
    });
}

#[test]
fn a_sqlite_database_that_cannot_be_opened_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("missing/cubicle.db");
    is_clear(&Store::open_sqlite(&missing, random()).unwrap_err());
    let path = directory.path().join("cubicle.db");
    std::fs::write(&path, "this is a letter and not a database. ".repeat(100)).unwrap();
    let refusal = Store::open_sqlite(&path, random()).unwrap_err();
    assert!(refusal.message().contains("not a database"), "{refusal}");
}

#[test]
fn a_postgresql_that_goes_away_is_told_and_works_again_when_it_is_back() {
    let Some(mut cluster) = Cluster::own() else { return };
    let at = Database::Postgres(cluster.fresh_database());
    let store = at.open().unwrap();
    let world = in_time(World::new(at, store));
    let asks = |world: &World| {
        let tasks: Vec<_> = (0..12)
            .map(|_| {
                let (store, context, ask) = (world.store.clone(), world.context(), world.ask("acme"));
                async move { store.acquire(context, ask).await }
            })
            .collect();
        in_time(at_once(tasks))
    };
    let reads = |world: &World| {
        let tasks: Vec<_> = (0..12)
            .map(|_| {
                let store = world.store.clone();
                async move { store.tenants(crate::world::page(10)).await }
            })
            .collect();
        in_time(at_once(tasks))
    };
    // Every connection of the pool is in use for once, so that every one of them breaks.
    asks(&world);
    reads(&world);
    let before = in_time(world.all_sandboxes()).len();
    assert_eq!(before, 10);
    cluster.stop();
    for outcome in asks(&world) {
        is_clear(&outcome.unwrap_err());
    }
    is_clear(&in_time(world.store.ping()).unwrap_err());
    cluster.start();
    // The very first request works: that its connection broke is nobody's business.
    in_time(world.store.ping()).unwrap();
    assert_eq!(in_time(world.all_sandboxes()).len(), before);
    // Nor that all of them broke, where nobody asked meanwhile.
    for round in 0..3 {
        reads(&world);
        cluster.stop();
        cluster.start();
        for outcome in reads(&world) {
            outcome.unwrap();
        }
        cluster.stop();
        cluster.start();
        let (store, context) = (world.store.clone(), world.context());
        let subject = format!("round {round}");
        in_time(store.record(context, "a".into(), subject, "ok".into(), None)).unwrap();
    }
    for outcome in asks(&world) {
        outcome.unwrap();
    }
}

#[test]
fn what_somebody_else_makes_at_the_same_moment_is_found_and_not_refused() {
    let Some(cluster) = Cluster::shared() else { return };
    let url = cluster.fresh_database();
    let at = Database::Postgres(url.clone());
    let store = at.open().unwrap();
    let world = in_time(World::new(at, store));
    let mut somebody = postgres::Client::connect(&url, postgres::NoTls).unwrap();
    let mut observer = postgres::Client::connect(&url, postgres::NoTls).unwrap();
    let mut open = somebody.transaction().unwrap();
    open.batch_execute("INSERT INTO repeatable VALUES ('acme', 'ada', 'k', 'f', 'theirs', 0)").unwrap();
    let (store, now) = (world.store.clone(), world.now());
    let once = std::thread::spawn(move || {
        let (tenant, user) = (crate::world::name("acme"), crate::world::user("ada"));
        in_time(store.once(tenant, user, "k".into(), "f".into(), "ours".into(), now))
    });
    // It has looked, found nothing, and waits for the same key.
    eventually("the insert waits", || {
        let waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'INSERT INTO repeat%' \
            AND datname = current_database()";
        !observer.query(waits, &[]).unwrap().is_empty()
    });
    open.commit().unwrap();
    assert_eq!(once.join().unwrap().unwrap(), Repeat::Again("theirs".into()));
}

#[test]
fn connections_that_are_cut_while_everybody_works_lose_and_double_nothing() {
    let Some(cluster) = Cluster::shared() else { return };
    let url = cluster.fresh_database();
    let at = Database::Postgres(url.clone());
    let store = at.open().unwrap();
    let world = in_time(World::new(at, store));
    let mut killer = postgres::Client::connect(&cluster.url("postgres"), postgres::NoTls).unwrap();
    let database = url.split(['/', '?']).nth(3).unwrap().to_owned();
    let done = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let is_done = std::sync::Arc::clone(&done);
    let killing = std::thread::spawn(move || {
        let mut killed = 0;
        while !is_done.load(std::sync::atomic::Ordering::SeqCst) {
            let one = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1 LIMIT 1";
            killed += killer.execute(one, &[&database]).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(3));
        }
        killed
    });
    let outcomes = in_time(at_once((0..200).map(|number| {
        let (store, context) = (world.store.clone(), world.context());
        let subject = format!("s{number}");
        async move {
            let outcome = store.record(context, "a".into(), subject.clone(), "ok".into(), None).await;
            (subject, outcome)
        }
    })));
    done.store(true, std::sync::atomic::Ordering::SeqCst);
    assert!(killing.join().unwrap() > 0);
    let kept: Vec<String> = in_time(world.store.audit_chain(world.node, 0, 1000))
        .unwrap()
        .into_iter()
        .map(|entry| entry.deed.subject)
        .collect();
    for (subject, outcome) in outcomes {
        let times = kept.iter().filter(|one| **one == subject).count();
        match outcome {
            Ok(()) => assert_eq!(times, 1, "{subject} was acknowledged"),
            // A commit without an answer may have happened.
            Err(fault) => {
                is_clear(&fault);
                assert!(times <= 1);
            }
        }
    }
}

#[test]
fn a_postgresql_that_is_not_there_is_told_without_the_password() {
    let table = [
        ("postgres://cubicle:hunter2@127.0.0.1:1/x", Kind::Unavailable),
        ("postgres://cubicle:hunter2@/x?host=/nonexistent", Kind::Unavailable),
    ];
    for (url, expected) in table {
        let refusal = Store::open_postgres(url, random()).map(drop).unwrap_err();
        assert_eq!(refusal.kind(), expected, "{refusal:?}");
        assert!(!format!("{refusal:?} {refusal}").contains("hunter2"));
    }
    let Some(cluster) = Cluster::shared() else { return };
    let missing = cluster.url("missing").replace("postgres@", "postgres:hunter2@");
    let refusal = Store::open_postgres(&missing, random()).map(drop).unwrap_err();
    assert_eq!(refusal.kind(), Kind::Denied, "{refusal:?}");
    assert!(!format!("{refusal:?} {refusal}").contains("hunter2"));
    assert!(!format!("{:?}", Store::open_postgres(&cluster.fresh_database(), random())).contains("hunter2"));
}

/// A certificate of its own making for `localhost`.
fn certificate(directory: &Path) -> bool {
    let made = command(Path::new("openssl"))
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"])
        .args(["-addext", "subjectAltName=DNS:localhost", "-addext", "basicConstraints=critical,CA:FALSE"])
        .args(["-keyout", "key.pem", "-out", "cert.pem"])
        .current_dir(directory)
        .output();
    made.is_ok_and(|made| made.status.success())
}

#[test]
fn tls_to_postgresql_is_used_when_asked_for_and_its_certificate_is_verified() {
    let Some(mut cluster) = Cluster::own() else { return };
    if !certificate(cluster.directory()) {
        return skipped("needs openssl");
    }
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let file = |name: &str| cluster.directory().join(name).display().to_string();
    let authorities = file("cert.pem");
    let settings = [
        "listen_addresses=127.0.0.1".to_owned(),
        format!("port={port}"),
        format!("ssl_cert_file={authorities}"),
        format!("ssl_key_file={}", file("key.pem")),
    ];
    let ask = |host: &str, mode: &str, authorities: &str| {
        let url = format!("postgres://postgres@{host}:{port}/postgres?hostaddr=127.0.0.1&sslmode={mode}");
        let mut child = child(&["connect", &url], &[("SSL_CERT_FILE", authorities)]);
        let answers: Vec<String> = said(&mut child).collect();
        assert!(child.wait().unwrap().success());
        answers.concat()
    };
    cluster.restart_with(&[&settings[..], &["ssl=off".to_owned()]].concat(), port);
    let answer = ask("localhost", "require", &authorities);
    assert!(answer.contains("does not support TLS"), "{answer}");
    assert_eq!(ask("localhost", "disable", &authorities), "connected");

    cluster.restart_with(&[&settings[..], &["ssl=on".to_owned()]].concat(), port);
    assert_eq!(ask("localhost", "require", &authorities), "connected");
    let answer = ask("example.org", "require", &authorities);
    assert!(answer.contains("certificate is not trusted") && answer.contains("SSL_CERT_FILE"), "{answer}");
    // Another authority than the one that signed it.
    let system = "/etc/ssl/certs/ca-certificates.crt";
    if Path::new(system).exists() {
        let answer = ask("localhost", "require", system);
        assert!(answer.contains("certificate is not trusted"), "{answer}");
    }
}
