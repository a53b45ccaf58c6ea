//! Using everything up.

use cubicle_backend::{Backend, State};
use cubicle_guest::client::{OutputLimits, WriteFile};
use cubicle_model::{Command, ExecSpec, Exit, LimitRequest};
use rustix::io::Errno;

use crate::arena::{Arena, intruder, report, skip};

const MIB: u64 = 1024 * 1024;
const ENOSPC: i32 = Errno::NOSPC.raw_os_error();

#[test]
fn fork_bomb_ends_at_the_limit_and_harms_nobody() {
    let Some(arena) = Arena::enter() else { return };
    let sandbox = arena.fresh(LimitRequest { pids: Some(64), ..LimitRequest::default() });
    let (count, errno) = report(&arena.run(sandbox.id, &intruder(&["fork-bomb"]))).counted();
    assert_eq!(errno, Errno::AGAIN.raw_os_error());
    assert!(count < 64, "{count} processes");
    arena.answers(sandbox.id);
    arena.unharmed();
}

#[test]
fn memory_bomb_is_reported_as_out_of_memory_and_the_sandbox_survives() {
    let Some(arena) = Arena::enter() else { return };
    if !arena.has_cgroups() {
        return skip("no memory limit can be enforced here");
    }
    let sandbox = arena.fresh(LimitRequest { memory: Some(64 * MIB), ..LimitRequest::default() });
    let outcome = arena.run(sandbox.id, &intruder(&["memory-bomb"]));
    assert_eq!(outcome.exit, Exit::Oom);
    assert_eq!(arena.shell(sandbox.id, "echo alive").stdout, b"alive\n");
    arena.unharmed();
}

#[test]
fn memory_bomb_of_files_ends_the_sandbox_at_worst() {
    let Some(arena) = Arena::enter() else { return };
    if !arena.has_cgroups() {
        return skip("no memory limit can be enforced here");
    }
    let sandbox = arena.fresh(LimitRequest { memory: Some(64 * MIB), ..LimitRequest::default() });
    let outcome =
        arena.wait(sandbox.guest().run(&intruder(&["fill", "/dev/shm/bomb"]), OutputLimits::default()));
    let filled = outcome.ok().is_some_and(|outcome| outcome.exit == Exit::Code(0));
    assert!(!filled, "half a gibibyte fitted into 64 MiB");
    let seen =
        arena.wait(arena.backend.observe(sandbox.id)).expect("it can be looked at").expect("it is there");
    assert!(matches!(seen.state, State::Ready | State::Ended));
    arena.unharmed();
}

#[test]
fn disk_fill_ends_at_the_size_of_the_workspace() {
    let Some(arena) = Arena::enter() else { return };
    let sandbox = arena.fresh(LimitRequest { workspace: Some(8 * MIB), ..LimitRequest::default() });
    let (bytes, errno) = sandbox.attack(&["fill", "/workspace/full"]).counted();
    assert_eq!(errno, ENOSPC);
    assert!(bytes <= 8 * MIB, "{bytes} bytes");
    // The guest does its work all the same, and says what is wrong when it cannot.
    assert_eq!(arena.shell(sandbox.id, "echo alive").stdout, b"alive\n");
    let refused =
        arena.wait(sandbox.guest().write_file("/workspace/more", &[1; 65536], WriteFile::default()));
    assert!(refused.is_err());
    arena.unharmed();
}

#[test]
fn disk_fill_ends_at_the_size_of_tmp_wherever_it_is_tried() {
    let Some(arena) = Arena::enter() else { return };
    let sandbox = arena.fresh(LimitRequest { tmp: Some(32 * MIB), ..LimitRequest::default() });
    let mut sum = 0;
    for place in ["/tmp/full", "/var/tmp/more", "/dev/shm/full", "/home/agent/full"] {
        let (bytes, errno) = sandbox.attack(&["fill", place]).counted();
        assert_eq!(errno, ENOSPC, "{place}");
        sum += bytes;
    }
    assert!(sum <= 32 * MIB, "{sum} bytes");
}

