//! The queue.

use cubicle_model::lease::{Admission, LeaseEnd, LeaseStatus};
use cubicle_model::{Quota, SandboxId, SandboxState};
use cubicle_store::{Acquire, AfterLease, NewSandbox};
use serde_json::json;

use crate::world::{World, at_once, bits, name, room, target, user};

pub(crate) async fn those_who_wait_are_served_by_fair_share(world: World) {
    world.tenant("b", Quota::default(), 1).await;
    let (holder, sandbox) = world.granted(Acquire { room: room(1), ..world.ask("acme") }).await;
    let mut waiting = Vec::new();
    for tenant in ["acme", "acme", "acme", "b"] {
        world.pass(1);
        waiting.push(world.waits(Acquire { room: room(1), ..world.ask(tenant) }).await);
    }
    let positions = async |world: &World| {
        let mut positions = Vec::new();
        for lease in &waiting {
            positions.push(world.store.position(world.node, lease.id).await.unwrap());
        }
        positions
    };
    // acme has a lease already, so b is first although it came last.
    assert_eq!(positions(&world).await, [Some(2), Some(3), Some(4), Some(1)]);
    assert!(world.store.promote(world.context(), room(1)).await.unwrap().is_empty(), "there is no room");
    world.store.end_lease(world.context(), holder.id, LeaseEnd::Released, AfterLease::Destroy).await.unwrap();
    assert!(world.store.promote(world.context(), room(1)).await.unwrap().is_empty(), "it still stands");
    world.gone(sandbox.id).await;

    world.pass(5);
    let promoted = world.store.promote(world.context(), room(2)).await.unwrap();
    let order: Vec<_> = promoted.iter().map(|one| one.lease.id).collect();
    // Both have nothing now, and acme came first.
    assert_eq!(order, [waiting[0].id, waiting[3].id]);
    for one in &promoted {
        assert_eq!((one.lease.status, one.lease.admission), (LeaseStatus::Active, Admission::Queued));
        assert_eq!(one.lease.expires_at, world.now() + std::time::Duration::from_secs(60), "it begins now");
        assert_eq!(one.lease.sandbox, Some(one.sandbox.id));
        assert_eq!(one.binding, json!({ "env": { "A": "b" } }));
        assert_eq!(world.store.lease(one.lease.id).await.unwrap().as_ref(), Some(&one.lease));
    }
    assert_eq!(positions(&world).await, [None, Some(1), Some(2), None]);
}

pub(crate) async fn whoever_waits_is_not_overtaken_by_the_pool(world: World) {
    let (holder, sandbox) = world.granted(Acquire { room: room(1), ..world.ask("acme") }).await;
    let waits = world.waits(Acquire { room: room(1), ..world.ask("acme") }).await;
    world.store.end_lease(world.context(), holder.id, LeaseEnd::Released, AfterLease::Destroy).await.unwrap();
    world.gone(sandbox.id).await;
    let wanted = vec![NewSandbox { id: SandboxId::from_random(bits()), target: target("other") }];
    assert!(world.store.want_sandboxes(world.context(), wanted, 1).await.unwrap().is_empty());
    let promoted = world.store.promote(world.context(), room(1)).await.unwrap();
    assert_eq!(promoted.iter().map(|one| one.lease.id).collect::<Vec<_>>(), [waits.id]);
}

pub(crate) async fn a_lease_that_waits_gets_the_sandbox_that_was_kept_for_it(world: World) {
    let (holder, sandbox) = world.leased(Acquire { room: room(1), ..world.ask("acme") }).await;
    let waits = world.waits(Acquire { room: room(1), ..world.ask("acme") }).await;
    world
        .store
        .end_lease(world.context(), holder.id, LeaseEnd::Released, AfterLease::KeepForUser)
        .await
        .unwrap();
    let promoted = world.store.promote(world.context(), room(1)).await.unwrap();
    assert_eq!(promoted.len(), 1);
    assert_eq!((promoted[0].lease.id, promoted[0].sandbox.id), (waits.id, sandbox.id));
    assert_eq!((promoted[0].sandbox.state, promoted[0].evicted), (SandboxState::Leased, None));
}

