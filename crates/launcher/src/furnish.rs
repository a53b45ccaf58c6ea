//! The files of a sandbox: a copy of its root's mounts, and on it what belongs to this sandbox alone.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use cubicle_sys::clone::{Namespaces, unshare};
use cubicle_sys::mount::{Attributes, Depth, set_attributes};
use rustix::fs::{AtFlags, CWD, Mode, chownat, mkdirat};
use rustix::mount::{
    MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount, mount_bind, move_mount, open_tree,
    unmount,
};
use rustix::process::{Gid, Uid};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::error::{Failed, Step};
use crate::plan::{Owner, PrivateMount, ScratchDirectory};

/// Of the root, for covering what must not be seen.
const EMPTY_FILE: &str = "/.cubicle/empty/file";
const EMPTY_DIRECTORY: &str = "/.cubicle/empty/directory";
/// Terminals of one sandbox. The host has some thousands for all together.
const TERMINALS: &CStr = c"newinstance,ptmxmode=0666,mode=0620,max=128";

const PRIVATE: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);

/// The users of a sandbox as the launcher sees them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inhabitants {
    pub(crate) init: u32,
    pub(crate) workload: u32,
}

/// Moves the calling process into a fresh copy of a root and makes these mounts there. What it had before goes away
/// with its last user.
pub(crate) fn furnish(root: impl AsFd, mounts: &[PrivateMount], users: Inhabitants) -> Result<(), Failed> {
    move_into_link_name_space(root.as_fd(), Some(LinkNameSpaceType::Mount))
        .step(|| "enter the mount namespace of the root".into())?;
    unshare(Namespaces::MOUNT).step(|| "copy the mounts of the root".into())?;
    mounts.iter().try_for_each(|private| make(private, users))
}

/// Shows a directory of the host as the workspace.
pub(crate) fn place_workspace(tree: &OwnedFd) -> Result<(), Failed> {
    move_mount(tree, "", CWD, "/workspace", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .step(|| "mount the workspace".into())
}

fn make(private: &PrivateMount, users: Inhabitants) -> Result<(), Failed> {
    match private {
        PrivateMount::Scratch { size, inodes, directories } => {
            tmpfs("/run", &format!("size={size},nr_inodes={inodes},mode=0755"))?;
            directories.iter().try_for_each(|directory| make_scratch(directory, users))
        }
        PrivateMount::Workspace { size, inodes } => {
            let workload = users.workload;
            let options = format!("size={size},nr_inodes={inodes},mode=0755,uid={workload},gid={workload}");
            tmpfs("/workspace", &options)?;
            for name in ["/workspace/.cache", "/workspace/tools"] {
                make_directory(name, 0o755, Some(workload))?;
            }
            Ok(())
        }
        PrivateMount::Proc { covered_files, covered_directories, read_only } => {
            mount("proc", "/proc", "proc", PRIVATE | MountFlags::NOEXEC, None)
                .step(|| "mount /proc".into())
                .map_err(|error| {
                    error.hint("an unprivileged user may mount /proc only where the host's is not masked: run as root, or outside of a container")
                })?;
            for name in covered_files {
                cover(name, EMPTY_FILE)?;
            }
            for name in covered_directories {
                cover(name, EMPTY_DIRECTORY)?;
            }
            for name in read_only {
                make_read_only(name)?;
            }
            Ok(())
        }
        PrivateMount::Terminals => {
            let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
            mount("devpts", "/dev/pts", "devpts", flags, Some(TERMINALS)).step(|| "mount /dev/pts".into())
        }
        PrivateMount::Remove { path } => {
            unmount(path, UnmountFlags::DETACH).step(|| format!("detach {}", path.display()))
        }
    }
}

fn make_scratch(directory: &ScratchDirectory, users: Inhabitants) -> Result<(), Failed> {
    let inside = format!("/run/{}", directory.name);
    let owner = match directory.owner {
        Owner::Workload => Some(users.workload),
        Owner::Init => Some(users.init),
        Owner::Host => None,
    };
    make_directory(&inside, directory.mode, owner)?;
    match &directory.target {
        Some(target) => mount_bind(&inside, target).step(|| format!("mount {}", target.display())),
        None => Ok(()),
    }
}

fn make_directory(path: &str, mode: u32, owner: Option<u32>) -> Result<(), Failed> {
    let say = || format!("make {path}");
    mkdirat(CWD, path, Mode::from_raw_mode(mode)).step(say)?;
    if let Some(owner) = owner {
        let (uid, gid) = (Uid::from_raw(owner), Gid::from_raw(owner));
        chownat(CWD, path, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW).step(say)?;
    }
    Ok(())
}

fn tmpfs(target: &str, options: &str) -> Result<(), Failed> {
    let options = std::ffi::CString::new(options).expect("options are made of numbers");
    mount("tmpfs", target, "tmpfs", PRIVATE, Some(options.as_c_str()))
        .step(|| format!("mount a tmpfs on {target}"))
}

fn cover(name: &str, with: &str) -> Result<(), Failed> {
    let target = Path::new("/proc").join(name);
    match mount_bind(with, &target) {
        // Kernels differ in what they show.
        Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(error) => Err(error).step(|| format!("cover {}", target.display())),
    }
}

fn make_read_only(name: &str) -> Result<(), Failed> {
    let target = Path::new("/proc").join(name);
    let say = || format!("make {} read-only", target.display());
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = match open_tree(CWD, &target, flags) {
        Ok(tree) => tree,
        Err(rustix::io::Errno::NOENT) => return Ok(()),
        Err(error) => return Err(error).step(say),
    };
    set_attributes(&tree, Depth::This, Attributes::READ_ONLY, None).step(say)?;
    move_mount(&tree, "", CWD, &target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).step(say)
}
