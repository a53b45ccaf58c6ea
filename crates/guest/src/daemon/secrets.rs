//! Secret files: written by pid 1 as itself, so that a workload that is another user can read them and nothing else.

use std::path::Path;

use super::files;
use super::http::Refusal;
use crate::wire::{GivenFile, MOST_SECRET_FILES, SECRET_BYTES};

/// Whoever finds the directory may read it: that is what the files are there for.
const MODE: u32 = 0o444;

pub(super) fn check(given: &[GivenFile]) -> Result<(), Refusal> {
    if given.len() > MOST_SECRET_FILES {
        let count = given.len();
        return Err(Refusal::invalid(format!("{count} secret files; {MOST_SECRET_FILES} are possible")));
    }
    let bytes: usize = given.iter().map(|file| file.bytes.len()).sum();
    if bytes > SECRET_BYTES {
        let message = format!("the secret files have {bytes} bytes together; {SECRET_BYTES} are possible");
        return Err(Refusal::new(413, "too_large", message).hint("a secret is a key, not an archive"));
    }
    let twice =
        given.iter().enumerate().find(|(at, file)| given[..*at].iter().any(|other| other.name == file.name));
    match twice {
        Some((_, file)) => Err(Refusal::invalid(format!("the secret file {} is given twice", file.name))),
        None => Ok(()),
    }
}

/// Whoever opens the file sees the old secret or the new one.
pub(super) fn write(file: &GivenFile, directory: &Path) -> Result<(), Refusal> {
    let path = directory.join(file.name.as_str());
    let path = path.to_str().ok_or_else(|| Refusal::invalid("the directory of secrets has no plain name"))?;
    files::write_as_daemon(path, MODE, &file.bytes)
}
