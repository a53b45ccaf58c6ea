//! Gemini CLI: <https://geminicli.com/docs>. A bundle of JavaScript, run by `node` in its home or by that of the host.
//!
//! It says what it used only at the end, and never what that cost: limits of cost hold in the gateway alone.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::{Agent, Job, Outcome, Plan, Told, advice, default_home, missing, number, text};
use crate::event::What;
use crate::process::{Launch, Stream};
use crate::status::Usage;

#[derive(Debug)]
pub(crate) struct Gemini;

const BUNDLE: &str = "bundle/gemini.js";

impl Agent for Gemini {
    fn prepare(&self, job: &Job<'_>) -> Result<Plan, String> {
        let bundle = default_home(job, "gemini").join(BUNDLE);
        if !bundle.exists() {
            return Err(missing("Gemini CLI", "gemini", &bundle));
        }
        let files = vec![
            ("prompt.md".into(), job.prompt.clone()),
            (".gemini/settings.json".into(), settings(job.assignment.max_turns).to_string()),
        ];
        Ok(Plan { files, launch: launch(job, &[], job.state.join("prompt.md")) })
    }

    fn ask_again(&self, job: &Job<'_>, _: &Told, question: PathBuf) -> Option<Launch> {
        // It knows conversations by number only; the last one of this state directory is this task's.
        Some(launch(job, &["--resume".into(), "latest".into()], question))
    }

    fn skills(&self) -> Option<PathBuf> {
        Some(".gemini/skills".into())
    }

    fn hear(&self, stream: Stream, line: &[u8], told: &mut Told) -> Vec<What> {
        match stream {
            Stream::Out => serde_json::from_slice::<Value>(line)
                .map(|event| understand(&event, told))
                .unwrap_or_default(),
            Stream::Err => complaint(&String::from_utf8_lossy(line)).into_iter().collect(),
        }
    }

    fn must_have_the_last_word(&self) -> bool {
        true
    }
}

/// Without the kind of login named in a file, it refuses a base URL; without trust in the folder, it asks for every tool.
fn settings(max_turns: Option<u64>) -> Value {
    let mut settings = json!({
        "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": false}},
        "privacy": {"usageStatisticsEnabled": false},
        "telemetry": {"enabled": false},
        "general": {"enableAutoUpdate": false, "enableAutoUpdateNotification": false},
    });
    if let Some(turns) = max_turns {
        settings["model"] = json!({"maxSessionTurns": turns});
    }
    settings
}

fn launch(job: &Job<'_>, more: &[String], stdin: PathBuf) -> Launch {
    let home = default_home(job, "gemini");
    let mut arguments = vec![home.join(BUNDLE).display().to_string()];
    arguments.extend(["--yolo", "--skip-trust", "--output-format", "stream-json"].map(str::to_owned));
    if let Some(model) = &job.assignment.model {
        arguments.extend(["--model".to_owned(), model.clone()]);
    }
    arguments.extend_from_slice(more);
    let program = Some(home.join("node")).filter(|own| own.exists()).unwrap_or_else(|| "node".into());
    Launch {
        program,
        arguments,
        variables: variables(job),
        directory: job.directory.clone(),
        stdin: Some(stdin),
    }
}

fn variables(job: &Job<'_>) -> BTreeMap<String, String> {
    let state = job.state.display().to_string();
    let mut variables = job.variables.clone();
    for (name, value) in [
        ("GEMINI_CLI_HOME", state.as_str()),
        ("TMPDIR", &state),
        // It starts itself a second time otherwise, outside of our view.
        ("GEMINI_CLI_NO_RELAUNCH", "true"),
        ("GEMINI_CLI_TRUST_WORKSPACE", "true"),
    ] {
        variables.insert(name.into(), value.into());
    }
    variables.entry("HOME".into()).or_insert(state);
    // The gateway puts the real key into requests.
    variables.entry("GEMINI_API_KEY".into()).or_insert_with(|| "kept-outside".into());
    variables
}

fn understand(event: &Value, told: &mut Told) -> Vec<What> {
    let kind = text(event, "type");
    let speaks = kind == "message" && text(event, "role") == "assistant";
    // An answer comes in pieces; the first after something else begins a turn.
    let begins = (speaks || kind == "tool_use") && !told.in_answer;
    match kind {
        "message" | "tool_use" => {
            told.in_answer = speaks || kind == "tool_use";
            told.usage.turns += u64::from(begins);
        }
        "tool_result" => told.in_answer = false,
        _ => {}
    }
    match kind {
        "init" => {
            told.session = event["session_id"].as_str().map(str::to_owned);
            let model = event["model"].as_str().map(str::to_owned);
            vec![What::Started { agent: "gemini".into(), version: None, model }]
        }
        "message" if speaks => {
            let words = text(event, "content");
            if begins {
                told.last_text.clear();
            }
            told.last_text.push_str(words);
            vec![What::Text { text: words.into() }]
        }
        "tool_use" => {
            let (id, name) = (text(event, "tool_id").to_owned(), text(event, "tool_name").to_owned());
            told.calls.insert(id.clone(), name.clone());
            vec![What::ToolCall { id, name, input: event["parameters"].clone() }]
        }
        "tool_result" => vec![tool_result(event, told)],
        "error" => vec![What::Note { text: text(event, "message").to_owned() }],
        "result" => result(event, told),
        _ => Vec::new(),
    }
}

