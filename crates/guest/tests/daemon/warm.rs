//! Interpreters that are ready before they are needed.

use cubicle_guest::journal::Kind;
use serde_json::json;

use crate::execute::Workspace;
use crate::support::*;

pub(crate) fn warm_workspace() -> Workspace {
    let workspace = Workspace::start();
    wait_until_warm(&workspace);
    workspace
}

/// Runs code in a warm interpreter and gives its records.
fn warmly(workspace: &Workspace, code: &str) -> Vec<Frame> {
    let request = json!({ "code": code, "cwd": workspace.cwd(), "host": { "warm": true } });
    let accept = "Accept: application/x-cubicle-journal\r\n";
    let reply =
        workspace.sandbox.connect().request("POST", "/execute", accept, request.to_string().as_bytes());
    assert_eq!(reply.status, 200, "{}", reply.text());
    frames(&reply.body)
}

fn is_warm(frames: &[Frame]) -> bool {
    payload(frames, Kind::Start)["warm"] == json!(true)
}

fn wait_until_warm(workspace: &Workspace) {
    let warmed = workspace.sandbox.json("POST", "/warm", &json!({ "wait": true })).value();
    assert_eq!(warmed, json!({ "ready": true }));
}

#[test]
fn code_has_only_the_descriptors_that_it_is_given() {
    let workspace = warm_workspace();
    let code = "import os\nprint([n for n in sorted(os.listdir('/proc/self/fd')) if os.path.exists(f'/proc/self/fd/{n}')])";
    for warm in [true, false] {
        let answer = workspace.execute(json!({ "code": code, "host": { "warm": warm } }));
        assert_eq!(answer["stdout"], "['0', '1', '2']\n", "warm: {warm}");
    }
}

#[test]
fn a_warm_interpreter_is_no_exec_and_keeps_nothing_busy() {
    let workspace = warm_workspace();
    let health = workspace.sandbox.request("GET", "/health", b"").value();
    assert_eq!((&health["state"], &health["execs_running"]), (&json!("idle"), &json!(0)));
    assert_eq!(workspace.sandbox.request("GET", "/exec", b"").value()["execs"], json!([]));
}

#[test]
fn warm_interpreters_end_with_their_sandbox() {
    let workspace = warm_workspace();
    let parent = workspace.sandbox.daemon_pid();
    let children = || -> Vec<i32> {
        let text =
            std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
        text.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
    };
    let before = children();
    assert_eq!(before.len(), 2, "an interpreter and a fork of it");
    drop(workspace);
    wait_until("they are gone", || !before.iter().any(|pid| is_alive(*pid)));
}

#[test]
fn each_run_begins_anew() {
    let workspace = warm_workspace();
    let first = warmly(&workspace, "import random, json\njson.mark = 1\nx = 5\nprint(random.random())");
    let second = warmly(
        &workspace,
        "import random, json\nprint(hasattr(json, 'mark'), 'x' in globals())\nprint(random.random())",
    );
    assert!(is_warm(&first) && is_warm(&second));
    let (first, second) = (stdout(&first), stdout(&second));
    assert!(second.starts_with("False False\n"), "{second}");
    assert_ne!(first.trim(), second.lines().last().unwrap());
}

#[test]
fn an_exit_is_that_of_the_process_itself() {
    let workspace = warm_workspace();
    let frames = warmly(&workspace, "import os; print(os.getpid(), os.getppid())");
    let start = payload(&frames, Kind::Start);
    let expected = format!("{} {}\n", start["pid"], workspace.sandbox.daemon_pid());
    assert_eq!(stdout(&frames), expected);
    let killed = warmly(&workspace, "import os; os.kill(os.getpid(), 9)");
    assert_eq!(exit(&killed), json!({ "signal": 9 }));
}

