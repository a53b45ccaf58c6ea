//! How long sandboxes live, and how they are reached while they do.

use std::io::Read;
use std::time::Duration;

use cubicle_model::{Kind, Lifetime, Limit};

use super::inside::Inside;
use super::{
    Harness, Verdict, destroyed, eventually, insist, made, nothing_is_left, observed, runs, settled, swept,
};
use crate::State;

pub async fn connect_works_often(harness: &dyn Harness) -> Verdict {
    let backend = harness.open().await;
    let place = harness.placement(Lifetime::Bound);
    made(&*backend, &place).await;
    let mut open = Vec::new();
    for round in 0..20 {
        let inside = Inside::new(harness, &backend, place.id).await;
        let word = format!("round-{round}");
        assert_eq!(inside.output(&["echo", &word]).await, format!("{word}\n"));
        // Every second connection stays open beside the later ones.
        if round % 2 == 0 {
            open.push(inside);
        }
    }
    Verdict::Holds
}

pub async fn connect_to_what_is_absent_is_not_found(harness: &dyn Harness) -> Verdict {
    let backend = harness.open().await;
    let id = harness.placement(Lifetime::Bound).id;
    let fault = insist(async || backend.connect(id).await).await.expect_err("there is nothing to connect to");
    assert_eq!(fault.kind(), Kind::NotFound, "{fault}");
    Verdict::Holds
}

pub async fn a_bound_sandbox_dies_with_its_owner(harness: &dyn Harness) -> Verdict {
    let other = harness.open().await;
    let place = harness.placement(Lifetime::Bound);
    {
        let owner = harness.open().await;
        made(&*owner, &place).await;
        assert!(runs(&*other, place.id).await);
    }
    eventually(harness, "the sandbox of a process that ended", async || !runs(&*other, place.id).await).await;
    swept(&*other).await;
    assert_eq!(observed(&*other, place.id).await, None);
    nothing_is_left(harness).await;
    Verdict::Holds
}

pub async fn a_durable_sandbox_outlives_its_maker(harness: &dyn Harness) -> Verdict {
    let maker = harness.open().await;
    if !maker.probe().await.capabilities.durable {
        return Verdict::Skipped("this backend keeps nothing".into());
    }
    let place = harness.placement(Lifetime::Durable);
    let seen = made(&*maker, &place).await;
    drop(maker);
    // Whatever a process takes with it when it ends is gone by then.
    harness.pass(Duration::from_millis(300)).await;

    let finder = harness.open().await;
    swept(&*finder).await;
    let listed = insist(async || finder.list().await).await.expect("list works");
    assert_eq!(listed.into_iter().map(settled).collect::<Vec<_>>(), vec![settled(seen)]);
    assert_eq!(
        Inside::new(harness, &finder, place.id).await.output(&["echo", "still here"]).await,
        "still here\n"
    );
    destroyed(&*finder, place.id).await;
    nothing_is_left(harness).await;
    Verdict::Holds
}

pub async fn a_deadline_ends_a_sandbox(harness: &dyn Harness) -> Verdict {
    let backend = harness.open().await;
    let mut place = harness.placement(Lifetime::Bound);
    place.limits.wall_seconds = Limit::asked(1);
    made(&*backend, &place).await;
    eventually(harness, "a sandbox past its deadline", async || !runs(&*backend, place.id).await).await;
    if let Some(seen) = observed(&*backend, place.id).await {
        assert_eq!(seen.state, State::Ended);
    }
    destroyed(&*backend, place.id).await;
    nothing_is_left(harness).await;
    Verdict::Holds
}

pub async fn a_journal_can_be_read_also_after_its_sandbox_ended(harness: &dyn Harness) -> Verdict {
    let backend = harness.open().await;
    // A bound sandbox that ends has nobody left who would read its journal.
    if !backend.probe().await.capabilities.durable {
        return Verdict::Skipped("this backend keeps nothing".into());
    }
    let mut place = harness.placement(Lifetime::Durable);
    place.limits.wall_seconds = Limit::asked(2);
    let whole = async || {
        let bytes = insist(async || backend.journal(place.id).await).await.expect("a journal can be read");
        bytes.map(|mut bytes| {
            let mut whole = Vec::new();
            bytes.read_to_end(&mut whole).expect("a journal has an end");
            whole
        })
    };
    assert_eq!(whole().await, None, "what is absent has no journal");
    made(&*backend, &place).await;
    Inside::new(harness, &backend, place.id).await.output(&["echo", "a line to keep"]).await;
    let alive = whole().await.expect("a living sandbox has a journal");
    assert!(
        alive.windows(14).any(|window| window == b"a line to keep"),
        "the journal lacks what was printed"
    );
    eventually(harness, "a sandbox past its deadline", async || !runs(&*backend, place.id).await).await;
    let ended = whole().await.expect("an ended sandbox still has its journal");
    assert!(ended.starts_with(&alive), "the end of a sandbox changed what was in its journal");
    destroyed(&*backend, place.id).await;
    assert_eq!(whole().await, None, "a destroyed sandbox has no journal");
    nothing_is_left(harness).await;
    Verdict::Holds
}

pub async fn an_owner_can_extend_the_deadline(harness: &dyn Harness) -> Verdict {
    let backend = harness.open().await;
    let mut place = harness.placement(Lifetime::Bound);
    place.limits.wall_seconds = Limit::asked(2);
    made(&*backend, &place).await;
    Inside::new(harness, &backend, place.id).await.set_deadline(3600).await;
    harness.pass(Duration::from_millis(2500)).await;
    assert!(runs(&*backend, place.id).await, "the sandbox ended at its first deadline");
    assert_eq!(Inside::new(harness, &backend, place.id).await.output(&["echo", "on"]).await, "on\n");
    Verdict::Holds
}
