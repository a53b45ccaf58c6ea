//! Claude Code: <https://docs.claude.com/en/docs/claude-code>. A native program, `claude` in its home.
//!
//! Its exit code and the `subtype` of its last event do not tell a failure from a success: a service that is down and tools that
//! were denied end with `success`. What counts is `is_error`, `terminal_reason` and the denials.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::Value;

use super::{Agent, Job, Outcome, Plan, Told, advice, default_home, missing, number, text};
use crate::event::What;
use crate::process::{Launch, Stream};
use crate::status::Usage;

#[derive(Debug)]
pub(crate) struct Claude;

/// Of the agent's own files, below the state directory.
const CONFIGURATION: &str = "claude";
const TEMPORARY: &str = "tmp";

impl Agent for Claude {
    fn prepare(&self, job: &Job<'_>) -> Result<Plan, String> {
        if !program(job).exists() {
            return Err(missing("Claude Code", "claude", &program(job)));
        }
        let files = vec![
            ("prompt.md".into(), job.prompt.clone()),
            // Only to have the directory: the one that it takes by itself is shared by all tasks of a user.
            (format!("{TEMPORARY}/.keep").into(), String::new()),
        ];
        Ok(Plan { files, launch: launch(job, &[], job.state.join("prompt.md")) })
    }

    fn ask_again(&self, job: &Job<'_>, told: &Told, question: PathBuf) -> Option<Launch> {
        let session = told.session.as_ref()?;
        Some(launch(job, &["--resume".into(), session.clone()], question))
    }

    fn skills(&self) -> Option<PathBuf> {
        Some(PathBuf::from(CONFIGURATION).join("skills"))
    }

    fn hear(&self, stream: Stream, line: &[u8], told: &mut Told) -> Vec<What> {
        match (stream, serde_json::from_slice::<Value>(line)) {
            (Stream::Out, Ok(event)) => understand(&event, told),
            // What it complains about is in the verdict, if it matters.
            _ => Vec::new(),
        }
    }

    fn must_have_the_last_word(&self) -> bool {
        true
    }
}

fn program(job: &Job<'_>) -> PathBuf {
    default_home(job, "claude").join("claude")
}

fn launch(job: &Job<'_>, more: &[String], stdin: PathBuf) -> Launch {
    let task = job.assignment;
    let mut arguments: Vec<String> =
        ["-p", "--output-format", "stream-json", "--verbose", "--dangerously-skip-permissions"]
            .map(str::to_owned)
            .to_vec();
    let mut option = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            arguments.extend([name.to_owned(), value]);
        }
    };
    option("--model", task.model.clone());
    option("--max-turns", task.max_turns.map(|turns| turns.to_string()));
    option("--max-budget-usd", task.max_cost_usd.map(|cost| cost.to_string()));
    arguments.extend_from_slice(more);
    Launch {
        program: program(job),
        arguments,
        variables: variables(job),
        directory: job.directory.clone(),
        stdin: Some(stdin),
    }
}

fn variables(job: &Job<'_>) -> BTreeMap<String, String> {
    let mut variables = job.variables.clone();
    let below = |name: &str| job.state.join(name).display().to_string();
    for (name, value) in [
        ("CLAUDE_CONFIG_DIR", below(CONFIGURATION)),
        ("CLAUDE_CODE_TMPDIR", below(TEMPORARY)),
        ("TMPDIR", below(TEMPORARY)),
        ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1".into()),
        ("DISABLE_AUTOUPDATER", "1".into()),
        // It refuses to work for root without asking, unless it is told that there is nothing to break.
        ("IS_SANDBOX", "1".into()),
    ] {
        variables.insert(name.into(), value);
    }
    variables.entry("HOME".into()).or_insert_with(|| job.state.display().to_string());
    variables.entry("SHELL".into()).or_insert_with(|| "/bin/bash".into());
    // It asks for a login without one. The gateway puts the real key into requests.
    if !variables.contains_key("ANTHROPIC_AUTH_TOKEN") {
        variables.entry("ANTHROPIC_API_KEY".into()).or_insert_with(|| "kept-outside".into());
    }
    variables
}

