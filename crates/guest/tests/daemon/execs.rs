use std::io::Write;

use cubicle_guest::journal::Kind;
use cubicle_model::ExecId;
use serde_json::json;

use crate::support::*;

#[test]
fn a_shell_string_and_an_argument_list_run() {
    let sandbox = Sandbox::start();
    let frames = sandbox.shell("echo out; echo err >&2; exit 3");
    assert_eq!(stdout(&frames), "out\n");
    assert_eq!(output(&frames, Kind::Stderr), b"err\n");
    assert_eq!(exit(&frames), json!({ "code": 3 }));
    assert_eq!(payload(&frames, Kind::Eof), json!({ "stdout": 4, "stderr": 4 }));
    let frames = sandbox.run(&json!({ "command": ["printf", "%s|", "a b", "", "$HOME"], "cwd": "/" }));
    assert_eq!(stdout(&frames), "a b||$HOME|");
}

#[test]
fn the_kinds_come_in_order_and_seqs_grow_by_one() {
    let sandbox = Sandbox::start();
    let frames = sandbox.shell("echo x");
    let kinds: Vec<Kind> = frames.iter().map(|frame| frame.kind).collect();
    assert_eq!(kinds, [Kind::Start, Kind::Stdout, Kind::Exit, Kind::Eof]);
    assert!(frames.windows(2).all(|pair| pair[1].seq == pair[0].seq + 1));
}

#[test]
fn environment_and_working_directory_are_those_asked_for() {
    let sandbox = Sandbox::start_with(&["--env", "FROM=default", "--env", "KEPT=yes"]);
    let spec = json!({ "command": "pwd; echo $FROM $KEPT $OWN", "cwd": "/usr", "env": { "FROM": "exec", "OWN": "1" } });
    assert_eq!(stdout(&sandbox.run(&spec)), "/usr\nexec yes 1\n");
    let bound = sandbox.json("POST", "/bind", &json!({ "env": { "KEPT": "bound" } }));
    assert_eq!(bound.status, 200);
    assert_eq!(stdout(&sandbox.run(&spec)), "/usr\nexec bound 1\n");
}

#[test]
fn nothing_of_the_daemon_is_inherited() {
    let sandbox = Sandbox::start();
    let frames =
        sandbox.shell("ls /proc/self/fd; grep -E 'Sig(Blk|Ign)' /proc/self/status; env | cut -d= -f1 | sort");
    let text = stdout(&frames);
    // `ls` itself has the directory open as 3.
    assert!(text.starts_with("0\n1\n2\n3\nSig"), "{text}");
    assert!(text.contains("SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n"), "{text}");
    assert!(!text.contains("CARGO"), "{text}");
}

#[test]
fn a_signal_is_reported_as_one() {
    let sandbox = Sandbox::start();
    assert_eq!(exit(&sandbox.shell("kill -SEGV $$")), json!({ "signal": 11 }));
}

#[test]
fn a_timeout_ends_also_a_daemonised_grandchild() {
    let sandbox = Sandbox::start();
    let pid_file = sandbox.directory.path().join("pid");
    let script = format!(
        "setsid sh -c 'setsid sleep 1000 >/dev/null 2>&1 & echo $! > {0}.new; mv {0}.new {0}' & \
         while ! [ -e {0} ]; do sleep 0.01; done; trap '' TERM; echo ready; while :; do sleep 0.1; done",
        pid_file.display()
    );
    let frames = sandbox.run(&json!({ "command": script, "cwd": "/", "timeout_seconds": 1.0 }));
    assert_eq!(exit(&frames), json!("timed_out"));
    assert_eq!(payload(&frames, Kind::Exit)["timed_out"], json!(true));
    assert_eq!(stdout(&frames), "ready\n");
    let pid: i32 = std::fs::read_to_string(&pid_file).unwrap().trim().parse().unwrap();
    wait_until("the daemonised process is gone", || !is_alive(pid));
}

