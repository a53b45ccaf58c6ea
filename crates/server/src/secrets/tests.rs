//! A server's secrets over a real store: what the gateway and redaction are given, and when they are told of a change.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cubicle_backend::fake::FakeHost;
use cubicle_model::{KeyId, Kind, NodeId, Principal, Proof, RequestId, Scope};
use cubicle_store::{Page, Store};

use super::*;
use crate::app::Caller;
use crate::app::secrets::SecretRequest;
use crate::settings::Settings;
use crate::surroundings::Surroundings;

struct World {
    app: Arc<App>,
    directory: tempfile::TempDir,
}

fn random() -> cubicle_store::Random {
    let count = Mutex::new(0_u64);
    Arc::new(move |bytes| {
        let mut count = count.lock().unwrap();
        *count += 1;
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = count.to_le_bytes()[index % 8] ^ (index as u8);
        }
    })
}

fn clock() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

impl World {
    async fn new(environment: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let app = server(directory.path().into(), SealingKeys::one([1; 32]), environment).await;
        Self { app, directory }
    }

    /// The next server on the same database.
    async fn again(&self, keys: SealingKeys) -> Arc<App> {
        server(self.directory.path().into(), keys, &[]).await
    }

    fn caller(&self, scopes: &[Scope]) -> Caller {
        caller("default", scopes)
    }

    async fn set(&self, name: &str, value: &str, bindings: Option<Vec<CredentialBinding>>) -> Held {
        set(&self.app, &self.caller(&[Scope::Manage]), name, value, bindings).await.unwrap()
    }

    async fn credentials(&self, template: &str) -> Vec<String> {
        let bound = self.app.credentials_for(&tenant(), &template.parse().unwrap()).await.unwrap();
        bound.iter().map(describe).collect()
    }
}

fn tenant() -> Name {
    "default".parse().unwrap()
}

fn caller(tenant: &str, scopes: &[Scope]) -> Caller {
    Caller {
        principal: Principal {
            tenant: tenant.parse().unwrap(),
            user: "ada".parse().unwrap(),
            scopes: scopes.iter().copied().collect::<BTreeSet<_>>(),
            proof: Proof::Key(KeyId::from_random([1; 16])),
        },
        from: None,
        request: RequestId::from_random([1; 16]),
    }
}

async fn server(place: PathBuf, sealing_keys: SealingKeys, environment: &[(&str, &str)]) -> Arc<App> {
    let store = Store::open_sqlite(&place.join("cubicle.db"), random()).unwrap();
    let node = NodeId::from_random([9; 16]);
    store.join(node, "here".into(), clock()).await.unwrap();
    let settings = Settings {
        address: "http://127.0.0.1:1".into(),
        capacity: 1,
        longest_queue: 1,
        lease_ttl_seconds: 60,
        exec_timeout_seconds: None,
        blobs: place.join("blobs"),
        shared: place.join("shared"),
        journal_retention: Duration::ZERO,
        record_retention: Duration::ZERO,
        keyless: false,
        tokens: None,
        egress: None,
        webhooks: crate::webhooks::WebhookSettings::default(),
        code: Default::default(),
        workers: crate::WorkerSettings::off("127.0.0.1:1".parse().unwrap()),
        requests_per_second: 1,
        link_secret: [0; 32],
        sealing_keys,
        log_masks: crate::LogMasks::new(cubicle_egress::redact::Shapes::usual()),
        sweep_every: Duration::from_secs(1),
        span_counts: None,
        drain: Duration::ZERO,
    };
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), value.as_bytes().to_vec());
    let environment: HashMap<String, Vec<u8>> = environment.iter().map(owned).collect();
    let surroundings = Surroundings {
        clock: Arc::new(clock),
        wall_clock: Arc::new(clock),
        random: random(),
        variable: Arc::new(move |name| environment.get(name).cloned()),
        at_step: Arc::new(|_| {}),
    };
    let backend = Arc::new(FakeHost::default().open());
    let app = App::new(store, backend, node, settings, surroundings).unwrap();
    app.store.ensure_tenant(app.own_context(), tenant()).await.unwrap();
    app.store.ensure_tenant(app.own_context(), "acme".parse().unwrap()).await.unwrap();
    app
}

async fn set(
    app: &Arc<App>,
    caller: &Caller,
    name: &str,
    value: &str,
    bindings: Option<Vec<CredentialBinding>>,
) -> Result<Held, Fault> {
    let asked = SecretRequest { source: SecretSource::Value, value: Some(Secret::new(value)), bindings };
    Ok(app.set_secret(caller, name.parse().unwrap(), asked, None).await?.0)
}

