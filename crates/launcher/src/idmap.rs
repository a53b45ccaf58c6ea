//! User namespaces that are made before they are needed.

use std::fs;
use std::os::fd::OwnedFd;

use cubicle_sys::children::exit_now;
use cubicle_sys::clone::{Namespaces, Parent, Side, fork_into};
use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};

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
    let maker = rustix::process::getpid();
    let side = fork_into(Namespaces::USER, Parent::Maker, None)
        .step(|| "make a user namespace".into())
        .map_err(|error| {
            error.hint(
                "allow user namespaces: sysctl user.max_user_namespaces and kernel.unprivileged_userns_clone",
            )
        })?;
    let (pid, pidfd) = match side {
        Side::Parent { pid, pidfd } => (pid.as_raw_pid(), pidfd),
        // The namespace lives as long as somebody is in it; its maker takes a descriptor and then ends this process.
        Side::Child => {
            // It must not outlive a maker that is killed in between.
            let told = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
            if told.is_err() || rustix::process::getppid() != Some(maker) {
                exit_now(1);
            }
            loop {
                rustix::event::pause();
            }
        }
    };
    let made = describe(pid, pairs, privileged);
    let _ = pidfd_send_signal(&pidfd, Signal::KILL);
    let _ = waitid(WaitId::PidFd(std::os::fd::AsFd::as_fd(&pidfd)), WaitIdOptions::EXITED);
    made
}

fn describe(pid: i32, pairs: &[Pair], privileged: bool) -> Result<OwnedFd, Failed> {
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
