//! `/api/v1/tools`.

use serde_json::{Value, json};

use crate::client::Server;

#[test]
fn tools_are_defined_in_the_form_that_is_asked_for() {
    let Some(server) = Server::start() else { return };
    let names = |format: &str, name: fn(&Value) -> &Value| -> Vec<String> {
        let listed = server.get(&format!("/api/v1/tools{format}")).ok();
        let tools = listed["tools"].as_array().expect("tools").clone();
        tools.iter().map(|tool| name(tool).as_str().expect("a name").to_owned()).collect()
    };
    let native = names("", |tool| &tool["name"]);
    assert_eq!(native.len(), 25);
    assert_eq!(names("?format=native", |tool| &tool["name"]), native);
    assert_eq!(names("?format=openai", |tool| &tool["function"]["name"]), native);
    let mcp = names("?format=mcp", |tool| &tool["name"]);
    assert_eq!(mcp[..25], native);
    assert_eq!(mcp[25..], ["create_sandbox", "list_sandboxes", "release_sandbox"]);
    assert_eq!(server.get("/api/v1/tools?format=x").refused(400), "invalid");
}

#[test]
fn tools_are_done_in_a_sandbox_noted_and_audited() {
    let Some(server) = Server::start() else { return };
    let (_, sandbox) = server.lease(&json!({}));
    let tool = |name: &str, arguments: Value| {
        server.post(&format!("/api/v1/sandboxes/{sandbox}/tools/{name}"), &arguments)
    };
    tool("write_file", json!({ "path": "a.txt", "content": "one\none\n" })).ok();
    let refused = tool("edit_file", json!({ "path": "a.txt", "old_string": "one", "new_string": "two" }));
    assert_eq!(refused.refused(400), "not_unique");
    assert!(refused.json()["error"]["message"].as_str().is_some_and(|text| text.contains("lines 1, 2")));
    assert!(refused.json()["error"]["hint"].as_str().is_some_and(|text| text.contains("replace_all")));
    let all = json!({ "path": "a.txt", "old_string": "one", "new_string": "two", "replace_all": true });
    assert_eq!(tool("edit_file", all).ok()["replacements"], 2);
    assert_eq!(tool("read_file", json!({ "path": "a.txt" })).ok()["content"], "two\ntwo\n");
    let ran = tool("execute", json!({ "command": "wc -l < a.txt" })).ok();
    assert_eq!((&ran["stdout"], &ran["exit_code"]), (&json!("2\n"), &json!(0)));
    tool("delete_file", json!({ "path": "a.txt" })).ok();
    assert_eq!(tool("read_file", json!({ "path": "a.txt" })).refused(404), "not_found");
    assert_eq!(tool("nonsense", json!({})).refused(404), "no_such_tool");
    assert_eq!(tool("create_sandbox", json!({})).refused(404), "no_such_tool");
    assert_eq!(tool("execute", json!({ "command": 7 })).refused(400), "invalid_argument");

    // A command of a tool is an exec like any other.
    let exec = ran["exec_id"].as_str().expect("an id");
    let noted = server.get(&format!("/api/v1/execs/{exec}")).ok();
    assert_eq!(noted["command"], "wc -l < a.txt");
    let audit = |action: &str| {
        let entries = server.get(&format!("/api/v1/audit?action={action}&limit=50")).ok();
        let entries = entries["items"].as_array().expect("entries").clone();
        entries
            .iter()
            .map(|entry| entry["outcome"].as_str().unwrap_or_default().to_owned())
            .collect::<Vec<_>>()
    };
    let mut writes = audit("file.write");
    writes.sort();
    assert_eq!(writes, ["invalid", "ok", "ok"]);
    assert_eq!(audit("file.remove"), ["ok"]);
    assert_eq!(audit("exec.create").len(), 1);
}

#[test]
fn a_key_that_may_only_read_changes_nothing_by_tools() {
    let Some(server) = Server::start() else { return };
    let (_, sandbox) = server.lease(&json!({}));
    // A key of the same tenant and user that may do less.
    let asked = json!({ "label": "reader", "scopes": ["read"] });
    let reader = server.post("/api/v1/keys", &asked).ok()["secret"].as_str().expect("a secret").to_owned();
    let tool = |name: &str, arguments: Value| {
        server.with_key("POST", &format!("/api/v1/sandboxes/{sandbox}/tools/{name}"), &arguments, &reader)
    };
    tool("list_dir", json!({})).ok();
    for (name, arguments) in [
        ("write_file", json!({ "path": "a", "content": "" })),
        ("edit_file", json!({ "path": "a", "old_string": "a", "new_string": "b" })),
        ("delete_file", json!({ "path": "a" })),
        ("apply_patch", json!({ "patch": "--- /dev/null\n+++ b/a\n@@ -0,0 +1 @@\n+x\n" })),
        ("execute", json!({ "command": "true" })),
        ("run_code", json!({ "code": "x" })),
    ] {
        assert_eq!(tool(name, arguments).refused(403), "denied", "{name}");
    }
}
