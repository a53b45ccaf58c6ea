//! How contexts are made, found, restarted and deleted.

use std::io::Write;

use serde_json::{Value, json};

use super::{ACCEPT, Ran};
use crate::support::{Kind, Sandbox, frames, is_alive, payload, wait_until};

#[test]
fn a_context_is_listed_and_shown_and_deleted() {
    let sandbox = Sandbox::start();
    let id = sandbox.python();
    let listed = sandbox.request("GET", "/contexts", b"").value();
    assert_eq!(listed["contexts"].as_array().unwrap().len(), 1);
    let context = sandbox.request("GET", &format!("/contexts/{id}"), b"").value();
    assert_eq!(listed["contexts"][0], context);
    assert_eq!((&context["language"], &context["exec_id"]), (&json!("python"), &json!(id)));
    let pid: i32 = sandbox.cell(&id, "import os; os.getpid()").text().unwrap().parse().unwrap();
    let deleted = sandbox.request("DELETE", &format!("/contexts/{id}"), b"");
    assert_eq!((deleted.status, &deleted.value()["state"]), (200, &json!("dead")));
    assert_eq!(sandbox.request("GET", &format!("/contexts/{id}"), b"").code(), "context_not_found");
    assert_eq!(sandbox.try_cell(&id, &json!({ "code": "1" })).code(), "context_not_found");
    wait_until("the interpreter is gone", || !is_alive(pid));
    assert_eq!(sandbox.request("GET", "/contexts", b"").value()["contexts"], json!([]));
}

#[test]
fn a_repeated_id_is_the_same_context_and_never_another() {
    let sandbox = Sandbox::start();
    let id = sandbox.python();
    sandbox.cell(&id, "x = 1");
    let again = sandbox.try_context(json!({ "exec_id": id }));
    assert_eq!((again.status, &again.value()["execution_count"]), (200, &json!(1)));
    sandbox.request("DELETE", &format!("/contexts/{id}"), b"");
    assert_eq!(sandbox.try_context(json!({ "exec_id": id })).code(), "exec_id_taken");
}

#[test]
fn what_cannot_be_a_context_is_refused_and_starts_nothing() {
    let sandbox = Sandbox::start();
    let table = [
        (json!({ "language": "cobol" }), 422, "unknown_language"),
        (json!({ "cwd": "relative" }), 400, "invalid"),
        (json!({ "cwd": "/nowhere/at/all" }), 422, "cwd_missing"),
        (json!({ "env": { "A=B": "c" } }), 400, "invalid"),
        (json!({ "env_name": "none" }), 404, "env_not_found"),
        (json!({ "language": "bash", "env_name": "none" }), 400, "invalid"),
        (json!({ "extra": 1 }), 400, "invalid"),
        (json!({ "env": { "PATH": "/nowhere" } }), 422, "command_not_found"),
    ];
    for (request, status, code) in table {
        let reply = sandbox.try_context(request.clone());
        assert_eq!((reply.status, reply.code().as_str()), (status, code), "{request}");
    }
    assert_eq!(sandbox.request("GET", "/exec", b"").value()["execs"], json!([]));
    assert_eq!(sandbox.request("PUT", "/contexts", b"").status, 405);
    assert_eq!(sandbox.request("GET", "/contexts/x/y/z", b"").status, 404);
}

#[test]
fn what_cannot_be_a_cell_is_refused_and_runs_nothing() {
    let sandbox = Sandbox::start();
    let id = sandbox.python();
    let long = "#".repeat(2 * 1024 * 1024 + 1);
    let table = [
        (json!({}), 400, "invalid"),
        (json!({ "code": "1", "timeout_seconds": 0 }), 400, "invalid"),
        (json!({ "code": "1", "timeout_seconds": -1 }), 400, "invalid"),
        (json!({ "code": "1", "more": 1 }), 400, "invalid"),
        (json!({ "code": long }), 413, "body_too_long"),
    ];
    for (request, status, code) in table {
        let reply = sandbox.try_cell(&id, &request);
        assert_eq!((reply.status, reply.code().as_str()), (status, code));
    }
    assert_eq!(sandbox.cell(&id, "1").count(), 1);
    let large = format!("{}\n'after much'", "#".repeat(2_000_000));
    assert_eq!(sandbox.cell(&id, &large).text(), Some("'after much'"));
}

#[test]
fn a_context_has_its_directory_and_environment() {
    let sandbox = Sandbox::start();
    let id = sandbox.context(json!({ "cwd": "/usr", "env": { "OWN": "value" } }));
    let ran = sandbox.cell(&id, "import os\nos.getcwd(), os.environ['OWN']");
    assert_eq!(ran.text(), Some("('/usr', 'value')"));
}

