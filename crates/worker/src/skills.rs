//! Skills that tasks share, copied to where the agent looks for them. A skill is a directory with a `SKILL.md` by the rules of
//! <https://agentskills.io>; one that breaks them is left out and said.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;

const DOCUMENT: &str = "SKILL.md";
const LONGEST_NAME: usize = 64;
const LONGEST_DESCRIPTION: usize = 1024;
const LONGEST_COMPATIBILITY: usize = 500;
const MOST_SKILLS: usize = 200;
/// Of one skill.
const MOST_FILES: usize = 256;
const MOST_BYTES: u64 = 8 << 20;
const LONGEST_FILE: u64 = 1 << 20;
const DEEPEST: usize = 6;

/// What became of the skills.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Copied {
    pub(crate) names: Vec<String>,
    /// Each with why it was left out.
    pub(crate) left_out: Vec<String>,
}

pub(crate) fn copy(from: &Path, to: &Path) -> Copied {
    let mut copied = Copied::default();
    let mut directories: Vec<PathBuf> =
        fs::read_dir(from).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    directories.retain(|path| path.is_dir());
    directories.sort();
    for directory in directories {
        let name = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if copied.names.len() >= MOST_SKILLS {
            copied.left_out.push(format!("{name}: there are more than {MOST_SKILLS}"));
            continue;
        }
        let target = to.join(&name);
        match check(&directory, &name).and_then(|()| copy_tree(&directory, &target)) {
            Ok(()) => copied.names.push(name),
            Err(why) => {
                // Half a skill is worse than none.
                _ = fs::remove_dir_all(&target);
                copied.left_out.push(format!("{name}: {why}"));
            }
        }
    }
    copied
}

fn check(directory: &Path, name: &str) -> Result<(), String> {
    let path = directory.join(DOCUMENT);
    let about = path.symlink_metadata().map_err(|_| format!("it has no {DOCUMENT}"))?;
    if !about.is_file() || about.len() > LONGEST_FILE {
        return Err(format!("its {DOCUMENT} is not a file of at most {LONGEST_FILE} bytes"));
    }
    let text = fs::read_to_string(&path).map_err(|error| format!("its {DOCUMENT}: {error}"))?;
    check_document(&text, name)
}

fn check_document(text: &str, directory: &str) -> Result<(), String> {
    let properties =
        properties(text).ok_or("it does not begin with properties between two lines of '---'")?;
    let properties: BTreeMap<String, Value> = serde_saphyr::from_str(properties).map_err(|error| {
        format!("its properties: {}", error.to_string().lines().next().unwrap_or("no YAML"))
    })?;
    let property = |key: &str| properties.get(key).and_then(Value::as_str).map(str::trim).unwrap_or_default();
    let name = property("name");
    let allowed = |letter: char| letter == '-' || letter.is_ascii_digit() || letter.is_ascii_lowercase();
    let good = (1..=LONGEST_NAME).contains(&name.len())
        && name.chars().all(allowed)
        && !name.starts_with('-')
        && !name.ends_with('-')
        && !name.contains("--");
    if !good {
        return Err(format!(
            "its name has to be 1 to {LONGEST_NAME} of a-z, 0-9 and single '-' between them"
        ));
    }
    if name != directory {
        return Err(format!("it is called '{name}'"));
    }
    if !(1..=LONGEST_DESCRIPTION).contains(&property("description").chars().count()) {
        return Err(format!("its description has to have 1 to {LONGEST_DESCRIPTION} characters"));
    }
    if property("compatibility").chars().count() > LONGEST_COMPATIBILITY {
        return Err(format!("its compatibility has more than {LONGEST_COMPATIBILITY} characters"));
    }
    Ok(())
}

fn properties(text: &str) -> Option<&str> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let (first, rest) = text.split_once('\n')?;
    if first.trim_end() != "---" {
        return None;
    }
    let mut at = 0;
    for line in rest.split_inclusive('\n') {
        if line.trim_end() == "---" {
            return Some(&rest[..at]);
        }
        at += line.len();
    }
    None
}

fn copy_tree(from: &Path, to: &Path) -> Result<(), String> {
    let mut room = Room { files: MOST_FILES, bytes: MOST_BYTES };
    copy_level(from, to, DEEPEST, &mut room).map_err(|error| error.to_string())
}

struct Room {
    files: usize,
    bytes: u64,
}

/// Regular files and directories; anything else is not part of a skill.
fn copy_level(from: &Path, to: &Path, levels: usize, room: &mut Room) -> io::Result<()> {
    let too_large = |what: String| io::Error::new(io::ErrorKind::FileTooLarge, what);
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let about = entry.path().symlink_metadata()?;
        let target = to.join(entry.file_name());
        if about.is_dir() {
            if levels == 0 {
                return Err(too_large(format!("it is deeper than {DEEPEST} levels")));
            }
            copy_level(&entry.path(), &target, levels - 1, room)?;
        } else if about.is_file() {
            if room.files == 0 || about.len() > room.bytes || about.len() > LONGEST_FILE {
                return Err(too_large(format!(
                    "it is larger than {MOST_FILES} files, {LONGEST_FILE} bytes each, {MOST_BYTES} together"
                )));
            }
            room.files -= 1;
            room.bytes -= about.len();
            fs::copy(entry.path(), &target)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_skills_are_copied_and_bad_ones_named() {
        let directory = tempfile::tempdir().unwrap();
        let (from, to) = (directory.path().join("from"), directory.path().join("to"));
        let skill = |name: &str, text: &str| {
            fs::create_dir_all(from.join(name).join("scripts")).unwrap();
            fs::write(from.join(name).join("SKILL.md"), text).unwrap();
            fs::write(from.join(name).join("scripts/run.sh"), "echo").unwrap();
        };
        skill("plot", "---\nname: plot\ndescription: >\n  draws\n  plots\nmetadata: {a: b}\n---\nbody");
        skill("other", "---\nname: plot\ndescription: x\n---\n");
        skill("Bad_Name", "---\nname: Bad_Name\ndescription: x\n---\n");
        skill("silent", "---\nname: silent\n---\n");
        skill("plain", "no properties");
        skill("broken", "---\nname: [\n---\n");
        fs::create_dir(from.join("empty")).unwrap();
        skill("large", "---\nname: large\ndescription: x\n---\n");
        fs::write(from.join("large/blob"), vec![0; LONGEST_FILE as usize + 1]).unwrap();
        std::os::unix::fs::symlink("/etc", from.join("plot/etc")).unwrap();
        let copied = copy(&from, &to);
        assert_eq!(copied.names, ["plot"]);
        assert_eq!(copied.left_out.len(), 7, "{copied:?}");
        assert_eq!(fs::read_to_string(to.join("plot/scripts/run.sh")).unwrap(), "echo");
        assert!(!to.join("plot/etc").exists());
        assert_eq!(fs::read_dir(&to).unwrap().count(), 1);
    }
}