#[test]
fn inode_fill_ends_at_a_limit() {
    let Some(arena) = Arena::enter() else { return };
    let sandbox = arena.fresh(LimitRequest {
        workspace: Some(8 * MIB),
        tmp: Some(32 * MIB),
        ..LimitRequest::default()
    });
    let (count, errno) = sandbox.attack(&["fill-inodes", "/workspace"]).counted();
    assert_eq!(errno, ENOSPC);
    assert!(count <= 8 * MIB / 4096, "{count} files");
    let (count, errno) = sandbox.attack(&["fill-inodes", "/dev/shm"]).counted();
    assert_eq!(errno, ENOSPC);
    assert!(count <= 32 * MIB / 4096, "{count} files");
}

#[test]
fn descriptors_run_out_for_the_greedy_process_alone() {
    let Some(arena) = Arena::enter() else { return };
    let sandbox = arena.fresh(LimitRequest { open_files: Some(128), ..LimitRequest::default() });
    let (count, errno) = sandbox.attack(&["descriptors-to-the-limit"]).counted();
    assert_eq!(errno, Errno::MFILE.raw_os_error());
    assert!(count < 128, "{count} descriptors");
    arena.answers(sandbox.id);
}

#[test]
fn journal_flood_ends_at_the_limit_of_the_journal() {
    let Some(arena) = Arena::enter() else { return };
    let sandbox = arena.fresh(LimitRequest { journal: Some(MIB), ..LimitRequest::default() });
    let outcome = arena.run(sandbox.id, &intruder(&["shout", "20000000"]));
    assert_eq!(outcome.exit, Exit::Code(0));
    assert!(outcome.stdout_truncated);
    assert_eq!(outcome.written.stdout, 20_000_000);
    let journal = arena.wait(sandbox.guest().health()).expect("pid 1 answers").journal;
    assert!(journal.bytes <= MIB, "{} bytes", journal.bytes);
    arena.unharmed();
}

#[test]
fn exec_flood_ends_at_a_limit_and_pid_1_answers() {
    let Some(arena) = Arena::enter() else { return };
    let sandbox = arena.fresh(LimitRequest { pids: Some(4000), ..LimitRequest::default() });
    let guest = sandbox.guest();
    let spec = ExecSpec::new(Command::Argv(vec!["sleep".into(), "30".into()]));
    let refused = arena.wait(async {
        for _ in 0..400 {
            if let Err(refused) = guest.exec_in_background(&spec).await {
                return Some(refused);
            }
        }
        None
    });
    let refused = refused.expect("there is a limit");
    assert_eq!(refused.code(), Some("too_many_execs"), "{refused}");
    arena.answers(sandbox.id);
    arena.unharmed();
}

#[test]
fn very_deep_directories_do_not_harm_the_file_api() {
    let Some(arena) = Arena::enter() else { return };
    let sandbox = arena.fresh(LimitRequest::default());
    let report = sandbox.attack(&["deep-directories", "4000"]);
    assert_eq!(report.saw(), "4000");
    let name = "/workspace/a-directory-with-quite-a-long-name";
    let guest = sandbox.guest();
    // Whatever the answers are, they come, and pid 1 goes on.
    let _ = arena.wait(guest.list("/workspace", true));
    let _ = arena.wait(guest.remove(name, true));
    arena.answers(sandbox.id);
    arena.unharmed();
}

#[test]
fn pipe_in_the_way_does_not_hang_the_file_api() {
    let Some(arena) = Arena::enter() else { return };
    let sandbox = arena.fresh(LimitRequest::default());
    arena.shell(sandbox.id, "mkfifo /workspace/pipe; ln -s pipe /workspace/link; ln -s loop /workspace/loop");
    let guest = sandbox.guest();
    for path in ["/workspace/pipe", "/workspace/link", "/workspace/loop", "/dev/zero", "/dev/tty"] {
        assert!(arena.wait(guest.read_file(path, None, 16)).is_err(), "{path}");
    }
    arena.wait(guest.get_archive("/workspace")).expect("what is no file is left out");
    arena.answers(sandbox.id);
}
