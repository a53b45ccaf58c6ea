//! Files of a sandbox.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;

use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};

use super::body::Body;
use super::connection::is_closed;
use super::error::ClientError;
use super::quiet::QuietStream;
use super::{Answer, Beside, Guest, LONGEST_ANSWER, Repeat, head, json, request};

/// What is sent in one piece of a stream.
const PIECE: usize = 256 * 1024;
const LONGEST_CHANGE: usize = 64 * 1024;

/// Something in a directory of a sandbox. Names and targets are the sandbox's words and may be anything.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Entry {
    pub name: String,
    pub path: String,
    /// Where `path` is not valid UTF-8: the real one, percent-encoded.
    #[serde(default)]
    pub path_encoded: Option<String>,
    #[serde(rename = "type")]
    pub kind: EntryKind,
    pub size: u64,
    /// Permission bits in octal.
    pub mode: String,
    /// Seconds since 1970.
    pub mtime: f64,
    #[serde(default)]
    pub target: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    File,
    Directory,
    Symlink,
    Other,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Listing {
    pub path: String,
    pub entries: Vec<Entry>,
    /// Whether there is more than was listed.
    pub truncated: bool,
}

/// What came of an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Unpacked {
    pub files: u64,
    pub directories: u64,
    pub links: u64,
    pub bytes: u64,
}

/// How a file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WriteFile {
    /// Permission bits; those of the file that is replaced, or 0644, when absent.
    pub mode: Option<u32>,
    /// Whether missing directories above it are made.
    pub parents: bool,
    /// Whether a file that is there already is a refusal (`exists`).
    pub must_be_new: bool,
}

/// A file's contents and what was known of it when they were opened.
#[derive(Debug)]
pub struct FileBody {
    pub body: Body,
    /// Of the whole file.
    pub size: u64,
    pub etag: Option<String>,
    pub mode: Option<String>,
    pub mtime: Option<String>,
}

/// One change below a watched directory: `watching` (the first), `created`, `modified`, `removed`, `moved`, or
/// `overflow` when changes may have been missed.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Change {
    pub event: String,
    pub path: String,
    #[serde(default)]
    pub to: Option<String>,
}

#[derive(Debug)]
pub struct WatchStream(Body);

impl WatchStream {
    /// The next change; none when the watched directory is gone.
    pub async fn next(&mut self) -> Result<Option<Change>, ClientError> {
        let mut wanted = 1;
        loop {
            let more = self.0.fill(wanted).await?;
            let data = self.0.data();
            if let Some(end) = data.iter().position(|byte| *byte == b'\n') {
                let change = json(&data[..end])?;
                self.0.consume(end + 1);
                return Ok(Some(change));
            }
            if !more {
                return match data.is_empty() {
                    true => Ok(None),
                    false => Err(ClientError::Protocol("a line is incomplete")),
                };
            }
            if data.len() >= LONGEST_CHANGE {
                return Err(ClientError::Protocol("a line is too long"));
            }
            wanted = data.len() + 1;
        }
    }
}

#[derive(Deserialize)]
struct Written {
    size: u64,
}

impl Guest {
    /// Opens a file, or a part of it, for reading. Paths are the sandbox's own; a relative one is in `/workspace`.
    pub async fn open_file(
        &self,
        path: impl AsRef<OsStr>,
        range: Option<Range<u64>>,
    ) -> Result<FileBody, ClientError> {
        let line = format!("GET {}", file_target(path.as_ref(), &[]));
        let range = match range {
            Some(range) if range.is_empty() => return Err(ClientError::Invalid("the range is empty")),
            Some(range) => Some(format!("bytes={}-{}", range.start, range.end - 1)),
            None => None,
        };
        let headers = range.as_deref().map(|range| ("range", range));
        let request = request(&line, headers.as_slice(), b"");
        let Answer { head, body } = self.request(&request, Repeat::Safe).await?;
        let size = match &head.content_range {
            Some(range) => range.rsplit_once('/').and_then(|(_, size)| size.parse().ok()),
            None => body.remaining(),
        };
        let size = size.ok_or(ClientError::Protocol("a file has no size"))?;
        Ok(FileBody { body, size, etag: head.etag, mode: head.mode, mtime: head.mtime })
    }

