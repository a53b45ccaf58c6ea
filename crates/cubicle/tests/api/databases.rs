//! A database that is locked, away, older, or shared.

use std::time::{Duration, Instant};

use cubicle_tests_postgresql::Cluster;
use serde_json::{Value, json};

use crate::client::{Server, eventually};
use crate::host::Host;

/// As long as somebody's backup may hold a database, or a restart of one may take.
const OUTAGE: Duration = Duration::from_secs(30);

/// What is under way when the database goes.
struct UnderWay {
    lease: String,
    sandbox: String,
    exec: String,
    one_shot: Value,
}

impl UnderWay {
    /// Everything ends while the database is away.
    fn begin(server: &Server) -> Self {
        let (lease, sandbox) = server.lease(&json!({}));
        let asked = json!({ "command": "sleep 3; echo ended meanwhile", "background": true });
        let exec = server.post(&format!("/api/v1/sandboxes/{sandbox}/execs"), &asked).ok();
        let exec = exec["exec_id"].as_str().expect("an id").to_owned();
        let one_shot = server.post("/api/v1/execs", &asked).ok();
        Self { lease, sandbox, exec, one_shot }
    }

    /// Whoever asks meanwhile is told so at once, or after a bounded time, and in the usual form.
    fn outlast(&self, server: &Server) {
        let began = Instant::now();
        while began.elapsed() < OUTAGE {
            let refused = server.post("/api/v1/leases", &json!({}));
            assert_eq!(refused.refused(503), "unavailable");
            assert!(!refused.header("retry-after").is_empty(), "{refused:?}");
            let execs = format!("/api/v1/sandboxes/{}/execs", self.sandbox);
            assert_eq!(server.post(&execs, &json!({ "command": "true" })).refused(503), "unavailable");
            assert_eq!(server.get("/health").status, 200);
        }
    }

    /// Nothing that was acknowledged is lost, and nothing is left half done.
    fn settle(&self, server: &Server) {
        eventually("a server that is ready again", || (server.get("/ready").status == 200).then_some(()));
        assert_eq!(server.get(&format!("/api/v1/leases/{}", self.lease)).ok()["status"], "ACTIVE");
        assert_eq!(server.prints(&self.sandbox, "echo usable"), "usable\n");
        let one_shot = self.one_shot["exec_id"].as_str().expect("an id");
        for exec in [&self.exec, one_shot] {
            let ended = eventually("the end of an exec", || {
                let exec = server.get(&format!("/api/v1/execs/{exec}")).ok();
                (exec["state"] == "ended").then_some(exec)
            });
            assert_eq!(ended["result"]["exit"], json!({ "code": 0 }), "{ended}");
            let output = server.get(&format!("/api/v1/execs/{exec}/output"));
            assert_eq!(output.text, "ended meanwhile\n");
        }
        let lease = self.one_shot["lease_id"].as_str().expect("an id");
        eventually("the lease of a one-shot", || {
            (server.get(&format!("/api/v1/leases/{lease}")).ok()["status"] == "RELEASED").then_some(())
        });
        assert_eq!(
            server.post("/api/v1/execs", &json!({ "command": "true" })).ok()["result"]["exit_code"],
            0
        );
    }
}

#[test]
fn a_database_that_another_process_holds_for_half_a_minute_is_got_over() {
    let Some(server) = Server::start() else { return };
    let under_way = UnderWay::begin(&server);
    let file = server.host.data_dir().join("server/cubicle.db");
    let other = rusqlite::Connection::open(&file).expect("it is a database");
    other.busy_timeout(Duration::from_secs(10)).expect("a number is allowed");
    other.execute_batch("BEGIN IMMEDIATE").expect("nobody else holds it for long");
    under_way.outlast(&server);
    // Readers are not held up by whoever writes.
    assert_eq!(server.get(&format!("/api/v1/leases/{}", under_way.lease)).ok()["status"], "ACTIVE");
    other.execute_batch("ROLLBACK").expect("it was begun");
    under_way.settle(&server);
}

#[test]
fn a_postgresql_that_is_away_for_half_a_minute_is_got_over() {
    let Some(host) = Host::new() else { return };
    let Some(mut cluster) = Cluster::own() else { return };
    let url = cluster.fresh_database();
    let server = Server::start_on(host, &["--pool-size", "2"], &[("DB_URL", &url)]);
    let under_way = UnderWay::begin(&server);
    cluster.stop();
    assert_eq!(server.get("/ready").status, 503);
    under_way.outlast(&server);
    cluster.start();
    under_way.settle(&server);
}

#[test]
fn the_database_of_an_older_version_is_brought_forward_with_what_runs() {
    let Some(mut server) = Server::start() else { return };
    let key = server.key_of("acme", "ada", &["read"]);
    let ended = server.post("/api/v1/execs", &json!({ "command": "exit 3" })).ok();
    let (lease, sandbox) = server.lease(&json!({}));
    let exec = format!("/api/v1/execs/{}", ended["exec_id"].as_str().expect("an id"));
    eventually("the end of an exec", || (server.get(&exec).ok()["state"] == "ended").then_some(()));
    server.stop();
    // As the first version would have left it.
    let database = rusqlite::Connection::open(server.host.data_dir().join("server/cubicle.db"));
    let older = "DROP TABLE artifacts; DROP TABLE repeatable; DROP TABLE secrets; DROP TABLE secret_revisions; \
        DROP TABLE bills; DROP TABLE worker_tasks; DROP TABLE webhook_endpoints; DROP TABLE webhook_listeners; \
        DROP TABLE webhook_deliveries; DROP TABLE webhook_attempts; ALTER TABLE leases DROP COLUMN egress; ALTER TABLE execs DROP COLUMN refused; \
        ALTER TABLE execs DROP COLUMN told; ALTER TABLE execs DROP COLUMN origin; \
        DELETE FROM schema_steps WHERE step > 1";
    database.expect("it is a database").execute_batch(older).expect("it can be made older");
    server.start_again();
    assert_eq!(server.with_key("GET", "/api/v1/whoami", &json!({}), &key).ok()["user"], "ada");
    assert_eq!(server.get(&exec).ok()["result"]["exit_code"], 3);
    assert_eq!(server.get(&format!("/api/v1/leases/{lease}")).ok()["status"], "ACTIVE");
    assert_eq!(server.prints(&sandbox, "echo usable"), "usable\n");
    server.delete(&format!("/api/v1/leases/{lease}")).ok();
    eventually("its journal", || {
        let all = server.get("/api/v1/artifacts").ok();
        let items = all["items"].as_array().expect("items").clone();
        items.iter().any(|artifact| artifact["subject"] == sandbox.as_str()).then_some(())
    });
}
