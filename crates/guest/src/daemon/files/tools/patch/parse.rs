//! Reading a unified diff, with the patience that texts written by models need: counts in the heads of hunks may be wrong, and
//! an empty line may have lost its space.

use super::super::super::failure::Failure;
use super::super::text::shortened;

/// What a patch says about one file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FileDiff {
    pub(super) change: Change,
    pub(super) hunks: Vec<Hunk>,
    /// Permission bits that the file is to get.
    pub(super) mode: Option<u32>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Change {
    Modify(String),
    Create(String),
    Delete(String),
    Rename { from: String, to: String },
}

impl Change {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Modify(_) => "modified",
            Self::Create(_) => "created",
            Self::Delete(_) => "deleted",
            Self::Rename { .. } => "renamed",
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Hunk {
    /// The line at which the old text begins; unknown where the head does not say.
    pub(super) line: Option<u64>,
    pub(super) lines: Vec<Line>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) kind: Kind,
    pub(super) text: String,
    /// The file ends here, without a line end.
    pub(super) is_unended: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Context,
    Added,
    Removed,
}

pub(super) fn parse(patch: &str) -> Result<Vec<FileDiff>, Failure> {
    let mut reader = Reader { lines: patch.split('\n').collect(), at: 0 };
    // The text ends in a line end.
    if reader.lines.last() == Some(&"") {
        reader.lines.pop();
    }
    let mut diffs = Vec::new();
    while let Some(diff) = reader.file()? {
        diffs.push(diff);
    }
    if diffs.is_empty() {
        let failure = Failure::new(400, "invalid_patch", "there is no change of a file in the patch");
        return Err(
            failure.hint("a unified diff has '--- a/NAME', '+++ b/NAME' and hunks that begin with '@@'")
        );
    }
    Ok(diffs)
}

struct Reader<'a> {
    lines: Vec<&'a str>,
    at: usize,
}

