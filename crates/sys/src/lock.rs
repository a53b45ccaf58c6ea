//! POSIX record locks: held by a process for its life, dropped by the kernel when it ends, and visible to others with
//! the holder's pid.
//!
//! A process drops its lock also when it closes *any* descriptor of the file, so a holder must have only one.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::process::{Flock, FlockType};

/// Locks the whole file for the calling process. The descriptor must be open for writing. `WouldBlock` when another
/// process holds it.
pub fn set_exclusive(file: BorrowedFd<'_>) -> io::Result<()> {
    match rustix::fs::fcntl_lock(file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::ACCESS | Errno::AGAIN) => Err(io::ErrorKind::WouldBlock.into()),
        result => Ok(result?),
    }
}

/// The pid of the process that holds the lock, as seen from the caller's pid namespace; 0 when it has no pid there.
/// The caller's own lock is not seen.
pub fn holder(file: BorrowedFd<'_>) -> io::Result<Option<i32>> {
    let found = rustix::process::fcntl_getlk(file, &Flock::from(FlockType::WriteLock))?;
    Ok(found.map(|lock| lock.pid.map_or(0, rustix::process::Pid::as_raw_pid)))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn nobody_holds_a_fresh_file() {
        let path = std::env::temp_dir().join(format!("cubicle-lock-{}", std::process::id()));
        let file =
            std::fs::File::options().create(true).truncate(false).read(true).write(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(holder(file.as_fd()).unwrap(), None);
        set_exclusive(file.as_fd()).unwrap();
        let mut seen = None;
        crate::clone::in_child(&mut || seen = holder(file.as_fd()).ok()).unwrap();
        assert_eq!(seen, Some(Some(std::process::id() as i32)));
    }
}
