//! Files that outlive sandboxes, and skills: over HTTP and with the command line.

use std::io::Write;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::client::{Reply, Server, With};
use crate::host::{BINARY, Host};

const FILES: &str = "/api/v1/workspace/files";

fn at(path: &str) -> String {
    format!("{FILES}/{path}")
}

fn put(server: &Server, path: &str, bytes: &[u8], headers: &[(&str, &str)]) -> Reply {
    server.request("PUT", &at(path), bytes, &With { headers, ..With::default() })
}

fn paths(listed: &Value) -> Vec<&str> {
    listed["entries"].as_array().expect("entries").iter().filter_map(|entry| entry["path"].as_str()).collect()
}

#[test]
fn shared_files_are_written_read_moved_listed_and_deleted() {
    let Some(server) = Server::start() else { return };
    assert_eq!(paths(&server.get(FILES).ok()), ["data", "scripts", "skills"]);
    let written = put(&server, "data/deep/a.csv", b"0123456789", &[]);
    assert_eq!(
        (written.status, written.header("etag")),
        (201, written.json()["etag"].as_str().expect("a tag"))
    );
    let read = server.get(&at("data/deep/a.csv"));
    assert_eq!((read.text.as_str(), read.header("content-type")), ("0123456789", "text/csv"));
    assert_eq!(read.header("etag"), written.header("etag"));
    let with =
        |headers| server.request("GET", &at("data/deep/a.csv"), b"", &With { headers, ..With::default() });
    let part = with(&[("range", "bytes=2-4")]);
    assert_eq!((part.status, part.text.as_str(), part.header("content-range")), (206, "234", "bytes 2-4/10"));
    assert_eq!(with(&[("range", "bytes=10-")]).refused(416), "invalid");
    let same = server.request(
        "GET",
        &at("data/deep/a.csv"),
        b"",
        &With { headers: &[("if-none-match", read.header("etag"))], ..With::default() },
    );
    assert_eq!((same.status, same.text.as_str()), (304, ""));
    let head = server.request("HEAD", &at("data/deep/a.csv"), b"", &With::default());
    assert_eq!((head.status, head.header("content-length"), head.text.as_str()), (200, "10", ""));

    let moved =
        server.post("/api/v1/workspace/move", &json!({ "from": "data/deep/a.csv", "to": "data/b.csv" }));
    assert_eq!(moved.status, 204, "{moved:?}");
    assert_eq!(server.get(&at("data/deep/a.csv")).refused(404), "not_found");
    let all = server.get(&format!("{FILES}?recursive=true")).ok();
    assert_eq!(paths(&all), ["data", "data/b.csv", "data/deep", "scripts", "skills"]);
    assert_eq!(paths(&server.get(&format!("{FILES}?glob=**/*.csv")).ok()), ["data/b.csv"]);
    assert_eq!(server.delete(&at("data")).refused(409), "conflict");
    assert_eq!(server.delete(&at("data?recursive=true")).ok()["files"], 1);
    assert_eq!(server.get(&format!("{FILES}?list=data")).refused(404), "not_found");

    let page = server.request("PUT", &at("data/page.html"), b"<script>", &With::default());
    assert_eq!(page.status, 201);
    assert_eq!(server.get(&at("data/page.html")).header("content-type"), "application/octet-stream");

    let audit = server.get("/api/v1/audit?limit=100").ok();
    let noted = |action: &str, path: &str| {
        let entries = audit["items"].as_array().expect("items");
        entries.iter().any(|entry| entry["action"] == action && entry["detail"] == path)
    };
    assert!(noted("workspace.write", "data/deep/a.csv") && noted("workspace.delete", "data"), "{audit}");
    assert!(noted("workspace.move", "data/deep/a.csv"), "{audit}");
}

