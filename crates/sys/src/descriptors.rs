//! Which descriptors a process keeps.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// Closes every descriptor but these. For a forked process that must not hold what its maker had open.
pub fn close_all_except(kept: &[RawFd]) -> io::Result<()> {
    let mut kept: Vec<u32> = kept.iter().filter_map(|fd| u32::try_from(*fd).ok()).collect();
    kept.sort_unstable();
    let mut from = 0;
    for fd in kept {
        if fd > from {
            close_range(from, fd - 1)?;
        }
        from = from.max(fd + 1);
    }
    close_range(from, u32::MAX)
}

fn close_range(first: u32, last: u32) -> io::Result<()> {
    // SAFETY: closing descriptors touches no memory; that nobody uses a closed one is the caller's promise.
    let done = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A descriptor that this process was started with. Each can be taken once; the caller must not ask twice.
pub fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: asking for flags touches no memory.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open, and by the contract above nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}
