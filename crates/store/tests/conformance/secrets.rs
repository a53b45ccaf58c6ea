//! Secrets and bills.

use cubicle_model::egress::{Bill, Denial};
use cubicle_model::lease::LeaseEnd;
use cubicle_model::{CredentialBinding, Kind, Name, Quota, SandboxId, SecretName, SecretSource};
use cubicle_store::{AfterLease, AuditFilter, KeptBill, NewSecret, StoredSecret};

use crate::world::{World, at_once, bits, kind, name, page, user};

fn called(text: &str) -> SecretName {
    text.parse().unwrap()
}

fn secret(tenant: &str, text: &str) -> NewSecret {
    NewSecret {
        tenant: name(tenant),
        name: called(text),
        source: SecretSource::Value,
        sealed: Some(format!("sealed words of {text}")),
        bindings: Vec::new(),
    }
}

fn bound(tenant: &str, text: &str, host: &str, templates: &[&str]) -> NewSecret {
    let mut binding = CredentialBinding::new(host.parse().unwrap(), "bearer".parse().unwrap());
    if !templates.is_empty() {
        binding.templates = Some(templates.iter().map(|text| name(text)).collect());
    }
    NewSecret { bindings: vec![binding], ..secret(tenant, text) }
}

async fn revision(world: &World, tenant: &str) -> i64 {
    world.store.secrets_of(name(tenant)).await.unwrap().revision
}

async fn put(world: &World, new: NewSecret) -> StoredSecret {
    let version = world.store.secrets_of(new.tenant.clone()).await.unwrap().revision + 1;
    world.store.put_secret(world.context(), new, version).await.unwrap().expect("nobody was faster")
}

pub(crate) async fn a_secret_is_set_rotated_and_removed(world: World) {
    let World { store, .. } = &world;
    let tenant = || name("acme");
    assert_eq!(store.secret(tenant(), called("KEY")).await.unwrap(), None);
    let first = put(&world, bound("acme", "KEY", "api.example", &["python"])).await;
    assert_eq!((first.version, first.created_at, first.updated_at), (1, world.now(), world.now()));
    assert_eq!(first.updated_by, "system");
    assert_eq!(store.secret(tenant(), called("KEY")).await.unwrap().as_ref(), Some(&first));

    world.pass(5);
    let file = SecretSource::File("/run/key".into());
    let second = put(&world, NewSecret { source: file.clone(), sealed: None, ..secret("acme", "KEY") }).await;
    assert_eq!((second.version, second.created_at, second.updated_at), (2, first.created_at, world.now()));
    assert_eq!((second.source, second.sealed, second.bindings), (file, None, Vec::new()));

    let seen = store.delete_secret(world.context(), tenant(), called("KEY"), Some(1)).await;
    assert_eq!(kind(seen), Kind::Conflict);
    assert_eq!(store.delete_secret(world.context(), tenant(), called("KEY"), Some(2)).await.unwrap(), 3);
    let gone = store.delete_secret(world.context(), tenant(), called("KEY"), None).await;
    assert_eq!(kind(gone), Kind::NotFound);
    let again = put(&world, secret("acme", "KEY")).await;
    assert_eq!(again.version, 4, "a version is never used again");
    assert_eq!(kind(store.put_secret(world.context(), secret("nobody", "KEY"), 1).await), Kind::NotFound);
}

pub(crate) async fn a_change_of_a_secret_is_told_without_its_value(world: World) {
    let World { store, .. } = &world;
    put(&world, bound("acme", "KEY", "api.example", &[])).await;
    put(&world, secret("acme", "KEY")).await;
    store.delete_secret(world.context(), name("acme"), called("KEY"), None).await.unwrap();
    let events = store.events(name("acme"), None, 0, 10).await.unwrap();
    let told: Vec<_> =
        events.iter().map(|event| (event.kind.as_str(), event.subject.as_str(), &event.data)).collect();
    let about = |version| serde_json::json!({ "name": "KEY", "version": version });
    let (one, two) = (about(1), about(2));
    assert_eq!(
        told,
        [("secret.set", "KEY", &one), ("secret.set", "KEY", &two), ("secret.removed", "KEY", &two)]
    );
    let filter = AuditFilter { subject: Some("KEY".into()), ..AuditFilter::default() };
    let deeds = store.audit(filter, page(10)).await.unwrap();
    let actions: Vec<_> = deeds
        .iter()
        .map(|entry| (entry.deed.action.as_str(), entry.deed.detail.as_deref().unwrap()))
        .collect();
    assert_eq!(
        actions,
        [("secret.set", "version 1"), ("secret.set", "version 2"), ("secret.removed", "version 2")]
    );
    assert!(!format!("{events:?}{deeds:?}").contains("sealed words"));
}

pub(crate) async fn secrets_of_a_tenant_are_its_own_and_in_order(world: World) {
    let World { store, .. } = &world;
    world.tenant("other", Quota::default(), 1).await;
    for text in ["b", "B", "a.b", "A_B", "a-b"] {
        put(&world, secret("acme", text)).await;
    }
    put(&world, secret("other", "b")).await;
    let all = store.secrets_of(name("acme")).await.unwrap();
    let names: Vec<_> = all.secrets.iter().map(|secret| secret.name.as_str()).collect();
    assert_eq!(names, ["A_B", "B", "a-b", "a.b", "b"], "the same order on every database");
    assert_eq!((all.revision, revision(&world, "other").await, revision(&world, "nobody").await), (5, 1, 0));
    let revisions = store.secret_revisions().await.unwrap();
    assert_eq!(revisions, [(name("acme"), 5), (name("other"), 1)].into());
    let theirs = store.secret(name("other"), called("B")).await.unwrap();
    assert_eq!(theirs, None);
    store.delete_secret(world.context(), name("other"), called("b"), None).await.unwrap();
    assert_eq!(store.secrets_of(name("acme")).await.unwrap(), all);
    assert_eq!(revision(&world, "other").await, 2, "a removal is a change");
}

