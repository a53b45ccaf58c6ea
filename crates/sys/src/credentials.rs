//! Becoming another user.

use std::io;

use rustix::process::{Gid, Uid};

/// Makes every thread of this process that user for good, with no supplementary groups.
pub fn become_user(uid: u32, gid: u32) -> io::Result<()> {
    // SAFETY: an empty list needs no memory.
    check(unsafe { libc::setgroups(0, std::ptr::null()) })?;
    // SAFETY: takes three numbers.
    check(unsafe { libc::setresgid(gid, gid, gid) })?;
    // SAFETY: takes three numbers.
    check(unsafe { libc::setresuid(uid, uid, uid) })
}

/// Makes the calling thread that user, with no supplementary groups. Capabilities go when the user stops being 0.
pub fn become_user_in_this_thread(uid: u32, gid: u32) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    rustix::thread::set_thread_groups(&[])?;
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    rustix::thread::set_thread_res_uid(uid, uid, uid)?;
    Ok(())
}

fn check(status: libc::c_int) -> io::Result<()> {
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
