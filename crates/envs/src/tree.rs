//! A finished tree: what may be in it, who may change it, and what it looked like.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::{Component, Path};

use cubicle_model::{Fault, Kind, hexadecimal};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// More than ten times what the largest environments have that people use.
const MOST_ENTRIES: u64 = 500_000;

/// What a tree looks like without reading its files. A crash of the host may leave files without their contents; then their
/// sizes differ.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Shape {
    pub(crate) files: u64,
    /// As the disk counts them.
    pub(crate) bytes: u64,
    digest: String,
}

/// Makes the tree unwritable and readable by everybody, when nothing is in it that leads out of it. `links_out` is the one
/// link that may: to the interpreter.
pub(crate) fn seal(root: &Path, links_out: &Path) -> Result<Shape, Fault> {
    let mut walk = Walk { root, links_out, seal: true, lines: Vec::new(), shape: Shape::default() };
    walk.directory(root)?;
    Ok(walk.shape())
}

/// What the tree looks like now.
pub(crate) fn shape(root: &Path, links_out: &Path) -> Result<Shape, Fault> {
    let mut walk = Walk { root, links_out, seal: false, lines: Vec::new(), shape: Shape::default() };
    walk.directory(root)?;
    Ok(walk.shape())
}

struct Walk<'a> {
    root: &'a Path,
    links_out: &'a Path,
    seal: bool,
    lines: Vec<String>,
    shape: Shape,
}

impl Walk<'_> {
    fn directory(&mut self, directory: &Path) -> Result<(), Fault> {
        if self.seal {
            // From now on the user who made the tree cannot come in any more, or later swap what is in it.
            take_over(directory).map_err(failed)?;
            fs::set_permissions(directory, fs::Permissions::from_mode(0o700)).map_err(failed)?;
        }
        for entry in fs::read_dir(directory).map_err(failed)? {
            self.entry(&entry.map_err(failed)?.path())?;
        }
        if self.seal {
            fs::set_permissions(directory, fs::Permissions::from_mode(0o555)).map_err(failed)?;
        }
        Ok(())
    }

    fn entry(&mut self, path: &Path) -> Result<(), Fault> {
        let about = fs::symlink_metadata(path).map_err(failed)?;
        let below = path.strip_prefix(self.root).unwrap_or(path);
        self.shape.files += 1;
        self.shape.bytes += about.blocks() * 512;
        if self.shape.files > MOST_ENTRIES {
            return Err(refused(below, "comes after more files than an environment may have"));
        }
        if about.is_dir() {
            self.lines.push(format!("d {}", below.display()));
            return self.directory(path);
        }
        if about.is_symlink() {
            let target = fs::read_link(path).map_err(failed)?;
            if below != self.links_out && !stays_inside(below, &target) {
                return Err(refused(below, "is a link that leads out of the environment"));
            }
            if self.seal {
                take_over(path).map_err(failed)?;
            }
            self.lines.push(format!("l {} {}", below.display(), target.display()));
            return Ok(());
        }
        if !about.is_file() {
            return Err(refused(below, "is neither a file nor a directory"));
        }
        if about.nlink() != 1 {
            // Whoever can write to the other name could change the environment.
            return Err(Fault::new(
                Kind::Internal,
                format!("{} has a second name outside of the environment", below.display()),
            ));
        }
        let mode = if about.mode() & 0o111 == 0 { 0o444 } else { 0o555 };
        if self.seal {
            take_over(path).map_err(failed)?;
            // A change of the owner clears these bits; a file that this process owned from the beginning may have them.
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(failed)?;
        } else if about.mode() & 0o7777 != mode {
            return Err(refused(below, "has other permissions than it was given"));
        }
        self.lines.push(format!("f {} {mode:o} {}", below.display(), about.len()));
        Ok(())
    }

    fn shape(mut self) -> Shape {
        self.lines.sort();
        let mut digest = Sha256::new();
        for line in &self.lines {
            digest.update(line.as_bytes());
            digest.update([0]);
        }
        self.shape.digest = hexadecimal(&digest.finalize());
        self.shape
    }
}

/// Only root can, and only root has to: without it this user made everything itself.
fn take_over(path: &Path) -> io::Result<()> {
    let user = rustix::process::geteuid();
    if user.is_root() { lchown(path, Some(0), Some(0)) } else { Ok(()) }
}

fn stays_inside(link: &Path, target: &Path) -> bool {
    let mut depth = link.components().count().saturating_sub(1);
    for part in target.components() {
        match part {
            Component::Normal(_) => depth += 1,
            Component::CurDir => {}
            Component::ParentDir if depth > 0 => depth -= 1,
            _ => return false,
        }
    }
    true
}

