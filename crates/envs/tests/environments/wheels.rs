//! Tiny packages, written by hand: no network and no packaging tools.

use std::path::{Path, PathBuf};

/// A file of an archive.
pub(crate) struct Entry {
    pub(crate) path: String,
    pub(crate) bytes: Vec<u8>,
    /// As in the upper half of the attributes of a zip archive.
    pub(crate) mode: u32,
}

pub(crate) fn file(path: &str, text: &str) -> Entry {
    Entry { path: path.into(), bytes: text.into(), mode: 0o100_644 }
}

pub(crate) fn link(path: &str, target: &str) -> Entry {
    Entry { path: path.into(), bytes: target.into(), mode: 0o120_777 }
}

/// Puts a wheel into the directory, in which everybody can read it.
pub(crate) fn wheel(
    directory: &Path,
    name: &str,
    version: &str,
    requires: &[&str],
    more: Vec<Entry>,
) -> PathBuf {
    let info = format!("{name}-{version}.dist-info");
    let requires: String = requires.iter().map(|one| format!("Requires-Dist: {one}\n")).collect();
    let mut entries = more;
    entries.push(file(
        &format!("{info}/METADATA"),
        &format!("Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}"),
    ));
    entries.push(file(
        &format!("{info}/WHEEL"),
        "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    ));
    let record: String = entries.iter().map(|entry| format!("{},,\n", entry.path)).collect();
    entries.push(file(&format!("{info}/RECORD"), &format!("{record}{info}/RECORD,,\n")));
    let path = directory.join(format!("{name}-{version}-py3-none-any.whl"));
    std::fs::write(&path, zip(&entries)).unwrap();
    path
}

/// A wheel with one module of the same name.
pub(crate) fn module(directory: &Path, name: &str, version: &str, requires: &[&str]) -> PathBuf {
    let code = format!("VERSION = '{version}'\n");
    wheel(directory, name, version, requires, vec![file(&format!("{name}/__init__.py"), &code)])
}

/// Sources without a wheel.
pub(crate) fn sources(directory: &Path, name: &str, version: &str, more: Vec<Entry>) -> PathBuf {
    let inner = format!("{name}-{version}");
    let mut entries = vec![file(
        &format!("{inner}/PKG-INFO"),
        &format!("Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"),
    )];
    entries.extend(more.into_iter().map(|entry| Entry { path: format!("{inner}/{}", entry.path), ..entry }));
    let path = directory.join(format!("{inner}.zip"));
    std::fs::write(&path, zip(&entries)).unwrap();
    path
}

/// A zip archive without compression.
pub(crate) fn zip(entries: &[Entry]) -> Vec<u8> {
    let (mut archive, mut directory) = (Vec::new(), Vec::new());
    for entry in entries {
        let offset = u32::try_from(archive.len()).unwrap();
        let (size, length) =
            (u32::try_from(entry.bytes.len()).unwrap(), u16::try_from(entry.path.len()).unwrap());
        let mut common = Vec::new();
        // Version, flags, method, time, date, checksum, sizes, lengths.
        for part in [20_u16, 0, 0, 0, 0x21] {
            common.extend(part.to_le_bytes());
        }
        for part in [checksum(&entry.bytes), size, size] {
            common.extend(part.to_le_bytes());
        }
        common.extend(length.to_le_bytes());
        common.extend(0_u16.to_le_bytes());
        archive.extend(0x0403_4b50_u32.to_le_bytes());
        archive.extend(&common);
        archive.extend(entry.path.as_bytes());
        archive.extend(&entry.bytes);
        directory.extend(0x0201_4b50_u32.to_le_bytes());
        // Made on Unix, so that the attributes are modes.
        directory.extend(0x0314_u16.to_le_bytes());
        directory.extend(&common);
        directory.extend([0_u8; 6]);
        directory.extend((entry.mode << 16).to_le_bytes());
        directory.extend(offset.to_le_bytes());
        directory.extend(entry.path.as_bytes());
    }
    let (start, length) = (u32::try_from(archive.len()).unwrap(), u32::try_from(directory.len()).unwrap());
    let count = u16::try_from(entries.len()).unwrap();
    archive.extend(&directory);
    archive.extend(0x0605_4b50_u32.to_le_bytes());
    archive.extend([0_u8; 4]);
    archive.extend(count.to_le_bytes());
    archive.extend(count.to_le_bytes());
    archive.extend(length.to_le_bytes());
    archive.extend(start.to_le_bytes());
    archive.extend([0_u8; 2]);
    archive
}

fn checksum(bytes: &[u8]) -> u32 {
    let step = |sum: u32, byte: &u8| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| (sum >> 1) ^ (0xedb8_8320 & (sum & 1).wrapping_neg()))
    };
    !bytes.iter().fold(!0, step)
}