pub(crate) async fn a_sandbox_kept_for_somebody_makes_room_for_those_who_wait(world: World) {
    let (holder, sandbox) = world.leased(Acquire { room: room(1), ..world.ask("acme") }).await;
    let grace = Acquire { user: user("grace"), room: room(1), ..world.ask("acme") };
    let waits = world.waits(grace).await;
    world
        .store
        .end_lease(world.context(), holder.id, LeaseEnd::Released, AfterLease::KeepForUser)
        .await
        .unwrap();
    let promoted = world.store.promote(world.context(), room(1)).await.unwrap();
    assert_eq!(promoted.len(), 1);
    assert_eq!((promoted[0].lease.id, promoted[0].evicted), (waits.id, Some(sandbox.id)));
    let evicted = world.store.sandbox(sandbox.id).await.unwrap().unwrap();
    assert_eq!(evicted.state, SandboxState::Teardown);
    assert_eq!(world.living().await.len(), 1);
}

pub(crate) async fn a_tenant_at_its_quota_does_not_hold_up_others(world: World) {
    let quota = Quota { leases: Some(2), ..Quota::default() };
    world.tenant("small", quota, 1000).await;
    let one = |tenant: &str| Acquire { room: room(1), ..world.ask(tenant) };
    world.granted(one("small")).await;
    let first = world.waits(one("small")).await;
    world.pass(1);
    let blocked = world.waits(one("small")).await;
    let other = world.waits(one("acme")).await;
    let promoted = world.store.promote(world.context(), room(10)).await.unwrap();
    let order: Vec<_> = promoted.iter().map(|one| one.lease.id).collect();
    assert_eq!(order, [first.id, other.id]);
    assert_eq!(world.store.position(world.node, blocked.id).await.unwrap(), Some(1));
    assert_eq!(world.store.usage(name("small")).await.unwrap().leases, 2);
}

pub(crate) async fn promoting_from_many_tasks_promotes_once(world: World) {
    world.tenant("b", Quota::default(), 1).await;
    world.granted(Acquire { room: room(1), ..world.ask("acme") }).await;
    for number in 0..12 {
        world.waits(Acquire { room: room(1), ..world.ask(["acme", "b"][number % 2]) }).await;
    }
    let outcomes = at_once((0..10).map(|_| {
        let (store, context) = (world.store.clone(), world.context());
        async move { store.promote(context, room(6)).await.unwrap() }
    }))
    .await;
    let promoted: Vec<_> = outcomes.into_iter().flatten().collect();
    let mut leases: Vec<_> = promoted.iter().map(|one| one.lease.id).collect();
    leases.sort();
    leases.dedup();
    assert_eq!((promoted.len(), leases.len()), (5, 5));
    assert_eq!(world.living().await.len(), 6);
}

pub(crate) async fn racing_acquirers_and_promoters_never_exceed_the_room(world: World) {
    for tenant in ["a", "b", "c"] {
        world.tenant(tenant, Quota::default(), 1).await;
    }
    let second = world.same_node_again().await;
    at_once((0..60).map(|number| {
        let store = if number % 2 == 0 { world.store.clone() } else { second.store.clone() };
        let tenant = ["a", "b", "c"][number % 3];
        let ask = Acquire { room: room(9), may_wait: true, ..world.ask(tenant) };
        let context = world.context();
        async move {
            match number % 5 {
                0 => drop(store.promote(context, room(9)).await.unwrap()),
                _ => drop(store.acquire(context, ask).await.unwrap()),
            }
        }
    }))
    .await;
    assert_eq!(world.living().await.len(), 9);
    assert_eq!(world.store.count_leases(world.node).await.unwrap(), (9, 39));
}
