//! Environments: made once from wheels, attached to every sandbox that asks for them, written to by none.

use std::path::Path;

use serde_json::{Value, json};

use crate::client::{Server, eventually};
use crate::host::Host;

/// A wheel that says hello, written without any tool of Python's.
const WHEEL: &str = r#"
import sys, zipfile, hashlib, base64
where, name, version, body = sys.argv[1:5]
files = {
    f"{name}/__init__.py": body,
    f"{name}-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
    f"{name}-{version}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
}
record = ""
for path, text in files.items():
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
    record += f"{path},sha256={digest},{len(text.encode())}\n"
record += f"{name}-{version}.dist-info/RECORD,,\n"
with zipfile.ZipFile(f"{where}/{name}-{version}-py3-none-any.whl", "w") as wheel:
    for path, text in files.items():
        wheel.writestr(path, text)
    wheel.writestr(f"{name}-{version}.dist-info/RECORD", record)
"#;

fn wheel(directory: &Path, name: &str, version: &str, body: &str) {
    #[expect(clippy::disallowed_methods, reason = "a test writes a wheel")]
    let status = std::process::Command::new("/usr/bin/python3")
        .args(["-c", WHEEL])
        .arg(directory)
        .args([name, version, body])
        .status()
        .expect("python3 starts");
    assert!(status.success());
}

fn skipped(why: &str) {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("skipped: {test}: {why}\n"));
}

/// The uv of the tests.
fn uv() -> Option<String> {
    #[expect(clippy::disallowed_methods, reason = "the set-up names the uv of the tests")]
    let uv = std::env::var("CUBICLE_TEST_UV").ok().filter(|uv| !uv.is_empty());
    if uv.is_none() {
        skipped("no uv: run scripts/setup-ci");
    }
    uv
}

/// A server whose only packages are those in a directory; `None` where the host lacks something.
fn server() -> Option<Server> {
    server_that_says("")
}

/// The same with more in its settings.
fn server_that_says(more: &str) -> Option<Server> {
    let uv = uv()?;
    let host = Host::new()?;
    let wheels = host.scratch().join("wheels");
    std::fs::create_dir(&wheels).expect("a directory can be made");
    wheel(&wheels, "greeting", "1.0", "WORD = 'hello'\n");
    wheel(&wheels, "greeting", "2.0", "WORD = 'good day'\n");
    wheel(&wheels, "farewell", "1.0", "WORD = 'bye'\n");
    let settings = host.scratch().join("cubicle.toml");
    let text = format!(
        "{more}\n[sandbox.python_index]\nno_index = true\nfind_links = [{wheels:?}]\n",
        wheels = wheels.display().to_string()
    );
    std::fs::write(&settings, text).expect("a file can be written");
    let settings = settings.display().to_string();
    Some(Server::start_on(
        host,
        &["--pool-size", "2"],
        &[("CUBICLE_CONFIG", &settings), ("CUBICLE_SANDBOX_UV", &uv)],
    ))
}

fn greet(server: &Server, asked: &Value) -> Value {
    server.post("/api/v1/execute", asked).ok()
}

#[test]
fn requirements_are_there_and_the_second_time_at_once() {
    let Some(server) = server() else { return };
    let asked = json!({ "code": "import greeting; print(greeting.WORD)", "requirements": ["greeting"], "env_name": "polite" });
    let first = greet(&server, &asked);
    assert_eq!((&first["status"], &first["output"]), (&json!("success"), &json!("good day\n")), "{first}");
    assert_eq!(
        (&first["env"]["name"], &first["env"]["cache"]),
        (&json!("polite"), &json!("miss")),
        "{first}"
    );
    assert!(first["env"]["build_ms"].as_f64().is_some_and(|took| took > 0.0));
    let second = greet(&server, &asked);
    assert_eq!(
        (&second["env"]["cache"], &second["output"]),
        (&json!("hit"), &json!("good day\n")),
        "{second}"
    );
    let older = json!({ "code": "import greeting; print(greeting.WORD)", "requirements": ["greeting<2"] });
    assert_eq!(greet(&server, &older)["output"], "hello\n");
    let listed = server.get("/api/v1/envs").ok();
    let polite =
        listed["environments"].as_array().expect("a list").iter().find(|one| one["name"] == "polite");
    let polite = polite.expect("it has its name");
    assert_eq!(polite["packages"], json!(["greeting==2.0"]), "{listed}");
    for field in ["python_version", "created_at", "last_used_at"] {
        assert!(polite[field].as_str().is_some_and(|text| !text.is_empty()), "{polite}");
    }
    // By its name alone.
    let named =
        greet(&server, &json!({ "code": "import greeting; print(greeting.WORD)", "env_name": "polite" }));
    assert_eq!((&named["output"], &named["env"]["cache"]), (&json!("good day\n"), &json!("hit")), "{named}");
}

