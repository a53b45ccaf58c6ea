//! Tools for agents over the daemon's socket.

use cubicle_guest::client::ClientError;
use serde_json::{Value, json};

use crate::{Sandbox, within};

async fn tool(sandbox: &Sandbox, name: &str, arguments: Value) -> Result<Value, String> {
    match within(sandbox.guest.tool(name, &arguments)).await {
        Ok(answer) => Ok(answer),
        Err(ClientError::Refused { code, .. }) => Err(code),
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test]
async fn every_tool_answers_over_the_socket_and_a_refusal_changes_nothing() {
    let sandbox = Sandbox::start().await;
    let base = sandbox.file("").display().to_string();
    let base = base.trim_end_matches('/');
    let path = sandbox.file("a/b.txt").display().to_string();
    let good = [
        ("write_file", json!({ "path": path, "content": "one\ntwo\n" }), "created", json!(true)),
        ("read_file", json!({ "path": path, "offset": 2 }), "content", json!("two\n")),
        (
            "edit_file",
            json!({ "path": path, "old_string": "two", "new_string": "2" }),
            "replacements",
            json!(1),
        ),
        ("glob", json!({ "pattern": "**/*.txt", "path": base }), "paths", json!([path])),
        ("grep", json!({ "pattern": "^2$", "path": base }), "files_searched", json!(1)),
        ("list_dir", json!({ "path": base }), "truncated", json!(false)),
        (
            "apply_patch",
            json!({ "patch": "--- a/a/b.txt\n+++ b/a/b.txt\n@@ -1,2 +1,1 @@\n one\n-2\n", "path": base }),
            "dry_run",
            json!(false),
        ),
        ("delete_file", json!({ "path": path }), "type", json!("file")),
    ];
    for (name, arguments, field, expected) in good {
        assert_eq!(tool(&sandbox, name, arguments).await.unwrap()[field], expected, "{name}");
    }
    std::fs::write(sandbox.file("kept"), "x\nx\n").unwrap();
    let kept = sandbox.file("kept").display().to_string();
    let bad = [
        ("read_file", json!({ "path": "/nonexistent/x" }), "not_found"),
        ("write_file", json!({ "path": kept }), "invalid_argument"),
        ("edit_file", json!({ "path": kept, "old_string": "x", "new_string": "y" }), "not_unique"),
        ("delete_file", json!({ "path": base }), "not_empty"),
        ("list_dir", json!({ "path": kept }), "not_a_directory"),
        ("glob", json!({ "pattern": "{" }), "invalid_pattern"),
        ("grep", json!({ "pattern": "[" }), "invalid_pattern"),
        ("apply_patch", json!({ "patch": "x" }), "invalid_patch"),
        ("nonsense", json!({}), "no_such_tool"),
    ];
    for (name, arguments, code) in bad {
        assert_eq!(tool(&sandbox, name, arguments).await, Err(code.to_owned()), "{name}");
    }
    assert_eq!(std::fs::read_to_string(&kept).unwrap(), "x\nx\n");
    assert!(matches!(sandbox.guest.tool("../exec", &json!({})).await, Err(ClientError::Invalid(_))));
}

#[tokio::test]
async fn a_pattern_that_is_meant_to_take_for_ever_does_not() {
    let sandbox = Sandbox::start().await;
    std::fs::write(sandbox.file("a"), "a".repeat(100_000)).unwrap();
    let path = sandbox.file("a").display().to_string();
    let found =
        tool(&sandbox, "grep", json!({ "pattern": "(a*)*(a*)*(a|aa)+b", "path": path })).await.unwrap();
    assert_eq!((&found["matches"], &found["truncated"]), (&json!([]), &json!(false)));
    let deep = format!("{}a{}", "(".repeat(10_000), ")".repeat(10_000));
    assert_eq!(
        tool(&sandbox, "grep", json!({ "pattern": &deep[..4000], "path": path })).await,
        Err("invalid_pattern".into())
    );
    assert!(sandbox.guest.health().await.is_ok());
}
