//! Tools that run things.

use serde_json::{Value, json};

use super::{Annotations, CHANGES, Definition, READS, RUNS, answer, arguments};
use crate::execs::{LARGEST_OUTPUT, LONGEST_TIMEOUT, USUAL_OUTPUT, USUAL_TIMEOUT};

pub(super) fn definitions() -> [Definition; 4] {
    [execute(), exec_output(), exec_stop(), run_code()]
}

fn timeout() -> Value {
    json!({ "type": "number", "exclusiveMinimum": 0, "maximum": LONGEST_TIMEOUT, "default": USUAL_TIMEOUT, "description": "Seconds after which it is ended with everything it started." })
}

fn most_output() -> Value {
    json!({ "type": "integer", "minimum": 1, "maximum": LARGEST_OUTPUT, "default": USUAL_OUTPUT, "description": "Of each stream in the answer. Of more than that the middle is left out." })
}

fn exec_id() -> Value {
    json!({ "type": "string", "description": "As execute answered." })
}

fn executed() -> serde_json::Map<String, Value> {
    let properties = json!({
        "exec_id": { "type": "string" },
        "state": { "type": "string", "enum": ["running", "ended"] },
        "stdout": { "type": "string" },
        "stderr": { "type": "string" },
        "exit_code": { "type": ["integer", "null"], "description": "As a shell would say it: 128 and the number for a signal, 124 after the timeout. Null while it runs." },
        "timed_out": { "type": "boolean" },
        "ended_by": { "type": "string", "enum": ["exit", "signal", "out_of_memory", "timeout", "unknown"] },
        "stdout_truncated": { "type": "boolean" },
        "stderr_truncated": { "type": "boolean" },
        "next_seq": { "type": "integer", "minimum": 0, "description": "What exec_output goes on from." },
    });
    properties.as_object().cloned().unwrap_or_default()
}

const EXECUTED: [&str; 9] = [
    "exec_id",
    "state",
    "stdout",
    "stderr",
    "exit_code",
    "timed_out",
    "stdout_truncated",
    "stderr_truncated",
    "next_seq",
];

fn execute() -> Definition {
    Definition {
        name: "execute",
        title: "Run a command",
        description: "Runs a shell command and answers with its output when it has ended. With background it goes on by itself, as servers should: read its output with exec_output and end it with exec_stop. There is no terminal; do not start editors or pagers.",
        input: arguments(
            json!({
                "command": { "type": "string", "minLength": 1, "description": "A command line for the shell." },
                "timeout": timeout(),
                "cwd": { "type": "string", "default": "/workspace", "description": "The working directory. Absolute, or relative to /workspace." },
                "env": { "type": "object", "additionalProperties": { "type": "string" }, "description": "Variables to add to the environment." },
                "stdin": { "type": "string", "description": "What it reads from its standard input." },
                "background": { "type": "boolean", "default": false, "description": "Answer as soon as it has started. Then there is no timeout unless one is given." },
                "max_output_bytes": most_output(),
            }),
            &["command"],
        ),
        output: answer(executed().into(), &EXECUTED),
        annotations: RUNS,
    }
}

fn exec_output() -> Definition {
    Definition {
        name: "exec_output",
        title: "Read the output of a command",
        description: "Says what a command has printed from some place on, and whether it still runs. Go on with next_seq.",
        input: arguments(
            json!({
                "exec_id": exec_id(),
                "from_seq": { "type": "integer", "minimum": 0, "default": 0, "description": "next_seq of the answer before; 0 for everything." },
                "wait_seconds": { "type": "number", "minimum": 0, "maximum": 300, "default": 0, "description": "How long to wait for something to be printed, or for its end." },
                "max_output_bytes": most_output(),
            }),
            &["exec_id"],
        ),
        output: answer(executed().into(), &EXECUTED),
        annotations: READS,
    }
}

fn exec_stop() -> Definition {
    Definition {
        name: "exec_stop",
        title: "Stop a command",
        description: "Ends a command with everything it started: it is asked to end, and killed after a while. One that has ended stays as it is.",
        input: arguments(
            json!({
                "exec_id": exec_id(),
                "grace_seconds": { "type": "number", "minimum": 0, "maximum": 600, "description": "Between being asked and being killed." },
            }),
            &["exec_id"],
        ),
        output: answer(
            json!({ "exec_id": { "type": "string" }, "stopped": { "type": "boolean" } }),
            &["exec_id", "stopped"],
        ),
        annotations: Annotations { idempotent: true, ..CHANGES },
    }
}

fn run_code() -> Definition {
    let mut properties = executed();
    properties.insert("status".into(), json!({ "type": "string", "enum": ["success", "error", "timeout"] }));
    properties.insert(
        "files_produced".into(),
        json!({ "type": "array", "description": "Files that are new or changed.", "items": {
            "type": "object",
            "properties": { "name": { "type": "string" }, "bytes": { "type": "integer", "minimum": 0 } },
            "required": ["name", "bytes"],
        } }),
    );
    let required: Vec<&str> = ["status", "files_produced"].into_iter().chain(EXECUTED).collect();
    Definition {
        name: "run_code",
        title: "Run code",
        description: "Runs code in /workspace, with packages that it requires and files that it reads. Names of files it has made are in the answer; read them with read_file. Nothing but files is kept between calls.",
        input: arguments(
            json!({
                "code": { "type": "string", "minLength": 1 },
                "language": { "type": "string", "default": "python", "description": "python, bash or javascript, and what the sandbox's template has." },
                "requirements": { "type": "array", "items": { "type": "string" }, "description": "Python packages, as in pandas==2.2.0." },
                "env_name": { "type": "string", "description": "The environment to use, or the name that the one for the requirements gets." },
                "files": { "type": "object", "additionalProperties": { "type": "string" }, "description": "Text files to write first, by relative path." },
                "stdin": { "type": "string", "description": "What it reads from its standard input." },
                "timeout": timeout(),
                "max_output_bytes": most_output(),
            }),
            &["code"],
        ),
        output: answer(properties.into(), &required),
        annotations: RUNS,
    }
}
