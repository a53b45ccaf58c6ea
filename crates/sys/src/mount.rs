//! Attributes of a detached mount.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// What `set_attributes` switches on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Attributes(u64);

impl Attributes {
    pub const NONE: Self = Self(0);
    pub const READ_ONLY: Self = Self(0x1);
    pub const NOSUID: Self = Self(0x2);
    pub const NODEV: Self = Self(0x4);
    pub const NOEXEC: Self = Self(0x8);

    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    This,
    WithEverythingBelow,
}

const MOUNT_ATTR_IDMAP: u64 = 0x0010_0000;
const AT_RECURSIVE: libc::c_uint = 0x8000;

#[repr(C)]
#[derive(Default)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

/// Changes a mount and keeps it private to its namespace. With a user namespace, owners on disk are taken for ids
/// inside that namespace (an id-mapped mount).
pub fn set_attributes(
    mount: impl AsFd,
    depth: Depth,
    attributes: Attributes,
    id_map: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let mut request =
        MountAttr { attr_set: attributes.0, propagation: libc::MS_PRIVATE, ..Default::default() };
    if let Some(user_namespace) = id_map {
        request.attr_set |= MOUNT_ATTR_IDMAP;
        request.userns_fd = user_namespace.as_raw_fd() as u64;
    }
    let flags = libc::AT_EMPTY_PATH as libc::c_uint
        | if depth == Depth::WithEverythingBelow { AT_RECURSIVE } else { 0 };
    // SAFETY: the path is an empty C string and the request outlives the call.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_fd().as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const request,
            size_of::<MountAttr>(),
        )
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
