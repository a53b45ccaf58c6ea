//! Receivers, and what they are told.

use std::collections::BTreeSet;
use std::time::Duration;

use cubicle_model::webhook::{DeliveryState, EventType, Next};
use cubicle_model::{DeliveryId, Kind, NodeId, Quota, TaskId, WebhookId};
use cubicle_store::{
    Attempt, AuditFilter, Claimed, Delivery, DeliveryFilter, EndpointChange, Heard, Listener, NewEndpoint,
};

use crate::world::{World, at_once, bits, kind, name, page};

const COMPLETED: EventType = EventType::WorkerCompleted;
const LASTING: Duration = Duration::from_secs(30);

fn endpoint(tenant: &str, url: &str) -> NewEndpoint {
    NewEndpoint {
        id: WebhookId::from_random(bits()),
        tenant: name(tenant),
        url: url.into(),
        events: vec![COMPLETED],
        description: String::new(),
        enabled: true,
        sealed: "sealed words".into(),
    }
}

async fn registered(world: &World, tenant: &str, url: &str) -> WebhookId {
    let made = world.store.create_endpoint(world.context(), endpoint(tenant, url)).await;
    made.unwrap().id
}

async fn task(world: &World, tenant: &str, notify_url: Option<&str>) -> TaskId {
    let task = TaskId::from_random(bits());
    let listener = Listener {
        task,
        tenant: name(tenant),
        conversation: format!("talk of {tenant}"),
        notify_url: notify_url.map(str::to_owned),
    };
    world.store.listen_for_task(world.now(), listener).await.unwrap();
    task
}

async fn completed(world: &World, task: TaskId, status: &str) -> Heard {
    let body = format!("{{\"task_id\": \"{task}\"}}");
    world.store.worker_completed(world.context(), task, COMPLETED, status.into(), body).await.unwrap()
}

async fn all(world: &World, tenant: &str) -> Vec<Delivery> {
    let filter = DeliveryFilter { tenant: Some(name(tenant)), ..DeliveryFilter::default() };
    world.store.deliveries(filter, page(100)).await.unwrap()
}

async fn claim(world: &World) -> Vec<Claimed> {
    world.store.claim_deliveries(world.node, world.now(), 100, 100, LASTING).await.unwrap()
}

fn answer(world: &World, status: u64) -> Attempt {
    let took = Duration::from_millis(12);
    Attempt {
        number: 0,
        time: world.now(),
        took,
        status: Some(status),
        error: None,
        answer: Some("é".into()),
    }
}

pub(crate) async fn an_endpoint_is_registered_changed_and_removed(world: World) {
    let World { store, .. } = &world;
    world.tenant("other", Quota::default(), 1).await;
    let made = store.create_endpoint(world.context(), endpoint("acme", "https://a.example/")).await.unwrap();
    assert_eq!((made.created_at, made.created_by.as_str(), made.enabled), (world.now(), "system", true));
    assert_eq!(store.endpoint(name("acme"), made.id).await.unwrap().as_ref(), Some(&made));
    assert_eq!(store.endpoint(name("other"), made.id).await.unwrap(), None);
    assert!(store.endpoints(name("other"), page(10)).await.unwrap().is_empty());

    world.pass(5);
    let off = EndpointChange { enabled: Some(false), ..EndpointChange::default() };
    let elsewhere = store.change_endpoint(world.context(), name("other"), made.id, off.clone()).await;
    assert_eq!(kind(elsewhere), Kind::NotFound);
    let changed = store.change_endpoint(world.context(), name("acme"), made.id, off.clone()).await.unwrap();
    assert_eq!(
        (changed.enabled, changed.updated_at, changed.url.as_str()),
        (false, world.now(), "https://a.example/")
    );
    world.pass(5);
    let same = store.change_endpoint(world.context(), name("acme"), made.id, off).await.unwrap();
    assert_eq!(same, changed, "what is so already is not written again");

    let stale = store.reseal_endpoint(made.id, "other words".into(), "anew".into()).await.unwrap();
    let resealed = store.reseal_endpoint(made.id, "sealed words".into(), "anew".into()).await.unwrap();
    assert_eq!((stale, resealed), (false, true));
    assert_eq!(store.sealed_endpoints().await.unwrap()[0].sealed, "anew");

    assert_eq!(kind(store.delete_endpoint(world.context(), name("other"), made.id).await), Kind::NotFound);
    store.delete_endpoint(world.context(), name("acme"), made.id).await.unwrap();
    assert_eq!(kind(store.delete_endpoint(world.context(), name("acme"), made.id).await), Kind::NotFound);
    let kinds: Vec<_> =
        store.events(name("acme"), None, 0, 10).await.unwrap().into_iter().map(|event| event.kind).collect();
    assert_eq!(kinds, ["webhook.created", "webhook.changed", "webhook.removed"]);
    let filter = AuditFilter { subject: Some(made.id.to_string()), ..AuditFilter::default() };
    let deeds = store.audit(filter, page(10)).await.unwrap();
    assert_eq!(deeds.len(), 3);
    assert!(!format!("{deeds:?}").contains("words"));
    let of_nobody = store.create_endpoint(world.context(), endpoint("nobody", "https://a.example/")).await;
    assert_eq!(kind(of_nobody), Kind::NotFound);
    for _ in 0..50 {
        registered(&world, "other", "https://o.example/").await;
    }
    let one_more = store.create_endpoint(world.context(), endpoint("other", "https://o.example/")).await;
    assert_eq!(kind(one_more), Kind::Full);
}

