//! What a lease says of egress.

use cubicle_model::Kind;
use cubicle_model::egress::LeaseEgress;
use cubicle_model::lease::LeaseEnd;
use cubicle_store::{Acquire, AfterLease};

use crate::world::{World, kind};

fn saying(policy: &str) -> LeaseEgress {
    LeaseEgress { policy: Some(policy.parse().unwrap()), ..LeaseEgress::default() }
}

pub(crate) async fn egress_of_a_lease_is_kept_and_changed_until_it_ends(world: World) {
    let (silent, _) = world.leased(world.ask("acme")).await;
    assert_eq!(silent.egress, LeaseEgress::default());
    let (lease, _) = world.leased(Acquire { egress: saying("none"), ..world.ask("acme") }).await;
    let read = || async { world.store.lease(lease.id).await.unwrap().unwrap() };
    assert_eq!(read().await.egress, saying("none"));

    let changed = world
        .store
        .change_egress(world.context(), lease.id, |now| {
            assert_eq!(*now, saying("none"));
            Ok(Some(saying("allow a.example")))
        })
        .await
        .unwrap();
    assert_eq!((changed.version, &changed.egress), (lease.version + 1, &saying("allow a.example")));
    assert_eq!(read().await, changed);

    let same = world.store.change_egress(world.context(), lease.id, |_| Ok(None)).await.unwrap();
    assert_eq!(same, changed, "without a change there is no new version");
    let refused = world.store.change_egress(world.context(), lease.id, |_| {
        Err(cubicle_model::Fault::new(Kind::Conflict, "another exec has a policy of its own"))
    });
    assert_eq!(kind(refused.await), Kind::Conflict);
    assert_eq!(read().await, changed);

    let none = |_: &LeaseEgress| Ok(Some(LeaseEgress::default()));
    world.store.change_egress(world.context(), lease.id, none).await.unwrap();
    assert_eq!(read().await.egress, LeaseEgress::default());
    world.store.end_lease(world.context(), lease.id, LeaseEnd::Released, AfterLease::Destroy).await.unwrap();
    assert_eq!(kind(world.store.change_egress(world.context(), lease.id, none).await), Kind::Conflict);
}
