//! Tools that work near the files.

use cubicle_guest::wire::tools::{
    LARGEST_FILE, LARGEST_TEXT, LONGEST_PATTERN, MOST_CONTEXT, MOST_ENTRIES, MOST_MATCHES, USUAL_ENTRIES,
    USUAL_LINES, USUAL_MATCHES,
};
use serde_json::{Value, json};

use super::{Annotations, CHANGES, Definition, READS, answer, arguments};

pub(super) fn definitions() -> [Definition; 8] {
    [read_file(), write_file(), edit_file(), delete_file(), list_dir(), glob(), grep(), apply_patch()]
}

fn path(what: &str) -> Value {
    json!({ "type": "string", "minLength": 1, "maxLength": 4096, "description": format!("{what} Absolute, or relative to /workspace.") })
}

fn encoding() -> Value {
    json!({
        "type": "string", "enum": ["utf-8", "latin-1", "utf-16", "base64"], "default": "utf-8",
        "description": "How the bytes are text. base64 for what is no text.",
    })
}

fn flag(default: bool, what: &str) -> Value {
    json!({ "type": "boolean", "default": default, "description": what })
}

fn number() -> Value {
    json!({ "type": "integer", "minimum": 0 })
}

fn text() -> Value {
    json!({ "type": "string" })
}

fn read_file() -> Definition {
    Definition {
        name: "read_file",
        title: "Read a file",
        description: "Reads a text file, or some of its lines. Long files come in parts: go on with next_offset. Binary files are refused unless the encoding is base64.",
        input: arguments(
            json!({
                "path": path("The file."),
                "offset": { "type": "integer", "minimum": 0, "description": "The first line, counted from 1. With base64: bytes to skip." },
                "limit": { "type": "integer", "minimum": 1, "description": format!("How many lines; {USUAL_LINES} unless given, and never more than {LARGEST_TEXT} bytes of text. With base64: bytes.") },
                "encoding": encoding(),
                "line_numbers": flag(false, "Put the number of each line before it, with a tab behind it."),
            }),
            &["path"],
        ),
        output: answer(
            json!({
                "path": text(), "content": text(), "encoding": text(),
                "size": { "type": "integer", "minimum": 0, "description": "Of the whole file, in bytes." },
                "first_line": number(), "last_line": number(), "total_lines": number(),
                "truncated": { "type": "boolean", "description": "Whether the file goes on behind content." },
                "next_offset": { "type": "integer", "minimum": 0, "description": "The offset that goes on." },
            }),
            &["path", "content", "encoding", "size", "truncated"],
        ),
        annotations: READS,
    }
}

fn write_file() -> Definition {
    Definition {
        name: "write_file",
        title: "Write a file",
        description: "Makes a file or replaces a whole one, in one step: whoever reads it sees the old contents or the new ones. Directories that are missing are made. To change a part of a file use edit_file.",
        input: arguments(
            json!({
                "path": path("The file."),
                "content": { "type": "string", "description": format!("The whole contents, at most {LARGEST_FILE} bytes.") },
                "encoding": encoding(),
                "mode": { "type": "string", "pattern": "^[0-7]{1,4}$", "description": "Permission bits in octal, as in 0755. Those of the file that is replaced, or 0644, unless given." },
                "must_be_new": flag(false, "Refuse when there is such a file already."),
            }),
            &["path", "content"],
        ),
        output: answer(
            json!({ "path": text(), "size": number(), "created": { "type": "boolean" } }),
            &["path", "size", "created"],
        ),
        annotations: Annotations { idempotent: true, ..CHANGES },
    }
}

fn edit_file() -> Definition {
    Definition {
        name: "edit_file",
        title: "Edit a file",
        description: "Replaces text in a file exactly. old_string must be in the file to the last space, and only once unless replace_all or expected_replacements is given; otherwise nothing is changed and the refusal names the lines.",
        input: arguments(
            json!({
                "path": path("The file."),
                "old_string": { "type": "string", "minLength": 1, "description": "What is there now, with as much around it as makes it unique." },
                "new_string": { "type": "string", "description": "What is to be there instead." },
                "replace_all": flag(false, "Replace every occurrence."),
                "expected_replacements": { "type": "integer", "minimum": 1, "description": "Replace every occurrence, but only if there are exactly so many." },
            }),
            &["path", "old_string", "new_string"],
        ),
        output: answer(
            json!({
                "path": text(), "replacements": number(), "size": number(),
                "lines": { "type": "array", "items": number(), "description": "Where the first ten were." },
            }),
            &["path", "replacements", "lines", "size"],
        ),
        annotations: CHANGES,
    }
}

fn delete_file() -> Definition {
    Definition {
        name: "delete_file",
        title: "Delete a file or a directory",
        description: "Deletes a file, a link or an empty directory; with recursive also a directory with everything in it.",
        input: arguments(
            json!({ "path": path("What to delete."), "recursive": flag(false, "A directory with everything in it.") }),
            &["path"],
        ),
        output: answer(json!({ "path": text(), "type": text() }), &["path", "type"]),
        annotations: CHANGES,
    }
}

