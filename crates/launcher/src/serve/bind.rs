//! Giving a living sandbox other limits and more mounts.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use cubicle_model::receipt::{Enforcement, LimitInForce, MountSeen};
use cubicle_model::{Kind, Mount, SandboxId};
use rustix::fs::{Mode, OFlags, ResolveFlags, StatVfsMountFlags, mkdirat, open, openat2};
use rustix::mount::{MoveMountFlags, move_mount};
use rustix::thread::{
    LinkNameSpaceType, ThreadNameSpaceType, move_into_link_name_space, move_into_thread_name_spaces,
};

use super::Launcher;
use crate::error::{Failed, Step};
use crate::plan::CgroupLimits;

impl Launcher {
    pub(super) fn bind(
        &mut self,
        id: SandboxId,
        limits: &CgroupLimits,
        mounts: &[Mount],
    ) -> Result<(Vec<LimitInForce>, Vec<MountSeen>), Failed> {
        let absent = || Failed::new(Kind::NotFound, format!("{id} is not there any more"));
        let found;
        let (slot, process) = match self.sandboxes.get(&id) {
            Some(living) => (living.slot, living.process.as_fd()),
            None => match self.find(id)? {
                super::destroy::Found::Living { slot, process } => {
                    found = process;
                    (slot, found.as_fd())
                }
                _ => return Err(absent()),
            },
        };
        let in_force = if *limits == CgroupLimits::default() {
            Vec::new()
        } else {
            self.hierarchy.make(slot)?.limit(limits)?
        };
        let seen = if mounts.is_empty() { Vec::new() } else { self.add_mounts(process, slot, mounts)? };
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

    fn add_mounts(&self, process: BorrowedFd<'_>, slot: u32, mounts: &[Mount]) -> Result<Vec<MountSeen>, Failed> {
        for mount in mounts {
            check_target(&mount.target)?;
        }
        let namespace = self.user_namespace_of(slot)?;
        let trees = mounts
            .iter()
            .map(|mount| self.mountable_tree(&mount.source, &namespace, slot, mount.read_only))
            .collect::<Result<Vec<OwnedFd>, Failed>>()?;
        move_into_thread_name_spaces(process, ThreadNameSpaceType::MOUNT)
            .step(|| "visit the sandbox's mounts".into())?;
        let placed = mounts.iter().zip(&trees).map(|(mount, tree)| place(tree, &mount.target)).collect();
        // Staying there would be worse than any failure: every later request would see the sandbox's files.
        move_into_link_name_space(self.own_mounts.as_fd(), Some(LinkNameSpaceType::Mount))
            .expect("a process can go back to where it came from");
        placed
    }

    fn user_namespace_of(&self, slot: u32) -> Result<OwnedFd, Failed> {
        let directory = self.slots.directory(slot).step(|| format!("open slot {slot}"))?;
        let pid = crate::slots::living(&directory)
            .step(|| format!("look at slot {slot}"))?
            .ok_or_else(|| Failed::new(Kind::NotFound, "the sandbox ended"))?;
        let path = format!("/proc/{}/ns/user", pid.as_raw_pid());
        Ok(std::fs::File::open(path).step(|| "open the sandbox's user namespace".into())?.into())
    }
}

fn check_target(target: &Path) -> Result<(), Failed> {
    let plain = target.components().skip(1).all(|part| matches!(part, std::path::Component::Normal(_)));
    let allowed = target.starts_with("/workspace") || (target.starts_with("/mnt") && target != Path::new("/mnt"));
    if plain && allowed {
        return Ok(());
    }
    Err(Failed::new(Kind::Invalid, format!("nothing can be mounted on {}", target.display()))
        .hint("a mount goes to /workspace, or below /workspace or /mnt"))
}

/// Puts a tree into the mount namespace that this process visits. The workload may have put symbolic links in the way;
/// none is followed.
fn place(tree: &OwnedFd, target: &Path) -> Result<MountSeen, Failed> {
    let say = || format!("mount on {}", target.display());
    // `/mnt` itself is a link of the read-only root into the scratch directory.
    let target = match target.strip_prefix("/mnt") {
        Ok(below) => &Path::new("/run/mnt").join(below),
        Err(_) => target,
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::BENEATH;
    let mut at = open("/", flags, Mode::empty()).step(say)?;
    for name in target.components().skip(1) {
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
    fn mounts_go_to_the_workspace_or_below_mnt() {
        for target in ["/workspace", "/workspace/shared", "/mnt/data", "/mnt/a/b"] {
            assert!(check_target(Path::new(target)).is_ok(), "{target}");
        }
        for target in ["/", "/mnt", "/etc", "/usr/bin", "/workspace/../etc", "workspace", "", "/workspacex"] {
            assert!(check_target(Path::new(target)).is_err(), "{target}");
        }
    }
}