pub(crate) async fn the_end_of_a_task_is_told_to_each_receiver_once(world: World) {
    let World { store, .. } = &world;
    world.tenant("other", Quota::default(), 1).await;
    let first = registered(&world, "acme", "https://a.example/").await;
    let second = registered(&world, "acme", "https://b.example/").await;
    let silent = registered(&world, "acme", "https://silent.example/").await;
    let off = EndpointChange { enabled: Some(false), ..EndpointChange::default() };
    store.change_endpoint(world.context(), name("acme"), silent, off).await.unwrap();
    registered(&world, "other", "https://other.example/").await;

    let ended = task(&world, "acme", Some("https://asked.example/")).await;
    let again = TaskId::from_random(bits());
    let unknown = store.worker_completed(world.context(), again, COMPLETED, "x".into(), "{}".into()).await;
    assert_eq!(kind(unknown), Kind::NotFound);
    let raced = (0..8).map(|number| {
        let (store, context) = (store.clone(), world.context());
        async move {
            let body = format!("{{\"number\": {number}}}");
            store.worker_completed(context, ended, COMPLETED, "success".into(), body).await.unwrap()
        }
    });
    let heard = at_once(raced).await;
    assert_eq!(heard.iter().filter(|heard| heard.is_new).count(), 1, "{heard:?}");
    assert_eq!(heard.iter().map(|heard| heard.event).collect::<BTreeSet<_>>().len(), 1, "{heard:?}");
    let late = completed(&world, ended, "failed").await;
    assert_eq!((late.event, late.status.as_str(), late.is_new), (heard[0].event, "success", false));

    let told = all(&world, "acme").await;
    let targets: BTreeSet<_> = told.iter().map(|one| (one.endpoint, one.url.as_str())).collect();
    let expected = [
        (None, "https://asked.example/"),
        (Some(first), "https://a.example/"),
        (Some(second), "https://b.example/"),
    ];
    assert_eq!((targets, told.len()), (expected.into(), 3));
    for one in &told {
        assert_eq!((one.state, one.attempts, one.event), (DeliveryState::Pending, 0, Some(late.event)));
        assert_eq!(
            (one.conversation.as_deref(), one.subject.clone()),
            (Some("talk of acme"), ended.to_string())
        );
        assert_eq!(one.body, told[0].body, "what the first call said");
    }
    assert!(all(&world, "other").await.is_empty());
    let events = store.events(name("acme"), Some(ended.to_string()), 0, 10).await.unwrap();
    assert_eq!(events.len(), 1);
    assert_eq!((events[0].id, events[0].kind.as_str()), (late.event, "worker_completed"));
    let about = serde_json::json!({
        "event_type": "worker_completed", "source": "kubernetes", "task_id": ended, "status": "success",
    });
    assert_eq!(events[0].data, about);

    // An address that is registered is told as what it is registered for.
    let same = task(&world, "acme", Some("https://b.example/")).await;
    completed(&world, same, "failed").await;
    assert_eq!(all(&world, "acme").await.len(), 3 + 2);
}

