//! Health, metrics, headers, the document, artifacts.

use serde_json::json;

use crate::client::{Server, With, eventually};

#[test]
fn health_readiness_and_metrics_need_no_key() {
    let Some(server) = Server::start() else { return };
    let open = |path: &str| server.request("GET", path, b"", &With { key: Some(""), headers: &[] });
    assert_eq!(open("/health").ok()["status"], "ok");
    assert_eq!(open("/ready").ok()["ready"], true);
    let metrics = open("/metrics");
    assert_eq!((metrics.status, metrics.text.contains("cubicle_build_info")), (200, true), "{metrics:?}");
}

#[test]
fn every_answer_has_its_headers_and_an_id() {
    let Some(server) = Server::start() else { return };
    for path in ["/health", "/api/v1/leases", "/nowhere"] {
        let answer = server.get(path);
        assert_eq!(answer.header("x-content-type-options"), "nosniff", "{path}");
        assert_eq!(answer.header("x-frame-options"), "DENY", "{path}");
        assert!(answer.header("x-request-id").starts_with("req-"), "{path}");
        assert_eq!(answer.header("access-control-allow-origin"), "", "{path}");
    }
    let preflight = server.request(
        "OPTIONS",
        "/api/v1/leases",
        b"",
        &With {
            key: Some(""),
            headers: &[("origin", "http://evil.example"), ("access-control-request-method", "POST")],
        },
    );
    assert_eq!(preflight.header("access-control-allow-origin"), "");
}

#[test]
fn a_journal_is_an_artifact_with_ranges_and_links() {
    let Some(server) = Server::start() else { return };
    let exec = server.post("/api/v1/execs", &json!({ "command": "echo kept" })).ok();
    let artifact = eventually("a kept journal", || {
        let all = server.get("/api/v1/artifacts").ok();
        all["items"]
            .as_array()
            .expect("items")
            .iter()
            .find(|one| one["subject"] == exec["sandbox_id"])
            .cloned()
    });
    let id = artifact["artifact_id"].as_str().expect("an id");
    let content = server.get(&format!("/api/v1/artifacts/{id}/content"));
    assert!(content.text.contains("kept\n"));
    let part = server.request(
        "GET",
        &format!("/api/v1/artifacts/{id}/content"),
        b"",
        &With { headers: &[("range", "bytes=0-6")], ..With::default() },
    );
    assert_eq!((part.status, part.text.as_str()), (206, "CUBJRNL"));
    let link = server.post(&format!("/api/v1/artifacts/{id}/link"), &json!({})).ok();
    let path = link["url"]
        .as_str()
        .expect("an address")
        .strip_prefix(&server.address)
        .expect("of this server")
        .to_owned();
    let keyless = With { key: Some(""), headers: &[] };
    assert_eq!(server.request("GET", &path, b"", &keyless).text, content.text);
    assert_eq!(
        server.request("GET", &path.replace("signature=", "signature=0"), b"", &keyless).refused(401),
        "unauthenticated"
    );
    let expired = path.replace(
        &format!(
            "expires={}",
            path.split("expires=").nth(1).and_then(|rest| rest.split('&').next()).expect("a time")
        ),
        "expires=1000000000",
    );
    assert_eq!(server.request("GET", &expired, b"", &keyless).refused(401), "unauthenticated");
}

#[test]
fn the_audit_log_says_who_did_what_from_where() {
    let Some(server) = Server::start() else { return };
    let exec = server.post("/api/v1/execs", &json!({ "command": "echo audited" })).ok();
    let entries = server.get("/api/v1/audit?action=exec.create").ok();
    let entry = entries["items"]
        .as_array()
        .expect("items")
        .iter()
        .find(|entry| entry["subject"] == exec["exec_id"])
        .expect("it is there")
        .clone();
    assert_eq!(
        (&entry["actor"], &entry["from"], &entry["outcome"]),
        (&json!("admin"), &json!("127.0.0.1"), &json!("ok"))
    );
    assert!(entry["detail"].as_str().is_some_and(|detail| detail.contains("audited")));
    let heads = server.get("/api/v1/audit/heads").ok();
    assert!(heads[0]["seq"].as_i64().is_some_and(|seq| seq > 0), "{heads}");
}