#[test]
fn a_shared_file_is_replaced_only_as_it_was_seen_and_its_versions_are_kept() {
    let Some(server) = Server::start() else { return };
    let first = put(&server, "data/x", b"1", &[("if-none-match", "*")]);
    assert_eq!(first.status, 201);
    assert_eq!(put(&server, "data/x", b"2", &[("if-none-match", "*")]).refused(409), "conflict");
    let second = put(&server, "data/x", b"2", &[("if-match", first.header("etag"))]);
    assert_eq!(second.status, 200, "{second:?}");
    let large = vec![b'x'; 3 << 20];
    assert_eq!(
        put(&server, "data/x", &large, &[("if-match", first.header("etag"))]).refused(409),
        "conflict"
    );
    assert_eq!(put(&server, "data/x", b"3", &[("if-match", "nonsense")]).refused(400), "invalid");
    put(&server, "data/x", b"3", &[]).ok();

    let of = |path: &str| server.get(&format!("/api/v1/workspace/versions?path={path}"));
    let versions = of("data/x").ok();
    let numbers: Vec<_> =
        versions["versions"].as_array().expect("versions").iter().map(|v| &v["version"]).collect();
    assert_eq!(numbers, [&json!(2), &json!(1)]);
    assert_eq!(server.get(&at("data/x?version=1")).text, "1");
    assert_eq!(server.get(&at("data/x?version=9")).refused(404), "not_found");
    server.delete(&at("data/x")).ok();
    assert_eq!(server.get(&at("data/x?version=3")).text, "3");
    assert_eq!(of("data/none").refused(404), "not_found");
}

#[test]
fn paths_that_lead_out_and_bad_requests_are_refused() {
    let Some(server) = Server::start() else { return };
    for path in ["..%2F..%2Fserver%2Fadmin.key", "%2Fetc%2Fpasswd", "a%00b", "a%0Ab", &"a".repeat(300)] {
        assert_eq!(server.get(&at(path)).refused(400), "invalid", "{path}");
        assert_eq!(put(&server, path, b"x", &[]).refused(400), "invalid", "{path}");
        assert_eq!(server.delete(&at(path)).refused(400), "invalid", "{path}");
    }
    assert_eq!(server.get(&format!("{FILES}?list=../..")).refused(400), "invalid");
    assert_eq!(server.get(&format!("{FILES}?glob=%5Ba")).refused(400), "invalid");
    assert_eq!(server.get(&format!("{FILES}?glob=a&list=b")).refused(400), "invalid");
    assert_eq!(put(&server, "data", b"x", &[]).refused(400), "invalid");
    let leaving = json!({ "from": "data", "to": "../out" });
    assert_eq!(server.post("/api/v1/workspace/move", &leaving).refused(400), "invalid");
    // What somebody else put into the directory is not followed.
    std::os::unix::fs::symlink("/etc", server.host.data_dir().join("shared/default/shared/data/link"))
        .expect("a link can be made");
    for path in ["data/link/passwd", "data/link"] {
        assert_eq!(server.get(&at(path)).status / 100, 4, "{path}");
        assert_eq!(put(&server, path, b"x", &[]).status / 100, 4, "{path}");
    }
    assert_eq!(paths(&server.get(&format!("{FILES}?list=data")).ok()), [] as [&str; 0]);
}

#[test]
fn a_tenant_has_a_workspace_of_its_own_and_scopes_hold() {
    let Some(server) = Server::start() else { return };
    let ada = server.key_of("acme", "ada", &["read", "run"]);
    let eve = server.key_of("others", "eve", &["read", "run"]);
    let reader = server.key_of("acme", "reader", &["read"]);
    let with = |key, method: &str, path: &str, bytes: &[u8]| {
        server.request(method, path, bytes, &With { key: Some(key), headers: &[] })
    };
    with(&ada, "PUT", &at("data/x"), b"of acme").ok();
    assert_eq!(with(&reader, "GET", &at("data/x"), b"").text, "of acme");
    assert_eq!(with(&reader, "PUT", &at("data/x"), b"y").refused(403), "denied");
    assert_eq!(with(&reader, "DELETE", &at("data/x"), b"").refused(403), "denied");
    let skill = json!({ "name": "a", "description": "d", "content": "c" });
    assert_eq!(server.with_key("POST", "/api/v1/skills", &skill, &reader).refused(403), "denied");
    let write = json!({ "path": "data/y", "content": "" });
    assert_eq!(
        server.with_key("POST", "/api/v1/tools/write_workspace", &write, &reader).refused(403),
        "denied"
    );
    assert_eq!(with(&eve, "GET", &at("data/x"), b"").refused(404), "not_found");
    assert_eq!(with(&eve, "GET", "/api/v1/workspace/versions?path=data/x", b"").refused(404), "not_found");
    assert_eq!(with(&eve, "GET", &format!("{FILES}?glob=**"), b"").ok()["entries"], json!([]));
    assert_eq!(with("", "GET", &at("data/x"), b"").refused(401), "unauthenticated");
}

