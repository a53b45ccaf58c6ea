//! Replacing text in a file, exactly.

use super::super::failure::Failure;
use super::super::list::shown;
use super::super::path::SandboxPath;
use super::super::root::Root;
use super::path;
use super::text::{self, line_at};
use super::write::Target;
use crate::wire::tools::{EditFile, FileEdited, LARGEST_FILE};

/// Lines that are named in a refusal or an answer.
const NAMED_LINES: usize = 10;

pub(super) fn edit(root: &Root, asked: &EditFile) -> Result<FileEdited, Failure> {
    let path = path(&asked.path)?;
    if asked.old_string.is_empty() {
        return Err(Failure::invalid_argument("'old_string' is empty")
            .hint("write_file makes a file, and replaces a whole one"));
    }
    if asked.old_string == asked.new_string {
        return Err(Failure::invalid_argument("'old_string' and 'new_string' are the same"));
    }
    let before = text::whole_text(root, &path)?;
    let places: Vec<usize> = before.match_indices(&asked.old_string).map(|(at, _)| at).collect();
    check(&before, &places, asked, &path)?;
    let grown = places.len() as u64 * asked.new_string.len().saturating_sub(asked.old_string.len()) as u64;
    if before.len() as u64 + grown > LARGEST_FILE as u64 {
        return Err(Failure::too_large(&path, LARGEST_FILE));
    }
    let after = before.replace(&asked.old_string, &asked.new_string);
    let staged = Target::find(root, path.clone())?.stage(after.as_bytes(), None)?;
    // Whoever wrote it meanwhile would lose what they wrote.
    if text::whole(root, &path)? != before.as_bytes() {
        return Err(Failure::new(409, "busy", format!("{path} was changed meanwhile"))
            .hint("read it again and repeat the edit"));
    }
    staged.finish(false)?;
    let lines = places.iter().take(NAMED_LINES).map(|at| line_at(&before, *at)).collect();
    Ok(FileEdited {
        path: shown(path.as_bytes()),
        replacements: places.len() as u64,
        lines,
        size: after.len() as u64,
    })
}

fn check(before: &str, places: &[usize], asked: &EditFile, path: &SandboxPath) -> Result<(), Failure> {
    let found = places.len() as u64;
    if found == 0 {
        let failure = Failure::new(422, "no_match", format!("'old_string' is not in {path}"));
        return Err(failure.hint(where_it_could_be(before, &asked.old_string)));
    }
    let lines = || {
        let lines: Vec<u64> = places.iter().take(NAMED_LINES).map(|at| line_at(before, *at)).collect();
        named(&lines, places.len())
    };
    match asked.expected_replacements {
        Some(expected) if expected != found => {
            let why =
                format!("'old_string' is {found} times in {path}, at {}, not {expected} times", lines());
            Err(Failure::new(422, "count_mismatch", why).hint("correct the count, or give more text around"))
        }
        None if found > 1 && !asked.replace_all => {
            let why = format!("'old_string' is {found} times in {path}, at {}", lines());
            Err(Failure::new(422, "not_unique", why)
                .hint("give more of the text around the one you mean, or say 'replace_all'"))
        }
        _ => Ok(()),
    }
}

/// What a text that is not there was perhaps meant to be.
fn where_it_could_be(before: &str, wanted: &str) -> String {
    if before.contains("\r\n") && before.contains(&wanted.replace('\n', "\r\n")) {
        return "the lines of this file end in CRLF: write \\r\\n in both strings".into();
    }
    let Some(first) = wanted.lines().map(str::trim).find(|line| !line.is_empty()) else {
        return "read the file again; the text must be the same to the last space".into();
    };
    let alike: Vec<u64> =
        before.lines().zip(1..).filter(|(line, _)| line.trim() == first).map(|(_, number)| number).collect();
    match alike.is_empty() {
        true => "read the file again; the text must be the same to the last space".into(),
        false => {
            let lines = named(&alike[..alike.len().min(NAMED_LINES)], alike.len());
            format!("its first line is at {lines}, but what follows or the white space differs")
        }
    }
}

fn named(lines: &[u64], all: usize) -> String {
    let listed = lines.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
    let word = if all == 1 { "line" } else { "lines" };
    let more = if all > lines.len() { format!(" and {} more", all - lines.len()) } else { String::new() };
    format!("{word} {listed}{more}")
}
