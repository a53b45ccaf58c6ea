//! `cubicle logs`, and readers that outlive the server.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use crate::host::wait;
use crate::server::Server;

/// Prints a line every 50 ms, on both streams in turn.
const COUNT: &str = "for i in $(seq 1 100); do echo line $i; sleep 0.05; done; exit 7";

fn counted() -> String {
    (1..=100).map(|number| format!("line {number}\n")).collect()
}

#[test]
fn output_is_shown_so_far_or_to_its_end_also_after_its_sandbox_has_gone() {
    let Some(server) = Server::start() else { return };
    let exec =
        server.says(&["exec", "--detach", "--", "sh", "-c", "echo first; sleep 2; echo last; echo err >&2"]);
    let so_far = server.says(&["logs", &exec]);
    assert!(so_far.is_empty() || so_far == "first", "{so_far}");
    assert_eq!(server.says(&["logs", "-f", &exec]), "first\nlast");
    // A one-shot's sandbox goes with it; what it printed stays.
    let output = server.cubicle(&["logs", &exec]);
    assert_eq!((&output.stdout[..], &output.stderr[..]), (&b"first\nlast\n"[..], &b"err\n"[..]));
    let frames = server.says(&["logs", "--json", &exec]);
    assert!(frames.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()), "{frames}");
    assert!(frames.contains("\"exit\""), "{frames}");
}

#[test]
fn readers_outlive_a_killed_server_and_get_every_byte_once() {
    let Some(mut server) = Server::start() else { return };
    let exec = server.says(&["exec", "--detach", "--", "sh", "-c", COUNT]);
    let mut following = server.host.start(&["logs", "-f", &exec], Stdio::null());
    let mut attending = server.host.start(&["exec", "--", "sh", "-c", COUNT], Stdio::null());
    let mut logs = BufReader::new(following.stdout.take().expect("stdout is piped"));
    let mut output = BufReader::new(attending.stdout.take().expect("stdout is piped"));
    let (mut from_logs, mut from_exec) = (String::new(), String::new());
    for _ in 0..10 {
        logs.read_line(&mut from_logs).expect("logs can be read");
        output.read_line(&mut from_exec).expect("output can be read");
    }
    server.kill();
    server.up();
    logs.read_to_string(&mut from_logs).expect("logs can be read");
    output.read_to_string(&mut from_exec).expect("output can be read");
    assert_eq!(from_logs, counted());
    assert_eq!(from_exec, counted());
    assert_eq!(wait(&mut following).code(), Some(0));
    assert_eq!(wait(&mut attending).code(), Some(7));
}
