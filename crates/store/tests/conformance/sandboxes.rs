//! The states of sandboxes, and who may change them.

use std::collections::BTreeSet;

use cubicle_model::lease::{LeaseEnd, LeaseStatus};
use cubicle_model::{Kind, Quota, SandboxId, SandboxState};
use cubicle_store::{Acquire, Acquired, AfterLease, LeaseFilter, NewSandbox, SandboxFilter};

use crate::world::{World, at_once, bits, kind, name, page, room, target};

pub(crate) async fn a_sandbox_goes_through_its_states(world: World) {
    let World { store, .. } = &world;
    let wanted = vec![NewSandbox { id: SandboxId::from_random(bits()), target: target("default") }];
    let made = store.want_sandboxes(world.context(), wanted, 10).await.unwrap().remove(0);
    assert_eq!((made.state, made.generation, made.tenant.as_ref()), (SandboxState::Creating, 1, None));
    assert_eq!(store.sandbox(made.id).await.unwrap().as_ref(), Some(&made));
    world.pass(1);
    let ready = store.welcome(world.context(), made.id, 1).await.unwrap();
    assert_eq!((ready.state, ready.ready_at), (SandboxState::Idle, Some(world.now())));
    let pooled = store.pooled(world.node).await.unwrap();
    assert_eq!(pooled.into_iter().collect::<Vec<_>>(), [(("default".parse().unwrap(), 1), 1)]);
    store.retire(world.context(), made.id, ready.generation, "too many".into()).await.unwrap();
    let retired = store.sandbox(made.id).await.unwrap().unwrap();
    assert_eq!((retired.state, retired.ended_because.as_deref()), (SandboxState::Teardown, Some("too many")));
    store.forget(world.context(), made.id, retired.generation).await.unwrap();
    let gone = store.sandbox(made.id).await.unwrap().unwrap();
    assert_eq!((gone.state, gone.ended_at), (SandboxState::Gone, Some(world.now())));
    assert!(store.sandboxes(SandboxFilter::default(), page(10)).await.unwrap().is_empty());
    assert_eq!(world.all_sandboxes().await, std::slice::from_ref(&gone));
    let filter = SandboxFilter { state: Some(SandboxState::Gone), ..SandboxFilter::default() };
    assert_eq!(store.sandboxes(filter, page(10)).await.unwrap(), [gone]);
}

pub(crate) async fn whoever_saw_an_older_generation_is_refused(world: World) {
    let World { store, .. } = &world;
    let (_, sandbox) = world.granted(world.ask("acme")).await;
    let (id, old) = (sandbox.id, sandbox.generation);
    let ready = store.welcome(world.context(), id, old).await.unwrap();
    let lost = || "lost".to_owned();
    let because = LeaseEnd::SandboxEnded;
    assert_eq!(kind(store.welcome(world.context(), id, old).await), Kind::Conflict);
    assert_eq!(kind(store.give_up(world.context(), id, old, because, lost()).await), Kind::Conflict);
    assert_eq!(kind(store.retire(world.context(), id, old, lost()).await), Kind::Conflict);
    assert_eq!(kind(store.forget(world.context(), id, old).await), Kind::Conflict);
    // The right generation in the wrong state.
    let now = ready.generation;
    assert_eq!(kind(store.welcome(world.context(), id, now).await), Kind::Conflict);
    assert_eq!(kind(store.retire(world.context(), id, now, lost()).await), Kind::Conflict, "it is leased");
    assert_eq!(kind(store.forget(world.context(), id, now).await), Kind::Conflict);
    assert_eq!(store.sandbox(id).await.unwrap(), Some(ready.clone()));
    let unknown = SandboxId::from_random(bits());
    assert_eq!(kind(store.welcome(world.context(), unknown, 1).await), Kind::NotFound);

    // Of many who act on the same generation, on two servers, one succeeds.
    let second = world.another_server().await;
    let outcomes = at_once((0..12).map(|number| {
        let at = if number % 2 == 0 { &world } else { &second };
        let (store, context) = (at.store.clone(), at.context());
        async move { store.give_up(context, id, now, because, "lost".into()).await }
    }))
    .await;
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1);
    for refused in outcomes.into_iter().filter(Result::is_err) {
        assert_eq!(kind(refused), Kind::Conflict);
    }
}

pub(crate) async fn a_sandbox_that_ended_takes_its_lease_with_it(world: World) {
    let (lease, sandbox) = world.leased(world.ask("acme")).await;
    let give_up = |id, generation| {
        world.store.give_up(world.context(), id, generation, LeaseEnd::SandboxEnded, "out of memory".into())
    };
    let ended = give_up(sandbox.id, sandbox.generation).await.unwrap().unwrap();
    assert_eq!((ended.lease.id, ended.lease.status), (lease.id, LeaseStatus::Expired));
    let torn_down = ended.sandbox.unwrap();
    assert_eq!(torn_down.ended_because.as_deref(), Some("out of memory"));
    // What is answered can be acted on.
    world.store.forget(world.context(), torn_down.id, torn_down.generation).await.unwrap();
    let told = world.store.events(name("acme"), Some(sandbox.id.to_string()), 0, 10).await.unwrap();
    let kinds: Vec<_> = told.iter().map(|event| event.kind.as_str()).collect();
    assert_eq!(kinds, ["sandbox.ready", "sandbox.gone"]);

    let idle = world.idle("default", 1).await.remove(0);
    assert_eq!(give_up(idle.id, idle.generation).await.unwrap(), None);
    let torn_down = world.store.sandbox(idle.id).await.unwrap().unwrap();
    assert_eq!(torn_down.state, SandboxState::Teardown);
}

