//! Tools for AI workers: spawn one, see what came of it.

use serde_json::{Value, json};

use super::workspace::{number, text};
use super::{Annotations, Definition, READS, RUNS, answer, arguments};

pub(super) fn definitions() -> [Definition; 4] {
    [spawn(), result(), list(), cancel()]
}

const STATUSES: [&str; 7] = ["pending", "submitted", "running", "success", "failed", "timeout", "cancelled"];

fn task_id() -> Value {
    json!({ "type": "string", "description": "The task ID returned by spawn_worker." })
}

fn status() -> Value {
    json!({ "type": "string", "enum": STATUSES })
}

fn file() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": text(),
            "size": number(),
            "type": { "type": "string", "description": "A MIME type, e.g., 'image/png'." },
        },
        "required": ["name", "size", "type"],
    })
}

fn maybe(kind: &str) -> Value {
    json!({ "type": [kind, "null"] })
}

fn spawn() -> Definition {
    Definition {
        name: "spawn_worker",
        title: "Spawn a worker",
        description: "Spawn an AI coder worker (Claude Code or Gemini CLI) to complete a complex task that requires general-purpose computing capabilities like running Python, shell commands, or file manipulation.

Use this when:
- Task requires running Python/shell scripts
- Task needs file I/O beyond notes/documents
- Task involves complex data processing or visualization
- Task would take many tool calls to complete manually

Do NOT use this for:
- Simple queries answerable with existing tools
- Tasks that only need note/calendar/document access
- Quick one-off operations

The worker runs in an isolated sandbox with:
- Read access to /workspace/shared/ (persistent files)
- Write access to its task directory
- Claude Code or Gemini CLI with full bash/filesystem access
- Network restricted to the AI provider and what the operator allows

The call returns at once. You will be notified via webhook when the worker completes. Use read_task_result(task_id) to retrieve the output.",
        input: arguments(
            json!({
                "task_description": {
                    "type": "string", "minLength": 1,
                    "description": "Detailed description of what the worker should accomplish. Be specific about expected outputs and success criteria.",
                },
                "context_files": {
                    "type": "array", "items": { "type": "string" },
                    "description": "List of files from /workspace/shared/ to copy to the task directory. Use paths relative to shared/, e.g., 'data/input.csv'.",
                },
                "model": {
                    "type": "string", "enum": ["claude", "gemini"], "default": "claude",
                    "description": "Which AI coder to use. Claude Code recommended for most tasks.",
                },
                "timeout_minutes": {
                    "type": "integer", "default": 30, "minimum": 1, "maximum": 120,
                    "description": "Maximum execution time in minutes.",
                },
                "save_to_shared": {
                    "type": "boolean", "default": false,
                    "description": "If true, copy successful output files to /workspace/shared/ for future reuse.",
                },
            }),
            &["task_description"],
        ),
        output: answer(
            json!({
                "task_id": text(),
                "status": status(),
                "position": { "type": "integer", "description": "Its place among those that wait for a worker." },
                "context_files": { "type": "array", "items": text() },
                "missing_context_files": { "type": "array", "items": text(), "description": "Not in /workspace/shared/." },
            }),
            &["task_id", "status", "context_files", "missing_context_files"],
        ),
        annotations: Annotations { destructive: false, ..RUNS },
    }
}

fn result() -> Definition {
    Definition {
        name: "read_task_result",
        title: "Read the result of a task",
        description: "Read the result of a completed worker task. Call this after being notified that a worker has completed. A task that still runs says how far it is.",
        input: arguments(
            json!({
                "task_id": task_id(),
                "include_file_contents": {
                    "type": "array", "items": { "type": "string" }, "maxItems": 50,
                    "description": "List of output file names to include content for. For large files, consider reading them separately.",
                },
            }),
            &["task_id"],
        ),
        output: answer(
            json!({
                "task_id": text(),
                "status": status(),
                "duration_seconds": maybe("integer"),
                "exit_code": maybe("integer"),
                "output_files": { "type": "array", "items": file() },
                "saved_files": { "type": "array", "items": text(), "description": "Relative to /workspace/shared/." },
                "missing_context_files": { "type": "array", "items": text() },
                "summary": maybe("string"),
                "error_message": maybe("string"),
                "usage": maybe("object"),
                "patch": { "type": "string", "description": "What it changed in its repository, as a unified diff." },
                "contents": {
                    "type": "object",
                    "description": "The files that were asked for. Pictures are shown beside the answer.",
                    "additionalProperties": {
                        "type": "object",
                        "properties": {
                            "type": text(),
                            "size": number(),
                            "content": text(),
                            "encoding": { "type": "string", "enum": ["utf-8", "base64"] },
                            "truncated": { "type": "boolean" },
                        },
                        "required": ["type", "size"],
                    },
                },
            }),
            &["task_id", "status", "output_files"],
        ),
        annotations: READS,
    }
}

fn list() -> Definition {
    Definition {
        name: "list_worker_tasks",
        title: "List tasks",
        description: "List worker tasks of this conversation, newest first, with their status.",
        input: arguments(
            json!({
                "conversation_id": { "type": "string", "description": "Another conversation's; yours unless given." },
                "status": { "type": "string", "enum": STATUSES, "description": "Only tasks with this status." },
                "limit": { "type": "integer", "minimum": 1, "maximum": 100, "default": 10 },
            }),
            &[],
        ),
        output: answer(
            json!({
                "tasks": { "type": "array", "items": {
                    "type": "object",
                    "properties": {
                        "task_id": text(),
                        "status": status(),
                        "model": text(),
                        "task_description": text(),
                        "created_at": text(),
                        "completed_at": text(),
                        "summary": text(),
                        "error_message": text(),
                    },
                    "required": ["task_id", "status", "model", "task_description", "created_at"],
                } },
            }),
            &["tasks"],
        ),
        annotations: READS,
    }
}

fn cancel() -> Definition {
    Definition {
        name: "cancel_worker_task",
        title: "Cancel a task",
        description: "Cancel a worker task that waits or runs. One that has ended stays as it ended.",
        input: arguments(json!({ "task_id": task_id() }), &["task_id"]),
        output: answer(json!({ "task_id": text(), "status": status() }), &["task_id", "status"]),
        annotations: Annotations { read_only: false, destructive: true, idempotent: true, open_world: false },
    }
}