fn to(host: &str, form: &str) -> CredentialBinding {
    CredentialBinding::new(host.parse().unwrap(), form.parse().unwrap())
}

/// `NAME=VALUE to HOST:PORT as FORM`, and the base.
fn describe(bound: &Bound) -> String {
    let credential = &bound.credential;
    let value = credential
        .secret
        .as_ref()
        .map_or("?".into(), |secret| String::from_utf8_lossy(secret.reveal()).into_owned());
    let base = bound.base.as_ref().map_or(String::new(), |base| {
        format!(", {} is {:?} {}:{}", base.name, base.scheme, base.host, base.port)
    });
    format!(
        "{}={value} to {}:{} as {:?}{base}",
        credential.name, credential.host, credential.port, credential.form
    )
}

#[tokio::test]
async fn a_secret_is_bound_as_it_was_said_and_rotated_for_all_who_ask() {
    let world = World::new(&[]).await;
    let mut changes = world.app.secrets.changes();
    let based = CredentialBinding { base: "api".parse().ok(), ..to("api.example", "header:X-Key") };
    let only = CredentialBinding {
        templates: Some(["python".parse().unwrap()].into()),
        even_plain: true,
        port: 80,
        base: "git".parse().ok(),
        ..to("git.example", "basic:ada")
    };
    world.set("KEY", "first-value", Some(vec![based, only])).await;
    assert!(changes.has_changed().unwrap());
    assert_eq!(changes.borrow_and_update().get(&tenant()), Some(&1));
    let header = "KEY=first-value to api.example:443 as Header(\"x-key\"), api is Https api.example:443";
    let basic = "KEY=first-value to git.example:80 as Basic { user: \"ada\" }, git is Http git.example:80";
    assert_eq!(world.credentials("default").await, [header]);
    assert_eq!(world.credentials("default/python").await, [basic, header]);

    let held = world.set("KEY", "second-value", None).await;
    assert_eq!((held.version, held.bindings.len()), (2, 2), "bindings are kept");
    assert_eq!(changes.borrow_and_update().get(&tenant()), Some(&2));
    assert_eq!(world.credentials("default").await, [header.replace("first", "second")]);
    let values = world.app.secret_values(&tenant()).await.unwrap();
    assert_eq!(values, [("KEY".parse().unwrap(), Secret::new("second-value"))]);
    assert!(world.app.secret_values(&"acme".parse().unwrap()).await.unwrap().is_empty());

    let same = world.set("KEY", "second-value", None).await;
    assert_eq!(same.version, 2);
    assert!(!changes.has_changed().unwrap(), "nothing has changed");
    let name: SecretName = "KEY".parse().unwrap();
    world.app.remove_secret(&world.caller(&[Scope::Manage]), name, None).await.unwrap();
    assert!(changes.has_changed().unwrap());
    assert!(world.credentials("default/python").await.is_empty());
    assert!(world.app.secret_values(&tenant()).await.unwrap().is_empty());
}

#[tokio::test]
async fn the_key_of_a_provider_is_bound_unless_something_else_was_set() {
    let found = [("ANTHROPIC_API_KEY", "sk-ant"), ("GOOGLE_API_KEY", "AIza"), ("OPENAI_API_KEY", "")];
    let world = World::new(&found).await;
    let anthropic =
        "to api.anthropic.com:443 as Header(\"x-api-key\"), anthropic is Https api.anthropic.com:443";
    let all = world.credentials("default").await;
    assert_eq!(all.len(), 2, "{all:?}");
    assert_eq!(all[0], format!("ANTHROPIC_API_KEY=sk-ant {anthropic}"));
    assert!(all[1].starts_with("GOOGLE_API_KEY=AIza to generativelanguage.googleapis.com:443"), "{all:?}");
    let acme = world.app.credentials_for(&"acme".parse().unwrap(), &"default".parse().unwrap()).await;
    assert!(acme.unwrap().is_empty(), "it is for the tenant 'default'");

    let manager = world.caller(&[Scope::Manage]);
    let listed = world.app.list_secrets(&manager, &Page { after: None, limit: 10 }).await.unwrap();
    let listed: Vec<_> =
        listed.iter().map(|held| (held.name.as_str(), held.version, held.source.name())).collect();
    assert_eq!(listed, [("ANTHROPIC_API_KEY", 0, "environment"), ("GOOGLE_API_KEY", 0, "environment")]);
    let removed = world.app.remove_secret(&manager, "GOOGLE_API_KEY".parse().unwrap(), None).await;
    assert_eq!(removed.unwrap_err().kind(), Kind::Conflict);

    // A stored one takes its place, and goes to the provider by its name alone.
    world.set("ANTHROPIC_API_KEY", "sk-own", None).await;
    assert_eq!(world.credentials("default").await[0], format!("ANTHROPIC_API_KEY=sk-own {anthropic}"));
    world.set("ANTHROPIC_API_KEY", "sk-own", Some(Vec::new())).await;
    assert_eq!(world.credentials("default").await.len(), 1, "bound to nothing");
    // So does one of another name for the same place.
    world
        .set(
            "OTHER",
            "AIza-other",
            Some(vec![to("generativelanguage.googleapis.com", "header:x-goog-api-key")]),
        )
        .await;
    let all = world.credentials("default").await;
    assert_eq!(all.len(), 1, "{all:?}");
    assert!(all[0].starts_with("OTHER=AIza-other"), "{all:?}");
}

