//! An embryo is pid 1 of a sandbox that nobody has asked for yet.
//!
//! What takes long and does not depend on the request is done before anybody waits: moving into a cgroup (of version 1,
//! which can stop every fork on the host for a grace period of milliseconds), making the namespaces, and the mounts that
//! the sandbox before it had, because the next one mostly wants the same.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use cubicle_guest::hello::Key;
use cubicle_sys::children::{EndedChildren, exit_now, set_ended_children};
use cubicle_sys::clone::{Namespaces, Side, fork_into, unshare};
use cubicle_sys::descriptors::close_all_except;
use rustix::fs::{Mode, OFlags, openat};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use serde::{Deserialize, Serialize};

use crate::cgroup::{Cgroup, Hierarchy};
use crate::cradle::{self, Cradle};
use crate::error::{Failed, Step};
use crate::furnish::{Inhabitants, furnish, place_workspace};
use crate::idmap::{Pair, user_namespace};
use crate::plan::{PrivateMount, SandboxPlan, WORKLOAD_ID};
use crate::slots::{CONTROL, JOURNAL, Slot, own_at};
use crate::uids::Users;
use crate::wire::{Channel, FromCradle};

/// How many connections may wait to be accepted.
const BACKLOG: i32 = 64;

/// What an embryo has of its launcher.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inherited<'a> {
    pub(crate) hierarchy: &'a Hierarchy,
    pub(crate) users: Option<Users>,
    pub(crate) outside: &'a cradle::Outside,
    /// A root and the mounts to begin with.
    pub(crate) likely: Option<(BorrowedFd<'a>, &'a [PrivateMount])>,
}

/// The body of a create request: handed on by the launcher unread, because it carries the sandbox's key.
#[derive(Debug, Serialize, Deserialize)]
pub struct Birth {
    pub plan: SandboxPlan,
    pub key: [u8; 32],
}

/// What comes with it; the descriptors beside it are in this order.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Brought {
    /// A root, and what to mount there. `None` where the embryo has exactly that already.
    pub(crate) mounts: Option<Vec<PrivateMount>>,
    pub(crate) lifeline: bool,
    pub(crate) workspace: bool,
}

/// Forks an embryo for a slot. Returns the launcher's end of the channel to it, and its process.
pub(crate) fn fork_embryo(inherited: Inherited<'_>, slot: &Slot) -> Result<(Channel, OwnedFd), Failed> {
    let cgroup = inherited.hierarchy.make(slot.number)?;
    let (here, there) = Channel::pair().step(|| "make a socket pair".into())?;
    // The network namespace is not made by this call, because the launcher would have to wait for it.
    let side = fork_into(Namespaces::PID, cgroup.birthplace()).step(|| "fork pid 1".into())?;
    match side {
        Side::Parent { pidfd, .. } => Ok((here, pidfd)),
        Side::Child => {
            drop(here);
            let failure = match wait_and_be_born(inherited, slot, &cgroup, &there) {
                Ok(never) => match never {},
                Err(failure) => failure,
            };
            let _ = there.send(&FromCradle::Failed { error: failure }, &[], &[]);
            exit_now(1)
        }
    }
}

enum Never {}