pub(crate) async fn a_delivery_is_sent_by_one_server_at_a_time(world: World) {
    for _ in 0..20 {
        let ended = task(&world, "acme", Some("https://a.example/")).await;
        completed(&world, ended, "success").await;
    }
    let raced = (0..8).map(|_| {
        let (store, now, node) = (world.store.clone(), world.now(), NodeId::from_random(bits()));
        async move {
            let mut mine = Vec::new();
            for _ in 0..8 {
                mine.extend(store.claim_deliveries(node, now, 3, 100, LASTING).await.unwrap());
            }
            mine.into_iter().map(|claimed| claimed.delivery.id).collect::<Vec<_>>()
        }
    });
    let mut claimed: Vec<DeliveryId> = at_once(raced).await.concat();
    claimed.extend(claim(&world).await.into_iter().map(|claimed| claimed.delivery.id));
    assert_eq!(claimed.len(), 20);
    assert_eq!(claimed.iter().collect::<BTreeSet<_>>().len(), 20, "one was claimed twice");
    assert!(claim(&world).await.is_empty());
    assert_eq!(world.store.next_delivery().await.unwrap(), None, "all of them are under way");

    // Whoever does not come back loses them.
    world.pass(31);
    let again = claim(&world).await;
    assert_eq!(again.len(), 20);
    assert_eq!(world.store.release_claims(world.node).await.unwrap(), 20);
    let newest = claim(&world).await;
    assert_eq!(newest.len(), 20);
    let stale = again[0].clone();
    let noted = world.store.note_attempt(world.context(), stale, answer(&world, 200), Next::Delivered).await;
    assert!(!noted.unwrap(), "whoever lost it notes nothing");
    let mine = newest[0].clone();
    let noted =
        world.store.note_attempt(world.context(), mine.clone(), answer(&world, 200), Next::Delivered).await;
    assert!(noted.unwrap());
    let twice = world.store.note_attempt(world.context(), mine, answer(&world, 200), Next::Delivered).await;
    assert!(!twice.unwrap());
}

