//! Tenants, keys and templates.

use std::collections::{BTreeMap, BTreeSet};

use cubicle_model::template::Recipe;
use cubicle_model::{KeyId, Kind, Quota, Scope, TemplateRef};
use cubicle_store::Key;

use crate::world::{World, at_once, bits, kind, name, page, user};

pub(crate) async fn a_tenant_is_made_once_and_changed_only_by_whoever_saw_it_last(world: World) {
    let World { store, .. } = &world;
    let again = store.create_tenant(world.context(), name("acme"), Quota::default(), 1).await;
    assert_eq!(kind(again), Kind::Conflict);
    let seen = store.tenant(name("acme")).await.unwrap();
    let quota = Quota { leases: Some(3), ..Quota::default() };
    let changed =
        store.change_tenant(world.context(), name("acme"), quota, 5, Some(seen.version)).await.unwrap();
    assert_eq!((changed.quota, changed.weight, changed.version), (quota, 5, seen.version + 1));
    let late = store.change_tenant(world.context(), name("acme"), quota, 6, Some(seen.version)).await;
    assert_eq!(kind(late), Kind::Conflict);
    assert_eq!(store.tenant(name("acme")).await.unwrap(), changed);
    assert_eq!(kind(store.tenant(name("nobody")).await), Kind::NotFound);
    let unknown = store.change_tenant(world.context(), name("nobody"), quota, 1, None).await;
    assert_eq!(kind(unknown), Kind::NotFound);

    // Of many who saw the same one may change it.
    let outcomes = at_once((0..8).map(|weight| {
        let (store, context) = (store.clone(), world.context());
        async move { store.change_tenant(context, name("acme"), Quota::default(), weight, Some(2)).await }
    }))
    .await;
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1);
}

pub(crate) async fn a_tenant_that_is_made_by_many_at_once_is_made_once(world: World) {
    let make = || {
        let (store, context) = (world.store.clone(), world.context());
        async move { store.create_tenant(context, name("new"), Quota::default(), 1).await }
    };
    let ensure = || {
        let (store, context) = (world.store.clone(), world.context());
        async move { store.ensure_tenant(context, name("other")).await }
    };
    let made = at_once((0..16).map(|_| make())).await;
    assert_eq!(made.iter().filter(|outcome| outcome.is_ok()).count(), 1);
    for outcome in made.into_iter().filter(Result::is_err) {
        assert_eq!(kind(outcome), Kind::Conflict);
    }
    for outcome in at_once((0..16).map(|_| ensure())).await {
        outcome.unwrap();
    }
    let tenants = world.store.tenants(page(100)).await.unwrap();
    let names: BTreeSet<_> = tenants.iter().map(|tenant| tenant.name.as_str()).collect();
    assert_eq!((tenants.len(), names), (3, BTreeSet::from(["acme", "new", "other"])));
}

pub(crate) async fn a_key_is_found_by_the_hash_of_its_secret_until_it_expires_or_is_revoked(world: World) {
    let World { store, .. } = &world;
    let asked = Key {
        id: KeyId::from_random(bits()),
        tenant: name("acme"),
        user: user("auth0|Ädä"),
        label: "laptop".into(),
        scopes: BTreeSet::from([Scope::Read, Scope::Run]),
        requests_per_second: Some(10),
        created_at: world.now(),
        expires_at: Some(world.now() + std::time::Duration::from_secs(60)),
        revoked_at: None,
    };
    let made = store.create_key(world.context(), asked.clone(), "abc123".into()).await.unwrap();
    assert_eq!(made, asked);
    assert_eq!(store.key_by_hash("abc123".into()).await.unwrap(), Some(asked.clone()));
    assert_eq!(store.key_by_hash("abc12".into()).await.unwrap(), None);
    assert_eq!(store.key(asked.id).await.unwrap(), Some(asked.clone()));
    assert!(made.is_valid(world.now()));
    world.pass(60);
    assert!(!made.is_valid(world.now()), "a key ends at its end");

    let same_hash = Key { id: KeyId::from_random(bits()), ..asked.clone() };
    assert_eq!(kind(store.create_key(world.context(), same_hash, "abc123".into()).await), Kind::Conflict);
    let foreign = Key { id: KeyId::from_random(bits()), tenant: name("nobody"), ..asked.clone() };
    assert_eq!(kind(store.create_key(world.context(), foreign, "other".into()).await), Kind::NotFound);

    let revoked = store.revoke_key(world.context(), asked.id).await.unwrap();
    assert_eq!(revoked.revoked_at, Some(world.now()));
    world.pass(5);
    assert_eq!(store.revoke_key(world.context(), asked.id).await.unwrap(), revoked, "the first one counts");
    assert_eq!(kind(store.revoke_key(world.context(), KeyId::from_random(bits())).await), Kind::NotFound);

    world.tenant("other", Quota::default(), 1).await;
    let other = Key { id: KeyId::from_random(bits()), tenant: name("other"), ..asked };
    store.create_key(world.context(), other.clone(), "def".into()).await.unwrap();
    assert_eq!(store.keys(Some(name("acme")), page(10)).await.unwrap(), [revoked]);
    assert_eq!(store.keys(None, page(10)).await.unwrap().len(), 2);
}

