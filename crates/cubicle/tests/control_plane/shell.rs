//! `cubicle shell` with a person at the terminal.

use rustix::fs::{Mode, OFlags};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::host::{Terminal, send, wait};
use crate::server::Server;

const SIGTERM: i32 = 15;
const SIGWINCH: i32 = 28;

#[test]
fn a_shell_is_a_terminal_with_keys_sizes_and_an_exit_code() {
    let Some(server) = Server::start() else { return };
    let terminal = Terminal::open(33, 101);
    let before = terminal.mode();
    let mut child = server.host.start_on(&terminal, &["shell"]);
    terminal.type_keys("stty size\r");
    terminal.expect("33 101");
    assert_ne!(terminal.mode(), before, "keys are not handed on as they are");
    // The window's size changes.
    let window = format!("/proc/{}/fd/0", child.id());
    let window =
        rustix::fs::open(window, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).expect("it is a terminal");
    let size = Winsize { ws_row: 40, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&window, size).expect("the terminal is ours");
    send(&child, SIGWINCH);
    terminal.type_keys("for i in 1 2 3 4 5; do stty size; sleep 0.2; done\r");
    terminal.expect("40 120");
    terminal.type_keys("exit 7\r");
    assert_eq!(wait(&mut child).code(), Some(7));
    assert_eq!(terminal.mode(), before, "the terminal was not given back as it was");
    // What was leased for the shell is given back with it.
    assert_eq!(server.says(&["lease", "ls", "--quiet"]), "");
}

#[test]
fn ctrl_c_goes_to_what_runs_inside() {
    let Some(server) = Server::start() else { return };
    let terminal = Terminal::open(24, 80);
    let command = "trap 'echo interrupted; exit 7' INT; echo ready; while :; do sleep 0.05; done";
    let mut child = server.host.start_on(&terminal, &["shell", "--command", command]);
    terminal.expect("ready");
    terminal.type_keys("\u{3}");
    terminal.expect("interrupted");
    assert_eq!(wait(&mut child).code(), Some(7));
}

#[test]
fn a_shell_in_a_lease_leaves_the_lease() {
    let Some(server) = Server::start() else { return };
    let lease = server.lease();
    let terminal = Terminal::open(24, 80);
    let before = terminal.mode();
    let command = "echo ready; read line; echo $line > note; exit 3";
    let mut child = server.host.start_on(&terminal, &["shell", &lease, "--command", command]);
    terminal.expect("ready");
    terminal.type_keys("typed\r");
    assert_eq!(wait(&mut child).code(), Some(3));
    assert_eq!(terminal.mode(), before);
    assert_eq!(server.says(&["exec", &lease, "--", "cat", "note"]), "typed");
}

#[test]
fn the_terminal_is_handed_back_after_a_signal() {
    let Some(server) = Server::start() else { return };
    let terminal = Terminal::open(24, 80);
    let before = terminal.mode();
    let mut child = server.host.start_on(&terminal, &["shell", "-c", "echo ready; sleep 1000"]);
    terminal.expect("ready");
    send(&child, SIGTERM);
    wait(&mut child);
    assert_eq!(terminal.mode(), before);
    assert_eq!(server.says(&["lease", "ls", "--quiet"]), "");
}
