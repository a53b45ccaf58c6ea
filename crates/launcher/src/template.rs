//! Building the root filesystem that sandboxes share, in a mount namespace of its own.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use cubicle_sys::children::exit_now;
use cubicle_sys::clone::{Namespaces, Side, fork_into};
use cubicle_sys::mount::{Attributes, Depth, set_attributes};
use rustix::fs::{CWD, FileType, Mode, OFlags, mkdirat, mknodat, openat, symlinkat};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags,
    UnmountFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen, mount_change, move_mount, open_tree,
    unmount,
};

use crate::error::{Failed, Step};
use crate::plan::{RootStep, TemplatePlan};
use crate::wire::Channel;

/// Builds a root and returns its mount namespace. `place` is an empty directory that serves as a mount point while it
/// is built; nothing is mounted there on the host itself.
pub(crate) fn build(plan: &TemplatePlan, place: &Path) -> Result<OwnedFd, Failed> {
    fs::create_dir_all(place).step(|| format!("make {}", place.display()))?;
    let (here, there) = Channel::pair().step(|| "make a socket pair".into())?;
    let side = fork_into(Namespaces::MOUNT, None).step(|| "make a mount namespace".into())?;
    let Side::Parent { pid, .. } = side else {
        drop(here);
        let built = assemble(plan, place);
        let _ = there.send(&built.err(), &[], &[]);
        // The namespace must live until the other side has a descriptor of it; the hang-up tells that it has.
        let _ = there.receive();
        exit_now(0);
    };
    drop(there);
    let packet = here.receive().step(|| "wait for the root to be built".into())?;
    let outcome: Option<Failed> = packet
        .ok_or_else(|| {
            Failed::new(cubicle_model::Kind::Internal, "the process that builds the root was killed")
        })?
        .head()
        .step(|| "read the outcome of building the root".into())?;
    if let Some(error) = outcome {
        return Err(error);
    }
    let namespace = fs::File::open(format!("/proc/{}/ns/mnt", pid.as_raw_pid()))
        .step(|| "open the mount namespace of the root".into())?;
    Ok(namespace.into())
}

fn assemble(plan: &TemplatePlan, place: &Path) -> Result<(), Failed> {
    // Nothing that is mounted here may show on the host, nor the other way round.
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .step(|| "make the mounts private".into())
        .map_err(|error| {
            error.hint(
                "mounts are refused in user namespaces here (AppArmor on recent Ubuntu): run as root, or \
                 'sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0'",
            )
        })?;
    let root = root_filesystem().step(|| "make a tmpfs for the root".into())?;
    move_mount(&root, "", CWD, place, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .step(|| "mount the root".into())?;
    for step in &plan.steps {
        carry_out(&root, step)?;
    }
    for step in &plan.steps {
        if let RootStep::DeviceFilesystem { path } = step {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let devices = openat(&root, path, flags, Mode::empty()).step(|| "open the devices".into())?;
            set_attributes(&devices, Depth::This, Attributes::READ_ONLY, None)
                .step(|| "make the devices read-only".into())?;
        }
    }
    rustix::process::fchdir(&root).step(|| "enter the root".into())?;
    rustix::process::pivot_root(".", ".").step(|| "make it the root".into())?;
    unmount(".", UnmountFlags::DETACH).step(|| "let go of the old root".into())?;
    set_attributes(&root, Depth::This, READ_ONLY, None).step(|| "make the root read-only".into())
}

const READ_ONLY: Attributes = Attributes::READ_ONLY.and(Attributes::NOSUID).and(Attributes::NODEV);

fn root_filesystem() -> rustix::io::Result<OwnedFd> {
    let filesystem = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(filesystem.as_fd(), "mode", "0755")?;
    fsconfig_set_string(filesystem.as_fd(), "size", "16m")?;
    fsconfig_create(filesystem.as_fd())?;
    fsmount(
        filesystem.as_fd(),
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV,
    )
}

/// The one file system of a sandbox on which device nodes are devices.
fn device_filesystem() -> rustix::io::Result<OwnedFd> {
    let filesystem = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(filesystem.as_fd(), "mode", "0755")?;
    fsconfig_set_string(filesystem.as_fd(), "size", "64k")?;
    fsconfig_create(filesystem.as_fd())?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    fsmount(filesystem.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

fn carry_out(root: &OwnedFd, step: &RootStep) -> Result<(), Failed> {
    match step {
        RootStep::Directory { path, mode } => mkdirat(root, path, Mode::from_raw_mode(*mode))
            .and_then(|()| {
                rustix::fs::chmodat(root, path, Mode::from_raw_mode(*mode), rustix::fs::AtFlags::empty())
            })
            .step(|| format!("make directory /{}", path.display())),
        RootStep::File { path, text } => write_file(root, path, text.as_bytes()),
        RootStep::Symlink { path, target } => {
            symlinkat(target, root, path).step(|| format!("link /{} to {}", path.display(), target.display()))
        }
        RootStep::Copy { from, path } => {
            let bytes = fs::read(from).step(|| format!("read {}", from.display()))?;
            write_file(root, path, &bytes)
        }
        RootStep::Bind { from, path } => bind(root, from, path, Depth::WithEverythingBelow, READ_ONLY),
        RootStep::DeviceFilesystem { path } => {
            let devices = device_filesystem().step(|| "make a tmpfs for devices".into())?;
            move_mount(&devices, "", root, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
                .step(|| format!("mount /{}", path.display()))
        }
        RootStep::DeviceNode { name } => {
            let say = || format!("make /dev/{name}");
            let of_host = rustix::fs::stat(Path::new("/dev").join(name)).step(say)?;
            let path = Path::new("dev").join(name);
            mknodat(root, &path, FileType::CharacterDevice, Mode::empty(), of_host.st_rdev).step(say)?;
            rustix::fs::chmodat(root, &path, Mode::from_raw_mode(0o666), rustix::fs::AtFlags::empty())
                .step(say)
        }
        RootStep::Device { name } => {
            let path = Path::new("dev").join(name);
            write_file(root, &path, b"")?;
            let attributes = Attributes::READ_ONLY.and(Attributes::NOSUID).and(Attributes::NOEXEC);
            bind(root, &Path::new("/dev").join(name), &path, Depth::This, attributes)
        }
        RootStep::HostProc { path } => {
            bind(root, Path::new("/proc"), path, Depth::WithEverythingBelow, Attributes::NONE)
        }
    }
}

fn write_file(root: &OwnedFd, path: &Path, bytes: &[u8]) -> Result<(), Failed> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = openat(root, path, flags, Mode::from_raw_mode(0o644))
        .step(|| format!("make file /{}", path.display()))?;
    std::io::Write::write_all(&mut fs::File::from(file), bytes)
        .step(|| format!("write file /{}", path.display()))
}

fn bind(root: &OwnedFd, from: &Path, to: &Path, depth: Depth, attributes: Attributes) -> Result<(), Failed> {
    let say = || format!("show {} as /{}", from.display(), to.display());
    // Without what is mounted below it, an unprivileged user may not have the tree at all.
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    let tree = open_tree(CWD, from, flags).step(say)?;
    set_attributes(&tree, depth, attributes, None).step(say)?;
    move_mount(&tree, "", root, to, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).step(say)
}
