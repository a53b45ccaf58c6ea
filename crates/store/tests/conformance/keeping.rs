//! Artifacts, idempotency keys, pages, and what is forgotten.

use std::collections::BTreeSet;
use std::time::Duration;

use cubicle_model::lease::LeaseEnd;
use cubicle_model::template::Recipe;
use cubicle_model::{ArtifactId, ExecId, Exit, KeyId, Kind, Quota, Timestamp};
use cubicle_store::{
    Acquire, AfterLease, Artifact, ArtifactKind, Ended, Exec, ExecFilter, Key, LeaseFilter, Page, Repeat,
    SandboxFilter,
};
use serde_json::json;

use crate::world::{World, at_once, bits, kind, name, page, room, user};

fn artifact(world: &World, subject: &str) -> Artifact {
    Artifact {
        id: ArtifactId::from_random(bits()),
        tenant: name("acme"),
        user: user("ada"),
        kind: ArtifactKind::File,
        name: "out/ä.txt".into(),
        subject: subject.into(),
        media_type: "text/plain".into(),
        size: 1 << 40,
        sha256: "ab".repeat(32),
        location: "acme/x".into(),
        created_at: world.now(),
        expires_at: None,
    }
}

pub(crate) async fn an_artifact_is_found_until_it_is_deleted(world: World) {
    let World { store, .. } = &world;
    let file = artifact(&world, "sbx-1");
    store.create_artifact(world.context(), file.clone()).await.unwrap();
    assert_eq!(store.artifact(file.id).await.unwrap().as_ref(), Some(&file));
    assert_eq!(kind(store.create_artifact(world.context(), file.clone()).await), Kind::Conflict);
    let end = world.now() + Duration::from_secs(10);
    let journal = |world: &World| Artifact {
        kind: ArtifactKind::Journal,
        expires_at: Some(end),
        ..artifact(world, "sbx-1")
    };
    let older = journal(&world);
    store.create_artifact(world.context(), older.clone()).await.unwrap();
    world.pass(1);
    let newer = journal(&world);
    store.create_artifact(world.context(), newer.clone()).await.unwrap();
    let found = store.artifact_of("sbx-1".into(), ArtifactKind::Journal).await.unwrap();
    assert_eq!(found, Some(newer.clone()));
    assert_eq!(store.artifact_of("sbx-1".into(), ArtifactKind::File).await.unwrap(), Some(file.clone()));
    assert_eq!(store.artifact_of("sbx-2".into(), ArtifactKind::File).await.unwrap(), None);
    assert!(store.expired_artifacts(world.now(), 10).await.unwrap().is_empty());
    world.pass(9);
    let expired = store.expired_artifacts(world.now(), 10).await.unwrap();
    let ids: BTreeSet<_> = expired.iter().map(|artifact| artifact.id).collect();
    assert_eq!(ids, BTreeSet::from([older.id, newer.id]));
    assert_eq!(store.expired_artifacts(world.now(), 1).await.unwrap().len(), 1);
    store.delete_artifact(world.context(), newer.id).await.unwrap();
    assert_eq!(kind(store.delete_artifact(world.context(), newer.id).await), Kind::NotFound);
    let found = store.artifact_of("sbx-1".into(), ArtifactKind::Journal).await.unwrap();
    assert_eq!(found, Some(older));
}

pub(crate) async fn an_idempotency_key_stands_for_one_thing_also_when_raced(world: World) {
    let second = world.another_server().await;
    let once = |number: usize, key: usize, fingerprint: &str| {
        let store = if number.is_multiple_of(2) { world.store.clone() } else { second.store.clone() };
        let (fingerprint, now) = (fingerprint.to_owned(), world.now());
        let (key, subject) = (format!("k{key}"), format!("subject {number}"));
        async move { store.once(name("acme"), user("ada"), key, fingerprint, subject, now).await }
    };
    for key in 0..20 {
        let outcomes = at_once((0..8).map(|number| once(number, key, "f"))).await;
        let mut subjects = BTreeSet::new();
        let mut firsts = BTreeSet::new();
        for (number, outcome) in outcomes.into_iter().enumerate() {
            match outcome.unwrap() {
                Repeat::First => drop(firsts.insert(format!("subject {number}"))),
                Repeat::Again(subject) => drop(subjects.insert(subject)),
            }
        }
        assert_eq!(firsts.len(), 1);
        assert_eq!(subjects, firsts);
    }
    assert_eq!(kind(once(0, 0, "another").await), Kind::Conflict);
    let other =
        world.store.once(name("acme"), user("grace"), "k0".into(), "f".into(), "y".into(), world.now());
    assert_eq!(other.await.unwrap(), Repeat::First);
}

