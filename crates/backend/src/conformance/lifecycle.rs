//! Making, finding and removing sandboxes.

use cubicle_model::{Kind, Lifetime};

use super::{
    Harness, Verdict, destroyed, eventually, insist, made, nothing_is_left, observed, runs, settled, swept,
};
use crate::faults::{Call, Faulty, Mishap, Plan};
use crate::{Backend, State};

pub async fn ensure_is_idempotent(harness: &dyn Harness) -> Verdict {
    let backend = harness.open().await;
    let place = harness.placement(Lifetime::Bound);
    let first = made(&*backend, &place).await;
    let second = made(&*backend, &place).await;
    assert_eq!(settled(first), settled(second), "the second call made another sandbox");
    assert_eq!(insist(async || backend.list().await).await.expect("list works").len(), 1);
    Verdict::Holds
}

pub async fn another_placement_for_the_same_id_conflicts(harness: &dyn Harness) -> Verdict {
    let backend = harness.open().await;
    let place = harness.placement(Lifetime::Bound);
    made(&*backend, &place).await;
    let mut other = place.clone();
    other.env.insert("OTHER".into(), "1".into());
    let fault = insist(async || backend.ensure(&other).await).await.expect_err("two placements share an id");
    assert_eq!(fault.kind(), Kind::Conflict, "{fault}");
    assert!(runs(&*backend, place.id).await, "the conflict hurt the sandbox that was there");
    Verdict::Holds
}

pub async fn what_is_absent_is_a_value_not_an_error(harness: &dyn Harness) -> Verdict {
    let backend = harness.open().await;
    assert_eq!(observed(&*backend, harness.placement(Lifetime::Bound).id).await, None);
    assert!(insist(async || backend.list().await).await.expect("list works").is_empty());
    Verdict::Holds
}

pub async fn what_a_sandbox_uses_is_counted_while_it_lives(harness: &dyn Harness) -> Verdict {
    let backend = harness.open().await;
    let place = harness.placement(Lifetime::Bound);
    let consumed =
        async || insist(async || backend.consumption(place.id).await).await.expect("it can be asked");
    assert_eq!(consumed().await, None, "what is absent uses something");
    made(&*backend, &place).await;
    let Some(uses) = consumed().await else {
        return Verdict::Skipped("this backend does not count what sandboxes use".into());
    };
    for (what, value) in
        [("memory", uses.memory_bytes), ("processes", uses.processes), ("journal", uses.journal_bytes)]
    {
        assert_ne!(value, Some(0), "a sandbox that lives has no {what}");
    }
    destroyed(&*backend, place.id).await;
    assert_eq!(consumed().await, None, "what was destroyed uses something");
    Verdict::Holds
}

pub async fn list_finds_what_another_process_made(harness: &dyn Harness) -> Verdict {
    let maker = harness.open().await;
    let place = harness.placement(Lifetime::Bound);
    let seen = settled(made(&*maker, &place).await);
    let other = harness.open().await;
    let listed = insist(async || other.list().await).await.expect("list works");
    assert_eq!(listed.into_iter().map(settled).collect::<Vec<_>>(), vec![seen.clone()]);
    assert_eq!(observed(&*other, place.id).await.map(settled), Some(seen));
    Verdict::Holds
}

pub async fn labels_are_kept_with_the_sandbox(harness: &dyn Harness) -> Verdict {
    let backend = harness.open().await;
    let mut place = harness.placement(Lifetime::Bound);
    place.labels.insert("owner".into(), "Ada: \"quoted\", 中文\n".into());
    made(&*backend, &place).await;
    let other = harness.open().await;
    let seen = observed(&*other, place.id).await.expect("the sandbox is there");
    assert_eq!(seen.labels, place.labels);
    Verdict::Holds
}

pub async fn a_sandbox_that_is_returned_is_ready_and_has_a_receipt(harness: &dyn Harness) -> Verdict {
    let backend = harness.open().await;
    let place = harness.placement(Lifetime::Bound);
    let seen = made(&*backend, &place).await;
    assert_eq!((seen.id, seen.lifetime, &seen.state), (place.id, Lifetime::Bound, &State::Ready));
    let receipt = seen.receipt.expect("a ready sandbox has a receipt");
    assert_eq!((receipt.sandbox, receipt.isolation), (place.id, place.isolation));
    assert!(
        receipt.contradictions.is_empty(),
        "handed out with contradictions: {:?}",
        receipt.contradictions
    );
    Verdict::Holds
}

pub async fn destroy_of_what_is_absent_succeeds(harness: &dyn Harness) -> Verdict {
    let backend = harness.open().await;
    destroyed(&*backend, harness.placement(Lifetime::Bound).id).await;
    Verdict::Holds
}

