//! Making processes: `clone3` with namespaces, and calls carried out in a short-lived child.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::process::{Pid, Signal};

/// What the new process does not share with its maker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Namespaces(u64);

impl Namespaces {
    pub const NONE: Self = Self(0);
    pub const USER: Self = Self(libc::CLONE_NEWUSER as u64);
    pub const MOUNT: Self = Self(libc::CLONE_NEWNS as u64);
    pub const PID: Self = Self(libc::CLONE_NEWPID as u64);
    pub const NET: Self = Self(libc::CLONE_NEWNET as u64);
    pub const IPC: Self = Self(libc::CLONE_NEWIPC as u64);
    pub const UTS: Self = Self(libc::CLONE_NEWUTS as u64);
    pub const CGROUP: Self = Self(libc::CLONE_NEWCGROUP as u64);

    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Both sides of a `clone3` come back here, like `fork`.
#[derive(Debug)]
pub enum Side {
    Child,
    Parent { pid: Pid, pidfd: OwnedFd },
}

const CLONE_PIDFD: u64 = 0x1000;
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

#[repr(C)]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// Forks the calling process into new namespaces.
///
/// The caller must be single-threaded: the child has only the calling thread, so a lock that another thread held
/// would stay locked for ever. A caller with more threads gets an error instead of a child.
pub fn fork_into(namespaces: Namespaces, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Side> {
    debug_assert!(is_single_threaded(), "only a single-threaded process may fork");
    let mut pidfd: i32 = -1;
    let mut args = CloneArgs {
        flags: namespaces.0 | CLONE_PIDFD,
        pidfd: (&raw mut pidfd) as u64,
        exit_signal: libc::SIGCHLD as u64,
        ..Default::default()
    };
    if let Some(cgroup) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = cgroup.as_raw_fd() as u64;
    }
    // SAFETY: without CLONE_VM this is a fork: the child gets a copy of the whole address space and of this stack. The
    // arguments outlive the call, and the process is single-threaded, so the copy is consistent.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of::<CloneArgs>()) };
    match pid {
        0 => Ok(Side::Child),
        1.. => {
            let pid = Pid::from_raw(pid as i32).expect("a child's pid is positive");
            // SAFETY: the kernel stored a new descriptor there that nobody else owns.
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            Ok(Side::Parent { pid, pidfd })
        }
        _ => Err(io::Error::last_os_error()),
    }
}

/// Carries out `work` in a child that shares the caller's memory while the caller waits, and returns when that child
/// ended. What `work` does to its own credentials, root or limits does not touch the caller.
///
/// `work` must not start threads, unwind or keep anything for later: only its writes to memory remain.
pub fn in_child(work: &mut dyn FnMut()) -> io::Result<()> {
    extern "C" fn run(work: *mut libc::c_void) -> libc::c_int {
        // SAFETY: `work` is the pointer that `in_child` passes below; it outlives this child, which ends before the
        // caller goes on.
        let work = unsafe { &mut *work.cast::<&mut dyn FnMut()>() };
        work();
        0
    }
    let stack = Stack::new()?;
    let mut work = work;
    let flags = libc::CLONE_VM | libc::CLONE_VFORK;
    // SAFETY: the child has its own stack, which lives until the call returns, and CLONE_VFORK suspends this thread
    // until the child ended, so memory is used by one of them at a time.
    let pid = unsafe { libc::clone(run, stack.top(), flags, (&raw mut work).cast()) };
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    reap_clone_child(pid)
}

/// Calls `visit` with a descriptor of a child that waits in new namespaces, and ends the child. It is for taking hold of
/// the namespaces, which live as long as somebody is in them or has them open.
///
/// The child shares the caller's memory, which saves copying it, and touches none of it but a stack of its own.
pub fn visit_child_in<T>(namespaces: Namespaces, visit: impl FnOnce(BorrowedFd<'_>) -> T) -> io::Result<T> {
    extern "C" fn wait(maker: *mut libc::c_void) -> libc::c_int {
        // It must not outlive a maker that is killed.
        let told = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
        if told.is_err() || Pid::as_raw(rustix::process::getppid()) as usize != maker.addr() {
            return 1;
        }
        loop {
            rustix::event::pause();
        }
    }
    let maker = std::ptr::without_provenance_mut(Pid::as_raw(Some(rustix::process::getpid())) as usize);
    let stack = Stack::new()?;
    let mut pidfd: i32 = -1;
    let nowhere = std::ptr::null_mut::<libc::c_void>();
    let flags = namespaces.0 as libc::c_int | libc::CLONE_VM | libc::CLONE_PIDFD;
    // SAFETY: the child runs on a stack of its own, which lives until the child was reaped below, and writes to nothing
    // else; the kernel writes the descriptor before the call returns.
    let pid = unsafe { libc::clone(wait, stack.top(), flags, maker, &raw mut pidfd, nowhere, nowhere) };
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel stored a new descriptor there that nobody else owns.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    let visited = visit(pidfd.as_fd());
    // SAFETY: touches no memory; the child was not reaped yet, so the number is still its own.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    reap_clone_child(pid)?;
    Ok(visited)
}

/// The stack of a child that shares the caller's memory. It is mapped and not allocated: an allocator would keep what
/// was touched once, and a process that does this once would be larger for the rest of its life.
struct Stack {
    base: *mut libc::c_void,
}

impl Stack {
    const SIZE: usize = 64 * 1024;

    fn new() -> io::Result<Self> {
        let (readable, private) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at a place that the kernel chooses touches no memory that is in use.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), Self::SIZE, readable, private, -1, 0) };
        if base == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(Self { base }) }
    }

    /// Stacks grow downwards.
    fn top(&self) -> *mut libc::c_void {
        self.base.wrapping_byte_add(Self::SIZE)
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and the child that used it has been reaped.
        unsafe { libc::munmap(self.base, Self::SIZE) };
    }
}

/// Without an exit signal a child is a "clone child": it is reaped only with __WCLONE, so that a loop that reaps
/// ordinary children never sees it.
fn reap_clone_child(pid: libc::pid_t) -> io::Result<()> {
    // SAFETY: a null status pointer is allowed.
    let reaped = unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::__WCLONE) };
    if reaped < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn is_single_threaded() -> bool {
    std::fs::read_dir("/proc/self/task").is_ok_and(|tasks| tasks.count() == 1)
        || !std::path::Path::new("/proc/self/task").exists()
}

/// Puts the calling process into new namespaces.
pub fn unshare(namespaces: Namespaces) -> io::Result<()> {
    // SAFETY: namespaces do not touch memory or descriptors.
    let done = unsafe { libc::unshare(namespaces.0 as libc::c_int) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
