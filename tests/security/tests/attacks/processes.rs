//! Attacks on other processes, on pid 1 above all.

use cubicle_model::LimitRequest;
use rustix::io::Errno;

use crate::arena::{Arena, host_processes, token};

const EPERM: i32 = Errno::PERM.raw_os_error();
const EACCES: i32 = Errno::ACCESS.raw_os_error();
const ESRCH: i32 = Errno::SRCH.raw_os_error();

#[test]
fn sandbox_cannot_trace_pid_1() {
    let Some(arena) = Arena::enter() else { return };
    arena.attack(&["trace", "1"]).refused(&[EPERM]);
}

#[test]
fn sandbox_cannot_trace_its_own_children() {
    let Some(arena) = Arena::enter() else { return };
    arena.attack(&["trace-own-child"]).refused(&[EPERM]);
    arena.attack(&["be-traced"]).refused(&[EPERM]);
}

#[test]
fn sandbox_cannot_access_the_memory_of_other_processes() {
    let Some(arena) = Arena::enter() else { return };
    arena.attack(&["other-memory", "1"]).refused(&[EPERM]);
    arena.attack(&["own-child-memory"]).refused(&[EPERM]);
    arena.attack(&["advise"]).refused(&[EPERM]);
}

#[test]
fn sandbox_cannot_take_descriptors_of_pid_1() {
    let Some(arena) = Arena::enter() else { return };
    arena.attack(&["take-descriptor", "1"]).refused(&[EPERM]);
    arena.attack(&["compare", "1"]).refused(&[EPERM]);
}

#[test]
fn sandbox_cannot_look_into_pid_1() {
    let Some(arena) = Arena::enter() else { return };
    assert_eq!(arena.attack(&["pid-1-files"]).saw(), "");
}

#[test]
fn sandbox_cannot_write_the_memory_of_pid_1() {
    let Some(arena) = Arena::enter() else { return };
    arena.attack(&["write", "/proc/1/mem", "x"]).refused(&[EACCES, EPERM]);
}

#[test]
fn sandbox_cannot_end_pid_1_with_any_signal() {
    let Some(arena) = Arena::enter() else { return };
    let sandbox = arena.fresh(LimitRequest::default());
    // With one user the kernel takes the signals and protects pid 1 from them; what counts is that it answers.
    let report = sandbox.attack(&["signal-all-kinds", "1"]);
    if arena.backend.facts().privileged {
        report.refused(&[EPERM]);
    }
    arena.answers(sandbox.id);
    let after = arena.shell(sandbox.id, "echo still here");
    assert_eq!(after.stdout, b"still here\n");
}

#[test]
fn sandbox_cannot_end_pid_1_by_signalling_everybody() {
    let Some(arena) = Arena::enter() else { return };
    let sandbox = arena.fresh(LimitRequest::default());
    for signal in ["15", "9"] {
        let _ = sandbox.attack(&["signal", "-1", signal]);
        arena.answers(sandbox.id);
    }
}

#[test]
fn sandbox_cannot_stop_pid_1_by_stopping_what_it_starts() {
    let Some(arena) = Arena::enter() else { return };
    let sandbox = arena.fresh(LimitRequest::default());
    let (attack, _) = arena.begin(sandbox.id, &["stop-everybody"]);
    let guest = sandbox.guest();
    for _ in 0..20 {
        // A program may be stopped before it says anything, but pid 1 has to stay reachable.
        let spec = cubicle_model::ExecSpec::new(cubicle_model::Command::Argv(vec!["/bin/true".into()]));
        let _ = arena.wait(async {
            tokio::time::timeout(std::time::Duration::from_secs(10), guest.exec_in_background(&spec)).await
        });
        let health = arena
            .wait(async { tokio::time::timeout(std::time::Duration::from_secs(10), guest.health()).await });
        assert!(matches!(health, Ok(Ok(_))), "pid 1 does not answer any more: {health:?}");
    }
    arena.end(sandbox.id, &attack);
    arena.unharmed();
}

#[test]
fn sandbox_cannot_change_the_limits_of_pid_1() {
    let Some(arena) = Arena::enter() else { return };
    let sandbox = arena.fresh(LimitRequest::default());
    let report = arena.attack_from(sandbox.id, &["limits-of", "1"]);
    report.refused(&[EPERM]);
    arena.unharmed();
}

#[test]
fn sandbox_cannot_starve_pid_1_by_its_priority() {
    let Some(arena) = Arena::enter() else { return };
    let sandbox = arena.fresh(LimitRequest::default());
    sandbox.attack(&["priority-of", "1"]).refused(&[EPERM]);
}

#[test]
fn sandbox_cannot_raise_its_own_priority() {
    let Some(arena) = Arena::enter() else { return };
    arena.attack(&["own-priority"]).refused(&[EPERM]);
}

