//! What the owner of the work is told: the bill, the recording, and the explanation.

use serde_json::{Value, json};

use crate::client::eventually;
use crate::world::{World, in_a_world};

/// A run that reaches a few things in different ways.
const RUN: &str = r#"
get("http://origin.test/plain")
get("http://origin.test/posted", method="POST", more="Content-Length: 0\r\n")
through(secure(tunnel("other.test:443"), "other.test"), "GET / HTTP/1.1\r\nHost: other.test\r\nConnection: close\r\n\r\n")
s = tunnel("origin.test:7000")
if s:
    show(s.recv(100).decode())
code, addresses = ask("a.wild.test")
if addresses:
    direct(addresses[0], 80, data=b"GET /forwarded HTTP/1.1\r\nHost: a.wild.test\r\nConnection: close\r\n\r\n")
"#;

fn reached(exec: &Value) -> Vec<String> {
    let out = exec["result"]["stdout"]["content"].as_str().expect("it was waited for");
    out.lines().filter(|line| line.contains("REACHED") || *line == "hello").map(str::to_owned).collect()
}

#[test]
fn a_recorded_run_prints_the_policy_that_suffices_for_it() {
    in_a_world(|world| {
        let recorded = world.leased(&json!({ "egress": { "policy": "deny evil.test", "record": true } }));
        let first = reached(&recorded.python(RUN));
        assert_eq!(first.len(), 5, "{first:?}");
        // Recording is no way around what is denied, or always refused.
        let tried = recorded.prints("get('http://evil.test/ATTACK'); get('http://127.0.0.1:9000/ATTACK'); get('http://private.test/ATTACK')");
        assert_eq!(tried.matches("403 Forbidden").count(), 3, "{tried}");
        let told = recorded.egress();
        assert_eq!(told["record"], true);
        let minimal = told["minimal_policy"].as_str().expect("it was recorded").to_owned();
        assert!(
            !minimal.contains("evil") && !minimal.contains("127.0.0.1") && !minimal.contains("open"),
            "{minimal}"
        );
        let under = world.sandbox(&minimal);
        assert_eq!(reached(&under.python(RUN)), first, "{minimal}");
        assert_eq!(under.bill()["denials"], json!([]), "{minimal}");
        let more = under.prints("get('http://api.test/ATTACK'); through(tunnel('origin.test:22'), '')");
        assert_eq!(more.matches("403 Forbidden").count(), 2, "and for nothing else: {more}");
        // Without any of its rules it does not suffice.
        let rules: Vec<&str> = minimal.lines().filter(|line| line.starts_with("allow ")).collect();
        assert!(rules.len() >= 4, "{minimal}");
        for rule in &rules {
            let fewer: Vec<&str> = rules.iter().filter(|other| *other != rule).copied().collect();
            under.allow(&fewer.join("\n"));
            assert_ne!(reached(&under.python(RUN)), first, "{rule} is not needed");
        }
    });
}

fn line<'a>(bill: &'a Value, host: &str, port: u16, method: Option<&str>) -> &'a Value {
    let lines = bill["lines"].as_array().expect("a bill has lines");
    let is_it =
        |line: &&Value| line["host"] == host && line["port"] == port && line["method"].as_str() == method;
    lines.iter().find(is_it).unwrap_or_else(|| panic!("no line for {host}:{port} {method:?}: {bill}"))
}

fn exec_bill(world: &World, exec: &Value) -> Value {
    world.server.get(&format!("/api/v1/execs/{}/egress", exec["exec_id"].as_str().expect("an id"))).ok()
}