fn tool_result(event: &Value, told: &mut Told) -> What {
    let id = text(event, "tool_id").to_owned();
    let error = &event["error"];
    if matches!(
        text(error, "type"),
        "policy_violation" | "tool_not_registered" | "sandbox_expansion_required"
    ) {
        told.denied.insert(told.calls.get(&id).unwrap_or(&id).clone());
    }
    let output = match event["output"].as_str() {
        Some(output) => output.to_owned(),
        None => text(error, "message").to_owned(),
    };
    What::ToolResult { id, output, is_error: text(event, "status") != "success" }
}

fn result(event: &Value, told: &mut Told) -> Vec<What> {
    let stats = &event["stats"];
    told.finish_run(Usage {
        input_tokens: number(stats, "input_tokens").saturating_sub(number(stats, "cached")),
        output_tokens: number(stats, "output_tokens"),
        cached_tokens: number(stats, "cached"),
        turns: told.usage.turns - told.before.turns,
        cost_usd: None,
    });
    told.outcome = Some(match text(event, "status") {
        "success" => Outcome::Done { text: told.last_text.clone() },
        _ => Outcome::Failed { why: failure(&event["error"]) },
    });
    vec![What::Usage { usage: told.usage }]
}

fn failure(error: &Value) -> String {
    let (kind, words) = (text(error, "type"), text(error, "message"));
    // The answer of the service is in the message as it came.
    let status = words.split("\"code\":").nth(1).and_then(|rest| {
        rest.split(|letter: char| !letter.is_ascii_digit()).find(|digits| !digits.is_empty())?.parse().ok()
    });
    let advice = match kind {
        "FatalTurnLimitedError" => "the budget is used up; raise the limit or ask for less",
        // A stream that breaks is not tried again.
        _ if words.contains("terminated") => "the connection to the service broke: try again",
        _ => advice(status),
    };
    format!("Gemini CLI ended with '{kind}': {words} — {advice}")
}

/// Only its retries are of interest: the rest is what it tells people at a terminal.
fn complaint(line: &str) -> Option<What> {
    let (head, _) = line.split_once(". Retrying with backoff")?;
    Some(What::Retry { reason: head.to_owned(), after_ms: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(recording: &str) -> (Vec<What>, Told) {
        let mut told = Told::default();
        let events =
            recording.lines().flat_map(|line| Gemini.hear(Stream::Out, line.as_bytes(), &mut told)).collect();
        (events, told)
    }

    #[test]
    fn a_run_that_went_well_is_understood() {
        let (events, told) = heard(include_str!("recordings/gemini-success.jsonl"));
        let kinds: Vec<_> = events
            .iter()
            .map(|what| serde_json::to_value(what).unwrap()["type"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(
            kinds.join(" "),
            "started text tool_call tool_result text tool_call tool_result text usage"
        );
        let words = "MOCK-DONE: wrote hello.txt and counted it.";
        assert_eq!(told.outcome, Some(Outcome::Done { text: words.into() }));
        let usage = told.usage;
        assert_eq!((usage.input_tokens, usage.output_tokens, usage.turns), (300, 60, 3));
    }

    #[test]
    fn failures_say_what_helps() {
        let (_, told) = heard(include_str!("recordings/gemini-401.jsonl"));
        assert!(
            matches!(&told.outcome, Some(Outcome::Failed { why }) if why.contains("401") && why.contains("key"))
        );
        let (_, told) = heard(include_str!("recordings/gemini-turns.jsonl"));
        assert!(matches!(&told.outcome, Some(Outcome::Failed { why }) if why.contains("budget")));
    }

    #[test]
    fn a_tool_that_a_policy_forbids_is_a_denial() {
        let (_, told) = heard(
            "{\"type\":\"tool_use\",\"tool_id\":\"1\",\"tool_name\":\"write_file\",\"parameters\":{}}\n\
             {\"type\":\"tool_result\",\"tool_id\":\"1\",\"status\":\"error\",\"error\":{\"type\":\"policy_violation\",\"message\":\"no\"}}",
        );
        assert_eq!(told.denied.iter().map(String::as_str).collect::<Vec<_>>(), ["write_file"]);
    }

    #[test]
    fn retries_are_found_among_its_complaints() {
        let line = "Attempt 1 failed with status 429. Retrying with backoff... _ApiError: {}";
        let mut told = Told::default();
        let heard = Gemini.hear(Stream::Err, line.as_bytes(), &mut told);
        let reason = "Attempt 1 failed with status 429".to_owned();
        assert_eq!(heard, [What::Retry { reason, after_ms: None }]);
        assert_eq!(Gemini.hear(Stream::Err, b"YOLO mode is enabled.", &mut told), []);
    }
}