fn refused(path: &Path, why: &str) -> Fault {
    Fault::new(Kind::Invalid, format!("a package cannot be installed: {} {why}", path.display()))
        .hint("the package is damaged or malicious; ask for another version")
}

fn failed(error: io::Error) -> Fault {
    if error.raw_os_error() == Some(rustix::io::Errno::NOSPC.raw_os_error()) {
        return crate::trouble::disk_full();
    }
    Fault::new(Kind::Internal, "the environment cannot be looked at").because(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PYTHON: &str = "bin/python";

    fn tree() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir_all(directory.path().join("env/bin")).unwrap();
        fs::create_dir_all(directory.path().join("env/lib/a")).unwrap();
        fs::write(directory.path().join("env/lib/a/code.py"), "x = 1").unwrap();
        fs::write(directory.path().join("env/bin/tool"), "#!/bin/sh").unwrap();
        fs::set_permissions(directory.path().join("env/bin/tool"), fs::Permissions::from_mode(0o4777))
            .unwrap();
        std::os::unix::fs::symlink("/usr/bin/python3", directory.path().join("env/bin/python")).unwrap();
        std::os::unix::fs::symlink("python", directory.path().join("env/bin/python3")).unwrap();
        directory
    }

    fn sealed(directory: &tempfile::TempDir) -> Result<Shape, Fault> {
        let result = seal(&directory.path().join("env"), Path::new(PYTHON));
        // Otherwise an ordinary user could not remove it.
        result
    }

    fn open_again(directory: &tempfile::TempDir) {
        crate::files::remove_tree(&directory.path().join("env")).unwrap();
    }

    #[test]
    fn a_sealed_tree_can_be_read_by_everybody_and_written_by_nobody() {
        let directory = tree();
        let made = sealed(&directory).unwrap();
        let mode = |path: &str| fs::metadata(directory.path().join(path)).unwrap().mode() & 0o7777;
        assert_eq!(
            (mode("env"), mode("env/lib/a"), mode("env/lib/a/code.py"), mode("env/bin/tool")),
            (0o555, 0o555, 0o444, 0o555)
        );
        assert_eq!(made, shape(&directory.path().join("env"), Path::new(PYTHON)).unwrap());
        open_again(&directory);
    }

    #[test]
    fn whatever_is_changed_afterwards_shows() {
        type Change = fn(&Path);
        let changes: [Change; 4] = [
            |root| fs::write(root.join("lib/a/code.py"), "x = 12").unwrap(),
            |root| fs::write(root.join("lib/a/more.py"), "").unwrap(),
            |root| fs::remove_file(root.join("lib/a/code.py")).unwrap(),
            |root| fs::set_permissions(root.join("bin/tool"), fs::Permissions::from_mode(0o777)).unwrap(),
        ];
        for change in changes {
            let directory = tree();
            let made = sealed(&directory).unwrap();
            let root = directory.path().join("env");
            for path in ["lib/a", "lib/a/code.py"] {
                fs::set_permissions(root.join(path), fs::Permissions::from_mode(0o755)).unwrap();
            }
            change(&root);
            if root.join("lib/a/code.py").exists() {
                fs::set_permissions(root.join("lib/a/code.py"), fs::Permissions::from_mode(0o444)).unwrap();
            }
            if root.join("lib/a/more.py").exists() {
                fs::set_permissions(root.join("lib/a/more.py"), fs::Permissions::from_mode(0o444)).unwrap();
            }
            assert!(shape(&root, Path::new(PYTHON)).map_or(true, |now| now != made));
            open_again(&directory);
        }
    }

    #[test]
    fn nothing_in_a_tree_leads_out_of_it() {
        let table = [
            ("lib/a/x", "/etc/passwd", false),
            ("lib/a/x", "../../../etc/passwd", false),
            ("lib/a/x", "../../bin/../../outside", false),
            ("lib/a/x", "../../bin/tool", true),
            ("x", "lib", true),
            ("x", "..", false),
        ];
        for (link, target, fine) in table {
            let directory = tree();
            std::os::unix::fs::symlink(target, directory.path().join("env").join(link)).unwrap();
            assert_eq!(sealed(&directory).is_ok(), fine, "{link} -> {target}");
            open_again(&directory);
        }
    }

    #[test]
    fn a_file_with_a_second_name_elsewhere_is_refused() {
        let directory = tree();
        fs::hard_link(directory.path().join("env/lib/a/code.py"), directory.path().join("other")).unwrap();
        assert_eq!(sealed(&directory).unwrap_err().kind(), Kind::Internal);
        open_again(&directory);
    }

    #[test]
    fn what_is_no_file_is_refused() {
        let directory = tree();
        let path = directory.path().join("env/lib/pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RUSR).unwrap();
        assert_eq!(sealed(&directory).unwrap_err().kind(), Kind::Invalid);
        open_again(&directory);
    }
}