#[test]
fn a_restarted_context_keeps_its_id_and_loses_its_state() {
    let sandbox = Sandbox::start();
    let id = sandbox.python();
    let pid: i32 = sandbox.cell(&id, "import os; x = 1; os.getpid()").text().unwrap().parse().unwrap();
    let reply = sandbox.request("POST", &format!("/contexts/{id}/restart"), b"");
    let restarted = reply.value();
    assert_eq!(
        (reply.status, &restarted["context_id"], &restarted["state"]),
        (200, &json!(id), &json!("idle"))
    );
    assert_ne!(restarted["exec_id"], json!(id));
    let ran = sandbox.cell(&id, "x");
    assert_eq!((ran.error(), ran.count()), (Some(("NameError", "name 'x' is not defined")), 1));
    wait_until("the old interpreter is gone", || !is_alive(pid));
}

#[test]
fn a_restart_ends_the_cell_that_runs() {
    let sandbox = Sandbox::start();
    let id = sandbox.python();
    let begun = sandbox.begin_cell(&id, "import time\nprint('here')\ntime.sleep(999)", "here");
    assert_eq!(sandbox.context_state(&id), "busy");
    assert_eq!(sandbox.request("POST", &format!("/contexts/{id}/restart"), b"").status, 200);
    let ran = begun.ended();
    assert_eq!((ran.status(), ran.stdout.as_str()), ("died", "here\n"));
    assert_eq!(sandbox.cell(&id, "'anew'").text(), Some("'anew'"));
}

#[test]
fn deleting_a_context_ends_the_cell_that_runs_and_what_it_started() {
    let sandbox = Sandbox::start();
    let id = sandbox.python();
    let code = "import subprocess, time\nprint(subprocess.Popen(['sleep', '999'], start_new_session=True).pid, 'pid')\ntime.sleep(999)";
    let begun = sandbox.begin_cell(&id, code, "pid");
    sandbox.request("DELETE", &format!("/contexts/{id}"), b"");
    let ran = begun.ended();
    assert_eq!(ran.status(), "died");
    let pid: i32 = ran.stdout.split_whitespace().next().unwrap().parse().unwrap();
    wait_until("the child is gone", || !is_alive(pid));
}

#[test]
fn a_second_cell_is_refused_while_one_runs() {
    let sandbox = Sandbox::start();
    let id = sandbox.python();
    let begun = sandbox.begin_cell(&id, "import time\nprint('on')\ntime.sleep(999)", "on");
    let refused = sandbox.try_cell(&id, &json!({ "code": "1" }));
    assert_eq!((refused.status, refused.code().as_str()), (409, "context_busy"));
    assert!(refused.value()["error"]["hint"].as_str().unwrap().contains("interrupt"));
    sandbox.request("POST", &format!("/contexts/{id}/interrupt"), b"");
    assert_eq!(begun.ended().status(), "interrupted");
    assert_eq!(sandbox.cell(&id, "2").text(), Some("2"));
}

#[test]
fn a_sandbox_has_so_many_contexts_and_no_more() {
    let sandbox = Sandbox::start();
    let mut made = Vec::new();
    for _ in 0..32 {
        made.push(sandbox.context(json!({ "language": "bash" })));
    }
    let refused = sandbox.try_context(json!({ "language": "bash" }));
    assert_eq!((refused.status, refused.code().as_str()), (429, "too_many_contexts"));
    sandbox.request("DELETE", &format!("/contexts/{}", made[0]), b"");
    sandbox.context(json!({ "language": "bash" }));
}

#[test]
fn a_stream_resumed_in_the_middle_has_the_rest_of_its_cell_and_ends_with_it() {
    let sandbox = Sandbox::start();
    let id = sandbox.python();
    sandbox.cell(&id, "'before'");
    let ran = sandbox.cell(&id, "for n in range(5):\n    display(n)\nprint('printed')\n'value'");
    sandbox.cell(&id, "'behind'");
    let output = |query: &str| {
        let target = format!("/contexts/{id}/output{query}");
        frames(&sandbox.connect().request("GET", &target, ACCEPT, b"").body)
    };
    for (index, frame) in ran.frames.iter().enumerate() {
        assert_eq!(output(&format!("?from={}", frame.seq)), ran.frames[index..], "from {}", frame.seq);
    }
    let last = Ran::new(output(""));
    assert_eq!(last.text(), Some("'behind'"));
    assert_eq!(
        sandbox.request("GET", &format!("/contexts/{id}/output?from=1"), b"").code(),
        "cell_not_found"
    );
}

