//! What a lease may reach, as the API tells it and is told. What becomes of real connections is another suite's.

use serde_json::{Value, json};

use crate::client::{Server, eventually};
use crate::host::Host;

/// Asks the gateway for a name that nobody has, and says what it answered.
const TRY: &str = "python3 -c 'import socket; s = socket.create_connection((\"127.0.0.1\", 3128)); \
                   s.sendall(b\"CONNECT nobody.example:443 HTTP/1.1\\r\\nhost: nobody.example:443\\r\\n\\r\\n\"); \
                   print(s.recv(4096).decode().split(\"\\r\\n\")[0])'";

fn of(lease: &str) -> String {
    format!("/api/v1/leases/{lease}/egress")
}

#[test]
fn a_policy_that_cannot_be_used_is_refused_with_its_place_and_the_one_before_stays() {
    let Some(server) = Server::start() else { return };
    let (lease, _) = server.lease(&json!({ "egress": { "policy": "allow a.example" } }));
    for (policy, part) in [
        ("allow a.example\nalow b.example", "line 2, column 1"),
        ("allow @no-such-bundle", "there is no bundle '@no-such-bundle'"),
        ("none\nallow a.example", "has no network"),
    ] {
        let refused = server.put(&of(&lease), &json!({ "policy": policy }));
        assert_eq!(refused.refused(400), "invalid", "{policy}");
        let message = refused.json()["error"]["message"].as_str().unwrap_or_default().to_owned();
        assert!(message.contains(part), "{message}");
        let made = server.post("/api/v1/leases", &json!({ "egress": { "policy": policy } }));
        assert_eq!(made.refused(400), "invalid", "{policy}");
    }
    let template = json!({ "egress": "alow a.example" });
    assert_eq!(server.put("/api/v1/templates/bad", &template).refused(400), "invalid");
    let holds = server.get(&of(&lease)).ok();
    assert_eq!(
        (&holds["policy"], &holds["said_by"]),
        (&json!("allowlist\nallow a.example\n"), &json!("lease"))
    );
}

#[test]
fn the_nearest_policy_holds_and_survives_a_restart() {
    let Some(mut server) = Server::start() else { return };
    server.put("/api/v1/templates/own", &json!({ "egress": "allow t.example" })).ok();
    let (lease, _) = server.lease(&json!({ "template": "own" }));
    let said = |server: &Server| {
        let egress = server.get(&of(&lease)).ok();
        (egress["policy"].as_str().unwrap_or_default().to_owned(), egress["said_by"].clone())
    };
    assert_eq!(said(&server), ("allowlist\nallow t.example\n".into(), json!("template")));
    server.put(&of(&lease), &json!({ "policy": "open\ndeny x.example", "record": true })).ok();
    server.kill();
    server.start_again();
    assert_eq!(said(&server), ("open\ndeny x.example\n".into(), json!("lease")));
    assert_eq!(server.get(&of(&lease)).ok()["record"], true);
    server.put(&of(&lease), &json!({})).ok();
    assert_eq!(said(&server).1, "template", "without a word it is the template's again");
    server.delete(&format!("/api/v1/leases/{lease}")).ok();
    assert_eq!(server.put(&of(&lease), &json!({ "policy": "none" })).refused(409), "conflict");
}

#[test]
fn a_port_that_a_policy_names_leads_to_the_gateway_whoever_wrote_the_policy() {
    let Some(server) = Server::start() else { return };
    let policy = "allow tcp://db.example:5432";
    server.put("/api/v1/templates/database", &json!({ "egress": policy })).ok();
    let probe = "python3 -c 'import socket; print(socket.socket().connect_ex((\"127.0.0.1\", 5432)))'";
    let (_, plain) = server.lease(&json!({}));
    assert_eq!(server.prints(&plain, probe), "111\n", "nobody listens there");
    for asked in [json!({ "template": "database" }), json!({ "egress": { "policy": policy } })] {
        let (_, sandbox) = server.lease(&asked);
        assert_eq!(server.prints(&sandbox, probe), "0\n", "{asked}");
    }
}

