//! The same program in plain Python, in a fresh interpreter of ours and in a warm one: the same behaviour.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use cubicle_guest::journal::Kind;
use serde_json::{Value, json};

use crate::execute::Workspace;
use crate::programs::{PROGRAMS, Program};
use crate::support::*;
use crate::warm::warm_workspace;

const PYTHON: &str = "/usr/bin/python3";

#[derive(Debug, PartialEq, Eq)]
struct Behaviour {
    exit_code: i32,
    stdout: String,
    stderr: String,
}

impl Behaviour {
    /// Where the code lies is not its behaviour.
    fn new(exit_code: i32, stdout: &[u8], stderr: &[u8], directory: &str) -> Self {
        let normal = |bytes: &[u8]| {
            let text = bytes.escape_ascii().to_string().replace("\\n", "\n");
            let text = text.replace(&format!("{directory}/"), "WORK/").replace(directory, "WORK");
            let text = text.replace("WORK/main.py", "main.py");
            let text = without(&text, "/tmp/.cubicle-exec-", |c| c != '/').replace("CUT/main.py", "main.py");
            without(&text, "at 0x", |c| c.is_ascii_hexdigit())
        };
        Self { exit_code, stdout: normal(stdout), stderr: normal(stderr) }
    }
}

/// Cuts what follows each place where `mark` is, together with it.
fn without(text: &str, mark: &str, belongs: fn(char) -> bool) -> String {
    let mut pieces = text.split(mark);
    let mut whole = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        whole.push_str("CUT");
        whole.push_str(piece.trim_start_matches(belongs));
    }
    whole
}

fn plainly(program: &Program) -> Behaviour {
    let (_, code, stdin) = program;
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path().display().to_string();
    std::fs::write(format!("{directory}/main.py"), code).unwrap();
    #[expect(clippy::disallowed_methods, reason = "the test compares with a plain interpreter")]
    let mut plain = Command::new("/usr/bin/setsid");
    // A session of its own, as every exec has.
    plain
        .args(["--wait", "python3", "main.py"])
        .current_dir(&directory)
        .env_clear()
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .env("HOME", "/home/agent")
        .env("LANG", "C.UTF-8")
        .env("OUTPUT_DIR", format!("{directory}/output"))
        .stdin(if stdin.is_some() { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = plain.spawn().unwrap();
    if let Some(text) = stdin {
        use std::io::Write;
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    }
    let output = child.wait_with_output().unwrap();
    let status = output.status;
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap());
    Behaviour::new(code, &output.stdout, &output.stderr, &directory)
}

fn through(workspace: &Workspace, program: &Program, warm: bool) -> Behaviour {
    let (name, code, stdin) = program;
    let mut request = json!({ "code": code, "cwd": workspace.cwd(), "host": { "warm": warm } });
    if let Some(stdin) = stdin {
        request["stdin"] = json!(stdin);
    }
    let accept = "Accept: application/x-cubicle-journal\r\n";
    let target = "/execute?until=exit";
    let reply = workspace.sandbox.connect().request("POST", target, accept, request.to_string().as_bytes());
    assert_eq!(reply.status, 200, "{name}: {}", reply.text());
    let frames = frames(&reply.body);
    assert_eq!(payload(&frames, Kind::Start)["warm"], if warm { json!(true) } else { Value::Null }, "{name}");
    let exit = exit(&frames);
    let code = exit["code"].as_i64().or_else(|| exit["signal"].as_i64().map(|signal| 128 + signal));
    let (stdout, stderr) = (output(&frames, Kind::Stdout), output(&frames, Kind::Stderr));
    Behaviour::new(code.unwrap() as i32, &stdout, &stderr, &workspace.cwd())
}

fn compare(workspace: &Workspace, warm: bool) {
    assert!(PROGRAMS.len() >= 100, "{}", PROGRAMS.len());
    let mut different = Vec::new();
    for program in PROGRAMS {
        let (expected, found) = (plainly(program), through(workspace, program, warm));
        if expected != found {
            different.push(format!("{}:\n  plain {expected:?}\n  ours  {found:?}", program.0));
        }
    }
    assert!(different.is_empty(), "{} differ:\n{}", different.len(), different.join("\n"));
}

fn can_compare(test: &str) -> bool {
    let there = std::path::Path::new(PYTHON).exists();
    if !there {
        use std::io::Write;
        let _ = writeln!(std::io::stderr(), "skipped: {test}: needs {PYTHON}");
    }
    there
}

#[test]
fn code_behaves_as_in_a_plain_interpreter() {
    if can_compare("code_behaves_as_in_a_plain_interpreter") {
        compare(&Workspace::start(), false);
    }
}

#[test]
fn code_behaves_in_a_warm_interpreter_as_in_a_plain_one() {
    if can_compare("code_behaves_in_a_warm_interpreter_as_in_a_plain_one") {
        compare(&warm_workspace(), true);
    }
}
