//! Giving a living sandbox other limits and more mounts.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use cubicle_model::receipt::{Enforcement, LimitInForce, MountSeen};
use cubicle_model::{Kind, Mount, SandboxId};
use rustix::fs::{Mode, OFlags, ResolveFlags, StatVfsMountFlags, mkdirat, open, openat2};
use rustix::mount::{MoveMountFlags, move_mount};
use rustix::process::Pid;
use rustix::thread::{
    LinkNameSpaceType, ThreadNameSpaceType, move_into_link_name_space, move_into_thread_name_spaces,
};

use super::Launcher;
use super::destroy::{Found, Living};
use crate::cgroup::Cgroup;
use crate::error::{Failed, Step};
use crate::plan::CgroupLimits;

impl Launcher {
    pub(super) fn bind(
        &mut self,
        id: SandboxId,
        limits: &CgroupLimits,
        mounts: &[Mount],
    ) -> Result<(Vec<LimitInForce>, Vec<MountSeen>), Failed> {
        let found;
        let (slot, inside) = match self.sandboxes.get(&id) {
            Some(living) => (living.slot, Inside::of(living)),
            None => {
                let Found::Living { slot, process } = self.find(id)? else {
                    return Err(Failed::new(Kind::NotFound, format!("{id} is not there any more")));
                };
                found = (process, self.users.map(|_| self.user_namespace_of(slot)).transpose()?);
                (slot, Inside { mounts: Mounts::Process(found.0.as_fd()), user_namespace: found.1.as_ref() })
            }
        };
        let in_force = if *limits == CgroupLimits::default() {
            Vec::new()
        } else {
            self.cgroup_of(slot)?.limit(limits)?
        };
        let seen = if mounts.is_empty() { Vec::new() } else { self.add_mounts(inside, slot, mounts)? };
        let in_force = in_force
            .into_iter()
            .map(|(name, file, value)| LimitInForce {
                name: name.into(),
                value,
                asked: true,
                enforced: Enforcement::By { what: file.into(), read_back: value },
            })
            .collect();
        Ok((in_force, seen))
    }

    fn add_mounts(&self, inside: Inside<'_>, slot: u32, mounts: &[Mount]) -> Result<Vec<MountSeen>, Failed> {
        for mount in mounts {
            check_target(&mount.target)?;
        }
        let namespace = inside.user_namespace;
        let trees = mounts
            .iter()
            .map(|mount| self.mountable_tree(&mount.source, namespace, slot, mount.read_only))
            .collect::<Result<Vec<OwnedFd>, Failed>>()?;
        inside.mounts.enter()?;
        let placed = mounts.iter().zip(&trees).map(|(mount, tree)| place(tree, &mount.target)).collect();
        // Staying there would be worse than any failure: every later request would see the sandbox's files.
        move_into_link_name_space(self.own_mounts.as_fd(), Some(LinkNameSpaceType::Mount))
            .expect("a process can go back to where it came from");
        placed
    }

    /// The cgroup that the sandbox in a slot is in. One of the same name in another scope would take limits, too, and
    /// bind nobody.
    fn cgroup_of(&self, slot: u32) -> Result<Cgroup, Failed> {
        let pid = self.pid_1_of(slot)?;
        let found =
            self.hierarchy.holding(slot, pid).step(|| format!("look at the cgroup of slot {slot}"))?;
        found.ok_or_else(|| {
            Failed::new(
                Kind::Denied,
                "limits cannot be changed here: the sandbox is in a cgroup of another place",
            )
            .hint("run this in the scope that the sandbox was made in, or make a new sandbox with the limits")
        })
    }

    fn user_namespace_of(&self, slot: u32) -> Result<OwnedFd, Failed> {
        let path = format!("/proc/{}/ns/user", self.pid_1_of(slot)?.as_raw_pid());
        Ok(std::fs::File::open(path).step(|| "open the sandbox's user namespace".into())?.into())
    }

    fn pid_1_of(&self, slot: u32) -> Result<Pid, Failed> {
        let directory = self.slots.directory(slot).step(|| format!("open slot {slot}"))?;
        crate::slots::living(&directory)
            .step(|| format!("look at slot {slot}"))?
            .ok_or_else(|| Failed::new(Kind::NotFound, "the sandbox ended"))
    }
}

