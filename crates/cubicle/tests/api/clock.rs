//! The clock of the host is set by an hour: what was to last a minute lasts a minute.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::json;

use crate::client::{Server, eventually};
use crate::host::Host;

fn set_by(file: &Path, seconds: i64) {
    // Renamed into place, so that the server never reads half of it.
    let draft = file.with_extension("draft");
    std::fs::write(&draft, seconds.to_string()).expect("the directory is ours");
    std::fs::rename(draft, file).expect("the directory is ours");
}

fn idle(server: &Server) -> BTreeSet<String> {
    let all = server.get("/api/v1/sandboxes?state=idle").ok();
    let items = all["items"].as_array().expect("items").clone();
    items.iter().map(|sandbox| sandbox["sandbox_id"].as_str().expect("an id").to_owned()).collect()
}

fn a_jump_by(seconds: i64) {
    let Some(host) = Host::new() else { return };
    let file = host.scratch().join("clock");
    set_by(&file, 0);
    let path = file.to_str().expect("a path of a test is text").to_owned();
    let mut server = Server::start_on(host, &["--pool-size", "0"], &[("CUBICLE_CLOCK_SET_BY", &path)]);
    // A pool that nobody takes from, and that does not grow.
    server.put("/api/v1/templates/pooled", &json!({ "pool": { "size": 2, "ceiling": 2 } })).ok();
    let (kept, sandbox) = server.lease(&json!({ "ttl_seconds": 10 }));
    // Longer than a sweep takes to come, so that whatever it would do to the pool is done by its end.
    let (silent, _) = server.lease(&json!({ "ttl_seconds": 20 }));
    let status = |server: &Server, lease: &str| {
        server.get(&format!("/api/v1/leases/{lease}")).ok()["status"].as_str().expect("a status").to_owned()
    };
    let pool = eventually("a full pool", || Some(idle(&server)).filter(|idle| idle.len() == 2));

    set_by(&file, seconds);
    let beat = |server: &Server| {
        let beat = server.post(&format!("/api/v1/leases/{kept}/heartbeat"), &json!({}));
        assert_eq!(beat.status, 200, "a heartbeat in time is refused: {beat:?}");
    };
    beat(&server);
    assert_eq!(status(&server, &silent), "ACTIVE", "the jump was taken for its time");
    // A second server of the same boot goes on with the time of the first.
    server.kill();
    server.start_again();
    beat(&server);
    assert_eq!(server.prints(&sandbox, "echo usable"), "usable\n");
    eventually("a lease without heartbeats", || {
        beat(&server);
        (status(&server, &silent) == "EXPIRED").then_some(())
    });
    assert_eq!(status(&server, &kept), "ACTIVE");
    assert_eq!(idle(&server), pool, "the pool was replaced for its age");

    let (late, _) = server.lease(&json!({ "ttl_seconds": 1 }));
    eventually("a lease of after the jump", || (status(&server, &late) == "EXPIRED").then_some(()));
}

#[test]
fn a_clock_that_jumps_forward_by_an_hour_ends_only_what_is_over() {
    a_jump_by(3600);
}

#[test]
fn a_clock_that_jumps_back_by_an_hour_keeps_nothing_for_longer() {
    a_jump_by(-3600);
}

#[test]
fn a_date_that_somebody_named_is_one_of_the_hosts_clock() {
    let Some(host) = Host::new() else { return };
    let file = host.scratch().join("clock");
    set_by(&file, 0);
    let path = file.to_str().expect("a path of a test is text").to_owned();
    let server = Server::start_on(host, &["--pool-size", "0"], &[("CUBICLE_CLOCK_SET_BY", &path)]);
    let now: cubicle_model::Timestamp = server.post("/api/v1/leases", &json!({})).ok()["created_at"]
        .as_str()
        .and_then(|time| time.parse().ok())
        .expect("a moment");
    let soon = now + std::time::Duration::from_secs(1800);
    let asked = json!({ "label": "half an hour", "scopes": ["read"], "expires_at": soon.to_string() });
    let key = server.post("/api/v1/keys", &asked).ok()["secret"].as_str().expect("a secret").to_owned();
    assert_eq!(server.with_key("GET", "/api/v1/whoami", &json!({}), &key).status, 200);
    set_by(&file, 3600);
    assert_eq!(server.with_key("GET", "/api/v1/whoami", &json!({}), &key).refused(401), "unauthenticated");
}