fn list_dir() -> Definition {
    Definition {
        name: "list_dir",
        title: "List a directory",
        description: "Says what is in a directory, in order of names.",
        input: arguments(
            json!({
                "path": { "type": "string", "minLength": 1, "maxLength": 4096, "default": "/workspace", "description": "The directory. Absolute, or relative to /workspace." },
                "recursive": flag(false, "Everything below it, too."),
                "hidden": flag(true, "Names that begin with a dot, too."),
                "limit": { "type": "integer", "minimum": 1, "maximum": MOST_ENTRIES, "default": USUAL_ENTRIES },
            }),
            &[],
        ),
        output: answer(
            json!({
                "path": text(),
                "entries": { "type": "array", "items": {
                    "type": "object",
                    "properties": {
                        "path": text(),
                        "type": { "type": "string", "enum": ["file", "directory", "symlink", "other"] },
                        "size": number(),
                        "mtime": { "type": "number", "description": "Seconds since 1970." },
                        "target": text(),
                    },
                    "required": ["path", "type", "size", "mtime"],
                } },
                "truncated": { "type": "boolean" },
            }),
            &["path", "entries", "truncated"],
        ),
        annotations: READS,
    }
}

fn glob() -> Definition {
    Definition {
        name: "glob",
        title: "Find files by name",
        description: "Finds files and directories whose path matches a pattern such as **/*.py, src/*.{c,h} or /etc/*.conf. Directories end in a slash.",
        input: arguments(
            json!({
                "pattern": { "type": "string", "minLength": 1, "maxLength": LONGEST_PATTERN, "description": "* and ? stay within a name, ** goes through directories, [a-z] is one of, {a,b} is either." },
                "path": { "type": "string", "minLength": 1, "maxLength": 4096, "default": "/workspace", "description": "The directory that a relative pattern is taken from." },
                "hidden": flag(false, "Names that begin with a dot, too, where the pattern does not name them."),
                "limit": { "type": "integer", "minimum": 1, "maximum": MOST_ENTRIES, "default": USUAL_ENTRIES },
            }),
            &["pattern"],
        ),
        output: answer(
            json!({ "paths": { "type": "array", "items": text() }, "truncated": { "type": "boolean" } }),
            &["paths", "truncated"],
        ),
        annotations: READS,
    }
}

fn grep() -> Definition {
    let globs = |what: &str| json!({ "type": "array", "items": { "type": "string", "minLength": 1 }, "description": what });
    let lines = json!({ "type": "array", "items": text() });
    Definition {
        name: "grep",
        title: "Search in files",
        description: "Finds lines that match a regular expression, with what is around them. Binary files are passed by, and so are hidden ones unless asked for.",
        input: arguments(
            json!({
                "pattern": { "type": "string", "minLength": 1, "maxLength": LONGEST_PATTERN, "description": "A regular expression without look-around and back-references." },
                "path": { "type": "string", "minLength": 1, "maxLength": 4096, "default": "/workspace", "description": "A directory or a file. Absolute, or relative to /workspace." },
                "include": globs("Patterns of files to search, as *.py. One without a slash is about the name alone."),
                "exclude": globs("Patterns of files and directories to leave out, as node_modules."),
                "ignore_case": flag(false, "Whether small and capital letters are the same."),
                "literal": flag(false, "The pattern is a text, not a regular expression."),
                "context": { "type": "integer", "minimum": 0, "maximum": MOST_CONTEXT, "default": 0, "description": "Lines before and after each match." },
                "hidden": flag(false, "Files and directories whose names begin with a dot, too."),
                "max_results": { "type": "integer", "minimum": 1, "maximum": MOST_MATCHES, "default": USUAL_MATCHES },
            }),
            &["pattern"],
        ),
        output: answer(
            json!({
                "matches": { "type": "array", "items": {
                    "type": "object",
                    "properties": { "path": text(), "line": number(), "column": number(), "text": text(), "before": lines, "after": lines },
                    "required": ["path", "line", "column", "text"],
                } },
                "files_searched": number(),
                "files_skipped": number(),
                "truncated": { "type": "boolean" },
                "truncated_by": { "type": "string", "enum": ["max_results", "size", "time"] },
            }),
            &["matches", "files_searched", "files_skipped", "truncated"],
        ),
        annotations: READS,
    }
}

fn apply_patch() -> Definition {
    Definition {
        name: "apply_patch",
        title: "Apply a patch",
        description: "Applies a unified diff to any number of files: all of it, or nothing. It may change, make, delete and rename files. A hunk may be at other lines than it says, but its old lines must be there exactly.",
        input: arguments(
            json!({
                "patch": { "type": "string", "minLength": 1, "description": "A unified diff, as diff -u and git diff write it." },
                "path": { "type": "string", "minLength": 1, "maxLength": 4096, "default": "/workspace", "description": "The directory that names in the patch are relative to." },
                "strip": { "type": "integer", "minimum": 0, "maximum": 100, "description": "Directories to leave out at the beginning of names. Unless given, a/ and b/ are left out." },
                "dry_run": flag(false, "Only say what would be done."),
            }),
            &["patch"],
        ),
        output: answer(
            json!({
                "files": { "type": "array", "items": {
                    "type": "object",
                    "properties": {
                        "path": text(),
                        "action": { "type": "string", "enum": ["modified", "created", "deleted", "renamed"] },
                        "renamed_from": text(),
                        "added": number(),
                        "removed": number(),
                        "moved_hunks": { "type": "object", "additionalProperties": { "type": "integer" }, "description": "By how many lines a hunk was elsewhere, by its number." },
                    },
                    "required": ["path", "action", "added", "removed"],
                } },
                "dry_run": { "type": "boolean" },
            }),
            &["files", "dry_run"],
        ),
        annotations: CHANGES,
    }
}
