//! Acting on files as another user, in one thread.

use std::io;

use rustix::process::{Gid, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets};

/// Makes the calling thread act on files as that user, without supplementary groups and capabilities.
///
/// Its other ids stay: a thread that had the workload's user id could have its limits and priority changed, and with
/// them its whole process's, by the workload.
pub fn become_for_good(uid: u32, gid: u32) -> io::Result<()> {
    rustix::thread::set_thread_groups(&[])?;
    set(uid, gid)?;
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    rustix::thread::set_capabilities(None, sets)?;
    Ok(())
}

/// Does something as that user in the calling thread.
pub fn with<T>(uid: u32, gid: u32, act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let (own_uid, own_gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    set(uid, gid)?;
    let done = act();
    set(own_uid, own_gid)?;
    done
}

fn set(uid: u32, gid: u32) -> io::Result<()> {
    // Neither call reports an error: the second time each says what the id is now.
    // SAFETY: takes a number.
    unsafe { libc::syscall(libc::SYS_setfsgid, Gid::from_raw(gid).as_raw()) };
    // SAFETY: takes a number.
    let now_gid = unsafe { libc::syscall(libc::SYS_setfsgid, gid) };
    // SAFETY: takes a number.
    unsafe { libc::syscall(libc::SYS_setfsuid, Uid::from_raw(uid).as_raw()) };
    // SAFETY: takes a number.
    let now_uid = unsafe { libc::syscall(libc::SYS_setfsuid, uid) };
    if now_gid as u32 == gid && now_uid as u32 == uid {
        Ok(())
    } else {
        Err(io::ErrorKind::PermissionDenied.into())
    }
}
