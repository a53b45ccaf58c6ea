//! Tasks: what is waiting, who is next, and what came of it.

use std::collections::BTreeSet;

use cubicle_model::task::TaskStatus;
use cubicle_model::{ExecId, Isolation, Kind, LeaseId, Quota, SandboxId, TaskId, Timestamp};
use cubicle_store::{CreatedTask, NewTask, Page, Task, TaskEnd, TaskFilter, TaskPlace};
use serde_json::json;

use crate::world::{World, at_once, bits, kind, name, page, user};

fn new(tenant: &str, conversation: &str) -> NewTask {
    NewTask {
        id: TaskId::from_random(bits()),
        tenant: name(tenant),
        owner: user("ada"),
        conversation_id: conversation.into(),
        interface_type: "api".into(),
        user_name: Some("Ada".into()),
        model: "claude".into(),
        task_description: "Analyse spending.csv".into(),
        context_files: vec!["data/spending.csv".into()],
        missing_context_files: vec!["data/nowhere.csv".into()],
        timeout_minutes: 30,
        save_to_shared: false,
        options: json!({ "max_turns": 3 }),
        notify_url: None,
        retry_of: None,
        attempt: 1,
        longest_queue: 1000,
        once: None,
    }
}

fn end(status: TaskStatus) -> TaskEnd {
    TaskEnd {
        status,
        exit_code: Some(0),
        output_files: json!([{ "name": "a.py", "size": 3, "type": "text/x-python" }]),
        saved_files: Vec::new(),
        summary: Some("done".into()),
        error_message: None,
        usage: Some(json!({ "input_tokens": 1 })),
    }
}

async fn created(world: &World, new: NewTask) -> Task {
    match world.store.create_task(world.context(), new).await.unwrap() {
        CreatedTask::New(task) => task,
        CreatedTask::Again(task) => panic!("made before: {task:?}"),
    }
}

async fn submitted(world: &World, most: u64) -> Option<Task> {
    world.store.submit_next_task(world.context(), most, ExecId::from_random(bits())).await.unwrap()
}

async fn started(world: &World, id: TaskId) -> Option<Task> {
    world.store.start_task(world.context(), id, world.now()).await.unwrap()
}

async fn finished(world: &World, id: TaskId, status: TaskStatus) -> bool {
    world.store.finish_task(world.context(), id, end(status)).await.unwrap().just_now
}

/// A task of a conversation that ran and ended so.
async fn ran(world: &World, conversation: &str, status: TaskStatus) {
    let task = created(world, new("acme", conversation)).await;
    submitted(world, 100).await.unwrap();
    started(world, task.id).await.unwrap();
    world.pass(1);
    assert!(finished(world, task.id, status).await);
}

async fn kinds(world: &World, subject: Option<TaskId>) -> Vec<String> {
    let subject = subject.map(|id| id.to_string());
    let events = world.store.events(name("acme"), subject, 0, 1000).await.unwrap();
    events.into_iter().map(|event| event.kind).collect()
}

