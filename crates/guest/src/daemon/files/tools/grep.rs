//! Searching the lines of files.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;

use cubicle_sys::clock;
use regex::bytes::{Regex, RegexBuilder};
use rustix::fs;

use super::super::failure::Failure;
use super::super::list::shown;
use super::super::path::SandboxPath;
use super::super::root::{Root, is_directory, is_file, open_for_reading};
use super::super::walk::Step;
use super::super::write::is_unfinished;
use super::directories::{begin, enter, is_hidden};
use super::globs::Pattern;
use super::{count, path, text};
use crate::wire::tools::{Grep, Grepped, LONGEST_PATTERN, MOST_CONTEXT, MOST_MATCHES, Match, USUAL_MATCHES};

/// Larger files are passed by.
const LARGEST_SEARCHED: u64 = 64 * 1024 * 1024;
/// Of a line that an answer shows.
const LONGEST_LINE: usize = 500;
/// Of all lines that an answer shows.
const LARGEST_ANSWER: usize = 1024 * 1024;
/// Below the patience of whoever asks.
const LONGEST_SEARCH_NANOS: u64 = 20_000_000_000;

pub(super) fn grep(root: &Root, asked: &Grep) -> Result<Grepped, Failure> {
    let path = path(&asked.path)?;
    let mut search = Search::new(asked)?;
    match root.open_directory(&path) {
        Ok(_) => search.tree(root, &path)?,
        Err(failure) if failure.code == "not_a_directory" => {
            let (file, _) = root.open_file(&path)?;
            search.file(file, &shown(path.as_bytes()));
        }
        Err(failure) => return Err(failure),
    }
    Ok(search.found)
}

struct Search<'a> {
    asked: &'a Grep,
    regex: Regex,
    /// Whether a file without a match as a whole has no line that matches.
    whole_first: bool,
    include: Vec<Pattern>,
    exclude: Vec<Pattern>,
    most: usize,
    until: u64,
    size: usize,
    found: Grepped,
}

impl<'a> Search<'a> {
    fn new(asked: &'a Grep) -> Result<Self, Failure> {
        if asked.pattern.is_empty() || asked.pattern.len() > LONGEST_PATTERN {
            return Err(Failure::invalid_argument(format!("'pattern' has 1 to {LONGEST_PATTERN} bytes")));
        }
        if asked.context > MOST_CONTEXT {
            return Err(Failure::invalid_argument(format!("'context' is 0 to {MOST_CONTEXT}")));
        }
        let source = if asked.literal { regex::escape(&asked.pattern) } else { asked.pattern.clone() };
        let built = RegexBuilder::new(&source)
            .case_insensitive(asked.ignore_case)
            .multi_line(true)
            .crlf(true)
            .size_limit(4 << 20)
            .dfa_size_limit(4 << 20)
            .nest_limit(50)
            .build();
        let regex = built.map_err(|error| {
            let why = text::shortened(&error.to_string().replace('\n', " "), 300);
            Failure::new(400, "invalid_pattern", format!("the pattern is not a regular expression: {why}"))
                .hint("say 'literal' to search for the text as it is")
        })?;
        let filters = |globs: &[String]| -> Result<Vec<_>, Failure> {
            globs.iter().map(|glob| Pattern::of_filter(glob)).collect()
        };
        let own_flags = ["(?", "\\A", "\\z"];
        Ok(Self {
            asked,
            regex,
            whole_first: asked.literal || !own_flags.iter().any(|flag| asked.pattern.contains(flag)),
            include: filters(&asked.include)?,
            exclude: filters(&asked.exclude)?,
            most: count(asked.max_results, USUAL_MATCHES, MOST_MATCHES, "max_results")?,
            until: clock::boot_nanos() + LONGEST_SEARCH_NANOS,
            size: 0,
            found: Grepped::default(),
        })
    }

