//! `POST /execute` as seed 002 has it, field by field, and what may go wrong.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cubicle_guest::journal::Kind;
use cubicle_model::ExecId;
use serde_json::{Value, json};

use crate::support::*;

/// A sandbox with a workspace of its own, since that of the host is not for tests.
pub(crate) struct Workspace {
    pub(crate) sandbox: Sandbox,
    pub(crate) place: tempfile::TempDir,
}

impl Workspace {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    pub(crate) fn start_with(arguments: &[&str]) -> Self {
        let place = tempfile::tempdir().unwrap();
        std::fs::create_dir(place.path().join("work")).unwrap();
        let output = format!("OUTPUT_DIR={}", place.path().join("work/output").display());
        let sandbox = Sandbox::start_with(&[&["--env", &output], arguments].concat());
        Self { sandbox, place }
    }

    pub(crate) fn cwd(&self) -> String {
        self.place.path().join("work").display().to_string()
    }

    pub(crate) fn path(&self, name: &str) -> std::path::PathBuf {
        self.place.path().join("work").join(name)
    }

    fn ask(&self, mut request: Value) -> Reply {
        if request.get("cwd").is_none() {
            request["cwd"] = json!(self.cwd());
        }
        self.sandbox.json("POST", "/execute", &request)
    }

    pub(crate) fn execute(&self, request: Value) -> Value {
        let reply = self.ask(request);
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply.value()
    }

    fn refusal(&self, request: Value) -> (u16, String) {
        let reply = self.ask(request);
        (reply.status, reply.code())
    }

    fn run(&self, code: &str) -> Value {
        self.execute(json!({ "code": code }))
    }
}

fn files(answer: &Value) -> BTreeMap<String, Vec<u8>> {
    let files = answer["files_produced"].as_object().unwrap();
    let decode = |(name, contents): (&String, &Value)| {
        (name.clone(), STANDARD.decode(contents.as_str().unwrap()).unwrap())
    };
    files.iter().map(decode).collect()
}

fn names(answer: &Value) -> Vec<String> {
    files(answer).into_keys().collect()
}