pub(crate) async fn a_task_goes_from_pending_to_its_end_and_is_told_of(world: World) {
    let World { store, .. } = &world;
    let asked = new("acme", "c1");
    let task = created(&world, asked.clone()).await;
    assert_eq!((task.id, task.status, task.attempt), (asked.id, TaskStatus::Pending, 1));
    assert_eq!((task.created_at, task.updated_at, task.exec), (world.now(), None, None));
    assert_eq!(task.context_files, asked.context_files);
    assert_eq!(task.missing_context_files, asked.missing_context_files);
    assert_eq!((&task.options, task.user_name.as_deref()), (&asked.options, Some("Ada")));
    assert_eq!(store.task_position(world.node, task.id).await.unwrap(), Some(1));
    assert!(started(&world, task.id).await.is_some_and(|task| task.status == TaskStatus::Running));
    let other = created(&world, new("acme", "c1")).await;

    world.pass(2);
    let exec = ExecId::from_random(bits());
    let next = store.submit_next_task(world.context(), 3, exec).await.unwrap().unwrap();
    assert_eq!((next.id, next.status, next.exec), (other.id, TaskStatus::Submitted, Some(exec)));
    assert_eq!(next.job_name, Some(format!("ai-worker-{}", other.id)));
    assert_eq!(store.task_position(world.node, other.id).await.unwrap(), None);
    let place = TaskPlace {
        lease: LeaseId::from_random(bits()),
        sandbox: SandboxId::from_random(bits()),
        isolation: Isolation::Namespaces,
    };
    store.place_task(world.context(), other.id, place).await.unwrap();
    let deadline = Timestamp::from_millisecond(world.now().as_millisecond() + 60_000).unwrap();
    store.start_task(world.context(), other.id, deadline).await.unwrap().unwrap();
    assert_eq!(started(&world, other.id).await, None, "it was noted before");
    assert!(
        !store.renew_task_exec(world.context(), other.id, ExecId::from_random(bits()), exec).await.unwrap()
    );
    assert_eq!(store.active_tasks(world.node).await.unwrap().len(), 2);
    assert_eq!(store.running_tasks_count().await.unwrap(), 2);

    world.pass(7);
    let ended = store.finish_task(world.context(), other.id, end(TaskStatus::Success)).await.unwrap();
    assert!(ended.just_now);
    let task = store.task(other.id).await.unwrap().unwrap();
    assert_eq!(task, ended.task);
    assert_eq!((task.lease, task.sandbox), (Some(place.lease), Some(place.sandbox)));
    assert_eq!((task.isolation, task.deadline), (Some(Isolation::Namespaces), Some(deadline)));
    assert_eq!((task.duration_seconds, task.exit_code), (Some(7), Some(0)));
    assert_eq!((task.completed_at, task.updated_at), (Some(world.now()), Some(world.now())));
    assert_eq!((task.summary.as_deref(), &task.error_message), (Some("done"), &None));
    assert_eq!(
        (task.usage, task.output_files),
        (end(task.status).usage, Some(end(task.status).output_files))
    );
    assert_eq!(
        kinds(&world, Some(other.id)).await,
        ["task.pending", "task.submitted", "task.running", "worker_completed"]
    );
    let events = store.events(name("acme"), Some(other.id.to_string()), 0, 10).await.unwrap();
    let told = events.last().unwrap();
    assert_eq!(told.id, task.event);
    for (key, value) in [
        ("event_type", json!("worker_completed")),
        ("source", json!("kubernetes")),
        ("task_id", json!(other.id)),
        ("status", json!("success")),
    ] {
        assert_eq!(told.data[key], value, "{key}");
    }
}

pub(crate) async fn a_task_is_made_once_under_its_idempotency_key_also_when_raced(world: World) {
    let second = world.another_server().await;
    let once = |print: &str| Some(("key".to_owned(), print.to_owned()));
    let outcomes = at_once((0..10).map(|number: usize| {
        let at = if number.is_multiple_of(2) { &world } else { &second };
        let (store, context) = (at.store.clone(), at.context());
        let asked = NewTask { once: once("f"), ..new("acme", "c") };
        async move { store.create_task(context, asked).await }
    }))
    .await;
    let ids: BTreeSet<TaskId> = outcomes
        .into_iter()
        .map(|outcome| match outcome.unwrap() {
            CreatedTask::New(task) | CreatedTask::Again(task) => task.id,
        })
        .collect();
    assert_eq!(ids.len(), 1);
    let other = NewTask { once: once("another"), ..new("acme", "c") };
    assert_eq!(kind(world.store.create_task(world.context(), other).await), Kind::Conflict);
    assert_eq!(world.store.tasks(TaskFilter::default(), page(10)).await.unwrap().len(), 1);
}

pub(crate) async fn what_has_ended_stays_as_it_ended(world: World) {
    for last in TaskStatus::ALL.into_iter().filter(|status| status.has_ended()) {
        let task = created(&world, new("acme", "c")).await;
        started(&world, task.id).await.unwrap();
        assert!(finished(&world, task.id, last).await);
        let before = world.store.task(task.id).await.unwrap();
        world.pass(1);
        for later in TaskStatus::ALL.into_iter().filter(|status| status.has_ended()) {
            assert!(!finished(&world, task.id, later).await);
        }
        assert_eq!(started(&world, task.id).await, None);
        assert!(!world.store.cancel_task(world.context(), task.id).await.unwrap().just_now);
        world.store.worker_said(world.context(), task.id, json!({ "late": true })).await.unwrap();
        assert_eq!(world.store.task(task.id).await.unwrap(), before);
        let ends = kinds(&world, Some(task.id)).await.into_iter().filter(|kind| kind == "worker_completed");
        assert_eq!(ends.count(), 1);
    }
    let waiting = created(&world, new("acme", "c")).await;
    assert!(!finished(&world, waiting.id, TaskStatus::Success).await, "nobody has worked on it");
    let running = world.store.finish_task(world.context(), waiting.id, end(TaskStatus::Running)).await;
    assert_eq!(kind(running), Kind::Internal);
    let nobody = TaskId::from_random(bits());
    let unknown = world.store.finish_task(world.context(), nobody, end(TaskStatus::Failed)).await;
    assert_eq!(kind(unknown), Kind::NotFound);
}