#[test]
fn an_exec_has_a_policy_of_its_own_while_it_runs() {
    let Some(server) = Server::start() else { return };
    let (lease, sandbox) = server.lease(&json!({ "egress": { "policy": "allow a.example" } }));
    let execs = format!("/api/v1/sandboxes/{sandbox}/execs");
    let running =
        server.post(&execs, &json!({ "command": "sleep 600", "policy": "none", "background": true })).ok();
    let said_by = || server.get(&of(&lease)).ok()["said_by"].clone();
    assert_eq!(said_by(), "exec");
    let second = server.post(&execs, &json!({ "command": "true", "policy": "open" }));
    assert_eq!(second.refused(409), "conflict", "all of a sandbox shares one network");
    server.post(&execs, &json!({ "command": "true" })).ok();
    let id = running["exec_id"].as_str().expect("an exec has an id");
    assert_eq!(server.delete(&format!("/api/v1/execs/{id}?grace_seconds=0")).status, 204);
    eventually("the lease's own policy", || (said_by() == "lease").then_some(()));
    assert_eq!(
        server.post(&execs, &json!({ "command": "true", "policy": "open" })).ok()["result"]["exit_code"],
        0
    );
    assert_eq!(said_by(), "lease");
}

#[test]
fn what_was_refused_is_in_the_bill_of_the_exec_and_of_its_lease() {
    let Some(mut server) = Server::start() else { return };
    let (lease, sandbox) = server.lease(&json!({ "egress": { "policy": "allow a.example" } }));
    let exec = server.post(&format!("/api/v1/sandboxes/{sandbox}/execs"), &json!({ "command": TRY })).ok();
    let printed = exec["result"]["stdout"]["content"].as_str().unwrap_or_default();
    assert!(printed.starts_with("HTTP/1.1 403"), "{exec}");
    let denials = json!([{ "target": "nobody.example:443", "rule": "not allowed", "count": 1 }]);
    assert_eq!(exec["result"]["egress"]["denials"], denials);
    let id = exec["exec_id"].as_str().expect("an exec has an id");
    assert_eq!(server.get(&format!("/api/v1/execs/{id}/egress")).ok()["denials"], denials);
    assert_eq!(server.get(&of(&lease)).ok()["bill"]["denials"], denials);
    // A second exec has what is its own, and the lease has both.
    let quiet =
        server.post(&format!("/api/v1/sandboxes/{sandbox}/execs"), &json!({ "command": "true" })).ok();
    assert_eq!(quiet["result"]["egress"], Value::Null);
    server.delete(&format!("/api/v1/leases/{lease}")).ok();
    let kept = || server.get(&of(&lease)).ok()["bill"]["denials"].clone();
    eventually("the bill of a lease that is over", || (kept() == denials).then_some(()));
    server.kill();
    server.start_again();
    assert_eq!(server.get(&of(&lease)).ok()["bill"]["denials"], denials);
}

#[test]
fn an_explanation_names_the_rule_and_what_would_change_it() {
    let Some(server) = Server::start() else { return };
    let explain = |body: Value| server.post("/api/v1/egress/explain", &body);
    let policy = "allow *.example.org; deny old.example.org";
    for (url, allowed, part) in [
        ("https://a.example.org/x", true, "allow *.example.org"),
        ("https://old.example.org/", false, "deny old.example.org"),
        ("tcp://a.example.org:22", false, "allow"),
        ("http://169.254.169.254/latest", false, "169.254.169.254"),
    ] {
        let told = explain(json!({ "url": url, "policy": policy })).ok();
        assert_eq!(told["allowed"], allowed, "{url}: {told}");
        assert!(told["explanation"].as_str().unwrap_or_default().contains(part), "{url}: {told}");
    }
    let (lease, _) = server.lease(&json!({ "egress": { "policy": "none" } }));
    let told = explain(json!({ "url": "https://a.example/", "lease_id": lease })).ok();
    assert_eq!(told["allowed"], false);
    for bad in ["", "a.example", "ftp://a.example/", "https://", "https://a_b.example/", "tcp://a.example"] {
        assert_eq!(explain(json!({ "url": bad, "policy": "open" })).refused(400), "invalid", "{bad}");
    }
    let both = json!({ "url": "https://a.example/", "policy": "open", "template": "default" });
    assert_eq!(explain(both).refused(400), "invalid");
    let bundles = server.get("/api/v1/egress/bundles").ok();
    let names: Vec<_> = bundles.as_array().expect("a list").iter().map(|one| one["name"].clone()).collect();
    assert!(names.contains(&json!("anthropic")) && names.contains(&json!("python")), "{names:?}");
}

