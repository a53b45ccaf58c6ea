//! `run-task`, which is part of this program and is unpacked where sandboxes can be given it.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use cubicle_model::{Fault, Kind};

/// The worker as a static program, built beside this crate.
const BINARY: &[u8] = include_bytes!(env!("CUBICLE_RUN_TASK"));
/// What tells one worker from another.
const DIGEST: &str = env!("CUBICLE_RUN_TASK_DIGEST");

pub const PROGRAM: &str = "run-task";

/// Sees to it that the worker is on the host. The directory that comes back holds [`PROGRAM`] and nothing else, is named by its
/// contents, and is to be mounted at `/mnt/worker`.
pub fn unpack(data_dir: &Path) -> Result<PathBuf, Fault> {
    let directory = data_dir.join("worker").join(DIGEST);
    make(&directory).map_err(|error| {
        Fault::new(Kind::Denied, format!("the worker cannot be unpacked to {}", directory.display()))
            .because(error)
            .hint("the data directory must be writable and have room")
    })?;
    Ok(directory)
}

fn make(directory: &Path) -> io::Result<()> {
    let program = directory.join(PROGRAM);
    if fs::metadata(&program).is_ok_and(|about| about.len() == BINARY.len() as u64) {
        return Ok(());
    }
    fs::create_dir_all(directory)?;
    // Somebody else may do the same at this moment; both put the same file there.
    let fresh = directory.join(format!(".{PROGRAM}.{}", std::process::id()));
    let written = (|| {
        let mut file =
            fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o755).open(&fresh)?;
        file.write_all(BINARY)?;
        // The mode above is subject to the umask, and users of sandboxes are others.
        file.set_permissions(fs::Permissions::from_mode(0o755))?;
        file.sync_all()?;
        drop(file);
        for part in [directory, directory.parent().unwrap_or(directory)] {
            fs::set_permissions(part, fs::Permissions::from_mode(0o755))?;
        }
        fs::rename(&fresh, &program)
    })();
    if written.is_err() {
        _ = fs::remove_file(&fresh);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worker_is_unpacked_once_and_runs() {
        let data = tempfile::tempdir().unwrap();
        let directory = unpack(data.path()).unwrap();
        let program = directory.join(PROGRAM);
        let before = fs::metadata(&program).unwrap().modified().unwrap();
        assert_eq!(unpack(data.path()).unwrap(), directory);
        assert_eq!(fs::metadata(&program).unwrap().modified().unwrap(), before);
        fs::write(&program, "damaged").unwrap();
        unpack(data.path()).unwrap();
        #[expect(clippy::disallowed_methods, reason = "the test runs what it unpacked")]
        let ran = std::process::Command::new(&program).output().unwrap();
        assert_eq!(ran.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&ran.stderr).contains("--task-id"), "{ran:?}");
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
    }
}
