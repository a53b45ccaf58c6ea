//! The bytes of a file as text, and back.

use std::fs::File;
use std::io::Read;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::super::failure::Failure;
use super::super::path::SandboxPath;
use super::super::root::Root;
use crate::wire::tools::{Encoding, LARGEST_FILE};

/// A NUL within so many bytes tells a file that is not text.
const LOOKED_AT: usize = 8 * 1024;

/// Whether these bytes, the beginning of a file, are no text.
pub(super) fn is_binary(beginning: &[u8]) -> bool {
    beginning[..beginning.len().min(LOOKED_AT)].contains(&0)
}

pub(super) fn binary_file(path: &SandboxPath) -> Failure {
    Failure::new(422, "binary_file", format!("{path} is not text"))
        .hint("read it with encoding 'base64', or look at it with 'file' or 'xxd' by an exec")
}

pub(super) fn not_utf8(path: &SandboxPath) -> Failure {
    Failure::new(422, "not_utf8", format!("{path} is not UTF-8"))
        .hint("read it with encoding 'latin-1', 'utf-16' or 'base64'")
}

/// The whole of a file that is not too large.
pub(super) fn whole(root: &Root, path: &SandboxPath) -> Result<Vec<u8>, Failure> {
    let (file, stat) = root.open_file(path)?;
    let size = usize::try_from(stat.st_size).unwrap_or(usize::MAX);
    if size > LARGEST_FILE {
        return Err(Failure::too_large(path, LARGEST_FILE));
    }
    let mut bytes = Vec::with_capacity(size);
    let most = LARGEST_FILE as u64 + 1;
    File::from(file).take(most).read_to_end(&mut bytes).map_err(|error| Failure::of_io(&error, path))?;
    if bytes.len() > LARGEST_FILE {
        return Err(Failure::too_large(path, LARGEST_FILE));
    }
    Ok(bytes)
}

/// The whole of a file that is text.
pub(super) fn whole_text(root: &Root, path: &SandboxPath) -> Result<String, Failure> {
    let bytes = whole(root, path)?;
    if is_binary(&bytes) {
        return Err(binary_file(path));
    }
    String::from_utf8(bytes).map_err(|_| not_utf8(path))
}

/// What a file with this text has in it.
pub(super) fn encode(content: &str, encoding: Encoding) -> Result<Vec<u8>, Failure> {
    match encoding {
        Encoding::Utf8 => Ok(content.as_bytes().to_vec()),
        Encoding::Latin1 => content
            .chars()
            .map(|character| {
                u8::try_from(u32::from(character)).map_err(|_| {
                    let why = format!("'{}' is not in latin-1", character.escape_default());
                    Failure::invalid_argument(why).hint("write it as utf-8")
                })
            })
            .collect(),
        Encoding::Utf16 => Ok(content.encode_utf16().flat_map(u16::to_le_bytes).collect()),
        Encoding::Base64 => STANDARD
            .decode(content.trim())
            .map_err(|error| Failure::invalid_argument(format!("'content' is not base64: {error}"))),
    }
}

pub(super) fn base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

pub(super) fn from_latin1(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| char::from(*byte)).collect()
}

pub(super) fn from_utf16(bytes: &[u8]) -> String {
    let big = bytes.starts_with(&[0xfe, 0xff]);
    let unit = |pair: &[u8]| {
        let pair = [pair[0], pair.get(1).copied().unwrap_or(0)];
        if big { u16::from_be_bytes(pair) } else { u16::from_le_bytes(pair) }
    };
    let units: Vec<u16> = bytes.chunks(2).map(unit).collect();
    let text = String::from_utf16_lossy(&units);
    text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text)
}

/// The line, counted from 1, in which a place of a text is.
pub(super) fn line_at(text: &str, place: usize) -> u64 {
    1 + text.as_bytes()[..place].iter().filter(|byte| **byte == b'\n').count() as u64
}

/// The beginning of a text, up to so many characters, without what could harm a terminal.
pub(super) fn shortened(text: &str, most: usize) -> String {
    let mut shown: String = text
        .chars()
        .take(most)
        .flat_map(|c| match c.is_control() && c != '\t' {
            true => c.escape_default().collect::<Vec<_>>(),
            false => vec![c],
        })
        .collect();
    if text.chars().nth(most).is_some() {
        shown.push('…');
    }
    shown
}
