//! Any command. It finds the prompt in `TASK_PROMPT`, as a path, and its exit code is its last word.
//!
//! What it prints are its words. A line that is an event of ours in JSON is taken as that event.

use std::path::PathBuf;

use super::{Agent, Job, Outcome, Plan, Told};
use crate::event::What;
use crate::process::{Launch, Stream};

#[derive(Debug)]
pub(crate) struct Custom;

impl Agent for Custom {
    fn prepare(&self, job: &Job<'_>) -> Result<Plan, String> {
        let Some((program, arguments)) = job.assignment.command.split_first() else {
            return Err("a custom agent needs a command: give the task one as a list of words".into());
        };
        let mut variables = job.variables.clone();
        variables.insert("TASK_PROMPT".into(), job.assignment.prompt.clone());
        let launch = Launch {
            program: program.into(),
            arguments: arguments.to_vec(),
            variables,
            directory: job.directory.clone(),
            stdin: None,
        };
        Ok(Plan { files: Vec::new(), launch })
    }

    fn ask_again(&self, _: &Job<'_>, _: &Told, _: PathBuf) -> Option<Launch> {
        None
    }

    fn skills(&self) -> Option<PathBuf> {
        None
    }

    fn hear(&self, _: Stream, line: &[u8], told: &mut Told) -> Vec<What> {
        if let Ok(what) = serde_json::from_slice::<What>(line) {
            match &what {
                What::Text { text } => told.last_text.clone_from(text),
                What::Usage { usage } => told.usage = *usage,
                What::Result { status, text } => {
                    told.outcome = Some(match status.name() {
                        "success" => Outcome::Done { text: text.clone() },
                        _ => Outcome::Failed { why: text.clone() },
                    });
                    // The last event is the worker's to tell.
                    return Vec::new();
                }
                _ => {}
            }
            return vec![what];
        }
        let text = String::from_utf8_lossy(line).into_owned();
        if !text.trim().is_empty() {
            told.last_text.clone_from(&text);
        }
        vec![What::Text { text }]
    }

    fn must_have_the_last_word(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_words_unless_they_are_events() {
        let mut told = Told::default();
        assert_eq!(Custom.hear(Stream::Out, b"hello", &mut told), [What::Text { text: "hello".into() }]);
        let usage = br#"{"type":"usage","usage":{"input_tokens":3,"output_tokens":4}}"#;
        assert!(matches!(Custom.hear(Stream::Out, usage, &mut told)[..], [What::Usage { .. }]));
        assert_eq!((told.usage.input_tokens, told.last_text.as_str()), (3, "hello"));
        let result = br#"{"type":"result","status":"failed","text":"no data"}"#;
        assert_eq!(Custom.hear(Stream::Out, result, &mut told), []);
        assert_eq!(told.outcome, Some(Outcome::Failed { why: "no data".into() }));
        let other = br#"{"type":"unheard of"}"#;
        assert!(matches!(Custom.hear(Stream::Out, other, &mut told)[..], [What::Text { .. }]));
    }
}