fn understand(event: &Value, told: &mut Told) -> Vec<What> {
    match (text(event, "type"), text(event, "subtype")) {
        ("system", "init") => {
            told.session = event["session_id"].as_str().map(str::to_owned);
            vec![What::Started {
                agent: "claude".into(),
                version: event["claude_code_version"].as_str().map(str::to_owned),
                model: event["model"].as_str().map(str::to_owned),
            }]
        }
        ("system", "api_retry") => {
            let status =
                event["error_status"].as_u64().map(|status| format!("{status} ")).unwrap_or_default();
            let reason = format!("{status}{}", text(event, "error"));
            vec![What::Retry { reason, after_ms: event["retry_delay_ms"].as_u64() }]
        }
        ("system", "permission_denied") => {
            told.denied.insert(text(event, "tool_name").to_owned());
            vec![What::Note { text: format!("denied: {}", text(event, "message")) }]
        }
        ("assistant", _) => assistant(event, told),
        ("user", _) => contents(event).filter_map(tool_result).collect(),
        ("result", _) => result(event, told),
        _ => Vec::new(),
    }
}

fn contents(event: &Value) -> impl Iterator<Item = &Value> {
    event["message"]["content"].as_array().into_iter().flatten()
}

fn assistant(event: &Value, told: &mut Told) -> Vec<What> {
    // An agent may have agents of its own; their words are not its last ones.
    let own = event["parent_tool_use_id"].is_null();
    let mut heard = Vec::new();
    for part in contents(event) {
        match text(part, "type") {
            "text" => {
                if own {
                    told.last_text = text(part, "text").to_owned();
                }
                heard.push(What::Text { text: text(part, "text").to_owned() });
            }
            "tool_use" if text(part, "name") == "AskUserQuestion" => {
                heard.push(What::Question { text: part["input"].to_string() });
            }
            "tool_use" => heard.push(What::ToolCall {
                id: text(part, "id").to_owned(),
                name: text(part, "name").to_owned(),
                input: part["input"].clone(),
            }),
            _ => {}
        }
    }
    let message = &event["message"];
    // Every part of an answer comes with the usage of all of it.
    if told.counted.insert(text(message, "id").to_owned()) {
        let used = &message["usage"];
        told.usage.input_tokens += number(used, "input_tokens") + number(used, "cache_creation_input_tokens");
        told.usage.cached_tokens += number(used, "cache_read_input_tokens");
        told.usage.output_tokens += number(used, "output_tokens");
        told.usage.turns += u64::from(own);
        heard.push(What::Usage { usage: told.usage });
    }
    heard
}

fn tool_result(part: &Value) -> Option<What> {
    if text(part, "type") != "tool_result" {
        return None;
    }
    let output = match &part["content"] {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().map(|part| text(part, "text")).collect::<Vec<_>>().join("\n"),
        other => other.to_string(),
    };
    let is_error = part["is_error"].as_bool().unwrap_or(false);
    Some(What::ToolResult { id: text(part, "tool_use_id").to_owned(), output, is_error })
}

fn result(event: &Value, told: &mut Told) -> Vec<What> {
    told.finish_conversation(usage(event));
    for denial in event["permission_denials"].as_array().into_iter().flatten() {
        told.denied.insert(text(denial, "tool_name").to_owned());
    }
    let words = text(event, "result").to_owned();
    let reason = event["terminal_reason"].as_str().unwrap_or("completed");
    let done = event["is_error"].as_bool() == Some(false)
        && reason == "completed"
        && text(event, "subtype") == "success";
    told.outcome = Some(match done {
        true => Outcome::Done { text: words },
        false => Outcome::Failed { why: failure(event, &words, reason) },
    });
    vec![What::Usage { usage: told.usage }]
}

