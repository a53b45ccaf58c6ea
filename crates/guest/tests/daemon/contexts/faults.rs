//! Interpreters that die, hang or lie.

use std::io::Write;

use serde_json::{Value, json};

use crate::support::{Sandbox, wait_until};

/// User code finds the channel: the one socket among its descriptors.
const FIND_CHANNEL: &str = "import os, stat\nfd = next(n for n in range(3, 64) if os.path.exists('/proc/self/fd/%d' % n) and stat.S_ISSOCK(os.fstat(n).st_mode))";

#[test]
fn a_context_whose_process_died_says_so_and_can_be_restarted() {
    let sandbox = Sandbox::start();
    for code in [
        "import os; print('x', flush=True); os._exit(3)",
        "import os; print('x', flush=True); os.kill(os.getpid(), 9)",
    ] {
        let id = sandbox.python();
        sandbox.cell(&id, "kept = 1");
        let ran = sandbox.cell(&id, code);
        assert_eq!((ran.status(), ran.stdout.as_str()), ("died", "x\n"), "{code}");
        assert_eq!(sandbox.context_state(&id), "dead");
        for target in ["execute", "interrupt"] {
            let refused = sandbox.request("POST", &format!("/contexts/{id}/{target}"), br#"{"code": "1"}"#);
            assert_eq!((refused.status, refused.code().as_str()), (409, "context_dead"), "{target}");
            assert!(refused.value()["error"]["hint"].as_str().unwrap().contains("restart"));
        }
        let status = sandbox.wait_for(id.parse().unwrap(), "exit");
        assert!(
            status["exit"] == json!({ "code": 3 }) || status["exit"] == json!({ "signal": 9 }),
            "{status}"
        );
        sandbox.request("POST", &format!("/contexts/{id}/restart"), b"");
        assert_eq!(sandbox.cell(&id, "'kept' in globals()").text(), Some("False"));
    }
}

#[test]
fn a_context_killed_while_idle_is_dead() {
    let sandbox = Sandbox::start();
    let id = sandbox.python();
    let pid: i32 = sandbox.cell(&id, "import os; os.getpid()").text().unwrap().parse().unwrap();
    cubicle_sys::signal::send(pid, 9).unwrap();
    wait_until("the context is dead", || sandbox.context_state(&id) == "dead");
    assert_eq!(sandbox.try_cell(&id, &json!({ "code": "1" })).code(), "context_dead");
}

#[test]
fn an_interrupt_ends_the_cell_and_not_the_context() {
    let sandbox = Sandbox::start();
    let id = sandbox.python();
    let table = [
        "import time\nx = 1\nprint('on')\ntime.sleep(999)",
        "print('on')\nwhile True: pass",
        "import subprocess\nprint('on')\nsubprocess.run(['sleep', '999'])",
        "print('on')\n!sleep 999",
        "import asyncio\nprint('on')\nawait asyncio.sleep(999)",
        "import re\nprint('on')\nre.match('(a*)*b', 'a' * 60)",
        "import threading\nprint('on')\nthreading.Event().wait()",
    ];
    for code in table {
        let begun = sandbox.begin_cell(&id, code, "on");
        let reply = sandbox.request("POST", &format!("/contexts/{id}/interrupt"), b"");
        assert_eq!(reply.status, 200);
        let ran = begun.ended();
        assert_eq!((ran.status(), ran.error()), ("interrupted", Some(("KeyboardInterrupt", ""))), "{code}");
    }
    assert_eq!(sandbox.cell(&id, "x").text(), Some("1"));
}

#[test]
fn an_interrupt_while_idle_does_nothing() {
    let sandbox = Sandbox::start();
    let id = sandbox.python();
    for _ in 0..20 {
        let reply = sandbox.request("POST", &format!("/contexts/{id}/interrupt"), b"");
        assert_eq!((reply.status, &reply.value()["state"]), (200, &json!("idle")));
        let ran = sandbox.cell(&id, "1");
        assert_eq!((ran.status(), ran.text()), ("success", Some("1")));
    }
}

#[test]
fn an_interrupt_of_a_cell_that_has_not_begun_is_not_lost() {
    let sandbox = Sandbox::start();
    for _ in 0..10 {
        // The interpreter is still starting, or just there.
        let id = sandbox.python();
        let mut client = sandbox.connect();
        let body = json!({ "code": "import time\ntime.sleep(999)" }).to_string();
        client.send("POST", &format!("/contexts/{id}/execute"), super::ACCEPT, body.as_bytes());
        assert_eq!(client.reply_head().0, 200);
        sandbox.request("POST", &format!("/contexts/{id}/interrupt"), b"");
        let mut bytes = Vec::new();
        while let Some(chunk) = client.chunk() {
            bytes.extend_from_slice(&chunk);
        }
        let ran = super::Ran::new(crate::support::frames(&bytes));
        assert_eq!((ran.status(), ran.error()), ("interrupted", Some(("KeyboardInterrupt", ""))));
        assert_eq!(sandbox.cell(&id, "1").text(), Some("1"));
        sandbox.request("DELETE", &format!("/contexts/{id}"), b"");
    }
}

#[test]
fn interrupts_at_any_moment_leave_a_context_that_goes_on() {
    let sandbox = Sandbox::start();
    let id = sandbox.python();
    sandbox.cell(&id, "kept = 1");
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = sandbox.connect();
            // Bounded, so that a cell that fails the test is not waited for in vain.
            for _ in 0..20_000 {
                if done.load(std::sync::atomic::Ordering::Relaxed) {
                    break;
                }
                let reply = client.request("POST", &format!("/contexts/{id}/interrupt"), "", b"");
                assert_eq!(reply.status, 200);
            }
        });
        // A display in between is a message that must not be cut in half.
        for _ in 0..200 {
            let ran = sandbox.cell(&id, "display('x' * 10000)\nkept");
            let expected = if ran.status() == "success" { Some("1") } else { None };
            assert_eq!(ran.text(), expected, "{ran:?}");
            assert!(["success", "interrupted"].contains(&ran.status()), "{ran:?}");
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!(sandbox.cell(&id, "kept").text(), Some("1"));
}

