//! `cubicle run` and its siblings over the built binary, on a host where the default isolation works.

#[expect(dead_code, reason = "other suites use more of it")]
mod host;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use host::{Host, send, wait};

/// Long enough for any host; only a hang gets there.
const BOUND: Duration = Duration::from_secs(60);
const SIGHUP: i32 = 1;
const SIGINT: i32 = 2;
const SIGQUIT: i32 = 3;
const SIGKILL: i32 = 9;
const SIGUSR1: i32 = 10;
const SIGSEGV: i32 = 11;
const SIGPIPE: i32 = 13;
const SIGTERM: i32 = 15;

/// Says when the command is ready, then waits for a signal in a way that `sh` can interrupt.
const WAIT_FOR_SIGNAL: &str = "echo ready; while :; do sleep 0.05; done";

#[test]
fn output_and_exit_code_pass_through() {
    let Some(host) = Host::new() else { return };
    for code in [0, 1, 42, 124, 125, 255] {
        let script = format!("printf out; printf err >&2; exit {code}");
        let output = host.run(&["--", "sh", "-c", &script]);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert_eq!((&output.stdout[..], &output.stderr[..]), (&b"out"[..], &b"err"[..]));
    }
}

#[test]
fn the_last_process_of_a_data_directory_takes_its_cgroups_along() {
    let Some(host) = Host::new() else { return };
    let eventually = |what: &str, there: bool| {
        let start = Instant::now();
        let instance = || cubicle_tests_leftovers::Instance::of(&host.data_dir());
        while instance().is_none_or(|instance| instance.cgroups().is_empty()) == there {
            assert!(start.elapsed() < BOUND, "{what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    if host.run(&["--memory", "64M", "--", "true"]).status.code() != Some(0) {
        let test = "the_last_process_of_a_data_directory_takes_its_cgroups_along";
        _ = writeln!(std::io::stderr(), "skipped: {test}: needs cgroups");
        return;
    }
    let mut child = host.start(&["run", "--", "cat"], Stdio::piped());
    eventually("the cgroups of a sandbox", true);
    drop(child.stdin.take());
    assert_eq!(wait(&mut child).code(), Some(0));
    eventually("cgroups are left behind", false);
}

#[test]
fn binary_output_is_not_changed() {
    let Some(host) = Host::new() else { return };
    let output = host.run(&["--", "printf", r"\000\377\033[31m\r\n\200"]);
    assert_eq!(output.stdout, b"\0\xff\x1b[31m\r\n\x80");
}

#[test]
fn a_lot_of_output_arrives_whole() {
    let Some(host) = Host::new() else { return };
    let output = host.run(&["--", "head", "-c", "20000000", "/dev/zero"]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(output.stdout.len(), 20_000_000);
}

#[test]
fn a_command_killed_by_a_signal_kills_cubicle_by_the_same() {
    let Some(host) = Host::new() else { return };
    for signal in [SIGINT, SIGKILL, SIGSEGV, SIGPIPE, SIGTERM] {
        let output = host.run(&["--", "sh", "-c", &format!("kill -{signal} $$")]);
        assert_eq!(output.status.signal(), Some(signal), "{output:?}");
    }
}

#[test]
fn a_timeout_is_124() {
    let Some(host) = Host::new() else { return };
    let output = host.run(&["--timeout", "300ms", "--", "sleep", "1000"]);
    assert_eq!(output.status.code(), Some(124), "{output:?}");
    // Whatever it returns after it was told to stop.
    let output = host.run(&["--timeout", "300ms", "--", "sh", "-c", "trap 'exit 0' TERM; sleep 1000"]);
    assert_eq!(output.status.code(), Some(124), "{output:?}");
}

#[test]
fn what_cannot_be_started_is_126_or_127() {
    let Some(host) = Host::new() else { return };
    let output = host.run(&["--", "no-such-program"]);
    assert_eq!(output.status.code(), Some(127), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("no command 'no-such-program'"), "{output:?}");
    let output = host.run(&["--", "/usr"]);
    assert_eq!(output.status.code(), Some(126), "{output:?}");
    let output = host.run(&["--workdir", "/no/such/place", "--", "true"]);
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("/no/such/place"), "{output:?}");
}

#[test]
fn input_is_streamed() {
    let Some(host) = Host::new() else { return };
    let mut child = host.start(&["run", "--", "cat"], Stdio::piped());
    let mut input = child.stdin.take().expect("stdin is piped");
    let mut output = child.stdout.take().expect("stdout is piped");
    let sent: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    let expected = sent.clone();
    let writer = std::thread::spawn(move || input.write_all(&sent));
    let mut got = Vec::new();
    output.read_to_end(&mut got).expect("stdout can be read");
    writer.join().expect("the writer does not panic").expect("stdin takes everything");
    assert_eq!(wait(&mut child).code(), Some(0));
    assert!(got == expected, "{} bytes came back, {} were sent", got.len(), expected.len());
}

#[test]
fn a_command_may_leave_its_input_unread() {
    let Some(host) = Host::new() else { return };
    let mut child = host.start(&["run", "--", "head", "-c", "3"], Stdio::piped());
    let mut input = child.stdin.take().expect("stdin is piped");
    // Ends with a broken pipe or not at all; the command does not care.
    let writer = std::thread::spawn(move || while input.write_all(&[b'x'; 65536]).is_ok() {});
    assert_eq!(wait(&mut child).code(), Some(0));
    writer.join().expect("the writer does not panic");
}

#[test]
fn signals_reach_the_command() {
    let Some(host) = Host::new() else { return };
    for (signal, name) in
        [(SIGHUP, "HUP"), (SIGINT, "INT"), (SIGQUIT, "QUIT"), (SIGUSR1, "USR1"), (SIGTERM, "TERM")]
    {
        // What whoever runs the tests ignores stays ignored, as the next but one test wants it.
        if host::is_ignored(signal) {
            continue;
        }
        let script = format!("trap 'echo got {name}; exit 7' {name}; {WAIT_FOR_SIGNAL}");
        let mut child = host.start(&["run", "--", "sh", "-c", &script], Stdio::null());
        let mut lines = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
        assert_eq!(lines.next().transpose().ok().flatten().as_deref(), Some("ready"));
        send(&child, signal);
        assert_eq!(lines.next().transpose().ok().flatten(), Some(format!("got {name}")));
        assert_eq!(wait(&mut child).code(), Some(7), "{name}");
    }
}

#[test]
fn a_signal_that_the_command_does_not_catch_ends_both() {
    let Some(host) = Host::new() else { return };
    let mut child = host.start(&["run", "--", "sh", "-c", WAIT_FOR_SIGNAL], Stdio::null());
    let mut lines = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
    assert!(lines.next().is_some());
    send(&child, SIGTERM);
    assert_eq!(wait(&mut child).signal(), Some(SIGTERM));
}

#[test]
fn a_signal_that_the_caller_ignores_stays_ignored() {
    let Some(host) = Host::new() else { return };
    let binary = host::BINARY;
    let script = format!("trap '' HUP; exec {binary} run -- sh -c \"$1\"");
    let inner = "trap 'echo hangup; exit 1' HUP; echo ready; sleep 1; exit 0";
    let mut child = host.start_program("sh", &["-c", &script, "sh", inner], Stdio::null());
    let mut lines = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
    assert!(lines.next().is_some());
    send(&child, SIGHUP);
    assert_eq!(wait(&mut child).code(), Some(0));
}

#[test]
fn a_reader_that_leaves_ends_the_command_by_a_broken_pipe() {
    let Some(host) = Host::new() else { return };
    let mut child = host.start(&["run", "--", "yes"], Stdio::null());
    let mut output = child.stdout.take().expect("stdout is piped");
    let mut some = [0; 4096];
    output.read_exact(&mut some).expect("yes prints");
    drop(output);
    assert_eq!(wait(&mut child).signal(), Some(SIGPIPE));
}

#[test]
fn a_signal_gets_through_while_nobody_reads_the_output() {
    let Some(host) = Host::new() else { return };
    let mut child = host.start(&["run", "--", "yes"], Stdio::null());
    let mut output = child.stdout.take().expect("stdout is piped");
    let mut some = [0; 2];
    output.read_exact(&mut some).expect("yes prints");
    send(&child, SIGTERM);
    // The pipe stays open and full; started directly, the command would die all the same.
    assert_eq!(wait(&mut child).signal(), Some(SIGTERM));
    drop(output);
}

#[test]
fn what_runs_in_the_background_does_not_hold_up_the_end() {
    let Some(host) = Host::new() else { return };
    let output = host.run(&["--", "sh", "-c", "sleep 1000 & echo done"]);
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(0), &b"done\n"[..]));
}