pub(crate) async fn whoever_sealed_for_an_older_revision_seals_anew(world: World) {
    let second = world.another_server().await;
    let outcomes = at_once((0..12).map(|number: usize| {
        let at = if number.is_multiple_of(2) { &world } else { &second };
        let (store, context) = (at.store.clone(), at.context());
        async move {
            let new = secret("acme", &format!("K{number}"));
            loop {
                let version = store.secrets_of(name("acme")).await.unwrap().revision + 1;
                if let Some(put) = store.put_secret(context.clone(), new.clone(), version).await.unwrap() {
                    return put.version;
                }
            }
        }
    }))
    .await;
    let mut versions = outcomes;
    versions.sort_unstable();
    assert_eq!(versions, (1..=12).collect::<Vec<_>>());
    let late = world.store.put_secret(world.context(), secret("acme", "LATE"), 12).await.unwrap();
    assert_eq!(late, None);
    assert_eq!(world.store.secret(name("acme"), called("LATE")).await.unwrap(), None);
}

pub(crate) async fn secrets_that_contradict_each_other_are_refused(world: World) {
    let World { store, .. } = &world;
    world.tenant("other", Quota::default(), 1).await;
    put(&world, bound("acme", "ONE", "api.example", &[])).await;
    let two = bound("acme", "TWO", "api.example", &[]);
    let refused = store.put_secret(world.context(), two, 2).await.expect_err("which of them counts?");
    assert_eq!(refused.kind(), Kind::Conflict);
    assert!(refused.message().contains("'ONE' goes to api.example:443"), "{refused}");
    assert_eq!(revision(&world, "acme").await, 1, "a refusal changes nothing");
    put(&world, bound("acme", "TWO", "api.example", &["python"])).await;
    put(&world, bound("acme", "ONE", "api.example", &[])).await;
    put(&world, bound("other", "ONE", "api.example", &[])).await;
}

pub(crate) async fn a_sealed_value_is_put_under_another_key(world: World) {
    let World { store, .. } = &world;
    let one = put(&world, secret("acme", "ONE")).await;
    let file = SecretSource::File("/run/key".into());
    put(&world, NewSecret { source: file, sealed: None, ..secret("acme", "TWO") }).await;
    let sealed = store.sealed_secrets().await.unwrap();
    assert_eq!(sealed, std::slice::from_ref(&one));
    let reseal = async |version| {
        let (tenant, sealed): (Name, _) = (name("acme"), format!("anew for {version}"));
        store.reseal_secret(tenant, called("ONE"), version, sealed).await.unwrap()
    };
    assert!(!reseal(2).await, "another version is another value");
    assert!(reseal(1).await);
    let after = store.secret(name("acme"), called("ONE")).await.unwrap().unwrap();
    assert_eq!(after, StoredSecret { sealed: Some("anew for 1".into()), ..one });
    assert_eq!(revision(&world, "acme").await, 2, "the value is the same");
}

fn bill(denials: u64) -> Bill {
    let denial = Denial { target: "b.example:443".into(), rule: "not allowed".into(), count: denials };
    Bill { denials: vec![denial], ..Bill::default() }
}

fn kept(world: &World, subject: &str, denials: u64) -> KeptBill {
    KeptBill {
        subject: subject.into(),
        tenant: name("acme"),
        user: user("ada"),
        sandbox: SandboxId::from_random(bits()),
        node: world.node,
        bill: bill(denials),
        updated_at: world.now(),
    }
}

pub(crate) async fn a_bill_is_replaced_and_kept_as_long_as_its_lease(world: World) {
    let World { store, .. } = &world;
    let (lease, sandbox) = world.leased(world.ask("acme")).await;
    let subject = lease.id.to_string();
    assert_eq!(store.bill(subject.clone()).await.unwrap(), None);
    let first = kept(&world, &subject, 1);
    store.put_bill(first.clone()).await.unwrap();
    assert_eq!(store.bill(subject.clone()).await.unwrap(), Some(first.clone()));
    world.pass(1);
    let second = KeptBill { bill: bill(7), updated_at: world.now(), ..first };
    store.put_bill(second.clone()).await.unwrap();
    assert_eq!(store.bill(subject.clone()).await.unwrap().as_ref(), Some(&second));
    store.put_bill(kept(&world, "exec-forgotten", 1)).await.unwrap();

    world.pass(100);
    assert_eq!(store.forget_before(world.now()).await.unwrap(), 1, "the one of nobody");
    assert_eq!(store.bill("exec-forgotten".into()).await.unwrap(), None);
    assert_eq!(store.bill(subject.clone()).await.unwrap(), Some(second), "its lease still lives");
    store.end_lease(world.context(), lease.id, LeaseEnd::Released, AfterLease::Destroy).await.unwrap();
    world.gone(sandbox.id).await;
    world.pass(100);
    assert_eq!(store.forget_before(world.now()).await.unwrap(), 3, "lease, sandbox and bill");
    assert_eq!(store.bill(subject).await.unwrap(), None);
}