/// What the lines before the first hunk say.
#[derive(Default)]
struct Header<'a> {
    git: Option<(&'a str, &'a str)>,
    old: Option<&'a str>,
    new: Option<&'a str>,
    renamed_from: Option<&'a str>,
    renamed_to: Option<&'a str>,
    is_created: bool,
    is_deleted: bool,
    mode: Option<u32>,
}

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<&'a str> {
        self.lines.get(self.at).map(|line| line.strip_suffix('\r').unwrap_or(line))
    }

    fn refuse(&self, why: &str) -> Failure {
        let line = self.peek().map(|line| format!(" ('{}')", shortened(line, 80))).unwrap_or_default();
        Failure::new(400, "invalid_patch", format!("line {} of the patch{line}: {why}", self.at + 1))
    }

    /// Whether a file's part begins here.
    fn is_header(&self) -> bool {
        let Some(line) = self.peek() else { return false };
        let next = self.lines.get(self.at + 1).copied().unwrap_or_default();
        line.starts_with("diff --git ") || (line.starts_with("--- ") && next.starts_with("+++ "))
    }

    fn file(&mut self) -> Result<Option<FileDiff>, Failure> {
        // Mail headers, commit messages and the like come before.
        while self.peek().is_some() && !self.is_header() {
            if self.peek().is_some_and(|line| line.starts_with("@@ ")) {
                return Err(self
                    .refuse("a hunk comes before the names of its file")
                    .hint("begin with '--- a/NAME' and '+++ b/NAME'"));
            }
            self.at += 1;
        }
        if self.peek().is_none() {
            return Ok(None);
        }
        let header = self.header()?;
        let mut hunks = Vec::new();
        while self.peek().is_some_and(|line| line.starts_with("@@")) {
            hunks.push(self.hunk()?);
        }
        let change = self.change(&header)?;
        if hunks.is_empty() && matches!(change, Change::Modify(_)) && header.mode.is_none() {
            return Err(self.refuse("a file has no hunks"));
        }
        Ok(Some(FileDiff { change, hunks, mode: header.mode }))
    }

    fn header(&mut self) -> Result<Header<'a>, Failure> {
        let mut header = Header::default();
        if let Some(names) = self.peek().and_then(|line| line.strip_prefix("diff --git ")) {
            header.git = names.split_once(" b/").map(|(old, _)| (old, &names[old.len() + 1..]));
            self.at += 1;
        }
        while let Some(line) = self.peek() {
            let value = |prefix: &str| line.strip_prefix(prefix).map(str::trim);
            if line.starts_with("@@") || (line.starts_with("diff --git ") && header.git.is_some()) {
                break;
            } else if line.starts_with("GIT binary patch") || line.starts_with("Binary files ") {
                return Err(self.refuse("it changes a binary file").hint("use write_file with base64"));
            } else if let Some(name) = value("--- ") {
                header.old = Some(name);
            } else if let Some(name) = value("+++ ") {
                header.new = Some(name);
                self.at += 1;
                break;
            } else if let Some(name) = value("rename from ") {
                header.renamed_from = Some(name);
            } else if let Some(name) = value("rename to ") {
                header.renamed_to = Some(name);
            } else if let Some(mode) = value("new file mode ") {
                header.is_created = true;
                header.mode = permissions(mode);
            } else if let Some(mode) = value("new mode ") {
                header.mode = permissions(mode);
            } else if line.starts_with("deleted file mode ") {
                header.is_deleted = true;
            } else if !["index ", "similarity ", "dissimilarity ", "old mode ", "copy "]
                .iter()
                .any(|known| line.starts_with(known))
            {
                break;
            }
            self.at += 1;
        }
        Ok(header)
    }

    fn change(&self, header: &Header<'_>) -> Result<Change, Failure> {
        if let (Some(from), Some(to)) = (header.renamed_from, header.renamed_to) {
            return Ok(Change::Rename { from: from.into(), to: to.into() });
        }
        let old = header.old.or(header.git.map(|(old, _)| old)).map(name);
        let new = header.new.or(header.git.map(|(_, new)| new)).map(name);
        let (Some(old), Some(new)) = (old, new) else { return Err(self.refuse("a file has no names")) };
        match (old.as_str(), new.as_str()) {
            ("/dev/null", "/dev/null") => Err(self.refuse("a file has no name")),
            ("/dev/null", _) => Ok(Change::Create(new)),
            (_, "/dev/null") => Ok(Change::Delete(old)),
            _ if header.is_created => Ok(Change::Create(new)),
            _ if header.is_deleted => Ok(Change::Delete(old)),
            // Names of both sides that differ by more than `a/` and `b/` mean the new one, as for `patch`.
            _ => Ok(Change::Modify(new)),
        }
    }

    fn hunk(&mut self) -> Result<Hunk, Failure> {
        let head = self.peek().unwrap_or_default();
        let numbers = numbers(head);
        self.at += 1;
        let (mut old_left, mut new_left) = numbers.map_or((0, 0), |(_, old, new)| (old, new));
        let mut lines: Vec<Line> = Vec::new();
        while let Some(line) = self.lines.get(self.at).copied() {
            let counted = old_left > 0 || new_left > 0;
            let (kind, text) = match line.chars().next() {
                Some('\\') => {
                    if let Some(last) = lines.last_mut() {
                        last.is_unended = true;
                    }
                    self.at += 1;
                    continue;
                }
                _ if line.starts_with("@@") || line.starts_with("diff --git ") => break,
                // Within the counts this is a removed line that begins with two dashes.
                Some('-') if self.is_header() && !(counted && old_left > 0) => break,
                Some('-') => (Kind::Removed, &line[1..]),
                Some('+') => (Kind::Added, &line[1..]),
                Some(' ') => (Kind::Context, &line[1..]),
                // An editor took the space away.
                None | Some('\r') if counted => (Kind::Context, line),
                _ if counted => {
                    return Err(self
                        .refuse("a line of a hunk begins with a space, '+', '-' or '\\'")
                        .hint("lines that stay the same begin with one space"));
                }
                _ => break,
            };
            old_left = old_left.saturating_sub(u64::from(kind != Kind::Added));
            new_left = new_left.saturating_sub(u64::from(kind != Kind::Removed));
            lines.push(Line { kind, text: text.into(), is_unended: false });
            self.at += 1;
        }
        if lines.is_empty() {
            return Err(self.refuse("a hunk is empty"));
        }
        Ok(Hunk { line: numbers.map(|(line, ..)| line), lines })
    }
}

/// The first line and the counts of a hunk's head, as in `@@ -1,5 +1,6 @@`.
fn numbers(head: &str) -> Option<(u64, u64, u64)> {
    let mut parts = head.strip_prefix("@@ -")?.split(' ');
    let range = |text: &str| -> Option<(u64, u64)> {
        match text.split_once(',') {
            Some((line, count)) => Some((line.parse().ok()?, count.parse().ok()?)),
            None => Some((text.parse().ok()?, 1)),
        }
    };
    let (line, old) = range(parts.next()?)?;
    let (_, new) = range(parts.next()?.strip_prefix('+')?)?;
    Some((line, old, new))
}

/// Without the time that `diff` writes behind a name, and without quotes.
fn name(text: &str) -> String {
    let text = text.split('\t').next().unwrap_or(text).trim();
    text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text).to_owned()
}

fn permissions(mode: &str) -> Option<u32> {
    u32::from_str_radix(mode, 8).ok().map(|mode| mode & 0o777)
}
