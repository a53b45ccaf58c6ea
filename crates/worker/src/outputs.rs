//! The files below the task's `output/`, as they are found when it ends.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use crate::OutputFile;

const MOST_FILES: usize = 1000;
const DEEPEST: usize = 16;

/// Regular files only, sorted by name.
pub(crate) fn list(directory: &Path) -> Vec<OutputFile> {
    let mut files = Vec::new();
    walk(directory, "", DEEPEST, &mut files);
    files.sort_by(|a, b| a.name.cmp(&b.name));
    files
}

fn walk(directory: &Path, prefix: &str, levels: usize, files: &mut Vec<OutputFile>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if files.len() >= MOST_FILES {
            return;
        }
        // A name that is not text cannot be asked for.
        let Ok(name) = entry.file_name().into_string() else { continue };
        let Ok(about) = entry.path().symlink_metadata() else { continue };
        let name = format!("{prefix}{name}");
        if about.is_dir() && levels > 0 {
            walk(&entry.path(), &format!("{name}/"), levels - 1, files);
        } else if about.is_file() {
            let kind = media_type(&name, &beginning(&entry.path()));
            files.push(OutputFile { kind: kind.into(), size: about.len(), name });
        }
    }
}

fn beginning(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Ok(file) = File::open(path) {
        // What cannot be read has no known type.
        _ = file.take(512).read_to_end(&mut bytes);
    }
    bytes
}

/// By the name's ending, else by whether the beginning is text.
fn media_type(name: &str, beginning: &[u8]) -> &'static str {
    let ending =
        name.rsplit('/').next().and_then(|name| name.rsplit_once('.')).map_or("", |(_, ending)| ending);
    match ending.to_ascii_lowercase().as_str() {
        "md" | "markdown" => "text/markdown",
        "txt" | "log" => "text/plain",
        "py" => "text/x-python",
        "rs" => "text/x-rust",
        "sh" => "text/x-shellscript",
        "js" | "mjs" => "text/javascript",
        "css" => "text/css",
        "csv" => "text/csv",
        "html" | "htm" => "text/html",
        "patch" | "diff" => "text/x-diff",
        "json" => "application/json",
        "jsonl" => "application/jsonl",
        "yaml" | "yml" => "application/yaml",
        "toml" => "application/toml",
        "xml" => "application/xml",
        "pdf" => "application/pdf",
        "zip" => "application/zip",
        "gz" => "application/gzip",
        "tar" => "application/x-tar",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "svg" => "image/svg+xml",
        "mp3" => "audio/mpeg",
        "wav" => "audio/wav",
        "mp4" => "video/mp4",
        _ if beginning.starts_with(b"\x89PNG\r\n\x1a\n") => "image/png",
        _ if beginning.starts_with(b"%PDF-") => "application/pdf",
        _ if is_text(beginning) => "text/plain",
        _ => "application/octet-stream",
    }
}

/// The last letter may be cut.
fn is_text(bytes: &[u8]) -> bool {
    let text = std::str::from_utf8(bytes);
    !bytes.contains(&0) && text.err().is_none_or(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_listed_with_size_and_type_and_links_are_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        fs::create_dir(path.join("plots")).unwrap();
        fs::write(path.join("plots/a.png"), [0, 1, 2]).unwrap();
        fs::write(path.join("notes"), "ü".repeat(600)).unwrap();
        fs::write(path.join("blob"), [0, 159]).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", path.join("link.txt")).unwrap();
        let found: Vec<_> = list(path).into_iter().map(|file| (file.name, file.size, file.kind)).collect();
        let expected = [
            ("blob", 2, "application/octet-stream"),
            ("notes", 1200, "text/plain"),
            ("plots/a.png", 3, "image/png"),
        ];
        assert_eq!(found, expected.map(|(name, size, kind)| (name.to_owned(), size, kind.to_owned())));
        assert_eq!(list(&path.join("missing")), []);
    }
}
