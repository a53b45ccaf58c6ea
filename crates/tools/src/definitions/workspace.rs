//! Tools for files that outlive sandboxes. They need none.

use serde_json::{Value, json};

use super::{Annotations, CHANGES, Definition, READS, answer, arguments};
use crate::workspace::{LARGEST_CONTENT, MOST_READ, USUAL_READ};

pub(super) fn definitions() -> [Definition; 6] {
    [read(), write(), list(), delete(), rename(), glob()]
}

/// One spelling of what a path is, as assistants know it.
fn path(example: &str) -> Value {
    json!({ "type": "string", "minLength": 1, "maxLength": 1024, "description": format!("Path relative to /workspace/shared/, e.g., '{example}'.") })
}

fn encoding(what: &str) -> Value {
    json!({ "type": "string", "enum": ["utf-8", "base64"], "description": what })
}

pub(super) fn text() -> Value {
    json!({ "type": "string" })
}

pub(super) fn number() -> Value {
    json!({ "type": "integer", "minimum": 0 })
}

fn entries() -> Value {
    json!({ "type": "array", "items": {
        "type": "object",
        "properties": {
            "path": text(),
            "type": { "type": "string", "enum": ["file", "directory"] },
            "size": number(),
            "modified": { "type": "string", "format": "date-time" },
            "mime": text(),
        },
        "required": ["path", "type", "size", "modified"],
    } })
}

fn read() -> Definition {
    Definition {
        name: "read_workspace",
        title: "Read a shared file",
        description: "Read a file from /workspace/shared/. Use this to access persistent files like scripts, data, or worker outputs that were saved to shared. Long files come in parts: go on with next_offset. Pictures are shown as such; other binary files need the encoding base64.",
        input: arguments(
            json!({
                "path": path("scripts/analyze.py"),
                "offset": { "type": "integer", "minimum": 0, "default": 0, "description": "Bytes to skip." },
                "limit": { "type": "integer", "minimum": 1, "maximum": MOST_READ, "default": USUAL_READ, "description": "Bytes to read at most." },
                "encoding": encoding("utf-8 for text, base64 for anything. Unless given, text is text and a picture is base64."),
            }),
            &["path"],
        ),
        output: answer(
            json!({
                "path": text(),
                "content": { "type": "string", "description": "Absent where a picture is shown beside this answer." },
                "encoding": text(),
                "type": { "type": "string", "description": "The MIME type." },
                "size": { "type": "integer", "minimum": 0, "description": "Of the whole file, in bytes." },
                "truncated": { "type": "boolean", "description": "Whether the file goes on behind content." },
                "next_offset": { "type": "integer", "minimum": 0, "description": "The offset that goes on." },
                "modified": { "type": "string", "format": "date-time" },
            }),
            &["path", "encoding", "type", "size", "truncated", "modified"],
        ),
        annotations: READS,
    }
}

fn write() -> Definition {
    Definition {
        name: "write_workspace",
        title: "Write a shared file",
        description: "Write a file to /workspace/shared/. Use this to store data for workers to access, or to save scripts/outputs for future use. The whole file is replaced in one step, directories that are missing are made, and the last ten versions are kept. scripts/, data/ and skills/ are there for what their names say.",
        input: arguments(
            json!({
                "path": path("data/input.csv"),
                "content": { "type": "string", "description": format!("Content to write to the file, at most {LARGEST_CONTENT} bytes.") },
                "encoding": encoding("utf-8 unless given; base64 where the content is no text."),
            }),
            &["path", "content"],
        ),
        output: answer(
            json!({ "path": text(), "size": number(), "created": { "type": "boolean", "description": "Whether there was no such file before." } }),
            &["path", "size", "created"],
        ),
        annotations: Annotations { idempotent: true, ..CHANGES },
    }
}

fn list() -> Definition {
    Definition {
        name: "list_workspace",
        title: "List shared files",
        description: "List files and directories in /workspace/shared/.",
        input: arguments(
            json!({
                "path": { "type": "string", "maxLength": 1024, "default": "", "description": "Path relative to /workspace/shared/. Empty string for root." },
                "recursive": { "type": "boolean", "default": false, "description": "If true, list files recursively." },
            }),
            &[],
        ),
        output: answer(
            json!({ "path": text(), "entries": entries(), "truncated": { "type": "boolean" } }),
            &["path", "entries", "truncated"],
        ),
        annotations: READS,
    }
}

fn delete() -> Definition {
    Definition {
        name: "delete_workspace",
        title: "Delete a shared file",
        description: "Delete a file or an empty directory from /workspace/shared/; with recursive also a directory with everything in it. Last versions of files are kept and can be brought back by an operator.",
        input: arguments(
            json!({
                "path": path("data/old.csv"),
                "recursive": { "type": "boolean", "default": false, "description": "If true, delete a directory with everything in it." },
            }),
            &["path"],
        ),
        output: answer(
            json!({ "path": text(), "files": { "type": "integer", "minimum": 0, "description": "How many files are gone." } }),
            &["path", "files"],
        ),
        annotations: CHANGES,
    }
}

fn rename() -> Definition {
    Definition {
        name: "move_workspace",
        title: "Move a shared file",
        description: "Give a file or a directory in /workspace/shared/ another path. Directories that are missing are made.",
        input: arguments(
            json!({
                "from": path("data/draft.md"),
                "to": path("data/report.md"),
                "overwrite": { "type": "boolean", "default": false, "description": "If true, replace a file that is there already; it is kept as a version." },
            }),
            &["from", "to"],
        ),
        output: answer(json!({ "from": text(), "to": text() }), &["from", "to"]),
        annotations: CHANGES,
    }
}

fn glob() -> Definition {
    Definition {
        name: "glob_workspace",
        title: "Find shared files by name",
        description: "Find files in /workspace/shared/ whose path matches a pattern such as **/*.py or data/*.{csv,json}.",
        input: arguments(
            json!({ "pattern": { "type": "string", "minLength": 1, "maxLength": 256, "description": "* and ? stay within a name, ** goes through directories, [a-z] is one of, {a,b} is either." } }),
            &["pattern"],
        ),
        output: answer(
            json!({ "entries": entries(), "truncated": { "type": "boolean" } }),
            &["entries", "truncated"],
        ),
        annotations: READS,
    }
}
