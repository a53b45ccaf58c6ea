//! Traces: one from the caller through the lease and the exec to the end of the sandbox, and nothing that waits for a
//! collector.

use serde_json::{Value, json};

use crate::client::{Server, With, eventually};
use crate::collector::{Collector, Manners};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";

fn server_for(endpoint: &str, pool: &str) -> Option<Server> {
    Server::start_with(&["--pool-size", pool, "--otlp-endpoint", endpoint])
}

fn run(server: &Server, flags: &str, command: &str) -> Value {
    let traceparent = format!("00-{TRACE}-{CALLER}-{flags}");
    let body = json!({ "command": command, "files": [{ "path": "given", "content": "x" }] }).to_string();
    let with = With { headers: &[("traceparent", &traceparent)], ..With::default() };
    server.request("POST", "/api/v1/execs", body.as_bytes(), &with).ok()
}

fn named<'a>(spans: &'a [Value], name: &str) -> Option<&'a Value> {
    spans.iter().find(|span| span["name"] == name)
}

fn attribute(span: &Value, key: &str) -> Value {
    let attributes = span["attributes"].as_array().expect("a span has attributes");
    let found = attributes.iter().find(|attribute| attribute["key"] == key);
    found.map_or(Value::Null, |attribute| attribute["value"].clone())
}

fn times(span: &Value) -> (u64, u64) {
    let time = |name: &str| span[name].as_str().expect("a time is text").parse().expect("a number");
    (time("startTimeUnixNano"), time("endTimeUnixNano"))
}

#[test]
fn one_trace_goes_from_the_caller_through_the_exec_to_the_end_of_the_sandbox() {
    let collector = Collector::start(Manners::Takes);
    // Without a pool, so that its sandbox is made for it.
    let Some(server) = server_for(&collector.endpoint(), "0") else { return };
    let exec = run(&server, "01", "echo traced");
    let spans = eventually("the whole trace", || {
        let spans = collector.trace(TRACE);
        let names = ["POST /api/v1/execs", "acquire", "create", "bind", "exec", "archive", "destroy"];
        names.iter().all(|name| named(&spans, name).is_some()).then_some(spans)
    });
    let span = |name: &str| named(&spans, name).expect("it is there");
    let request = span("POST /api/v1/execs");
    assert_eq!((&request["parentSpanId"], &request["kind"]), (&json!(CALLER), &json!(2)));
    assert_eq!(attribute(request, "http.response.status_code"), json!({ "intValue": "200" }));
    for (child, parent) in [
        ("acquire", "POST /api/v1/execs"),
        ("create", "acquire"),
        ("bind", "acquire"),
        ("exec", "POST /api/v1/execs"),
    ] {
        let (child, parent) = (span(child), span(parent));
        assert_eq!(child["parentSpanId"], parent["spanId"], "{child} in {parent}");
        let (inner, outer) = (times(child), times(parent));
        assert!(outer.0 <= inner.0 && inner.1 <= outer.1, "{child} in {parent}");
    }
    // What is left to the background begins after the exec, and leads back to it.
    for name in ["archive", "destroy"] {
        let mut at = span(name);
        assert!(times(at).0 >= times(span("exec")).1, "{at}");
        while at["name"] != "exec" {
            let above = spans.iter().find(|span| span["spanId"] == at["parentSpanId"]);
            at = above.unwrap_or_else(|| panic!("nothing above {at} in {spans:#?}"));
        }
    }
    let ran = span("exec");
    for (key, id) in [
        ("cubicle.exec.id", &exec["exec_id"]),
        ("cubicle.lease.id", &exec["lease_id"]),
        ("cubicle.sandbox.id", &exec["sandbox_id"]),
    ] {
        assert_eq!(attribute(ran, key)["stringValue"], *id, "{ran}");
    }
    assert_eq!(attribute(ran, "cubicle.exec.exit"), json!({ "stringValue": "code 0" }));
    let service = json!({ "key": "service.name", "value": { "stringValue": "cubicle" } });
    assert!(collector.services().contains(&service));
    let logged = server.log().into_iter().find(|line| line["message"] == "lease ended");
    assert_eq!(logged.expect("it is logged")["trace_id"], TRACE);
}