/// The interpreter is another user than the daemon, as in a sandbox.
#[test]
fn a_context_of_another_user_is_interrupted_and_ended() {
    if !rustix::process::geteuid().is_root() {
        let _ = writeln!(
            std::io::stderr(),
            "skipped: a_context_of_another_user_is_interrupted_and_ended: only root can start another user's processes"
        );
        return;
    }
    let sandbox = Sandbox::start_with(&["--workload-uid", "65534"]);
    let id = sandbox.context(json!({ "cwd": "/" }));
    assert_eq!(sandbox.cell(&id, "import os; os.getuid()").text(), Some("65534"));
    let begun = sandbox.begin_cell(&id, "import time\nprint('on')\ntime.sleep(999)", "on");
    sandbox.request("POST", &format!("/contexts/{id}/interrupt"), b"");
    assert_eq!(begun.ended().status(), "interrupted");
    let begun = sandbox.begin_cell(&id, "print('on')\ntime.sleep(999)", "on");
    sandbox.request("DELETE", &format!("/contexts/{id}"), b"");
    assert_eq!(begun.ended().status(), "died");
    sandbox.wait_for(id.parse().unwrap(), "eof");
}

#[test]
fn a_cell_whose_time_is_over_is_interrupted_and_its_context_goes_on() {
    let sandbox = Sandbox::start();
    let id = sandbox.python();
    sandbox.cell(&id, "import time; x = 1");
    let ran = sandbox.cell_with(&id, &json!({ "code": "time.sleep(999)", "timeout_seconds": 0.05 }));
    assert_eq!((ran.status(), ran.error()), ("timeout", Some(("KeyboardInterrupt", ""))));
    assert_eq!(sandbox.cell(&id, "x").text(), Some("1"));
    let ran = sandbox.cell_with(&id, &json!({ "code": "x", "timeout_seconds": 60 }));
    assert_eq!(ran.status(), "success");
}

