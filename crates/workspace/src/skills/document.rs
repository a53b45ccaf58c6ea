//! `SKILL.md`: properties between two lines of `---`, then instructions. The rules are those of the Agent Skills format.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

const KNOWN: [&str; 6] = ["name", "description", "license", "compatibility", "metadata", "allowed-tools"];
const LONGEST_NAME: usize = 64;
const LONGEST_DESCRIPTION: usize = 1024;
const LONGEST_COMPATIBILITY: usize = 500;
const LONGEST_PROPERTIES: usize = 64 * 1024;

/// A skill as it was written.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    pub properties: Properties,
    /// The instructions.
    pub body: String,
    /// What is against the rules and was read all the same.
    pub warnings: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Properties {
    pub name: String,
    pub description: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub license: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compatibility: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed_tools: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, Value>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotASkill(pub String);

impl std::fmt::Display for NotASkill {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotASkill {}

impl Document {
    /// As somebody put it there: what can be used is used, with warnings. A skill without a description cannot.
    pub fn read(text: &str, directory: &str) -> Result<Self, NotASkill> {
        let (properties, body) = split(text)?;
        let mut warnings = Vec::new();
        let mut given = parsed(properties)?;
        let description = text_of(&mut given, "description", &mut warnings).unwrap_or_default();
        if description.trim().is_empty() {
            return Err(NotASkill("it has no description".into()));
        }
        let name = match text_of(&mut given, "name", &mut warnings) {
            Some(name) => name,
            None => {
                warnings.push(format!("it has no name; '{directory}' is taken, where it lies"));
                directory.into()
            }
        };
        if let Err(why) = check_name(&name) {
            warnings.push(why);
        }
        if name != directory {
            warnings.push(format!("it is called '{name}' but lies in '{directory}'"));
        }
        if description.chars().count() > LONGEST_DESCRIPTION {
            warnings.push(too_long("description", LONGEST_DESCRIPTION));
        }
        let compatibility = text_of(&mut given, "compatibility", &mut warnings);
        if compatibility.as_ref().is_some_and(|text| text.chars().count() > LONGEST_COMPATIBILITY) {
            warnings.push(too_long("compatibility", LONGEST_COMPATIBILITY));
        }
        let license = text_of(&mut given, "license", &mut warnings);
        let allowed_tools = text_of(&mut given, "allowed-tools", &mut warnings);
        let metadata = match given.remove("metadata") {
            Some(Value::Object(metadata)) => metadata.into_iter().collect(),
            None | Some(Value::Null) => BTreeMap::new(),
            Some(_) => {
                warnings.push("metadata is not a map".into());
                BTreeMap::new()
            }
        };
        warnings.extend(given.keys().map(|key| unknown(key)));
        let properties = Properties { name, description, license, compatibility, allowed_tools, metadata };
        Ok(Self { properties, body: body.into(), warnings })
    }

    /// As it is to be made: every rule is kept.
    pub fn strict(text: &str, directory: &str) -> Result<Self, NotASkill> {
        let document = Self::read(text, directory)?;
        match document.warnings.first() {
            Some(why) => Err(NotASkill(why.clone())),
            None => Ok(document),
        }
    }
}

/// The text of a skill, from its parts.
pub(super) fn written(name: &str, description: &str, body: &str) -> String {
    // A string of JSON is one of YAML, whatever is in it.
    let quoted = |text: &str| Value::from(text).to_string();
    let end = if body.is_empty() || body.ends_with('\n') { "" } else { "\n" };
    format!("---\nname: {}\ndescription: {}\n---\n\n{body}{end}", quoted(name), quoted(description))
}

/// Whether somebody gave a whole `SKILL.md` where only the instructions were asked for.
pub(super) fn has_properties(text: &str) -> bool {
    split(text).is_ok()
}

pub(super) fn check_name(name: &str) -> Result<(), String> {
    let allowed = |c: char| c == '-' || c.is_ascii_digit() || c.is_ascii_lowercase();
    let good = (1..=LONGEST_NAME).contains(&name.len())
        && name.chars().all(allowed)
        && !name.starts_with('-')
        && !name.ends_with('-')
        && !name.contains("--");
    match good {
        true => Ok(()),
        false => Err(format!(
            "'{}' is not a name of a skill: expected 1 to {LONGEST_NAME} of a-z, 0-9 and single '-' between them",
            name.chars().take(80).collect::<String>().escape_debug()
        )),
    }
}

pub(super) fn check_description(description: &str) -> Result<(), String> {
    match description.trim().is_empty() || description.chars().count() > LONGEST_DESCRIPTION {
        true => Err(format!("a description has 1 to {LONGEST_DESCRIPTION} characters")),
        false => Ok(()),
    }
}

/// The properties and the rest.
fn split(text: &str) -> Result<(&str, &str), NotASkill> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let missing = || NotASkill("it does not begin with properties between two lines of '---'".into());
    let first = text.lines().next().ok_or_else(missing)?;
    if first.trim_end() != "---" {
        return Err(missing());
    }
    let rest = text.split_once('\n').ok_or_else(missing)?.1;
    let mut at = 0;
    for line in rest.split_inclusive('\n') {
        if line.trim_end() == "---" {
            let body = rest[at + line.len()..].trim_start_matches(['\r', '\n']);
            return Ok((&rest[..at], body));
        }
        at += line.len();
    }
    Err(missing())
}

fn parsed(properties: &str) -> Result<BTreeMap<String, Value>, NotASkill> {
    if properties.len() > LONGEST_PROPERTIES {
        return Err(NotASkill(format!("its properties are longer than {LONGEST_PROPERTIES} bytes")));
    }
    serde_saphyr::from_str(properties).map_err(|error| {
        let why = error.to_string();
        let why = why.lines().next().unwrap_or("it is no YAML").to_owned();
        NotASkill(format!("its properties cannot be read: {why}"))
    })
}

fn text_of(given: &mut BTreeMap<String, Value>, key: &str, warnings: &mut Vec<String>) -> Option<String> {
    match given.remove(key)? {
        Value::String(text) => Some(text),
        Value::Null => None,
        Value::Array(parts) if parts.iter().all(Value::is_string) => {
            warnings.push(format!("{key} is a list; it should be text"));
            Some(parts.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" "))
        }
        other => {
            warnings.push(format!("{key} is not text"));
            Some(other.to_string())
        }
    }
}

