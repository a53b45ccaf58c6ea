//! Processes killed at every kind of moment, one sweep, and then a count of what is left: nothing.

mod ground;
#[path = "../host/mod.rs"]
#[expect(dead_code, reason = "other suites use more of it")]
mod host;
mod points;
mod tracer;

use ground::Ground;
use points::{Named, calls};
use tracer::Role;

/// Leaves processes behind that took care not to be found: other sessions, no parent, no terminal.
const LEAVES_DAEMONS: &str = "setsid -f sleep 1000; (setsid sleep 1000 &); echo out; sleep 0.01";
const RUN: &[&str] = &["run", "--", "sh", "-c", LEAVES_DAEMONS];
const KEEP: &[&str] = &["run", "--keep", "--", "sh", "-c", LEAVES_DAEMONS];

const EVERYBODY: &[Role] = &[Role::Caller, Role::Launcher, Role::Builder, Role::Pid1];
/// Of a sandbox that was made before, pid 1 is not a child of this launcher.
const NEWCOMERS: &[Role] = &[Role::Caller, Role::Launcher];

#[test]
fn crash_of_any_process_while_a_command_runs_leaves_nothing_behind() {
    let Some(ground) = Ground::new() else { return };
    ground.crash_all_over(0.4, EVERYBODY, |_| arguments(RUN), |ground, _| ground.sweep_and_count(&[]));
}

#[test]
fn crash_while_a_durable_sandbox_is_made_leaves_a_whole_one_or_none() {
    let Some(ground) = Ground::new() else { return };
    let check = |ground: &Ground, _: &[String]| {
        ground.sweep();
        let kept = ground.listed();
        for id in &kept {
            ground.answers_or_ended(id);
        }
        ground.count(&kept);
        for id in &kept {
            ground.remove(id);
        }
        ground.count(&[]);
    };
    ground.crash_all_over(0.3, EVERYBODY, |_| arguments(KEEP), check);
}

#[test]
fn crash_while_a_sandbox_is_removed_leaves_nothing_behind_or_all_of_it() {
    let Some(ground) = Ground::new() else { return };
    let check = |ground: &Ground, command: &[String]| {
        let id = &command[1];
        ground.sweep();
        // Removal may not have begun; then the sandbox is whole, and a second request removes it.
        let kept = ground.listed();
        ground.count(&kept);
        ground.remove(id);
        ground.count(&[]);
    };
    ground.crash_all_over(0.1, NEWCOMERS, |ground| vec!["rm".into(), ground.keep()], check);
}

#[test]
fn crash_of_whoever_uses_a_durable_sandbox_does_not_end_it() {
    let Some(ground) = Ground::new() else { return };
    let check = |ground: &Ground, command: &[String]| {
        let id = &command[1];
        ground.sweep();
        assert_eq!(ground.listed(), std::slice::from_ref(id));
        ground.still_counts(id);
        ground.count(std::slice::from_ref(id));
        ground.remove(id);
    };
    let command = |ground: &Ground| {
        let id = ground.keep();
        ground.start_counting(&id);
        ["exec", &id, "--", "sh", "-c", "echo out; sleep 0.01"].map(str::to_owned).into()
    };
    ground.crash_all_over(0.1, NEWCOMERS, command, check);
}

#[test]
fn crash_of_a_sweep_is_mended_by_the_next_one() {
    let Some(ground) = Ground::new() else { return };
    let command = |ground: &Ground| {
        ground.make_a_mess();
        vec!["gc".into()]
    };
    ground.crash_all_over(0.1, NEWCOMERS, command, |ground, _| ground.sweep_and_count(&[]));
}

#[test]
fn crash_at_each_named_step_leaves_nothing_behind() {
    let Some(ground) = Ground::new() else { return };
    let named = |what, role, call, nth| Named { what, role, call, nth };
    let table = [
        named("the caller, before it asks for anything", Role::Caller, calls::SENDMSG, 1),
        named("the caller, before it asks for a root", Role::Caller, calls::SENDMSG, 2),
        named("the caller, before it gives up its rights or asks further", Role::Caller, calls::SENDMSG, 3),
        named("the launcher, before it is told what to do", Role::Launcher, calls::RECVMSG, 1),
        named("the launcher, before it makes the first directory", Role::Launcher, calls::MKDIRAT, 1),
        named("the launcher, before it makes a slot", Role::Launcher, calls::MKDIRAT, 3),
        named("the launcher, before it forks an embryo", Role::Launcher, calls::CLONE3, 1),
        named("the launcher, before it hands over the plan", Role::Launcher, calls::SENDMSG, 3),
        named("the launcher, before it publishes the sandbox", Role::Launcher, calls::SYMLINKAT, 1),
        named("the launcher, before it kills the sandbox", Role::Launcher, calls::PIDFD_SEND_SIGNAL, 1),
        named("the launcher, before it takes back the name", Role::Launcher, calls::UNLINKAT, 1),
        named("the launcher, before it removes the journal", Role::Launcher, calls::UNLINKAT, 2),
        named("the launcher, before it removes the slot", Role::Launcher, calls::UNLINKAT, 4),
        named("whoever builds the root, before its first directory", Role::Builder, calls::MKDIRAT, 1),
        named("whoever builds the root, before it enters it", Role::Builder, calls::PIVOT_ROOT, 1),
        named("an embryo, before it does anything", Role::Pid1, calls::OPENAT, 1),
        named("an embryo, before it makes the control socket", Role::Pid1, calls::BIND, 1),
        named("an embryo, before it ends what is in its user namespace", Role::Pid1, calls::KILL, 1),
        named("an embryo, before it makes its other namespaces", Role::Pid1, calls::UNSHARE, 1),
        named("an embryo, before it says that it is prepared", Role::Pid1, calls::SENDMSG, 1),
        named("an embryo, before it knows its plan", Role::Pid1, calls::RECVMSG, 1),
        named("pid 1, before it enters the root", Role::Pid1, calls::SETNS, 1),
        named("pid 1, before it copies the root", Role::Pid1, calls::UNSHARE, 3),
        named("pid 1, before its first mount", Role::Pid1, calls::MOUNT, 1),
        named("pid 1, before it enters its user namespace", Role::Pid1, calls::SETNS, 2),
        named("pid 1, before its filter", Role::Pid1, calls::SECCOMP, 1),
        named("pid 1, before it says that it is ready", Role::Pid1, calls::SENDMSG, 2),
        named("pid 1, before it knows that it is published", Role::Pid1, calls::RECVMSG, 2),
        named("pid 1, before it waits for its first request", Role::Pid1, calls::EPOLL_WAIT, 1),
    ];
    for point in table {
        ground.crash_at(&arguments(RUN), point);
        ground.sweep_and_count(&[]);
    }
}

fn arguments(all: &[&str]) -> Vec<String> {
    all.iter().map(|argument| (*argument).to_owned()).collect()
}