pub(crate) async fn a_template_of_its_own_goes_before_everybodys(world: World) {
    let World { store, .. } = &world;
    world.tenant("other", Quota::default(), 1).await;
    let put = async |at: &str, variable: &str| {
        let env = BTreeMap::from([(variable.to_owned(), "1".to_owned())]);
        let recipe = Recipe { env, ..Recipe::default() };
        store.put_template(world.context(), at.parse().unwrap(), recipe, None).await.unwrap()
    };
    let shared = put("default", "SHARED").await;
    assert_eq!(store.find_template(name("acme"), name("default")).await.unwrap(), shared);
    let own = put("acme/default", "OWN").await;
    assert_eq!(store.find_template(name("acme"), name("default")).await.unwrap(), own);
    assert_eq!(store.find_template(name("other"), name("default")).await.unwrap(), shared);
    assert_eq!(kind(store.find_template(name("acme"), name("missing")).await), Kind::NotFound);
    assert_eq!(store.template(shared.at.clone()).await.unwrap(), Some(shared.clone()));

    let seen_by = async |tenant: &str| {
        let templates = store.templates(name(tenant), page(10)).await.unwrap();
        templates.iter().map(|template| template.at.to_string()).collect::<BTreeSet<_>>()
    };
    assert_eq!(seen_by("acme").await, BTreeSet::from(["acme/default".into(), "default".into()]));
    assert_eq!(seen_by("other").await, BTreeSet::from(["default".into()]));
    assert_eq!(store.all_templates().await.unwrap().len(), 2);

    store.delete_template(world.context(), own.at, Some(own.version)).await.unwrap();
    assert_eq!(store.find_template(name("acme"), name("default")).await.unwrap(), shared);
}

pub(crate) async fn a_template_is_changed_only_by_whoever_saw_it_last(world: World) {
    let World { store, .. } = &world;
    let at: TemplateRef = "python".parse().unwrap();
    let recipe = |value: &str| Recipe {
        env: BTreeMap::from([("V".to_owned(), value.to_owned())]),
        ..Recipe::default()
    };
    let put = |value: &str, version| store.put_template(world.context(), at.clone(), recipe(value), version);
    assert_eq!(kind(put("1", Some(1)).await), Kind::Conflict, "there is none yet");
    assert_eq!(put("1", Some(0)).await.unwrap().version, 1);
    assert_eq!(kind(put("2", Some(0)).await), Kind::Conflict);
    world.pass(1);
    let same = put("1", None).await.unwrap();
    assert_eq!(
        (same.version, same.updated_at),
        (1, same.created_at),
        "what is the same is not written again"
    );
    assert_eq!(put("2", Some(1)).await.unwrap().version, 2);
    let delete = |version| store.delete_template(world.context(), at.clone(), version);
    assert_eq!(kind(delete(Some(1)).await), Kind::Conflict);

    let outcomes = at_once((0..8).map(|value| {
        let (store, context, at) = (store.clone(), world.context(), at.clone());
        let recipe = recipe(&format!("raced {value}"));
        async move { store.put_template(context, at, recipe, Some(2)).await }
    }))
    .await;
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1);
    delete(Some(3)).await.unwrap();
    assert_eq!(kind(delete(None).await), Kind::NotFound);

    // Made by many at once, it is made once.
    let outcomes = at_once((0..8).map(|value| {
        let (store, context) = (store.clone(), world.context());
        let recipe = recipe(&format!("made {value}"));
        async move { store.put_template(context, "fresh".parse().unwrap(), recipe, Some(0)).await }
    }))
    .await;
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1);
}
