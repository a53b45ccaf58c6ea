//! A nurse waits in the cgroup of a sandbox that does not exist yet.
//!
//! Moving a process into a cgroup of version 1 stops every fork on the host for a grace period of milliseconds, and a
//! network namespace is slow to make. A nurse has done both before anybody waits; pid 1 is forked from it and so is born
//! inside.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use cubicle_guest::hello::Key;
use cubicle_sys::children::exit_now;
use cubicle_sys::clone::{Namespaces, Parent, Side, fork_into, unshare};
use cubicle_sys::descriptors::close_all_except;
use rustix::fs::{Mode, OFlags, openat};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde::{Deserialize, Serialize};

use crate::cgroup::{Cgroup, Hierarchy};
use crate::cradle::{self, Cradle};
use crate::error::{Failed, Step};
use crate::idmap::{Pair, user_namespace};
use crate::plan::{SandboxPlan, WORKLOAD_ID};
use crate::slots::{CONTROL, JOURNAL, Slot, own_at};
use crate::uids::Users;
use crate::wire::{Channel, FromCradle};

/// How many connections may wait to be accepted.
const BACKLOG: i32 = 64;

/// What a nurse needs of its launcher.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ward<'a> {
    pub(crate) hierarchy: &'a Hierarchy,
    pub(crate) users: Option<Users>,
    pub(crate) outside: &'a cradle::Outside,
}

/// The body of a create request: handed on by the launcher unread, because it carries the sandbox's key.
#[derive(Debug, Serialize, Deserialize)]
pub struct Birth {
    pub plan: SandboxPlan,
    pub key: [u8; 32],
}

/// What comes beside it, in this order; each only where its flag says so.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Brought {
    pub(crate) lifeline: bool,
    pub(crate) workspace: bool,
}

/// Forks a nurse for a slot. Returns the launcher's end of the channel to it.
pub(crate) fn fork_nurse(ward: Ward<'_>, slot: &Slot) -> Result<(Channel, OwnedFd), Failed> {
    let cgroup = ward.hierarchy.make(slot.number)?;
    let (here, there) = Channel::pair().step(|| "make a socket pair".into())?;
    let side =
        fork_into(Namespaces::NONE, Parent::Maker, cgroup.birthplace()).step(|| "fork a nurse".into())?;
    match side {
        Side::Parent { pidfd, .. } => Ok((here, pidfd)),
        Side::Child => {
            drop(here);
            let failure = match wait_and_bear(ward, slot, &cgroup, &there) {
                Ok(never) => match never {},
                Err(failure) => failure,
            };
            let _ = there.send(&FromCradle::Failed { error: failure }, &[], &[]);
            exit_now(1)
        }
    }
}

enum Never {}

fn wait_and_bear(ward: Ward<'_>, slot: &Slot, cgroup: &Cgroup, launcher: &Channel) -> Result<Never, Failed> {
    // The lock on the slot belongs to the launcher's open file; with a file of its own the nurse does not prolong it.
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = openat(&slot.directory, ".", flags, Mode::empty()).step(|| "open the slot".into())?;
    keep_only(cgroup, launcher, &directory).step(|| "close what belongs to the launcher".into())?;
    cgroup.enter()?;

    let owner = ward.users.map(Users::service);
    let journal = make_journal(&directory, owner).step(|| "make the journal".into())?;
    let control = make_control(&directory, owner).step(|| "make the control socket".into())?;
    let (pairs, workload) = match ward.users {
        Some(users) => {
            let (init, workload) = users.of_slot(slot.number);
            let pairs =
                vec![Pair { inside: 0, outside: init }, Pair { inside: WORKLOAD_ID, outside: workload }];
            (pairs, workload)
        }
        // The launcher is its user namespace's root, and that one user is all it has.
        None => (vec![Pair { inside: WORKLOAD_ID, outside: 0 }], 0),
    };
    let namespace = user_namespace(&pairs, ward.users.is_some())?;
    // pid 1 will be born into these. A network namespace alone takes as long to make as everything else together.
    unshare(Namespaces::NET.and(Namespaces::IPC).and(Namespaces::UTS)).step(|| "make namespaces".into())?;
    cubicle_sys::loopback::up().step(|| "switch on the loopback interface".into())?;
    let oom_events = cgroup.oom_events();
    launcher.send(&FromCradle::Prepared, &[], &[namespace.as_fd()]).step(|| "tell the launcher".into())?;

    let Some(packet) = launcher.receive().step(|| "wait for a plan".into())? else { exit_now(0) };
    let brought: Brought = packet.head().step(|| "read the plan".into())?;
    let birth: Birth =
        serde_json::from_slice(packet.body()).map_err(io::Error::from).step(|| "read the plan".into())?;
    let key = Key::new(birth.key);
    let mut packet = packet;
    let mut descriptors = packet.descriptors.drain(..);
    let mut next = |wanted: bool| if wanted { descriptors.next() } else { None };
    let template = next(true)
        .ok_or_else(|| Failed::new(cubicle_model::Kind::Invalid, "the plan came without a root"))?;
    let (lifeline, workspace) = (next(brought.lifeline), next(brought.workspace));

    let limits = cgroup.limit(&birth.plan.cgroup)?;
    move_into_link_name_space(template.as_fd(), Some(LinkNameSpaceType::Mount))
        .step(|| "enter the mount namespace of the root".into())?;
    // The cgroup namespace comes after the limits, which version 2 does not let anybody inside of one change.
    let namespaces = Namespaces::MOUNT.and(Namespaces::PID).and(Namespaces::CGROUP);
    match fork_into(namespaces, Parent::MakersParent, None).step(|| "make the sandbox's namespaces".into())? {
        // From here on pid 1 speaks for itself, so that nothing depends on this process any more.
        Side::Parent { .. } => exit_now(0),
        Side::Child => {
            let cradle = Cradle {
                plan: birth.plan,
                key,
                workload_outside: workload,
                user_namespace: namespace,
                workspace,
                journal,
                control,
                lifeline,
                oom_events,
                own_process: None,
                own_mounts: None,
                cgroup_limits: limits,
                outside: ward.outside,
            };
            Err(cradle.grow_up(launcher))
        }
    }
}

fn keep_only(cgroup: &Cgroup, launcher: &Channel, directory: &OwnedFd) -> io::Result<()> {
    let of_cgroup: Vec<BorrowedFd<'_>> = match cgroup {
        Cgroup::V1 { memory, pids, cpu } => vec![memory.as_fd(), pids.as_fd(), cpu.as_fd()],
        Cgroup::V2 { directory } => vec![directory.as_fd()],
        Cgroup::None => vec![],
    };
    let kept: Vec<i32> = of_cgroup
        .into_iter()
        .chain([launcher.as_fd(), directory.as_fd()])
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
