//! Where something is made before it has its name, and what is left of makers that died.

use std::io;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::ServiceUser;
use crate::files::{self, Locked};

static NEXT: AtomicU64 = AtomicU64::new(0);

/// A directory of one maker. Its lock says that the maker lives.
#[derive(Debug)]
pub(crate) struct Work {
    path: PathBuf,
    _alive: Locked,
}

impl Work {
    /// Only the user who does the work can look into it.
    pub(crate) fn begin(parent: &Path, user: Option<ServiceUser>) -> io::Result<Self> {
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = parent.join(format!("{}-{number}", std::process::id()));
            // A process of another pid namespace may have the same number.
            match std::fs::create_dir(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                made => made?,
            }
            // A sweep that came in between takes it for abandoned.
            let Some(alive) = Locked::try_exclusive(&path)? else { continue };
            if !path.is_dir() {
                continue;
            }
            let work = Self { path, _alive: alive };
            files::make_directory(&work.path, 0o700)?;
            if let Some(user) = user {
                chown(&work.path, Some(user.uid), Some(user.gid))?;
            }
            return Ok(work);
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A directory in it that belongs to the same user.
    pub(crate) fn directory(&self, name: &str, user: Option<ServiceUser>) -> io::Result<PathBuf> {
        let path = self.path.join(name);
        files::make_directory(&path, 0o755)?;
        if let Some(user) = user {
            chown(&path, Some(user.uid), Some(user.gid))?;
        }
        Ok(path)
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        // What cannot be removed now is removed by a sweep.
        _ = files::remove_tree(&self.path);
    }
}

/// Removes what makers left that live no more, and says how much that was.
pub(crate) fn sweep(parent: &Path) -> usize {
    let abandoned = |path: &PathBuf| match Locked::try_exclusive(path) {
        Ok(Some(_alone)) => files::remove_tree(path).is_ok(),
        _ => false,
    };
    files::entries(parent).iter().filter(|path| path.is_dir() && abandoned(path)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_nobody_works_in_is_swept() {
        let parent = tempfile::tempdir().unwrap();
        let living = Work::begin(parent.path(), None).unwrap();
        std::fs::write(living.path().join("file"), "x").unwrap();
        std::fs::create_dir_all(parent.path().join("dead/inner")).unwrap();
        assert_eq!(sweep(parent.path()), 1);
        assert!(living.path().join("file").exists());
        let path = living.path().to_owned();
        drop(living);
        assert!(!path.exists());
    }
}
