//! Where sandboxes are kept when nobody says so.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use cubicle_model::{Fault, Kind};
use rustix::fs::{Access, access};

use crate::environment::Environment;
use crate::failure::invalid;

/// The directory that was asked for, or the default of this user.
pub(crate) fn choose(asked: Option<&Path>, environment: &Environment, root: bool) -> Result<PathBuf, Fault> {
    if let Some(path) = asked {
        return std::path::absolute(path)
            .map_err(|error| invalid("the data directory's name is empty").because(error));
    }
    if root {
        return Ok("/var/lib/cubicle".into());
    }
    // A relative XDG_DATA_HOME is invalid and ignored, as the XDG base directory rules say.
    environment
        .path("XDG_DATA_HOME")
        .filter(|path| path.is_absolute())
        .or_else(|| environment.path("HOME").map(|home| home.join(".local/share")))
        .map(|base| base.join("cubicle"))
        .ok_or_else(|| {
            invalid("there is no HOME to keep sandboxes in").hint("name a place with --data-dir DIR")
        })
}

/// Makes the directory unless it is there, and says clearly when it cannot be used.
pub(crate) fn prepare(path: &Path) -> Result<(), Fault> {
    let unusable = |error: std::io::Error| {
        Fault::new(Kind::Denied, format!("cannot keep sandboxes in {}", path.display()))
            .because(error)
            .hint("name a directory that you can write to with --data-dir DIR or CUBICLE_DATA_DIR")
    };
    std::fs::DirBuilder::new().recursive(true).mode(0o755).create(path).map_err(unusable)?;
    access(path, Access::WRITE_OK | Access::EXEC_OK).map_err(|errno| unusable(errno.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_depends_on_the_user() {
        let home = Environment::from([("HOME", "/home/ada")]);
        let xdg = Environment::from([("HOME", "/home/ada"), ("XDG_DATA_HOME", "/data")]);
        let relative = Environment::from([("HOME", "/home/ada"), ("XDG_DATA_HOME", "data")]);
        let table = [
            (&home, true, "/var/lib/cubicle"),
            (&home, false, "/home/ada/.local/share/cubicle"),
            (&xdg, false, "/data/cubicle"),
            (&relative, false, "/home/ada/.local/share/cubicle"),
        ];
        for (environment, root, expected) in table {
            assert_eq!(choose(None, environment, root).unwrap(), Path::new(expected));
        }
        assert!(choose(None, &Environment::default(), false).is_err());
    }

    #[test]
    fn a_relative_directory_is_taken_from_here() {
        let chosen = choose(Some(Path::new("boxes")), &Environment::default(), false).unwrap();
        assert_eq!(chosen, std::env::current_dir().unwrap().join("boxes"));
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named_with_a_way_out() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().join("data");
        let fault = prepare(&path).unwrap_err();
        assert!(fault.message().contains(path.to_str().unwrap()), "{fault}");
        assert!(fault.way_out().unwrap().contains("--data-dir"));
    }
}