#[test]
fn an_exec_in_the_background_is_a_part_of_the_trace_that_began_it() {
    let collector = Collector::start(Manners::Takes);
    let Some(server) = server_for(&collector.endpoint(), "1") else { return };
    let (_, sandbox) = server.lease(&json!({}));
    let traceparent = format!("00-{TRACE}-{CALLER}-01");
    let body = json!({ "command": "read line", "stdin": "stream", "background": true }).to_string();
    let with = With { headers: &[("traceparent", &traceparent)], ..With::default() };
    let path = format!("/api/v1/sandboxes/{sandbox}/execs");
    let exec = server.request("POST", &path, body.as_bytes(), &with).ok();
    // The request is told of when it was answered, not when what it began has ended.
    let name = "POST /api/v1/sandboxes/{sandbox_id}/execs";
    let request = eventually("the request", || named(&collector.trace(TRACE), name).cloned());
    assert!(named(&collector.trace(TRACE), "exec").is_none(), "it still runs");
    let stdin = format!("/api/v1/execs/{}/stdin?close=true", exec["exec_id"].as_str().expect("an id"));
    assert_eq!(server.request("POST", &stdin, b"", &With::default()).status, 204);
    let ran = eventually("the exec", || named(&collector.trace(TRACE), "exec").cloned());
    assert_eq!(ran["parentSpanId"], request["spanId"]);
    assert!(times(&ran).1 > times(&request).1);
}

#[test]
fn what_the_caller_or_nobody_wants_to_see_is_not_sent() {
    let collector = Collector::start(Manners::Takes);
    let Some(mut server) = server_for(&collector.endpoint(), "1") else { return };
    run(&server, "00", "true");
    server.get("/health");
    server.get("/metrics");
    server.get("/api/v1/leases");
    assert_eq!(server.stop(), 0);
    assert_eq!(collector.trace(TRACE), Vec::<Value>::new());
    let spans = collector.spans();
    // Also: what had ended when the server was stopped has been sent.
    assert!(named(&spans, "GET /api/v1/leases").is_some(), "{spans:#?}");
    for quiet in ["GET /health", "GET /metrics"] {
        assert!(named(&spans, quiet).is_none(), "{spans:#?}");
    }
}

#[test]
fn a_collector_that_is_down_harms_nobody() {
    let Some(free) = std::net::TcpListener::bind("127.0.0.1:0").ok().and_then(|port| port.local_addr().ok())
    else {
        panic!("loopback has a port");
    };
    let Some(mut server) = server_for(&format!("http://{free}"), "1") else { return };
    for _ in 0..3 {
        assert_eq!(run(&server, "01", "echo fine")["result"]["exit_code"], 0);
    }
    eventually("dropped spans are counted", || {
        run(&server, "01", "true");
        let metrics = server.get("/metrics").text;
        let dropped =
            metrics.lines().find_map(|line| line.strip_prefix("cubicle_trace_spans_dropped_total "));
        dropped.and_then(|count| count.parse::<u64>().ok()).filter(|count| *count > 20)
    });
    let said = server.log().into_iter().filter(|line| line["level"] == "WARN").collect::<Vec<_>>();
    assert_eq!(said.len(), 1, "an outage is one line: {said:#?}");
    assert_eq!(said[0]["endpoint"], format!("http://{free}"), "{said:#?}");
    assert_eq!(server.stop(), 0);
}

#[test]
fn a_collector_that_hangs_holds_up_neither_requests_nor_the_end() {
    let collector = Collector::start(Manners::Hangs);
    let Some(mut server) = server_for(&collector.endpoint(), "1") else { return };
    run(&server, "01", "true");
    eventually("the collector has something", || (!collector.spans().is_empty()).then_some(()));
    for _ in 0..3 {
        assert_eq!(run(&server, "01", "echo fine")["result"]["exit_code"], 0);
    }
    assert_eq!(server.stop(), 0);
}

#[test]
fn a_collector_gets_the_headers_it_wants() {
    let collector = Collector::start(Manners::Takes);
    let Some(mut server) = server_for(&collector.endpoint(), "0") else { return };
    server.kill();
    let environment = [("OTEL_EXPORTER_OTLP_HEADERS", "x-team=a%20b"), ("OTEL_SERVICE_NAME", "boxes")];
    server.start_again_with(&environment);
    server.get("/api/v1/leases");
    let service = json!({ "key": "service.name", "value": { "stringValue": "boxes" } });
    eventually("a span", || collector.services().contains(&service).then_some(()));
    assert!(collector.headers().iter().any(|line| line == "x-team: a b"), "{:?}", collector.headers());
}
