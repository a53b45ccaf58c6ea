//! Reading a part of a file.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};

use super::super::failure::Failure;
use super::super::list::shown;
use super::super::path::SandboxPath;
use super::super::root::Root;
use super::{path, text};
use crate::wire::tools::{Encoding, FileText, LARGEST_TEXT, ReadFile, USUAL_LINES};

/// A file up to this size is read to its end only to say how many lines it has.
const COUNTED: u64 = 64 * 1024 * 1024;
const BUFFER: usize = 64 * 1024;

pub(super) fn read(root: &Root, asked: &ReadFile) -> Result<FileText, Failure> {
    let path = path(&asked.path)?;
    if asked.limit == Some(0) {
        return Err(Failure::invalid_argument("'limit' is at least 1"));
    }
    match asked.encoding {
        Encoding::Base64 => bytes(root, asked, &path),
        Encoding::Utf16 => {
            let content = text::from_utf16(&text::whole(root, &path)?);
            let size = root.open_file(&path)?.1.st_size;
            let lines = Lines::of(BufReader::new(content.as_bytes()), asked, size, &path)?;
            lines.answer(asked, size, &path)
        }
        Encoding::Utf8 | Encoding::Latin1 => {
            let (file, stat) = root.open_file(&path)?;
            let lines =
                Lines::of(BufReader::with_capacity(BUFFER, File::from(file)), asked, stat.st_size, &path)?;
            lines.answer(asked, stat.st_size, &path)
        }
    }
}

fn bytes(root: &Root, asked: &ReadFile, path: &SandboxPath) -> Result<FileText, Failure> {
    let (file, stat) = root.open_file(path)?;
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    let begin = asked.offset.unwrap_or(0);
    let most = (LARGEST_TEXT / 4 * 3) as u64;
    let wanted = asked.limit.unwrap_or(most).min(most);
    let mut content = Vec::new();
    let mut file = File::from(file);
    let read = file.seek(SeekFrom::Start(begin)).and_then(|_| file.take(wanted).read_to_end(&mut content));
    read.map_err(|error| Failure::of_io(&error, path))?;
    let end = begin.saturating_add(content.len() as u64);
    let truncated = end < size;
    Ok(FileText {
        path: shown(path.as_bytes()),
        content: text::base64(&content),
        encoding: Encoding::Base64,
        size,
        first_line: None,
        last_line: None,
        total_lines: None,
        truncated,
        next_offset: truncated.then_some(end),
    })
}

/// The lines that were asked for.
struct Lines {
    kept: Vec<u8>,
    first: u64,
    /// How many lines `kept` has, the last of them maybe not whole.
    count: u64,
    /// Absent when the file was not read to its end.
    total: Option<u64>,
}

impl Lines {
    fn of(
        mut reader: impl BufRead,
        asked: &ReadFile,
        size: i64,
        path: &SandboxPath,
    ) -> Result<Self, Failure> {
        let first = asked.offset.unwrap_or(1).max(1);
        let behind = first.saturating_add(asked.limit.unwrap_or(USUAL_LINES));
        let counts_all = u64::try_from(size).is_ok_and(|size| size <= COUNTED);
        let (mut line, mut kept, mut full) = (1_u64, Vec::new(), false);
        let (mut at_start, mut seen_any) = (true, false);
        loop {
            let piece = reader.fill_buf().map_err(|error| Failure::of_io(&error, path))?;
            if piece.is_empty() {
                break;
            }
            if !seen_any && asked.encoding != Encoding::Utf16 && text::is_binary(piece) {
                return Err(text::binary_file(path));
            }
            seen_any = true;
            for part in piece.split_inclusive(|byte| *byte == b'\n') {
                at_start = part.ends_with(b"\n");
                if (first..behind).contains(&line) && !full {
                    let room = LARGEST_TEXT - kept.len();
                    full = part.len() > room;
                    kept.extend_from_slice(&part[..part.len().min(room)]);
                }
                line += u64::from(at_start);
            }
            let length = piece.len();
            reader.consume(length);
            if !counts_all && (full || line >= behind) {
                return Ok(Self::new(kept, first, full, None));
            }
        }
        let total = if at_start { line - 1 } else { line };
        Ok(Self::new(kept, first, full, Some(total)))
    }

    fn new(mut kept: Vec<u8>, first: u64, full: bool, total: Option<u64>) -> Self {
        // Only whole lines, unless the very first one is too long already.
        if full && let Some(end) = kept.iter().rposition(|byte| *byte == b'\n') {
            kept.truncate(end + 1);
        }
        let ends = kept.iter().filter(|byte| **byte == b'\n').count() as u64;
        let count = ends + u64::from(kept.last().is_some_and(|last| *last != b'\n'));
        Self { kept, first, count, total }
    }

    fn answer(self, asked: &ReadFile, size: i64, path: &SandboxPath) -> Result<FileText, Failure> {
        let Self { kept, first, count, total } = self;
        if count == 0
            && first > 1
            && let Some(total) = total
        {
            let why = format!("{path} has {total} lines, line {first} is behind its end");
            return Err(Failure::new(416, "behind_the_end", why));
        }
        let content = match asked.encoding {
            Encoding::Latin1 => text::from_latin1(&kept),
            _ => whole_characters(kept).ok_or_else(|| text::not_utf8(path))?,
        };
        let last = (count > 0).then(|| first + count - 1);
        let truncated = total.is_none_or(|total| last.is_some_and(|last| last < total));
        Ok(FileText {
            path: shown(path.as_bytes()),
            content: if asked.line_numbers { numbered(&content, first) } else { content },
            encoding: asked.encoding,
            size: u64::try_from(size).unwrap_or(0),
            first_line: (count > 0).then_some(first),
            last_line: last,
            total_lines: total,
            truncated,
            next_offset: last.filter(|_| truncated).map(|last| last + 1),
        })
    }
}

/// Text, but for a character at its end that was cut. None when it is no text.
fn whole_characters(mut bytes: Vec<u8>) -> Option<String> {
    if let Err(error) = std::str::from_utf8(&bytes)
        && error.error_len().is_none()
        && bytes.len() >= LARGEST_TEXT
    {
        bytes.truncate(error.valid_up_to());
    }
    String::from_utf8(bytes).ok()
}

fn numbered(content: &str, first: u64) -> String {
    let lines = content.split_inclusive('\n').zip(first..);
    lines.map(|(line, number)| format!("{number:>6}\t{line}")).collect()
}
