//! Many sandboxes and many callers at the same time.

use std::sync::Arc;

use cubicle_backend::{Backend, State};
use cubicle_backend_local::LocalBackend;
use cubicle_model::{Kind, Lifetime, SandboxId};
use tokio::task::JoinSet;

use crate::harness::{Host, in_time, output, place};

/// Makes a sandbox in a task of its own, has it print its id, and leaves it there.
fn spawn_sandbox(tasks: &mut JoinSet<SandboxId>, backend: &Arc<LocalBackend>, lifetime: Lifetime) {
    let backend = Arc::clone(backend);
    tasks.spawn(async move {
        let place = place(lifetime);
        backend.ensure(&place).await.expect("a sandbox can be made");
        let id = place.id.to_string();
        assert_eq!(output(&backend.guest(place.id), &format!("echo {id}")).await, format!("{id}\n"));
        place.id
    });
}

async fn all(what: &str, mut tasks: JoinSet<SandboxId>) -> Vec<SandboxId> {
    let mut ids = Vec::new();
    while let Some(done) = in_time(what, tasks.join_next()).await {
        ids.push(done.expect("no task failed"));
    }
    ids
}

fn spawn_destroy(tasks: &mut JoinSet<SandboxId>, backend: &Arc<LocalBackend>, id: SandboxId) {
    let backend = Arc::clone(backend);
    tasks.spawn(async move {
        backend.destroy(id).await.expect("a sandbox can be destroyed");
        id
    });
}

#[tokio::test]
async fn a_hundred_sandboxes_are_made_and_destroyed_at_once() {
    let Some(host) = Host::with_sandboxes().await else { return };
    let backend = Arc::new(host.backend().await);
    let mut tasks = JoinSet::new();
    for _ in 0..100 {
        spawn_sandbox(&mut tasks, &backend, Lifetime::Bound);
    }
    let ids = all("a hundred sandboxes", tasks).await;
    let listed = backend.list().await.unwrap();
    assert_eq!(listed.iter().filter(|seen| seen.state == State::Ready).count(), 100);
    let mut tasks = JoinSet::new();
    for id in ids {
        spawn_destroy(&mut tasks, &backend, id);
    }
    all("the end of a hundred sandboxes", tasks).await;
    assert_eq!(backend.list().await.unwrap(), vec![]);
    host.is_clean_but_for(&[]).await;
}

#[tokio::test]
async fn two_backends_share_a_data_directory_and_see_each_others_sandboxes() {
    let Some(host) = Host::with_sandboxes().await else { return };
    let (one, other) = (Arc::new(host.backend().await), Arc::new(host.backend().await));
    let mut tasks = JoinSet::new();
    for _ in 0..10 {
        spawn_sandbox(&mut tasks, &one, Lifetime::Bound);
        spawn_sandbox(&mut tasks, &other, Lifetime::Durable);
    }
    let ids = all("sandboxes of two backends", tasks).await;
    assert_eq!(one.list().await.unwrap(), other.list().await.unwrap());
    // Each destroys all of them: what the other one made, and what the other one is destroying just then.
    let mut tasks = JoinSet::new();
    for id in ids {
        spawn_destroy(&mut tasks, &one, id);
        spawn_destroy(&mut tasks, &other, id);
    }
    all("the end of the sandboxes", tasks).await;
    host.is_clean_but_for(&[]).await;
}

#[tokio::test]
async fn one_id_that_is_asked_for_twice_at_once_is_one_sandbox() {
    let Some(host) = Host::with_sandboxes().await else { return };
    let (one, other) = (host.backend().await, host.backend().await);
    for round in 0..10 {
        let place = place(Lifetime::Bound);
        let results = tokio::join!(one.ensure(&place), one.ensure(&place), other.ensure(&place));
        for result in [results.0, results.1, results.2] {
            match result {
                Ok(seen) => assert_eq!(seen.id, place.id),
                // The outcome is unknown; whoever asks again gets the sandbox.
                Err(fault) => assert_eq!(fault.kind(), Kind::Unavailable, "round {round}: {fault}"),
            }
        }
        assert_eq!(one.ensure(&place).await.unwrap().state, State::Ready);
        assert_eq!(one.list().await.unwrap().len(), 1, "round {round}");
        one.destroy(place.id).await.unwrap();
    }
    host.is_clean_but_for(&[]).await;
}

#[tokio::test]
async fn a_sandbox_that_is_destroyed_while_it_is_made_does_not_appear_later() {
    let Some(host) = Host::with_sandboxes().await else { return };
    let backend = host.backend().await;
    for _ in 0..10 {
        let place = place(Lifetime::Bound);
        let (made, destroyed) = tokio::join!(backend.ensure(&place), backend.destroy(place.id));
        destroyed.unwrap();
        if made.is_ok() {
            backend.destroy(place.id).await.unwrap();
        }
    }
    host.is_clean_but_for(&[]).await;
}

#[tokio::test]
async fn sweeps_take_nothing_from_sandboxes_that_are_being_made_and_used() {
    let Some(host) = Host::with_sandboxes().await else { return };
    let (user, sweeper) = (Arc::new(host.backend().await), host.backend().await);
    let mut tasks = JoinSet::new();
    for _ in 0..30 {
        spawn_sandbox(&mut tasks, &user, Lifetime::Bound);
    }
    let sweeping = async {
        loop {
            sweeper.gc().await.expect("gc works");
            tokio::task::yield_now().await;
        }
    };
    let ids = tokio::select! {
        ids = all("sandboxes under sweeps", tasks) => ids,
        () = sweeping => Vec::new(),
    };
    sweeper.gc().await.unwrap();
    for id in ids {
        assert_eq!(output(&user.guest(id), "echo on").await, "on\n", "a sweep took {id}");
        user.destroy(id).await.unwrap();
    }
    host.is_clean_but_for(&[]).await;
}
