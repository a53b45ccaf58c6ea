//! The files of an agent, from an archive or a directory, with the digest of all of them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use flate2::read::GzDecoder;
use sha2::{Digest, Sha256};

/// Several times what the largest agent has.
const MOST_BYTES: u64 = 4 << 30;
const MOST_FILES: usize = 100_000;

/// Writes files below a directory and remembers what they were.
pub(crate) struct Tree<'a> {
    root: &'a Path,
    files: BTreeMap<String, String>,
    bytes: u64,
    on_bytes: &'a mut dyn FnMut(u64),
}

impl<'a> Tree<'a> {
    pub(crate) fn new(root: &'a Path, on_bytes: &'a mut dyn FnMut(u64)) -> Self {
        Self { root, files: BTreeMap::new(), bytes: 0, on_bytes }
    }

    /// A gzipped tar archive whose entries are in one directory, as packages are.
    pub(crate) fn unpack(&mut self, archive: impl Read) -> io::Result<()> {
        let mut archive = tar::Archive::new(GzDecoder::new(archive));
        for entry in archive.entries()? {
            let mut entry = entry?;
            let kind = entry.header().entry_type();
            if kind.is_dir() || kind.is_pax_global_extensions() {
                continue;
            }
            let path = entry.path()?.into_owned();
            if !kind.is_file() {
                return Err(invalid(format!("{} is neither a file nor a directory", path.display())));
            }
            let inside: PathBuf = path.components().skip(1).collect();
            let executable = entry.header().mode()? & 0o111 != 0;
            self.put(&inside, executable, &mut entry)?;
        }
        Ok(())
    }

    pub(crate) fn copy(&mut self, from: &Path) -> io::Result<()> {
        self.copy_below(from, Path::new(""))
    }

    fn copy_below(&mut self, from: &Path, below: &Path) -> io::Result<()> {
        for entry in fs::read_dir(from.join(below))? {
            let entry = entry?;
            let inside = below.join(entry.file_name());
            // A link is followed: its target may not be seen inside of a sandbox.
            let about = fs::metadata(entry.path())?;
            if about.is_dir() && !entry.file_type()?.is_symlink() {
                self.copy_below(from, &inside)?;
            } else if about.is_file() {
                let executable = about.permissions().mode() & 0o111 != 0;
                self.put(&inside, executable, &mut File::open(entry.path())?)?;
            } else {
                return Err(invalid(format!("{} is neither a file nor a directory", entry.path().display())));
            }
        }
        Ok(())
    }

    pub(crate) fn put(&mut self, inside: &Path, executable: bool, from: &mut impl Read) -> io::Result<()> {
        let plain = inside.components().all(|part| matches!(part, Component::Normal(_)));
        let Some(name) = inside.to_str().filter(|name| plain && !name.is_empty()) else {
            return Err(invalid(format!("{} is not a place inside of an agent", inside.display())));
        };
        if self.files.len() >= MOST_FILES {
            return Err(invalid(format!("there are more than {MOST_FILES} files")));
        }
        let path = self.root.join(inside);
        fs::create_dir_all(path.parent().unwrap_or(self.root))?;
        let mut file = File::create_new(&path)?;
        let mut digest = Sha256::new();
        let mut piece = vec![0; 128 * 1024];
        loop {
            let length = match from.read(&mut piece) {
                Ok(0) => break,
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            self.bytes += length as u64;
            if self.bytes > MOST_BYTES {
                return Err(invalid(format!("there are more than {MOST_BYTES} bytes")));
            }
            digest.update(&piece[..length]);
            file.write_all(&piece[..length])?;
            (self.on_bytes)(length as u64);
        }
        let mode = if executable { 0o755 } else { 0o644 };
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        self.files.insert(name.into(), format!("{mode:o} {}", hexadecimal(&digest.finalize())));
        Ok(())
    }

    /// Sees to it that every sandbox can read it, and that it is on the disk. The digest depends on names, modes and contents.
    pub(crate) fn finish(self) -> io::Result<String> {
        readable(self.root)?;
        rustix::fs::syncfs(File::open(self.root)?)?;
        let mut digest = Sha256::new();
        for (name, about) in &self.files {
            digest.update(format!("{about} {name}\0"));
        }
        Ok(hexadecimal(&digest.finalize())[..16].to_owned())
    }
}

fn readable(directory: &Path) -> io::Result<()> {
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755))?;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            readable(&entry.path())?;
        }
    }
    Ok(())
}

pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive(entries: &[(&str, tar::EntryType, &[u8])]) -> Vec<u8> {
        let mut builder =
            tar::Builder::new(flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast()));
        for (path, kind, bytes) in entries {
            let mut header = tar::Header::new_gnu();
            header.as_gnu_mut().unwrap().name[..path.len()].copy_from_slice(path.as_bytes());
            header.set_entry_type(*kind);
            header.set_mode(0o755);
            header.set_size(bytes.len() as u64);
            if *kind == tar::EntryType::Symlink {
                header.set_link_name("/etc/passwd").unwrap();
            }
            header.set_cksum();
            builder.append(&header, *bytes).unwrap();
        }
        builder.into_inner().unwrap().finish().unwrap()
    }

    fn unpacked(entries: &[(&str, tar::EntryType, &[u8])]) -> (tempfile::TempDir, io::Result<String>) {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("tree");
        fs::create_dir(&root).unwrap();
        let mut nothing = |_| {};
        let mut tree = Tree::new(&root, &mut nothing);
        let result = tree.unpack(archive(entries).as_slice()).and_then(|()| tree.finish());
        (directory, result)
    }

    #[test]
    fn an_archive_and_the_directory_that_it_makes_have_the_same_digest() {
        let regular = tar::EntryType::Regular;
        let (directory, digest) =
            unpacked(&[("package/a", regular, b"one"), ("package/b/c", regular, b"two")]);
        let root = directory.path().join("tree");
        assert_eq!(fs::read(root.join("b/c")).unwrap(), b"two");
        let again = directory.path().join("again");
        fs::create_dir(&again).unwrap();
        let mut nothing = |_| {};
        let mut tree = Tree::new(&again, &mut nothing);
        tree.copy(&root).unwrap();
        let digest = digest.unwrap();
        assert_eq!(tree.finish().unwrap(), digest);
        let (_, other) = unpacked(&[("package/a", regular, b"one"), ("package/b/d", regular, b"two")]);
        assert_ne!(other.unwrap(), digest);
    }

    #[test]
    fn an_archive_cannot_leave_its_place() {
        let regular = tar::EntryType::Regular;
        for entries in [
            [("package/../../x", regular, &b"x"[..])],
            [("package/link", tar::EntryType::Symlink, b"")],
            [("package", regular, b"x")],
            [("package/device", tar::EntryType::Char, b"")],
        ] {
            let (directory, result) = unpacked(&entries);
            assert!(result.is_err(), "{entries:?}");
            assert!(!directory.path().join("x").exists());
        }
    }
}
