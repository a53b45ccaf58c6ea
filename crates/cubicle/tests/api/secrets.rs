//! Secrets go in, are used, and are seen by nobody: not in answers, logs, events, the audit log or on the disk.

use std::io::BufRead;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use cubicle_tests_postgresql::Cluster;
use serde_json::{Value, json};

use crate::client::{Reply, Server, With, eventually};
use crate::host::Host;

const VALUE: &str = "sk-Q7x9-this-is-seen-by-nobody";
const KEY_PATH: &str = "/api/v1/secrets/KEY";
/// Whatever the caller's own environment holds is none of the server's business here.
const NO_PROVIDERS: [(&str, &str); 4] =
    [("ANTHROPIC_API_KEY", ""), ("OPENAI_API_KEY", ""), ("GEMINI_API_KEY", ""), ("GOOGLE_API_KEY", "")];

fn start(environment: &[(&str, &str)]) -> Option<Server> {
    let environment = [&NO_PROVIDERS, environment].concat();
    Some(Server::start_on(Host::new()?, &["--pool-size", "1"], &environment))
}

fn bound(value: &str) -> Value {
    json!({ "value": value, "bindings": [{ "host": "api.example", "form": "header:X-Key", "base": "api" }] })
}

fn put(server: &Server, body: &Value, headers: &[(&str, &str)]) -> Reply {
    server.request("PUT", KEY_PATH, body.to_string().as_bytes(), &With { key: None, headers })
}

fn names(list: &Value) -> Vec<&str> {
    let items = list["items"].as_array().expect("a list has items");
    items.iter().map(|item| item["name"].as_str().expect("a secret has a name")).collect()
}

#[test]
fn a_secret_is_set_rotated_and_removed() {
    let Some(mut server) = start(&[]) else { return };
    let made = put(&server, &bound("first"), &[]);
    assert_eq!((made.status, made.header("etag")), (201, "\"1\""));
    let made = made.ok();
    let shown = json!([{ "host": "api.example", "port": 443, "form": "header:x-key", "base": "api", "even_plain": false }]);
    assert_eq!(
        (&made["bindings"], &made["source"], &made["available"]),
        (&shown, &json!("value"), &json!(true))
    );
    assert!(made["warning"].as_str().expect("it is short").contains("not masked"), "{made}");

    let again = put(&server, &bound("first"), &[]);
    assert_eq!((again.status, again.header("etag")), (200, "\"1\""), "the same is not written again");
    assert_eq!(put(&server, &bound("other"), &[("if-none-match", "*")]).refused(409), "conflict");
    let rotated = put(&server, &json!({ "value": "a-second-value" }), &[("if-match", "\"1\"")]);
    assert_eq!((rotated.status, rotated.header("etag")), (200, "\"2\""));
    let rotated = rotated.ok();
    assert_eq!((&rotated["bindings"], &rotated["warning"]), (&shown, &Value::Null), "where it goes is kept");
    assert_eq!(put(&server, &bound("third"), &[("if-match", "\"1\"")]).refused(409), "conflict");

    server.put("/api/v1/secrets/ANOTHER", &json!({ "value": "another-value" })).ok();
    assert_eq!(names(&server.get("/api/v1/secrets").ok()), ["ANOTHER", "KEY"]);
    let page = server.get("/api/v1/secrets?limit=1").ok();
    assert_eq!((names(&page), &page["next"]), (vec!["ANOTHER"], &json!("ANOTHER")));
    let page = server.get("/api/v1/secrets?limit=1&after=ANOTHER").ok();
    assert_eq!((names(&page), &page["next"]), (vec!["KEY"], &Value::Null));

    server.kill();
    server.start_again();
    let after = server.get(KEY_PATH);
    assert_eq!(after.header("etag"), "\"2\"");
    assert_eq!(after.ok(), rotated, "and it can still be opened");
    assert_eq!(server.delete(KEY_PATH).status, 204);
    assert_eq!(server.get(KEY_PATH).refused(404), "not_found");
    assert_eq!(server.delete(KEY_PATH).refused(404), "not_found");
    assert_eq!(put(&server, &bound("once more"), &[]).header("etag"), "\"5\"", "no version is used twice");
}