/// How a sandbox is reached.
#[derive(Clone, Copy)]
struct Inside<'a> {
    mounts: Mounts<'a>,
    /// There where it is needed: an ordinary user has no one to map.
    user_namespace: Option<&'a OwnedFd>,
}

#[derive(Clone, Copy)]
enum Mounts<'a> {
    Namespace(BorrowedFd<'a>),
    Process(BorrowedFd<'a>),
}

impl<'a> Inside<'a> {
    fn of(living: &'a Living) -> Self {
        let mounts = match &living.mounts {
            Some(mounts) => Mounts::Namespace(mounts.as_fd()),
            None => Mounts::Process(living.process.as_fd()),
        };
        Self { mounts, user_namespace: Some(&living.user_namespace) }
    }
}

impl Mounts<'_> {
    fn enter(self) -> Result<(), Failed> {
        let entered = match self {
            Self::Namespace(mounts) => move_into_link_name_space(mounts, Some(LinkNameSpaceType::Mount)),
            Self::Process(process) => move_into_thread_name_spaces(process, ThreadNameSpaceType::MOUNT),
        };
        entered.step(|| "visit the sandbox's mounts".into()).map_err(|error| match error.kind {
            Kind::Denied => error.hint(
                "an ordinary user can mount only into a sandbox that the same cubicle made: \
                 make a new sandbox with the mount, or run as root",
            ),
            _ => error,
        })
    }
}

fn check_target(target: &Path) -> Result<(), Failed> {
    let plain = target.components().skip(1).all(|part| matches!(part, std::path::Component::Normal(_)));
    let allowed = target.starts_with("/workspace")
        || (target.starts_with("/mnt") && target != Path::new("/mnt"))
        || target == Path::new("/task");
    if plain && allowed {
        return Ok(());
    }
    Err(Failed::new(Kind::Invalid, format!("nothing can be mounted on {}", target.display()))
        .hint("a mount goes to /workspace or /task, or below /workspace or /mnt"))
}

/// Puts a tree into the mount namespace that this process visits. The workload may have put symbolic links in the way;
/// none is followed.
fn place(tree: &OwnedFd, target: &Path) -> Result<MountSeen, Failed> {
    let say = || format!("mount on {}", target.display());
    // `/mnt` itself is a link of the read-only root into the scratch directory.
    let path = match target.strip_prefix("/mnt") {
        Ok(below) => &Path::new("/run/mnt").join(below),
        Err(_) => target,
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::BENEATH;
    let mut at = open("/", flags, Mode::empty()).step(say)?;
    for name in path.components().skip(1) {
        let name = name.as_os_str();
        at = match openat2(&at, name, flags, Mode::empty(), resolve) {
            Err(rustix::io::Errno::NOENT) => {
                mkdirat(&at, name, Mode::from_raw_mode(0o755)).step(say)?;
                openat2(&at, name, flags, Mode::empty(), resolve).step(say)?
            }
            found => found.step(say)?,
        };
    }
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(tree, "", &at, "", flags).step(say)?;
    let flags = rustix::fs::fstatvfs(tree).step(say)?.f_flag;
    Ok(MountSeen {
        target: target.display().to_string(),
        filesystem: "bind".into(),
        read_only: flags.contains(StatVfsMountFlags::RDONLY),
        nosuid: flags.contains(StatVfsMountFlags::NOSUID),
        nodev: flags.contains(StatVfsMountFlags::NODEV),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_go_to_the_workspace_to_the_task_or_below_mnt() {
        for target in ["/workspace", "/workspace/shared", "/mnt/data", "/mnt/a/b", "/task"] {
            assert!(check_target(Path::new(target)).is_ok(), "{target}");
        }
        for target in [
            "/",
            "/mnt",
            "/etc",
            "/usr/bin",
            "/workspace/../etc",
            "workspace",
            "",
            "/workspacex",
            "/task/a",
            "/tasks",
        ] {
            assert!(check_target(Path::new(target)).is_err(), "{target}");
        }
    }
}