    /// Reads a file, or a part of it, that is not longer than `limit`.
    pub async fn read_file(
        &self,
        path: impl AsRef<OsStr>,
        range: Option<Range<u64>>,
        limit: usize,
    ) -> Result<Vec<u8>, ClientError> {
        self.open_file(path, range).await?.body.collect(limit).await
    }

    /// Writes or replaces a file in one step.
    pub async fn write_file(
        &self,
        path: impl AsRef<OsStr>,
        contents: &[u8],
        how: WriteFile,
    ) -> Result<(), ClientError> {
        let request = request(&put_line(path.as_ref(), how), put_headers(how), contents);
        let repeat = if how.must_be_new { Repeat::Never } else { Repeat::Safe };
        self.request(&request, repeat).await?.body.collect(LONGEST_ANSWER).await?;
        Ok(())
    }

    /// The same from a stream of unknown length. Says how long it was.
    pub async fn write_file_from(
        &self,
        path: impl AsRef<OsStr>,
        contents: &mut (impl AsyncRead + Unpin),
        how: WriteFile,
    ) -> Result<u64, ClientError> {
        let answer = self.send_stream(&put_line(path.as_ref(), how), put_headers(how), contents).await?;
        let written: Written = json(&answer.body.collect(LONGEST_ANSWER).await?)?;
        Ok(written.size)
    }

    /// What is in a directory, sorted; with `recursive`, what is below it too.
    pub async fn list(&self, path: impl AsRef<OsStr>, recursive: bool) -> Result<Listing, ClientError> {
        let path = encoded(path.as_ref(), Keep::Unreserved);
        self.call_json(&format!("GET /files?list={path}&recursive={recursive}"), b"", Repeat::Safe).await
    }

    /// What something is. A symbolic link is not followed.
    pub async fn stat(&self, path: impl AsRef<OsStr>) -> Result<Entry, ClientError> {
        let path = encoded(path.as_ref(), Keep::Unreserved);
        self.call_json(&format!("GET /files?stat={path}"), b"", Repeat::Safe).await
    }

    pub async fn remove(&self, path: impl AsRef<OsStr>, recursive: bool) -> Result<(), ClientError> {
        let query = if recursive { &[("recursive", "true")][..] } else { &[] };
        let request = request(&format!("DELETE {}", file_target(path.as_ref(), query)), &[], b"");
        // A large tree takes its time.
        self.request(&request, Repeat::Never).await?.body.collect(LONGEST_ANSWER).await?;
        Ok(())
    }

    /// Makes a directory and those above it. One that is there already is fine.
    pub async fn make_directory(
        &self,
        path: impl AsRef<OsStr>,
        mode: Option<u32>,
    ) -> Result<(), ClientError> {
        let path = encoded(path.as_ref(), Keep::Unreserved);
        let mode = mode.map(|mode| format!("&mode={mode:o}")).unwrap_or_default();
        self.call(&format!("POST /files?mkdir={path}{mode}"), b"", Repeat::Safe).await.map(drop)
    }

    /// Gives something another name; without `replace`, only one that is free.
    pub async fn rename(
        &self,
        from: impl AsRef<OsStr>,
        to: impl AsRef<OsStr>,
        replace: bool,
    ) -> Result<(), ClientError> {
        let from = encoded(from.as_ref(), Keep::Unreserved);
        let to = encoded(to.as_ref(), Keep::Unreserved);
        let request = request(&format!("POST /files?move={from}&to={to}&replace={replace}"), &[], b"");
        self.request(&request, Repeat::Never).await?.body.collect(LONGEST_ANSWER).await?;
        Ok(())
    }

    /// Unpacks a tar archive below a directory.
    pub async fn put_archive(
        &self,
        into: impl AsRef<OsStr>,
        archive: &mut (impl AsyncRead + Unpin),
    ) -> Result<Unpacked, ClientError> {
        let line = format!("PUT /archive?into={}", encoded(into.as_ref(), Keep::Unreserved));
        let answer = self.send_stream(&line, &[], archive).await?;
        json(&answer.body.collect(LONGEST_ANSWER).await?)
    }

    /// A file or a directory as a tar archive. Whoever unpacks it on the host must not trust it.
    pub async fn get_archive(&self, of: impl AsRef<OsStr>) -> Result<Body, ClientError> {
        let line = format!("GET /archive?of={}", encoded(of.as_ref(), Keep::Unreserved));
        Ok(self.request(&request(&line, &[], b""), Repeat::Safe).await?.body)
    }

