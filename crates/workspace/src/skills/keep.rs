//! Skills in `shared/skills/`.

use std::collections::BTreeMap;

use cubicle_model::{Fault, Kind};
use rustix::io::Errno;
use serde::Serialize;

use super::document::{Document, Properties, check_description, check_name, has_properties, written};
use crate::beneath::{Directory, is_directory, is_file, size};
use crate::fault;
use crate::path::RelativePath;
use crate::staging::Staged;
use crate::tree::Tree;
use crate::walk::{Caps, walk};

const MOST_SKILLS: usize = 2000;
const LONGEST_DOCUMENT: u64 = 1024 * 1024;
const FILES: Caps = Caps { entries: 1000, depth: 6 };
/// Of a skill that is made.
const MOST_FILES: usize = 256;
const MOST_BYTES: usize = 8 * 1024 * 1024;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Skills {
    pub skills: Vec<Shown>,
    /// Directories that look like skills and cannot be used.
    pub refused: Vec<Refused>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Shown {
    pub name: String,
    pub description: String,
    /// Of its `SKILL.md`, relative to `shared/`.
    pub path: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Refused {
    pub path: String,
    pub why: String,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Skill {
    #[serde(flatten)]
    pub properties: Properties,
    pub path: String,
    /// The instructions.
    pub content: String,
    /// Other files of the skill, with paths relative to `shared/`.
    pub files: Vec<SkillFile>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SkillFile {
    pub path: String,
    pub size: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSkill<'a> {
    pub name: &'a str,
    pub description: &'a str,
    /// The instructions; or a whole `SKILL.md`, whose properties then agree with the ones above.
    pub content: &'a str,
    /// Other files, by their path in the skill.
    pub files: BTreeMap<String, Vec<u8>>,
}

impl Tree {
    /// Every skill, by name.
    pub fn list_skills(&self) -> Result<Skills, Fault> {
        let skills =
            self.parts()?.shared.make_directory("skills").map_err(|errno| fault::of(errno, "skills"))?;
        let (found, _) = walk(&skills, false, Caps { entries: MOST_SKILLS, depth: 1 })
            .map_err(|errno| fault::of(errno, "skills"))?;
        let mut listed = Skills { skills: Vec::new(), refused: Vec::new() };
        for directory in found.into_iter().filter(|found| is_directory(&found.stat)) {
            let name = directory.path;
            match document(&skills, &name) {
                Ok(document) => listed.skills.push(Shown {
                    name: document.properties.name,
                    description: document.properties.description,
                    path: path_of(&name),
                    warnings: document.warnings,
                }),
                // A directory without a SKILL.md is just a directory.
                Err(fault) if fault.kind() == Kind::NotFound => {}
                Err(fault) => listed.refused.push(Refused { path: path_of(&name), why: fault.to_string() }),
            }
        }
        Ok(listed)
    }

    pub fn get_skill(&self, name: &str) -> Result<Skill, Fault> {
        let path = RelativePath::parse(name)?;
        if path.is_root() || path.as_str().contains('/') {
            return Err(Fault::new(
                Kind::Invalid,
                format!("{} is not a name of a skill", fault::shown(name)),
            )
            .hint("list_skills names those that there are"));
        }
        let skills =
            self.parts()?.shared.make_directory("skills").map_err(|errno| fault::of(errno, "skills"))?;
        let document = document(&skills, path.as_str()).map_err(|fault| match fault.kind() {
            Kind::NotFound => Fault::new(Kind::NotFound, format!("there is no skill {}", fault::shown(name)))
                .hint("list_skills names those that there are"),
            _ => fault,
        })?;
        let directory = skills.directory(path.as_str()).map_err(|errno| fault::of(errno, name))?;
        let (found, _) = walk(&directory, true, FILES).map_err(|errno| fault::of(errno, name))?;
        let files = found
            .into_iter()
            .filter(|found| is_file(&found.stat) && found.path != "SKILL.md")
            .map(|found| SkillFile {
                path: format!("skills/{}/{}", path.as_str(), found.path),
                size: size(&found.stat),
            })
            .collect();
        Ok(Skill {
            properties: document.properties,
            path: path_of(path.as_str()),
            content: document.body,
            files,
            warnings: document.warnings,
        })
    }

    /// Makes a skill whole, or not at all. One that is there already is not touched.
    pub fn create_skill(&self, new: &NewSkill<'_>) -> Result<Skill, Fault> {
        let invalid = |why: String| Fault::new(Kind::Invalid, why);
        check_name(new.name).and_then(|()| check_description(new.description)).map_err(invalid)?;
        let text = if has_properties(new.content) {
            let given = Document::strict(new.content, new.name)
                .map_err(|why| invalid(format!("the content is no skill: {why}")))?;
            if given.properties.description != new.description {
                return Err(invalid("the description in the content is not the one that was given".into())
                    .hint("leave the properties out of the content, or give the same ones"));
            }
            new.content.to_owned()
        } else {
            written(new.name, new.description, new.content)
        };
        let bytes = text.len() + new.files.values().map(Vec::len).sum::<usize>();
        if new.files.len() >= MOST_FILES || bytes > MOST_BYTES {
            return Err(invalid(format!("a skill has at most {MOST_FILES} files and {MOST_BYTES} bytes")));
        }
        let parts = self.parts()?;
        let refuse = |errno| fault::of(errno, new.name);
        let (staged, directory) = Staged::directory(&parts.staging).map_err(refuse)?;
        put(&directory, "SKILL.md", text.as_bytes())?;
        for (given, bytes) in &new.files {
            let path = RelativePath::parse(given)?;
            if path.is_root() || path.as_str() == "SKILL.md" {
                return Err(invalid(format!("{} cannot be a file of the skill", fault::shown(given)))
                    .hint("SKILL.md is made of name, description and content"));
            }
            put(&directory, path.as_str(), bytes)?;
        }
        let _locked = parts.lock()?;
        let skills = parts.shared.make_directory("skills").map_err(refuse)?;
        staged.finish(&skills, new.name, true).map_err(|errno| match errno {
            Errno::EXIST | Errno::NOTEMPTY => {
                Fault::new(Kind::Conflict, format!("there is a skill {} already", fault::shown(new.name)))
                    .hint(format!(
                        "change its files with write_workspace, as skills/{}/SKILL.md, or delete it",
                        new.name
                    ))
            }
            _ => refuse(errno),
        })?;
        self.get_skill(new.name)
    }
}

fn path_of(name: &str) -> String {
    format!("skills/{name}/SKILL.md")
}

fn document(skills: &Directory, name: &str) -> Result<Document, Fault> {
    use std::io::Read;
    let path = format!("{name}/SKILL.md");
    let (file, stat) = crate::shared::open_file(skills, &path)?;
    if size(&stat) > LONGEST_DOCUMENT {
        return Err(fault::too_large(&path, size(&stat), LONGEST_DOCUMENT));
    }
    let mut bytes = Vec::new();
    file.take(LONGEST_DOCUMENT).read_to_end(&mut bytes).map_err(|error| fault::of_io(error, &path))?;
    let refuse = |why: String| {
        Fault::new(Kind::Invalid, format!("{path} is no skill: {why}"))
            .hint("the rules are in docs/guide/workspace.md")
    };
    let text = String::from_utf8(bytes).map_err(|_| refuse("it is not UTF-8".into()))?;
    Document::read(&text, name).map_err(|why| refuse(why.to_string()))
}

fn put(directory: &Directory, path: &str, bytes: &[u8]) -> Result<(), Fault> {
    let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
    let above = directory.make_directory(above).map_err(|errno| fault::of(errno, path))?;
    let script = bytes.starts_with(b"#!");
    crate::tasks::write_new(&above, name, &mut &bytes[..], if script { 0o755 } else { 0o644 })
}
