//! Where files that outlive sandboxes are kept, when a setting names another place than the data directory.

use std::os::unix::fs::{DirBuilderExt, MetadataExt, chown};
use std::path::{Path, PathBuf};

use cubicle_model::{Fault, Kind};

use crate::context::Context;

/// Makes the named directory, as it must exist before the launcher is told that it may be mounted.
pub(super) fn named(context: &Context) -> Result<Option<PathBuf>, Fault> {
    if context.settings.server.shared_dir.is_none() {
        return Ok(None);
    }
    let path = context.shared_dir();
    let make =
        |directory: &Path, mode| std::fs::DirBuilder::new().recursive(true).mode(mode).create(directory);
    // Whom the server becomes must get through what is above.
    let made = path.parent().map_or(Ok(()), |above| make(above, 0o755)).and_then(|()| make(&path, 0o700));
    made.map_err(|error| unusable(&path, error))?;
    Ok(Some(path))
}

/// Gives an empty directory of root to whom the server becomes. One with something in it stays whose it is.
pub(super) fn hand_over(path: &Path, owner: Option<u32>) -> Result<(), Fault> {
    let Some(owner) = owner else { return Ok(()) };
    let unusable = |error| unusable(path, error);
    let about = std::fs::symlink_metadata(path).map_err(unusable)?;
    if about.is_dir() && about.uid() == 0 && std::fs::read_dir(path).map_err(unusable)?.next().is_none() {
        chown(path, Some(owner), Some(owner)).map_err(unusable)?;
    }
    Ok(())
}

fn unusable(path: &Path, error: std::io::Error) -> Fault {
    Fault::new(Kind::Denied, format!("files cannot be shared in {}", path.display()))
        .because(error)
        .hint("name another directory with server.shared_dir or CUBICLE_SHARED_DIR")
}
