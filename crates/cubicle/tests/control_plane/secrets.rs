//! `cubicle secrets`.

use std::io::Write;
use std::process::{Output, Stdio};

use crate::host::{BINARY, Terminal, send, wait};
use crate::server::{Server, complaint};

const SIGINT: i32 = 2;

fn with_input(server: &Server, arguments: &[&str], input: &[u8]) -> Output {
    let mut command = server.host.command(BINARY, arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the built program starts");
    child.stdin.take().expect("stdin is piped").write_all(input).expect("it reads");
    child.wait_with_output().expect("the child is ours")
}

#[test]
fn a_secret_is_set_from_standard_input_listed_and_removed() {
    let Some(server) = Server::start() else { return };
    let set = ["secrets", "set", "WIKI", "--to", "wiki.example:8443", "--as", "header:X-Key"];
    let set = [&set[..], &["--base", "wiki", "--template", "python", "--template", "node"]].concat();
    let output = with_input(&server, &set, b"the-value-of-it\n");
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("WIKI has version 1 and goes to wiki.example:8443"), "{said}");

    let rotated = with_input(&server, &["secrets", "set", "WIKI", "--json"], b"12345");
    let rotated: serde_json::Value = serde_json::from_slice(&rotated.stdout).expect("JSON");
    assert_eq!(
        (&rotated["version"], &rotated["bindings"][0]["templates"]),
        (&2.into(), &serde_json::json!(["node", "python"]))
    );
    assert!(rotated["warning"].is_string(), "{rotated}");
    let table = server.says(&["secrets", "list"]);
    let line = table.lines().find(|line| line.starts_with("WIKI")).expect("it is listed");
    for part in ["2", "value", "wiki.example:8443", "header:x-key", "node python", "ok"] {
        assert!(line.contains(part), "{part}: {table}");
    }
    let unbound = with_input(&server, &["secrets", "set", "WIKI", "--unbound"], b"the-value-of-it");
    assert!(String::from_utf8_lossy(&unbound.stderr).contains("bound to nothing"), "{unbound:?}");
    let all = server.json(&["secrets", "ls", "--json"]);
    assert!(!all.to_string().contains("the-value"), "{all}");
    server.says(&["secrets", "rm", "WIKI"]);
    assert!(!server.says(&["secrets", "list"]).contains("WIKI"));
    let output = server.cubicle(&["secrets", "rm", "WIKI"]);
    assert!(complaint(&output).contains("no secret 'WIKI'"), "{output:?}");
}

#[test]
fn nothing_is_no_value_and_a_value_is_no_argument() {
    let Some(server) = Server::start() else { return };
    for input in [&b""[..], b"\n"] {
        let output = with_input(&server, &["secrets", "set", "KEY"], input);
        assert!(complaint(&output).contains("no value"), "{output:?}");
    }
    let output = with_input(&server, &["secrets", "set", "KEY"], b"\xff\xfe");
    assert!(complaint(&output).contains("no text"), "{output:?}");
    let output = server.cubicle(&["secrets", "set", "KEY", "the-value"]);
    assert!(complaint(&output).contains("unexpected argument"), "{output:?}");
    assert!(!server.says(&["secrets", "list"]).contains("KEY"));
}

#[test]
fn what_is_typed_on_a_terminal_is_not_shown() {
    let Some(server) = Server::start() else { return };
    let terminal = Terminal::open(24, 80);
    let before = terminal.mode();
    let mut child = server.host.start_on(&terminal, &["secrets", "set", "TYPED"]);
    terminal.expect("which is not shown: ");
    assert_ne!(terminal.mode(), before);
    terminal.type_keys("typed-by-a-person\n");
    terminal.expect("TYPED has version 1");
    assert!(wait(&mut child).success());
    assert!(!terminal.shown().contains("typed-by"), "{}", terminal.shown());
    assert_eq!(terminal.mode(), before);

    let mut child = server.host.start_on(&terminal, &["secrets", "set", "NEVER"]);
    terminal.expect("Value of NEVER, which is not shown: ");
    send(&child, SIGINT);
    assert!(!wait(&mut child).success());
    assert_eq!(terminal.mode(), before, "the terminal is given back also when it is interrupted");
    assert!(!server.says(&["secrets", "list"]).contains("NEVER"));
}
