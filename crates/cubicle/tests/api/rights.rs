//! Keys, scopes and tenants: nobody sees or touches what is not theirs, on any route, by any id.

use serde_json::{Value, json};

use crate::client::{Server, With};

#[test]
fn a_request_without_a_good_key_is_refused() {
    let Some(server) = Server::start() else { return };
    for key in ["", "nonsense", "cub_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"] {
        let refused = server.request("GET", "/api/v1/leases", b"", &With { key: Some(key), headers: &[] });
        assert_eq!(refused.refused(401), "unauthenticated");
        assert_eq!(refused.header("www-authenticate"), "Bearer");
    }
    use std::os::unix::fs::PermissionsExt;
    let file = std::fs::metadata(server.host.data_dir().join("server/admin.key")).expect("it is there");
    assert_eq!(file.permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_key_has_its_scopes_its_time_and_its_end() {
    let Some(server) = Server::start() else { return };
    let reader = server.key_of("acme", "reader", &["read"]);
    assert_eq!(server.with_key("POST", "/api/v1/leases", &json!({}), &reader).refused(403), "denied");
    assert_eq!(server.with_key("GET", "/api/v1/leases", &json!({}), &reader).status, 200);
    assert_eq!(server.with_key("GET", "/api/v1/audit", &json!({}), &reader).refused(403), "denied");
    let manager = server.key_of("acme", "boss", &["read", "run", "manage"]);
    let more = json!({ "label": "x", "scopes": ["admin"] });
    assert_eq!(server.with_key("POST", "/api/v1/keys", &more, &manager).refused(403), "denied");
    let elsewhere = json!({ "label": "x", "scopes": ["read"], "tenant": "default" });
    assert_eq!(server.with_key("POST", "/api/v1/keys", &elsewhere, &manager).refused(403), "denied");

    let made =
        server.with_key("POST", "/api/v1/keys", &json!({ "label": "x", "scopes": ["read"] }), &manager).ok();
    let (id, secret) = (made["key_id"].as_str().expect("an id"), made["secret"].as_str().expect("a secret"));
    assert_eq!(server.with_key("GET", "/api/v1/whoami", &json!({}), secret).ok()["tenant"], "acme");
    let shown = server.with_key("GET", &format!("/api/v1/keys/{id}"), &json!({}), &manager);
    assert!(!shown.text.contains(&secret[4..]), "a secret was shown twice");
    server.with_key("DELETE", &format!("/api/v1/keys/{id}"), &json!({}), &manager).ok();
    assert_eq!(server.with_key("GET", "/api/v1/whoami", &json!({}), secret).refused(401), "unauthenticated");
    let over = json!({ "label": "x", "scopes": ["read"], "expires_at": "2001-01-01T00:00:00Z" });
    assert_eq!(server.with_key("POST", "/api/v1/keys", &over, &manager).refused(400), "invalid");
}

#[test]
fn a_key_that_asks_too_often_has_to_wait() {
    let Some(server) = Server::start() else { return };
    let asked = json!({ "label": "slow", "scopes": ["read"], "requests_per_second": 3 });
    let key = server.post("/api/v1/keys", &asked).ok()["secret"].as_str().expect("a secret").to_owned();
    let answers: Vec<_> =
        (0..20).map(|_| server.with_key("GET", "/api/v1/whoami", &json!({}), &key)).collect();
    let limited = answers.iter().find(|answer| answer.status == 429).expect("twenty at once are too many");
    assert_eq!(limited.refused(429), "rate_limited");
    assert!(!limited.header("retry-after").is_empty());
}

#[test]
fn users_of_one_tenant_do_not_touch_each_others_sandboxes() {
    let Some(server) = Server::start() else { return };
    let (ada, eve) =
        (server.key_of("acme", "ada", &["read", "run"]), server.key_of("acme", "eve", &["read", "run"]));
    let lease = server.with_key("POST", "/api/v1/leases", &json!({}), &ada).ok();
    let path = format!("/api/v1/sandboxes/{}/execs", lease["sandbox_id"].as_str().expect("it is active"));
    assert_eq!(server.with_key("POST", &path, &json!({ "command": "true" }), &eve).refused(404), "not_found");
    let listed = server.with_key("GET", "/api/v1/leases", &json!({}), &eve).ok();
    assert_eq!(listed["items"], json!([]));
    let for_ada = json!({ "user": "ada" });
    assert_eq!(server.with_key("POST", "/api/v1/leases", &for_ada, &eve).refused(403), "denied");
    let proxy = server.key_of("acme", "proxy", &["read", "run", "act_for_others"]);
    let lease = server.with_key("POST", "/api/v1/leases", &for_ada, &proxy).ok();
    assert_eq!(lease["user"], "ada");
}

/// Every operation of the document, with the ids of another tenant's objects.
#[test]
fn no_route_shows_or_touches_an_object_of_another_tenant() {
    let Some(server) = Server::start_with(&["--pool-size", "2", "--workers"]) else { return };
    let (lease, sandbox) = server.lease(&json!({}));
    let task = json!({ "task_description": "private-words", "model": "custom", "command": ["true"] });
    let task = server.post("/api/v1/tasks", &task).ok();
    let exec = server
        .post(
            &format!("/api/v1/sandboxes/{sandbox}/execs"),
            &json!({ "command": "echo private-words", "background": true }),
        )
        .ok();
    let exec = exec["exec_id"].as_str().expect("an id").to_owned();
    server.put("/api/v1/templates/private-template", &json!({})).ok();
    let bound = json!([{ "host": "private.example", "form": "bearer" }]);
    server
        .put("/api/v1/secrets/private-secret", &json!({ "value": "private-words", "bindings": bound }))
        .ok();
    server
        .request("PUT", "/api/v1/workspace/files/data/private-file", b"private-words", &With::default())
        .ok();
    let skill = json!({ "name": "private-skill", "description": "private-label", "content": "" });
    server.post("/api/v1/skills", &skill).ok();
    let key = server.post("/api/v1/keys", &json!({ "label": "private-label", "scopes": ["read"] })).ok();
    let one = server.post("/api/v1/execs", &json!({ "command": "echo private-words" })).ok();
    let artifact = crate::client::eventually("a kept journal", || {
        let all = server.get("/api/v1/artifacts").ok();
        all["items"]
            .as_array()
            .expect("items")
            .first()
            .map(|artifact| artifact["artifact_id"].as_str().expect("an id").to_owned())
    });
    let hook = server.post("/api/v1/webhooks", &json!({ "url": "https://private.example/hook" })).ok();
    let hook = hook["webhook_id"].as_str().expect("an id").to_owned();
    let delivery = server.post(&format!("/api/v1/webhooks/{hook}/test"), &json!({})).ok();
    let delivery = delivery["delivery_id"].as_str().expect("an id").to_owned();
    let ids = [
        ("{webhook_id}", hook.as_str()),
        ("{delivery_id}", &delivery),
        ("{lease_id}", &lease),
        ("{sandbox_id}", &sandbox),
        ("{exec_id}", &exec),
        ("{context_id}", &exec),
        ("{key_id}", key["key_id"].as_str().expect("an id")),
        ("{artifact_id}", &artifact),
        ("{task_id}", task["task_id"].as_str().expect("an id")),
        ("{name}", "private-template"),
        ("{id}", one["exec_id"].as_str().expect("an id")),
        ("{port}", "8000"),
        ("{secret_name}", "private-secret"),
        ("{tool}", "list_dir"),
        ("{path}", "data/private-file"),
        ("{skill_name}", "private-skill"),
    ];
    let eve = server.key_of("others", "eve", &["read", "run", "manage", "act_for_others"]);
    let document = server.get("/api/v1/openapi.json").ok();
    let mut asked = 0;
    for (path, operations) in document["paths"].as_object().expect("paths") {
        for (method, operation) in operations.as_object().expect("operations") {
            let mut target = ids.iter().fold(path.clone(), |path, (name, id)| path.replace(name, id));
            if path == "/api/v1/tenants/{name}" {
                target = "/api/v1/tenants/default".into();
            }
            assert!(!target.contains('{'), "{path} has a parameter that this test does not know");
            let names = operation["parameters"].as_array().cloned().unwrap_or_default();
            if names.iter().any(|name| name["name"] == "path" && name["in"] == "query") {
                target.push_str("?path=/workspace");
            }
            if path == "/api/v1/events" {
                continue; // Never ends; the next test reads it.
            }
            let body = body_for(operation, &document);
            let answer = server.request(
                &method.to_uppercase(),
                &target,
                body.to_string().as_bytes(),
                &With { key: Some(&eve), headers: &[] },
            );
            asked += 1;
            for secret in [
                "private-words",
                "private-label",
                "private.example",
                "private-secret",
                &lease,
                &sandbox,
                &exec,
                &artifact,
                &hook,
                &delivery,
            ] {
                let echoed = answer.status >= 400 && target.contains(secret);
                assert!(
                    echoed || !answer.text.contains(secret),
                    "{method} {target} shows {secret}: {answer:?}"
                );
            }
            // A tenant has templates and shared files of its own under the same names.
            let own =
                ["/api/v1/templates", "/api/v1/workspace/files/"].iter().any(|own| path.starts_with(own));
            if path.contains('{') && !own {
                assert!([400, 403, 404].contains(&answer.status), "{method} {target}: {answer:?}");
            }
        }
    }
    assert!(asked > 40, "only {asked} operations were asked for");
    // Everything is as it was.
    assert_eq!(server.get(&format!("/api/v1/leases/{lease}")).ok()["status"], "ACTIVE");
    assert_eq!(server.get("/api/v1/templates/private-template").status, 200);
    assert_eq!(server.get("/api/v1/workspace/files/data/private-file").text, "private-words");
    assert_eq!(server.get("/api/v1/skills/private-skill").status, 200);
    assert_eq!(server.get("/api/v1/secrets/private-secret").ok()["version"], 1);
    assert_eq!(server.get(&format!("/api/v1/webhooks/{hook}")).ok()["enabled"], true);
    assert_eq!(
        server.get(&format!("/api/v1/keys/{}", key["key_id"].as_str().expect("an id"))).ok()["revoked_at"],
        Value::Null
    );
}

#[test]
fn events_of_another_tenant_are_not_seen() {
    use std::io::BufRead;
    let Some(server) = Server::start() else { return };
    let (lease, _) = server.lease(&json!({}));
    let eve = server.key_of("others", "eve", &["read", "run"]);
    let own = server.with_key("POST", "/api/v1/leases", &json!({}), &eve).ok();
    let path = format!("{}/api/v1/events?after=0", server.address);
    let mut response =
        ureq::get(&path).header("authorization", format!("Bearer {eve}")).call().expect("it answers");
    let mut lines = std::io::BufReader::new(response.body_mut().as_reader()).lines();
    let first = lines
        .find(|line| line.as_ref().is_ok_and(|line| line.starts_with("data: ")))
        .expect("an event")
        .expect("a line");
    assert!(first.contains(own["lease_id"].as_str().expect("an id")), "{first}");
    assert!(!first.contains(&lease), "{first}");
}

/// A body that fits the schema well enough to get past parsing.
fn body_for(operation: &Value, document: &Value) -> Value {
    let schema = &operation["requestBody"]["content"]["application/json"]["schema"]["$ref"];
    let Some(name) = schema.as_str().and_then(|schema| schema.rsplit('/').next()) else { return json!({}) };
    let schema = &document["components"]["schemas"][name];
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    let value = |field: &str| match field {
        "command" => json!("true"),
        "scopes" => json!(["read"]),
        "signal" => json!("TERM"),
        "rows" | "columns" => json!(20),
        "name" => json!("made-by-eve"),
        _ => json!("x"),
    };
    required
        .iter()
        .filter_map(Value::as_str)
        .map(|field| (field.to_owned(), value(field)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

#[test]
fn without_keys_only_this_host_is_answered() {
    let Some(server) = Server::start_with(&["--without-keys", "--pool-size", "1"]) else { return };
    let keyless = |headers| server.request("GET", "/api/v1/whoami", b"", &With { key: Some(""), headers });
    assert_eq!(keyless(&[]).ok()["user"], "local");
    assert_eq!(keyless(&[("host", "evil.example")]).refused(401), "unauthenticated");
    assert_eq!(keyless(&[("origin", "http://evil.example")]).refused(401), "unauthenticated");
    let refused = server.host.cubicle(&["up", "--listen", "0.0.0.0:0", "--without-keys"]);
    assert_ne!(refused.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("without keys anybody"), "{refused:?}");
}