#[test]
fn skills_are_created_listed_and_read() {
    let Some(server) = Server::start() else { return };
    let files = json!([{ "path": "scripts/chart.py", "content": "print()" }]);
    let asked =
        json!({ "name": "charts", "description": "Draws charts.", "content": "# How", "files": files });
    let made = server.post("/api/v1/skills", &asked);
    assert_eq!(made.status, 201, "{made:?}");
    assert_eq!(server.post("/api/v1/skills", &asked).refused(409), "conflict");
    let listed = server.get("/api/v1/skills").ok();
    assert_eq!(listed["skills"][0]["path"], "skills/charts/SKILL.md");
    let skill = server.get("/api/v1/skills/charts").ok();
    assert_eq!(
        (&skill["content"], &skill["files"][0]["path"]),
        (&json!("# How\n"), &json!("skills/charts/scripts/chart.py"))
    );
    assert_eq!(server.get("/api/v1/skills/none").refused(404), "not_found");
    let bad = json!({ "name": "Charts", "description": "d", "content": "c" });
    assert_eq!(server.post("/api/v1/skills", &bad).refused(400), "invalid");
    put(&server, "skills/odd/SKILL.md", b"---\nname: other\ndescription: d\n---\n", &[]).ok();
    let listed = server.get("/api/v1/skills").ok();
    assert!(
        listed["skills"][1]["warnings"][0].as_str().is_some_and(|text| text.contains("lies in")),
        "{listed}"
    );
}

#[test]
fn tools_that_need_no_sandbox_are_done_without_one() {
    let Some(server) = Server::start() else { return };
    let call = |tool: &str, arguments: Value| server.post(&format!("/api/v1/tools/{tool}"), &arguments);
    assert_eq!(call("write_workspace", json!({ "path": "data/x", "content": "text" })).ok()["created"], true);
    assert_eq!(call("read_workspace", json!({ "path": "data/x" })).ok()["content"], "text");
    assert_eq!(
        call("read_workspace", json!({ "path": "data/x", "nonsense": 1 })).refused(400),
        "invalid_argument"
    );
    assert_eq!(call("read_file", json!({ "path": "x" })).refused(400), "needs_sandbox");
    assert_eq!(call("nonsense", json!({})).refused(404), "no_such_tool");
    let tools = server.get("/api/v1/tools").ok();
    let named = |name: &str| {
        let all = tools["tools"].as_array().expect("tools");
        all.iter().find(|tool| tool["name"] == name).expect("it is in the table")["needs_sandbox"].clone()
    };
    assert_eq!((named("read_workspace"), named("read_file")), (json!(false), json!(true)));

    // What is known to be secret leaves through masks.
    server.put("/api/v1/secrets/token", &json!({ "value": "very-secret-value", "bindings": [] })).ok();
    put(&server, "data/note", b"it is very-secret-value", &[]).ok();
    let read = call("read_workspace", json!({ "path": "data/note" })).ok();
    assert!(!read.to_string().contains("very-secret-value"), "{read}");
}

#[test]
fn shared_files_outlive_the_server_and_can_lie_elsewhere() {
    let Some(host) = Host::new() else { return };
    let elsewhere = host.data_dir().join("elsewhere/files");
    let elsewhere = elsewhere.to_str().expect("text");
    let mut server = Server::start_on(host, &["--pool-size", "1"], &[("CUBICLE_SHARED_DIR", elsewhere)]);
    put(&server, "data/x", b"kept", &[]).ok();
    assert_eq!(
        std::fs::read_to_string(format!("{elsewhere}/default/shared/data/x")).expect("it is there"),
        "kept"
    );
    server.kill();
    server.start_again();
    assert_eq!(server.get(&at("data/x")).text, "kept");
}