pub(crate) async fn a_waiting_task_is_cancelled_at_once_and_a_running_one_is_asked(world: World) {
    let World { store, .. } = &world;
    let waiting = created(&world, new("acme", "c")).await;
    let cancelled = store.cancel_task(world.context(), waiting.id).await.unwrap();
    assert!(cancelled.just_now);
    assert_eq!(cancelled.task.status, TaskStatus::Cancelled);
    assert_eq!(submitted(&world, 3).await, None);

    let running = created(&world, new("acme", "c")).await;
    submitted(&world, 3).await.unwrap();
    started(&world, running.id).await.unwrap();
    let asked = store.cancel_task(world.context(), running.id).await.unwrap();
    assert!(!asked.just_now);
    assert_eq!((asked.task.status, asked.task.cancelled_at), (TaskStatus::Running, Some(world.now())));
    world.pass(1);
    store.cancel_task(world.context(), running.id).await.unwrap();
    let task = store.task(running.id).await.unwrap().unwrap();
    assert_eq!(task.cancelled_at, asked.task.cancelled_at, "the first one counts");
    assert!(finished(&world, running.id, TaskStatus::Cancelled).await);
    assert_eq!(kind(store.cancel_task(world.context(), TaskId::from_random(bits())).await), Kind::NotFound);
}

pub(crate) async fn workers_are_shared_fairly_between_conversations(world: World) {
    world.tenant("other", Quota::default(), 1).await;
    let mut tasks = Vec::new();
    // Another tenant's conversation of the same name is another one.
    for (tenant, conversation) in
        [("acme", "a"), ("acme", "a"), ("acme", "a"), ("acme", "b"), ("other", "a"), ("acme", "b")]
    {
        tasks.push(created(&world, new(tenant, conversation)).await.id);
    }
    let mut positions = Vec::new();
    for task in &tasks {
        positions.push(world.store.task_position(world.node, *task).await.unwrap().unwrap());
    }
    assert_eq!(positions, [1, 4, 6, 2, 3, 5]);
    let mut order = Vec::new();
    while let Some(task) = submitted(&world, 100).await {
        order.push(tasks.iter().position(|id| *id == task.id).unwrap());
    }
    assert_eq!(order, [0, 3, 4, 1, 5, 2]);
}

pub(crate) async fn racing_schedulers_never_exceed_the_workers_and_start_each_task_once(world: World) {
    for number in 0..12 {
        created(&world, new("acme", &format!("c{}", number % 3))).await;
    }
    let again = world.same_node_again().await;
    let outcomes = at_once((0..16).map(|number: usize| {
        let at = if number.is_multiple_of(2) { &world } else { &again };
        let (store, context) = (at.store.clone(), at.context());
        async move { store.submit_next_task(context, 5, ExecId::from_random(bits())).await.unwrap() }
    }))
    .await;
    let started: Vec<TaskId> = outcomes.into_iter().flatten().map(|task| task.id).collect();
    assert_eq!((started.len(), started.iter().collect::<BTreeSet<_>>().len()), (5, 5));
    assert_eq!(world.store.count_tasks(world.node).await.unwrap(), (7, 5));
    for id in started {
        assert!(finished(&world, id, TaskStatus::Failed).await);
    }
    assert_eq!(world.store.count_tasks(world.node).await.unwrap(), (7, 0));
}

pub(crate) async fn a_queue_of_tasks_has_an_end(world: World) {
    let asked = || NewTask { longest_queue: 2, once: Some(("k".into(), "f".into())), ..new("acme", "c") };
    created(&world, NewTask { once: None, ..asked() }).await;
    created(&world, NewTask { once: None, ..asked() }).await;
    assert_eq!(kind(world.store.create_task(world.context(), asked()).await), Kind::Full);
    submitted(&world, 1).await.unwrap();
    created(&world, asked()).await;
}

