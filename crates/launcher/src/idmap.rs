//! User namespaces that are made before they are needed.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use cubicle_sys::clone::{Namespaces, visit_child_in};

use crate::error::{Failed, Step};

/// One id inside and the id it is outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) inside: u32,
    pub(crate) outside: u32,
}

/// A user namespace with these users, and the same numbers for groups.
///
/// `setgroups` stays possible only for a privileged launcher; the kernel demands it off for everybody else.
pub(crate) fn user_namespace(pairs: &[Pair], privileged: bool) -> Result<OwnedFd, Failed> {
    let described = visit_child_in(Namespaces::USER, |child| describe(child, pairs, privileged));
    described.step(|| "make a user namespace".into()).map_err(|error| {
        error.hint(
            "allow user namespaces: sysctl user.max_user_namespaces and kernel.unprivileged_userns_clone",
        )
    })?
}

fn describe(child: BorrowedFd<'_>, pairs: &[Pair], privileged: bool) -> Result<OwnedFd, Failed> {
    let pid = number_in_proc(child).step(|| "find the process in the user namespace".into())?;
    let map: String = pairs.iter().map(|pair| format!("{} {} 1\n", pair.inside, pair.outside)).collect();
    if !privileged {
        fs::write(format!("/proc/{pid}/setgroups"), "deny").step(|| "switch off setgroups".into())?;
    }
    for kind in ["uid_map", "gid_map"] {
        fs::write(format!("/proc/{pid}/{kind}"), &map).step(|| format!("write {kind}"))?;
    }
    let namespace =
        fs::File::open(format!("/proc/{pid}/ns/user")).step(|| "open the user namespace".into())?;
    Ok(namespace.into())
}

/// The pid under which `/proc` shows a process. For a maker in a pid namespace of its own that is not the one that the
/// maker knows.
fn number_in_proc(process: BorrowedFd<'_>) -> io::Result<u32> {
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", process.as_raw_fd()))?;
    let pid = text.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok());
    pid.ok_or_else(|| io::ErrorKind::NotFound.into())
}
