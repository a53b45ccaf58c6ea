//! Signals of a process that reads them instead of being interrupted by them.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};

/// A signal's action as the kernel sees it: handler, flags, restorer and mask. All zero is the default action.
type KernelAction = [u64; 4];

/// Blocks all signals in the calling thread and gives ignored ones their default action, so that programs start with
/// nothing ignored.
pub fn block_all() -> io::Result<()> {
    let mut all = MaybeUninit::uninit();
    // SAFETY: writes a signal set to the pointer.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: the set was filled above; no old set is asked for.
    check(unsafe { libc::sigprocmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut()) })?;
    for signal in 1..=64 {
        // The C library hides the signals it uses itself, and whoever started us may have left those ignored too.
        let mut action: KernelAction = [0; 4];
        let null = std::ptr::null_mut::<KernelAction>();
        // SAFETY: only the old action is written, to memory of its size; the call fails for signals that have none.
        let known =
            unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, null, &raw mut action, size_of::<u64>()) };
        if known == 0 && action[0] == libc::SIG_IGN as u64 {
            let default: KernelAction = [0; 4];
            // SAFETY: sets the default action, which runs no code of this process.
            unsafe {
                libc::syscall(libc::SYS_rt_sigaction, signal, &raw const default, null, size_of::<u64>())
            };
        }
    }
    Ok(())
}

/// A descriptor that is readable when a child ended or somebody asks this process to end. All signals must be blocked.
pub fn descriptor() -> io::Result<OwnedFd> {
    let mut set = MaybeUninit::uninit();
    // SAFETY: writes a signal set to the pointer.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: the set was initialised above.
    unsafe { libc::sigaddset(set.as_mut_ptr(), libc::SIGCHLD) };
    // SAFETY: the set was initialised above.
    unsafe { libc::sigaddset(set.as_mut_ptr(), libc::SIGTERM) };
    // SAFETY: the set was initialised above.
    let fd = unsafe { libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
    check(fd)?;
    // SAFETY: the descriptor is new and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// What the signals that were pending came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pending {
    pub child_ended: bool,
    /// Somebody asked this process to end. The sender's pid is 0 when it is outside of this pid namespace.
    pub asked_to_end_by: Option<u32>,
}

/// Reads all pending signals.
pub fn read_pending(descriptor: BorrowedFd<'_>) -> io::Result<Pending> {
    const SIZE: usize = size_of::<libc::signalfd_siginfo>();
    let mut pending = Pending::default();
    let mut bytes = [0; 8 * SIZE];
    let read = match rustix::io::read(descriptor, &mut bytes) {
        Ok(read) => read,
        Err(rustix::io::Errno::AGAIN) => return Ok(pending),
        Err(error) => return Err(error.into()),
    };
    for info in bytes[..read].chunks_exact(SIZE) {
        let field = |at: usize| u32::from_ne_bytes([info[at], info[at + 1], info[at + 2], info[at + 3]]);
        let signal = field(std::mem::offset_of!(libc::signalfd_siginfo, ssi_signo));
        match signal as i32 {
            libc::SIGCHLD => pending.child_ended = true,
            libc::SIGTERM => {
                pending.asked_to_end_by = Some(field(std::mem::offset_of!(libc::signalfd_siginfo, ssi_pid)));
            }
            _ => {}
        }
    }
    Ok(pending)
}

/// Sends a signal to one process. One that is gone already is not an error.
pub fn send(pid: i32, signal: i32) -> io::Result<()> {
    if pid <= 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: takes two numbers.
    match check(unsafe { libc::kill(pid, signal) }) {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        result => result,
    }
}

/// Sends a signal to every other process of this pid namespace, atomically against forks. Only pid 1 may: anybody else
/// would hit processes that are not its own.
pub fn send_to_everyone(signal: i32) -> io::Result<()> {
    if std::process::id() != 1 {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    // SAFETY: takes two numbers.
    match check(unsafe { libc::kill(-1, signal) }) {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        result => result,
    }
}

fn check(status: libc::c_int) -> io::Result<()> {
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