#[tokio::test]
async fn files_and_variables_are_looked_at_again() {
    let world = World::new(&[("TOKEN", "from-variable")]).await;
    let path = world.directory.path().join("key");
    let admin = world.caller(&[Scope::Admin]);
    let put = async |name: &str, source| {
        let host = format!("{}.example", name.to_lowercase());
        let asked = SecretRequest { source, value: None, bindings: Some(vec![to(&host, "bearer")]) };
        world.app.set_secret(&admin, name.parse().unwrap(), asked, None).await.unwrap().0
    };
    let held = put("FILE", SecretSource::File(path.clone())).await;
    assert!(held.value.unwrap_err().contains("cannot be read"));
    put("VARIABLE", SecretSource::Environment("TOKEN".into())).await;
    put("NONE", SecretSource::Environment("NOT_SET".into())).await;
    assert_eq!(
        world.credentials("default").await,
        [
            "FILE=? to file.example:443 as Bearer",
            "NONE=? to none.example:443 as Bearer",
            "VARIABLE=from-variable to variable.example:443 as Bearer"
        ]
    );
    let mut changes = world.app.secrets.changes();
    for value in ["in-a-file", "in-a-file-2"] {
        std::fs::write(&path, format!("{value}\n")).unwrap();
        world.app.look_at_secrets().await.unwrap();
        assert!(changes.has_changed().unwrap(), "{value}");
        changes.mark_unchanged();
        let first = format!("FILE={value} to file.example:443 as Bearer");
        assert_eq!(world.credentials("default").await[0], first);
    }
    world.app.look_at_secrets().await.unwrap();
    assert!(!changes.has_changed().unwrap(), "nothing has changed");
}

#[tokio::test]
async fn what_lies_on_the_server_is_for_administrators_to_give() {
    let world = World::new(&[("TOKEN", "from-variable")]).await;
    for source in [SecretSource::File("/etc/passwd".into()), SecretSource::Environment("TOKEN".into())] {
        let asked = SecretRequest { source, value: None, bindings: None };
        let manager = world.caller(&[Scope::Manage, Scope::Run, Scope::ActForOthers]);
        let refused = world.app.set_secret(&manager, "KEY".parse().unwrap(), asked, None).await;
        assert_eq!(refused.unwrap_err().kind(), Kind::Denied);
    }
    for scopes in [&[Scope::Read, Scope::Run][..], &[]] {
        let caller = world.caller(scopes);
        let refused = set(&world.app, &caller, "KEY", "value", None).await.unwrap_err();
        assert_eq!(refused.kind(), Kind::Denied);
        let page = Page { after: None, limit: 10 };
        assert_eq!(world.app.list_secrets(&caller, &page).await.unwrap_err().kind(), Kind::Denied);
    }
}

#[tokio::test]
async fn values_that_cannot_be_used_are_refused_and_short_ones_come_with_a_warning() {
    let world = World::new(&[]).await;
    let manager = world.caller(&[Scope::Manage]);
    let bearer = || Some(vec![to("api.example", "bearer")]);
    let long = "x".repeat(LARGEST_VALUE + 1);
    for (value, bindings) in [
        ("", None),
        (long.as_str(), None),
        ("two\nlines", bearer()),
        ("value", Some(vec![to("api.example", "bearer"), to("api.example", "basic:ada")])),
    ] {
        let refused = set(&world.app, &manager, "KEY", value, bindings).await.unwrap_err();
        assert_eq!(refused.kind(), Kind::Invalid);
        assert!(!refused.message().contains("lines"), "{refused}");
    }
    assert!(set(&world.app, &manager, "KEY", "two\nlines", None).await.unwrap().warning().is_none());
    assert!(world.set("KEY", "short", bearer()).await.warning().unwrap().contains("not masked"));
    // What cannot be carried is refused for the bindings that are kept, too.
    assert_eq!(set(&world.app, &manager, "KEY", "a\rb", None).await.unwrap_err().kind(), Kind::Invalid);
}