#[test]
fn a_timeout_that_is_obeyed_is_still_a_timeout() {
    let sandbox = Sandbox::start();
    let script = "trap 'echo bye; exit 0' TERM; while :; do sleep 0.02; done";
    let frames = sandbox.run(&json!({ "command": script, "cwd": "/", "timeout_seconds": 0.3 }));
    assert_eq!((exit(&frames), stdout(&frames).as_str()), (json!("timed_out"), "bye\n"));
}

#[test]
fn a_grandchild_that_holds_the_pipe_does_not_hold_back_the_exit() {
    let sandbox = Sandbox::start();
    let id = sandbox.background(&json!({ "command": "sleep 1000 & echo started", "cwd": "/" }));
    let status = sandbox.wait_for(id, "exit");
    assert_eq!((&status["exit"], &status["state"]), (&json!({ "code": 0 }), &json!("exited")));
    let reply = sandbox.request("GET", &format!("/exec/{id}?until=exit"), b"");
    assert!(reply.text().ends_with("{\"exit\":0}\n"), "{}", reply.text());
    assert_eq!(sandbox.request("DELETE", &format!("/exec/{id}?grace_seconds=0"), b"").status, 202);
    let status = sandbox.wait_for(id, "eof");
    assert_eq!((&status["state"], &status["output"]["stdout"]), (&json!("ended"), &json!(8)));
}

#[test]
fn a_command_that_closes_its_output_lives_on() {
    let sandbox = Sandbox::start();
    let id = sandbox
        .background(&json!({ "command": "exec >&- 2>&-; read x; exit 9", "cwd": "/", "stdin": "stream" }));
    assert_eq!(sandbox.status(id)["state"], json!("running"));
    assert_eq!(sandbox.request("POST", &format!("/exec/{id}/stdin"), b"go\n").status, 200);
    assert_eq!(sandbox.wait_for(id, "eof")["exit"], json!({ "code": 9 }));
}

#[test]
fn a_background_descendant_lives_on_after_the_exec_until_it_is_ended() {
    let sandbox = Sandbox::start();
    let id = sandbox.background(&json!({ "command": "sleep 1000 >/dev/null 2>&1 & echo $!", "cwd": "/" }));
    sandbox.wait_for(id, "eof");
    let reply = sandbox.connect().request(
        "GET",
        &format!("/exec/{id}"),
        "Accept: application/x-cubicle-journal\r\n",
        b"",
    );
    let pid: i32 = stdout(&frames(&reply.body)).trim().parse().unwrap();
    assert!(is_alive(pid));
    sandbox.request("DELETE", &format!("/exec/{id}"), b"");
    wait_until("the descendant is gone", || !is_alive(pid));
}

#[test]
fn a_signal_reaches_the_whole_tree() {
    let sandbox = Sandbox::start();
    let script = "setsid sh -c 'trap \"echo inner; exit\" USR1; echo r; while :; do sleep 0.02; done' & \
                  trap 'echo outer; wait; exit 5' USR1; echo r; while :; do sleep 0.02; done";
    let id = sandbox.background(&json!({ "command": script, "cwd": "/" }));
    wait_until("both wait", || sandbox.status(id)["output"]["stdout"] == json!(4));
    let reply = sandbox.json("POST", &format!("/exec/{id}/signal"), &json!({ "signal": "SIGUSR1" }));
    assert_eq!(reply.status, 200, "{}", reply.text());
    let status = sandbox.wait_for(id, "eof");
    assert_eq!((&status["exit"], &status["output"]["stdout"]), (&json!({ "code": 5 }), &json!(16)));
    let reply = sandbox.json("POST", &format!("/exec/{id}/signal"), &json!({ "signal": 15 }));
    assert_eq!((reply.status, reply.code().as_str()), (409, "exec_ended"));
}

