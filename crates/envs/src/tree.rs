//! A finished tree: what may be in it, who may change it, and what it looked like.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::path::{Component, Path, PathBuf};

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

/// Whether files of a tree have names elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SecondNames {
    /// Whoever can write to the other name could change the environment.
    #[default]
    None,
    /// In parts and in trees that have the same part. All of them were sealed before they got a second name.
    OfParts,
}

/// Everything that is in a tree, directories before what is in them.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Contents {
    directories: Vec<String>,
    /// With mode and length.
    files: Vec<(String, u32, u64)>,
    /// With where they lead.
    links: Vec<(String, String)>,
}

impl Contents {
    pub(crate) fn paths(&self) -> impl Iterator<Item = &str> {
        let files = self.files.iter().map(|(path, ..)| path.as_str());
        files.chain(self.links.iter().map(|(path, _)| path.as_str()))
    }

    pub(crate) fn any_file(&self) -> Option<&str> {
        self.files.first().map(|(path, ..)| path.as_str())
    }

    /// Gives the files at `from` a second name at `to`, with directories and links of their own.
    pub(crate) fn put(&self, from: &Path, to: &Path) -> io::Result<()> {
        for directory in &self.directories {
            match fs::create_dir(to.join(directory)) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
        for (file, ..) in &self.files {
            fs::hard_link(from.join(file), to.join(file))?;
        }
        for (link, target) in &self.links {
            symlink(target, to.join(link))?;
        }
        Ok(())
    }

    fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.directories.iter().map(|path| format!("d {path}")).collect();
        lines.extend(self.files.iter().map(|(path, mode, length)| format!("f {path} {mode:o} {length}")));
        lines.extend(self.links.iter().map(|(path, target)| format!("l {path} {target}")));
        lines
    }
}

/// What a tree looks like that has all of these. None where two of them have the same name for something.
pub(crate) fn joined(contents: &[&Contents]) -> Option<Expected> {
    let directories: BTreeSet<&str> =
        contents.iter().flat_map(|one| one.directories.iter().map(String::as_str)).collect();
    let mut others = BTreeSet::new();
    let is_free = |path: &str| !directories.contains(path) && others.insert(path.to_owned());
    contents.iter().flat_map(|one| one.paths()).all(is_free).then(|| {
        let all: BTreeSet<String> = contents.iter().flat_map(|one| one.lines()).collect();
        Expected(digest(all.into_iter().collect()))
    })
}

/// What a tree is to look like.
#[derive(Debug)]
pub(crate) struct Expected(String);

impl Shape {
    pub(crate) fn is_of(&self, expected: &Expected) -> bool {
        self.digest == expected.0
    }
}

/// Makes the tree unwritable and readable by everybody, when nothing is in it that leads out of it. `links_out` is the one
/// link that may: to the interpreter.
pub(crate) fn seal(root: &Path, links_out: &Path) -> Result<Shape, Fault> {
    Ok(walked(root, links_out, Purpose::Seal(&BTreeSet::new()), SecondNames::None)?.0)
}

/// The same for a part, from which some files are removed first.
pub(crate) fn seal_part(
    root: &Path,
    links_out: &Path,
    left_out: &BTreeSet<PathBuf>,
) -> Result<Contents, Fault> {
    Ok(walked(root, links_out, Purpose::Seal(left_out), SecondNames::None)?.1)
}

/// The same for a tree that was put together of parts.
pub(crate) fn seal_joined(root: &Path, links_out: &Path) -> Result<Shape, Fault> {
    Ok(walked(root, links_out, Purpose::Seal(&BTreeSet::new()), SecondNames::OfParts)?.0)
}

/// What the tree looks like now.
pub(crate) fn shape(root: &Path, links_out: &Path, second_names: SecondNames) -> Result<Shape, Fault> {
    Ok(walked(root, links_out, Purpose::Look, second_names)?.0)
}

