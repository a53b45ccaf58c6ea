//! `cubicle mcp`.

use serde_json::json;

use crate::client::{Server, eventually};
use crate::host::{Host, send, wait};
use crate::rpc::{CURRENT, ERAS, Era, LEGACY, Stdio_, answer, does_a_job, left_of, tells_of_progress, tree};

#[test]
fn an_agent_does_a_job_without_a_server_in_both_eras() {
    for era in ERAS {
        let Some(host) = Host::new() else { return };
        let mut client = Stdio_::start(&host, &[], era);
        does_a_job(&mut client);
        tells_of_progress(&mut client);
    }
}

#[test]
fn an_agent_does_a_job_in_sandboxes_of_a_server() {
    let Some(server) = Server::start() else { return };
    let mut client = Stdio_::start(&server.host, &["--server", &server.address], Era::Legacy);
    does_a_job(&mut client);
    tells_of_progress(&mut client);
    let active = || server.get("/api/v1/leases?status=ACTIVE").ok()["items"].as_array().map(Vec::len);
    assert_eq!(active(), Some(1));
    client.close();
    assert_eq!(wait(&mut client.child).code(), Some(0));
    assert_eq!(active(), Some(0), "its lease ends with it");
}

#[test]
fn a_client_learns_what_there_is_before_it_asks_for_anything() {
    let Some(host) = Host::new() else { return };
    let mut client = Stdio_::start(&host, &[], Era::Current);
    let (found, _) = client.ask("server/discover", json!({}));
    let versions = found["result"]["supportedVersions"].as_array().expect("versions").clone();
    assert!(versions.contains(&json!(CURRENT)) && versions.contains(&json!(LEGACY)), "{found}");
    assert!(found["result"]["capabilities"]["tools"].is_object(), "{found}");
}

#[test]
fn a_cancelled_call_ends_its_whole_tree() {
    for era in ERAS {
        let Some(host) = Host::new() else { return };
        let mut client = Stdio_::start(&host, &[], era);
        let id = client.begin("tools/call", tree("98761"));
        while client.next()["method"] != "notifications/progress" {}
        assert_ne!(left_of(&mut client, "98761"), "0");
        client.send(
            &json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": id } }),
        );
        eventually("the tree is gone", || (left_of(&mut client, "98761") == "0").then_some(()));
    }
}

#[test]
fn the_sandbox_is_destroyed_when_the_client_hangs_up_and_on_a_signal() {
    let Some(host) = Host::new() else { return };
    let listed = || String::from_utf8_lossy(&host.cubicle(&["ls", "--quiet"]).stdout).trim().to_owned();
    for signal in [None, Some(15)] {
        let mut client = Stdio_::start(&host, &[], Era::Legacy);
        let started = json!({ "command": "sleep 600", "background": true });
        answer(&client.tool("execute", started));
        assert!(listed().starts_with("sbx-"));
        match signal {
            None => client.close(),
            Some(number) => send(&client.child, number),
        }
        let status = wait(&mut client.child);
        assert_eq!(status.code(), signal.map_or(Some(0), |_| None), "{status}");
        assert_eq!(listed(), "");
    }
}

#[test]
fn a_sandbox_that_is_given_back_is_followed_by_a_fresh_one() {
    let Some(host) = Host::new() else { return };
    let mut client = Stdio_::start(&host, &[], Era::Legacy);
    answer(&client.tool("write_file", json!({ "path": "a", "content": "" })));
    let first = answer(&client.tool("list_sandboxes", json!({})))["sandboxes"][0]["sandbox_id"].clone();
    answer(&client.tool("release_sandbox", json!({ "sandbox_id": first })));
    assert_eq!(answer(&client.tool("glob", json!({ "pattern": "a" })))["paths"], json!([]));
    let second = answer(&client.tool("list_sandboxes", json!({})))["sandboxes"][0]["sandbox_id"].clone();
    assert_ne!(first, second);
}

#[test]
fn options_that_do_not_go_together_are_refused() {
    let Some(host) = Host::new() else { return };
    for (flags, words) in [
        (&["mcp", "--template", "x"][..], "templates are a server's"),
        (&["mcp", "--server", "http://127.0.0.1:1", "--memory", "64M"], "as its templates say"),
    ] {
        let refused = host.cubicle(flags);
        assert_eq!(refused.status.code(), Some(125));
        assert!(String::from_utf8_lossy(&refused.stderr).contains(words), "{refused:?}");
    }
}
