//! `cubicle exec`, `ps` and `kill`.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

use crate::host::{send, wait};
use crate::server::{Server, complaint};

const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

#[test]
fn a_command_alone_passes_its_output_and_exit_code_through() {
    let Some(server) = Server::start() else { return };
    for code in [0, 1, 42, 255] {
        let script = format!("printf 'out\\377'; printf err >&2; exit {code}");
        let output = server.cubicle(&["exec", "--", "sh", "-c", &script]);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert_eq!((&output.stdout[..], &output.stderr[..]), (&b"out\xff"[..], &b"err"[..]));
    }
    let output = server.cubicle(&["exec", "--timeout", "300ms", "--", "sleep", "1000"]);
    assert_eq!(output.status.code(), Some(124), "{output:?}");
    let output = server.cubicle(&["exec", "--", "sh", "-c", "kill -9 $$"]);
    assert_eq!(output.status.signal(), Some(SIGKILL), "{output:?}");
    let output =
        server.cubicle(&["exec", "--env", "A=b", "--workdir", "/tmp", "--", "sh", "-c", "echo $A; pwd"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "b\n/tmp\n", "{output:?}");
    let output = server.cubicle(&["exec", "--workdir", "/no/such/place", "--", "true"]);
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    let output = server.cubicle(&["exec", "--template", "none", "--", "true"]);
    assert!(complaint(&output).contains("none"), "{output:?}");
}

#[test]
fn what_cannot_be_started_is_126_or_127() {
    let Some(server) = Server::start() else { return };
    let lease = server.lease();
    for sandbox in [&[][..], &[lease.as_str()]] {
        let exec = |program| server.cubicle(&[&["exec"], sandbox, &["--", program]].concat());
        let output = exec("no-such-program");
        assert_eq!(output.status.code(), Some(127), "{output:?}");
        assert!(complaint(&output).contains("no-such-program"), "{output:?}");
        assert_eq!(exec("/usr").status.code(), Some(126));
    }
}

#[test]
fn the_result_is_one_json_object() {
    let Some(server) = Server::start() else { return };
    let output = server.cubicle(&["exec", "--json", "--", "sh", "-c", "echo out; echo err >&2; exit 3"]);
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).expect("stdout is JSON");
    assert_eq!((output.status.code(), &value["exit_code"]), (Some(3), &3.into()));
    assert_eq!((&value["stdout"], &value["stderr"]), (&"out\n".into(), &"err\n".into()));
    assert_eq!(value["isolation"], "namespaces");
}

#[test]
fn input_is_streamed_to_a_command_alone_and_to_one_in_a_lease() {
    let Some(server) = Server::start() else { return };
    let lease = server.lease();
    for arguments in [&["exec", "--", "cat"][..], &["exec", &lease, "--", "cat"]] {
        let mut child = server.host.start(arguments, Stdio::piped());
        let mut input = child.stdin.take().expect("stdin is piped");
        let mut output = child.stdout.take().expect("stdout is piped");
        let sent: Vec<u8> = (0..1_000_000_u32).map(|n| (n % 251) as u8).collect();
        let expected = sent.clone();
        let writer = std::thread::spawn(move || input.write_all(&sent));
        let mut got = Vec::new();
        output.read_to_end(&mut got).expect("stdout can be read");
        writer.join().expect("the writer does not panic").expect("stdin takes everything");
        assert_eq!(wait(&mut child).code(), Some(0));
        assert!(got == expected, "{} bytes came back, {} were sent", got.len(), expected.len());
    }
    // What was leased for one command is given back with it.
    assert_eq!(server.says(&["lease", "ls", "--quiet"]), lease);
}

#[test]
fn a_signal_reaches_the_command() {
    let Some(server) = Server::start() else { return };
    let script = "trap 'echo got it; exit 7' TERM; echo ready; while :; do sleep 0.05; done";
    let mut child = server.host.start(&["exec", "--", "sh", "-c", script], Stdio::null());
    let mut lines = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
    assert_eq!(lines.next().transpose().ok().flatten().as_deref(), Some("ready"));
    send(&child, SIGTERM);
    assert_eq!(lines.next().transpose().ok().flatten().as_deref(), Some("got it"));
    assert_eq!(wait(&mut child).code(), Some(7));
}

#[test]
fn commands_in_a_lease_share_its_sandbox() {
    let Some(server) = Server::start() else { return };
    let lease = server.lease();
    server.says(&["exec", &lease, "--", "sh", "-c", "echo kept > note"]);
    let sandbox = server.json(&["lease", "get", "--json", &lease])["sandbox_id"].as_str().map(str::to_owned);
    let sandbox = sandbox.expect("an active lease has a sandbox");
    assert_eq!(server.says(&["exec", &sandbox, "--", "cat", "note"]), "kept");
    server.says(&["lease", "release", &lease]);
    let output = server.cubicle(&["exec", &lease, "--", "true"]);
    assert_eq!(output.status.code(), Some(125));
    assert!(complaint(&output).contains("has ended"), "{output:?}");
}

#[test]
fn what_is_detached_is_listed_and_killed() {
    let Some(server) = Server::start() else { return };
    let lease = server.lease();
    let first = server.says(&["exec", "--detach", &lease, "--", "sleep", "1000"]);
    let second = server.says(&["exec", "--detach", "--", "sleep", "1000"]);
    assert_eq!(server.says(&["ps", "--quiet"]).lines().collect::<Vec<_>>(), [&first, &second]);
    let table = server.says(&["ps", &lease]);
    assert!(table.contains(&first) && table.contains("running") && !table.contains(&second), "{table}");
    server.says(&["kill", "--signal", "INT", &first]);
    server.says(&["kill", &second]);
    server.says(&["logs", "-f", &first]);
    server.says(&["logs", "-f", &second]);
    let states: Vec<_> = server.json(&["ps", "--all", "--json"]).as_array().cloned().unwrap_or_default();
    let exits: Vec<_> = states.iter().map(|exec| exec["result"]["exit"]["signal"].clone()).collect();
    assert_eq!(exits, [2, 15], "{states:?}");
    server.says(&["kill", &lease]);
    assert_eq!(server.says(&["lease", "ls", "--quiet"]), "");
}

#[test]
fn a_sandbox_that_run_kept_is_still_found_beside_a_server() {
    let Some(server) = Server::start() else { return };
    let elsewhere = server.host.scratch().join("other");
    let elsewhere = elsewhere.to_str().expect("a temporary directory has a plain name");
    let address = server.address();
    server.says(&["--data-dir", elsewhere, "run", "--keep", "--", "sh", "-c", "echo kept > note"]);
    let id = server.says(&["--data-dir", elsewhere, "ls", "--quiet"]);
    let key = server.host.data_dir().join("server/admin.key");
    let key = key.to_str().expect("a temporary directory has a plain name");
    let asked =
        ["--data-dir", elsewhere, "--server", &address, "--key-file", key, "exec", &id, "--", "cat", "note"];
    assert_eq!(server.says(&asked), "kept");
    server.says(&["--data-dir", elsewhere, "rm", &id]);
    let output = server.cubicle(&asked);
    assert!(complaint(&output).contains("there is no sandbox"), "{output:?}");
}
