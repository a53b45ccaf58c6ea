//! What came of a task, from how its agent ended and what it said.

use cubicle_model::task::TaskStatus;

use crate::Assignment;
use crate::agents::{Outcome, Told};
use crate::process::{Cut, Ending};
use crate::record::clip;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) status: TaskStatus,
    /// Why it is not a success, and what helps.
    pub(crate) message: Option<String>,
}

impl Verdict {
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self { status: TaskStatus::Failed, message: Some(clip(message.into(), 4096)) }
    }

    fn ended(status: TaskStatus, message: impl Into<String>) -> Self {
        Self { status, message: Some(clip(message.into(), 4096)) }
    }
}

/// A success needs everything: an end by itself, exit 0, the agent's own last word without an error, and no tool that was
/// silently denied.
pub(crate) fn of(task: &Assignment, told: &Told, ending: &Ending, last_word_needed: bool) -> Verdict {
    if let Some(why) = &ending.cut {
        return cut(task, why);
    }
    if let Some(Outcome::Failed { why }) = &told.outcome {
        return Verdict::failed(why.clone());
    }
    if let Some(signal) = ending.signal {
        let hint = if signal == 9 { ": it may have used more memory than its sandbox has" } else { "" };
        return Verdict::failed(with_complaints(format!("signal {signal} ended the agent{hint}"), ending));
    }
    match ending.code {
        Some(0) => {}
        Some(code) => {
            let message = with_complaints(format!("the agent ended with exit code {code}"), ending);
            return Verdict::failed(match ending.complaints.is_empty() && !told.last_text.is_empty() {
                true => format!("{message}; its last words: {}", clip(told.last_text.clone(), 1000)),
                false => message,
            });
        }
        None => return Verdict::failed("how the agent ended is unknown"),
    }
    if last_word_needed && told.outcome.is_none() {
        return Verdict::failed(with_complaints(
            "the agent ended without its final result, so that nobody knows whether it is done: try again"
                .into(),
            ending,
        ));
    }
    if !told.denied.is_empty() {
        let tools: Vec<_> = told.denied.iter().map(String::as_str).collect();
        return Verdict::failed(format!(
            "the agent was denied tools that it wanted to use ({}), so that its work is not whole: \
             look at the permissions in the settings that it read, also those of the repository",
            tools.join(", ")
        ));
    }
    Verdict { status: TaskStatus::Success, message: None }
}

/// Of a program that was ended from outside.
pub(crate) fn cut(task: &Assignment, why: &Cut) -> Verdict {
    match why {
        Cut::Cancelled => Verdict::ended(TaskStatus::Cancelled, "cancelled while it ran"),
        Cut::Timeout => Verdict::ended(
            TaskStatus::Timeout,
            format!(
                "not done within {} seconds: allow more time with timeout_minutes, or ask for less",
                task.timeout_seconds
            ),
        ),
        Cut::Idle => Verdict::failed(format!(
            "the agent said nothing for {} seconds and was ended: the model's service may hang; try again",
            task.idle_seconds
        )),
        Cut::Budget(what) => {
            Verdict::failed(format!("the budget is used up: {what}; raise the limit or ask for less"))
        }
    }
}

fn with_complaints(message: String, ending: &Ending) -> String {
    match ending.complaints.is_empty() {
        true => message,
        false => format!("{message}; it complained: {}", ending.complaints),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task() -> Assignment {
        let arguments =
            ["--run-task", "/task/prompt.md", "--task-id", "task-00000000000000000000000000000001"];
        let arguments = arguments.map(str::to_owned);
        let id = cubicle_model::TaskId::from_random([1; 16]).to_string();
        Assignment::read(&[&arguments[..3], &[id]].concat(), |_| None).unwrap()
    }

    #[test]
    fn only_everything_together_is_a_success() {
        let exit = |code| Ending { code: Some(code), signal: None, cut: None, complaints: String::new() };
        let killed = Ending { code: None, signal: Some(9), cut: None, complaints: "oh".into() };
        let cut = |cut| Ending { code: None, signal: Some(15), cut: Some(cut), complaints: String::new() };
        let told = |outcome: Option<Outcome>, denied: &[&str]| Told {
            outcome,
            denied: denied.iter().map(|tool| (*tool).to_owned()).collect(),
            ..Told::default()
        };
        let done = || Some(Outcome::Done { text: "ok".into() });
        let failed = || Some(Outcome::Failed { why: "API error 500".into() });
        use TaskStatus::*;
        let table = [
            (told(done(), &[]), exit(0), Success, ""),
            (told(done(), &["Bash"]), exit(0), Failed, "Bash"),
            (told(None, &[]), exit(0), Failed, "without its final result"),
            (told(done(), &[]), exit(1), Failed, "exit code 1"),
            (told(failed(), &[]), exit(0), Failed, "API error 500"),
            (told(failed(), &[]), exit(1), Failed, "API error 500"),
            (told(done(), &[]), killed, Failed, "memory"),
            (told(done(), &[]), cut(Cut::Timeout), Timeout, "timeout_minutes"),
            (told(done(), &[]), cut(Cut::Idle), Failed, "said nothing for 600 seconds"),
            (told(done(), &[]), cut(Cut::Cancelled), Cancelled, "cancelled"),
            (told(done(), &[]), cut(Cut::Budget("9 of 8 tokens".into())), Failed, "9 of 8 tokens"),
        ];
        for (told, ending, status, word) in table {
            let verdict = of(&task(), &told, &ending, true);
            assert_eq!(verdict.status, status, "{told:?} {ending:?}");
            assert!(verdict.message.unwrap_or_default().contains(word), "{told:?} {ending:?}");
        }
        assert_eq!(of(&task(), &told(None, &[]), &exit(0), false).status, Success);
    }
}