pub async fn destroy_leaves_nothing(harness: &dyn Harness) -> Verdict {
    let backend = harness.open().await;
    let mut lifetimes = vec![Lifetime::Bound];
    if backend.probe().await.capabilities.durable {
        lifetimes.push(Lifetime::Durable);
    }
    for lifetime in lifetimes {
        let place = harness.placement(lifetime);
        made(&*backend, &place).await;
        destroyed(&*backend, place.id).await;
        assert_eq!(observed(&*backend, place.id).await, None, "{lifetime:?}");
    }
    nothing_is_left(harness).await;
    Verdict::Holds
}

pub async fn destroy_twice_succeeds(harness: &dyn Harness) -> Verdict {
    let backend = harness.open().await;
    let place = harness.placement(Lifetime::Bound);
    made(&*backend, &place).await;
    let (first, second) = tokio::join!(
        insist(async || backend.destroy(place.id).await),
        insist(async || backend.destroy(place.id).await),
    );
    first.expect("one of two destroys at once works");
    second.expect("the other of two destroys at once works");
    destroyed(&*backend, place.id).await;
    nothing_is_left(harness).await;
    Verdict::Holds
}

pub async fn a_destroyed_id_can_be_made_again(harness: &dyn Harness) -> Verdict {
    let backend = harness.open().await;
    let mut place = harness.placement(Lifetime::Bound);
    made(&*backend, &place).await;
    destroyed(&*backend, place.id).await;
    place.env.insert("SECOND".into(), "1".into());
    made(&*backend, &place).await;
    Verdict::Holds
}

pub async fn gc_removes_only_what_is_nobodys(harness: &dyn Harness) -> Verdict {
    let keeper = harness.open().await;
    let bound = harness.placement(Lifetime::Bound);
    made(&*keeper, &bound).await;
    let mut kept = vec![bound.id];
    if keeper.probe().await.capabilities.durable {
        let durable = harness.placement(Lifetime::Durable);
        made(&*keeper, &durable).await;
        kept.push(durable.id);
    }
    let orphan = harness.placement(Lifetime::Bound);
    {
        let gone = harness.open().await;
        made(&*gone, &orphan).await;
    }
    eventually(harness, "the sandbox of a process that ended", async || !runs(&*keeper, orphan.id).await)
        .await;
    swept(&*keeper).await;
    assert_eq!(observed(&*keeper, orphan.id).await, None, "gc left an ended bound sandbox");
    for id in kept {
        assert!(runs(&*keeper, id).await, "gc removed {id}, which has an owner");
        destroyed(&*keeper, id).await;
    }
    swept(&*keeper).await;
    nothing_is_left(harness).await;
    Verdict::Holds
}

pub async fn a_dropped_ensure_leaves_nothing_half_made(harness: &dyn Harness) -> Verdict {
    let backend = harness.open().await;
    for polls in 0..24_usize {
        let place = harness.placement(Lifetime::Bound);
        {
            let mut making = std::pin::pin!(backend.ensure(&place));
            tokio::select! {
                biased;
                _ = &mut making => {}
                // The caller goes away after some polls, wherever the making is then.
                () = yields(polls) => {}
            }
        }
        eventually(harness, "what was half-made is whole or gone", async || {
            swept(&*backend).await;
            match observed(&*backend, place.id).await {
                None => true,
                Some(seen) => seen.state == State::Ready && seen.receipt.is_some(),
            }
        })
        .await;
        destroyed(&*backend, place.id).await;
    }
    eventually(harness, "gc after dropped calls leaves nothing", async || {
        swept(&*backend).await;
        harness.leftovers().await.is_empty()
    })
    .await;
    Verdict::Holds
}

async fn yields(times: usize) {
    for _ in 0..times {
        tokio::task::yield_now().await;
    }
}

pub async fn a_lost_answer_is_found_by_observing(harness: &dyn Harness) -> Verdict {
    let inner = harness.open().await;
    for mishap in [Mishap::Before, Mishap::After] {
        let place = harness.placement(Lifetime::Bound);
        let plan = [Call::Ensure, Call::Observe, Call::Destroy].map(|call| (call, 0, mishap));
        let backend = Faulty::new(inner.clone(), Plan::script(plan));

        let fault = backend.ensure(&place).await.expect_err("the plan says that it fails");
        assert_eq!(fault.kind(), Kind::Unavailable);
        let there = observed(&backend, place.id).await.is_some();
        assert!(there || mishap == Mishap::Before, "what happened was not observed");
        made(&backend, &place).await;

        backend.destroy(place.id).await.expect_err("the plan says that it fails");
        let there = observed(&backend, place.id).await.is_some();
        assert!(!there || mishap == Mishap::Before, "what was destroyed was observed");
        destroyed(&backend, place.id).await;
        assert_eq!(observed(&backend, place.id).await, None);
    }
    nothing_is_left(harness).await;
    Verdict::Holds
}