pub(crate) async fn tasks_are_listed_by_conversation_and_status_newest_first(world: World) {
    let World { store, .. } = &world;
    world.tenant("other", Quota::default(), 1).await;
    created(&world, new("other", "a")).await;
    let mut expected = Vec::new();
    for number in 0..7 {
        let conversation = if number == 3 { "b" } else { "a" };
        expected.insert(0, created(&world, new("acme", conversation)).await.id);
    }
    let filter = TaskFilter { tenant: Some(name("acme")), ..TaskFilter::default() };
    let ids = |tasks: Vec<Task>| tasks.into_iter().map(|task| task.id).collect::<Vec<_>>();
    assert_eq!(ids(store.tasks(filter.clone(), page(100)).await.unwrap()), expected);
    let of_b = TaskFilter { conversation: Some("b".into()), ..filter.clone() };
    assert_eq!(ids(store.tasks(of_b, page(100)).await.unwrap()), [expected[3]]);
    let of_bob = TaskFilter { owner: Some(user("bob")), ..filter.clone() };
    assert!(store.tasks(of_bob, page(100)).await.unwrap().is_empty());
    store.cancel_task(world.context(), expected[1]).await.unwrap();
    let cancelled = TaskFilter { status: Some(TaskStatus::Cancelled), ..filter.clone() };
    assert_eq!(ids(store.tasks(cancelled, page(100)).await.unwrap()), [expected[1]]);

    let mut seen = Vec::new();
    let mut next = page(3);
    loop {
        let mut part = store.tasks(filter.clone(), next.clone()).await.unwrap();
        let more = part.len() > 3;
        part.truncate(3);
        next.after = part.last().map(|task| task.number.to_string());
        seen.extend(ids(part));
        if !more {
            break;
        }
    }
    assert_eq!(seen, expected);
    let nonsense = Page { after: Some("nonsense".into()), limit: 3 };
    assert_eq!(kind(store.tasks(filter, nonsense).await), Kind::Invalid);
}

pub(crate) async fn the_first_word_of_a_worker_is_kept(world: World) {
    let World { store, .. } = &world;
    let task = created(&world, new("acme", "c")).await;
    let first = store.worker_said(world.context(), task.id, json!({ "status": "success" })).await.unwrap();
    let second = store.worker_said(world.context(), task.id, json!({ "status": "failed" })).await.unwrap();
    assert_eq!((first.event, second.event), (task.event, task.event));
    assert_eq!(second.said, Some(json!({ "status": "success" })));
    assert_eq!(second.status, TaskStatus::Pending, "an end is observed, and not told");
    assert_eq!(
        kind(store.worker_said(world.context(), TaskId::from_random(bits()), json!({})).await),
        Kind::NotFound
    );
}

pub(crate) async fn failures_in_a_row_are_told_of_once(world: World) {
    let alerts = async || kinds(&world, None).await.iter().filter(|kind| *kind == "worker_failing").count();
    ran(&world, "a", TaskStatus::Failed).await;
    ran(&world, "b", TaskStatus::Failed).await;
    ran(&world, "a", TaskStatus::Timeout).await;
    assert_eq!(alerts().await, 0);
    ran(&world, "a", TaskStatus::Cancelled).await;
    ran(&world, "a", TaskStatus::Failed).await;
    assert_eq!(alerts().await, 1, "nobody failed by a cancellation");
    ran(&world, "a", TaskStatus::Failed).await;
    assert_eq!(alerts().await, 1);
    ran(&world, "a", TaskStatus::Success).await;
    for _ in 0..3 {
        ran(&world, "a", TaskStatus::Failed).await;
    }
    assert_eq!(alerts().await, 2);
}

pub(crate) async fn old_tasks_are_forgotten_and_active_ones_never(world: World) {
    let World { store, .. } = &world;
    let (old, running) = (created(&world, new("acme", "c")).await, created(&world, new("acme", "c")).await);
    let waiting = created(&world, new("acme", "c")).await;
    for task in [&old, &running] {
        started(&world, task.id).await.unwrap();
    }
    assert!(finished(&world, old.id, TaskStatus::Success).await);
    world.pass(100);
    let young = created(&world, new("acme", "c")).await;
    store.cancel_task(world.context(), young.id).await.unwrap();
    let before = Timestamp::from_millisecond(world.now().as_millisecond() - 50_000).unwrap();
    let found = store.old_tasks(world.node, before, 10).await.unwrap();
    assert_eq!(found, [(name("acme"), old.id)]);
    let all = vec![old.id, running.id, waiting.id, TaskId::from_random(bits())];
    assert_eq!(store.known_tasks(all.clone()).await.unwrap(), all[..3]);
    assert_eq!(store.forget_tasks(all).await.unwrap(), 1);
    assert_eq!(store.task(old.id).await.unwrap(), None);
    assert_eq!(store.tasks(TaskFilter::default(), page(10)).await.unwrap().len(), 3);
}

pub(crate) async fn tasks_of_another_node_are_its_own(world: World) {
    let second = world.another_server().await;
    let theirs = created(&second, new("acme", "c")).await;
    assert_eq!(submitted(&world, 10).await, None);
    assert_eq!(world.store.task_position(world.node, theirs.id).await.unwrap(), None);
    let own = created(&world, new("acme", "c")).await;
    assert_eq!(world.store.task_position(world.node, own.id).await.unwrap(), Some(1));
    assert_eq!(submitted(&second, 10).await.unwrap().id, theirs.id);
    assert_eq!(world.store.count_tasks(world.node).await.unwrap(), (1, 0));
    assert!(world.store.old_tasks(world.node, world.now(), 10).await.unwrap().is_empty());
}