#[test]
fn an_environment_is_attached_to_a_running_sandbox_and_nobody_inside_can_change_it() {
    let Some(server) = server() else { return };
    let (_, sandbox) = server.lease(&json!({}));
    let envs = format!("/api/v1/sandboxes/{sandbox}/envs");
    let made = server.post(&envs, &json!({ "name": "polite", "requirements": ["greeting"] }));
    assert_eq!(made.status, 201, "{made:?}");
    let listed = server.get(&envs).ok();
    assert_eq!(listed["environments"][0]["name"], "polite", "{listed}");
    assert_eq!(listed["environments"][0]["packages"], json!(["greeting==2.0"]));
    let path = format!("/api/v1/sandboxes/{sandbox}/execute");
    let attack = "import greeting, os, sys\n\
        tried = []\n\
        for what in [greeting.__file__, sys.executable, os.path.dirname(greeting.__file__) + '/new.py']:\n\
        \x20   try:\n\
        \x20       open(what, 'a').write('poison'); tried.append('wrote ' + what)\n\
        \x20   except OSError as error: tried.append(type(error).__name__)\n\
        try: os.remove(greeting.__file__); tried.append('removed')\n\
        except OSError: pass\n\
        print(tried)\n";
    let done = server.post(&path, &json!({ "code": attack, "env_name": "polite" })).ok();
    assert_eq!(done["status"], "success", "{done}");
    assert!(!done["output"].as_str().expect("text").contains("wrote"), "{done}");
    assert!(!done["output"].as_str().expect("text").contains("removed"), "{done}");
    // Whoever comes next finds it as it was.
    let next = greet(
        &server,
        &json!({ "code": "import greeting; print(greeting.WORD)", "requirements": ["greeting"] }),
    );
    assert_eq!((&next["output"], &next["env"]["cache"]), (&json!("good day\n"), &json!("hit")), "{next}");
    assert_eq!(server.delete(&format!("{envs}/polite")).status, 204);
    let left = server.get(&envs).ok();
    // Others may be there before they are asked for; this one is not any more.
    assert!(!left.to_string().contains("polite"), "{left}");
}

#[test]
fn what_cannot_be_had_is_said_and_nothing_runs() {
    let Some(server) = server() else { return };
    let unresolvable = json!({ "code": "open('ran', 'w')", "requirements": ["no-such-package"] });
    let refused = server.post("/api/v1/execute", &unresolvable);
    assert!((400..500).contains(&refused.status), "{refused:?}");
    assert!(
        refused.json()["error"]["message"].as_str().is_some_and(|text| text.contains("no-such-package")),
        "{refused:?}"
    );
    let conflicting = json!({ "code": "1", "requirements": ["greeting<2", "greeting>=2"] });
    assert!((400..500).contains(&server.post("/api/v1/execute", &conflicting).status));
    let elsewhere =
        json!({ "code": "1", "requirements": ["greeting"], "python_index": "http://127.0.0.1:1/simple" });
    assert_eq!(server.post("/api/v1/execute", &elsewhere).refused(403), "denied");
    assert_eq!(server.get("/api/v1/envs").ok()["environments"], json!([]));
}

#[test]
fn fifty_who_want_the_same_new_environment_wait_for_one_build() {
    let Some(server) = server() else { return };
    let asked = json!({ "name": "shared", "requirements": ["greeting", "farewell"] });
    std::thread::scope(|scope| {
        let (server, asked) = (&server, &asked);
        let clients: Vec<_> =
            (0..50).map(|_| scope.spawn(move || server.post("/api/v1/envs", asked))).collect();
        for client in clients {
            let answer = client.join().expect("a client ends well");
            assert_eq!(answer.status, 201, "{answer:?}");
        }
    });
    let listed = server.get("/api/v1/envs").ok();
    assert_eq!(listed["environments"].as_array().map(Vec::len), Some(1), "{listed}");
    let metrics = server.get("/metrics").text;
    let builds = metrics.lines().find(|line| line.starts_with("cubicle_environment_build_seconds_count"));
    assert!(builds.is_some_and(|line| line.ends_with(" 1")), "{builds:?}");
}

#[test]
fn an_environment_in_use_outlives_its_server_and_its_name() {
    let Some(mut server) = server() else { return };
    let (_, sandbox) = server.lease(&json!({}));
    let envs = format!("/api/v1/sandboxes/{sandbox}/envs");
    assert_eq!(server.post(&envs, &json!({ "name": "polite", "requirements": ["greeting"] })).status, 201);
    server.kill();
    server.start_again();
    server.delete("/api/v1/envs/polite");
    let path = format!("/api/v1/sandboxes/{sandbox}/execute");
    let asked = json!({ "code": "import greeting; print(greeting.WORD)", "env_name": "polite" });
    eventually("the sandbox", || (server.get(&envs).status == 200).then_some(()));
    let done = server.post(&path, &asked).ok();
    assert_eq!(done["output"], "good day\n", "{done}");
}