#[test]
fn a_repeated_id_attaches_and_runs_nothing() {
    let sandbox = Sandbox::start();
    let marker = sandbox.directory.path().join("marker");
    let id = ExecId::from_random([1; 16]);
    let spec =
        json!({ "command": format!("echo x >> {}; echo done", marker.display()), "cwd": "/", "exec_id": id });
    let first = sandbox.run(&spec);
    let second = sandbox.run(&spec);
    assert_eq!(first, second);
    assert_eq!(std::fs::read_to_string(marker).unwrap(), "x\n");
    assert_eq!(sandbox.json("POST", "/exec?background=true", &spec).status, 200);
}

#[test]
fn a_hundred_execs_run_at_once() {
    let sandbox = Sandbox::start();
    let gate = sandbox.directory.path().join("gate");
    let script = format!("while ! [ -e {} ]; do sleep 0.05; done; echo $N", gate.display());
    let ids: Vec<ExecId> = (0..100)
        .map(|n| sandbox.background(&json!({ "command": script, "cwd": "/", "env": { "N": n.to_string() } })))
        .collect();
    assert_eq!(sandbox.request("GET", "/health", b"").value()["execs_running"], json!(100));
    std::fs::write(gate, "").unwrap();
    for (n, id) in ids.into_iter().enumerate() {
        assert_eq!(sandbox.wait_for(id, "eof")["exit"], json!({ "code": 0 }));
        let text = sandbox.request("GET", &format!("/exec/{id}"), b"").text();
        assert!(text.contains(&format!("\"text\":\"{n}\\n\"")), "{text}");
    }
}

#[test]
fn standard_input_is_text_or_a_stream_or_nothing() {
    let sandbox = Sandbox::start();
    let cat = |stdin: serde_json::Value| json!({ "command": ["cat"], "cwd": "/", "stdin": stdin });
    assert_eq!(stdout(&sandbox.run(&cat(json!("closed")))), "");
    assert_eq!(stdout(&sandbox.run(&cat(json!({ "text": "a\nb" })))), "a\nb");
    let long = "x".repeat(700_000);
    assert_eq!(stdout(&sandbox.run(&cat(json!({ "text": long })))), long);
    let id = sandbox.background(&cat(json!("stream")));
    for piece in ["one ", "two "] {
        let reply = sandbox.request("POST", &format!("/exec/{id}/stdin"), piece.as_bytes());
        assert_eq!(reply.value(), json!({ "written": 4 }));
    }
    sandbox.request("POST", &format!("/exec/{id}/stdin?close=true"), b"three");
    assert_eq!(sandbox.wait_for(id, "eof")["output"]["stdout"], json!(13));
    let late = sandbox.request("POST", &format!("/exec/{id}/stdin"), b"x");
    assert_eq!((late.status, late.code().as_str()), (409, "stdin_closed"));
}

#[test]
fn more_input_than_fits_waits_for_the_process_and_blocks_nobody() {
    let sandbox = Sandbox::start();
    let gate = sandbox.directory.path().join("gate");
    let script = format!("while ! [ -e {} ]; do sleep 0.02; done; wc -c", gate.display());
    let id = sandbox.background(&json!({ "command": script, "cwd": "/", "stdin": "stream" }));
    let body = vec![b'y'; 5_000_000];
    let mut feeder = sandbox.connect();
    let feeding = std::thread::spawn(move || {
        feeder.request("POST", &format!("/exec/{id}/stdin?close=true"), "", &body).value()
    });
    // The daemon answers others while it holds what the process does not read.
    assert_eq!(stdout(&sandbox.shell("echo alive")), "alive\n");
    std::fs::write(gate, "").unwrap();
    assert_eq!(feeding.join().unwrap(), json!({ "written": 5_000_000 }));
    sandbox.wait_for(id, "eof");
    assert!(sandbox.request("GET", &format!("/exec/{id}"), b"").text().contains("5000000"));
}

#[test]
fn input_for_a_process_that_ends_without_reading_it_is_refused() {
    let sandbox = Sandbox::start();
    let id = sandbox.background(&json!({ "command": "exec <&-; sleep 0.2", "cwd": "/", "stdin": "stream" }));
    let reply = sandbox.request("POST", &format!("/exec/{id}/stdin"), &vec![b'z'; 3_000_000]);
    assert_eq!((reply.status, reply.code().as_str()), (409, "stdin_closed"));
}

