//! Claude Code itself.

use serde_json::{Value, json};

use crate::harness::{Ran, Task, good_steps, shell_call, terminate, wait_until, writes};

const AGENT: &str = "claude";

fn run(test: &str, script: Value, change: impl FnOnce(&mut Task)) -> Option<Ran> {
    let mut task = Task::with_agent(AGENT, test, script)?;
    change(&mut task);
    Some(task.run())
}

#[test]
fn claude_does_a_task() {
    let script = json!({"steps": good_steps()});
    let Some(ran) = run("claude_does_a_task", script, |task| {
        task.share("skills/plot/SKILL.md", "---\nname: plot\ndescription: Draws plots.\n---\nDraw.\n");
        task.share("skills/broken/SKILL.md", "nothing");
    }) else {
        return;
    };
    ran.ended("success", 0, "");
    assert_eq!(ran.output("hello.txt"), "hello\n");
    assert_eq!(ran.output("count.txt").trim(), "6");
    assert_eq!((ran.status.summary.as_str(), ran.status.exit_code), ("Wrote and counted.", Some(0)));
    let usage = ran.status.usage.unwrap();
    assert_eq!((usage.input_tokens, usage.output_tokens, usage.turns), (400, 80, 4));
    assert!(usage.cost_usd.unwrap() > 0.0);
    for kind in ["started", "text", "tool_call", "tool_result", "usage", "result"] {
        assert!(ran.kinds().contains(&kind.to_owned()), "{kind}: {}", ran.tell());
    }
    assert!(ran.tell().contains("a skill was left out: broken"), "{}", ran.tell());
    let requests = ran.task.model.as_ref().unwrap().requests();
    let asked = requests.iter().map(|request| request.body.to_string()).collect::<String>();
    for word in ["Draws plots.", "Write hello.txt.", "Nobody can answer questions."] {
        assert!(asked.contains(word), "{word}");
    }
    assert!(
        requests
            .iter()
            .all(|request| request.headers.get("x-api-key").is_none_or(|key| key == "kept-outside"))
    );
}

#[test]
fn claude_is_asked_once_for_a_missing_summary() {
    let script = json!({
        "steps": [{"text": "I write.", "tools": [writes("output/hello.txt", "hello\n")]}, {"text": "All done."}],
        "conversations": [{"if_asked": "summary.md now", "steps": [
            {"text": "", "tools": [writes("output/summary.md", "Wrote it.")]}, {"text": "There."}]}],
    });
    let Some(ran) = run("claude_is_asked_once_for_a_missing_summary", script, |_| {}) else { return };
    ran.ended("success", 0, "");
    assert_eq!(ran.status.summary, "Wrote it.");
    assert_eq!(ran.requests(), 4);
    assert_eq!(ran.status.usage.unwrap().input_tokens, 400);
}

#[test]
fn without_any_summary_claudes_last_words_are_one() {
    let script = json!({"steps": [{"text": "Nothing was to be done."}]});
    let Some(ran) = run("without_any_summary_claudes_last_words_are_one", script, |_| {}) else { return };
    ran.ended("success", 0, "");
    assert_eq!(ran.status.summary, "Nothing was to be done.");
    assert_eq!(ran.output("summary.md"), "Nothing was to be done.");
    assert_eq!(ran.requests(), 2);
}

