//! Heartbeats, and how leases end.

use std::time::Duration;

use cubicle_model::lease::{Admission, LeaseEnd, LeaseStatus};
use cubicle_model::{Kind, LeaseId, Quota, SandboxState};
use cubicle_store::{Acquire, Acquired, AfterLease, EndedLease};

use crate::world::{World, at_once, bits, kind, name, user};

pub(crate) async fn a_heartbeat_moves_the_end_and_a_late_one_does_not(world: World) {
    let (lease, _) = world.granted(world.ask("acme")).await;
    world.pass(59);
    let renewed = world.store.renew(world.context(), lease.id).await.unwrap();
    assert_eq!(renewed.expires_at, world.now() + Duration::from_secs(60));
    assert_eq!(world.store.lease(lease.id).await.unwrap(), Some(renewed.clone()));
    world.pass(-3600);
    let kept = world.store.renew(world.context(), lease.id).await.unwrap();
    assert_eq!(kept.expires_at, renewed.expires_at, "a clock that is set back shortens nothing");
    world.pass(3600 + 60);
    assert_eq!(kind(world.store.renew(world.context(), lease.id).await), Kind::Conflict);
    world.store.expire_leases(world.context(), 10).await.unwrap();
    assert_eq!(kind(world.store.renew(world.context(), lease.id).await), Kind::Conflict);
    assert_eq!(kind(world.store.renew(world.context(), LeaseId::from_random(bits())).await), Kind::NotFound);
}

pub(crate) async fn a_lease_ends_once(world: World) {
    let (lease, sandbox) = world.leased(world.ask("acme")).await;
    world.pass(1);
    let end = |because| world.store.end_lease(world.context(), lease.id, because, AfterLease::Destroy);
    let ended = end(LeaseEnd::Released).await.unwrap();
    assert!(ended.just_now);
    assert_eq!((ended.lease.status, ended.lease.ended_at), (LeaseStatus::Released, Some(world.now())));
    let torn_down = ended.sandbox.unwrap();
    assert_eq!(torn_down.state, SandboxState::Teardown);
    assert_eq!(torn_down.ended_because.as_deref(), Some("released"));
    assert_eq!(torn_down.ready_at, sandbox.ready_at);
    assert_eq!(world.store.sandbox(sandbox.id).await.unwrap(), Some(torn_down.clone()));
    world.pass(1);
    let again = end(LeaseEnd::Revoked).await.unwrap();
    assert!(!again.just_now);
    assert_eq!((&again.lease, &again.sandbox), (&ended.lease, &Some(torn_down)));
    assert_eq!(world.store.lease(lease.id).await.unwrap(), Some(ended.lease));
    let unknown = LeaseId::from_random(bits());
    let refused =
        world.store.end_lease(world.context(), unknown, LeaseEnd::Released, AfterLease::Destroy).await;
    assert_eq!(kind(refused), Kind::NotFound);
}

pub(crate) async fn a_lease_that_many_release_at_once_ends_once(world: World) {
    let (lease, _) = world.leased(world.ask("acme")).await;
    let second = world.another_server().await;
    let outcomes =
        at_once((0..40).map(|number| {
            let at = if number % 2 == 0 { &world } else { &second };
            let (store, context) = (at.store.clone(), at.context());
            async move {
                store.end_lease(context, lease.id, LeaseEnd::Released, AfterLease::Destroy).await.unwrap()
            }
        }))
        .await;
    assert_eq!(outcomes.iter().filter(|ended| ended.just_now).count(), 1);
    let told = world.store.events(name("acme"), Some(lease.id.to_string()), 0, 100).await.unwrap();
    assert_eq!(told.iter().filter(|event| event.kind == "lease.released").count(), 1);
}

pub(crate) async fn expired_leases_are_ended_once_by_the_servers_that_have_them(world: World) {
    for tenant in ["a", "b", "c"] {
        world.tenant(tenant, Quota::default(), 1).await;
    }
    let second = world.another_server().await;
    for number in 0..30 {
        let at = if number % 2 == 0 { &world } else { &second };
        let ask = Acquire { room: crate::world::room(100), ..world.ask(["a", "b", "c"][number % 3]) };
        at.granted(ask).await;
    }
    assert!(world.store.expire_leases(world.context(), 100).await.unwrap().is_empty());
    world.pass(60);
    let some = world.store.expire_leases(world.context(), 4).await.unwrap();
    assert_eq!(some.len(), 4, "some at a time");
    let outcomes = at_once((0..12).map(|number| {
        let at = if number % 2 == 0 { &world } else { &second };
        let (store, context) = (at.store.clone(), at.context());
        async move { store.expire_leases(context, 100).await.unwrap() }
    }))
    .await;
    let ended: Vec<_> = outcomes.into_iter().flatten().collect();
    assert_eq!(ended.len(), 26);
    check_ended(ended);
}

fn check_ended(ended: Vec<EndedLease>) {
    for one in ended {
        assert!(one.just_now);
        assert_eq!(
            (one.lease.status, one.lease.ended_because),
            (LeaseStatus::Expired, Some(LeaseEnd::TimeToLive))
        );
        assert_eq!(one.sandbox.unwrap().state, SandboxState::Teardown);
    }
}