#[test]
fn the_result_is_one_json_object() {
    let Some(host) = Host::new() else { return };
    let output = host.run(&["--json", "--receipt", "--", "sh", "-c", "echo out; echo err >&2; exit 3"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(output.stderr.is_empty(), "{output:?}");
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).expect("stdout is JSON");
    assert_eq!((&value["stdout"], &value["stderr"]), (&"out\n".into(), &"err\n".into()));
    assert_eq!((&value["exit_code"], &value["timed_out"]), (&3.into(), &false.into()));
    assert_eq!(value["receipt"]["sandbox"], value["sandbox"]);
    let output = host.run(&["--json", "--timeout", "200ms", "--", "sleep", "1000"]);
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).expect("stdout is JSON");
    assert_eq!((output.status.code(), &value["timed_out"]), (Some(124), &true.into()));
}

#[test]
fn variables_files_and_working_directory_are_the_commands() {
    let Some(host) = Host::new() else { return };
    let script = host.scratch().join("greet.sh");
    std::fs::write(&script, "#!/bin/sh\necho \"$GREETING from $(pwd)\"\n").expect("scratch is writable");
    let copy = format!("{}:/workspace/bin/greet.sh", script.display());
    let output = host.run(&[
        "--env",
        "GREETING=hello",
        "--file",
        &copy,
        "--workdir",
        "/tmp",
        "--",
        "sh",
        "/workspace/bin/greet.sh",
    ]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "hello from /tmp\n", "{output:?}");
}

