//! What is kept of a task while it runs: `events.jsonl`, in words that are the same for all agents, and `transcript.jsonl`, what
//! the agent itself said. Both are cut in the middle when they grow too long.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use cubicle_model::Timestamp;

use crate::event::{Event, What};

pub(crate) const EVENTS: &str = "events.jsonl";
pub(crate) const TRANSCRIPT: &str = "transcript.jsonl";

const EVENTS_SIZE: Size = Size { head: 8 << 20, tail: 2 << 20 };
const TRANSCRIPT_SIZE: Size = Size { head: 32 << 20, tail: 4 << 20 };
/// Of one text in an event. The transcript has all of it.
const LONGEST_TEXT: usize = 32 * 1024;

#[derive(Debug, Clone, Copy)]
struct Size {
    head: usize,
    tail: usize,
}

type Tell<'a> = Box<dyn FnMut(&[u8]) + 'a>;

pub(crate) struct Record<'a> {
    events: Capped,
    transcript: Capped,
    /// Each event is told there too, for whoever watches.
    tell: Tell<'a>,
    now: fn() -> Timestamp,
}

impl<'a> Record<'a> {
    pub(crate) fn create(
        task: &Path,
        now: fn() -> Timestamp,
        tell: impl FnMut(&[u8]) + 'a,
    ) -> io::Result<Self> {
        Ok(Self {
            events: Capped::create(&task.join(EVENTS), EVENTS_SIZE)?,
            transcript: Capped::create(&task.join(TRANSCRIPT), TRANSCRIPT_SIZE)?,
            tell: Box::new(tell),
            now,
        })
    }

    pub(crate) fn event(&mut self, what: What) {
        let event = Event { time: (self.now)(), what: clipped(what) };
        let Ok(line) = serde_json::to_vec(&event) else { return };
        (self.tell)(&line);
        self.events.line(&line);
    }

    pub(crate) fn note(&mut self, text: impl Into<String>) {
        self.event(What::Note { text: text.into() });
    }

    pub(crate) fn raw(&mut self, line: &[u8]) {
        self.transcript.line(line);
    }

    /// Writes what is left. True when something was cut.
    pub(crate) fn finish(&mut self) -> bool {
        let events = self.events.finish();
        self.transcript.finish() || events
    }
}

fn clipped(what: What) -> What {
    match what {
        What::Text { text } => What::Text { text: clip(text, LONGEST_TEXT) },
        What::ToolResult { id, output, is_error } => {
            What::ToolResult { id, output: clip(output, LONGEST_TEXT), is_error }
        }
        What::ToolCall { id, name, input } => {
            let length = input.to_string().len();
            let input = match length > LONGEST_TEXT {
                true => serde_json::json!({"cut": clip(input.to_string(), LONGEST_TEXT)}),
                false => input,
            };
            What::ToolCall { id, name, input }
        }
        What::Note { text } => What::Note { text: clip(text, LONGEST_TEXT) },
        other => other,
    }
}

/// The text, or its beginning with a word about the rest.
pub(crate) fn clip(mut text: String, longest: usize) -> String {
    if text.len() > longest {
        let cut = text.len() - text.floor_char_boundary(longest);
        text.truncate(text.floor_char_boundary(longest));
        text.push_str(&format!("… ({cut} more bytes)"));
    }
    text
}

/// A file of lines. What does not fit after its head pushes out the oldest of its tail.
struct Capped {
    /// None after an error: a full disk must not end the task.
    file: Option<File>,
    size: Size,
    written: usize,
    tail: VecDeque<Vec<u8>>,
    tail_length: usize,
    dropped: u64,
}

impl Capped {
    fn create(path: &Path, size: Size) -> io::Result<Self> {
        use rustix::fs::{Mode, OFlags, open};
        // What an earlier try left is not followed anywhere.
        _ = std::fs::remove_file(path);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(open(path, flags, Mode::from_raw_mode(0o644))?);
        Ok(Self { file: Some(file), size, written: 0, tail: VecDeque::new(), tail_length: 0, dropped: 0 })
    }

    fn line(&mut self, line: &[u8]) {
        let line = [line, b"\n"].concat();
        if self.tail.is_empty() && self.dropped == 0 && self.written + line.len() <= self.size.head {
            self.written += line.len();
            self.write(&line);
            return;
        }
        self.tail_length += line.len();
        self.tail.push_back(line);
        while self.tail_length > self.size.tail {
            let Some(oldest) = self.tail.pop_front() else { break };
            self.tail_length -= oldest.len();
            self.dropped += 1;
        }
    }

    fn finish(&mut self) -> bool {
        if self.dropped > 0 {
            let mark = serde_json::json!({"type": "cut", "lines": self.dropped});
            self.write(format!("{mark}\n").as_bytes());
        }
        for line in std::mem::take(&mut self.tail) {
            self.write(&line);
        }
        self.dropped > 0 || self.file.is_none()
    }

    fn write(&mut self, bytes: &[u8]) {
        if self.file.as_mut().is_some_and(|file| file.write_all(bytes).is_err()) {
            self.file = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_file_lacks_its_middle_and_says_so() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x");
        let mut file = Capped::create(&path, Size { head: 20, tail: 20 }).unwrap();
        for number in 10..40 {
            file.line(format!("{{\"n\":{number}}}").as_bytes());
        }
        assert!(file.finish());
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines,
            ["{\"n\":10}", "{\"n\":11}", "{\"lines\":26,\"type\":\"cut\"}", "{\"n\":38}", "{\"n\":39}"]
        );
    }

    #[test]
    fn a_link_in_place_of_a_file_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let (victim, path) = (directory.path().join("victim"), directory.path().join("events"));
        std::fs::write(&victim, "kept").unwrap();
        std::os::unix::fs::symlink(&victim, &path).unwrap();
        let mut file = Capped::create(&path, EVENTS_SIZE).unwrap();
        file.line(b"{}");
        assert!(!file.finish());
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "kept");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "{}\n");
    }

    #[test]
    fn a_long_text_is_clipped_between_letters() {
        assert_eq!(clip("äöü".into(), 3), "ä… (4 more bytes)");
    }
}
