//! Tools that make sandboxes and give them back.

use serde_json::{Value, json};

use super::{Annotations, CHANGES, Definition, READS, answer, arguments};

pub(super) fn definitions() -> [Definition; 3] {
    [
        Definition {
            name: "create_sandbox",
            title: "Make a sandbox",
            description: "Makes another sandbox, beside your own. Name its sandbox_id in calls that should work in it, and give it back with release_sandbox. You need this only for work that must be kept apart.",
            input: arguments(
                json!({
                    "template": { "type": "string", "description": "What it is made from, where the server has templates." },
                    "ttl_seconds": { "type": "integer", "minimum": 1, "maximum": 604_800, "description": "How long it lives without being used." },
                }),
                &[],
            ),
            output: answer(shown(), &REQUIRED),
            annotations: Annotations {
                read_only: false,
                destructive: false,
                idempotent: false,
                open_world: false,
            },
        },
        Definition {
            name: "list_sandboxes",
            title: "List sandboxes",
            description: "Lists the sandboxes that you have.",
            input: arguments(json!({}), &[]),
            output: answer(
                json!({ "sandboxes": { "type": "array", "items": answer(shown(), &REQUIRED) } }),
                &["sandboxes"],
            ),
            annotations: READS,
        },
        Definition {
            name: "release_sandbox",
            title: "Give a sandbox back",
            description: "Ends everything that runs in a sandbox and destroys it with its files. Your next call without a sandbox_id gets a fresh one.",
            input: arguments(
                json!({ "sandbox_id": { "type": "string", "description": "The sandbox." } }),
                &["sandbox_id"],
            ),
            output: answer(
                json!({ "sandbox_id": { "type": "string" }, "released": { "type": "boolean" } }),
                &["sandbox_id", "released"],
            ),
            annotations: Annotations { idempotent: true, ..CHANGES },
        },
    ]
}

const REQUIRED: [&str; 3] = ["sandbox_id", "state", "isolation"];

fn shown() -> Value {
    json!({
        "sandbox_id": { "type": "string" },
        "state": { "type": "string" },
        "template": { "type": "string" },
        "isolation": { "type": "string" },
        "created_at": { "type": "string" },
    })
}
