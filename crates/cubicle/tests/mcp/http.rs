//! `/mcp` of a server.

use serde_json::{Value, json};

use crate::client::{Server, With, eventually};
use crate::rpc::{
    ERAS, Era, Http, Mcp, answer, does_a_job, initialize, left_of, refusal, tells_of_progress, tree,
};

#[test]
fn an_agent_does_a_job_over_http_in_both_eras() {
    let Some(server) = Server::start() else { return };
    for (era, user) in ERAS.into_iter().zip(["ada", "eve"]) {
        let key = server.key_of("acme", user, &["read", "run"]);
        let mut client = Http::connect(&server, era, &key);
        does_a_job(&mut client);
        tells_of_progress(&mut client);
    }
}

#[test]
fn a_call_that_is_given_up_ends_its_whole_tree_in_both_eras() {
    let Some(server) = Server::start() else { return };
    let key = server.admin_key();
    for era in ERAS {
        let mut client = Http::connect(&server, era, &key);
        let (id, mut answering) = client.begin("tools/call", tree("98761"));
        while answering.message()["method"] != "notifications/progress" {}
        assert_ne!(left_of(&mut client, "98761"), "0");
        if era == Era::Legacy {
            let cancelled = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": id } });
            assert_eq!(client.post(&cancelled, &[]).status, 202);
        }
        // In the current era hanging up is what cancels.
        drop(answering);
        eventually("the tree is gone", || (left_of(&mut client, "98761") == "0").then_some(()));
    }
}

#[test]
fn without_a_key_a_client_is_told_where_to_get_a_token() {
    let Some(server) = Server::start() else { return };
    for key in ["", "nonsense"] {
        let client = Http::connect(&server, Era::Current, key);
        let refused = client.post(&Era::Current.request(1, "tools/list", json!({})), &[]);
        assert_eq!(refused.status, 401);
        let place = format!("{}/.well-known/oauth-protected-resource/mcp", server.address);
        let challenge = refused.header("www-authenticate");
        assert_eq!(challenge, format!("Bearer resource_metadata=\"{place}\""));
    }
    for (path, resource) in [("", ""), ("/mcp", "/mcp")] {
        let path = format!("/.well-known/oauth-protected-resource{path}");
        let described = server.request("GET", &path, b"", &With { key: Some(""), headers: &[] }).ok();
        assert_eq!(described["resource"], format!("{}{resource}", server.address));
        assert_eq!(described["bearer_methods_supported"], json!(["header"]));
    }
}

#[test]
fn pages_of_other_sites_are_refused_whatever_key_they_have() {
    let Some(server) = Server::start() else { return };
    let client = Http::connect(&server, Era::Current, &server.admin_key());
    let list = Era::Current.request(1, "tools/list", json!({}));
    for (origin, status) in [("http://evil.example", 403), ("null", 403), (server.address.as_str(), 200)] {
        assert_eq!(client.post(&list, &[("origin", origin)]).status, status, "{origin}");
    }
}

#[test]
fn a_key_that_may_only_read_runs_nothing_and_a_foreign_sandbox_is_not_there() {
    let Some(server) = Server::start() else { return };
    let (_, sandbox) = server.lease(&json!({}));
    let reader = server.key_of("acme", "reader", &["read"]);
    let mut client = Http::connect(&server, Era::Current, &reader);
    assert_eq!(refusal(&client.tool("execute", json!({ "command": "true" }))), "denied");
    let stranger = server.key_of("acme", "ada", &["read", "run"]);
    let mut client = Http::connect(&server, Era::Current, &stranger);
    for (tool, arguments) in [
        ("execute", json!({ "command": "true", "sandbox_id": sandbox })),
        ("list_dir", json!({ "sandbox_id": sandbox })),
        ("write_file", json!({ "path": "x", "content": "", "sandbox_id": sandbox })),
        ("release_sandbox", json!({ "sandbox_id": sandbox })),
    ] {
        assert_eq!(refusal(&client.tool(tool, arguments)), "not_found", "{tool}");
    }
    let listed = answer(&client.tool("list_sandboxes", json!({})));
    assert_eq!(listed["sandboxes"], json!([]));
}

#[test]
fn a_session_has_a_sandbox_of_its_own_and_another_key_does_not_get_it() {
    let Some(server) = Server::start() else { return };
    let key = server.key_of("acme", "ada", &["read", "run"]);
    let mut first = Http::connect(&server, Era::Legacy, &key);
    answer(&first.tool("write_file", json!({ "path": "mine", "content": "x" })));
    let mut second = Http::connect(&server, Era::Legacy, &key);
    assert_eq!(refusal(&second.tool("read_file", json!({ "path": "mine" }))), "not_found");
    assert_eq!(answer(&first.tool("read_file", json!({ "path": "mine" })))["content"], "x");
    // The session of one with the key of another is another's sandbox.
    first.key = server.key_of("others", "eve", &["read", "run"]);
    assert_eq!(refusal(&first.tool("read_file", json!({ "path": "mine" }))), "not_found");
}