    /// Follows the changes below a directory. Dropping the stream ends the watch.
    pub async fn watch(&self, path: impl AsRef<OsStr>, recursive: bool) -> Result<WatchStream, ClientError> {
        let path = encoded(path.as_ref(), Keep::Unreserved);
        let request = request(&format!("GET /watch?path={path}&recursive={recursive}"), &[], b"");
        Ok(WatchStream(self.request(&request, Repeat::Safe).await?.body))
    }

    /// Sends a stream in chunks. Never repeated: what was read is gone.
    async fn send_stream(
        &self,
        line: &str,
        headers: &[(&str, &str)],
        contents: &mut (impl AsyncRead + Unpin),
    ) -> Result<Answer, ClientError> {
        let mut connection = self.connection().await?;
        let mut request = head(line, headers, 64);
        request.extend_from_slice(b"transfer-encoding: chunked\r\n\r\n");
        connection.send(&request).await?;
        // The length goes before the data and is known after it; there is room for it.
        const LINE: usize = 8;
        let mut piece = vec![0; LINE + PIECE + 2];
        loop {
            let mut filled = 0;
            while filled < PIECE {
                let read = contents.read(&mut piece[LINE + filled..LINE + PIECE]).await;
                match read.map_err(ClientError::Input)? {
                    0 => break,
                    count => filled += count,
                }
            }
            let last = filled < PIECE;
            if filled > 0 {
                piece[..LINE].copy_from_slice(format!("{filled:06x}\r\n").as_bytes());
                piece[LINE + filled..LINE + filled + 2].copy_from_slice(b"\r\n");
                if !write(&mut connection.stream, &piece[..LINE + filled + 2]).await? {
                    break;
                }
            }
            if last {
                write(&mut connection.stream, b"0\r\n\r\n").await?;
                break;
            }
        }
        let head = connection.head(&self.0.identity, false).await?;
        self.judge(head, connection, Beside::Nothing).await
    }
}

/// Whether the sandbox took it. One that refuses stops reading; its answer says why.
async fn write(stream: &mut QuietStream, bytes: &[u8]) -> Result<bool, ClientError> {
    match stream.write_all(bytes).await {
        Ok(()) => Ok(true),
        Err(error) if is_closed(&error) => Ok(false),
        Err(error) => Err(ClientError::Unavailable(error)),
    }
}

fn put_line(path: &OsStr, how: WriteFile) -> String {
    let mode = how.mode.map(|mode| format!("{mode:o}"));
    let mut query = Vec::new();
    if let Some(mode) = &mode {
        query.push(("mode", mode.as_str()));
    }
    if how.parents {
        query.push(("parents", "true"));
    }
    format!("PUT {}", file_target(path, &query))
}

fn put_headers(how: WriteFile) -> &'static [(&'static str, &'static str)] {
    if how.must_be_new { &[("if-none-match", "*")] } else { &[] }
}

fn file_target(path: &OsStr, query: &[(&str, &str)]) -> String {
    let mut target = format!("/files/{}", encoded(path, Keep::Slashes));
    for (at, (name, value)) in query.iter().enumerate() {
        let separator = if at == 0 { '?' } else { '&' };
        // Writing to a string cannot fail.
        let _ = write!(target, "{separator}{name}={value}");
    }
    target
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Keep {
    Unreserved,
    Slashes,
}

fn encoded(path: &OsStr, keep: Keep) -> String {
    let mut encoded = String::with_capacity(path.len() + 16);
    for byte in path.as_bytes() {
        let plain = byte.is_ascii_alphanumeric()
            || b"-_.~".contains(byte)
            || (*byte == b'/' && keep == Keep::Slashes);
        if plain {
            encoded.push(char::from(*byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_cannot_become_another_part_of_the_request() {
        let path = OsStr::from_bytes(b"a b?c#d%\r\n\xff/e");
        assert_eq!(file_target(path, &[("mode", "644")]), "/files/a%20b%3Fc%23d%25%0D%0A%FF/e?mode=644");
        assert_eq!(encoded(OsStr::new("/a&b"), Keep::Unreserved), "%2Fa%26b");
    }
}