#[test]
fn a_chunked_body_feeds_standard_input_as_it_comes() {
    let sandbox = Sandbox::start();
    let id = sandbox.background(&json!({ "command": "cat", "cwd": "/", "stdin": "stream" }));
    let mut client = sandbox.connect();
    let head = format!("POST /exec/{id}/stdin?close=true HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n");
    client.stream.get_mut().write_all(head.as_bytes()).unwrap();
    client.stream.get_mut().write_all(b"3\r\nabc\r\n").unwrap();
    wait_until("the first chunk came through", || sandbox.status(id)["output"]["stdout"] == json!(3));
    client.stream.get_mut().write_all(b"2\r\nde\r\n0\r\n\r\n").unwrap();
    assert_eq!(client.reply().value(), json!({ "written": 5 }));
    assert_eq!(sandbox.wait_for(id, "eof")["output"]["stdout"], json!(5));
}

#[test]
fn a_terminal_is_one_and_can_be_resized() {
    let sandbox = Sandbox::start();
    let script =
        "test -t 0 && test -t 1 && test -t 2 && stty size && tty && read x && stty size && echo got $x";
    let spec =
        json!({ "command": script, "cwd": "/", "tty": { "rows": 30, "columns": 100 }, "stdin": "stream" });
    let id = sandbox.background(&spec);
    wait_until("it asks", || sandbox.status(id)["output"]["stdout"].as_u64().unwrap() > 10);
    let resized = sandbox.json("POST", &format!("/exec/{id}/resize"), &json!({ "rows": 50, "columns": 200 }));
    assert_eq!(resized.status, 200, "{}", resized.text());
    sandbox.request("POST", &format!("/exec/{id}/stdin"), b"hi\n");
    assert_eq!(sandbox.wait_for(id, "eof")["exit"], json!({ "code": 0 }));
    let reply = sandbox.connect().request(
        "GET",
        &format!("/exec/{id}"),
        "Accept: application/x-cubicle-journal\r\n",
        b"",
    );
    let text = stdout(&frames(&reply.body));
    assert!(text.starts_with("30 100\r\n/dev/pts/") && text.ends_with("50 200\r\ngot hi\r\n"), "{text:?}");
}

#[test]
fn control_c_typed_at_a_terminal_interrupts() {
    let sandbox = Sandbox::start();
    let script = "trap 'exit 42' INT; echo r; while :; do sleep 0.02; done";
    let spec =
        json!({ "command": script, "cwd": "/", "tty": { "rows": 24, "columns": 80 }, "stdin": "stream" });
    let id = sandbox.background(&spec);
    wait_until("it runs", || sandbox.status(id)["output"]["stdout"] == json!(3));
    sandbox.request("POST", &format!("/exec/{id}/stdin"), b"\x03");
    assert_eq!(sandbox.wait_for(id, "eof")["exit"], json!({ "code": 42 }));
}

#[test]
fn ending_an_exec_kills_what_ignores_being_told() {
    let sandbox = Sandbox::start();
    let id = sandbox.background(
        &json!({ "command": "trap '' TERM INT HUP; echo r; while :; do sleep 0.05; done", "cwd": "/" }),
    );
    wait_until("it runs", || sandbox.status(id)["output"]["stdout"] == json!(2));
    assert_eq!(sandbox.request("DELETE", &format!("/exec/{id}?grace_seconds=0.1"), b"").status, 202);
    assert_eq!(sandbox.wait_for(id, "eof")["exit"], json!({ "signal": 9 }));
}