pub(crate) async fn the_pool_is_filled_as_far_as_there_is_room(world: World) {
    world.granted(world.ask("acme")).await;
    let second = world.same_node_again().await;
    let outcomes = at_once((0..10).map(|number| {
        let store = if number % 2 == 0 { world.store.clone() } else { second.store.clone() };
        let context = world.context();
        let wanted = (0..3)
            .map(|_| NewSandbox { id: SandboxId::from_random(bits()), target: target("default") })
            .collect();
        async move { store.want_sandboxes(context, wanted, 8).await.unwrap() }
    }))
    .await;
    assert_eq!(outcomes.into_iter().flatten().count(), 7);
    assert_eq!(world.living().await.len(), 8);
}

pub(crate) async fn what_stands_is_listed_by_node(world: World) {
    let second = world.another_server().await;
    let (_, own) = world.granted(world.ask("acme")).await;
    let (_, foreign) = second.granted(world.ask("acme")).await;
    let ids = |standing: Vec<cubicle_model::Sandbox>| standing.iter().map(|one| one.id).collect::<Vec<_>>();
    assert_eq!(ids(world.store.standing_sandboxes(world.node).await.unwrap()), [own.id]);
    assert_eq!(ids(world.store.standing_sandboxes(second.node).await.unwrap()), [foreign.id]);
    assert_eq!(world.store.node(second.node).await.unwrap().unwrap().0, "127.0.0.1:7879");
    assert_eq!(world.store.count_leases(second.node).await.unwrap(), (1, 0));
    world.idle("default", 2).await;
    world.idle("other", 1).await;
    let counted = world.store.count_sandboxes(world.node).await.unwrap();
    let counted: Vec<_> =
        counted.iter().map(|(template, state, count)| (template.to_string(), *state, *count)).collect();
    let expected = [
        ("default".to_owned(), SandboxState::Creating, 1),
        ("default".to_owned(), SandboxState::Idle, 2),
        ("other".to_owned(), SandboxState::Idle, 1),
    ];
    assert_eq!(counted, expected);
}

/// Everything that servers do, at the same time, on the same rows.
pub(crate) async fn everything_at_once_neither_deadlocks_nor_loses_a_lease(world: World) {
    for tenant in ["a", "b", "c"] {
        world.tenant(tenant, Quota::default(), 1).await;
    }
    let second = world.another_server().await;
    at_once((0..12).map(|number: usize| {
        let at = if number.is_multiple_of(2) { &world } else { &second };
        let (store, context) = (at.store.clone(), at.context());
        let asks: Vec<_> = (0..12)
            .map(|round| Acquire {
                room: room(6),
                may_wait: true,
                ..world.ask(["a", "b", "c"][(number + round) % 3])
            })
            .collect();
        async move {
            for ask in asks {
                let context = || context.clone();
                let outcome = store.acquire(context(), ask).await.unwrap();
                if let Acquired::Granted { lease, sandbox, .. } = outcome {
                    let racing = store.clone();
                    let at = context();
                    let ready =
                        tokio::spawn(async move { racing.welcome(at, sandbox.id, sandbox.generation).await });
                    let after =
                        if number.is_multiple_of(3) { AfterLease::KeepForUser } else { AfterLease::Destroy };
                    store.end_lease(context(), lease.id, LeaseEnd::Released, after).await.unwrap();
                    drop(ready.await.unwrap());
                }
                for one in store.promote(context(), room(6)).await.unwrap() {
                    store
                        .end_lease(context(), one.lease.id, LeaseEnd::Released, AfterLease::Destroy)
                        .await
                        .unwrap();
                }
                for sandbox in store.standing_sandboxes(context().node).await.unwrap() {
                    if sandbox.state == SandboxState::Teardown {
                        // Others do the same; one of them is first.
                        drop(store.forget(context(), sandbox.id, sandbox.generation).await);
                    }
                }
            }
        }
    }))
    .await;
    let leases = world.store.leases(LeaseFilter::default(), page(1000)).await.unwrap();
    assert_eq!(leases.len(), 144);
    let active: BTreeSet<_> =
        leases.iter().filter(|lease| lease.status == LeaseStatus::Active).map(|lease| lease.id).collect();
    let leased: BTreeSet<_> = world
        .all_sandboxes()
        .await
        .iter()
        .filter(|sandbox| matches!(sandbox.state, SandboxState::Creating | SandboxState::Leased))
        .filter_map(|sandbox| sandbox.lease)
        .collect();
    assert_eq!(active, leased);
    assert!(active.is_empty(), "whatever was granted was given back");
}