/// Walks a list page by page.
async fn walk<T, F: Future<Output = Result<Vec<T>, cubicle_model::Fault>>>(
    list: impl Fn(Page) -> F,
    key: impl Fn(&T) -> String,
) -> Vec<String> {
    const LIMIT: usize = 3;
    let (mut keys, mut after) = (Vec::new(), None);
    loop {
        let mut some = list(Page { after: after.take(), limit: LIMIT as u32 }).await.unwrap();
        assert!(some.len() <= LIMIT + 1, "one more than is wanted shows that there is more");
        let more = some.len() > LIMIT;
        some.truncate(LIMIT);
        keys.extend(some.iter().map(&key));
        if !more {
            return keys;
        }
        after = keys.last().cloned();
    }
}

pub(crate) async fn every_list_is_paged_without_gap_or_repetition(world: World) {
    const MANY: usize = 10;
    let World { store, .. } = &world;
    world.tenant("other", Quota::default(), 1).await;
    for number in 0..MANY {
        world.tenant(&format!("t-{number}"), Quota::default(), 1).await;
        for tenant in ["acme", "other"] {
            let key = Key {
                id: KeyId::from_random(bits()),
                tenant: name(tenant),
                user: user("ada"),
                label: String::new(),
                scopes: BTreeSet::new(),
                requests_per_second: None,
                created_at: world.now(),
                expires_at: None,
                revoked_at: None,
            };
            store.create_key(world.context(), key, format!("{tenant}{number}")).await.unwrap();
            let at = format!("{tenant}/x-{number}").parse().unwrap();
            store.put_template(world.context(), at, Recipe::default(), None).await.unwrap();
            let (lease, sandbox) = world.leased(Acquire { room: room(100), ..world.ask(tenant) }).await;
            let exec = Exec {
                id: ExecId::from_random(bits()),
                sandbox: sandbox.id,
                lease: lease.id,
                tenant: name(tenant),
                user: user("ada"),
                fingerprint: String::new(),
                command: json!("x"),
                created_at: world.now(),
                ended: None,
                refused: None,
            };
            store.begin_exec(world.context(), exec).await.unwrap();
            let artifact = Artifact { tenant: name(tenant), ..artifact(&world, "x") };
            store.create_artifact(world.context(), artifact).await.unwrap();
        }
    }
    let acme = || Some(name("acme"));
    let lists = [
        walk(|page| store.keys(acme(), page), |key| key.id.to_string()).await,
        walk(|page| store.templates(name("acme"), page), |one| one.at.to_string()).await,
        walk(
            |page| store.leases(LeaseFilter { tenant: acme(), ..LeaseFilter::default() }, page),
            |one| one.id.to_string(),
        )
        .await,
        walk(
            |page| store.sandboxes(SandboxFilter { tenant: acme(), ..SandboxFilter::default() }, page),
            |one| one.id.to_string(),
        )
        .await,
        walk(
            |page| store.execs(ExecFilter { tenant: acme(), ..ExecFilter::default() }, page),
            |one| one.id.to_string(),
        )
        .await,
        walk(|page| store.artifacts(name("acme"), page), |one| one.id.to_string()).await,
    ];
    for (number, keys) in lists.iter().enumerate() {
        let distinct: BTreeSet<_> = keys.iter().collect();
        assert_eq!((keys.len(), distinct.len()), (MANY, MANY), "list {number}");
        assert!(keys.is_sorted(), "list {number}");
    }
    let tenants = walk(|page| store.tenants(page), |one| one.name.to_string()).await;
    assert_eq!(tenants.len(), MANY + 2);
    let all = walk(|page| store.leases(LeaseFilter::default(), page), |one| one.id.to_string()).await;
    assert_eq!(all.len(), 2 * MANY);
    let none =
        store.leases(LeaseFilter { workflow: Some("no".into()), ..LeaseFilter::default() }, page(5)).await;
    assert!(none.unwrap().is_empty());
}

