//! Who gets a sandbox.

use std::collections::{BTreeMap, BTreeSet};

use cubicle_model::lease::{Admission, LeaseStatus};
use cubicle_model::{Kind, LeaseId, Quota, SandboxId, SandboxState, Usage};
use cubicle_store::{Acquire, Acquired, LeaseFilter, Room};

use crate::world::{World, at_once, bits, kind, name, page, room, target, user};

pub(crate) async fn a_ready_sandbox_goes_before_a_new_one(world: World) {
    let ready = world.idle("default", 1).await.remove(0);
    world.idle("other", 1).await;
    let (lease, sandbox) = world.granted(world.ask("acme")).await;
    assert_eq!((lease.admission, lease.status), (Admission::Warm, LeaseStatus::Active));
    assert_eq!((sandbox.id, sandbox.state), (ready.id, SandboxState::Leased));
    assert_eq!((sandbox.lease, sandbox.tenant.as_ref()), (Some(lease.id), Some(&lease.tenant)));
    assert_eq!(sandbox.generation, ready.generation + 1);
    assert_eq!(lease.sandbox, Some(sandbox.id));
    assert_eq!(lease.expires_at, world.now() + std::time::Duration::from_secs(60));

    let ask = world.ask("acme");
    let (lease, sandbox) = world.granted(ask.clone()).await;
    assert_eq!((lease.admission, sandbox.state), (Admission::Cold, SandboxState::Creating));
    assert_eq!((lease.id, sandbox.id), (ask.lease, ask.sandbox), "the given ids are used");
    // What is answered is what is kept.
    assert_eq!(world.store.lease(lease.id).await.unwrap(), Some(lease));
    assert_eq!(world.store.sandbox(sandbox.id).await.unwrap(), Some(sandbox.clone()));
    assert_eq!(world.store.target(sandbox.id).await.unwrap(), target("default"));

    world.idle("default", 1).await;
    let (lease, _) = world.granted(Acquire { must_be_new: true, ..world.ask("acme") }).await;
    assert_eq!(lease.admission, Admission::Cold);
    assert_eq!(world.store.count_leases(world.node).await.unwrap(), (3, 0));
}

pub(crate) async fn a_preferred_sandbox_goes_before_any_other_while_it_is_free(world: World) {
    let ready = world.idle("default", 3).await;
    let others = world.idle("other", 1).await;
    let (first, last) = (ready[0].id, ready[2].id);
    let preferring = |preferred: Vec<SandboxId>| Acquire { preferred, ..world.ask("acme") };
    let unknown = SandboxId::from_random(bits());
    let (_, sandbox) = world.granted(preferring(vec![unknown, others[0].id, last])).await;
    assert_eq!(sandbox.id, last, "neither one that is not there nor one of another template is taken");
    let (_, sandbox) = world.granted(preferring(vec![last])).await;
    let any = sandbox.id;
    assert!(any == first || any == ready[1].id, "one that somebody has is not taken, and any other will do");
    // Kept for somebody, it is for nobody else.
    let left = if any == first { ready[1].id } else { first };
    let (lease, kept) = world.leased(preferring(vec![left])).await;
    let after = cubicle_store::AfterLease::KeepForTenant;
    let because = cubicle_model::lease::LeaseEnd::Released;
    world.store.end_lease(world.context(), lease.id, because, after).await.unwrap();
    world.tenant("globex", cubicle_model::Quota::default(), 1).await;
    let theirs = Acquire { preferred: vec![kept.id], ..world.ask("globex") };
    let (_, sandbox) = world.granted(theirs).await;
    assert_ne!(sandbox.id, kept.id);
}

