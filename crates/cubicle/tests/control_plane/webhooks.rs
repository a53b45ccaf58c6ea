//! `cubicle webhooks`.

use crate::server::{Server, complaint};

#[test]
fn a_webhook_is_added_listed_disabled_and_removed() {
    let Some(server) = Server::start() else { return };
    let url = "https://hooks.example/cubicle";
    let output = server.cubicle(&["webhooks", "add", url, "--description", "mine"]);
    assert!(output.status.success(), "{output:?}");
    let secret = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    assert!(secret.starts_with("whsec_"), "{secret}");
    let all = server.json(&["webhooks", "ls", "--json"]);
    let id = all[0]["webhook_id"].as_str().expect("an id").to_owned();
    assert!(String::from_utf8_lossy(&output.stderr).contains(&id), "{output:?}");
    let table = server.says(&["webhooks", "list"]);
    for part in [id.as_str(), url, "worker_completed", "yes", "mine"] {
        assert!(table.contains(part), "{part}: {table}");
    }
    assert!(!table.contains(&secret) && !all.to_string().contains(&secret));
    server.says(&["webhooks", "disable", &id]);
    assert_eq!(server.json(&["webhooks", "ls", "--json"])[0]["enabled"], false);
    server.says(&["webhooks", "enable", &id]);

    let refused = server.cubicle(&["webhooks", "add", "http://127.0.0.1:9/"]);
    assert!(complaint(&refused).contains("webhooks.allow"), "{refused:?}");
    let refused = server.cubicle(&["webhooks", "add", url, "--event", "pod_started"]);
    assert!(complaint(&refused).contains("worker_completed"), "{refused:?}");

    server.says(&["webhooks", "rm", &id]);
    assert_eq!(server.json(&["webhooks", "ls", "--json"]), serde_json::json!([]));
    let output = server.cubicle(&["webhooks", "test", &id]);
    assert!(complaint(&output).contains("no such webhook"), "{output:?}");
}

#[test]
fn deliveries_are_listed_shown_and_replayed() {
    let Some(server) = Server::start() else { return };
    // No name below .invalid leads anywhere, so that it is tried again and again.
    let made = server.json(&["webhooks", "add", "--json", "http://hooks.invalid/"]);
    let webhook = made["webhook_id"].as_str().expect("an id");
    let id = server.says(&["webhooks", "test", webhook]);
    let tried = |count: u64| {
        let shown = server.json(&["webhooks", "deliveries", "--json", &id]);
        (shown["attempts"].as_u64() >= Some(count)).then_some(shown)
    };
    let wait = |count| {
        (0..600).find_map(|_| {
            tried(count).or_else(|| {
                std::thread::sleep(std::time::Duration::from_millis(50));
                None
            })
        })
    };
    let shown = wait(1).expect("it is tried");
    assert_eq!((&shown["state"], &shown["webhook_id"]), (&"pending".into(), &webhook.into()));
    assert!(shown["log"][0]["error"].is_string(), "{shown}");
    let table = server.says(&["webhooks", "deliveries", "--webhook", webhook, "--state", "pending"]);
    assert!(table.contains(&id) && table.contains("ping"), "{table}");
    assert!(server.says(&["webhooks", "deliveries", &id]).contains("ATTEMPT"));
    server.says(&["webhooks", "replay", &id]);
    wait(2).expect("it is sent at once");
    let output = server.cubicle(&["webhooks", "replay", "dlv-aaaaaaaaaaaaaaaaaaaaaaaaaa"]);
    assert!(complaint(&output).contains("no such delivery"), "{output:?}");
}