#[test]
fn code_that_kills_everything_it_can_gets_a_fresh_interpreter_next() {
    let workspace = warm_workspace();
    let daemon = workspace.sandbox.daemon_pid();
    // As everything of the sandbox, but not of the host that this test runs on.
    let code = format!(
        "import os, signal\nme = os.getpid()\n\
         for p in map(int, open('/proc/{daemon}/task/{daemon}/children').read().split()):\n    \
             try:\n        if p != me: os.kill(p, signal.SIGKILL)\n    \
             except ProcessLookupError: pass  # It has just ended by itself.\n\
         print('done', flush=True)\nos.kill(me, signal.SIGKILL)"
    );
    let frames = warmly(&workspace, &code);
    assert_eq!((stdout(&frames).as_str(), exit(&frames)), ("done\n", json!({ "signal": 9 })));
    let next = warmly(&workspace, "print('alive')");
    assert_eq!((stdout(&next).as_str(), exit(&next)), ("alive\n", json!({ "code": 0 })));
    wait_until_warm(&workspace);
    assert!(is_warm(&warmly(&workspace, "print(1)")));
}

#[test]
fn a_timeout_ends_the_tree_of_warm_code() {
    let workspace = warm_workspace();
    let code = "import os, time, subprocess\np = subprocess.Popen(['setsid', 'sleep', '1000'])\n\
                print(p.pid, flush=True)\ntime.sleep(1000)";
    let request = json!({ "code": code, "timeout_seconds": 0.5, "host": { "warm": true } });
    let answer = workspace.execute(request);
    assert_eq!((&answer["status"], &answer["timed_out"]), (&json!("timeout"), &json!(true)));
    let pid: i32 = answer["stdout"].as_str().unwrap().trim().parse().unwrap();
    wait_until("its child is gone", || !is_alive(pid));
    assert!(is_warm(&warmly(&workspace, "print(1)")), "its zygote is not");
}

#[test]
fn variables_that_are_read_at_the_start_of_an_interpreter_are_honoured() {
    let workspace = warm_workspace();
    let code =
        "import os, sys; print(os.environ.get('PYTHONPATH'), '/marker' in sys.path, sys.stdout.encoding)";
    let request = json!({
        "code": code, "host": { "warm": true }, "env": { "PYTHONPATH": "/marker", "PYTHONIOENCODING": "latin-1" },
    });
    assert_eq!(workspace.execute(request)["stdout"], "/marker True iso8859-1\n");
    let request = json!({ "code": "import os; print(os.environ['OTHER'])", "host": { "warm": true }, "env": { "OTHER": "x" } });
    assert_eq!(workspace.execute(request)["stdout"], "x\n");
    // Bound for all from now on: the next interpreter has it from its start.
    workspace.sandbox.json("POST", "/bind", &json!({ "env": { "PYTHONPATH": "/bound" } }));
    let request = json!({ "code": "import sys; print('/bound' in sys.path)", "host": { "warm": true } });
    assert_eq!(workspace.execute(request)["stdout"], "True\n");
    wait_until_warm(&workspace);
    let frames = warmly(&workspace, "import sys; print('/bound' in sys.path)");
    assert!(is_warm(&frames));
    assert_eq!(stdout(&frames), "True\n");
}

#[test]
fn what_is_installed_later_is_seen() {
    let home = tempfile::tempdir().unwrap();
    let workspace = Workspace::start_with(&["--env", &format!("HOME={}", home.path().display())]);
    wait_until_warm(&workspace);
    let found = workspace.execute(json!({ "code": "import site; print(site.getusersitepackages())" }));
    let place = std::path::PathBuf::from(found["stdout"].as_str().unwrap().trim());
    std::fs::create_dir_all(&place).unwrap();
    std::fs::write(place.join("installed_x.py"), "value = 9").unwrap();
    let frames = warmly(&workspace, "import installed_x; print(installed_x.value)");
    assert_eq!(stdout(&frames), "9\n", "{}", String::from_utf8_lossy(&output(&frames, Kind::Stderr)));
    wait_until("a new interpreter is ready", || {
        let frames = warmly(&workspace, "import installed_x; print(installed_x.value)");
        assert_eq!(stdout(&frames), "9\n");
        is_warm(&frames)
    });
}