#[tokio::test]
async fn a_key_is_replaced_and_the_old_one_is_not_needed_any_more() {
    let world = World::new(&[]).await;
    world.set("KEY", "the-value", Some(vec![to("api.example", "bearer")])).await;
    let both = [2, 1].map(|byte| SealingKeys::line([byte; 32])).join("\n");
    let rotated = world.again(SealingKeys::parse(&both).unwrap()).await;
    rotated.reseal_secrets().await.unwrap();
    let value = async |app: &Arc<App>| {
        let all = app.read_secrets(&tenant()).await.unwrap().secrets;
        all[0].value.clone().map(|value| String::from_utf8(value.reveal().to_vec()).unwrap())
    };
    assert_eq!(value(&rotated).await.unwrap(), "the-value");
    assert_eq!(value(&world.again(SealingKeys::one([2; 32])).await).await.unwrap(), "the-value");

    let without = world.again(SealingKeys::one([3; 32])).await;
    without.reseal_secrets().await.unwrap();
    let why = value(&without).await.unwrap_err();
    assert!(why.contains("sealed with the key") && why.contains("set the secret again"), "{why}");
    let bound = without.credentials_for(&tenant(), &"default".parse().unwrap()).await.unwrap();
    assert!(bound[0].credential.secret.is_none(), "requests are refused, and not sent without it");
    assert!(without.secret_values(&tenant()).await.unwrap().is_empty());
    let again = set(&without, &world.caller(&[Scope::Manage]), "KEY", "the-value", None).await.unwrap();
    assert_eq!((again.version, again.value.is_ok()), (2, true));
}

#[tokio::test]
async fn what_another_server_changes_is_noticed() {
    let world = World::new(&[]).await;
    let other = world.again(SealingKeys::one([1; 32])).await;
    let manager = world.caller(&[Scope::Manage]);
    let name: SecretName = "KEY".parse().unwrap();
    let values = async || {
        let all = world.app.secret_values(&tenant()).await.unwrap();
        all.iter().map(|(_, value)| String::from_utf8_lossy(value.reveal()).into_owned()).collect::<Vec<_>>()
    };
    assert!(values().await.is_empty());
    let mut changes = world.app.secrets.changes();
    for value in ["set-there", "rotated-there"] {
        set(&other, &manager, "KEY", value, None).await.unwrap();
        world.app.look_at_secrets().await.unwrap();
        assert!(changes.has_changed().unwrap(), "{value}");
        changes.mark_unchanged();
        assert_eq!(values().await, [value]);
    }
    world.app.look_at_secrets().await.unwrap();
    assert!(!changes.has_changed().unwrap(), "nothing has changed");
    other.remove_secret(&manager, name, None).await.unwrap();
    world.app.look_at_secrets().await.unwrap();
    assert!(changes.has_changed().unwrap());
    assert!(values().await.is_empty());
}

#[tokio::test]
async fn what_is_read_before_a_change_does_not_outlast_it() {
    let world = World::new(&[]).await;
    let old = Arc::new(world.app.read_secrets(&tenant()).await.unwrap());
    world.set("KEY", "the-value", None).await;
    assert!(!world.app.secrets.keep(&tenant(), &old));
    assert_eq!(world.app.secret_values(&tenant()).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_version_that_was_not_seen_is_not_replaced() {
    let world = World::new(&[]).await;
    let manager = world.caller(&[Scope::Manage]);
    let put = async |value: &str, seen| {
        let value = Some(Secret::new(value));
        let asked = SecretRequest { source: SecretSource::Value, value, bindings: None };
        world.app.set_secret(&manager, "KEY".parse().unwrap(), asked, seen).await
    };
    assert!(put("one", Some(0)).await.unwrap().1, "there was none");
    assert_eq!(put("two", Some(0)).await.unwrap_err().kind(), Kind::Conflict);
    assert!(!put("two", Some(1)).await.unwrap().1);
    assert_eq!(put("three", Some(1)).await.unwrap_err().kind(), Kind::Conflict);
    let removed = world.app.remove_secret(&manager, "KEY".parse().unwrap(), Some(1)).await;
    assert_eq!(removed.unwrap_err().kind(), Kind::Conflict);
}