#[test]
fn pip_still_installs_into_the_private_layer_of_a_sandbox() {
    let Some(server) = server() else { return };
    let (_, sandbox) = server.lease(&json!({}));
    let wheels = server.host.scratch().join("wheels");
    let bytes = std::fs::read(wheels.join("farewell-1.0-py3-none-any.whl")).expect("the wheel is there");
    let name = "farewell-1.0-py3-none-any.whl";
    let put = server.request(
        "PUT",
        &format!("/api/v1/sandboxes/{sandbox}/files?path={name}"),
        &bytes,
        &Default::default(),
    );
    assert!((200..300).contains(&put.status), "{put:?}");
    let said = server.prints(
        &sandbox,
        &format!("python3 -m pip install --quiet --no-index --user --break-system-packages ./{name} 2>&1; python3 -c 'import farewell; print(farewell.__file__)'"),
    );
    assert!(
        said.trim().ends_with("/home/agent/.local/lib/python3.11/site-packages/farewell/__init__.py")
            || said.contains("/home/agent/.local/"),
        "{said}"
    );
}

#[test]
fn a_template_brings_packages_that_code_finds_without_asking() {
    let Some(server) = server() else { return };
    let put = |recipe: &Value| server.put("/api/v1/templates/polite", recipe);
    assert_eq!(put(&json!({ "requirements": ["--index-url=http://elsewhere"] })).refused(400), "invalid");
    put(&json!({ "requirements": ["greeting", "farewell"] })).ok();
    let place = json!({ "template": "polite" });
    let code = "import greeting, farewell; print(greeting.WORD, farewell.WORD)";
    let done = greet(&server, &json!({ "code": code, "place": place }));
    assert_eq!(done["output"], "good day bye\n", "{done}");
    // Whoever names packages gets these and no others.
    let own = json!({ "code": "import farewell", "requirements": ["greeting<2"], "place": place });
    assert_eq!(greet(&server, &own)["status"], "error");
    let shell = json!({ "code": "echo $0", "language": "bash", "place": place });
    assert_eq!(greet(&server, &shell)["status"], "success");

    let (_, sandbox) = server.lease(&json!({ "template": "polite" }));
    let done = server.post(&format!("/api/v1/sandboxes/{sandbox}/execute"), &json!({ "code": code })).ok();
    assert_eq!(done["output"], "good day bye\n", "{done}");
    let contexts = format!("/api/v1/sandboxes/{sandbox}/contexts");
    let context = server.post(&contexts, &json!({})).ok()["context_id"].as_str().expect("an id").to_owned();
    let cell = server.post(&format!("{contexts}/{context}/execute"), &json!({ "code": code })).ok();
    assert!(cell.to_string().contains("good day bye"), "{cell}");
}

#[test]
fn a_tool_runs_in_the_template_that_is_named_for_it() {
    let templates = "[sandbox.templates]\ndata_analysis = \"polite\"\ndefault = \"plain\"\n";
    let Some(server) = server_that_says(templates) else { return };
    server.put("/api/v1/templates/polite", &json!({ "requirements": ["greeting"] })).ok();
    server.put("/api/v1/templates/plain", &json!({ "env": { "PLAIN": "yes" } })).ok();
    let code =
        "import os, importlib.util as u; print(os.environ.get('PLAIN'), u.find_spec('greeting') is not None)";
    let ran = |asked: &Value| greet(&server, asked)["output"].as_str().expect("text").to_owned();
    assert_eq!(ran(&json!({ "code": code, "tool_name": "data_analysis" })), "None True\n");
    assert_eq!(ran(&json!({ "code": code, "tool_name": "another" })), "yes False\n");
    assert_eq!(ran(&json!({ "code": code })), "yes False\n");
    let named = json!({ "code": code, "tool_name": "data_analysis", "place": { "template": "plain" } });
    assert_eq!(ran(&named), "yes False\n");
}

/// A server of MCP in a few lines, and a client of the SDK that calls its tool.
const MCP: &str = r#"
import asyncio, sys
from mcp import Client, StdioServerParameters

SERVER = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if asked.get("id") is None:
        continue
    if asked["method"] == "initialize":
        answer = {"protocolVersion": asked["params"]["protocolVersion"], "capabilities": {"tools": {}},
                  "serverInfo": {"name": "adder", "version": "1"}}
    elif asked["method"] == "tools/list":
        answer = {"tools": [{"name": "add", "inputSchema": {"type": "object"}}]}
    else:
        given = asked["params"]["arguments"]
        answer = {"content": [{"type": "text", "text": str(given["a"] + given["b"])}]}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": answer}), flush=True)
"""

async def main():
    server = StdioServerParameters(command=sys.executable, args=["-c", SERVER])
    async with Client(server, mode="legacy") as client:
        print((await client.call_tool("add", {"a": 19, "b": 23})).content[0].text)

asyncio.run(main())
"#;

#[test]
fn code_in_a_sandbox_is_a_client_of_mcp() {
    let Some(uv) = uv() else { return };
    let Some(host) = Host::new() else { return };
    let server = Server::start_on(host, &[], &[("CUBICLE_SANDBOX_UV", &uv)]);
    server.put("/api/v1/templates/workflow", &json!({ "requirements": ["mcp==2.3.0", "requests"] })).ok();
    let answer = server.post("/api/v1/execute", &json!({ "code": MCP, "place": { "template": "workflow" } }));
    if answer.status == 503 {
        return skipped("the package index of this host cannot be reached");
    }
    let done = answer.ok();
    assert_eq!((&done["status"], &done["output"]), (&json!("success"), &json!("42\n")), "{done}");
}
