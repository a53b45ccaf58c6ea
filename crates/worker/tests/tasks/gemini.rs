//! Gemini CLI itself.

use serde_json::{Value, json};

use crate::harness::{Ran, Task, good_steps, shell_call, terminate, wait_until, writes};

const AGENT: &str = "gemini";

fn run(test: &str, script: Value, change: impl FnOnce(&mut Task)) -> Option<Ran> {
    let mut task = Task::with_agent(AGENT, test, script)?;
    change(&mut task);
    Some(task.run())
}

/// It tries for minutes otherwise.
fn few_tries(task: &mut Task) {
    task.write(".gemini/settings.json", r#"{"general": {"maxAttempts": 1}}"#);
}

#[test]
fn gemini_does_a_task() {
    let script = json!({"steps": good_steps()});
    let Some(ran) = run("gemini_does_a_task", script, |task| {
        task.share("skills/plot/SKILL.md", "---\nname: plot\ndescription: Draws plots.\n---\nDraw.\n");
    }) else {
        return;
    };
    ran.ended("success", 0, "");
    assert_eq!(ran.output("hello.txt"), "hello\n");
    assert_eq!(ran.output("count.txt").trim(), "6");
    assert_eq!((ran.status.summary.as_str(), ran.status.exit_code), ("Wrote and counted.", Some(0)));
    let usage = ran.status.usage.unwrap();
    assert_eq!((usage.input_tokens, usage.output_tokens, usage.turns), (400, 80, 4));
    for kind in ["started", "text", "tool_call", "tool_result", "usage", "result"] {
        assert!(ran.kinds().contains(&kind.to_owned()), "{kind}: {}", ran.tell());
    }
    let requests = ran.task.model.as_ref().unwrap().requests();
    let asked = requests.iter().map(|request| request.body.to_string()).collect::<String>();
    for word in ["Draws plots.", "Write hello.txt.", "Nobody can answer questions."] {
        assert!(asked.contains(word), "{word}");
    }
    assert!(requests.iter().all(|request| request.headers["x-goog-api-key"] == "kept-outside"));
}

#[test]
fn gemini_is_asked_once_for_a_missing_summary() {
    let script = json!({
        "steps": [{"text": "I write.", "tools": [writes("output/hello.txt", "hello\n")]}, {"text": "All done."}],
        "conversations": [{"if_asked": "summary.md now", "steps": [
            {"text": "Yes.", "tools": [writes("output/summary.md", "Wrote it.")]}, {"text": "There."}]}],
    });
    let Some(ran) = run("gemini_is_asked_once_for_a_missing_summary", script, |_| {}) else { return };
    ran.ended("success", 0, "");
    assert_eq!(ran.status.summary, "Wrote it.");
    assert_eq!(ran.requests(), 4);
    assert_eq!(ran.status.usage.unwrap().input_tokens, 400);
}

#[test]
fn a_tool_that_gemini_was_denied_is_a_failure() {
    let script = json!({"steps": [
        {"text": "I remove.", "tools": [shell_call("rm -rf {task}/context")]}, {"text": "All done."}]});
    let Some(ran) = run("a_tool_that_gemini_was_denied_is_a_failure", script, |task| {
        task.write(".gemini/settings.json", r#"{"tools": {"exclude": ["run_shell_command"]}}"#);
    }) else {
        return;
    };
    ran.ended("failed", 1, "denied tools that it wanted to use (run_shell_command)");
    assert_eq!(ran.status.exit_code, Some(0));
}

#[test]
fn gemini_goes_on_after_429() {
    let script = json!({"steps": good_steps(), "faults": [{"fault": "status", "status": 429}]});
    let Some(ran) = run("gemini_goes_on_after_429", script, |_| {}) else { return };
    ran.ended("success", 0, "");
    assert_eq!(ran.kinds().iter().filter(|kind| *kind == "retry").count(), 1, "{}", ran.tell());
}

#[test]
fn gemini_goes_on_after_529() {
    let script = json!({"steps": good_steps(), "faults": [{"fault": "status", "status": 529}]});
    let Some(ran) = run("gemini_goes_on_after_529", script, |_| {}) else { return };
    ran.ended("success", 0, "");
}

#[test]
fn gemini_fails_when_the_service_does() {
    for (status, word) in [(500, "try again later"), (401, "refused the key")] {
        let faults = json!([{"fault": "status", "status": status, "times": 50}]);
        let script = json!({"steps": good_steps(), "faults": faults});
        let Some(ran) = run("gemini_fails_when_the_service_does", script, few_tries) else { return };
        ran.ended("failed", 1, word);
        assert!(ran.status.error_message.as_ref().unwrap().contains(&status.to_string()));
    }
}

#[test]
fn gemini_that_hangs_is_ended() {
    let script = json!({"steps": good_steps(), "faults": [{"fault": "hang", "times": 50}]});
    let Some(ran) = run("gemini_that_hangs_is_ended", script.clone(), |task| {
        task.assignment.idle_seconds = 8;
    }) else {
        return;
    };
    ran.ended("failed", 1, "said nothing for 8 seconds");
    assert!(ran.requests() > 0);
    let Some(ran) = run("gemini_that_hangs_is_ended", script, |task| {
        task.assignment.timeout_seconds = 6;
    }) else {
        return;
    };
    ran.ended("timeout", 124, "not done within 6 seconds");
}

#[test]
fn a_broken_stream_is_a_failure_of_gemini() {
    for (fault, word) in [("cut", "the connection to the service broke: try again"), ("wrong_json", "JSON")] {
        let script = json!({"steps": good_steps(), "faults": [{"fault": fault, "times": 100}]});
        let Some(ran) = run("a_broken_stream_is_a_failure_of_gemini", script, few_tries) else { return };
        ran.ended("failed", 1, word);
    }
}

#[test]
fn gemini_keeps_its_budget() {
    let script = json!({"steps": good_steps()});
    type Limit = fn(&mut Task);
    let limits: [(Limit, &str); 2] = [
        // It says what it used at its end, when it is too late to keep it from using more.
        (|task| task.assignment.max_tokens = Some(150), "480 tokens of 150"),
        (|task| task.assignment.max_turns = Some(1), "budget"),
    ];
    for (limit, word) in limits {
        let Some(ran) = run("gemini_keeps_its_budget", script.clone(), limit) else { return };
        ran.ended("failed", 1, word);
    }
}

#[test]
fn sigterm_cancels_gemini() {
    let script = json!({"steps": good_steps(), "faults": [{"fault": "hang", "times": 50}]});
    let Some(task) = Task::with_agent(AGENT, "sigterm_cancels_gemini", script) else { return };
    let child = task.start();
    wait_until("it asks the model", || !task.model.as_ref().unwrap().requests().is_empty());
    terminate(&child);
    task.finish(child).ended("cancelled", 130, "cancelled");
}