#[test]
fn calls_without_a_sandbox_share_one_that_lives_by_being_used() {
    let Some(server) = Server::start_with(&["--pool-size", "2", "--lease-ttl", "2s"]) else { return };
    let key = server.key_of("acme", "ada", &["read", "run"]);
    let mut client = Http::connect(&server, Era::Current, &key);
    answer(&client.tool("write_file", json!({ "path": "kept", "content": "x" })));
    // Longer than its time to live: whoever follows the command renews it.
    answer(&client.tool("execute", json!({ "command": "sleep 4" })));
    assert_eq!(answer(&client.tool("read_file", json!({ "path": "kept" })))["content"], "x");
    let leases = |status: &str| {
        let path = format!("/api/v1/leases?status={status}");
        server.with_key("GET", &path, &Value::Null, &key).ok()["items"].as_array().map_or(0, Vec::len)
    };
    eventually("an idle sandbox is given back", || (leases("ACTIVE") == 0).then_some(()));
    assert_eq!(refusal(&client.tool("read_file", json!({ "path": "kept" }))), "not_found");
}

#[test]
fn first_calls_at_once_get_the_same_sandbox() {
    let Some(server) = Server::start() else { return };
    let key = server.key_of("acme", "ada", &["read", "run"]);
    let together = std::sync::Barrier::new(8);
    std::thread::scope(|scope| {
        for number in 0..8 {
            let (server, key, together) = (&server, &key, &together);
            scope.spawn(move || {
                let mut client = Http::connect(server, Era::Current, key);
                together.wait();
                answer(&client.tool("write_file", json!({ "path": format!("f{number}"), "content": "" })));
            });
        }
    });
    let mut client = Http::connect(&server, Era::Current, &key);
    let found = answer(&client.tool("glob", json!({ "pattern": "f[0-7]" })));
    assert_eq!(found["paths"].as_array().map(Vec::len), Some(8));
    let listed = answer(&client.tool("list_sandboxes", json!({})));
    assert_eq!(listed["sandboxes"].as_array().map(Vec::len), Some(1));
}

#[test]
fn secrets_are_masked_in_answers_and_in_progress() {
    let Some(server) = Server::start() else { return };
    let bound = json!([{ "host": "private.example", "form": "bearer" }]);
    server.put("/api/v1/secrets/token", &json!({ "value": "hunter2-secret", "bindings": bound })).ok();
    let key = server.admin_key();
    let mut client = Http::connect(&server, Era::Current, &key);
    let command = json!({ "command": "echo a hunter2-secret; echo hunter2-secret > f; sleep 0.2; cat f" });
    let (response, before) = client.asks("tools/call", crate::rpc::call("execute", command));
    assert_eq!(answer(&response)["stdout"], "a **************\n**************\n");
    let read = client.tool("read_file", json!({ "path": "f" }));
    assert_eq!(answer(&read)["content"], "**************\n");
    let missing = client.tool("read_file", json!({ "path": "hunter2-secret" }));
    assert_eq!(refusal(&missing), "not_found");
    let said = format!("{response} {before:?} {read} {missing}");
    assert!(!said.contains("hunter2"), "{said}");
}

#[test]
fn a_message_that_is_none_is_refused_and_the_server_goes_on() {
    let Some(server) = Server::start() else { return };
    let with = With::default();
    let json = [("content-type", "application/json"), ("accept", "application/json, text/event-stream")];
    for body in [&b"{"[..], b"[]", b"{\"jsonrpc\":\"2.0\"}", b"\xff"] {
        let refused = server.request("POST", "/mcp", body, &With { headers: &json, ..with.clone() });
        assert!((400..500).contains(&refused.status), "{refused:?}");
    }
    let other = With { headers: &[("content-type", "text/plain")], ..with };
    assert!((400..500).contains(&server.request("POST", "/mcp", b"{}", &other).status));
    let mut client = Http::connect(&server, Era::Legacy, &server.admin_key());
    let unknown = client.post(
        &json!({ "jsonrpc": "2.0", "id": 9, "method": "initialize", "params": initialize() }),
        &[("mcp-session-id", "nonsense")],
    );
    assert!(unknown.status >= 200);
    assert_eq!(answer(&client.tool("glob", json!({ "pattern": "a" })))["paths"], json!([]));
}
