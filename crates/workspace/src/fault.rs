//! What is said when files cannot be had.

use cubicle_model::{Fault, Kind};
use rustix::io::Errno;

pub(crate) fn not_found(path: &str) -> Fault {
    Fault::new(Kind::NotFound, format!("there is no {}", shown(path)))
        .hint("list_workspace shows what there is; paths are relative to /workspace/shared/")
}

pub(crate) fn not_a_file(path: &str) -> Fault {
    Fault::new(Kind::Invalid, format!("{} is not a regular file", shown(path)))
}

pub(crate) fn is_a_directory(path: &str) -> Fault {
    Fault::new(Kind::Invalid, format!("{} is a directory", shown(path))).hint("list it, or name a file in it")
}

pub(crate) fn too_large(path: &str, size: u64, most: u64) -> Fault {
    Fault::new(Kind::Invalid, format!("{} has {size} bytes, more than the {most} allowed", shown(path)))
}

/// What the kernel said about a path.
pub(crate) fn of(errno: Errno, path: &str) -> Fault {
    let path_shown = shown(path);
    let fault = match errno {
        Errno::NOENT => return not_found(path),
        Errno::ISDIR => return is_a_directory(path),
        Errno::NOTDIR => {
            Fault::new(Kind::Invalid, format!("something above {path_shown} is not a directory"))
        }
        // Links are never followed, wherever they lead.
        Errno::LOOP | Errno::XDEV => {
            Fault::new(Kind::Denied, format!("{path_shown} leads through a symbolic link"))
        }
        Errno::EXIST | Errno::NOTEMPTY => Fault::new(Kind::Conflict, format!("{path_shown} exists already")),
        Errno::ACCESS | Errno::PERM => Fault::new(Kind::Denied, format!("{path_shown} may not be touched")),
        Errno::NOSPC | Errno::DQUOT => Fault::new(Kind::Full, "the disk with the shared workspace is full")
            .hint("delete what is not needed, or move the data directory to a larger disk"),
        Errno::NAMETOOLONG => Fault::new(Kind::Invalid, format!("the name {path_shown} is too long")),
        _ => Fault::new(Kind::Internal, format!("{path_shown} cannot be used")),
    };
    fault.because(std::io::Error::from(errno))
}

pub(crate) fn of_io(error: std::io::Error, path: &str) -> Fault {
    match Errno::from_io_error(&error) {
        Some(errno) => of(errno, path),
        None => Fault::new(Kind::Internal, format!("{} cannot be used", shown(path))).because(error),
    }
}

/// A path for the eye: no control characters, and not endless.
pub(crate) fn shown(path: &str) -> String {
    let mut text = String::new();
    for character in path.chars().take(200) {
        if character.is_control() {
            text.extend(character.escape_default());
        } else {
            text.push(character);
        }
    }
    if text.is_empty() { "the shared workspace".into() } else { format!("'{text}'") }
}