pub(crate) async fn the_same_request_from_a_hundred_tasks_gives_one_lease(world: World) {
    world.idle("default", 5).await;
    let second = world.same_node_again().await;
    let outcomes = at_once((0..100).map(|number| {
        let store = if number % 2 == 0 { world.store.clone() } else { second.store.clone() };
        let (context, ask) = (world.context(), Acquire { request: "the one".into(), ..world.ask("acme") });
        async move { store.acquire(context, ask).await.unwrap() }
    }))
    .await;
    let mut leases = BTreeSet::new();
    let mut granted = 0;
    for outcome in outcomes {
        match outcome {
            Acquired::Granted { lease, .. } => {
                granted += 1;
                leases.insert(lease.id);
            }
            Acquired::Repeated { lease } => {
                leases.insert(lease.id);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((granted, leases.len()), (1, 1));
    let leased = |state| state == SandboxState::Leased;
    assert_eq!(world.living().await.iter().filter(|sandbox| leased(sandbox.state)).count(), 1);
}

pub(crate) async fn a_request_that_changed_its_mind_is_refused(world: World) {
    let ask = Acquire { request: "r".into(), ..world.ask("acme") };
    let (lease, _) = world.granted(ask.clone()).await;
    let other = Acquire { fingerprint: "another".into(), ..ask.clone() };
    assert_eq!(kind(world.store.acquire(world.context(), other).await), Kind::Conflict);
    // Also after its end the answer is the lease that came of it.
    world.pass(60);
    world.store.expire_leases(world.context(), 10).await.unwrap();
    let again =
        Acquire { lease: LeaseId::from_random(bits()), sandbox: SandboxId::from_random(bits()), ..ask };
    match world.acquire(again).await {
        Acquired::Repeated { lease: same } => {
            assert_eq!((same.id, same.status), (lease.id, LeaseStatus::Expired));
        }
        other => panic!("{other:?}"),
    }
}

pub(crate) async fn a_request_of_another_user_is_another_request(world: World) {
    world.tenant("other", Quota::default(), 1).await;
    let fresh = |ask: Acquire| Acquire {
        lease: LeaseId::from_random(bits()),
        sandbox: SandboxId::from_random(bits()),
        ..ask
    };
    let ask = Acquire { request: "r".into(), ..world.ask("acme") };
    world.granted(ask.clone()).await;
    world.granted(fresh(Acquire { user: user("grace"), ..ask.clone() })).await;
    world.granted(fresh(Acquire { tenant: name("other"), ..ask.clone() })).await;
    world.granted(fresh(Acquire { workflow: "another".into(), ..ask.clone() })).await;
    let nobody = fresh(Acquire { tenant: name("nobody"), ..ask });
    assert_eq!(kind(world.store.acquire(world.context(), nobody).await), Kind::NotFound);
    let filter = LeaseFilter { user: Some(user("grace")), ..LeaseFilter::default() };
    assert_eq!(world.store.leases(filter, page(10)).await.unwrap().len(), 1);
}

pub(crate) async fn whoever_cannot_wait_is_told_that_it_is_full(world: World) {
    let two = Room { sandboxes: 1, longest_queue: 1, kept: BTreeMap::new() };
    let ask = |may_wait| Acquire { room: two.clone(), may_wait, ..world.ask("acme") };
    world.granted(ask(false)).await;
    assert_eq!(world.acquire(ask(false)).await, Acquired::Full { waiting: 0 });
    match world.acquire(ask(true)).await {
        Acquired::Waits { lease, position } => {
            assert_eq!((lease.status, lease.sandbox, position), (LeaseStatus::Queued, None, 1));
            assert_eq!(world.store.position(world.node, lease.id).await.unwrap(), Some(1));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(world.acquire(ask(true)).await, Acquired::Full { waiting: 1 }, "the queue is full too");
    assert_eq!(world.store.count_leases(world.node).await.unwrap(), (1, 1));
    // A refusal leaves nothing behind.
    assert_eq!(world.store.leases(LeaseFilter::default(), page(10)).await.unwrap().len(), 2);
}

pub(crate) async fn a_quota_is_reached_and_not_exceeded(world: World) {
    let quota = Quota { leases: Some(3), memory: Some(2 << 20), ..Quota::default() };
    world.tenant("small", quota, 1).await;
    world.granted(world.ask("small")).await;
    let (lease, _) = world.granted(world.ask("small")).await;
    let exceeded = |outcome| match outcome {
        Acquired::OverQuota(exceeded) => exceeded.what,
        other => panic!("{other:?}"),
    };
    assert_eq!(exceeded(world.acquire(world.ask("small")).await), "memory (bytes)");
    let light = Acquire { counts: Usage::default(), ..world.ask("small") };
    world.granted(light.clone()).await;
    let one_more = Acquire { request: "more".into(), lease: LeaseId::from_random(bits()), ..light };
    assert_eq!(
        exceeded(world.acquire(one_more.clone()).await),
        "leases",
        "a lease counts even if it weighs nothing"
    );
    assert_eq!(world.store.usage(name("small")).await.unwrap().leases, 3);
    let released = cubicle_model::lease::LeaseEnd::Released;
    world
        .store
        .end_lease(world.context(), lease.id, released, cubicle_store::AfterLease::Destroy)
        .await
        .unwrap();
    world.granted(Acquire { sandbox: SandboxId::from_random(bits()), ..one_more }).await;
    world.granted(world.ask("acme")).await;
}

pub(crate) async fn racing_acquirers_share_ready_sandboxes_and_never_exceed_the_room(world: World) {
    for tenant in ["a", "b", "c"] {
        world.tenant(tenant, Quota::default(), 1).await;
    }
    world.idle("default", 5).await;
    let second = world.same_node_again().await;
    let outcomes = at_once((0..60).map(|number| {
        let store = if number % 2 == 0 { world.store.clone() } else { second.store.clone() };
        let tenant = ["a", "b", "c"][number % 3];
        let (context, ask) = (world.context(), Acquire { room: room(12), ..world.ask(tenant) });
        async move { store.acquire(context, ask).await.unwrap() }
    }))
    .await;
    let (mut warm, mut cold, mut full) = (0, 0, 0);
    let mut sandboxes = BTreeSet::new();
    for outcome in outcomes {
        match outcome {
            Acquired::Granted { lease, sandbox, evicted } => {
                assert_eq!(evicted, None);
                assert!(sandboxes.insert(sandbox.id), "{} is given to two", sandbox.id);
                if lease.admission == Admission::Warm { warm += 1 } else { cold += 1 }
            }
            Acquired::Full { .. } => full += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((warm, cold, full), (5, 7, 48));
    assert_eq!(world.living().await.len(), 12);
}

pub(crate) async fn racing_acquirers_of_one_tenant_never_exceed_its_quota(world: World) {
    world.tenant("small", Quota { leases: Some(4), ..Quota::default() }, 1).await;
    let second = world.another_server().await;
    let outcomes = at_once((0..30).map(|number| {
        let at = if number % 2 == 0 { &world } else { &second };
        let (store, context, ask) = (at.store.clone(), at.context(), world.ask("small"));
        let ask = Acquire { room: room(100), ..ask };
        async move { store.acquire(context, ask).await.unwrap() }
    }))
    .await;
    let granted = outcomes.iter().filter(|outcome| matches!(outcome, Acquired::Granted { .. })).count();
    assert_eq!(granted, 4);
    assert_eq!(world.store.usage(name("small")).await.unwrap().leases, 4);
}

pub(crate) async fn a_spare_sandbox_of_another_template_makes_room(world: World) {
    let spare = world.idle("other", 2).await;
    let oldest = spare.iter().map(|sandbox| sandbox.id).collect::<BTreeSet<_>>();
    let ask = |request: &str| Acquire { request: request.into(), room: room(2), ..world.ask("acme") };
    let Acquired::Granted { sandbox, evicted: Some(evicted), .. } = world.acquire(ask("1")).await else {
        panic!("no room was made")
    };
    assert!(oldest.contains(&evicted));
    assert_eq!(sandbox.state, SandboxState::Creating);
    let gone = world.store.sandbox(evicted).await.unwrap().unwrap();
    assert_eq!(gone.state, SandboxState::Teardown);
    let Acquired::Granted { evicted: Some(_), .. } = world.acquire(ask("2")).await else { panic!("no room") };
    assert_eq!(world.acquire(ask("3")).await, Acquired::Full { waiting: 0 });
    assert_eq!(world.living().await.len(), 2);
}

pub(crate) async fn a_pool_keeps_what_it_must(world: World) {
    world.idle("other", 2).await;
    let kept = BTreeMap::from([("other".parse().unwrap(), 1)]);
    let two = Room { sandboxes: 2, longest_queue: 0, kept };
    let ask = |request: &str| Acquire { request: request.into(), room: two.clone(), ..world.ask("acme") };
    assert!(matches!(world.acquire(ask("1")).await, Acquired::Granted { evicted: Some(_), .. }));
    assert_eq!(world.acquire(ask("2")).await, Acquired::Full { waiting: 0 });
}

pub(crate) async fn an_outdated_sandbox_is_given_to_nobody_and_makes_room(world: World) {
    let old = world.idle("default", 1).await.remove(0);
    let mut newer = Acquire { room: room(1), ..world.ask("acme") };
    newer.target.version = 2;
    newer.room.kept = BTreeMap::from([("default".parse().unwrap(), 1)]);
    match world.acquire(newer).await {
        Acquired::Granted { lease, sandbox, evicted } => {
            assert_eq!((lease.admission, evicted), (Admission::Cold, Some(old.id)));
            assert_eq!(sandbox.template_version, 2);
        }
        other => panic!("{other:?}"),
    }
}

pub(crate) async fn two_servers_do_not_use_each_others_room(world: World) {
    let second = world.another_server().await;
    let ready = world.idle("default", 1).await.remove(0);
    let ask = || Acquire { room: room(1), ..world.ask("acme") };
    let (lease, sandbox) = second.granted(ask()).await;
    assert_eq!((lease.node, lease.admission), (second.node, Admission::Cold), "{} is the other's", ready.id);
    assert_eq!(sandbox.node, second.node);
    assert_eq!(second.acquire(ask()).await, Acquired::Full { waiting: 0 });
    let (_, sandbox) = world.granted(ask()).await;
    assert_eq!(sandbox.id, ready.id);
}