#[test]
fn sandbox_cannot_protect_itself_from_the_out_of_memory_killer() {
    let Some(arena) = Arena::enter() else { return };
    arena.attack(&["write", "/proc/self/oom_score_adj", "-1000"]).refused(&[EACCES, EPERM]);
    arena.attack(&["write", "/proc/self/oom_score_adj", "-1"]).refused(&[EACCES, EPERM]);
    arena.attack(&["write", "/proc/1/oom_score_adj", "1000"]).refused(&[EACCES, EPERM]);
}

#[test]
fn sandbox_cannot_change_the_tag_of_its_exec() {
    let Some(arena) = Arena::enter() else { return };
    arena.attack(&["change-tag"]).refused(&[EPERM]);
}

#[test]
fn sandbox_cannot_raise_its_limits() {
    let Some(arena) = Arena::enter() else { return };
    arena.attack(&["raise-limits"]).refused(&[EPERM]);
}

#[test]
fn sandbox_cannot_lock_memory_beyond_its_limit() {
    let Some(arena) = Arena::enter() else { return };
    arena.attack(&["lock-memory", "16777216"]).refused(&[Errno::NOMEM.raw_os_error(), EPERM]);
}

#[test]
fn sandbox_cannot_dump_core() {
    let Some(arena) = Arena::enter() else { return };
    arena.attack(&["crash", "/workspace"]).refused(&[EPERM]);
    assert_eq!(arena.attack(&["find-name", "core"]).saw().matches("/workspace").count(), 0);
}

#[test]
fn sandbox_cannot_run_the_core_dump_handler_of_the_host() {
    let Some(arena) = Arena::enter() else { return };
    // A handler behind a pipe is run by the kernel, outside, whatever the limit is: only a limit of one byte keeps it
    // away (core(5)). A limit of zero does not.
    let limits = arena.shell(arena.attacker, "grep 'Max core file size' /proc/self/limits");
    let limits = String::from_utf8_lossy(&limits.stdout).into_owned();
    let numbers: Vec<&str> = limits.split_whitespace().skip(4).take(2).collect();
    assert_eq!(numbers, ["1", "1"], "{limits}");
}

#[test]
fn sandbox_cannot_see_processes_of_the_host() {
    let Some(arena) = Arena::enter() else { return };
    let sandbox = arena.fresh(LimitRequest::default());
    let seen = sandbox.attack(&["processes"]).saw().to_owned();
    let names: Vec<&str> =
        seen.split(' ').filter_map(|entry| entry.split_once(':')).map(|(_, name)| name).collect();
    assert_eq!(names.len(), 2, "{seen}");
    assert!(names.contains(&"intruder"), "{seen}");
}

#[test]
fn sandbox_cannot_signal_processes_of_the_host() {
    let Some(arena) = Arena::enter() else { return };
    let own = std::process::id().to_string();
    let launcher = arena.backend.launcher_pid().to_string();
    for pid in [own, launcher] {
        arena.attack_from(arena.attacker, &["signal", &pid, "9"]).refused(&[ESRCH]);
        arena.attack_from(arena.attacker, &["open-process", &pid]).refused(&[ESRCH]);
    }
    arena.unharmed();
}

#[test]
fn sandbox_cannot_signal_processes_of_another_sandbox() {
    let Some(arena) = Arena::enter() else { return };
    let token = token();
    let victim = arena.begin(arena.neighbour, &["listen-abstract", &token]).0;
    let [(pid, _)] = host_processes(&token)[..] else { panic!("the victim is one process") };
    arena.attack(&["signal", &pid.to_string(), "9"]).refused(&[ESRCH]);
    let _ = arena.attack(&["signal", &format!("-{pid}"), "9"]);
    assert_eq!(host_processes(&token).len(), 1, "the victim is gone");
    arena.end(arena.neighbour, &victim);
}

#[test]
fn sandbox_cannot_find_descriptors_that_are_not_its_own() {
    let Some(arena) = Arena::enter() else { return };
    let found = arena.attack(&["descriptors"]).saw().to_owned();
    let mut found = found.split(' ');
    assert_eq!(found.next(), Some("0=/dev/null"));
    assert!(found.next().is_some_and(|it| it.starts_with("1=pipe:")));
    assert!(found.next().is_some_and(|it| it.starts_with("2=pipe:")));
    assert_eq!(found.next(), None, "a descriptor of pid 1 was left open");
}

#[test]
fn sandbox_cannot_reach_its_journal() {
    let Some(arena) = Arena::enter() else { return };
    assert_eq!(arena.attack(&["find-name", "journal"]).saw().matches("/data/").count(), 0);
    arena.attack(&["list", "/proc/1/fd"]).refused(&[EACCES]);
    let mounts = arena.attack(&["read", "/proc/self/mountinfo"]).saw().to_owned();
    let data = arena.data_directory().display().to_string();
    assert!(!mounts.contains(&data), "{mounts}");
}

#[test]
fn sandbox_cannot_reach_its_control_socket() {
    let Some(arena) = Arena::enter() else { return };
    assert_eq!(arena.attack(&["find-sockets"]).saw(), "");
    let sandbox = arena.fresh(LimitRequest::default());
    assert_eq!(sandbox.attack(&["named-sockets"]).saw(), "");
}