fn failure(event: &Value, words: &str, reason: &str) -> String {
    let errors = event["errors"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let errors = errors.collect::<Vec<_>>().join("; ");
    let words = if words.is_empty() { errors } else { words.to_owned() };
    let advice = match reason {
        "max_turns" | "budget_exhausted" => "the budget is used up; raise the limit or ask for less",
        _ => advice(event["api_error_status"].as_u64()),
    };
    format!("Claude Code ended with '{reason}': {words} — {advice}")
}

/// Of the whole conversation, over all models. The sum beside it lacks what a run that was cut had used.
fn usage(event: &Value) -> Usage {
    let mut usage = Usage {
        turns: number(event, "num_turns"),
        cost_usd: event["total_cost_usd"].as_f64(),
        ..Usage::default()
    };
    for model in event["modelUsage"].as_object().into_iter().flat_map(|models| models.values()) {
        usage.input_tokens += number(model, "inputTokens") + number(model, "cacheCreationInputTokens");
        usage.output_tokens += number(model, "outputTokens");
        usage.cached_tokens += number(model, "cacheReadInputTokens");
    }
    usage
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(recording: &str) -> (Vec<What>, Told) {
        let mut told = Told::default();
        let events =
            recording.lines().flat_map(|line| Claude.hear(Stream::Out, line.as_bytes(), &mut told)).collect();
        (events, told)
    }

    fn kinds(events: &[What]) -> Vec<String> {
        let kind = |what: &What| serde_json::to_value(what).unwrap()["type"].as_str().unwrap().to_owned();
        events.iter().map(kind).collect()
    }

    #[test]
    fn a_run_that_went_well_is_understood() {
        let (events, told) = heard(include_str!("recordings/claude-success.jsonl"));
        assert_eq!(
            kinds(&events).join(" "),
            "started text usage tool_call tool_result text usage tool_call tool_result text usage usage"
        );
        let words = "MOCK-DONE: wrote hello.txt and counted it.";
        assert_eq!(told.outcome, Some(Outcome::Done { text: words.into() }));
        assert_eq!(told.last_text, words);
        assert!(told.session.is_some() && told.denied.is_empty());
        let usage = told.usage;
        assert_eq!((usage.input_tokens, usage.output_tokens, usage.turns), (300, 60, 3));
        assert!(usage.cost_usd.is_some_and(|cost| cost > 0.0));
    }

    #[test]
    fn denied_tools_and_a_service_that_is_down_are_seen_behind_a_success() {
        let (_, told) = heard(include_str!("recordings/claude-denied.jsonl"));
        assert_eq!(told.denied.iter().map(String::as_str).collect::<Vec<_>>(), ["Bash", "Write"]);
        let (events, told) = heard(include_str!("recordings/claude-500.jsonl"));
        assert_eq!(events.iter().filter(|event| matches!(event, What::Retry { .. })).count(), 1);
        assert!(
            matches!(&told.outcome, Some(Outcome::Failed { why }) if why.contains("500") && why.contains("try again"))
        );
    }

    #[test]
    fn limits_are_told_as_such() {
        let line = r#"{"type":"result","subtype":"error_max_turns","is_error":true,"num_turns":2,"terminal_reason":"max_turns",
            "errors":["Reached maximum number of turns (1)"],"modelUsage":{"m":{"inputTokens":100,"outputTokens":20}}}"#;
        let (_, told) = heard(&line.replace('\n', ""));
        assert!(matches!(&told.outcome, Some(Outcome::Failed { why }) if why.contains("budget")));
        assert_eq!((told.usage.input_tokens, told.usage.turns), (100, 2));
    }

    #[test]
    fn no_line_can_confuse_it() {
        for line in ["", "null", "[]", "{}", r#"{"type":"assistant"}"#, r#"{"type":"result"}"#, "\u{fffd}"] {
            heard(line);
        }
        let (_, told) = heard(r#"{"type":"result"}"#);
        assert!(matches!(told.outcome, Some(Outcome::Failed { .. })));
    }
}