#[test]
fn an_environment_has_a_warm_interpreter_with_its_modules() {
    let workspace = Workspace::start();
    let environment = json!({
        "name": "e", "packages": [], "python_version": "3", "created_at": "2026-02-17T14:00:00Z",
        "last_used_at": "2026-02-17T15:00:00Z", "python": "/usr/bin/python3", "key": "k",
        "modules": ["decimal", "no_such_module"],
    });
    let sandbox = &workspace.sandbox;
    let warm = json!({ "environment": "e", "wait": true });
    assert_eq!(sandbox.json("POST", "/warm", &warm).status, 404);
    sandbox.json("PUT", "/envs/e", &environment);
    assert_eq!(sandbox.json("POST", "/warm", &warm).value(), json!({ "ready": true }));
    let request = json!({
        "code": "import sys; print('decimal' in sys.modules)", "env_name": "e", "host": { "warm": true },
    });
    assert_eq!(workspace.execute(request)["stdout"], "True\n");
    let children = || {
        let pid = sandbox.daemon_pid();
        std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))
            .unwrap()
            .split_whitespace()
            .count()
    };
    wait_until("its interpreter waits again", || children() == 2);
    assert_eq!(sandbox.request("DELETE", "/envs/e", b"").status, 200);
    wait_until("its interpreter is gone", || children() == 0);
}

#[test]
fn an_interpreter_that_cannot_be_made_ready_is_no_failure() {
    let workspace = Workspace::start();
    let environment = json!({
        "name": "e", "packages": [], "python_version": "3", "created_at": "2026-02-17T14:00:00Z",
        "last_used_at": "2026-02-17T15:00:00Z", "python": "/bin/false", "key": "k",
    });
    workspace.sandbox.json("PUT", "/envs/e", &environment);
    let warmed =
        workspace.sandbox.json("POST", "/warm", &json!({ "environment": "e", "wait": true })).value();
    assert_eq!(warmed["ready"], json!(false));
    assert_eq!(warmed["because"], "its interpreter ended before it was ready");
    let answer = workspace.execute(json!({ "code": "print(1)", "env_name": "e", "host": { "warm": true } }));
    assert_eq!(answer["exit_code"], 1);
}

#[test]
fn modules_whose_threads_would_not_survive_a_fork_are_not_imported_ahead() {
    let workspace = Workspace::start();
    let place = workspace.place.path().join("modules");
    std::fs::create_dir(&place).unwrap();
    let module =
        "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), daemon=True).start()";
    std::fs::write(place.join("with_threads.py"), module).unwrap();
    workspace.sandbox.json("POST", "/bind", &json!({ "env": { "PYTHONPATH": place.display().to_string() } }));
    let environment = json!({
        "name": "e", "packages": [], "python_version": "3", "created_at": "2026-02-17T14:00:00Z",
        "last_used_at": "2026-02-17T15:00:00Z", "python": "/usr/bin/python3", "key": "k",
        "modules": ["with_threads"],
    });
    workspace.sandbox.json("PUT", "/envs/e", &environment);
    let warmed =
        workspace.sandbox.json("POST", "/warm", &json!({ "environment": "e", "wait": true })).value();
    assert_eq!(warmed, json!({ "ready": true }));
    let request = json!({
        "code": "import sys; print('with_threads' in sys.modules)", "env_name": "e", "host": { "warm": true },
    });
    assert_eq!(workspace.execute(request)["stdout"], "False\n");
}