#[test]
fn every_connection_is_on_the_bill_of_its_exec_and_of_its_lease() {
    in_a_world(|world| {
        let inside = world
            .sandbox("allow origin.test; allow other.test; allow tcp://origin.test:7000; allow *.wild.test");
        let first = inside.python(RUN);
        let second = inside
            .python("get('http://origin.test/plain'); get('http://evil.test/x'); get('http://evil.test/y')");
        let quiet = inside.python("print('nothing')");
        let bill = exec_bill(world, &first);
        for (host, port, method) in [
            ("origin.test", 80, Some("GET")),
            ("origin.test", 80, Some("POST")),
            ("other.test", 443, None),
            ("origin.test", 7000, None),
            ("a.wild.test", 80, Some("GET")),
        ] {
            let line = line(&bill, host, port, method);
            assert_eq!((&line["requests"], &line["failures"]), (&json!(1), &json!(0)), "{line}");
            assert!(line["bytes_received"].as_u64() > Some(0), "{line}");
        }
        assert_eq!(first["result"]["egress"]["lines"], bill["lines"], "and in the result");
        let bill = exec_bill(world, &second);
        assert_eq!(bill["lines"].as_array().expect("lines").len(), 1, "{bill}");
        assert_eq!(bill["denials"], json!([{ "target": "evil.test:80", "rule": "not allowed", "count": 2 }]));
        assert_eq!(exec_bill(world, &quiet)["lines"], json!([]));
        assert_eq!(quiet["result"]["egress"], Value::Null);
        let all = inside.bill();
        assert_eq!(line(&all, "origin.test", 80, Some("GET"))["requests"], 2, "{all}");
        // It outlives the lease.
        world.server.delete(&format!("/api/v1/leases/{}", inside.lease));
        let after = eventually("the bill of a lease that is over", || {
            let bill = inside.bill();
            (bill["lines"] != json!([])).then_some(bill)
        });
        assert_eq!(line(&after, "origin.test", 80, Some("GET"))["requests"], 2, "{after}");
    });
}

#[test]
fn a_budget_ends_what_goes_over_it() {
    in_a_world(|world| {
        let inside =
            world.sandbox("allow origin.test; limit received 1M; limit connections 4; limit requests 1000/s");
        let many = inside.prints(
            r#"
kept = [socket.create_connection(PROXY) for _ in range(4)]
for s in kept:
    s.sendall(b"GET http://origin.test/hang HTTP/1.1\r\nHost: origin.test\r\n\r\n")
print(talk("GET http://origin.test/x HTTP/1.1\r\nHost: origin.test\r\nConnection: close\r\n\r\n"))
"#,
        );
        assert!(many.contains("503") && many.contains("too many connections"), "{many}");
        eventually("room again", || {
            inside.prints("get('http://origin.test/x')").contains("REACHED").then_some(())
        });
        let large = inside.prints(
            "print(len(talk('GET http://origin.test/flood HTTP/1.1\\r\\nHost: origin.test\\r\\n\\r\\n')))",
        );
        assert!(large.trim().parse::<u64>().expect("a number") < 3 << 20, "{large}");
        let after = inside.prints("get('http://origin.test/x')");
        assert!(after.contains("bytes received"), "{after}");
        let denials = inside.bill()["denials"].to_string();
        assert!(denials.contains("budget: bytes received"), "{denials}");
    });
}

#[test]
fn an_explanation_says_what_would_be_decided() {
    in_a_world(|world| {
        let inside =
            world.sandbox("allow origin.test; deny evil.test; allow GET http://other.test/public/**");
        for (url, allowed, rule) in [
            ("https://origin.test/x", true, "allow origin.test"),
            ("https://evil.test/", false, "deny evil.test"),
            ("http://other.test/public/x", true, "allow GET http://other.test/public/**"),
            ("http://other.test/private", false, "comes near"),
            ("http://169.254.169.254/", false, "no rule of the policy allows it"),
            ("tcp://10.1.2.3:5432", false, "no rule of the policy allows it"),
        ] {
            let asked = json!({ "url": url, "lease_id": inside.lease });
            let told = world.server.post("/api/v1/egress/explain", &asked).ok();
            assert_eq!(told["allowed"], allowed, "{url}: {told}");
            assert!(told["explanation"].as_str().expect("a text").contains(rule), "{url}: {told}");
        }
    });
}