pub(crate) async fn leases_of_a_server_that_does_not_come_back_are_ended_by_another(world: World) {
    let second = world.another_server().await;
    second.granted(world.ask("acme")).await;
    // Its clock may be another one, and it may only be slow.
    world.pass(60);
    assert!(world.store.expire_leases(world.context(), 100).await.unwrap().is_empty());
    world.pass(3600);
    assert!(world.store.expire_leases(world.context(), 100).await.unwrap().is_empty());
    world.pass(3600);
    let ended = world.store.expire_leases(world.context(), 100).await.unwrap();
    assert_eq!(ended.len(), 1);
    check_ended(ended);
}

pub(crate) async fn a_heartbeat_and_an_expiry_that_race_agree(world: World) {
    for _ in 0..10 {
        let (lease, _) = world.granted(world.ask("acme")).await;
        world.pass(59);
        let in_time = world.context();
        world.pass(1);
        let too_late = world.context();
        let (store, other) = (world.store.clone(), world.store.clone());
        let renewed = tokio::spawn(async move { store.renew(in_time, lease.id).await });
        let expired = tokio::spawn(async move { other.expire_leases(too_late, 10).await });
        let (renewed, expired) = (renewed.await.unwrap(), expired.await.unwrap().unwrap());
        let now = world.store.lease(lease.id).await.unwrap().unwrap();
        match renewed {
            // Whichever came first, an answered heartbeat is kept.
            Ok(renewed) => {
                assert!(expired.is_empty());
                assert_eq!(now, renewed);
            }
            Err(refused) => {
                assert_eq!((refused.kind(), expired.len()), (Kind::Conflict, 1));
                assert_eq!(now.status, LeaseStatus::Expired);
            }
        }
        world
            .store
            .end_lease(world.context(), lease.id, LeaseEnd::Released, AfterLease::Destroy)
            .await
            .unwrap();
        if let Some(sandbox) = now.sandbox {
            world.gone(sandbox).await;
        }
    }
}

pub(crate) async fn a_waiting_lease_can_be_given_back(world: World) {
    let one = crate::world::room(1);
    world.granted(Acquire { room: one.clone(), ..world.ask("acme") }).await;
    let waits = world.waits(Acquire { room: one.clone(), ..world.ask("acme") }).await;
    let ended = world
        .store
        .end_lease(world.context(), waits.id, LeaseEnd::Released, AfterLease::Destroy)
        .await
        .unwrap();
    assert_eq!((ended.lease.status, ended.sandbox), (LeaseStatus::Released, None));
    assert!(world.store.promote(world.context(), crate::world::room(5)).await.unwrap().is_empty());
    assert_eq!(
        world.acquire(Acquire { room: one, ..world.ask("acme") }).await,
        Acquired::Full { waiting: 0 }
    );
}

pub(crate) async fn a_sandbox_kept_for_its_user_is_given_to_nobody_else(world: World) {
    let (lease, sandbox) = world.leased(world.ask("acme")).await;
    let ended = world
        .store
        .end_lease(world.context(), lease.id, LeaseEnd::Released, AfterLease::KeepForUser)
        .await
        .unwrap();
    let kept = ended.sandbox.unwrap();
    assert_eq!((kept.state, kept.lease, kept.ended_because.as_ref()), (SandboxState::Idle, None, None));
    assert!(world.store.pooled(world.node).await.unwrap().is_empty(), "it is not the pool's");
    let (_, other) = world.granted(Acquire { user: user("grace"), ..world.ask("acme") }).await;
    assert_ne!(other.id, sandbox.id);
    world.tenant("other", Quota::default(), 1).await;
    let (_, other) = world.granted(world.ask("other")).await;
    assert_ne!(other.id, sandbox.id);
    world.idle("default", 1).await;
    let (lease, own) = world.granted(world.ask("acme")).await;
    assert_eq!((own.id, lease.admission), (sandbox.id, Admission::Warm), "its own goes before a fresh one");
}

pub(crate) async fn a_sandbox_kept_for_its_tenant_is_given_to_another_user_of_it(world: World) {
    let (lease, sandbox) = world.leased(world.ask("acme")).await;
    world
        .store
        .end_lease(world.context(), lease.id, LeaseEnd::Released, AfterLease::KeepForTenant)
        .await
        .unwrap();
    world.tenant("other", Quota::default(), 1).await;
    let (_, foreign) = world.granted(world.ask("other")).await;
    assert_ne!(foreign.id, sandbox.id);
    let (_, same) = world.granted(Acquire { user: user("grace"), ..world.ask("acme") }).await;
    assert_eq!((same.id, same.user), (sandbox.id, Some(user("grace"))));
}

pub(crate) async fn a_sandbox_that_is_not_ready_is_not_kept(world: World) {
    let (lease, sandbox) = world.granted(world.ask("acme")).await;
    assert_eq!(sandbox.state, SandboxState::Creating);
    let ended = world
        .store
        .end_lease(world.context(), lease.id, LeaseEnd::Released, AfterLease::KeepForUser)
        .await
        .unwrap();
    assert_eq!(ended.sandbox.unwrap().state, SandboxState::Teardown);
}