    fn tree(&mut self, root: &Root, path: &SandboxPath) -> Result<(), Failure> {
        let mut walk = begin(root, path)?;
        while let Some(step) = walk.next().map_err(|errno| Failure::of(errno, path))? {
            let Step::Entry { name, stat } = step else { continue };
            if is_unfinished(&name) || (!self.asked.hidden && is_hidden(&name)) {
                continue;
            }
            if clock::boot_nanos() > self.until {
                self.stop("time");
            }
            if self.found.truncated {
                break;
            }
            let relative = walk.path_of(&name);
            let shown_relative = String::from_utf8_lossy(&relative);
            if is_directory(&stat) {
                let inside = format!("{shown_relative}/");
                if !self.exclude.iter().any(|pattern| pattern.matches(&inside)) {
                    enter(&mut walk, &name, path)?;
                }
            } else if is_file(&stat) && self.wants(&shown_relative) {
                match opened(walk.directory(), &name) {
                    Some(file) => self.file(file, &shown(&path.join(&relative))),
                    None => self.found.files_skipped += 1,
                }
            }
        }
        Ok(())
    }

    fn wants(&self, relative: &str) -> bool {
        let included =
            self.include.is_empty() || self.include.iter().any(|pattern| pattern.matches(relative));
        included && !self.exclude.iter().any(|pattern| pattern.matches(relative))
    }

    fn file(&mut self, file: OwnedFd, shown: &str) {
        let mut bytes = Vec::new();
        let read = File::from(file).take(LARGEST_SEARCHED + 1).read_to_end(&mut bytes);
        if read.is_err() || bytes.len() as u64 > LARGEST_SEARCHED || text::is_binary(&bytes) {
            self.found.files_skipped += 1;
            return;
        }
        self.found.files_searched += 1;
        if self.whole_first && !self.regex.is_match(&bytes) {
            return;
        }
        let lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
        let last = lines.len() - usize::from(lines.last().is_some_and(|line| line.is_empty()));
        for (at, line) in lines[..last].iter().enumerate() {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let Some(found) = self.regex.find(line) else { continue };
            if self.found.matches.len() == self.most {
                return self.stop("max_results");
            }
            if self.size > LARGEST_ANSWER {
                return self.stop("size");
            }
            let around = |range: &[&[u8]]| range.iter().map(|line| self.shown(line, 0)).collect::<Vec<_>>();
            let before = around(&lines[at.saturating_sub(self.asked.context)..at]);
            let after = around(&lines[at + 1..last.min(at + 1 + self.asked.context)]);
            let text = self.shown(line, found.start());
            self.size += text.len() + before.iter().chain(&after).map(String::len).sum::<usize>();
            let column = String::from_utf8_lossy(&line[..found.start()]).chars().count() as u64 + 1;
            let line = at as u64 + 1;
            self.found.matches.push(Match { path: shown.to_owned(), line, column, text, before, after });
        }
    }

    /// A line, or of a long one what is around a place.
    fn shown(&self, line: &[u8], place: usize) -> String {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.len() <= LONGEST_LINE {
            return String::from_utf8_lossy(line).into_owned();
        }
        let begin = place.saturating_sub(LONGEST_LINE / 2).min(line.len() - LONGEST_LINE);
        let part = String::from_utf8_lossy(&line[begin..begin + LONGEST_LINE]);
        let left = if begin > 0 { "…" } else { "" };
        let right = if begin + LONGEST_LINE < line.len() { "…" } else { "" };
        format!("{left}{part}{right}")
    }

    fn stop(&mut self, because: &str) {
        self.found.truncated = true;
        self.found.truncated_by.get_or_insert_with(|| because.to_owned());
    }
}

/// A regular file that is not too large; it may have become something else since it was listed.
fn opened(directory: std::os::fd::BorrowedFd<'_>, name: &OsStr) -> Option<OwnedFd> {
    let file = open_for_reading(directory, name).ok()?;
    let stat = fs::fstat(&file).ok()?;
    let fits = u64::try_from(stat.st_size).is_ok_and(|size| size <= LARGEST_SEARCHED);
    (is_file(&stat) && fits).then_some(file)
}