#[test]
fn the_command_line_reads_and_writes_shared_files() {
    let Some(server) = Server::start() else { return };
    let here = server.host.data_dir().join("here");
    std::fs::create_dir_all(here.join("sub")).expect("a directory can be made");
    std::fs::write(here.join("a.txt"), "first").expect("a file can be written");
    std::fs::write(here.join("sub/b.txt"), "second").expect("a file can be written");
    let text = |name: &str| here.join(name).to_str().expect("text").to_owned();
    let run = |arguments: &[&str]| {
        let output = server.host.cubicle(&[&["workspace"], arguments].concat());
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    run(&["put", &text("a.txt"), "data/"]);
    run(&["put", here.to_str().expect("text"), "data/all"]);
    assert_eq!(run(&["get", "data/a.txt"]), "first");
    assert_eq!(run(&["get", "data/all/sub/b.txt"]), "second");
    let listed: Value = serde_json::from_str(&run(&["ls", "data", "-r", "--json"])).expect("JSON");
    assert_eq!(paths(&listed).len(), 5, "{listed}");
    assert!(run(&["ls"]).contains("scripts/"));

    // Through pipes, and back to an earlier version.
    let mut child = server.host.command(BINARY, &["workspace", "put", "-", "data/a.txt"]);
    let mut child = child.stdin(Stdio::piped()).spawn().expect("the built program starts");
    child.stdin.take().expect("it is piped").write_all(b"newer").expect("it reads");
    assert!(child.wait().expect("it ends").success());
    assert_eq!(run(&["get", "data/a.txt"]), "newer");
    assert!(run(&["history", "data/a.txt"]).contains("VERSION"));
    run(&["get", "data/a.txt", &text("old.txt"), "--version", "1"]);
    assert_eq!(std::fs::read_to_string(here.join("old.txt")).expect("it was written"), "first");
    run(&["mv", "data/a.txt", "data/z.txt"]);
    run(&["rm", "-r", "data/z.txt", "data/all"]);
    let refused = server.host.cubicle(&["workspace", "get", "data/z.txt", &text("none.txt")]);
    assert!(!refused.status.success() && !here.join("none.txt").exists());
    let refused = server.host.cubicle(&["workspace", "get", "../../server/admin.key"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("leads out"), "{refused:?}");

    std::fs::write(here.join("how.md"), "# How\n").expect("a file can be written");
    let how = text("how.md");
    let file = format!("{}:scripts/a.txt", text("a.txt"));
    let create =
        ["skills", "create", "charts", "--description", "Draws.", "--content", &how, "--file", &file];
    assert!(server.host.cubicle(&create).status.success());
    let shown = server.host.cubicle(&["skills", "show", "charts"]);
    assert_eq!(String::from_utf8_lossy(&shown.stdout), "# How\n");
    assert!(String::from_utf8_lossy(&server.host.cubicle(&["skills", "list"]).stdout).contains("charts"));
}

#[test]
fn a_body_that_breaks_off_changes_nothing() {
    use std::io::Read;
    let Some(server) = Server::start() else { return };
    put(&server, "data/x", b"whole", &[]).ok();
    let address = server.address.trim_start_matches("http://");
    let mut stream = std::net::TcpStream::connect(address).expect("it listens");
    let head = format!(
        "PUT {} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {}\r\ncontent-length: 1000\r\n\r\nhalf",
        at("data/x"),
        server.admin_key()
    );
    stream.write_all(head.as_bytes()).expect("it reads");
    stream.shutdown(std::net::Shutdown::Write).expect("it can be shut");
    let mut answer = String::new();
    _ = stream.read_to_string(&mut answer);
    assert!(!answer.starts_with("HTTP/1.1 2"), "{answer}");
    assert_eq!(server.get(&at("data/x")).text, "whole");
    let staging = server.host.data_dir().join("shared/default/staging");
    crate::client::eventually("nothing is left", || {
        std::fs::read_dir(&staging).ok()?.next().is_none().then_some(())
    });
}
