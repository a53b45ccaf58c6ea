//! Execs: begun once, counted, and ended once.

use cubicle_model::audit::Entry;
use cubicle_model::lease::LeaseEnd;
use cubicle_model::{ExecId, Exit, Kind, Lease, LeaseStatus, Quota, Sandbox};
use cubicle_store::{
    Actor, AfterLease, AuditFilter, Begun, Context, Ended, Exec, ExecFilter, Finished, Untold,
};
use serde_json::json;

use crate::world::{World, at_once, bits, kind, name, page};

fn exec(world: &World, lease: &Lease, sandbox: &Sandbox) -> Exec {
    Exec {
        id: ExecId::from_random(bits()),
        sandbox: sandbox.id,
        lease: lease.id,
        tenant: lease.tenant.clone(),
        user: lease.user.clone(),
        fingerprint: "f".into(),
        command: json!(["echo", "päckchen \u{0} \"'?1"]),
        created_at: world.now(),
        ended: None,
        refused: None,
    }
}

pub(crate) async fn an_exec_is_begun_once_also_when_raced(world: World) {
    let (lease, sandbox) = world.leased(world.ask("acme")).await;
    let asked = exec(&world, &lease, &sandbox);
    let second = world.another_server().await;
    let outcomes = at_once((0..40).map(|number| {
        let at = if number % 2 == 0 { &world } else { &second };
        let (store, context, asked) = (at.store.clone(), at.context(), asked.clone());
        async move { store.begin_exec(context, asked).await.unwrap() }
    }))
    .await;
    assert_eq!(outcomes.iter().filter(|begun| **begun == Begun::New).count(), 1);
    for begun in outcomes {
        assert!(begun == Begun::New || begun == Begun::Repeated(asked.clone()));
    }
    assert_eq!(world.store.exec(asked.id).await.unwrap(), Some(asked.clone()));
    assert_eq!(world.store.running_execs(world.node).await.unwrap(), std::slice::from_ref(&asked));
    let untold = Untold { begun: vec![(asked.id, name("acme"))], finished: Vec::new() };
    for at in [&world, &second] {
        at.store.tell_execs(at.context(), untold.clone()).await.unwrap();
    }
    let told = world.store.events(name("acme"), Some(asked.id.to_string()), 0, 10).await.unwrap();
    assert_eq!(told.len(), 1);
}

pub(crate) async fn an_exec_id_for_something_else_is_refused(world: World) {
    let (lease, sandbox) = world.leased(world.ask("acme")).await;
    let asked = exec(&world, &lease, &sandbox);
    world.store.begin_exec(world.context(), asked.clone()).await.unwrap();
    let other = Exec { fingerprint: "another".into(), ..asked.clone() };
    assert_eq!(kind(world.store.begin_exec(world.context(), other).await), Kind::Conflict);
    let (_, elsewhere) = world.leased(world.ask("acme")).await;
    let other = Exec { sandbox: elsewhere.id, ..asked.clone() };
    assert_eq!(kind(world.store.begin_exec(world.context(), other).await), Kind::Conflict);

    // Neither a lease of another tenant nor another sandbox can be named.
    world.tenant("other", Quota::default(), 1).await;
    let foreign = Exec { id: ExecId::from_random(bits()), tenant: name("other"), ..asked.clone() };
    assert_eq!(kind(world.store.begin_exec(world.context(), foreign).await), Kind::NotFound);
    let elsewhere = Exec { id: ExecId::from_random(bits()), sandbox: elsewhere.id, ..asked };
    assert_eq!(kind(world.store.begin_exec(world.context(), elsewhere).await), Kind::NotFound);
}

pub(crate) async fn no_exec_begins_when_the_lease_is_over(world: World) {
    let (lease, sandbox) = world.leased(world.ask("acme")).await;
    let begun = exec(&world, &lease, &sandbox);
    world.store.begin_exec(world.context(), begun.clone()).await.unwrap();
    world.pass(60);
    let late = exec(&world, &lease, &sandbox);
    assert_eq!(kind(world.store.begin_exec(world.context(), late).await), Kind::Conflict, "its time is over");
    let (lease, sandbox) = world.leased(world.ask("acme")).await;
    world.store.end_lease(world.context(), lease.id, LeaseEnd::Released, AfterLease::Destroy).await.unwrap();
    let late = exec(&world, &lease, &sandbox);
    assert_eq!(kind(world.store.begin_exec(world.context(), late.clone()).await), Kind::Conflict);
    assert_eq!(world.store.exec(late.id).await.unwrap(), None);
    // What began before is still answered.
    let again = world.store.begin_exec(world.context(), begun.clone()).await.unwrap();
    assert_eq!(again, Begun::Repeated(begun));
}

pub(crate) async fn the_quota_of_execs_holds_when_raced(world: World) {
    world.tenant("small", Quota { execs: Some(3), ..Quota::default() }, 1).await;
    let (lease, sandbox) = world.leased(world.ask("small")).await;
    let begin = || {
        let (store, context, asked) = (world.store.clone(), world.context(), exec(&world, &lease, &sandbox));
        async move { store.begin_exec(context, asked).await }
    };
    let outcomes = at_once((0..20).map(|_| begin())).await;
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 3);
    for refused in outcomes.into_iter().filter(Result::is_err) {
        assert_eq!(kind(refused), Kind::Full);
    }
    assert_eq!(world.store.usage(name("small")).await.unwrap().execs, 3);
    let one = world.store.running_execs(world.node).await.unwrap().remove(0);
    let ended =
        Ended { at: world.now(), exit: Exit::Code(0), stdout_bytes: 1, stderr_bytes: 2, duration_us: 3 };
    world.store.end_exec(world.context(), one.id, ended).await.unwrap();
    begin().await.unwrap();
    assert_eq!(kind(begin().await), Kind::Full);
}