#[test]
fn a_tree_that_forks_all_the_time_is_ended_whole() {
    let sandbox = Sandbox::start();
    let script = "f() { (sleep 0.3; f) & (sleep 0.3; f) & sleep 0.2; }; f; f; f; sleep 1000";
    let id = sandbox.background(&json!({ "command": script, "cwd": "/" }));
    let number = sandbox.status(id)["exec"].as_u64().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(700));
    sandbox.request("DELETE", &format!("/exec/{id}?grace_seconds=0"), b"");
    sandbox.wait_for(id, "eof");
    let tag = (u64::from(sandbox.daemon_pid()) << 32 | number).to_string();
    let tagged = || {
        std::fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .filter(|entry| {
                std::fs::read_to_string(entry.path().join("limits")).is_ok_and(|limits| limits.contains(&tag))
            })
            .count()
    };
    wait_until("nothing of it is left", || tagged() == 0);
}

#[test]
fn orphans_are_reaped() {
    let sandbox = Sandbox::start();
    let frames = sandbox.shell("for i in 1 2 3 4 5; do (sleep 0.05 & echo $!) ; done");
    let pids: Vec<i32> = stdout(&frames).lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(pids.len(), 5);
    wait_until("no zombie is left", || {
        pids.iter().all(|pid| !std::path::Path::new(&format!("/proc/{pid}")).exists())
    });
}

#[test]
fn too_many_execs_are_refused_at_once() {
    let sandbox = Sandbox::start();
    for _ in 0..256 {
        sandbox.background(&json!({ "command": ["sleep", "1000"], "cwd": "/" }));
    }
    let reply = sandbox.json("POST", "/exec", &json!({ "command": "true", "cwd": "/" }));
    assert_eq!((reply.status, reply.code().as_str()), (429, "too_many_execs"));
}

#[test]
fn the_workload_is_another_user_without_groups_and_capabilities() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root to have two users");
        return;
    }
    let sandbox = Sandbox::start_with(&["--workload-uid", "4242", "--workload-gid", "4243"]);
    let shared = sandbox.directory.path().join("shared");
    let private = sandbox.directory.path().join("private");
    for (path, mode) in [(sandbox.directory.path(), 0o755), (&shared, 0o777), (&private, 0o755)] {
        std::fs::create_dir_all(path).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let text = stdout(&sandbox.shell("id -u; id -G; grep -E 'Cap(Inh|Prm|Eff|Amb)' /proc/self/status"));
    assert!(text.starts_with("4242\n4243\n"), "{text}");
    assert_eq!(text.matches("0000000000000000").count(), 4, "{text}");
    let spec = json!({ "command": "stat -c %u $(tty)", "cwd": "/", "tty": { "rows": 24, "columns": 80 } });
    assert_eq!(stdout(&sandbox.run(&spec)), "4242\r\n");
    let put = |directory: &std::path::Path| {
        sandbox.request("PUT", &format!("/files/{}/new", directory.display()), b"x")
    };
    assert!(put(&shared).status < 300);
    let made = std::fs::metadata(shared.join("new")).unwrap();
    assert_eq!((made.uid(), made.gid()), (4242, 4243));
    assert_eq!((put(&private).status, put(&private).code().as_str()), (403, "permission_denied"));
    // It can neither signal the daemon nor look into it.
    let pid = sandbox.daemon_pid();
    let script = format!("kill -9 {pid}; cat /proc/{pid}/environ; ls /proc/{pid}/fd; ls -l /proc/{pid}/exe");
    let frames = sandbox.shell(&format!("{{ {script}; }} 2>&1"));
    let refused = stdout(&frames).matches("ermi").count();
    assert_eq!(refused, 4, "{}", stdout(&frames));
    // What it left behind is still found and ended.
    let id =
        sandbox.background(&json!({ "command": "setsid sleep 1000 >/dev/null 2>&1 & echo $!", "cwd": "/" }));
    sandbox.wait_for(id, "eof");
    let reply = sandbox.connect().request(
        "GET",
        &format!("/exec/{id}"),
        "Accept: application/x-cubicle-journal\r\n",
        b"",
    );
    let pid: i32 = stdout(&frames_of(&reply)).trim().parse().unwrap();
    sandbox.request("DELETE", &format!("/exec/{id}"), b"");
    wait_until("the descendant is gone", || !is_alive(pid));
}

fn frames_of(reply: &Reply) -> Vec<Frame> {
    frames(&reply.body)
}