#[test]
fn the_answer_has_every_field_of_the_contract() {
    let workspace = Workspace::start();
    let request = json!({
        "tool_name": "python_execute",
        "code": "import csv, json, sys\nrows = list(csv.reader(open('data.csv')))\nprint(rows)\n\
                 print('warning', file=sys.stderr)\njson.dump(rows, open('result.json', 'w'))",
        "timeout_seconds": 30,
        "files": { "data.csv": STANDARD.encode("a,b\n1,2\n") },
    });
    let answer = workspace.execute(request);
    assert_eq!(answer["status"], "success");
    assert_eq!(answer["output"], "[['a', 'b'], ['1', '2']]\n");
    assert_eq!(answer["stdout"], answer["output"]);
    assert_eq!(answer["stderr"], "warning\n");
    assert_eq!(answer["exit_code"], 0);
    assert_eq!(answer["timed_out"], false);
    assert!(answer["execution_time_ms"].as_f64().unwrap() > 0.0);
    assert_eq!(
        files(&answer),
        BTreeMap::from([("result.json".into(), br#"[["a", "b"], ["1", "2"]]"#.to_vec())])
    );
    assert_eq!(answer["env"], Value::Null);
    let _: ExecId = serde_json::from_value(answer["exec_id"].clone()).unwrap();
    for absent in
        ["stdout_base64", "stderr_base64", "stdout_truncated", "files_referenced", "files_incomplete"]
    {
        assert!(answer.get(absent).is_none(), "{absent}");
    }
}

#[test]
fn health_has_every_field_of_the_contract() {
    let workspace = Workspace::start_with(&["--max-executes", "3"]);
    let health = workspace.sandbox.request("GET", "/health", b"").value();
    assert_eq!((&health["status"], &health["state"]), (&json!("healthy"), &json!("idle")));
    assert_eq!((&health["capacity"], &health["current_load"]), (&json!(3), &json!(0)));
    assert_eq!(health["environments"], json!([]));
    assert!(health["uptime_seconds"].is_u64());
}

#[test]
fn an_environment_is_listed_with_every_field_of_the_contract_until_it_is_removed() {
    let workspace = Workspace::start();
    let environment = json!({
        "name": "data-analysis",
        "packages": ["pandas==2.2.0", "numpy==1.26.4"],
        "python_version": "3.12",
        "created_at": "2026-02-17T14:00:00Z",
        "last_used_at": "2026-02-17T15:00:00Z",
        "python": "/usr/bin/python3",
        "key": "k",
    });
    let sandbox = &workspace.sandbox;
    assert_eq!(sandbox.json("PUT", "/envs/data-analysis", &environment).status, 201);
    assert_eq!(sandbox.request("GET", "/envs", b"").value()["environments"], json!([environment]));
    assert_eq!(sandbox.request("GET", "/health", b"").value()["environments"], json!([environment]));
    let used = json!({ "code": "print(1)", "env_name": "data-analysis", "requirements": ["pandas>=2.0"] });
    let answer = workspace.execute(used);
    assert_eq!(answer["env"], json!({ "name": "data-analysis", "cache": "hit", "build_ms": 0.0 }));
    let listed = sandbox.request("GET", "/envs", b"").value()["environments"][0].clone();
    assert_ne!(listed["last_used_at"], environment["last_used_at"]);
    assert_eq!(sandbox.request("DELETE", "/envs/data-analysis", b"").status, 200);
    let gone = sandbox.request("DELETE", "/envs/data-analysis", b"");
    assert_eq!((gone.status, gone.code().as_str()), (404, "env_not_found"));
    for (name, body) in [("other", environment.clone()), ("..", environment)] {
        assert_eq!(sandbox.json("PUT", &format!("/envs/{name}"), &body).status, 400, "{name}");
    }
}

#[test]
fn an_environment_in_use_stays() {
    let workspace = Workspace::start();
    let environment = json!({
        "name": "e", "packages": [], "python_version": "3", "created_at": "2026-02-17T14:00:00Z",
        "last_used_at": "2026-02-17T15:00:00Z", "python": "/usr/bin/python3", "key": "k",
    });
    workspace.sandbox.json("PUT", "/envs/e", &environment);
    let mut client = workspace.sandbox.connect();
    let request = json!({ "code": "input()", "env_name": "e", "cwd": workspace.cwd(), "stdin": "" });
    let slow = json!({ "code": "import time; time.sleep(1000)", "env_name": "e", "cwd": workspace.cwd() });
    client.send("POST", "/execute", "", slow.to_string().as_bytes());
    wait_until("it runs", || {
        workspace.sandbox.request("GET", "/health", b"").value()["current_load"] == json!(1)
    });
    let refused = workspace.sandbox.request("DELETE", "/envs/e", b"");
    assert_eq!((refused.status, refused.code().as_str()), (409, "env_in_use"));
    assert_eq!(workspace.execute(request)["status"], "error");
}

#[test]
fn an_error_a_signal_and_a_timeout_are_told_apart() {
    let workspace = Workspace::start();
    let table = [
        (json!({ "code": "raise SystemExit(3)" }), "error", 3),
        (json!({ "code": "1/0" }), "error", 1),
        (json!({ "code": "import os; os.kill(os.getpid(), 9)" }), "error", 137),
        (json!({ "code": "import time; time.sleep(1000)", "timeout_seconds": 0.5 }), "timeout", 124),
    ];
    for (request, status, code) in table {
        let answer = workspace.execute(request.clone());
        assert_eq!((&answer["status"], &answer["exit_code"]), (&json!(status), &json!(code)), "{request}");
        assert_eq!(answer["timed_out"], json!(status == "timeout"));
    }
}

#[test]
fn a_traceback_has_the_frames_of_the_code_and_no_others() {
    let workspace = Workspace::start();
    let answer = workspace.run("def f():\n    1/0\n\nf()");
    let stderr = answer["stderr"].as_str().unwrap();
    let lines: Vec<&str> = stderr.lines().collect();
    assert_eq!(lines[0], "Traceback (most recent call last):");
    assert!(lines[1].ends_with("main.py\", line 4, in <module>"), "{stderr}");
    assert_eq!((lines[2], lines.last()), ("    f()", Some(&"ZeroDivisionError: division by zero")));
    assert_eq!(stderr.matches("File ").count(), 2, "{stderr}");
}

#[test]
fn languages_run_and_those_that_are_not_there_are_refused() {
    let workspace = Workspace::start();
    let bash =
        workspace.execute(json!({ "language": "bash", "code": "echo ${BASH_VERSION:+bash} $0; exit 4" }));
    assert!(bash["stdout"].as_str().unwrap().starts_with("bash /tmp/.cubicle-exec-"), "{bash}");
    assert_eq!(bash["exit_code"], 4);
    let request = json!({ "language": "javascript", "code": "console.log([1,2].map(x => x * 2))" });
    if std::path::Path::new("/usr/bin/node").exists() {
        assert_eq!(workspace.execute(request.clone())["stdout"], "[ 2, 4 ]\n");
    }
    let mut without = request;
    without["env"] = json!({ "PATH": "/nowhere" });
    assert_eq!(workspace.refusal(without), (422, "language_unavailable".into()));
    let other =
        json!({ "language": "upper", "code": "abc", "host": { "interpreter": ["tr", "a-z", "A-Z"] } });
    assert_eq!(workspace.execute(other)["exit_code"], 1);
    let other = json!({
        "language": "upper", "code": "abc", "host": { "interpreter": ["sh", "-c", "tr a-z A-Z < {file}"] },
    });
    assert_eq!(workspace.execute(other)["stdout"], "ABC");
}

#[test]
fn working_directory_environment_and_input_are_those_asked_for() {
    let workspace = Workspace::start();
    let answer = workspace.execute(json!({
        "code": "import os, sys\nprint(os.getcwd() == sys.path[0], os.environ['A'], input(), sys.stdin.read())\n\
                 print(os.path.isdir(os.environ['OUTPUT_DIR']))",
        "env": { "A": "b" },
        "stdin": "line\nrest",
    }));
    assert_eq!(answer["stdout"], "True b line rest\nTrue\n", "{answer}");
    let missing = json!({ "code": "print(1)", "cwd": workspace.path("missing").display().to_string() });
    assert_eq!(workspace.refusal(missing), (422, "cwd_missing".into()));
}

#[test]
fn what_is_new_or_changed_is_produced_and_nothing_else() {
    let workspace = Workspace::start();
    std::fs::write(workspace.path("old.txt"), "old").unwrap();
    std::fs::write(workspace.path("changed.txt"), "before").unwrap();
    let before = std::fs::metadata(workspace.path("changed.txt")).unwrap().modified().unwrap();
    wait_until("the clock of files has ticked", || {
        std::fs::write(workspace.place.path().join("tick"), "").unwrap();
        std::fs::metadata(workspace.place.path().join("tick")).unwrap().modified().unwrap() > before
    });
    let code = "
import os
os.makedirs('a/b'); open('a/b/deep.txt', 'w').write('deep')
open('changed.txt', 'w').write('after!')
open(os.environ['OUTPUT_DIR'] + '/out.bin', 'wb').write(b'\\xff\\x00')
open('second.txt', 'a').write('more')
os.utime('first.txt', (1, 1))
os.symlink('/etc/passwd', 'link'); os.mkfifo('pipe')
for name in ['.hidden', '__pycache__/x.pyc', 'node_modules/m/i.js', 'venv/bin/p', 'lib/site-packages/p.py', '.git/HEAD']:
    os.makedirs(os.path.dirname(name) or '.', exist_ok=True); open(name, 'w').write('x')
";
    let request =
        json!({ "code": code, "files": { "first.txt": "MQ==", "second.txt": "Mg==", "third.txt": "Mw==" } });
    let answer = workspace.execute(request);
    assert_eq!(answer["stderr"], "");
    let expected = ["a/b/deep.txt", "changed.txt", "first.txt", "output/out.bin", "second.txt"];
    assert_eq!(names(&answer), expected);
    let files = files(&answer);
    assert_eq!((&files["output/out.bin"][..], &files["second.txt"][..]), (&b"\xff\x00"[..], &b"2more"[..]));
    let again = workspace.run("pass");
    assert_eq!(names(&again), [""; 0], "what was told once is not told again");
    let all = workspace.execute(json!({ "code": "open('.hidden2', 'w').write('x')", "all_files": true }));
    assert_eq!(names(&all), [".hidden2"]);
}

#[test]
fn what_is_too_large_or_too_much_is_referred_to() {
    let workspace = Workspace::start();
    let large =
        workspace.run("open('large', 'wb').write(bytes(5 * 1024 * 1024)); open('small', 'w').write('s')");
    assert_eq!(names(&large), ["small"]);
    let reference = &large["files_referenced"][0];
    assert_eq!((&reference["name"], &reference["bytes"]), (&json!("large"), &json!(5 * 1024 * 1024)));
    assert_eq!(reference["path"], json!(workspace.path("large").display().to_string()));
    let many = workspace.run("for n in range(1100): open(f'f{n:04}', 'w').write('x')");
    assert_eq!((names(&many).len(), &many["files_incomplete"]), (1000, &json!(true)));
    let together = workspace.run("for n in range(4): open(f'b{n}', 'wb').write(bytes(3 * 1024 * 1024))");
    assert_eq!(names(&together), ["b0", "b1"]);
    assert_eq!(together["files_referenced"].as_array().unwrap().len(), 2);
}

#[test]
fn output_that_is_not_text_is_not_lost() {
    let workspace = Workspace::start();
    let answer = workspace
        .run("import sys; sys.stdout.buffer.write(b'a\\xff\\xfeb'); sys.stderr.buffer.write(b'\\x80')");
    assert_eq!(answer["stdout"], "a\u{fffd}\u{fffd}b");
    assert_eq!(STANDARD.decode(answer["stdout_base64"].as_str().unwrap()).unwrap(), b"a\xff\xfeb");
    assert_eq!(STANDARD.decode(answer["stderr_base64"].as_str().unwrap()).unwrap(), b"\x80");
}

#[test]
fn a_gigabyte_of_output_ends_and_says_that_it_was_cut() {
    let workspace = Workspace::start_with(&["--journal-limit", "20000000"]);
    let answer = workspace.run(
        "import os\nblock = b'x' * 1000000\nfor _ in range(1000): os.write(1, block) == len(block) or exit(9)\n\
         os.write(2, b'done')",
    );
    assert_eq!((&answer["status"], &answer["stdout_truncated"]), (&json!("success"), &json!(true)));
    assert_eq!(answer["stdout"].as_str().unwrap().len(), 8 * 1024 * 1024);
    let id: ExecId = serde_json::from_value(answer["exec_id"].clone()).unwrap();
    assert_eq!(workspace.sandbox.status(id)["output"]["stdout"], json!(1_000_000_000));
}

#[test]
fn nothing_runs_when_the_request_is_bad() {
    let workspace = Workspace::start();
    let marker = workspace.path("marker");
    let code = format!("open({:?}, 'w')", marker.display().to_string());
    let large = STANDARD.encode(vec![0; 33 * 1024 * 1024]);
    let many: BTreeMap<String, String> = (0..1001).map(|n| (format!("f{n}"), "eA==".into())).collect();
    let table = [
        (json!({ "files": { "a": "not base64!" } }), 400, "invalid_base64"),
        (json!({ "files": { "good": "eA==", "/etc/x": "eA==" } }), 400, "invalid_file_name"),
        (json!({ "files": { "good": "eA==", "../x": "eA==" } }), 400, "invalid_file_name"),
        (json!({ "files": many }), 413, "too_many_files"),
        (json!({ "files": { "a": large } }), 413, "too_large"),
        (json!({ "language": "cobol" }), 422, "language_unknown"),
        (json!({ "env_name": "nowhere" }), 404, "env_not_found"),
        (json!({ "requirements": ["pandas"], "env": { "PATH": "/nowhere" } }), 422, "env_unavailable"),
        (json!({ "timeout_seconds": 0 }), 400, "invalid"),
        (json!({ "unknown": 0 }), 400, "invalid"),
    ];
    for (mut request, status, expected) in table {
        request["code"] = json!(code);
        let shown: String = request.to_string().chars().take(100).collect();
        assert_eq!(workspace.refusal(request), (status, expected.to_owned()), "{shown}");
        assert!(!marker.exists() && !workspace.path("good").exists(), "{shown}");
    }
    assert_eq!(workspace.sandbox.request("GET", "/exec", b"").value()["execs"], json!([]));
}

#[test]
fn large_files_arrive_while_others_are_answered() {
    let workspace = Workspace::start();
    let contents: Vec<u8> = (0..20_000_000u32).map(|n| (n % 251) as u8).collect();
    let files: BTreeMap<String, String> = (0..40).map(|n| (format!("d/{n}"), STANDARD.encode([n]))).collect();
    let mut request = json!({
        "code": "import hashlib, os\nprint(hashlib.sha256(open('big', 'rb').read()).hexdigest(), len(os.listdir('d')))",
        "files": files,
        "cwd": workspace.cwd(),
    });
    request["files"]["big"] = json!(STANDARD.encode(&contents));
    let body = request.to_string();
    let mut client = workspace.sandbox.connect();
    let sending = std::thread::spawn(move || client.request("POST", "/execute", "", body.as_bytes()).value());
    for _ in 0..50 {
        assert_eq!(workspace.sandbox.request("GET", "/health", b"").status, 200);
    }
    let answer = sending.join().unwrap();
    use std::fmt::Write;
    let expected = hash(&contents).iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    });
    assert_eq!(answer["stdout"], json!(format!("{expected} 40\n")));
    assert_eq!(names(&answer), [""; 0], "what was given is not produced");
}

fn hash(bytes: &[u8]) -> Vec<u8> {
    use sha2::Digest;
    sha2::Sha256::digest(bytes).to_vec()
}

#[test]
fn more_than_the_capacity_is_refused_and_then_taken_again() {
    let workspace = Workspace::start_with(&["--max-executes", "2"]);
    let gate = workspace.path("gate");
    let code = "import os, time\nwhile not os.path.exists('gate'): time.sleep(0.01)";
    let request = json!({ "code": code, "cwd": workspace.cwd() }).to_string();
    let mut clients: Vec<Client> = (0..2).map(|_| workspace.sandbox.connect()).collect();
    for client in &mut clients {
        client.send("POST", "/execute", "", request.as_bytes());
    }
    wait_until("both run", || {
        let health = workspace.sandbox.request("GET", "/health", b"").value();
        health["current_load"] == json!(2) && health["state"] == json!("busy")
    });
    assert_eq!(workspace.refusal(json!({ "code": "print(1)" })), (429, "at_capacity".into()));
    std::fs::write(gate, "").unwrap();
    for client in &mut clients {
        assert_eq!(client.reply().value()["status"], "success");
    }
    assert_eq!(workspace.run("print(1)")["stdout"], "1\n");
    assert_eq!(workspace.sandbox.request("GET", "/health", b"").value()["current_load"], json!(0));
}

#[test]
fn an_execute_is_an_exec_with_records_that_can_be_followed_again() {
    let workspace = Workspace::start();
    let id = ExecId::from_random([5; 16]);
    let request = json!({
        "code": "print('x'); open('made', 'a').write('1')", "cwd": workspace.cwd(), "exec_id": id, "tool_name": "t",
    });
    let accept = "Accept: application/x-cubicle-journal\r\n";
    let ask =
        || workspace.sandbox.connect().request("POST", "/execute", accept, request.to_string().as_bytes());
    let first = frames(&ask().body);
    assert_eq!(stdout(&first), "x\n");
    assert_eq!(exit(&first), json!({ "code": 0 }));
    let start = payload(&first, Kind::Start);
    assert_eq!((&start["command"], &start["tool_name"]), (&json!(["python3", "main.py"]), &json!("t")));
    assert_eq!(frames(&ask().body), first, "a repeated id runs nothing");
    let reply = workspace.sandbox.request("GET", &format!("/exec/{id}/produced"), b"");
    assert_eq!(files(&reply.value()), BTreeMap::from([("made".into(), b"1".to_vec())]));
    assert_eq!(workspace.sandbox.json("POST", "/execute", &request).value()["output"], "x\n");
    let plain = workspace.sandbox.background(&json!({ "command": "true", "cwd": "/" }));
    let refused = workspace.sandbox.request("GET", &format!("/exec/{plain}/produced"), b"");
    assert_eq!((refused.status, refused.code().as_str()), (409, "not_an_execute"));
}

#[test]
fn the_code_is_gone_when_it_has_run() {
    let workspace = Workspace::start();
    let answer =
        workspace.run("import os; print(__file__); print(oct(os.stat(os.path.dirname(__file__)).st_mode))");
    let text = answer["stdout"].as_str().unwrap();
    let (file, mode) = text.trim().split_once('\n').unwrap();
    assert_eq!(mode, "0o40700");
    let directory = std::path::Path::new(file).parent().unwrap().to_owned();
    wait_until("the directory is gone", || !directory.exists());
}

#[test]
fn code_that_leaves_something_running_is_answered_all_the_same() {
    let workspace = Workspace::start();
    let answer = workspace.run(
        "import os, time\nprint('parent', flush=True)\nif os.fork() == 0:\n    time.sleep(1000)\nos._exit(7)",
    );
    assert_eq!((&answer["stdout"], &answer["exit_code"]), (&json!("parent\n"), &json!(7)));
    let id: ExecId = serde_json::from_value(answer["exec_id"].clone()).unwrap();
    assert_eq!(workspace.sandbox.request("DELETE", &format!("/exec/{id}?grace_seconds=0"), b"").status, 202);
    workspace.sandbox.wait_for(id, "eof");
}

#[test]
fn the_workload_makes_its_files_as_itself() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    if !rustix::process::geteuid().is_root() {
        use std::io::Write;
        let _ = writeln!(
            std::io::stderr(),
            "skipped: the_workload_makes_its_files_as_itself: needs root to have two users"
        );
        return;
    }
    let workspace = Workspace::start_with(&["--workload-uid", "4242"]);
    std::fs::set_permissions(workspace.place.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::chown(workspace.path(""), Some(4242), Some(4242)).unwrap();
    let answer = workspace.execute(json!({
        "code": "import os; print(os.getuid(), os.stat('given').st_uid, os.stat(__file__).st_uid)\nopen('made', 'w')",
        "files": { "given": "eA==" },
    }));
    assert_eq!(answer["stdout"], "4242 4242 4242\n", "{answer}");
    assert_eq!(std::fs::metadata(workspace.path("made")).unwrap().uid(), 4242);
    std::fs::create_dir(workspace.path("closed")).unwrap();
    let refused = workspace.refusal(json!({ "code": "print(1)", "files": { "closed/x": "eA==" } }));
    assert_eq!(refused, (403, "permission_denied".into()));
}
