//! Tools for skills: instructions that workers look up.

use serde_json::json;

use super::workspace::{number, text};
use super::{Annotations, CHANGES, Definition, READS, answer, arguments};

pub(super) fn definitions() -> [Definition; 3] {
    [list(), get(), create()]
}

fn list() -> Definition {
    Definition {
        name: "list_skills",
        title: "List skills",
        description: "List the skills in /workspace/shared/skills/: instructions for jobs that were done before, each with when to use it. Workers see them, too. get_skill reads one.",
        input: arguments(json!({}), &[]),
        output: answer(
            json!({
                "skills": { "type": "array", "items": {
                    "type": "object",
                    "properties": {
                        "name": text(),
                        "description": text(),
                        "path": { "type": "string", "description": "Of its SKILL.md, relative to /workspace/shared/." },
                        "warnings": { "type": "array", "items": text() },
                    },
                    "required": ["name", "description", "path"],
                } },
                "refused": { "type": "array", "description": "What looks like a skill and cannot be used.", "items": {
                    "type": "object",
                    "properties": { "path": text(), "why": text() },
                    "required": ["path", "why"],
                } },
            }),
            &["skills", "refused"],
        ),
        annotations: READS,
    }
}

fn skill() -> serde_json::Value {
    json!({
        "name": text(),
        "description": text(),
        "license": text(),
        "compatibility": text(),
        "allowed_tools": text(),
        "metadata": { "type": "object" },
        "path": { "type": "string", "description": "Of its SKILL.md, relative to /workspace/shared/." },
        "content": { "type": "string", "description": "The instructions." },
        "files": { "type": "array", "description": "Its other files; read_workspace reads them.", "items": {
            "type": "object",
            "properties": { "path": text(), "size": number() },
            "required": ["path", "size"],
        } },
        "warnings": { "type": "array", "items": text() },
    })
}

const REQUIRED: [&str; 5] = ["name", "description", "path", "content", "files"];

fn get() -> Definition {
    Definition {
        name: "get_skill",
        title: "Read a skill",
        description: "Read the instructions of a skill, and which other files it has.",
        input: arguments(
            json!({ "name": { "type": "string", "minLength": 1, "maxLength": 255, "description": "As list_skills says." } }),
            &["name"],
        ),
        output: answer(skill(), &REQUIRED),
        annotations: READS,
    }
}

fn create() -> Definition {
    Definition {
        name: "create_skill",
        title: "Create a skill",
        description: "Create a skill in /workspace/shared/skills/ for future workers. Use this after a task went well and the same kind of job will come again: say when to use the skill in its description, and how the job is done in its content.",
        input: arguments(
            json!({
                "name": { "type": "string", "minLength": 1, "maxLength": 64, "pattern": "^[a-z0-9]+(-[a-z0-9]+)*$", "description": "Lower-case letters, digits and single hyphens, e.g., 'spending-charts'." },
                "description": { "type": "string", "minLength": 1, "maxLength": 1024, "description": "What the skill does and when to use it." },
                "content": { "type": "string", "description": "The instructions, in Markdown." },
                "files": { "type": "array", "maxItems": 255, "description": "Other files of the skill, such as scripts.", "items": {
                    "type": "object",
                    "properties": {
                        "path": { "type": "string", "minLength": 1, "maxLength": 1024, "description": "Relative to the skill, e.g., 'scripts/chart.py'." },
                        "content": text(),
                        "encoding": { "type": "string", "enum": ["utf-8", "base64"], "description": "utf-8 unless given." },
                    },
                    "required": ["path", "content"],
                    "additionalProperties": false,
                } },
            }),
            &["name", "description", "content"],
        ),
        output: answer(skill(), &REQUIRED),
        annotations: Annotations { destructive: false, ..CHANGES },
    }
}