pub(crate) async fn what_is_old_is_forgotten_and_the_rest_is_not(world: World) {
    let World { store, .. } = &world;
    let begin = async |ask: Acquire| {
        let (lease, sandbox) = world.leased(ask).await;
        let exec = Exec {
            id: ExecId::from_random(bits()),
            sandbox: sandbox.id,
            lease: lease.id,
            tenant: name("acme"),
            user: user("ada"),
            fingerprint: String::new(),
            command: json!("x"),
            created_at: world.now(),
            ended: None,
            refused: None,
        };
        store.begin_exec(world.context(), exec.clone()).await.unwrap();
        (lease, sandbox, exec)
    };
    let end = async |(lease, sandbox, exec): (cubicle_model::Lease, cubicle_model::Sandbox, Exec)| {
        let ended =
            Ended { at: world.now(), exit: Exit::Code(0), stdout_bytes: 0, stderr_bytes: 0, duration_us: 0 };
        store.end_exec(world.context(), exec.id, ended).await.unwrap();
        store.end_lease(world.context(), lease.id, LeaseEnd::Released, AfterLease::Destroy).await.unwrap();
        world.gone(sandbox.id).await;
    };
    let old = begin(world.ask("acme")).await;
    let running = begin(world.ask("acme")).await;
    end(old.clone()).await;
    store.once(name("acme"), user("ada"), "old".into(), "f".into(), "s".into(), world.now()).await.unwrap();
    world.pass(100);
    let border = world.now();
    let recent = begin(world.ask("acme")).await;
    end(recent.clone()).await;
    store.once(name("acme"), user("ada"), "new".into(), "f".into(), "s".into(), world.now()).await.unwrap();
    // More than one part's worth of events and keys.
    for number in 0..600 {
        let long_ago = border - Duration::from_secs(1000);
        store
            .once(name("acme"), user("ada"), format!("k{number}"), "f".into(), "s".into(), long_ago)
            .await
            .unwrap();
    }

    assert_eq!(store.forget_before(border).await.unwrap(), 604);
    assert_eq!(store.forget_before(border).await.unwrap(), 0);
    assert_eq!(store.lease(old.0.id).await.unwrap(), None);
    assert_eq!(store.sandbox(old.1.id).await.unwrap(), None);
    assert_eq!(store.exec(old.2.id).await.unwrap(), None);
    for (lease, sandbox, exec) in [running, recent] {
        assert!(store.lease(lease.id).await.unwrap().is_some());
        assert!(store.sandbox(sandbox.id).await.unwrap().is_some());
        assert!(store.exec(exec.id).await.unwrap().is_some());
    }
    let again = store.once(name("acme"), user("ada"), "new".into(), "f".into(), "x".into(), world.now());
    assert_eq!(again.await.unwrap(), Repeat::Again("s".into()));
    let again = store.once(name("acme"), user("ada"), "old".into(), "f".into(), "x".into(), world.now());
    assert_eq!(again.await.unwrap(), Repeat::First);

    let events = store.events(name("acme"), None, 0, 100).await.unwrap();
    let older = events.iter().filter(|event| event.time < border).count() as u64;
    assert!(older > 0 && older < events.len() as u64);
    assert_eq!(store.forget_events(border).await.unwrap(), older);
    let kept = store.events(name("acme"), None, 0, 100).await.unwrap();
    assert_eq!(kept, events[older as usize..], "what is kept keeps its seq");
    assert_eq!(store.newest_event(name("acme")).await.unwrap(), events.len() as i64);
}

pub(crate) async fn values_at_the_edge_survive(world: World) {
    let long = "ä'\"?1$1;--\\\n".repeat(1000);
    let mut ask = Acquire { workflow: long.clone(), request: String::new(), ..world.ask("acme") };
    ask.counts.memory = u64::MAX;
    ask.ttl_seconds = u32::MAX;
    ask.heartbeat_seconds = None;
    ask.one_shot = true;
    let (lease, _) = world.granted(ask).await;
    let kept = world.store.lease(lease.id).await.unwrap().unwrap();
    assert_eq!((kept.workflow, kept.request, kept.one_shot), (long, String::new(), true));
    assert_eq!((kept.ttl_seconds, kept.heartbeat_seconds), (u32::MAX, None));
    assert_eq!(kept.counts.memory, i64::MAX as u64, "more than anything is kept as the most");
    let edge = Timestamp::from_millisecond(-1).unwrap();
    world.store.join(world.node, "again".into(), edge).await.unwrap();
    assert_eq!(world.store.node(world.node).await.unwrap(), Some(("again".into(), edge)));
    // PostgreSQL keeps no NUL in a text; it is refused clearly, and SQLite may keep it.
    let nul = Acquire { workflow: "a\0b".into(), ..world.ask("acme") };
    let outcome = world.store.acquire(world.context(), nul).await;
    if world.is_shared_database() {
        assert_eq!(kind(outcome), Kind::Invalid);
    }
    world.granted(world.ask("acme")).await;
}

pub(crate) async fn what_belongs_to_nobody_is_refused(world: World) {
    let at = "nobody/x".parse().unwrap();
    let orphan = world.store.put_template(world.context(), at, Recipe::default(), None).await;
    assert_eq!(kind(orphan), Kind::NotFound);
    let stranger =
        cubicle_store::Context { node: cubicle_model::NodeId::from_random(bits()), ..world.context() };
    let refused = world.store.acquire(stranger, world.ask("acme")).await;
    assert!(matches!(kind(refused), Kind::NotFound | Kind::Internal));
    assert!(world.all_sandboxes().await.is_empty());
}
