//! Events and the audit log.

use std::collections::BTreeSet;
use std::time::Duration;

use cubicle_model::audit::{Broken, Entry, Head, Verifier};
use cubicle_model::lease::LeaseEnd;
use cubicle_model::{KeyId, Kind, NodeId, Quota, RequestId};
use cubicle_store::{Acquire, Actor, AfterLease, AuditFilter, Context, Page};

use crate::world::{World, at_once, bits, kind, name, page, room};

pub(crate) async fn events_count_without_gaps_also_when_raced(world: World) {
    world.tenant("b", Quota::default(), 1).await;
    let second = world.another_server().await;
    at_once((0..40).map(|number: usize| {
        let at = if number.is_multiple_of(2) { &world } else { &second };
        let (store, context) = (at.store.clone(), at.context());
        let ask = Acquire { room: room(100), ..world.ask(["acme", "b"][number % 2]) };
        async move {
            let lease = ask.lease;
            store.acquire(context.clone(), ask).await.unwrap();
            store.end_lease(context, lease, LeaseEnd::Released, AfterLease::Destroy).await.unwrap();
        }
    }))
    .await;
    for tenant in ["acme", "b"] {
        let events = world.store.events(name(tenant), None, 0, 1000).await.unwrap();
        let seqs: Vec<_> = events.iter().map(|event| event.seq).collect();
        assert_eq!(seqs, (1..=40).collect::<Vec<_>>(), "{tenant}");
        let ids: BTreeSet<_> = events.iter().map(|event| event.id).collect();
        assert_eq!(ids.len(), 40);
        assert_eq!(world.store.newest_event(name(tenant)).await.unwrap(), 40);
    }
    assert_eq!(world.store.newest_event(name("nobody")).await.unwrap(), 0);
}

pub(crate) async fn a_reader_of_events_resumes_where_it_was(world: World) {
    // A reader that follows while others write sees every seq once, in order.
    let tasks: Vec<_> = (0..30)
        .map(|_| {
            let (store, context) = (world.store.clone(), world.context());
            let ask = Acquire { room: room(100), ..world.ask("acme") };
            async move { drop(store.acquire(context, ask).await.unwrap()) }
        })
        .collect();
    let writers = tokio::spawn(at_once(tasks));
    let mut seen = Vec::new();
    while seen.len() < 30 {
        let after = seen.last().copied().unwrap_or(0);
        let some = world.store.events(name("acme"), None, after, 7).await.unwrap();
        assert!(some.len() <= 7);
        seen.extend(some.iter().map(|event| event.seq));
        tokio::task::yield_now().await;
    }
    writers.await.unwrap();
    assert_eq!(seen, (1..=30).collect::<Vec<_>>());
    let all = world.store.events(name("acme"), None, 0, 100).await.unwrap();
    let of_one = world.store.events(name("acme"), Some(all[4].subject.clone()), 0, 100).await.unwrap();
    assert_eq!(of_one, [all[4].clone()]);
    assert_eq!(all[4].kind, "lease.active");
    assert_eq!(all[4].data["admission"], "cold");
}

async fn chain_of(world: &World, node: NodeId) -> Vec<Entry> {
    let (mut entries, mut after) = (Vec::new(), 0);
    loop {
        let some = world.store.audit_chain(node, after, 7).await.unwrap();
        let Some(last) = some.last() else { return entries };
        after = last.seq;
        entries.extend(some);
    }
}

async fn verify(world: &World, node: NodeId, noted: Option<Head>) -> Result<Head, Broken> {
    let mut verifier = Verifier::new(node, noted);
    for entry in chain_of(world, node).await {
        verifier.take(&entry)?;
    }
    verifier.finish()
}

pub(crate) async fn the_audit_log_is_one_chain_per_node_also_when_raced(world: World) {
    let second = world.another_server().await;
    at_once((0..40).map(|number: usize| {
        let at = if number.is_multiple_of(2) { &world } else { &second };
        let (store, context) = (at.store.clone(), at.context());
        let ask = Acquire { room: room(100), ..world.ask("acme") };
        async move {
            store.acquire(context.clone(), ask).await.unwrap();
            let detail = Some(format!("number {number}"));
            store.record(context, "file.write".into(), "x".into(), "denied".into(), detail).await.unwrap();
        }
    }))
    .await;
    let heads = world.store.audit_heads().await.unwrap();
    assert_eq!(heads.len(), 2);
    for head in heads {
        // The first server also made a tenant.
        assert_eq!(head.seq, if head.node == world.node { 41 } else { 40 });
        assert_eq!(verify(&world, head.node, Some(head.clone())).await, Ok(head));
    }
}