fn too_long(key: &str, most: usize) -> String {
    format!("its {key} has more than {most} characters")
}

fn unknown(key: &str) -> String {
    let key = key.chars().take(80).collect::<String>();
    format!(
        "there is no property '{}': expected {}; what is your own goes under metadata",
        key.escape_debug(),
        KNOWN.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn skill(properties: &str) -> String {
        format!("---\n{properties}\n---\n# How\n")
    }

    #[test]
    fn a_skill_by_the_rules_is_read_without_a_warning() {
        let text = skill(
            "name: pdf-forms\ndescription: Fills forms. Use for PDFs.\nlicense: Apache-2.0\ncompatibility: needs python\n\
             allowed-tools: Bash(git:*) Read\nmetadata:\n  author: ada\n  version: \"1.0\"",
        );
        let read = Document::strict(&text, "pdf-forms").unwrap();
        assert_eq!(read.properties.name, "pdf-forms");
        assert_eq!(read.properties.allowed_tools.unwrap(), "Bash(git:*) Read");
        assert_eq!(read.properties.metadata["version"], "1.0");
        assert_eq!(read.body, "# How\n");
    }

    #[test]
    fn metadata_in_one_line_of_json_is_read_as_well() {
        let text = skill(
            "name: a\ndescription: d\nmetadata: {\"openclaw\": {\"requires\": {\"bins\": [\"uv\"]}, \"emoji\": \"x\"}}",
        );
        let read = Document::strict(&text, "a").unwrap();
        assert_eq!(read.properties.metadata["openclaw"]["requires"]["bins"][0], "uv");
    }

    #[test]
    fn what_is_against_a_rule_is_a_warning_when_read_and_a_refusal_when_made() {
        let long = "x".repeat(1025);
        let table = [
            ("name: b\ndescription: d".into(), "lies in 'a'"),
            ("name: A\ndescription: d".into(), "not a name"),
            ("name: a--b\ndescription: d".into(), "not a name"),
            ("description: d".into(), "no name"),
            (format!("name: a\ndescription: {long}"), "more than 1024"),
            (format!("name: a\ndescription: d\ncompatibility: {}", &long[..501]), "more than 500"),
            ("name: a\ndescription: d\nversion: 1".into(), "no property 'version'"),
            ("name: a\ndescription: d\nmetadata: x".into(), "metadata is not a map"),
            ("name: a\ndescription: d\nallowed-tools: [Read, Bash]".into(), "is a list"),
        ];
        for (properties, expected) in table {
            let read = Document::read(&skill(&properties), "a").unwrap();
            assert!(read.warnings.iter().any(|warning| warning.contains(expected)), "{properties} {read:?}");
            assert!(Document::strict(&skill(&properties), "a").is_err());
        }
    }

    #[test]
    fn what_cannot_be_used_says_why() {
        let table = [
            ("", "properties"),
            ("# only text", "properties"),
            ("---\nname: a\n", "properties"),
            ("---\nname: a\n---\n", "no description"),
            ("---\nname: a\ndescription: '  '\n---\n", "no description"),
            ("---\n- a list\n---\n", "cannot be read"),
            ("---\nname: [\n---\n", "cannot be read"),
        ];
        for (text, expected) in table {
            let why = Document::read(text, "a").unwrap_err().to_string();
            assert!(why.contains(expected), "{text}: {why}");
        }
    }

    #[test]
    fn an_alias_that_grows_is_refused() {
        let mut bomb =
            String::from("name: a\ndescription: d\nmetadata:\n  a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
        for level in 1..12 {
            let uses = vec![format!("*a{}", level - 1); 9].join(", ");
            bomb.push_str(&format!("  a{level}: &a{level} [{uses}]\n"));
        }
        assert!(Document::read(&skill(&bomb), "a").is_err());
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(description in "\\PC{1,200}", body in "(?s).{0,200}") {
            prop_assume!(!description.trim().is_empty());
            let read = Document::strict(&written("true", &description, &body), "true").unwrap();
            prop_assert_eq!(read.properties.description, description);
        }

        #[test]
        fn no_text_panics(text in "(?s)(---\n)?.{0,100}(\n---\n)?.{0,50}") {
            _ = Document::read(&text, "a");
        }
    }
}
