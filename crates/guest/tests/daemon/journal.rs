use std::os::fd::AsFd;

use cubicle_guest::journal::Kind;
use cubicle_model::ExecId;
use serde_json::json;

use crate::support::*;

#[test]
fn output_beyond_the_limit_is_counted_but_not_kept_and_holds_up_nothing() {
    let sandbox = Sandbox::start_with(&["--journal-limit", "300000"]);
    let frames = sandbox.shell("head -c 3000000 /dev/zero; echo tail >&2; exit 6");
    let kept = output(&frames, Kind::Stdout).len() as u64;
    assert!((200_000..300_000).contains(&kept), "{kept}");
    let truncated: Vec<&Frame> = frames.iter().filter(|frame| frame.kind == Kind::Truncated).collect();
    assert_eq!(truncated[0].stream_offset, kept);
    assert_eq!(exit(&frames), json!({ "code": 6 }));
    assert_eq!(payload(&frames, Kind::Eof), json!({ "stdout": 3_000_000, "stderr": 5 }));
    assert!(std::fs::metadata(sandbox.journal_path()).unwrap().len() <= 300_000);
}

#[test]
fn a_full_journal_refuses_new_execs_and_says_why() {
    let sandbox = Sandbox::start_with(&["--journal-limit", "70000"]);
    let mut refused = None;
    for _ in 0..300 {
        let reply = sandbox.json("POST", "/exec", &json!({ "command": ["true"], "cwd": "/" }));
        if reply.status != 200 {
            refused = Some(reply);
            break;
        }
    }
    let refused = refused.expect("a journal of 70 kB does not hold 300 execs");
    assert_eq!((refused.status, refused.code().as_str()), (507, "journal_full"));
    let ended = sandbox.journal().iter().filter(|frame| frame.kind == Kind::Eof).count();
    let started = sandbox.journal().iter().filter(|frame| frame.kind == Kind::Start).count();
    assert_eq!(started, ended);
}

#[test]
fn the_journal_and_its_execs_survive_the_daemon() {
    let sandbox = Sandbox::start();
    let done = ExecId::from_random([5; 16]);
    let first = sandbox.run(&json!({ "command": "echo kept", "cwd": "/", "exec_id": done }));
    let cut = sandbox.background(&json!({ "command": "echo begun; exec sleep 5", "cwd": "/" }));
    wait_until("it printed", || sandbox.status(cut)["output"]["stdout"] == json!(6));
    let sandbox = sandbox.restart();
    assert_eq!(sandbox.run(&json!({ "command": "echo kept", "cwd": "/", "exec_id": done })), first);
    let status = sandbox.status(cut);
    assert_eq!((&status["state"], &status["exit"]), (&json!("ended"), &json!("unknown")));
    assert_eq!(stdout(&sandbox.shell("echo new")), "new\n");
    let seqs: Vec<u64> = sandbox.journal().iter().map(|frame| frame.seq).collect();
    assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>());
}

#[test]
fn the_holder_of_a_journal_is_found_through_its_lock() {
    let mut sandbox = Sandbox::start();
    sandbox.shell("true");
    let file = std::fs::File::open(sandbox.journal_path()).unwrap();
    let holder = || cubicle_sys::lock::holder(file.as_fd()).unwrap();
    assert_eq!(holder(), Some(sandbox.daemon_pid() as i32));
    sandbox.json("POST", "/deadline", &json!({ "seconds": 0 }));
    sandbox.wait_for_end();
    assert_eq!(holder(), None);
}

#[test]
fn a_full_disk_loses_output_visibly_and_the_exec_still_ends() {
    // A filesystem of its own needs root; `skipped` is printed where that is missing.
    let mount = tempfile::tempdir().unwrap();
    let flags = rustix::mount::MountFlags::empty();
    if rustix::mount::mount("tmpfs", mount.path(), "tmpfs", flags, c"size=1m").is_err() {
        eprintln!("skipped: needs the right to mount a tmpfs");
        return;
    }
    let journal = mount.path().join("journal");
    let sandbox = Sandbox::start_with(&["--journal", journal.to_str().unwrap()]);
    let frames = sandbox.shell("head -c 5000000 /dev/zero; exit 3");
    assert_eq!(exit(&frames), json!({ "code": 3 }));
    assert_eq!(payload(&frames, Kind::Eof)["stdout"], json!(5_000_000));
    let lost: u64 = frames
        .iter()
        .filter(|frame| frame.kind == Kind::Lost)
        .map(|frame| {
            serde_json::from_slice::<serde_json::Value>(&frame.payload).unwrap()["stdout"].as_u64().unwrap()
        })
        .sum();
    assert_eq!(output(&frames, Kind::Stdout).len() as u64 + lost, 5_000_000);
    assert!(lost > 0);
    drop(sandbox);
    rustix::mount::unmount(mount.path(), rustix::mount::UnmountFlags::DETACH).unwrap();
}
