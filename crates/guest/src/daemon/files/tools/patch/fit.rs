//! Finding where hunks belong in a text, and what comes of it.

use std::collections::BTreeMap;

use super::super::text::shortened;
use super::parse::{Hunk, Kind, Line};

pub(super) struct Fitted {
    pub(super) text: String,
    pub(super) added: u64,
    pub(super) removed: u64,
    pub(super) moved: BTreeMap<usize, i64>,
}

/// What is done to the ends of added lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ends {
    AsTheyAre,
    MakeCrlf,
    MakePlain,
}

/// The text with all hunks applied, or why each of those that do not fit does not.
pub(super) fn fit(before: &str, hunks: &[Hunk]) -> Result<Fitted, Vec<String>> {
    let lines: Vec<&str> = before.split_inclusive('\n').collect();
    // The file decides how lines end, whatever the patch has been through on its way here.
    let has_crlf = before.contains("\r\n");
    let mut patch = hunks.iter().flat_map(|hunk| &hunk.lines);
    let ends = match patch.any(|line| line.text.ends_with('\r')) {
        false if has_crlf => Ends::MakeCrlf,
        true if !has_crlf && !before.is_empty() => Ends::MakePlain,
        _ => Ends::AsTheyAre,
    };
    let mut fitted = Fitted { text: String::new(), added: 0, removed: 0, moved: BTreeMap::new() };
    let (mut taken, mut shift, mut refused) = (0_usize, 0_i64, Vec::new());
    for (number, hunk) in (1..).zip(hunks) {
        let old: Vec<&Line> = hunk.lines.iter().filter(|line| line.kind != Kind::Added).collect();
        let wanted = wanted(hunk, old.len(), shift, taken);
        match place(&lines, &old, taken, wanted) {
            Ok(at) => {
                let moved = wanted.map_or(0, |wanted| at as i64 - wanted as i64);
                if moved != 0 {
                    fitted.moved.insert(number, moved);
                }
                shift += moved;
                fitted.text.extend(lines[taken..at].iter().copied());
                taken = fitted.replace(&lines, at, hunk, ends);
            }
            Err(why) => refused.push(format!("hunk {number} {why}")),
        }
    }
    if !refused.is_empty() {
        return Err(refused);
    }
    fitted.text.extend(lines[taken..].iter().copied());
    Ok(fitted)
}

impl Fitted {
    /// Writes what a hunk makes of the lines at a place, and says where it ends.
    fn replace(&mut self, lines: &[&str], at: usize, hunk: &Hunk, ends: Ends) -> usize {
        let mut here = at;
        for line in &hunk.lines {
            match line.kind {
                // The file's own line: it may differ in its end.
                Kind::Context => {
                    self.end_line();
                    self.text.push_str(lines.get(here).copied().unwrap_or_default());
                    here += 1;
                }
                Kind::Removed => {
                    self.removed += 1;
                    here += 1;
                }
                Kind::Added => {
                    self.end_line();
                    self.added += 1;
                    let text = match ends {
                        Ends::MakePlain => line.text.strip_suffix('\r').unwrap_or(&line.text),
                        _ => &line.text,
                    };
                    self.text.push_str(text);
                    if !line.is_unended {
                        self.text.push_str(if ends == Ends::MakeCrlf { "\r\n" } else { "\n" });
                    }
                }
            }
        }
        here
    }

    /// Something comes behind a line that was the last of its file.
    fn end_line(&mut self) {
        if !self.text.is_empty() && !self.text.ends_with('\n') {
            self.text.push('\n');
        }
    }
}

/// The index of the line at which a hunk says that it belongs, with what those before it were moved by.
fn wanted(hunk: &Hunk, old: usize, shift: i64, taken: usize) -> Option<usize> {
    // A hunk that has no old lines is behind the line that it names.
    let line = hunk.line?.saturating_sub(u64::from(old > 0));
    let at = i64::try_from(line).ok()?.saturating_add(shift).max(0);
    usize::try_from(at).ok().map(|at| at.max(taken))
}

fn place(lines: &[&str], old: &[&Line], taken: usize, wanted: Option<usize>) -> Result<usize, String> {
    if old.is_empty() {
        let at = wanted.unwrap_or(lines.len());
        return if at <= lines.len() {
            Ok(at)
        } else {
            Err(format!("adds behind line {at}, the file has {}", lines.len()))
        };
    }
    let fits = |at: usize| {
        lines.len() >= at + old.len() && old.iter().zip(&lines[at..]).all(|(line, there)| same(line, there))
    };
    let Some(wanted) = wanted else {
        let mut places = (taken..lines.len()).filter(|at| fits(*at));
        return match (places.next(), places.next()) {
            (Some(at), None) => Ok(at),
            (Some(first), Some(second)) => {
                Err(format!("fits at line {} and at line {}, and does not say which", first + 1, second + 1))
            }
            (None, _) => Err("has lines that are nowhere in the file".into()),
        };
    };
    let furthest = lines.len().saturating_sub(taken);
    let around = (0..=furthest).flat_map(|by| [wanted.checked_sub(by), wanted.checked_add(by)]);
    let found = around.flatten().find(|at| *at >= taken && *at < lines.len() && fits(*at));
    found.ok_or_else(|| difference(lines, old, wanted))
}

/// Which line of a hunk is the first that is not as it says.
fn difference(lines: &[&str], old: &[&Line], wanted: usize) -> String {
    for (index, line) in old.iter().enumerate() {
        let at = wanted + index;
        match lines.get(at) {
            None => return format!("goes beyond the end of the file, which has {} lines", lines.len()),
            Some(there) if !same(line, there) => {
                let (expected, there) = (shortened(&line.text, 60), shortened(there.trim_end(), 60));
                return format!("expects '{expected}' at line {}, where there is '{there}'", at + 1);
            }
            Some(_) => {}
        }
    }
    format!("does not fit at line {}", wanted + 1)
}

/// Line ends do not count.
fn same(line: &Line, there: &str) -> bool {
    fn bare(text: &str) -> &str {
        let text = text.strip_suffix('\n').unwrap_or(text);
        text.strip_suffix('\r').unwrap_or(text)
    }
    bare(&line.text) == bare(there)
}
