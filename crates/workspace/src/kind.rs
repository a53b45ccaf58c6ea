//! MIME types: by the name, and by how a file begins where the name does not say or cannot be believed.

use std::fs::File;
use std::os::unix::fs::FileExt;

const UNKNOWN: &str = "application/octet-stream";
const LOOKED_AT: usize = 512;

const BY_EXTENSION: &[(&str, &str)] = &[
    ("avif", "image/avif"),
    ("bash", "text/x-shellscript"),
    ("bmp", "image/bmp"),
    ("bz2", "application/x-bzip2"),
    ("c", "text/x-c"),
    ("cc", "text/x-c++"),
    ("cpp", "text/x-c++"),
    ("css", "text/css"),
    ("csv", "text/csv"),
    ("diff", "text/x-diff"),
    ("docx", "application/vnd.openxmlformats-officedocument.wordprocessingml.document"),
    ("epub", "application/epub+zip"),
    ("gif", "image/gif"),
    ("go", "text/x-go"),
    ("gz", "application/gzip"),
    ("h", "text/x-c"),
    ("hpp", "text/x-c++"),
    ("htm", "text/html"),
    ("html", "text/html"),
    ("ico", "image/vnd.microsoft.icon"),
    ("ics", "text/calendar"),
    ("ipynb", "application/x-ipynb+json"),
    ("java", "text/x-java"),
    ("jpeg", "image/jpeg"),
    ("jpg", "image/jpeg"),
    ("js", "text/javascript"),
    ("json", "application/json"),
    ("jsonl", "application/jsonl"),
    ("log", "text/plain"),
    ("m4a", "audio/mp4"),
    ("md", "text/markdown"),
    ("mjs", "text/javascript"),
    ("mp3", "audio/mpeg"),
    ("mp4", "video/mp4"),
    ("ndjson", "application/x-ndjson"),
    ("odt", "application/vnd.oasis.opendocument.text"),
    ("ogg", "audio/ogg"),
    ("parquet", "application/vnd.apache.parquet"),
    ("patch", "text/x-diff"),
    ("pdf", "application/pdf"),
    ("png", "image/png"),
    ("pptx", "application/vnd.openxmlformats-officedocument.presentationml.presentation"),
    ("py", "text/x-python"),
    ("rb", "text/x-ruby"),
    ("rs", "text/x-rust"),
    ("rst", "text/x-rst"),
    ("sh", "text/x-shellscript"),
    ("sql", "application/sql"),
    ("sqlite", "application/vnd.sqlite3"),
    ("svg", "image/svg+xml"),
    ("tar", "application/x-tar"),
    ("tex", "text/x-tex"),
    ("tgz", "application/gzip"),
    ("tif", "image/tiff"),
    ("tiff", "image/tiff"),
    ("toml", "application/toml"),
    ("ts", "text/x-typescript"),
    ("tsv", "text/tab-separated-values"),
    ("tsx", "text/x-typescript"),
    ("txt", "text/plain"),
    ("wav", "audio/wav"),
    ("webm", "video/webm"),
    ("webp", "image/webp"),
    ("whl", "application/zip"),
    ("xls", "application/vnd.ms-excel"),
    ("xlsx", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"),
    ("xml", "application/xml"),
    ("yaml", "application/yaml"),
    ("yml", "application/yaml"),
    ("zip", "application/zip"),
    ("zst", "application/zstd"),
];

const BY_BEGINNING: &[(&[u8], &str)] = &[
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"BM", "image/bmp"),
    (b"II*\0", "image/tiff"),
    (b"MM\0*", "image/tiff"),
    (b"%PDF-", "application/pdf"),
    (b"PK\x03\x04", "application/zip"),
    (b"\x1f\x8b", "application/gzip"),
    (b"BZh", "application/x-bzip2"),
    (b"\x28\xb5\x2f\xfd", "application/zstd"),
    (b"SQLite format 3\0", "application/vnd.sqlite3"),
    (b"#!/bin/sh", "text/x-shellscript"),
    (b"#!/bin/bash", "text/x-shellscript"),
    (b"#!/usr/bin/env python", "text/x-python"),
    (b"#!/usr/bin/env bash", "text/x-shellscript"),
];

/// Clients show these from their bytes, so a name alone is not believed.
const PICTURES: &[&str] = &["image/png", "image/jpeg", "image/gif", "image/webp"];

/// By the extension alone.
pub fn kind_of_name(name: &str) -> Option<&'static str> {
    let name = name.rsplit('/').next().unwrap_or(name);
    let (stem, extension) = name.rsplit_once('.')?;
    if stem.is_empty() {
        return None;
    }
    let extension = extension.to_ascii_lowercase();
    BY_EXTENSION.iter().find(|(known, _)| *known == extension).map(|(_, kind)| *kind)
}

/// By the name, or else by how the file begins.
pub(crate) fn kind_of(name: &str, file: &File) -> String {
    let named = kind_of_name(name);
    if let Some(kind) = named.filter(|kind| !PICTURES.contains(kind)) {
        return kind.into();
    }
    let mut beginning = [0; LOOKED_AT];
    let read = file.read_at(&mut beginning, 0).unwrap_or(0);
    kind_of_beginning(&beginning[..read]).into()
}

fn kind_of_beginning(bytes: &[u8]) -> &'static str {
    if bytes.len() >= 12 && bytes.starts_with(b"RIFF") && &bytes[8..12] == b"WEBP" {
        return "image/webp";
    }
    if let Some((_, kind)) = BY_BEGINNING.iter().find(|(beginning, _)| bytes.starts_with(beginning)) {
        return kind;
    }
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        // Cut in the middle of a character.
        Err(error) if error.error_len().is_none() => {
            std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => return UNKNOWN,
    };
    let is_text = text.chars().all(|c| !c.is_control() || matches!(c, '\n' | '\r' | '\t' | '\x0c' | '\x1b'));
    if is_text { "text/plain" } else { UNKNOWN }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn the_tables_are_in_order() {
        assert!(BY_EXTENSION.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }

    #[test]
    fn a_type_is_found_by_name_and_by_contents() {
        let table: [(&str, &[u8], &str); 12] = [
            ("analyze_spending.py", b"\0", "text/x-python"),
            ("summary.md", b"# x", "text/markdown"),
            ("d/chart.PNG", b"\x89PNG\r\n\x1a\nrest", "image/png"),
            ("chart.png", b"not a picture", "text/plain"),
            ("chart.png", b"\0\0", "application/octet-stream"),
            ("chart", b"\x89PNG\r\n\x1a\nrest", "image/png"),
            ("w", b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"),
            ("Makefile", b"all:\n\techo hi\n", "text/plain"),
            ("run", b"#!/bin/sh\nexit\n", "text/x-shellscript"),
            (".png", b"text", "text/plain"),
            ("empty", b"", "text/plain"),
            ("latin", b"caf\xe9 and more", "application/octet-stream"),
        ];
        for (name, bytes, expected) in table {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(bytes).unwrap();
            assert_eq!(kind_of(name, &file), expected, "{name}");
        }
    }

    #[test]
    fn a_character_that_is_cut_is_still_text() {
        let mut text = vec![b'a'; LOOKED_AT - 1];
        text.extend("é".bytes());
        assert_eq!(kind_of_beginning(&text[..LOOKED_AT]), "text/plain");
    }
}
