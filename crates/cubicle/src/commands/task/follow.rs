//! What a worker does, as it does it.

use std::time::Duration;

use anstyle::Style;
use cubicle_api::client::Client;
use cubicle_model::{ExecId, Fault, TaskId, TaskStatus};
use cubicle_worker::Event;
use cubicle_worker::event::What;
use tokio::time::{sleep, timeout};

use crate::attend::server::printed;
use crate::control_plane::read_id;
use crate::failure::printable;
use crate::table::one_line;

/// How often a task that waits is looked at.
const ASK: Duration = Duration::from_millis(100);
/// A worker that says nothing for this long has said what it had to say so far.
const QUIET: Duration = Duration::from_millis(300);
/// A line that is longer than any event is shown as it is.
const LONGEST_LINE: usize = 1 << 20;

/// A line of a worker: an event, or words of its own.
#[derive(Debug)]
pub(super) enum Line {
    Event(Event),
    Text(String),
}

impl Line {
    fn of(text: &str) -> Self {
        serde_json::from_str(text).map_or_else(|_| Self::Text(text.to_owned()), Self::Event)
    }

    pub(super) fn as_json(&self) -> String {
        match self {
            Self::Event(event) => serde_json::to_string(event).unwrap_or_default(),
            Self::Text(text) => serde_json::json!({ "type": "note", "text": text }).to_string(),
        }
    }
}

/// Shows what the worker does until it has ended.
pub(super) async fn to_its_end(
    client: &Client,
    task: TaskId,
    show: impl FnMut(&Line) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let exec = loop {
        let task = client.task(task).await?;
        // The exec has its id before it is started.
        let is_there = task.status == TaskStatus::Running || task.status.has_ended();
        match &task.exec_id {
            Some(exec) if is_there => break read_id(exec)?,
            None if task.status.has_ended() => return Ok(()),
            _ => sleep(ASK).await,
        }
    };
    read(client, exec, None, show).await
}

/// Shows what the worker has done up to now.
pub(super) async fn so_far(
    client: &Client,
    task: TaskId,
    show: impl FnMut(&Line) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let task = client.task(task).await?;
    let Some(exec) = &task.exec_id else { return Ok(()) };
    let patience = (!task.status.has_ended()).then_some(QUIET);
    read(client, read_id(exec)?, patience, show).await
}

async fn read(
    client: &Client,
    exec: ExecId,
    patience: Option<Duration>,
    mut show: impl FnMut(&Line) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let mut output = client.output(exec, 0);
    let mut unread = Vec::new();
    loop {
        let next = match patience {
            None => output.next().await,
            Some(patience) => timeout(patience, output.next()).await.unwrap_or(Ok(None)),
        };
        let Some(frame) = (match next {
            // A task may end before its exec was ever started.
            Err(error) if error.is_not_found() => None,
            next => next?,
        }) else {
            break;
        };
        let Some((_, bytes)) = printed(&frame)? else { continue };
        unread.extend_from_slice(&bytes);
        while let Some(end) = unread.iter().position(|byte| *byte == b'\n').or(too_long(&unread)) {
            let line: Vec<u8> = unread.drain(..=end).collect();
            show(&Line::of(String::from_utf8_lossy(&line).trim_end()))?;
        }
    }
    match unread.is_empty() {
        true => Ok(()),
        false => show(&Line::of(String::from_utf8_lossy(&unread).trim_end())),
    }
}

fn too_long(unread: &[u8]) -> Option<usize> {
    (unread.len() > LONGEST_LINE).then(|| unread.len() - 1)
}

/// A line for people: words as they are, everything else in short.
pub(super) fn shown(line: &Line) -> String {
    let dim = Style::new().dimmed();
    let aside = |text: &str| format!("{dim}{}{dim:#}\n", printable(text));
    let event = match line {
        Line::Text(text) => return format!("{}\n", printable(text)),
        Line::Event(event) => event,
    };
    match &event.what {
        What::Text { text } => format!("{}\n", printable(text)),
        What::Started { agent, version, .. } => {
            aside(&format!("{agent} {}", version.as_deref().unwrap_or_default()))
        }
        What::ToolCall { name, input, .. } => aside(&format!("· {name} {}", one_line(&input.to_string()))),
        What::ToolResult { output, is_error: true, .. } => aside(&format!("  failed: {}", one_line(output))),
        What::Retry { reason, .. } => aside(&format!("· tries again: {}", one_line(reason))),
        What::Question { text } => aside(&format!("· asks, and nobody answers: {}", one_line(text))),
        What::Note { text } => aside(&format!("· {text}")),
        What::ToolResult { .. } | What::Usage { .. } | What::Result { .. } => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_shown_in_short_and_other_words_as_they_are() {
        let event = |what: &str| Line::of(&format!(r#"{{"time":"2026-01-01T00:00:00Z",{what}}}"#));
        let plain = |line: &Line| anstream::adapter::strip_str(&shown(line)).to_string();
        let table = [
            (event(r#""type":"text","text":"two\nlines""#), "two\nlines\n"),
            (
                event(r#""type":"tool_call","id":"1","name":"Bash","input":{"command":"ls"}"#),
                "· Bash {\"command\":\"ls\"}\n",
            ),
            (event(r#""type":"tool_result","id":"1","output":"fine","is_error":false"#), ""),
            (
                event(r#""type":"tool_result","id":"1","output":"no such file","is_error":true"#),
                "  failed: no such file\n",
            ),
            (Line::of("{not json"), "{not json\n"),
        ];
        for (line, expected) in table {
            assert_eq!(plain(&line), expected);
        }
    }
}
