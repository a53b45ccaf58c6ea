//! `cubicle lease` and `events`, and what is said where no server is.

use crate::host::Host;
use crate::server::{Server, complaint};

#[test]
fn a_lease_has_what_it_was_given_and_ends_when_it_is_released() {
    let Some(server) = Server::start() else { return };
    let file = server.host.scratch().join("main.sh");
    std::fs::write(&file, "echo \"$GREETING from a file\"\n").expect("scratch is writable");
    let copy = format!("{}:main.sh", file.display());
    let asked = ["lease", "create", "--json", "--ttl", "90s", "--env", "GREETING=hello", "--file", &copy];
    let lease = server.json(&asked);
    assert_eq!((&lease["status"], &lease["ttl_seconds"]), (&"ACTIVE".into(), &90.into()));
    let id = lease["lease_id"].as_str().expect("a lease has an id");
    assert_eq!(server.says(&["exec", id, "--", "sh", "main.sh"]), "hello from a file");
    assert!(server.says(&["lease", "heartbeat", id]).contains("ACTIVE"));
    let table = server.says(&["lease", "ls"]);
    assert!(table.contains(id) && table.contains("ACTIVE"), "{table}");
    server.says(&["lease", "release", id]);
    assert!(server.says(&["lease", "get", id]).contains("RELEASED"));
    assert!(server.says(&["lease", "ls", "--all"]).contains("RELEASED"));
    let output = server.cubicle(&["lease", "heartbeat", id]);
    assert!(complaint(&output).contains("error:"), "{output:?}");
}

#[test]
fn a_repeated_request_gives_the_same_lease() {
    let Some(server) = Server::start() else { return };
    let asked = ["lease", "create", "--quiet", "--request", "nightly"];
    assert_eq!(server.says(&asked), server.says(&asked));
    assert_ne!(server.lease(), server.lease());
}

#[test]
fn events_of_one_lease_are_told() {
    let Some(server) = Server::start() else { return };
    let lease = server.lease();
    server.says(&["lease", "release", &lease]);
    let told = server.says(&["events", "--json", "--subject", &lease]);
    let read = |line: &str| serde_json::from_str::<serde_json::Value>(line).expect("lines of JSON");
    let kinds: Vec<_> = told.lines().map(|line| read(line)["type"].clone()).collect();
    assert!(kinds.ends_with(&["lease.released".into()]), "{told}");
    assert!(server.says(&["events"]).contains(&lease));
}

#[test]
fn without_a_server_the_way_out_is_named() {
    let Some(host) = Host::new() else { return };
    // Nobody listens on port 1 of loopback.
    let output = host.cubicle(&["--server", "http://127.0.0.1:1", "ps"]);
    assert_eq!(output.status.code(), Some(125));
    let said = complaint(&output);
    assert!(said.contains("no server answers at http://127.0.0.1:1"), "{said}");
    assert!(said.contains("cubicle up"), "{said}");
    let output = host.cubicle(&["--server", "127.0.0.1:7878", "ps"]);
    assert!(complaint(&output).contains("is not the address of a server"), "{output:?}");
}

#[test]
fn a_server_that_stopped_is_not_looked_for_any_more() {
    let Some(mut server) = Server::start() else { return };
    server.stop();
    assert!(!server.host.data_dir().join("server/address").exists());
}