fn walked(
    root: &Path,
    links_out: &Path,
    purpose: Purpose<'_>,
    second_names: SecondNames,
) -> Result<(Shape, Contents), Fault> {
    let (shape, contents) = (Shape::default(), Contents::default());
    // Who made the tree, which may be another user than who looks at it now.
    let owner = fs::symlink_metadata(root).map_err(failed)?.uid();
    let mut walk = Walk { root, links_out, purpose, second_names, owner, shape, contents };
    walk.directory(root)?;
    walk.shape.digest = digest(walk.contents.lines());
    Ok((walk.shape, walk.contents))
}

fn digest(mut lines: Vec<String>) -> String {
    lines.sort();
    let mut digest = Sha256::new();
    for line in &lines {
        digest.update(line.as_bytes());
        digest.update([0]);
    }
    hexadecimal(&digest.finalize())
}

#[derive(Clone, Copy)]
enum Purpose<'a> {
    Look,
    /// Removes these.
    Seal(&'a BTreeSet<PathBuf>),
}

struct Walk<'a> {
    root: &'a Path,
    links_out: &'a Path,
    purpose: Purpose<'a>,
    second_names: SecondNames,
    owner: u32,
    shape: Shape,
    contents: Contents,
}

impl Walk<'_> {
    fn seals(&self) -> bool {
        matches!(self.purpose, Purpose::Seal(_))
    }

    fn directory(&mut self, directory: &Path) -> Result<(), Fault> {
        if self.seals() {
            // From now on the user who made the tree cannot come in any more, or later swap what is in it.
            take_over(directory).map_err(failed)?;
            fs::set_permissions(directory, fs::Permissions::from_mode(0o700)).map_err(failed)?;
        }
        for entry in fs::read_dir(directory).map_err(failed)? {
            self.entry(&entry.map_err(failed)?.path())?;
        }
        if self.seals() {
            fs::set_permissions(directory, fs::Permissions::from_mode(0o555)).map_err(failed)?;
        }
        Ok(())
    }

    fn entry(&mut self, path: &Path) -> Result<(), Fault> {
        let about = fs::symlink_metadata(path).map_err(failed)?;
        let below = path.strip_prefix(self.root).unwrap_or(path);
        if let Purpose::Seal(left_out) = self.purpose
            && !about.is_dir()
            && left_out.contains(below)
        {
            return fs::remove_file(path).map_err(failed);
        }
        self.shape.files += 1;
        self.shape.bytes += about.blocks() * 512;
        if self.shape.files > MOST_ENTRIES {
            return Err(refused(below, "comes after more files than an environment may have"));
        }
        let shown = below.display().to_string();
        if about.is_dir() {
            self.contents.directories.push(shown);
            return self.directory(path);
        }
        if about.is_symlink() {
            let target = fs::read_link(path).map_err(failed)?;
            if below != self.links_out && !stays_inside(below, &target) {
                return Err(refused(below, "is a link that leads out of the environment"));
            }
            if self.seals() {
                take_over(path).map_err(failed)?;
            }
            self.contents.links.push((shown, target.display().to_string()));
            return Ok(());
        }
        if !about.is_file() {
            return Err(refused(below, "is neither a file nor a directory"));
        }
        let mode = if about.mode() & 0o111 == 0 { 0o444 } else { 0o555 };
        let is_sealed = about.mode() & 0o7777 == mode;
        let is_of_part =
            self.second_names == SecondNames::OfParts && is_sealed && [0, self.owner].contains(&about.uid());
        if about.nlink() != 1 && !is_of_part {
            return Err(Fault::new(
                Kind::Internal,
                format!("{} has a second name outside of the environment", below.display()),
            ));
        }
        if !self.seals() && !is_sealed {
            return Err(refused(below, "has other permissions than it was given"));
        }
        if self.seals() && !is_of_part {
            take_over(path).map_err(failed)?;
            // A change of the owner clears these bits; a file that this process owned from the beginning may have them.
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(failed)?;
        }
        self.contents.files.push((shown, mode, about.len()));
        Ok(())
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
        assert_eq!(made, shape(&directory.path().join("env"), Path::new(PYTHON), SecondNames::None).unwrap());
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
            assert!(shape(&root, Path::new(PYTHON), SecondNames::None).map_or(true, |now| now != made));
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
