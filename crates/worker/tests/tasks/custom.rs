use std::fs;
use std::os::unix::process::CommandExt;

use crate::harness::{Task, open_up, terminate, wait_until};

#[test]
fn a_command_does_a_task() {
    let ran =
        Task::shell("cat \"$TASK_PROMPT\"; echo; mkdir output/plots; echo 1 >output/plots/a.csv; echo done")
            .run();
    ran.ended("success", 0, "");
    assert_eq!(ran.status.summary, "done");
    assert_eq!(ran.status.exit_code, Some(0));
    assert_eq!(ran.status.output_files[0].name, "plots/a.csv");
    assert_eq!(ran.status.output_files[0].kind, "text/csv");
    assert!(ran.status.completed_at >= ran.status.started_at);
    assert!(!ran.status.logs_truncated);
    assert!(
        ran.events.iter().any(|event| format!("{event:?}").contains("Write hello.txt.")),
        "{}",
        ran.tell()
    );
}

#[test]
fn a_command_that_fails_says_why() {
    Task::shell("echo no such table >&2; exit 7").run().ended(
        "failed",
        1,
        "exit code 7; it complained: no such table",
    );
    Task::shell("kill -SEGV $$").run().ended("failed", 1, "signal 11");
    Task::shell("kill -KILL $$").run().ended("failed", 1, "memory");
    let mut task = Task::new("custom");
    task.assignment.command = vec!["/no/such/program".into()];
    task.run().ended("failed", 1, "cannot start /no/such/program");
    Task::new("custom").run().ended("failed", 1, "needs a command");
    Task::new("codex").run().ended("failed", 1, "known are claude, gemini, custom");
    let mut task = Task::shell("true");
    task.assignment.prompt = task.path().join("other.md").display().to_string();
    task.run().ended("failed", 1, "other.md");
}

#[test]
fn an_agent_that_is_not_installed_is_named_with_the_command_that_helps() {
    for agent in ["claude", "gemini"] {
        let mut task = Task::new(agent);
        task.assignment.agent_home = Some("/no/such/home".into());
        task.run().ended("failed", 1, &format!("run 'cubicle agents install {agent}'"));
    }
}

#[test]
fn watchdogs_end_a_command() {
    let mut task = Task::shell("echo x; sleep 600");
    task.assignment.timeout_seconds = 1;
    task.run().ended("timeout", 124, "timeout_minutes");
    let mut task = Task::shell("echo x; sleep 600");
    task.assignment.idle_seconds = 1;
    task.run().ended("failed", 1, "said nothing for 1 seconds");
    let usage = r#"{"type":"usage","usage":{"input_tokens":90,"output_tokens":20,"turns":4,"cost_usd":0.5}}"#;
    type Limit = fn(&mut Task);
    let limits: [(Limit, &str); 3] = [
        (|task| task.assignment.max_tokens = Some(100), "110 tokens of 100"),
        (|task| task.assignment.max_turns = Some(3), "4 turns of 3"),
        (|task| task.assignment.max_cost_usd = Some(0.25), "0.5000 USD of 0.2500"),
    ];
    for (limit, word) in limits {
        let mut task = Task::shell(&format!("echo '{usage}'; sleep 600"));
        limit(&mut task);
        let ran = task.run();
        ran.ended("failed", 1, word);
        assert_eq!(ran.status.usage.unwrap().input_tokens, 90);
    }
}

#[test]
fn sigterm_cancels_a_command_with_all_that_it_started() {
    let task = Task::shell("sleep 600 & echo $! >pid; wait");
    let pid = task.path().join("pid");
    let child = task.start();
    wait_until("the command runs", || fs::read_to_string(&pid).is_ok_and(|text| text.ends_with('\n')));
    terminate(&child);
    let ran = task.finish(child);
    ran.ended("cancelled", 130, "cancelled");
    let process = fs::read_to_string(ran.task.path().join("pid")).unwrap();
    let stat = format!("/proc/{}/stat", process.trim());
    wait_until("the grandchild ends", || {
        fs::read_to_string(&stat).map_or(true, |text| text.contains(") Z "))
    });
}

#[test]
fn a_status_of_an_earlier_try_or_of_the_agent_does_not_stay() {
    let task = Task::shell("echo '{\"status\":\"success\"}' >status.json; exit 1");
    task.write("status.json", "{}");
    task.run().ended("failed", 1, "exit code 1");
}

#[test]
fn long_logs_lack_their_middle_and_the_status_says_so() {
    let mut task =
        Task::shell("echo first; yes 0123456789012345678901234567890123456789 | head -n 400000; echo last");
    task.assignment.idle_seconds = 600;
    let child = task.start();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let status: cubicle_worker::Status =
        serde_json::from_slice(&fs::read(task.path().join("status.json")).unwrap()).unwrap();
    assert!(status.logs_truncated);
    let events = fs::read_to_string(task.path().join("events.jsonl")).unwrap();
    assert!(events.len() < 11 << 20, "{}", events.len());
    assert!(events.lines().next().unwrap().contains("first"));
    assert!(events.contains("\"type\":\"cut\""));
    assert!(events.lines().rev().nth(1).unwrap().contains("last"));
    assert_eq!(status.summary, "last");
}

/// The secret signs completions: an agent that had it could tell them itself.
#[test]
fn an_agent_cannot_get_the_secret_of_the_webhook() {
    let mut task = Task::shell(
        "tr '\\0' '\\n' </proc/self/environ >output/own; tr '\\0' '\\n' </proc/$PPID/environ >output/parent; true",
    );
    task.variables.insert("WEBHOOK_SECRET".into(), "s3cret-of-the-task".into());
    let program = task.directory.path().join("run-task");
    fs::copy(env!("CARGO_BIN_EXE_run-task"), &program).unwrap();
    let mut command = task.command(&program);
    // Root may read everything, so that the task is somebody else's.
    if rustix::process::geteuid().is_root() {
        for (path, mode) in [(task.directory.path(), 0o777), (&task.path(), 0o777), (&program, 0o755)] {
            open_up(path, mode);
        }
        command.uid(65534).gid(65534);
    }
    let ran = task.finish(command.spawn().unwrap());
    ran.ended("success", 0, "");
    assert!(ran.output("own").contains("TASK_ID="));
    assert!(!ran.output("own").contains("s3cret"));
    assert!(ran.tell().contains("Permission denied"), "{}", ran.tell());
    assert!(!ran.task.path().join("output/parent").exists());
}