#[test]
fn a_tool_that_claude_was_denied_is_a_failure() {
    let script = json!({"steps": [
        {"text": "I remove.", "tools": [shell_call("rm -rf {task}/context")]}, {"text": "All done."}]});
    let Some(ran) = run("a_tool_that_claude_was_denied_is_a_failure", script, |task| {
        task.write(".claude/settings.json", r#"{"permissions": {"deny": ["Bash(rm:*)"]}}"#);
    }) else {
        return;
    };
    ran.ended("failed", 1, "denied tools that it wanted to use (Bash)");
    assert_eq!(ran.status.exit_code, Some(0));
}

#[test]
fn claude_goes_on_after_429_and_529() {
    let faults = json!([{"fault": "status", "status": 429}, {"fault": "status", "status": 529}]);
    let script = json!({"steps": good_steps(), "faults": faults});
    let Some(ran) = run("claude_goes_on_after_429_and_529", script, |_| {}) else { return };
    ran.ended("success", 0, "");
    assert_eq!(ran.kinds().iter().filter(|kind| *kind == "retry").count(), 2, "{}", ran.tell());
}

#[test]
fn claude_fails_when_the_service_does() {
    for (status, word) in [(500, "try again later"), (401, "refused the key")] {
        let faults = json!([{"fault": "status", "status": status, "times": 50}]);
        let script = json!({"steps": good_steps(), "faults": faults});
        let Some(ran) = run("claude_fails_when_the_service_does", script, |task| {
            task.variables.insert("CLAUDE_CODE_MAX_RETRIES".into(), "1".into());
        }) else {
            return;
        };
        ran.ended("failed", 1, word);
        assert!(ran.status.error_message.as_ref().unwrap().contains(&status.to_string()));
    }
}

#[test]
fn claude_that_hangs_is_ended() {
    let script = json!({"steps": good_steps(), "faults": [{"fault": "hang", "times": 50}]});
    let Some(ran) = run("claude_that_hangs_is_ended", script.clone(), |task| {
        task.assignment.idle_seconds = 4;
    }) else {
        return;
    };
    ran.ended("failed", 1, "said nothing for 4 seconds");
    assert!(ran.requests() > 0);
    let Some(ran) = run("claude_that_hangs_is_ended", script, |task| {
        task.assignment.timeout_seconds = 4;
    }) else {
        return;
    };
    ran.ended("timeout", 124, "not done within 4 seconds");
}

#[test]
fn claude_goes_on_after_a_broken_stream() {
    for fault in ["cut", "wrong_json"] {
        let script = json!({"steps": good_steps(), "faults": [{"fault": fault}]});
        let Some(ran) = run("claude_goes_on_after_a_broken_stream", script, |_| {}) else { return };
        ran.ended("success", 0, "");
        assert_eq!(ran.output("summary.md"), "Wrote and counted.\n");
    }
}

#[test]
fn streams_that_all_break_are_a_failure_of_claude() {
    for fault in ["cut", "wrong_json"] {
        let script = json!({"steps": good_steps(), "faults": [{"fault": fault, "times": 100}]});
        let Some(ran) = run("streams_that_all_break_are_a_failure_of_claude", script, |task| {
            task.variables.insert("CLAUDE_CODE_MAX_RETRIES".into(), "1".into());
            task.assignment.idle_seconds = 20;
        }) else {
            return;
        };
        ran.ended("failed", 1, "");
    }
}

#[test]
fn claude_keeps_its_budget() {
    let script = json!({"steps": good_steps()});
    type Limit = fn(&mut Task);
    let limits: [(Limit, &str); 3] = [
        (|task| task.assignment.max_tokens = Some(150), "240 tokens of 150"),
        (|task| task.assignment.max_turns = Some(1), "budget"),
        (|task| task.assignment.max_cost_usd = Some(0.0001), "budget"),
    ];
    for (limit, word) in limits {
        let Some(ran) = run("claude_keeps_its_budget", script.clone(), limit) else { return };
        ran.ended("failed", 1, word);
        assert!(!ran.task.path().join("output/summary.md").exists());
    }
}

#[test]
fn sigterm_cancels_claude() {
    let script = json!({"steps": good_steps(), "faults": [{"fault": "hang", "times": 50}]});
    let Some(task) = Task::with_agent(AGENT, "sigterm_cancels_claude", script) else { return };
    let child = task.start();
    wait_until("it asks the model", || !task.model.as_ref().unwrap().requests().is_empty());
    terminate(&child);
    task.finish(child).ended("cancelled", 130, "cancelled");
}