/// Nothing interrupts a loop in C, or a cell that takes no notice.
#[test]
fn a_cell_that_cannot_be_interrupted_ends_its_context_when_its_time_is_over() {
    let sandbox = Sandbox::start();
    for code in [
        "sum(range(10**13))",
        "import time\nwhile True:\n    try:\n        time.sleep(999)\n    except KeyboardInterrupt: pass",
    ] {
        let id = sandbox.python();
        sandbox.cell(&id, "1");
        let ran = sandbox.cell_with(&id, &json!({ "code": code, "timeout_seconds": 0.05 }));
        assert_eq!(ran.status(), "timeout", "{code}");
        wait_until("the context is dead", || sandbox.context_state(&id) == "dead");
        sandbox.request("POST", &format!("/contexts/{id}/restart"), b"");
        assert_eq!(sandbox.cell(&id, "1").text(), Some("1"));
    }
}

#[test]
fn code_that_writes_nonsense_on_the_channel_ends_its_context_with_a_reason() {
    let sandbox = Sandbox::start();
    for rubbish in ["b'rubbish'", "b'99999999\\n'", "b'2\\n{}'", "b'5\\n\\xff\\xff\\xff\\xff\\xff'"] {
        let id = sandbox.python();
        let ran = sandbox
            .cell(&id, &format!("{FIND_CHANNEL}\nimport time\nos.write(fd, {rubbish})\ntime.sleep(999)"));
        assert_eq!(ran.status(), "died", "{rubbish}");
        let (name, value) = ran.error().unwrap();
        assert_eq!(name, "ContextBroken");
        assert!(value.contains("so the context was ended"), "{value}");
        assert_eq!(sandbox.context_state(&id), "dead");
    }
}

#[test]
fn code_that_tells_lies_on_the_channel_deceives_nobody_but_itself() {
    let sandbox = Sandbox::start();
    let other = sandbox.python();
    let id = sandbox.python();
    let lie = "m = b'{\"event\":\"end\",\"status\":\"success\"}'\nos.write(fd, b'%d\\n%s' % (len(m), m))\nimport time\ntime.sleep(999)";
    // The cell is over by its own word, and the next one waits for an interpreter that does not listen.
    assert_eq!(sandbox.cell(&id, &format!("{FIND_CHANNEL}\n{lie}")).status(), "success");
    let ran = sandbox.cell_with(&id, &json!({ "code": "1", "timeout_seconds": 0.05 }));
    assert_eq!(ran.status(), "timeout");
    assert_eq!(sandbox.cell(&other, "1").text(), Some("1"));
}

#[test]
fn code_that_closes_the_channel_ends_its_context() {
    let sandbox = Sandbox::start();
    let id = sandbox.python();
    let ran = sandbox.cell(&id, &format!("{FIND_CHANNEL}\nimport time\nos.close(fd)\ntime.sleep(999)"));
    assert_eq!(ran.status(), "died");
    assert_eq!(sandbox.context_state(&id), "dead");
    let status = sandbox.wait_for(id.parse().unwrap(), "exit");
    assert_eq!(status["exit"], json!({ "signal": 9 }));
}

#[test]
fn a_process_that_a_cell_forks_does_not_speak_for_it() {
    let sandbox = Sandbox::start();
    let id = sandbox.python();
    let fork = "import os\npid = os.fork()\nif pid:\n    os.waitpid(pid, 0)\nprint('parent' if pid else 'child')\ndisplay(pid and 1)\n'done'";
    let ran = sandbox.cell(&id, fork);
    assert_eq!(
        (ran.stdout.as_str(), ran.text(), ran.status()),
        ("child\nparent\n", Some("'done'"), "success")
    );
    assert_eq!(ran.named("display").len(), 1);
    // Also when nobody tells Python of the fork.
    let fork = fork.replace("os.fork()", "__import__('ctypes').CDLL(None).fork()");
    let ran = sandbox.cell(&id, &fork);
    assert_eq!(
        (ran.stdout.as_str(), ran.text(), ran.status()),
        ("child\nparent\n", Some("'done'"), "success")
    );
    assert_eq!(sandbox.cell(&id, "1").text(), Some("1"));
    let pool = "import multiprocessing\nwith multiprocessing.get_context('fork').Pool(2) as pool:\n    squares = pool.map(abs, [-1, -2])\nsquares";
    assert_eq!(sandbox.cell(&id, pool).text(), Some("[1, 2]"));
}

