//! `cubicle keys`, and what tenants and templates there are.

use crate::server::{Server, complaint};

#[test]
fn a_key_does_what_its_scopes_say_until_it_is_revoked() {
    let Some(server) = Server::start() else { return };
    let made = server.json(&["keys", "create", "ci", "--json", "--expires-in", "1d"]);
    let (id, secret) = (made["key_id"].as_str().expect("an id"), made["secret"].as_str().expect("a secret"));
    assert_eq!(server.says(&["--key", secret, "exec", "--", "echo", "hi"]), "hi");
    let output = server.cubicle(&["--key", secret, "keys", "ls"]);
    assert!(complaint(&output).contains("manage"), "{output:?}");
    let table = server.says(&["keys", "ls"]);
    assert!(table.contains(id) && table.contains("read,run") && !table.contains(secret), "{table}");
    server.says(&["keys", "revoke", id]);
    let output = server.cubicle(&["--key", secret, "ps"]);
    assert_eq!(output.status.code(), Some(125));
    assert!(complaint(&output).contains("--key-file"), "{output:?}");
}

#[test]
fn a_new_secret_is_alone_on_stdout() {
    let Some(server) = Server::start() else { return };
    let secret = server.says(&["keys", "create", "me", "--scopes", "read"]);
    assert_eq!(secret.split_whitespace().count(), 1, "{secret}");
    let output = server.cubicle(&["--key", &secret, "exec", "--", "true"]);
    assert!(complaint(&output).contains("run"), "{output:?}");
    let file = server.host.scratch().join("key");
    std::fs::write(&file, format!("{secret}\n")).expect("scratch is writable");
    server.says(&["--key-file", file.to_str().expect("a plain name"), "ps"]);
}

#[test]
fn a_wrong_key_is_refused_with_a_way_out() {
    let Some(server) = Server::start() else { return };
    let output = server.cubicle(&["--key", "wrong", "ps"]);
    assert_eq!(output.status.code(), Some(125));
    let said = complaint(&output);
    assert!(said.contains("not known") && said.contains("CUBICLE_KEY"), "{said}");
    let output = server.cubicle(&["--key-file", "/nonexistent/key", "ps"]);
    assert!(complaint(&output).contains("there is no key in /nonexistent/key"), "{output:?}");
}

#[test]
fn a_template_is_made_used_and_removed() {
    let Some(server) = Server::start() else { return };
    let file = server.host.scratch().join("small.toml");
    std::fs::write(&file, "[env]\nFROM_TEMPLATE = 'yes'\n").expect("scratch is writable");
    server.says(&["template", "put", "small", file.to_str().expect("a plain name")]);
    assert!(server.says(&["template", "ls"]).contains("small"));
    assert_eq!(server.json(&["template", "get", "small"])["recipe"]["env"]["FROM_TEMPLATE"], "yes");
    let asked = ["exec", "--template", "small", "--", "sh", "-c", "echo $FROM_TEMPLATE"];
    assert_eq!(server.says(&asked), "yes");
    server.says(&["template", "rm", "small"]);
    let output = server.cubicle(&["template", "get", "small"]);
    assert!(complaint(&output).contains("small"), "{output:?}");
}

#[test]
fn what_a_tenant_may_have_is_changed_without_touching_the_rest() {
    let Some(server) = Server::start() else { return };
    server.says(&["tenant", "create", "acme", "--leases", "2", "--memory", "1G"]);
    let tenant = server.json(&["tenant", "set", "acme", "--leases", "3"]);
    assert_eq!((&tenant["quota"]["leases"], &tenant["quota"]["memory"]), (&3.into(), &(1_u64 << 30).into()));
    assert!(server.says(&["tenant", "ls"]).contains("acme"));
}