#[test]
fn a_kept_sandbox_is_listed_used_and_removed() {
    let Some(host) = Host::new() else { return };
    let output = host.run(&["--keep", "--", "sh", "-c", "echo kept > /workspace/note"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let listed = host.cubicle(&["ls", "--quiet"]);
    let id = String::from_utf8(listed.stdout).expect("ids are text").trim().to_owned();
    assert!(String::from_utf8_lossy(&output.stderr).contains(&id), "{output:?}");

    let read = host.cubicle(&["exec", &id, "--", "cat", "/workspace/note"]);
    assert_eq!(String::from_utf8_lossy(&read.stdout), "kept\n", "{read:?}");
    let receipt = host.cubicle(&["receipt", &id]);
    let receipt: serde_json::Value = serde_json::from_slice(&receipt.stdout).expect("a receipt is JSON");
    assert_eq!(receipt["sandbox"], id.as_str());

    assert_eq!(host.cubicle(&["rm", &id]).status.code(), Some(0));
    assert!(host.cubicle(&["ls", "--quiet"]).stdout.is_empty());
    assert_eq!(host.cubicle(&["exec", &id, "--", "true"]).status.code(), Some(125));
}

#[test]
fn nothing_is_left_after_a_run() {
    let Some(host) = Host::new() else { return };
    host.run(&["--", "true"]);
    host.run(&["--", "no-such-program"]);
    host.run(&["--keep", "--", "no-such-program"]);
    assert!(host.cubicle(&["ls", "--quiet"]).stdout.is_empty());
}

#[test]
fn a_terminal_is_given_and_handed_back() {
    let Some(host) = Host::new() else { return };
    let terminal = host::Terminal::open(33, 101);
    let before = terminal.mode();
    let script = "test -t 0 && test -t 1 && stty size; read line; echo \"read $line\"; exit 5";
    let mut child = host.start_on(&terminal, &["run", "--tty", "--", "sh", "-c", script]);
    terminal.expect("33 101");
    assert_ne!(terminal.mode(), before, "keys are not handed on as they are");
    terminal.type_keys("over\r");
    terminal.expect("read over");
    assert_eq!(wait(&mut child).code(), Some(5));
    assert_eq!(terminal.mode(), before, "the terminal was not given back as it was");
}

#[test]
fn the_terminal_is_handed_back_after_a_signal() {
    let Some(host) = Host::new() else { return };
    let terminal = host::Terminal::open(24, 80);
    let before = terminal.mode();
    let mut child = host.start_on(&terminal, &["run", "--tty", "--", "sh", "-c", WAIT_FOR_SIGNAL]);
    terminal.expect("ready");
    send(&child, SIGTERM);
    wait(&mut child);
    assert_eq!(terminal.mode(), before);
}