#[test]
fn what_a_secret_cannot_be_is_refused_with_the_reason() {
    let Some(server) = start(&[]) else { return };
    let to = |binding: Value| json!({ "value": "the-value", "bindings": [binding] });
    let table = [
        (json!({}), "exactly one of"),
        (json!({ "value": "x", "from_file": "/x" }), "exactly one of"),
        (json!({ "value": "" }), "not empty"),
        (json!({ "value": "x".repeat(65537) }), "at most"),
        (json!({ "from_file": "relative" }), "absolute path"),
        (json!({ "from_environment": "A=B" }), "name of a variable"),
        (to(json!({ "host": "*.example", "form": "bearer" })), "'host' of a binding"),
        (to(json!({ "host": "127.0.0.1", "form": "bearer" })), "'host' of a binding"),
        (to(json!({ "host": "a.example", "form": "cookie:x" })), "'form' of a binding"),
        (to(json!({ "host": "a.example", "form": "header:Host" })), "steers the request"),
        (to(json!({ "host": "a.example", "form": "bearer", "port": 0 })), "not a port"),
        (to(json!({ "host": "a.example", "form": "bearer", "base": "A.b" })), "'base' of a binding"),
        (to(json!({ "host": "a.example", "form": "bearer", "templates": [] })), "no template"),
        (
            json!({ "value": "x", "bindings": vec![json!({ "host": "a.example", "form": "bearer" }); 65] }),
            "at most 64",
        ),
        (to(json!({ "host": "a.example" })), "line 1, column"),
        (json!({ "value": "x", "vlaue": "y" }), "line 1, column"),
    ];
    for (body, expected) in table {
        let refused = put(&server, &body, &[]);
        assert_eq!(refused.refused(400), "invalid", "{body}");
        assert!(refused.text.contains(expected), "{body}: {refused:?}");
    }
    assert_eq!(server.put("/api/v1/secrets/1KEY", &bound("x")).refused(400), "invalid");
    put(&server, &bound("the-value"), &[]).ok();
    let taken = server.put("/api/v1/secrets/SECOND", &bound("the-value"));
    assert_eq!(taken.refused(409), "conflict");
    assert!(taken.text.contains("'KEY' goes to api.example:443"), "{taken:?}");
}

/// Every file below a directory, with its bytes.
fn files(place: &Path, found: &mut Vec<(String, Vec<u8>)>) {
    for entry in std::fs::read_dir(place).expect("the directory is ours").flatten() {
        let kind = entry.file_type().expect("an entry has a type");
        match () {
            () if kind.is_dir() => files(&entry.path(), found),
            () if kind.is_file() => {
                let bytes = std::fs::read(entry.path()).expect("the file is ours");
                found.push((entry.path().display().to_string(), bytes));
            }
            () => {}
        }
    }
}

fn assert_unseen(what: &str, bytes: &[u8]) {
    // As it is, and in base64 wherever it begins.
    for spelling in [&VALUE.as_bytes()[3..20], b"UTd4OS10aGlz", b"VE3eDktdGhpc", b"N3g5LXRoaXMt"] {
        let found = bytes.windows(spelling.len()).any(|window| window == spelling);
        assert!(!found, "{what} shows the value as {}", String::from_utf8_lossy(spelling));
    }
}