#[test]
fn many_at_once_all_run() {
    let workspace = Workspace::start_with(&["--max-executes", "64"]);
    wait_until_warm(&workspace);
    let mut clients: Vec<Client> = (0..40).map(|_| workspace.sandbox.connect()).collect();
    for (n, client) in clients.iter_mut().enumerate() {
        let request =
            json!({ "code": format!("print({n})"), "cwd": workspace.cwd(), "host": { "warm": true } });
        client.send("POST", "/execute", "", request.to_string().as_bytes());
    }
    for (n, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.reply().value()["stdout"], format!("{n}\n"));
    }
}

#[test]
fn a_warm_interpreter_is_the_workload_and_nothing_more() {
    use std::os::unix::fs::PermissionsExt;
    if !rustix::process::geteuid().is_root() {
        use std::io::Write;
        let _ = writeln!(
            std::io::stderr(),
            "skipped: a_warm_interpreter_is_the_workload_and_nothing_more: needs root to have two users"
        );
        return;
    }
    let workspace = Workspace::start_with(&["--workload-uid", "4242", "--workload-gid", "4243"]);
    std::fs::set_permissions(workspace.place.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::chown(workspace.path(""), Some(4242), Some(4243)).unwrap();
    wait_until_warm(&workspace);
    let code = "import os\nprint(os.getresuid(), os.getresgid(), os.getgroups())\n\
                for line in open('/proc/self/status'):\n    if line.startswith(('Cap', 'NoNewPrivs')): print(line, end='')\n\
                for line in open('/proc/self/limits'):\n    if 'locks' in line: print(line.split()[3:5])";
    let frames = warmly(&workspace, code);
    assert!(is_warm(&frames));
    let tag = u64::from(workspace.sandbox.daemon_pid()) << 32 | u64::from(frames[0].exec);
    let text = stdout(&frames);
    let cold = workspace.execute(json!({ "code": code }));
    let cold = cold["stdout"].as_str().unwrap();
    assert!(text.starts_with("(4242, 4242, 4242) (4243, 4243, 4243) []\n"), "{text}");
    assert!(text.ends_with(&format!("['{tag}', '{tag}']\n")), "{text}");
    let but_tag = |text: &str| text.rsplit_once("['").unwrap().0.to_owned();
    assert_eq!(but_tag(&text), but_tag(cold));
}

#[test]
fn generators_that_were_imported_ahead_are_seeded_anew_for_each_run() {
    let workspace = Workspace::start();
    let place = workspace.place.path().join("modules");
    std::fs::create_dir_all(place.join("numpy")).unwrap();
    // As numpy has it: a generator of the whole process, and a function that seeds it from the system.
    let generator = "import os\nstate = 'that of the zygote'\ndef seed():\n    global state\n    state = os.urandom(8).hex()\n";
    std::fs::write(place.join("numpy/__init__.py"), "from . import random").unwrap();
    std::fs::write(place.join("numpy/random.py"), generator).unwrap();
    workspace.sandbox.json("POST", "/bind", &json!({ "env": { "PYTHONPATH": place.display().to_string() } }));
    let environment = json!({
        "name": "e", "packages": [], "python_version": "3", "created_at": "2026-02-17T14:00:00Z",
        "last_used_at": "2026-02-17T15:00:00Z", "python": "/usr/bin/python3", "key": "k",
        "modules": ["numpy", "random"],
    });
    workspace.sandbox.json("PUT", "/envs/e", &environment);
    workspace.sandbox.json("POST", "/warm", &json!({ "environment": "e", "wait": true }));
    let run = || {
        let code = "import random, numpy.random; print(random.random(), numpy.random.state)";
        let request = json!({ "code": code, "env_name": "e", "host": { "warm": true } });
        workspace.execute(request)["stdout"].as_str().unwrap().to_owned()
    };
    let (first, second) = (run(), run());
    assert!(!first.contains("zygote") && !second.contains("zygote"), "{first}{second}");
    let halves =
        |text: &str| text.split_once(' ').map(|(one, other)| (one.to_owned(), other.to_owned())).unwrap();
    assert_ne!(halves(&first).0, halves(&second).0);
    assert_ne!(halves(&first).1, halves(&second).1);
}