#[test]
fn a_cell_that_runs_is_followed_by_whoever_comes_later() {
    let sandbox = Sandbox::start();
    let id = sandbox.python();
    let go = sandbox.directory.path().join("go");
    let code = "import os, time\nprint('first')\nwhile not os.path.exists('go'):\n    time.sleep(0.01)\nprint('second')\n'end'";
    // The first reader leaves in the middle.
    drop(sandbox.begin_cell(&id, code, "first"));
    let mut client = sandbox.connect();
    client.send("GET", &format!("/contexts/{id}/output"), ACCEPT, b"");
    assert_eq!(client.reply_head().0, 200);
    let mut bytes = client.chunk().unwrap();
    std::fs::write(go, "").unwrap();
    while let Some(chunk) = client.chunk() {
        bytes.extend_from_slice(&chunk);
    }
    let ran = Ran::new(frames(&bytes));
    assert_eq!((ran.stdout.as_str(), ran.text()), ("first\nsecond\n", Some("'end'")));
}

#[test]
fn cells_are_rendered_as_lines_and_events_too() {
    let sandbox = Sandbox::start();
    let id = sandbox.python();
    let target = format!("/contexts/{id}/execute");
    let lines = sandbox.request("POST", &target, br#"{"code": "print(1)\n2"}"#);
    let parsed: Vec<Value> = lines.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let kinds: Vec<&str> = parsed.iter().map(|line| line["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["cell", "stdout", "cell", "cell"]);
    assert_eq!(parsed[2]["data"]["data"]["text/plain"], "2");
    assert_eq!(parsed[3]["data"], json!({ "event": "end", "execution_count": 1, "status": "success" }));
    let events =
        sandbox.connect().request("POST", &target, "Accept: text/event-stream\r\n", br#"{"code": "3"}"#);
    assert_eq!(events.text().matches("event: cell\n").count(), 3);
    assert!(events.head.to_ascii_lowercase().contains("x-cubicle-seq: "));
}

/// A package that is made here, so that no network is needed.
const MAKE_WHEEL: &str = r#"
import zipfile
name = 'wheels/cubicle_made-1.0-py3-none-any.whl'
import os; os.mkdir('wheels')
with zipfile.ZipFile(name, 'w') as wheel:
    wheel.writestr('cubicle_made.py', 'answer = 42')
    info = 'cubicle_made-1.0.dist-info/'
    wheel.writestr(info + 'METADATA', 'Metadata-Version: 2.1\nName: cubicle-made\nVersion: 1.0\n')
    wheel.writestr(info + 'WHEEL', 'Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n')
    wheel.writestr(info + 'RECORD', 'cubicle_made.py,,\n')
"#;

#[test]
fn pip_installs_into_the_private_layer_and_the_context_sees_it() {
    let skip = |why: &str| {
        let _ = writeln!(
            std::io::stderr(),
            "skipped: pip_installs_into_the_private_layer_and_the_context_sees_it: {why}"
        );
    };
    if !rustix::process::geteuid().is_root() {
        return skip("only root can start another user's processes");
    }
    // Another user than root, who may not change what the system has.
    let sandbox = Sandbox::start_with(&["--workload-uid", "65534"]);
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(sandbox.directory.path(), open).unwrap();
    let home = sandbox.directory.path().join("home").display().to_string();
    let id = sandbox.context(json!({ "env": { "HOME": home } }));
    if sandbox.cell(&id, "import pip").error().is_some() {
        return skip("no pip for the python here");
    }
    let ran = sandbox.cell(&id, MAKE_WHEEL);
    assert_eq!(ran.status(), "success", "{ran:?}");
    let ran = sandbox.cell(&id, "%pip install -q --no-index --find-links wheels cubicle-made\nimport cubicle_made\ncubicle_made.answer, cubicle_made.__file__");
    let text = ran.text().unwrap_or_else(|| panic!("{ran:?}"));
    assert!(text.starts_with("(42,") && text.contains(&format!("'{home}/.local/")), "{text}");
    let ran = sandbox.cell(&id, "%pip install -q --no-index cubicle-never-made");
    assert_eq!(ran.error().map(|(name, _)| name), Some("CalledProcessError"));
}

#[test]
fn a_context_is_an_exec_like_any_other() {
    let sandbox = Sandbox::start();
    let id = sandbox.python();
    sandbox.cell(&id, "print('said')");
    sandbox.request("DELETE", &format!("/contexts/{id}"), b"");
    let reply = sandbox.connect().request("GET", &format!("/exec/{id}"), ACCEPT, b"");
    let frames = frames(&reply.body);
    assert_eq!(payload(&frames, Kind::Start)["command"], json!(["python3", "<context>"]));
    assert_eq!(payload(&frames, Kind::Eof)["stdout"], 5);
    assert_eq!(frames.iter().filter(|frame| frame.kind == Kind::Cell).count(), 2);
}
