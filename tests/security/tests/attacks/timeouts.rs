//! Surviving the end of an exec.

use std::time::Duration;

use cubicle_model::{Command, ExecSpec, LimitRequest};

use crate::arena::{Arena, host_processes, intruder, token, until};

/// Runs an attack that wants to stay, with a short timeout, and waits until the host has no process of it left.
fn is_gone_after_its_timeout(attack: &str) {
    let Some(arena) = Arena::enter() else { return };
    let token = token();
    let sandbox = arena.fresh(LimitRequest::default());
    let guest = sandbox.guest();
    let spec = ExecSpec { timeout_seconds: Some(0.7), ..intruder(&[attack, &token]) };
    let started = arena.wait(guest.exec_in_background(&spec)).expect("the attack starts");
    until("the attack runs", || !host_processes(&token).is_empty());
    // Until the timeout is over and the grace after it: if the first process has ended by then, an end is asked for.
    if arena.wait(guest.wait(started.exec_id)).is_ok() {
        arena.wait(guest.end(started.exec_id, Some(Duration::ZERO))).expect("an exec can be ended");
    }
    until("nothing of the exec is left", || host_processes(&token).is_empty());
    arena.answers(sandbox.id);
    arena.unharmed();
}

#[test]
fn sandbox_cannot_outlive_a_timeout_as_a_daemon_with_its_own_session() {
    is_gone_after_its_timeout("daemon");
}

#[test]
fn sandbox_cannot_outlive_a_timeout_as_a_child_of_pid_1() {
    is_gone_after_its_timeout("sibling");
}

#[test]
fn sandbox_cannot_outlive_a_timeout_by_ending_its_first_thread() {
    let Some(arena) = Arena::enter() else { return };
    let token = token();
    let sandbox = arena.fresh(LimitRequest::default());
    let guest = sandbox.guest();
    let spec = ExecSpec { timeout_seconds: Some(0.7), ..intruder(&["headless", &token]) };
    let started = arena.wait(guest.exec_in_background(&spec)).expect("the attack starts");
    let status = arena
        .wait(async { tokio::time::timeout(Duration::from_secs(10), guest.wait(started.exec_id)).await });
    assert!(status.is_ok(), "the exec was not ended by its timeout");
    assert_eq!(arena.shell(sandbox.id, "cat /proc/[0-9]*/comm | grep -c intruder; true").stdout, b"0\n");
}

#[test]
fn sandbox_cannot_fork_away_from_an_end() {
    let Some(arena) = Arena::enter() else { return };
    let sandbox = arena.fresh(LimitRequest { pids: Some(64), ..LimitRequest::default() });
    let guest = sandbox.guest();
    let started =
        arena.wait(guest.exec_in_background(&intruder(&["endless-fork-bomb"]))).expect("the attack starts");
    std::thread::sleep(Duration::from_millis(200));
    arena.wait(guest.end(started.exec_id, Some(Duration::ZERO))).expect("a fork bomb can be ended");
    until("the bomb is gone", || {
        let look = ExecSpec::new(Command::Shell("cat /proc/[0-9]*/comm | grep -c intruder; true".into()));
        // While the last of it are being buried there may be no room for another process.
        let left = arena.wait(sandbox.guest().run(&look, Default::default()));
        left.is_ok_and(|left| left.stdout == b"0\n")
    });
    arena.unharmed();
}

#[test]
fn sandbox_cannot_outlive_its_deadline() {
    let Some(arena) = Arena::enter() else { return };
    let token = token();
    let sandbox = arena.fresh(LimitRequest::default());
    let spec = intruder(&["daemon", &token]);
    arena.run(sandbox.id, &spec);
    until("the daemon runs", || !host_processes(&token).is_empty());
    arena.wait(sandbox.guest().set_deadline(Duration::from_secs(1))).expect("a deadline can be set");
    until("the sandbox has ended", || host_processes(&token).is_empty());
    arena.unharmed();
}

#[test]
fn destroyed_sandbox_leaves_no_process() {
    let Some(arena) = Arena::enter() else { return };
    let token = token();
    let sandbox = arena.fresh(LimitRequest::default());
    for attack in ["daemon", "sibling"] {
        arena
            .wait(sandbox.guest().exec_in_background(&intruder(&[attack, &token])))
            .expect("the attack starts");
    }
    until("the attacks run", || host_processes(&token).len() >= 2);
    drop(sandbox);
    assert_eq!(host_processes(&token), []);
}
