//! Spans in the JSON form of OTLP: ids in hexadecimal, 64-bit numbers as text, enumerations as numbers.

use serde_json::{Value as Json, json};

use cubicle_model::hexadecimal;

use super::span::{Ended, Value};

/// `SPAN_KIND_INTERNAL` and `SPAN_KIND_SERVER`.
const INTERNAL: u8 = 1;
const SERVER: u8 = 2;
/// `STATUS_CODE_ERROR`.
const ERROR: u8 = 2;
/// What ids and results of the product are called elsewhere; anything else is `cubicle.` and its name.
const NAMES: [(&str, &str); 8] = [
    ("method", "http.request.method"),
    ("route", "http.route"),
    ("status", "http.response.status_code"),
    ("request", "cubicle.request.id"),
    ("lease", "cubicle.lease.id"),
    ("sandbox", "cubicle.sandbox.id"),
    ("exec", "cubicle.exec.id"),
    ("exit", "cubicle.exec.exit"),
];

/// The body of a request to `/v1/traces`.
pub(super) fn body(service: &str, spans: &[Ended]) -> Vec<u8> {
    let resource = [
        attribute("service.name", &Value::Text(service.to_owned())),
        attribute("service.version", &Value::Text(env!("CARGO_PKG_VERSION").to_owned())),
    ];
    let body = json!({
        "resourceSpans": [{
            "resource": { "attributes": resource },
            "scopeSpans": [{
                "scope": { "name": "cubicle", "version": env!("CARGO_PKG_VERSION") },
                "spans": spans.iter().map(span).collect::<Vec<_>>(),
            }],
        }],
    });
    body.to_string().into_bytes()
}

fn span(ended: &Ended) -> Json {
    let is_request = ended.name == "request";
    let mut span = json!({
        "traceId": hexadecimal(&ended.position.trace),
        "spanId": hexadecimal(&ended.position.span),
        "name": if is_request { name_of_request(ended) } else { ended.name.to_owned() },
        "kind": if is_request { SERVER } else { INTERNAL },
        "startTimeUnixNano": ended.began.to_string(),
        "endTimeUnixNano": ended.ended.to_string(),
        "attributes": attributes(ended),
        // Sampled, as everything is that is sent.
        "flags": 1,
    });
    if let Some(parent) = &ended.parent {
        span["parentSpanId"] = hexadecimal(parent).into();
    }
    if let Some(status) = status(ended) {
        span["status"] = status;
    }
    span
}

/// The method and the route: few enough to be told apart, which paths are not.
fn name_of_request(ended: &Ended) -> String {
    let text = |name: &str| match ended.fields.iter().find(|(known, _)| *known == name) {
        Some((_, Value::Text(text))) => Some(text.as_str()),
        _ => None,
    };
    let method = text("method").unwrap_or("request");
    match text("route") {
        Some(route) => format!("{method} {route}"),
        None => method.to_owned(),
    }
}

fn attributes(ended: &Ended) -> Vec<Json> {
    let shown = ended.fields.iter().filter(|(name, _)| !["traceparent", "error"].contains(name));
    shown
        .map(|(name, value)| match NAMES.iter().find(|(ours, _)| ours == name) {
            Some((_, theirs)) => attribute(theirs, value),
            None => attribute(&format!("cubicle.{name}"), value),
        })
        .collect()
}

/// A refusal is an answer; only what the server failed at is an error of its span.
fn status(ended: &Ended) -> Option<Json> {
    ended.fields.iter().find_map(|(name, value)| match (*name, value) {
        ("error", Value::Text(text)) => Some(json!({ "code": ERROR, "message": text })),
        ("status", Value::Whole(500..)) => Some(json!({ "code": ERROR })),
        _ => None,
    })
}

fn attribute(key: &str, value: &Value) -> Json {
    let value = match value {
        Value::Text(text) => json!({ "stringValue": text }),
        Value::Whole(number) => json!({ "intValue": number.to_string() }),
        Value::Flag(flag) => json!({ "boolValue": flag }),
        Value::Real(number) => json!({ "doubleValue": number }),
    };
    json!({ "key": key, "value": value })
}

#[cfg(test)]
mod tests {
    use super::super::span::Position;
    use super::*;

    fn ended(name: &'static str, fields: Vec<(&'static str, Value)>) -> Ended {
        let position = Position { trace: [0xab; 16], span: [1; 8], sampled: true };
        Ended {
            name,
            position,
            parent: Some([2; 8]),
            began: 1_700_000_000_000_000_000,
            ended: 1_700_000_000_000_000_001,
            fields,
        }
    }

    #[test]
    fn a_request_is_called_by_its_method_and_route() {
        let text = |text: &str| Value::Text(text.into());
        let fields = vec![
            ("method", text("GET")),
            ("route", text("/api/v1/leases/{lease_id}")),
            ("traceparent", text("00-…")),
            ("status", Value::Whole(200)),
        ];
        let shown = span(&ended("request", fields));
        assert_eq!(
            shown,
            json!({
                "traceId": "abababababababababababababababab",
                "spanId": "0101010101010101",
                "parentSpanId": "0202020202020202",
                "name": "GET /api/v1/leases/{lease_id}",
                "kind": 2,
                "startTimeUnixNano": "1700000000000000000",
                "endTimeUnixNano": "1700000000000000001",
                "attributes": [
                    { "key": "http.request.method", "value": { "stringValue": "GET" } },
                    { "key": "http.route", "value": { "stringValue": "/api/v1/leases/{lease_id}" } },
                    { "key": "http.response.status_code", "value": { "intValue": "200" } },
                ],
                "flags": 1,
            })
        );
    }

    #[test]
    fn what_the_server_failed_at_is_an_error() {
        let failed = span(&ended("create", vec![("error", Value::Text("no room".into()))]));
        assert_eq!(failed["status"], json!({ "code": 2, "message": "no room" }));
        let table = [(200, Json::Null), (404, Json::Null), (503, json!({ "code": 2 }))];
        for (status, expected) in table {
            let answered = span(&ended("request", vec![("status", Value::Whole(status))]));
            assert_eq!(answered["status"], expected, "{status}");
        }
    }
}
