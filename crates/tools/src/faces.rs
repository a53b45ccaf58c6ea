//! The table in the forms that others expect.

use serde_json::{Value, json};

use crate::definitions::{Definition, definitions, lifecycle, workspace};

/// What is called over the API, and whether in a sandbox.
fn for_clients() -> impl Iterator<Item = (bool, &'static Definition)> {
    let in_sandboxes = definitions().iter().map(|definition| (true, definition));
    in_sandboxes.chain(workspace().iter().map(|definition| (false, definition)))
}

/// As the API's own clients get it.
pub fn native_form() -> Value {
    let shown = for_clients().map(|(needs_sandbox, definition)| {
        json!({
            "name": definition.name,
            "needs_sandbox": needs_sandbox,
            "title": definition.title,
            "description": definition.description,
            "input_schema": definition.input,
            "output_schema": definition.output,
            "annotations": definition.annotations,
        })
    });
    json!({ "tools": shown.collect::<Vec<_>>() })
}

/// As functions for the `tools` of OpenAI's chat completions, and of whoever has the same form.
pub fn openai_form() -> Value {
    let shown = for_clients().map(|(_, definition)| {
        json!({
            "type": "function",
            "function": {
                "name": definition.name,
                "description": definition.description,
                "parameters": definition.input,
            },
        })
    });
    json!({ "tools": shown.collect::<Vec<_>>() })
}

/// As the result of MCP's `tools/list`, with the tools for sandboxes themselves.
pub fn mcp_form() -> Value {
    json!({ "tools": all_for_mcp().map(|definition| mcp_tool(&definition)).collect::<Vec<_>>() })
}

/// What an MCP server has. Where no other place names the sandbox, an argument does.
pub(crate) fn all_for_mcp() -> impl Iterator<Item = Definition> {
    let without_sandbox = workspace().iter().chain(lifecycle()).cloned();
    definitions().iter().map(Definition::with_sandbox).chain(without_sandbox)
}

pub(crate) fn mcp_tool(definition: &Definition) -> Value {
    let annotations = definition.annotations;
    json!({
        "name": definition.name,
        "title": definition.title,
        "description": definition.description,
        "inputSchema": definition.input,
        "outputSchema": definition.output,
        "annotations": {
            "title": definition.title,
            "readOnlyHint": annotations.read_only,
            "destructiveHint": annotations.destructive,
            "idempotentHint": annotations.idempotent,
            "openWorldHint": annotations.open_world,
        },
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn definitions_are_as_reviewed() {
        insta::assert_json_snapshot!("native", native_form());
        insta::assert_json_snapshot!("openai", openai_form());
        insta::assert_json_snapshot!("mcp", mcp_form());
    }

    #[test]
    fn names_are_unique_and_schemas_are_of_objects() {
        let all: Vec<_> = all_for_mcp().collect();
        assert_eq!(all.iter().map(|d| d.name).collect::<BTreeSet<_>>().len(), all.len());
        for definition in all {
            assert!(definition.name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'));
            for schema in [&definition.input, &definition.output] {
                assert_eq!(schema["type"], "object", "{}", definition.name);
                for required in schema["required"].as_array().unwrap() {
                    assert!(schema["properties"].get(required.as_str().unwrap()).is_some(), "{required}");
                }
            }
            assert_eq!(definition.input["additionalProperties"], false);
        }
    }

    /// Every argument that the table names is one that whoever does the tool knows.
    #[test]
    fn arguments_of_the_table_are_those_that_are_read() {
        use cubicle_guest::wire::tools as wire;
        fn fields<T: serde::de::DeserializeOwned>(name: &str) -> bool {
            // An unknown field is refused with the list of those that are known.
            let error = serde_json::from_value::<T>(json!({ "\u{0}": 1 })).err().unwrap().to_string();
            let (_, definition) = for_clients().find(|(_, definition)| definition.name == name).unwrap();
            let known: BTreeSet<String> = error.split('`').skip(3).step_by(2).map(str::to_owned).collect();
            let named: BTreeSet<String> = definition.argument_names().map(str::to_owned).collect();
            assert_eq!(named, known, "{name}");
            true
        }
        assert!(fields::<wire::ReadFile>("read_file"));
        assert!(fields::<wire::WriteFile>("write_file"));
        assert!(fields::<wire::EditFile>("edit_file"));
        assert!(fields::<wire::DeleteFile>("delete_file"));
        assert!(fields::<wire::ListDir>("list_dir"));
        assert!(fields::<wire::Glob>("glob"));
        assert!(fields::<wire::Grep>("grep"));
        assert!(fields::<wire::ApplyPatch>("apply_patch"));
        assert!(fields::<crate::execs::Execute>("execute"));
        assert!(fields::<crate::execs::ExecOutput>("exec_output"));
        assert!(fields::<crate::execs::ExecStop>("exec_stop"));
        assert!(fields::<crate::code::RunCode>("run_code"));
        assert!(fields::<crate::workspace::Read>("read_workspace"));
        assert!(fields::<crate::workspace::Write>("write_workspace"));
        assert!(fields::<crate::workspace::List>("list_workspace"));
        assert!(fields::<crate::workspace::Delete>("delete_workspace"));
        assert!(fields::<crate::workspace::Move>("move_workspace"));
        assert!(fields::<crate::workspace::CreateSkill>("create_skill"));
    }
}
