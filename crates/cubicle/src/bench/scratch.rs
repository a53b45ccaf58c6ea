//! A directory for the duration of one run.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use cubicle_model::Fault;

use super::site::unusable;

/// Removed when dropped, so that an interrupted run leaves none.
#[derive(Debug)]
pub(crate) struct Scratch {
    path: PathBuf,
}

impl Scratch {
    pub(crate) fn make(data_dir: &Path) -> Result<Self, Fault> {
        let path = data_dir.join("bench").join(format!("scratch-{}", std::process::id()));
        // A run that was killed may have left it, with a process id that is used again.
        _ = fs::remove_dir_all(&path);
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700).create(&path).map_err(|error| unusable(&path, error))?;
        Ok(Self { path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_of_a_scratch_directory() {
        let data = tempfile::tempdir().unwrap();
        let scratch = Scratch::make(data.path()).unwrap();
        let path = scratch.path().to_owned();
        fs::write(path.join("a"), "a").unwrap();
        drop(scratch);
        assert!(!path.exists());
    }
}
