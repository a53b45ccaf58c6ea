//! Reads values that are not in the store: files and variables of the server.

use std::io::Read;
use std::path::Path;
use std::time::Duration;

use cubicle_egress::secret::Secret;

/// Of any secret.
pub(crate) const LARGEST_VALUE: usize = 64 * 1024;
/// A file on a disk that is away.
const PATIENCE: Duration = Duration::from_secs(5);

/// The value, or why there is none now.
pub(crate) async fn from_file(path: &Path) -> Result<Secret, String> {
    let shown = path.display().to_string();
    let path = path.to_owned();
    // The thread goes on after that; nobody waits for it.
    let reading = tokio::time::timeout(PATIENCE, tokio::task::spawn_blocking(move || read(&path))).await;
    let bytes = match reading {
        Ok(Ok(Ok(bytes))) => bytes,
        Ok(Ok(Err(error))) => return Err(format!("the file {shown} cannot be read: {error}")),
        Ok(Err(_)) => return Err(format!("reading the file {shown} failed")),
        Err(_) => return Err(format!("the file {shown} could not be read in time")),
    };
    value(bytes, &format!("the file {shown}"))
}

pub(crate) fn from_variable(name: &str, found: Option<Vec<u8>>) -> Result<Secret, String> {
    let what = format!("the variable {name} of the server");
    match found {
        Some(bytes) => value(bytes, &what),
        None => Err(format!("{what} is not set")),
    }
}

fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    // Before it is opened: a named pipe would wait for somebody to write.
    if !std::fs::metadata(path)?.is_file() {
        return Err(std::io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(LARGEST_VALUE as u64 + 3).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Without the end of the line, which editors and `echo` add.
fn value(mut bytes: Vec<u8>, what: &str) -> Result<Secret, String> {
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
        if bytes.last() == Some(&b'\r') {
            bytes.pop();
        }
    }
    match bytes.len() {
        0 => Err(format!("{what} is empty")),
        length if length > LARGEST_VALUE => Err(format!("{what} holds more than {LARGEST_VALUE} bytes")),
        _ => Ok(Secret::new(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_is_its_content_without_the_end_of_the_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        for (content, expected) in [
            ("sk-1", Some("sk-1")),
            ("sk-1\n", Some("sk-1")),
            ("sk-1\r\n", Some("sk-1")),
            ("two\nlines\n\n", Some("two\nlines\n")),
            ("", None),
            ("\n", None),
        ] {
            std::fs::write(&path, content).unwrap();
            let found = from_file(&path).await;
            assert_eq!(found.as_ref().ok().map(Secret::reveal), expected.map(str::as_bytes), "{content:?}");
        }
        std::fs::write(&path, vec![b'x'; LARGEST_VALUE]).unwrap();
        assert!(from_file(&path).await.is_ok());
        std::fs::write(&path, vec![b'x'; LARGEST_VALUE + 1]).unwrap();
        assert!(from_file(&path).await.unwrap_err().contains("more than"));
    }

    #[tokio::test]
    async fn what_is_no_file_is_told_and_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        assert!(from_file(directory.path()).await.unwrap_err().contains("not a regular file"));
        let absent = from_file(&directory.path().join("none")).await.unwrap_err();
        assert!(absent.contains("cannot be read"), "{absent}");
        assert!(from_file(Path::new("/dev/zero")).await.unwrap_err().contains("not a regular file"));
    }

    #[test]
    fn a_variable_that_is_empty_or_not_set_has_no_value() {
        assert_eq!(from_variable("KEY", Some(b"sk-1".into())).unwrap().reveal(), b"sk-1");
        assert_eq!(from_variable("KEY", None).unwrap_err(), "the variable KEY of the server is not set");
        assert!(from_variable("KEY", Some(Vec::new())).unwrap_err().contains("is empty"));
    }
}
