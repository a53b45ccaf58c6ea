//! Settings by the names that deployments know.

use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use crate::client::{Server, eventually};
use crate::host::Host;

#[test]
fn a_server_honours_the_names_that_deployments_know() {
    let Some(host) = Host::new() else { return };
    let elsewhere = host.scratch().join("elsewhere");
    std::fs::create_dir(&elsewhere).expect("the directory is ours");
    // The server is another user than whoever starts it as root.
    std::fs::set_permissions(&elsewhere, std::fs::Permissions::from_mode(0o777)).expect("it is ours");
    let database = elsewhere.join("state.db");
    let url = format!("sqlite://{}", database.display());
    let environment = [
        ("POOL_SIZE", "3"),
        ("LEASE_TTL_SECONDS", "77"),
        ("SANDBOX_TIMEOUT_SECONDS", "1"),
        ("DB_URL", url.as_str()),
    ];
    let server = Server::start_on(host, &[], &environment);
    eventually("a pool of three", || {
        let idle = server.get("/api/v1/sandboxes?state=idle").ok();
        (idle["items"].as_array().map(Vec::len) == Some(3)).then_some(())
    });
    let lease = server.post("/api/v1/leases", &json!({})).ok();
    assert_eq!(lease["ttl_seconds"], 77, "{lease}");
    let exec = server.post("/api/v1/execs", &json!({ "command": "sleep 600" })).ok();
    assert_eq!(exec["result"]["exit"], "timed_out", "{exec}");
    let asked = json!({ "command": "sleep 1.5; echo longer", "timeout_seconds": 60 });
    assert_eq!(
        server.post("/api/v1/execs", &asked).ok()["result"]["exit_code"],
        0,
        "a request's own counts more"
    );
    assert!(database.is_file(), "the state is somewhere else");
    assert!(!server.host.data_dir().join("server/cubicle.db").exists());
}

#[test]
fn a_flag_counts_more_than_a_variable() {
    let Some(host) = Host::new() else { return };
    let server = Server::start_on(host, &["--pool-size", "1"], &[("POOL_SIZE", "4")]);
    eventually("a pool of one", || {
        let idle = server.get("/api/v1/sandboxes?state=idle").ok();
        (idle["items"].as_array().map(Vec::len) == Some(1)).then_some(())
    });
}