pub(crate) async fn the_first_report_of_an_end_counts(world: World) {
    let (lease, sandbox) = world.leased(world.ask("acme")).await;
    let asked = exec(&world, &lease, &sandbox);
    world.store.begin_exec(world.context(), asked.clone()).await.unwrap();
    let exits = [Exit::Code(3), Exit::Signal(9), Exit::Oom, Exit::TimedOut, Exit::Unknown];
    let ended = |exit| Ended {
        at: world.now(),
        exit,
        stdout_bytes: u32::MAX.into(),
        stderr_bytes: 0,
        duration_us: 7,
    };
    at_once(exits.map(|exit| {
        let (store, context, ended) = (world.store.clone(), world.context(), ended(exit));
        async move { store.end_exec(context, asked.id, ended).await.unwrap() }
    }))
    .await;
    let kept = world.store.exec(asked.id).await.unwrap().unwrap().ended.unwrap();
    assert_eq!(kept, ended(kept.exit));
    world.store.end_exec(world.context(), asked.id, ended(Exit::Code(100))).await.unwrap();
    assert_eq!(world.store.exec(asked.id).await.unwrap().unwrap().ended, Some(kept));
    let told = world.store.events(name("acme"), Some(asked.id.to_string()), 0, 10).await.unwrap();
    let kinds: Vec<_> = told.iter().map(|event| event.kind.as_str()).collect();
    assert_eq!(kinds, ["exec.started", "exec.ended"]);
    let running = |running| {
        let filter =
            ExecFilter { running: Some(running), sandbox: Some(sandbox.id), tenant: Some(name("acme")) };
        world.store.execs(filter, page(10))
    };
    assert!(running(true).await.unwrap().is_empty());
    assert_eq!(running(false).await.unwrap().len(), 1);
    assert!(world.store.running_execs(world.node).await.unwrap().is_empty());
    // Nobody knows it: nothing to note, and no failure.
    world.store.end_exec(world.context(), ExecId::from_random(bits()), ended(Exit::Oom)).await.unwrap();
}

pub(crate) async fn an_exec_is_told_of_once_by_whoever_asked_for_it(world: World) {
    let (lease, sandbox) = world.leased(world.ask("acme")).await;
    let (short, long) = (exec(&world, &lease, &sandbox), exec(&world, &lease, &sandbox));
    let ada = Context { actor: Actor { name: "ada".into(), ..world.context().actor }, ..world.context() };
    for begun in [&short, &long] {
        world.store.begin_exec(ada.clone(), begun.clone()).await.unwrap();
    }
    let asked_at = world.now();
    world.pass(5);
    let ended =
        Ended { at: world.now(), exit: Exit::Code(0), stdout_bytes: 1, stderr_bytes: 2, duration_us: 3 };
    let finished = Finished { exec: short.id, tenant: name("acme"), ended, lease: Some(lease.id) };
    let untold = Untold { begun: vec![(long.id, name("acme"))], finished: vec![finished] };
    for round in 0..2 {
        let released = world.store.tell_execs(world.context(), untold.clone()).await.unwrap();
        assert_eq!(released.iter().map(|one| one.just_now).collect::<Vec<_>>(), [round == 0]);
    }
    let kinds = async |id: ExecId| {
        let told = world.store.events(name("acme"), Some(id.to_string()), 0, 10).await.unwrap();
        told.into_iter().map(|event| event.kind).collect::<Vec<_>>()
    };
    assert_eq!(kinds(short.id).await, ["exec.started", "exec.ended"]);
    assert_eq!(kinds(long.id).await, ["exec.started"]);
    for id in [short.id, long.id] {
        let filter = AuditFilter { subject: Some(id.to_string()), ..AuditFilter::default() };
        let lines = world.store.audit(filter, page(10)).await.unwrap();
        let line = |entry: &Entry| (entry.deed.actor.clone(), entry.deed.action.clone(), entry.deed.time);
        assert_eq!(
            lines.iter().map(line).collect::<Vec<_>>(),
            [("ada".to_owned(), "exec.create".to_owned(), asked_at)]
        );
    }
    assert_eq!(world.store.lease(lease.id).await.unwrap().unwrap().status, LeaseStatus::Released);
}

pub(crate) async fn an_exec_that_was_refused_says_why_and_counts_as_ended(world: World) {
    let (lease, sandbox) = world.leased(world.ask("acme")).await;
    let asked = exec(&world, &lease, &sandbox);
    world.store.begin_exec(world.context(), asked.clone()).await.unwrap();
    world.store.refuse_exec(world.context(), asked.id, "no such program".into()).await.unwrap();
    world.store.refuse_exec(world.context(), asked.id, "another reason".into()).await.unwrap();
    let kept = world.store.exec(asked.id).await.unwrap().unwrap();
    assert_eq!(kept.refused.as_deref(), Some("no such program"));
    assert_eq!(kept.ended.map(|ended| ended.exit), Some(Exit::NotStarted));
    assert!(world.store.running_execs(world.node).await.unwrap().is_empty());

    let ran = exec(&world, &lease, &sandbox);
    world.store.begin_exec(world.context(), ran.clone()).await.unwrap();
    let ended =
        Ended { at: world.now(), exit: Exit::Code(0), stdout_bytes: 0, stderr_bytes: 0, duration_us: 7 };
    world.store.end_exec(world.context(), ran.id, ended).await.unwrap();
    world.store.refuse_exec(world.context(), ran.id, "too late".into()).await.unwrap();
    let kept = world.store.exec(ran.id).await.unwrap().unwrap();
    assert_eq!((kept.refused, kept.ended), (None, Some(ended)), "what ran was not refused");
}