#[test]
fn a_sandbox_is_given_secrets_only_where_somebody_asks_who_may_set_them() {
    let Some(server) = Server::start() else { return };
    server.put("/api/v1/secrets/KEY", &json!({ "value": "the-value-of-it" })).ok();
    let asked = json!({ "secrets": { "files": ["KEY"], "env": { "TOKEN": "KEY" } } });
    let (lease, sandbox) = server.lease(&asked);
    assert_eq!(server.prints(&sandbox, "wc -c < /var/secrets/KEY; printf %s \"$TOKEN\" | wc -c"), "15\n15\n");
    let receipt = server.get(&format!("/api/v1/sandboxes/{sandbox}/receipt")).ok();
    assert_eq!(receipt["secrets"]["files"], json!(["KEY"]), "{receipt}");
    assert_eq!(receipt["secrets"]["env"], json!(["TOKEN"]));
    assert!(!receipt.to_string().contains("the-value-of-it"));
    server.delete(&format!("/api/v1/leases/{lease}")).ok();

    let (_, other) = server.lease(&json!({}));
    assert_eq!(
        server.prints(&other, "ls /var/secrets | wc -l; env | grep -c the-value-of-it || true"),
        "0\n0\n"
    );
    let runner = server.key_of("default", "runner", &["read", "run"]);
    let refused = server.with_key("POST", "/api/v1/leases", &asked, &runner);
    assert_eq!(refused.refused(403), "denied");
    let missing = json!({ "secrets": { "files": ["NOT_THERE"] } });
    assert_eq!(server.post("/api/v1/leases", &missing).refused(404), "not_found");
}

#[test]
fn a_server_without_egress_has_sandboxes_without_a_network() {
    let Some(host) = Host::new() else { return };
    let server = Server::start_on(host, &["--pool-size", "1"], &[("CUBICLE_EGRESS", "false")]);
    let (_, sandbox) = server.lease(&json!({}));
    assert_eq!(server.prints(&sandbox, "env | grep -ci proxy || true"), "0\n");
    let refused = server.post("/api/v1/leases", &json!({ "egress": { "policy": "open" } }));
    assert_eq!(refused.refused(403), "denied");
}

#[test]
fn every_request_and_tunnel_has_a_line_in_the_access_log() {
    let Some(host) = Host::new() else { return };
    let log = host.data_dir().join("access.log");
    let place = log.to_str().expect("it is text").to_owned();
    let server =
        Server::start_on(host, &["--pool-size", "1"], &[("CUBICLE_EGRESS_ACCESS_LOG", place.as_str())]);
    let (_, sandbox) = server.lease(&json!({ "egress": { "policy": "allow nobody.example" } }));
    // Nobody has that name, so that the tunnel comes to nothing, and is told of all the same.
    server.prints(&sandbox, TRY);
    let line = eventually("a line in the access log", || {
        std::fs::read_to_string(&log).ok().filter(|text| text.contains('\n'))
    });
    assert!(
        line.starts_with("nobody.example:443 ") && line.contains("\"CONNECT nobody.example:443\""),
        "{line}"
    );
    assert!(line.contains(&sandbox), "{line}");
}

#[test]
fn an_access_log_that_cannot_be_written_is_told_at_the_start() {
    let Some(host) = Host::new() else { return };
    let output = host
        .command(env!("CARGO_BIN_EXE_cubicle"), &["up", "--listen", "127.0.0.1:0"])
        .env("CUBICLE_EGRESS_ACCESS_LOG", "/nonexistent/access.log")
        .output()
        .expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("/nonexistent/access.log cannot be written"), "{said}");
}