pub(crate) async fn no_tenant_holds_up_the_deliveries_of_another(world: World) {
    world.tenant("other", Quota::default(), 1).await;
    for tenant in ["acme", "acme", "acme", "acme", "other"] {
        let ended = task(&world, tenant, Some("https://a.example/")).await;
        completed(&world, ended, "success").await;
        world.pass(1);
    }
    let claim = async |most| {
        let claimed = world.store.claim_deliveries(world.node, world.now(), most, 2, LASTING).await.unwrap();
        claimed.into_iter().map(|claimed| claimed.delivery.tenant.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(claim(2).await, ["acme", "other"]);
    assert_eq!(claim(9).await, ["acme"], "two of a tenant are under way at most");
    assert_eq!(claim(9).await, [""; 0]);
}

pub(crate) async fn a_delivery_is_tried_again_given_up_and_replayed(world: World) {
    let World { store, .. } = &world;
    let to = registered(&world, "acme", "https://a.example/").await;
    let ended = task(&world, "acme", None).await;
    completed(&world, ended, "success").await;
    let pause = Duration::from_secs(60);
    let mut claimed = claim(&world).await.pop().unwrap();
    assert_eq!(claimed.endpoint.as_ref().map(|endpoint| endpoint.id), Some(to));
    assert_eq!(claimed.tries, 0);
    let id = claimed.delivery.id;
    let refused = Attempt { status: None, error: Some("refused".into()), answer: None, ..answer(&world, 0) };
    store.note_attempt(world.context(), claimed, refused, Next::Again { after: pause }).await.unwrap();
    assert!(claim(&world).await.is_empty(), "it waits");
    let due = store.next_delivery().await.unwrap().unwrap();
    assert_eq!(due.as_second(), world.now().as_second() + 60);
    world.pass(60);
    claimed = claim(&world).await.pop().unwrap();
    assert_eq!(claimed.tries, 1);
    store.note_attempt(world.context(), claimed, answer(&world, 500), Next::Dead).await.unwrap();
    world.pass(3600);
    assert!(claim(&world).await.is_empty());

    let (dead, attempts) = store.delivery(id).await.unwrap().unwrap();
    assert_eq!((dead.state, dead.attempts, dead.last_status), (DeliveryState::Dead, 2, Some(500)));
    let seen: Vec<_> = attempts
        .iter()
        .map(|one| (one.number, one.status, one.error.as_deref(), one.answer.as_deref()))
        .collect();
    assert_eq!(seen, [(1, None, Some("refused"), None), (2, Some(500), None, Some("é"))]);
    assert_eq!(attempts[1].took, Duration::from_millis(12));
    let events = store.events(name("acme"), Some(id.to_string()), 0, 10).await.unwrap();
    assert_eq!(events.iter().map(|event| event.kind.as_str()).collect::<Vec<_>>(), ["webhook.delivery_dead"]);

    assert_eq!(kind(store.replay_delivery(world.context(), name("other"), id).await), Kind::NotFound);
    let replayed = store.replay_delivery(world.context(), name("acme"), id).await.unwrap();
    assert_eq!((replayed.state, replayed.attempts, replayed.ended_at), (DeliveryState::Pending, 2, None));
    claimed = claim(&world).await.pop().unwrap();
    assert_eq!((claimed.tries, claimed.delivery.id), (0, id), "it is tried as often as a new one");
    store.note_attempt(world.context(), claimed, answer(&world, 204), Next::Delivered).await.unwrap();
    let (delivered, attempts) = store.delivery(id).await.unwrap().unwrap();
    assert_eq!((delivered.state, attempts.len(), attempts[2].number), (DeliveryState::Delivered, 3, 3));

    let trial =
        store.try_endpoint(world.context(), name("acme"), to, "ping".into(), "{}".into()).await.unwrap();
    assert_eq!((trial.event, trial.endpoint, trial.state), (None, Some(to), DeliveryState::Pending));
    store.delete_endpoint(world.context(), name("acme"), to).await.unwrap();
    let (withdrawn, _) = store.delivery(trial.id).await.unwrap().unwrap();
    assert_eq!(withdrawn.state, DeliveryState::Withdrawn);
    assert!(claim(&world).await.is_empty());
    assert_eq!(kind(store.replay_delivery(world.context(), name("acme"), id).await), Kind::Conflict);
}

pub(crate) async fn a_receiver_that_is_gone_is_told_nothing_more(world: World) {
    let World { store, .. } = &world;
    let to = registered(&world, "acme", "https://a.example/").await;
    let ended = task(&world, "acme", None).await;
    completed(&world, ended, "success").await;
    let claimed = claim(&world).await.pop().unwrap();
    store.note_attempt(world.context(), claimed, answer(&world, 410), Next::Gone).await.unwrap();
    assert!(!store.endpoint(name("acme"), to).await.unwrap().unwrap().enabled);
    let next = task(&world, "acme", None).await;
    completed(&world, next, "success").await;
    assert_eq!(all(&world, "acme").await.len(), 1);
    let disabled = store.events(name("acme"), Some(to.to_string()), 0, 10).await.unwrap();
    assert_eq!(disabled.last().unwrap().kind, "webhook.disabled");
}

pub(crate) async fn deliveries_are_listed_newest_first_and_forgotten_when_they_are_old(world: World) {
    let World { store, .. } = &world;
    let mut ids = Vec::new();
    for number in 0..5 {
        let ended = task(&world, "acme", Some("https://a.example/")).await;
        completed(&world, ended, "success").await;
        ids.insert(0, ended.to_string());
        world.pass(i64::from(number % 2));
    }
    let filter = || DeliveryFilter { tenant: Some(name("acme")), ..DeliveryFilter::default() };
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let mut part = store.deliveries(filter(), cubicle_store::Page { after, limit: 2 }).await.unwrap();
        let more = part.len() > 2;
        part.truncate(2);
        after = part.last().map(Delivery::cursor);
        seen.extend(part.into_iter().map(|one| one.subject));
        if !more {
            break;
        }
    }
    assert_eq!((seen.len(), seen.iter().collect::<BTreeSet<_>>()), (5, ids.iter().collect()));
    assert_eq!(seen[0], ids[0], "the newest is the first");
    let nonsense = cubicle_store::Page { after: Some("nonsense".into()), limit: 2 };
    assert_eq!(kind(store.deliveries(filter(), nonsense).await), Kind::Invalid);
    let of_one = DeliveryFilter { subject: Some(ids[3].clone()), ..filter() };
    assert_eq!(store.deliveries(of_one, page(10)).await.unwrap().len(), 1);

    let claimed = claim(&world).await;
    for one in claimed.into_iter().take(3) {
        store.note_attempt(world.context(), one, answer(&world, 200), Next::Delivered).await.unwrap();
    }
    let pending = DeliveryFilter { state: Some(DeliveryState::Pending), ..filter() };
    assert_eq!(store.deliveries(pending.clone(), page(10)).await.unwrap().len(), 2);
    world.pass(100);
    assert_eq!(store.forget_deliveries(world.now()).await.unwrap(), 3);
    assert_eq!(store.deliveries(pending, page(10)).await.unwrap().len(), 2, "what waits is kept");
    assert_eq!(store.forget_listeners(world.now()).await.unwrap(), 5);
    assert_eq!(world.behind_its_back("DELETE FROM webhook_attempts"), 0, "attempts go with their delivery");
}