fn wait_and_be_born(
    inherited: Inherited<'_>,
    slot: &Slot,
    cgroup: &Cgroup,
    launcher: &Channel,
) -> Result<Never, Failed> {
    // The lock on the slot belongs to the launcher's open file; with a file of its own the embryo does not prolong it.
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = openat(&slot.directory, ".", flags, Mode::empty()).step(|| "open the slot".into())?;
    keep_only(cgroup, launcher, &directory, inherited.likely.map(|(root, _)| root))
        .step(|| "close what belongs to the launcher".into())?;
    cgroup.enter()?;
    set_ended_children(EndedChildren::Wait).step(|| "wait for children".into())?;
    rustix::process::setsid().step(|| "start a session".into())?;

    let owner = inherited.users.map(Users::service);
    let journal = make_journal(&directory, owner).step(|| "make the journal".into())?;
    let control = make_control(&directory, owner).step(|| "make the control socket".into())?;
    let oom_events = cgroup.oom_events();
    let (pairs, users) = match inherited.users {
        Some(users) => {
            let (init, workload) = users.of_slot(slot.number);
            let pairs =
                vec![Pair { inside: 0, outside: init }, Pair { inside: WORKLOAD_ID, outside: workload }];
            (pairs, Inhabitants { init, workload })
        }
        // The launcher is its user namespace's root, and that one user is all it has.
        None => (vec![Pair { inside: WORKLOAD_ID, outside: 0 }], Inhabitants { init: 0, workload: 0 }),
    };
    let user_namespace = user_namespace(&pairs, inherited.users.is_some())?;
    unshare(Namespaces::NET.and(Namespaces::IPC).and(Namespaces::UTS)).step(|| "make namespaces".into())?;
    make_network().step(|| "make the network".into())?;
    // Directories get exactly the mode that a plan says.
    rustix::process::umask(Mode::empty());
    if let Some((root, mounts)) = inherited.likely {
        furnish(root, mounts, users)?;
    }
    launcher
        .send(&FromCradle::Prepared, &[], &[user_namespace.as_fd()])
        .step(|| "tell the launcher".into())?;

    let Some((brought, Birth { plan, key }, mut descriptors)) = receive_plan(launcher)? else { exit_now(0) };
    let mut next = |wanted: bool| if wanted { descriptors.next() } else { None };
    let root = next(brought.mounts.is_some());
    let (lifeline, workspace) = (next(brought.lifeline), next(brought.workspace));

    let cgroup_limits = cgroup.limit(&plan.cgroup)?;
    // The cgroup namespace comes after the limits, which version 2 does not let anybody inside of one change.
    unshare(Namespaces::CGROUP).step(|| "make a cgroup namespace".into())?;
    if let (Some(root), Some(mounts)) = (root, &brought.mounts) {
        furnish(root, mounts, users)?;
    }
    if let Some(workspace) = &workspace {
        place_workspace(workspace)?;
    }
    let cradle = Cradle {
        plan,
        key: Key::new(key),
        user_namespace,
        journal,
        control,
        lifeline,
        oom_events,
        own_mounts: None,
        cgroup_limits,
        outside: inherited.outside,
    };
    Err(cradle.grow_up(launcher))
}

/// What a new network namespace needs for a gateway to stand in for everybody outside.
fn make_network() -> io::Result<()> {
    cubicle_sys::loopback::up()?;
    // Without an address beside 127.0.0.1, programs that ask for names "as far as there is IPv4" find that there is none.
    cubicle_sys::loopback::add_address(Ipv4Addr::new(127, 0, 0, 2))?;
    // Pid 1 listens on ports 53, 80 and 443 and has no capability. The setting is that of the network namespace of whoever
    // opens the file.
    std::fs::write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0")
}

/// `None` when the launcher is gone.
fn receive_plan(launcher: &Channel) -> Result<Option<(Brought, Birth, std::vec::IntoIter<OwnedFd>)>, Failed> {
    let Some(mut packet) = launcher.receive().step(|| "wait for a plan".into())? else { return Ok(None) };
    let brought = packet.head().step(|| "read what comes with the plan".into())?;
    let birth =
        serde_json::from_slice(packet.body()).map_err(io::Error::from).step(|| "read the plan".into())?;
    Ok(Some((brought, birth, std::mem::take(&mut packet.descriptors).into_iter())))
}

fn keep_only(
    cgroup: &Cgroup,
    launcher: &Channel,
    directory: &OwnedFd,
    root: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let of_cgroup: Vec<BorrowedFd<'_>> = match cgroup {
        Cgroup::V1 { memory, pids, cpu } => vec![memory.as_fd(), pids.as_fd(), cpu.as_fd()],
        Cgroup::V2 { directory } => vec![directory.as_fd()],
        Cgroup::None => vec![],
    };
    let kept: Vec<i32> = of_cgroup
        .into_iter()
        .chain([launcher.as_fd(), directory.as_fd()])
        .chain(root)
        .map(|fd| fd.as_raw_fd())
        .chain([0, 1, 2])
        .collect();
    close_all_except(&kept)
}

fn make_journal(directory: &OwnedFd, owner: Option<u32>) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let journal = openat(directory, JOURNAL, flags, Mode::from_raw_mode(0o600))?;
    own_at(directory.as_fd(), JOURNAL, owner)?;
    Ok(journal)
}

fn make_control(directory: &OwnedFd, owner: Option<u32>) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let control = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // The path of the data directory may be longer than a socket address can hold.
    let address = SocketAddrUnix::new(format!("/proc/self/fd/{}/{CONTROL}", directory.as_raw_fd()))?;
    bind(&control, &address)?;
    rustix::fs::chmodat(directory, CONTROL, Mode::from_raw_mode(0o600), rustix::fs::AtFlags::empty())?;
    own_at(directory.as_fd(), CONTROL, owner)?;
    listen(&control, BACKLOG)?;
    Ok(control)
}