pub(crate) async fn a_changed_removed_or_cut_entry_is_noticed(world: World) {
    for number in 0..9 {
        let subject = format!("subject {number}");
        world.store.record(world.context(), "a".into(), subject, "ok".into(), None).await.unwrap();
    }
    let head = world.store.audit_heads().await.unwrap().remove(0);
    assert_eq!(verify(&world, world.node, Some(head.clone())).await, Ok(head.clone()));
    assert_eq!(world.behind_its_back("UPDATE audit SET outcome = 'no' WHERE seq = 4"), 1);
    assert_eq!(verify(&world, world.node, None).await, Err(Broken::Changed(4)));
    world.behind_its_back("UPDATE audit SET outcome = 'ok' WHERE seq = 4");
    assert_eq!(verify(&world, world.node, None).await.as_ref(), Ok(&head));
    assert_eq!(world.behind_its_back("DELETE FROM audit WHERE seq = 10"), 1);
    let cut = Broken::Cut { found: 9, expected: 10 };
    assert_eq!(verify(&world, world.node, Some(head)).await, Err(cut));
    assert_eq!(world.behind_its_back("DELETE FROM audit WHERE seq = 6"), 1);
    assert_eq!(verify(&world, world.node, None).await, Err(Broken::Missing(6)));
}

pub(crate) async fn the_audit_log_is_filtered_and_paged(world: World) {
    let second = world.another_server().await;
    let ada = Actor {
        tenant: Some(name("acme")),
        name: "ada".into(),
        key: Some(KeyId::from_random(bits())),
        from: Some("192.0.2.7".into()),
        request: Some(RequestId::from_random(bits())),
    };
    for number in 0..20 {
        let at = if number % 2 == 0 { &world } else { &second };
        let context = Context { actor: ada.clone(), ..at.context() };
        let (action, subject) = (format!("action-{}", number % 3), format!("s{number}"));
        at.store.record(context, action, subject, "ok".into(), Some("detail".into())).await.unwrap();
        if number % 4 == 0 {
            world.pass(1);
        }
    }
    let of_ada =
        AuditFilter { tenant: Some(name("acme")), actor: Some("ada".into()), ..AuditFilter::default() };
    let all = world.store.audit(of_ada.clone(), page(100)).await.unwrap();
    assert_eq!(all.len(), 20);
    let deed = &all[0].deed;
    assert_eq!(
        (deed.key.clone(), deed.request.clone()),
        (ada.key.map(|id| id.to_string()), ada.request.map(|id| id.to_string()))
    );
    assert_eq!((deed.from.as_deref(), deed.detail.as_deref()), (Some("192.0.2.7"), Some("detail")));

    let mut paged = Vec::new();
    let mut after = None;
    loop {
        let mut some =
            world.store.audit(of_ada.clone(), Page { after: after.take(), limit: 6 }).await.unwrap();
        let more = some.len() > 6;
        some.truncate(6);
        if let Some(last) = some.last() {
            after = Some(format!("{}/{}/{}", last.deed.time.as_millisecond(), last.node, last.seq));
        }
        paged.extend(some);
        if !more {
            break;
        }
    }
    assert_eq!(paged, all);
    let times: Vec<_> = all.iter().map(|entry| entry.deed.time).collect();
    assert!(times.is_sorted());

    let count = async |filter: AuditFilter| world.store.audit(filter, page(100)).await.unwrap().len();
    assert_eq!(count(AuditFilter { action: Some("action-1".into()), ..of_ada.clone() }).await, 7);
    assert_eq!(count(AuditFilter { subject: Some("s4".into()), ..of_ada.clone() }).await, 1);
    assert_eq!(count(AuditFilter { tenant: Some(name("other")), ..AuditFilter::default() }).await, 0);
    let since = times[10];
    let later = count(AuditFilter { since: Some(since), ..of_ada.clone() }).await;
    let earlier =
        count(AuditFilter { until: Some(since - Duration::from_millis(1)), ..of_ada.clone() }).await;
    assert_eq!(later + earlier, 20);
    assert!(later > 0 && earlier > 0);
    let nonsense = Page { after: Some("nonsense".into()), limit: 5 };
    assert_eq!(kind(world.store.audit(of_ada, nonsense).await), Kind::Invalid);
}

pub(crate) async fn a_deed_that_was_refused_leaves_nothing_behind(world: World) {
    let head = world.store.audit_heads().await.unwrap();
    let full = Acquire { room: room(0), ..world.ask("acme") };
    world.acquire(full).await;
    let foreign = world.store.create_tenant(world.context(), name("acme"), Quota::default(), 1).await;
    assert_eq!(kind(foreign), Kind::Conflict);
    assert_eq!(world.store.audit_heads().await.unwrap(), head);
    assert_eq!(world.store.newest_event(name("acme")).await.unwrap(), 0);
}
