//! How tools for shared files and skills are done, over a tree of this host.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cubicle_model::Kind;
use cubicle_workspace::skills::NewSkill;
use cubicle_workspace::{Condition, Piece, Tree};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::call::{answer, parsed};
use crate::error::ToolError;

pub(crate) const USUAL_READ: u64 = 256 * 1024;
pub(crate) const MOST_READ: u64 = 8 * 1024 * 1024;
pub(crate) const LARGEST_CONTENT: usize = 16 * 1024 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
enum Encoding {
    #[serde(rename = "utf-8")]
    Utf8,
    #[serde(rename = "base64")]
    Base64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Read {
    path: String,
    #[serde(default)]
    offset: u64,
    limit: Option<u64>,
    encoding: Option<Encoding>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Write {
    path: String,
    content: String,
    encoding: Option<Encoding>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct List {
    #[serde(default)]
    path: String,
    #[serde(default)]
    recursive: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Delete {
    path: String,
    #[serde(default)]
    recursive: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Move {
    from: String,
    to: String,
    #[serde(default)]
    overwrite: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Glob {
    pattern: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GetSkill {
    name: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateSkill {
    name: String,
    description: String,
    content: String,
    #[serde(default)]
    files: Vec<SkillFile>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SkillFile {
    path: String,
    content: String,
    encoding: Option<Encoding>,
}

/// Does a tool of [`crate::definitions::workspace`]. It blocks.
pub fn work(tree: &Tree, tool: &str, arguments: Value) -> Result<Value, ToolError> {
    match tool {
        "read_workspace" => read(tree, parsed(arguments)?),
        "write_workspace" => {
            let Write { path, content, encoding } = parsed(arguments)?;
            let written = tree.write(&path, &decoded(content, encoding)?)?;
            Ok(json!({ "path": written.path, "size": written.size, "created": written.created }))
        }
        "list_workspace" => {
            let List { path, recursive } = parsed(arguments)?;
            let mut listed = answer(tree.list(&path, recursive)?)?;
            listed["path"] = path.into();
            Ok(listed)
        }
        "delete_workspace" => {
            let Delete { path, recursive } = parsed(arguments)?;
            answer(tree.delete(&path, recursive, &Condition::Always)?)
        }
        "move_workspace" => {
            let Move { from, to, overwrite } = parsed(arguments)?;
            tree.rename(&from, &to, overwrite)?;
            Ok(json!({ "from": from, "to": to }))
        }
        "glob_workspace" => {
            let Glob { pattern } = parsed(arguments)?;
            answer(tree.glob(&pattern)?)
        }
        "list_skills" => answer(tree.list_skills()?),
        "get_skill" => {
            let GetSkill { name } = parsed(arguments)?;
            answer(tree.get_skill(&name)?)
        }
        "create_skill" => create_skill(tree, parsed(arguments)?),
        _ => Err(crate::call::no_such_tool()),
    }
}

/// What is noted of a tool that changes something, and of what.
pub fn deed(tool: &str) -> Option<(&'static str, &'static str)> {
    match tool {
        "write_workspace" => Some(("workspace.write", "path")),
        "delete_workspace" => Some(("workspace.delete", "path")),
        "move_workspace" => Some(("workspace.move", "from")),
        "create_skill" => Some(("skill.create", "name")),
        _ => None,
    }
}

fn read(tree: &Tree, asked: Read) -> Result<Value, ToolError> {
    let usual =
        tree.read(&asked.path, asked.offset, Some(asked.limit.unwrap_or(USUAL_READ).min(MOST_READ)))?;
    let is_picture = is_picture(&usual.kind);
    let encoding = asked.encoding.unwrap_or(if is_picture { Encoding::Base64 } else { Encoding::Utf8 });
    // Half a picture is none.
    let cut = usual.bytes.len() as u64 != usual.size;
    let piece = if is_picture && cut && asked.offset == 0 && asked.limit.is_none() && usual.size <= MOST_READ
    {
        tree.read(&asked.path, 0, Some(MOST_READ))?
    } else {
        usual
    };
    let Piece { mut bytes, size, kind, modified, .. } = piece;
    let content = match encoding {
        Encoding::Base64 => STANDARD.encode(&bytes),
        Encoding::Utf8 => {
            let goes_on = asked.offset + (bytes.len() as u64) < size;
            let text = text_of(&mut bytes, goes_on).ok_or_else(|| {
                ToolError::new(Kind::Invalid, "not_text", format!("the file is no text in UTF-8 but {kind}"))
                    .hint("give the encoding base64, or an offset at which a character begins")
            })?;
            text.to_owned()
        }
    };
    let end = asked.offset.min(size) + bytes.len() as u64;
    let mut shown = json!({
        "path": asked.path,
        "content": content,
        "encoding": match encoding { Encoding::Utf8 => "utf-8", Encoding::Base64 => "base64" },
        "type": kind,
        "size": size,
        "truncated": end < size,
        "modified": modified,
    });
    if end < size {
        shown["next_offset"] = end.into();
    }
    Ok(shown)
}

/// The text, without a character that is cut off at the end of a part.
fn text_of(bytes: &mut Vec<u8>, goes_on: bool) -> Option<&str> {
    if let Err(error) = std::str::from_utf8(bytes) {
        if error.error_len().is_some() || !goes_on {
            return None;
        }
        bytes.truncate(error.valid_up_to());
    }
    std::str::from_utf8(bytes).ok().filter(|text| !text.contains('\0'))
}

fn create_skill(tree: &Tree, asked: CreateSkill) -> Result<Value, ToolError> {
    let CreateSkill { name, description, content, files: given } = asked;
    let mut files = BTreeMap::new();
    for SkillFile { path, content, encoding } in given {
        if files.insert(path.clone(), decoded(content, encoding)?).is_some() {
            return Err(ToolError::invalid(format!("'{}' is given twice", path.escape_default())));
        }
    }
    let new = NewSkill { name: &name, description: &description, content: &content, files };
    answer(tree.create_skill(&new)?)
}

fn decoded(content: String, encoding: Option<Encoding>) -> Result<Vec<u8>, ToolError> {
    let bytes = match encoding.unwrap_or(Encoding::Utf8) {
        Encoding::Utf8 => content.into_bytes(),
        Encoding::Base64 => STANDARD
            .decode(content.trim())
            .map_err(|error| ToolError::invalid(format!("the content is not base64: {error}")))?,
    };
    if bytes.len() > LARGEST_CONTENT {
        return Err(ToolError::invalid(format!("the content has more than {LARGEST_CONTENT} bytes"))
            .hint("'cubicle workspace put' takes larger files"));
    }
    Ok(bytes)
}

/// Types that clients of MCP show.
pub(crate) fn is_picture(kind: &str) -> bool {
    matches!(kind, "image/png" | "image/jpeg" | "image/gif" | "image/webp")
}

#[cfg(test)]
mod tests {
    use cubicle_workspace::SharedWorkspace;

    use super::*;

    fn tree() -> (tempfile::TempDir, Tree) {
        let directory = tempfile::tempdir().unwrap();
        let workspace = SharedWorkspace::open(directory.path().join("shared")).unwrap();
        let tree = workspace.of(&"default".parse().unwrap());
        (directory, tree)
    }

    #[test]
    fn the_tools_do_a_job() {
        let (_directory, tree) = tree();
        let call = |tool: &str, arguments: Value| work(&tree, tool, arguments);
        let written = call("write_workspace", json!({ "path": "data/in.csv", "content": "a,b\n" })).unwrap();
        assert_eq!(written, json!({ "path": "data/in.csv", "size": 4, "created": true }));
        let read = call("read_workspace", json!({ "path": "data/in.csv" })).unwrap();
        assert_eq!((&read["content"], &read["type"]), (&json!("a,b\n"), &json!("text/csv")));
        let listed = call("list_workspace", json!({})).unwrap();
        assert_eq!(listed["entries"].as_array().unwrap().len(), 3);
        let listed = call("list_workspace", json!({ "path": "", "recursive": true })).unwrap();
        assert_eq!(listed["entries"][1]["path"], "data/in.csv");
        call("move_workspace", json!({ "from": "data/in.csv", "to": "data/out.csv" })).unwrap();
        let found = call("glob_workspace", json!({ "pattern": "**/*.csv" })).unwrap();
        assert_eq!(found["entries"][0]["path"], "data/out.csv");
        let gone = call("delete_workspace", json!({ "path": "data/out.csv" })).unwrap();
        assert_eq!(gone["files"], 1);
        assert_eq!(
            call("read_workspace", json!({ "path": "data/out.csv" })).unwrap_err().kind,
            Kind::NotFound
        );

        let files = json!([{ "path": "scripts/a.py", "content": "cHJpbnQoKQ==", "encoding": "base64" }]);
        let skill = json!({ "name": "charts", "description": "Draws.", "content": "# How", "files": files });
        assert_eq!(call("create_skill", skill.clone()).unwrap()["files"][0]["size"], 7);
        assert_eq!(call("list_skills", json!({})).unwrap()["skills"][0]["name"], "charts");
        assert_eq!(call("get_skill", json!({ "name": "charts" })).unwrap()["content"], "# How\n");
        assert_eq!(call("create_skill", skill).unwrap_err().kind, Kind::Conflict);
    }

    #[test]
    fn a_long_text_comes_in_parts_of_whole_characters() {
        let (_directory, tree) = tree();
        let text = "é".repeat(1000);
        tree.write("data/x.txt", text.as_bytes()).unwrap();
        let (mut seen, mut offset) = (String::new(), 0);
        loop {
            let asked = json!({ "path": "data/x.txt", "offset": offset, "limit": 333 });
            let part = work(&tree, "read_workspace", asked).unwrap();
            seen.push_str(part["content"].as_str().unwrap());
            match part["next_offset"].as_u64() {
                Some(next) => offset = next,
                None => break,
            }
        }
        assert_eq!(seen, text);
    }

    #[test]
    fn what_is_no_text_needs_to_be_asked_for_and_pictures_do_not() {
        let (_directory, tree) = tree();
        tree.write("data/x.bin", b"\xff\0").unwrap();
        let refused = work(&tree, "read_workspace", json!({ "path": "data/x.bin" })).unwrap_err();
        assert!(refused.code == "not_text" && refused.hint.unwrap().contains("base64"));
        let read =
            work(&tree, "read_workspace", json!({ "path": "data/x.bin", "encoding": "base64" })).unwrap();
        assert_eq!(read["content"], "/wA=");
        let picture = [&b"\x89PNG\r\n\x1a\n"[..], &vec![7; 300_000]].concat();
        tree.write("data/x.png", &picture).unwrap();
        let read = work(&tree, "read_workspace", json!({ "path": "data/x.png" })).unwrap();
        assert_eq!((&read["encoding"], &read["truncated"]), (&json!("base64"), &json!(false)));
        assert_eq!(STANDARD.decode(read["content"].as_str().unwrap()).unwrap(), picture);
    }

    #[test]
    fn bad_content_changes_nothing() {
        let (_directory, tree) = tree();
        let asked = json!({ "path": "data/x", "content": "%%", "encoding": "base64" });
        assert_eq!(work(&tree, "write_workspace", asked).unwrap_err().kind, Kind::Invalid);
        assert!(tree.read("data/x", 0, None).is_err());
    }
}