#[test]
fn a_megabyte_is_shown_whole_and_ten_are_cut_with_a_word() {
    let sandbox = Sandbox::start();
    let id = sandbox.python();
    let show = |size: usize| {
        let code = format!(
            "class Big:\n    def __repr__(self): return 'big'\n    def _repr_html_(self): return 'é\"' * {size}\ndisplay(Big())\nprint('after')\nBig()"
        );
        sandbox.cell(&id, &code)
    };
    for size in [300_000, 1_000_000] {
        let ran = show(size);
        let expected = "é\"".repeat(size);
        for event in [ran.only("display"), ran.only("result")] {
            assert!(event.unwrap()["data"]["text/html"] == json!(expected), "{size} were not shown whole");
        }
        assert_eq!((ran.stdout.as_str(), ran.status()), ("after\n", "success"));
    }
    let ran = show(5_000_000);
    let data = &ran.only("result").unwrap()["data"];
    assert_eq!(data["text/html"], Value::Null);
    assert!(data["text/plain"].as_str().unwrap().contains("text/html left out"), "{data}");
}

#[test]
fn a_huge_result_is_cut() {
    let sandbox = Sandbox::start();
    let id = sandbox.python();
    let ran = sandbox.cell(&id, "'x' * 20_000_000");
    let text = ran.text().unwrap();
    assert!(text.len() < 1_100_000 && text.ends_with("more characters)"), "{} bytes", text.len());
    let ran = sandbox.cell(&id, "list(range(10**6))");
    assert!(ran.text().unwrap().ends_with(" 999,\n ...]"));
    let deep = "d = []\nfor _ in range(10000): d = [d]\nd";
    assert_eq!(sandbox.cell(&id, deep).status(), "success");
    let json = "class J:\n    def __init__(self, j): self.j = j\n    def _repr_json_(self): return self.j\n    def __repr__(self): return 'j'\nJ(d)";
    let data = &sandbox.cell(&id, json).only("result").unwrap()["data"].clone();
    assert_eq!(data, &json!({ "text/plain": "j" }));
    assert_eq!(
        sandbox.cell(&id, "J(float('nan'))").only("result").unwrap()["data"],
        json!({ "text/plain": "j" })
    );
}

#[test]
fn a_full_journal_says_what_is_missing_and_the_cell_ends() {
    let sandbox = Sandbox::start_with(&["--journal-limit", "100000"]);
    let id = sandbox.python();
    let ran = sandbox.cell(&id, "'x' * 200000");
    assert_eq!(ran.only("omitted").map(|omitted| &omitted["what"]), Some(&json!("result")));
    assert_eq!(ran.status(), "success");
    let ran = sandbox.cell(&id, "print('x' * 200000)");
    assert_eq!(ran.status(), "success");
    let refused = sandbox.try_cell(&id, &json!({ "code": "1" }));
    assert_eq!((refused.status, refused.code().as_str()), (507, "journal_full"));
}

#[test]
fn threads_of_earlier_cells_may_go_on_printing_and_showing() {
    let sandbox = Sandbox::start();
    let id = sandbox.python();
    let code = "import threading\ndef work():\n    while not stop.is_set():\n        print('t'); display('d')\nstop = threading.Event()\nthread = threading.Thread(target=work)\nthread.start()";
    assert_eq!(sandbox.cell(&id, code).status(), "success");
    for n in 0..20 {
        let ran = sandbox.cell(&id, &format!("display('mine')\n{n}"));
        assert_eq!((ran.text(), ran.status()), (Some(n.to_string().as_str()), "success"));
    }
    assert_eq!(sandbox.cell(&id, "stop.set(); thread.join()").status(), "success");
}