#[test]
fn the_value_of_a_secret_is_nowhere_to_be_seen() {
    let Some(mut server) = start(&[("CUBICLE_LOG", "trace")]) else { return };
    let mut answers = String::new();
    let mut keep = |reply: Reply| {
        answers.push_str(&format!("{reply:?}\n"));
        reply
    };
    let raw = |body: &[u8]| {
        let headers = [("idempotency-key", "once"), ("content-type", "application/json")];
        server.request("PUT", KEY_PATH, body, &With { key: None, headers: &headers })
    };
    assert_eq!(keep(raw(bound(VALUE).to_string().as_bytes())).status, 201);
    assert_eq!(keep(raw(bound(VALUE).to_string().as_bytes())).status, 200);
    // Whatever is wrong with a body is said without repeating it.
    let wrong = [
        format!("{{\"value\": [\"{VALUE}\"]}}"),
        format!("{{\"value\": {{\"{VALUE}\": 1}}}}"),
        format!("{{\"{VALUE}\": \"x\"}}"),
        format!("{{\"value\": \"{VALUE}"),
        format!("{{\"value\": \"{VALUE}\", \"from_file\": \"/x\"}}"),
        format!(
            "{{\"value\": \"{VALUE}\\n\", \"bindings\": [{{\"host\": \"b.example\", \"form\": \"bearer\"}}]}}"
        ),
        format!("{{\"value\": \"{VALUE}\", \"bindings\": \"{VALUE}\"}}"),
        format!("\"{VALUE}\""),
        VALUE.into(),
    ];
    for body in &wrong {
        assert_eq!(keep(raw(body.as_bytes())).refused(400), "invalid", "{body}");
    }
    let denied = server.key_of("default", "eve", &["read", "run"]);
    let by_eve = server.with_key("PUT", KEY_PATH, &bound(VALUE), &denied);
    assert_eq!(keep(by_eve).refused(403), "denied");
    for path in [KEY_PATH, "/api/v1/secrets", "/api/v1/audit?limit=1000", "/metrics", "/api/v1/whoami"] {
        assert_eq!(keep(server.get(path)).status, 200, "{path}");
    }
    let audit = server.get("/api/v1/audit?action=secret.set").ok();
    assert_eq!(
        (&audit["items"][0]["subject"], &audit["items"][0]["detail"]),
        (&json!("KEY"), &json!("version 1"))
    );
    let mut events = server.stream("/api/v1/events?after=0", &[]);
    let mut line = String::new();
    while !line.contains("secret.set") {
        assert!(events.read_line(&mut line).expect("events can be read") > 0, "no event: {line}");
    }
    events.read_line(&mut line).expect("events can be read");
    answers.push_str(&line);
    assert_unseen("an answer", answers.as_bytes());

    assert_eq!(server.stop(), 0);
    assert_unseen("the log", server.said().as_bytes());
    let mut kept = Vec::new();
    files(&server.host.data_dir(), &mut kept);
    assert!(
        kept.iter().any(|(path, bytes)| path.contains("cubicle.db") && bytes.len() > 4096),
        "no database"
    );
    for (path, bytes) in kept {
        assert_unseen(&path, &bytes);
    }
    let key = server.host.data_dir().join("server/secrets.key");
    let mode = std::fs::metadata(key).expect("the first start makes it").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn another_tenant_and_whoever_may_not_manage_see_nothing() {
    let Some(server) = start(&[]) else { return };
    let ada = server.key_of("acme", "ada", &["read", "run", "manage"]);
    let eve = server.key_of("others", "eve", &["read", "run", "manage", "act_for_others"]);
    let worker = server.key_of("acme", "worker", &["read", "run", "act_for_others"]);
    server.with_key("PUT", KEY_PATH, &bound(VALUE), &ada).ok();
    for method in ["GET", "DELETE"] {
        assert_eq!(server.with_key(method, KEY_PATH, &json!({}), &eve).refused(404), "not_found");
        assert_eq!(server.with_key(method, KEY_PATH, &json!({}), &worker).refused(403), "denied");
    }
    assert_eq!(names(&server.with_key("GET", "/api/v1/secrets", &json!({}), &eve).ok()), Vec::<&str>::new());
    assert_eq!(server.with_key("GET", "/api/v1/secrets", &json!({}), &worker).refused(403), "denied");
    // The same name and the same host are another tenant's own business.
    let own = server.with_key("PUT", KEY_PATH, &bound("eves-own-value"), &eve);
    assert_eq!((own.status, own.header("etag")), (201, "\"1\""));
    let adas = server.with_key("GET", KEY_PATH, &json!({}), &ada);
    assert_eq!((adas.header("etag"), &adas.json()["updated_by"]), ("\"1\"", &json!("ada")));
    for body in [json!({ "from_file": "/etc/hostname" }), json!({ "from_environment": "HOME" })] {
        assert_eq!(server.with_key("PUT", "/api/v1/secrets/MINE", &body, &ada).refused(403), "denied");
    }
}

#[test]
fn files_and_variables_of_the_server_are_sources_for_administrators() {
    let Some(server) = start(&[("SOME_TOKEN", "token-of-the-server")]) else { return };
    let path = server.host.scratch().join("key");
    let asked = json!({ "from_file": path });
    let absent = put(&server, &asked, &[]).ok();
    assert_eq!(
        (&absent["source"], &absent["available"], &absent["from"]),
        (&json!("file"), &json!(false), &json!(path))
    );
    assert!(absent["because"].as_str().expect("a reason").contains("cannot be read"), "{absent}");
    std::fs::write(&path, "value-of-the-file\n").expect("scratch is writable");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("it is ours");
    assert_eq!(server.get(KEY_PATH).ok()["available"], true);
    let found = server.put("/api/v1/secrets/TOKEN", &json!({ "from_environment": "SOME_TOKEN" })).ok();
    assert_eq!((&found["source"], &found["available"]), (&json!("environment"), &json!(true)));
    let text = server.get("/api/v1/secrets").text;
    assert!(!text.contains("value-of-the-file") && !text.contains("token-of-the-server"), "{text}");
}

#[test]
fn the_key_of_a_provider_in_the_environment_is_bound_to_it() {
    let Some(server) = start(&[("ANTHROPIC_API_KEY", VALUE), ("GOOGLE_API_KEY", "AIza-value")]) else {
        return;
    };
    let listed = server.get("/api/v1/secrets").ok();
    assert_eq!(names(&listed), ["ANTHROPIC_API_KEY", "GOOGLE_API_KEY"]);
    let found = &listed["items"][0];
    assert_eq!((&found["source"], &found["version"]), (&json!("environment"), &json!(0)));
    let binding = &found["bindings"][0];
    assert_eq!(
        (&binding["host"], &binding["form"], &binding["base"]),
        (&json!("api.anthropic.com"), &json!("header:x-api-key"), &json!("anthropic"))
    );
    assert_unseen("the list", listed.to_string().as_bytes());
    let other = server.key_of("others", "eve", &["read", "manage"]);
    assert_eq!(
        names(&server.with_key("GET", "/api/v1/secrets", &json!({}), &other).ok()),
        Vec::<&str>::new()
    );

    let path = "/api/v1/secrets/ANTHROPIC_API_KEY";
    let refused = server.delete(path);
    assert_eq!(refused.refused(409), "conflict");
    assert!(refused.text.contains("environment"), "{refused:?}");
    let own = server.put(path, &json!({ "value": "sk-of-our-own" })).ok();
    assert_eq!(
        (&own["source"], &own["bindings"][0]),
        (&json!("value"), binding),
        "it goes to the same place"
    );
    assert_eq!(server.get("/api/v1/secrets").ok()["items"].as_array().map(Vec::len), Some(2));
    assert_eq!(server.delete(path).status, 204);
    assert_eq!(server.get(path).ok()["source"], "environment");
}

/// What a start that is refused says.
fn refused_start(server: &Server, environment: &[(&str, &str)]) -> String {
    let mut command = server.host.command(crate::host::BINARY, &["up", "--listen", "127.0.0.1:0"]);
    let output = command.envs(environment.iter().copied()).output().expect("the built program starts");
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn without_the_key_that_sealed_it_nothing_is_sealed_anew() {
    let Some(mut server) = start(&[]) else { return };
    put(&server, &bound(VALUE), &[]).ok();
    assert_eq!(server.stop(), 0);
    let file = server.host.data_dir().join("server/secrets.key");
    let key = std::fs::read_to_string(&file).expect("the first start makes it");

    // Missing: refused, and no new one is made.
    std::fs::remove_file(&file).expect("it is ours");
    let said = refused_start(&server, &[]);
    assert!(said.contains("'KEY' of the tenant 'default'") && said.contains("put the file back"), "{said}");
    assert!(!file.exists());
    // Damaged: refused by the line, which is not shown.
    for damage in [&key[..20], "", "\u{1}\u{2}"] {
        std::fs::write(&file, damage).expect("it is ours");
        let said = refused_start(&server, &[]);
        assert!(said.contains("does not hold keys") && said.contains("put back"), "{said}");
        assert!(damage.len() < 20 || !said.contains(damage), "{said}");
        assert_eq!(std::fs::read_to_string(&file).expect("it is ours"), damage);
    }
    assert!(refused_start(&server, &[("CUBICLE_SECRETS_KEY", "nonsense")]).contains("CUBICLE_SECRETS_KEY"));
    let said = refused_start(&server, &[("CUBICLE_SECRETS_KEY_FILE", "/nonexistent/key")]);
    assert!(said.contains("/nonexistent/key"), "{said}");

    // Another key: what it does not open is told, and can be set again.
    std::fs::write(&file, &key).expect("it is ours");
    let other = "q6urq6urq6urq6urq6urq6urq6urq6urq6urq6urq6s=";
    server.start_again_with(&[("CUBICLE_SECRETS_KEY", other)]);
    let shut = server.get(KEY_PATH).ok();
    assert_eq!(shut["available"], false, "{shut}");
    assert!(shut["because"].as_str().expect("a reason").contains("add that key"), "{shut}");
    server.put("/api/v1/secrets/NEW", &json!({ "value": "sealed-by-the-other" })).ok();
    assert_eq!(server.stop(), 0);

    // Replaced: a new key before the others opens all, and afterwards alone.
    let newest = "zc3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc0=";
    std::fs::write(&file, format!("# of today\n{newest}\n{key}{other}\n")).expect("it is ours");
    server.start_again();
    let all = |server: &Server| {
        let list = server.get("/api/v1/secrets").ok();
        let items = list["items"].as_array().expect("items").clone();
        items.iter().map(|item| (item["name"].clone(), item["available"] == true)).collect::<Vec<_>>()
    };
    let both = [(json!("KEY"), true), (json!("NEW"), true)];
    assert_eq!(all(&server), both);
    assert_eq!(server.stop(), 0);
    std::fs::write(&file, format!("{newest}\n")).expect("it is ours");
    server.start_again();
    assert_eq!(all(&server), both, "a start puts everything under the first key");
    assert_eq!(server.get(KEY_PATH).header("etag"), "\"1\"", "the value is the same");
}

#[test]
fn servers_of_one_database_share_secrets_by_sharing_the_key() {
    let (Some(here), Some(there), Some(cluster)) = (Host::new(), Host::new(), Cluster::own()) else { return };
    let url = cluster.fresh_database();
    let key = "q6urq6urq6urq6urq6urq6urq6urq6urq6urq6urq6s=";
    let environment = [&NO_PROVIDERS[..], &[("DB_URL", url.as_str()), ("CUBICLE_SECRETS_KEY", key)]].concat();
    let first = Server::start_on(here, &["--pool-size", "0"], &environment);
    put(&first, &bound(VALUE), &[]).ok();
    let second = Server::start_on(there, &["--pool-size", "0"], &environment);
    let admin = first.admin_key();
    let seen = second.with_key("GET", KEY_PATH, &json!({}), &admin).ok();
    assert_eq!((&seen["available"], &seen["version"]), (&json!(true), &json!(1)));
    second.with_key("PUT", KEY_PATH, &json!({ "value": "rotated-there" }), &admin).ok();
    let seen =
        eventually("the new version", || Some(first.get(KEY_PATH).ok()).filter(|seen| seen["version"] == 2));
    assert_eq!(seen["available"], true, "{seen}");
    // A third one without the key is told where it is.
    let Some(third) = Host::new() else { return };
    let mut command = third.command(crate::host::BINARY, &["up", "--listen", "127.0.0.1:0"]);
    let output = command.env("DB_URL", &url).output().expect("the built program starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("another server of this database"), "{said}");
}
