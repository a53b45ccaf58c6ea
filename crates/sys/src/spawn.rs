//! Starting a program and reaping it.
//!
//! The child shares the caller's memory until it runs the program, so starting one costs the same whatever the caller's
//! size is. Everything it needs is prepared before; the child itself only makes system calls.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use rustix::process::{Gid, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets};

/// A list of strings in the form that `execve` takes.
#[derive(Debug)]
pub struct Strings {
    /// The strings, each with its terminating zero. Never changed, because the pointers point into it.
    _bytes: Vec<u8>,
    pointers: Vec<*const c_char>,
}

impl Strings {
    /// Strings must not contain a zero; one that does ends there.
    pub fn new<'a>(strings: impl Iterator<Item = &'a [u8]> + Clone) -> Self {
        let mut bytes = Vec::with_capacity(strings.clone().map(|string| string.len() + 1).sum());
        let mut starts = Vec::new();
        for string in strings {
            starts.push(bytes.len());
            bytes.extend_from_slice(string);
            bytes.push(0);
        }
        let base = bytes.as_ptr();
        let mut pointers: Vec<*const c_char> =
            starts.into_iter().map(|start| base.wrapping_add(start).cast()).collect();
        pointers.push(std::ptr::null());
        Self { _bytes: bytes, pointers }
    }
}

/// What to run.
#[derive(Debug, Clone, Copy)]
pub enum Program<'a> {
    /// The first of these that exists. A relative one is taken from the working directory.
    FirstOf(&'a [&'a CStr]),
    /// This open file.
    File(BorrowedFd<'a>),
}

/// The user a program runs as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ids {
    pub uid: u32,
    pub gid: u32,
}

#[derive(Debug)]
pub struct Spawn<'a> {
    pub program: Program<'a>,
    pub arguments: &'a Strings,
    pub environment: &'a Strings,
    pub working_directory: &'a CStr,
    pub stdio: [BorrowedFd<'a>; 3],
    /// Whether standard input becomes the controlling terminal.
    pub has_terminal: bool,
    /// Absent: the caller's own, with the caller's capabilities.
    pub ids: Option<Ids>,
    pub tag: Option<Tag>,
}

/// A mark that descendants inherit and cannot change: the limit on file locks, which the kernel has not read since
/// Linux 2.4.25.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tag {
    pub value: u64,
    pub permit: Permit,
}

/// What lets a call through a filter that refuses to change tags: two numbers in arguments that the call itself does
/// not use. The filter and the process that tags know them; a program that was started does not, because nothing of
/// its maker's memory or registers is left when it runs.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Permit(pub [u64; 2]);

impl std::fmt::Debug for Permit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Permit(…)")
    }
}

/// What the child was doing when it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Clone,
    Session,
    Terminal,
    Stdio,
    Tag,
    Identity,
    WorkingDirectory,
    /// Running the program: the error of the last candidate that exists, or that none does.
    Execute,
    /// The child was killed before it ran the program.
    Killed,
}

#[derive(Debug)]
pub struct SpawnError {
    pub step: Step,
    pub error: io::Error,
}

/// How long a child may take until it runs its program. It is ended then, because the caller waits for it, and a
/// process of the same user may have stopped it.
const PATIENCE_SECONDS: i64 = 5;
const STACK: usize = 16 * 1024;

/// The child's view: numbers and pointers only.
struct Plan<'a> {
    spawn: &'a Spawn<'a>,
    failed: Option<(Step, i32)>,
    began: bool,
}

/// Starts a program and returns its pid. All signals must be blocked in the calling thread and none ignored: the child
/// unblocks them and has the default actions.
pub fn spawn(spawn: &Spawn<'_>) -> Result<i32, SpawnError> {
    extern "C" fn run(plan: *mut c_void) -> c_int {
        // SAFETY: this is the pointer to the plan in `spawn`'s frame, which waits until this child is gone.
        let plan = unsafe { &mut *plan.cast::<Plan<'_>>() };
        plan.began = true;
        plan.failed = Some(become_program(plan.spawn));
        127
    }
    let mut plan = Plan { spawn, failed: None, began: false };
    // The child's stack is a piece of ours: nothing has to be allocated for it.
    let mut stack = [const { MaybeUninit::<u128>::uninit() }; STACK / 16];
    let top = stack.as_mut_ptr_range().end;
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the child has its own stack, which lives until the call returns, and CLONE_VFORK suspends this thread
    // until the child runs a program or ends. Other threads go on; the child takes no lock and allocates nothing.
    let pid = unsafe { libc::clone(run, top.cast(), flags, (&raw mut plan).cast()) };
    if pid < 0 {
        return Err(SpawnError { step: Step::Clone, error: io::Error::last_os_error() });
    }
    // The child wrote to the plan behind the compiler's back.
    let plan = std::hint::black_box(&mut plan);
    match plan.failed {
        None if plan.began => Ok(pid),
        None => {
            reap(pid);
            Err(SpawnError { step: Step::Killed, error: io::ErrorKind::Interrupted.into() })
        }
        Some((step, errno)) => {
            reap(pid);
            Err(SpawnError { step, error: io::Error::from_raw_os_error(errno) })
        }
    }
}

/// Tags a process that is there already. Only its own user may, so that a child of this process becomes that user for it.
/// A tag can be changed only to a lower one.
pub fn tag(pid: i32, tag: Tag, ids: Option<Ids>) -> io::Result<()> {
    struct Tagging {
        pid: i32,
        tag: Tag,
        ids: Ids,
        failed: Option<i32>,
        done: bool,
    }
    extern "C" fn run(tagging: *mut c_void) -> c_int {
        // SAFETY: this is the pointer to the value in `tag`'s frame, which waits until this child is gone.
        let tagging = unsafe { &mut *tagging.cast::<Tagging>() };
        limit_own_time();
        let become_and_tag =
            || become_user(tagging.ids.uid, tagging.ids.gid).and_then(|()| set_tag(tagging.pid, tagging.tag));
        tagging.failed = become_and_tag().err();
        tagging.done = true;
        0
    }
    let Some(ids) = ids else {
        return set_tag(pid, tag).map_err(io::Error::from_raw_os_error);
    };
    let mut tagging = Tagging { pid, tag, ids, failed: None, done: false };
    let mut stack = [const { MaybeUninit::<u128>::uninit() }; STACK / 16];
    let top = stack.as_mut_ptr_range().end;
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the child has its own stack, which lives until the call returns, and CLONE_VFORK suspends this thread
    // until the child ends. Other threads go on; the child takes no lock and allocates nothing.
    let child = unsafe { libc::clone(run, top.cast(), flags, (&raw mut tagging).cast()) };
    if child < 0 {
        return Err(io::Error::last_os_error());
    }
    reap(child);
    // The child wrote to it behind the compiler's back.
    let tagging = std::hint::black_box(&mut tagging);
    match (tagging.failed, tagging.done) {
        (Some(errno), _) => Err(io::Error::from_raw_os_error(errno)),
        (None, true) => Ok(()),
        (None, false) => Err(io::ErrorKind::Interrupted.into()),
    }
}

/// Returns only when it failed.
fn become_program(spawn: &Spawn<'_>) -> (Step, i32) {
    match prepare(spawn) {
        Err(failed) => failed,
        Ok(()) => (Step::Execute, execute(spawn)),
    }
}

fn prepare(spawn: &Spawn<'_>) -> Result<(), (Step, i32)> {
    rustix::process::setsid().map_err(|error| (Step::Session, error.raw_os_error()))?;
    if spawn.has_terminal {
        rustix::process::ioctl_tiocsctty(spawn.stdio[0])
            .map_err(|error| (Step::Terminal, error.raw_os_error()))?;
    }
    arrange_stdio(spawn.stdio.map(|fd| fd.as_raw_fd())).map_err(|errno| (Step::Stdio, errno))?;
    if let Some(tag) = spawn.tag {
        set_tag(0, tag).map_err(|errno| (Step::Tag, errno))?;
    }
    if let Some(Ids { uid, gid }) = spawn.ids {
        limit_own_time();
        become_user(uid, gid).map_err(|errno| (Step::Identity, errno))?;
    }
    rustix::process::chdir(spawn.working_directory)
        .map_err(|error| (Step::WorkingDirectory, error.raw_os_error()))
}

const RLIMIT_LOCKS: c_int = 10;

/// Process 0 is the caller.
fn set_tag(pid: i32, tag: Tag) -> Result<(), i32> {
    let limit = libc::rlimit64 { rlim_cur: tag.value, rlim_max: tag.value };
    let Permit([first, second]) = tag.permit;
    let null = std::ptr::null_mut::<libc::rlimit64>();
    // SAFETY: the kernel reads one rlimit64, which lives until the call returns, and writes none.
    let status = unsafe {
        libc::syscall(libc::SYS_prlimit64, pid, RLIMIT_LOCKS, &raw const limit, null, first, second)
    };
    check(status).map(|_| ())
}

fn arrange_stdio(mut sources: [RawFd; 3]) -> Result<(), i32> {
    // A source among the targets would be overwritten before it is used.
    for source in &mut sources {
        if *source < 3 {
            // SAFETY: takes numbers only.
            let moved = unsafe { libc::syscall(libc::SYS_fcntl, *source, libc::F_DUPFD_CLOEXEC, 3) };
            *source = check(moved)? as RawFd;
        }
    }
    for (target, source) in (0..).zip(sources) {
        // SAFETY: takes numbers only; what `target` was is this child's copy.
        let placed = unsafe { libc::syscall(libc::SYS_dup3, source, target, 0) };
        check(placed)?;
    }
    // SAFETY: takes numbers only; the flag marks descriptors and closes none.
    let marked = unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    check(marked).map(|_| ())
}

/// From here on processes of the workload's user may stop this child, and the caller would wait for ever. A timer ends
/// it then; running the program deletes the timer.
fn limit_own_time() {
    let mut timer: c_int = 0;
    // SAFETY: all zero is a valid sigevent.
    let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
    event.sigev_notify = libc::SIGEV_SIGNAL;
    event.sigev_signo = libc::SIGKILL;
    // SAFETY: both pointers live until the call returns.
    let made = unsafe {
        libc::syscall(libc::SYS_timer_create, libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer)
    };
    if made < 0 {
        return;
    }
    let patience: [[i64; 2]; 2] = [[0, 0], [PATIENCE_SECONDS, 0]];
    let null = std::ptr::null_mut::<c_void>();
    // SAFETY: the kernel reads one itimerspec, two pairs of 64-bit numbers, and writes none.
    let _ = unsafe { libc::syscall(libc::SYS_timer_settime, timer, 0, patience.as_ptr(), null) };
}

fn become_user(uid: u32, gid: u32) -> Result<(), i32> {
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    let become_it = || {
        rustix::thread::set_thread_groups(&[])?;
        rustix::thread::set_thread_res_gid(gid, gid, gid)?;
        rustix::thread::set_thread_res_uid(uid, uid, uid)?;
        let none = CapabilitySet::empty();
        rustix::thread::set_capabilities(
            None,
            CapabilitySets { effective: none, permitted: none, inheritable: none },
        )
    };
    become_it().map_err(rustix::io::Errno::raw_os_error)
}

/// Returns the error when no candidate could be run.
fn execute(spawn: &Spawn<'_>) -> i32 {
    let none_blocked = 0u64;
    let null = std::ptr::null_mut::<c_void>();
    let size = size_of::<u64>();
    // SAFETY: the kernel reads a set of 64 signals and writes none.
    let _ = unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const none_blocked, null, size)
    };
    let (arguments, environment) = (spawn.arguments.pointers.as_ptr(), spawn.environment.pointers.as_ptr());
    match spawn.program {
        Program::File(file) => {
            let (file, empty) = (file.as_raw_fd(), c"".as_ptr());
            // SAFETY: the lists are null-terminated and outlive the call.
            let status = unsafe {
                libc::syscall(libc::SYS_execveat, file, empty, arguments, environment, libc::AT_EMPTY_PATH)
            };
            check(status).err().unwrap_or(0)
        }
        Program::FirstOf(candidates) => {
            let mut worst = libc::ENOENT;
            for candidate in candidates {
                // SAFETY: the lists are null-terminated and outlive the call.
                let status =
                    unsafe { libc::syscall(libc::SYS_execve, candidate.as_ptr(), arguments, environment) };
                match check(status).err().unwrap_or(0) {
                    libc::ENOENT | libc::ENOTDIR => {}
                    // A later directory may have one that can be run.
                    libc::EACCES => worst = libc::EACCES,
                    other => return other,
                }
            }
            worst
        }
    }
}

fn check(status: libc::c_long) -> Result<libc::c_long, i32> {
    if status < 0 { Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)) } else { Ok(status) }
}

/// A child that ended, as the kernel reported it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reaped {
    pub pid: i32,
    pub ended: Ended,
    pub user_us: u64,
    pub sys_us: u64,
    pub max_rss_kb: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    Code(i32),
    Signal(i32),
}

/// Reaps one child that ended, if there is one.
pub fn reap_any() -> Option<Reaped> {
    loop {
        let mut status = 0;
        // SAFETY: all zero is a valid rusage.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: both pointers live until the call returns.
        let pid = unsafe { libc::wait4(-1, &raw mut status, libc::WNOHANG, &raw mut usage) };
        if pid == 0 || (pid < 0 && io::Error::last_os_error().kind() != io::ErrorKind::Interrupted) {
            return None;
        }
        let ended = if libc::WIFEXITED(status) {
            Ended::Code(libc::WEXITSTATUS(status))
        } else if libc::WIFSIGNALED(status) {
            Ended::Signal(libc::WTERMSIG(status))
        } else {
            continue;
        };
        let micros = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
        return Some(Reaped {
            pid,
            ended,
            user_us: micros(usage.ru_utime),
            sys_us: micros(usage.ru_stime),
            max_rss_kb: usage.ru_maxrss as u64,
        });
    }
}

fn reap(pid: i32) {
    loop {
        // SAFETY: a null status pointer is allowed.
        let reaped = unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
        if reaped >= 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::AsFd;

    use super::*;

    fn wait(pid: i32) -> i32 {
        let mut status = 0;
        // SAFETY: the status pointer lives until the call returns.
        let reaped = unsafe { libc::waitpid(pid, &raw mut status, 0) };
        assert_eq!(reaped, pid);
        if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 128 + libc::WTERMSIG(status) }
    }

    fn run(
        candidates: &[&CStr],
        arguments: &[&[u8]],
        cwd: &CStr,
        stdout: BorrowedFd<'_>,
    ) -> Result<i32, SpawnError> {
        let null = File::open("/dev/null").unwrap();
        spawn(&Spawn {
            program: Program::FirstOf(candidates),
            arguments: &Strings::new(arguments.iter().copied()),
            environment: &Strings::new([&b"GREETING=hi"[..]].into_iter()),
            working_directory: cwd,
            stdio: [null.as_fd(), stdout, null.as_fd()],
            has_terminal: false,
            ids: None,
            tag: Some(Tag { value: 77, permit: Permit::default() }),
        })
    }

    #[test]
    fn a_program_runs_with_its_arguments_environment_directory_and_tag() {
        let (mut read, write) = std::io::pipe().unwrap();
        let script = &b"echo $GREETING $PWD $1; grep 'file locks' /proc/self/limits"[..];
        let pid = run(
            &[c"/nonexistent/sh", c"/bin/sh"],
            &[b"sh", b"-c", script, b"sh", b"one two"],
            c"/usr",
            write.as_fd(),
        );
        drop(write);
        let mut output = String::new();
        read.read_to_string(&mut output).unwrap();
        assert_eq!(wait(pid.unwrap()), 0);
        let (first, limits) = output.split_once('\n').unwrap();
        assert_eq!(first, "hi /usr one two");
        assert_eq!(
            limits.split_whitespace().collect::<Vec<_>>(),
            ["Max", "file", "locks", "77", "77", "locks"]
        );
    }

    #[test]
    fn a_process_that_runs_is_tagged_and_its_children_with_it() {
        let (mut read, write) = std::io::pipe().unwrap();
        let (gate, mut open_gate) = std::io::pipe().unwrap();
        let null = File::open("/dev/null").unwrap();
        let pid = spawn(&Spawn {
            program: Program::FirstOf(&[c"/bin/sh"]),
            arguments: &Strings::new(
                [&b"sh"[..], b"-c", b"read x; grep 'file locks' /proc/self/limits"].into_iter(),
            ),
            environment: &Strings::new([].into_iter()),
            working_directory: c"/",
            stdio: [gate.as_fd(), write.as_fd(), null.as_fd()],
            has_terminal: false,
            ids: None,
            tag: Some(Tag { value: 77, permit: Permit::default() }),
        })
        .unwrap();
        drop(write);
        let own = Ids { uid: rustix::process::getuid().as_raw(), gid: rustix::process::getgid().as_raw() };
        let ids = rustix::process::geteuid().is_root().then_some(own);
        tag(pid, Tag { value: 55, permit: Permit::default() }, ids).unwrap();
        std::io::Write::write_all(&mut open_gate, b"\n").unwrap();
        let mut limits = String::new();
        read.read_to_string(&mut limits).unwrap();
        assert_eq!(wait(pid), 0);
        assert!(limits.split_whitespace().eq(["Max", "file", "locks", "55", "55", "locks"]), "{limits}");
        assert!(tag(pid, Tag { value: 44, permit: Permit::default() }, ids).is_err(), "it is gone");
    }

    #[test]
    fn what_failed_is_reported_with_its_step() {
        let (_read, write) = std::io::pipe().unwrap();
        let missing = run(&[c"/nonexistent"], &[b"x"], c"/", write.as_fd()).unwrap_err();
        assert_eq!((missing.step, missing.error.kind()), (Step::Execute, io::ErrorKind::NotFound));
        let directory = run(&[c"/usr"], &[b"x"], c"/", write.as_fd()).unwrap_err();
        assert_eq!(
            (directory.step, directory.error.kind()),
            (Step::Execute, io::ErrorKind::PermissionDenied)
        );
        let nowhere = run(&[c"/bin/sh"], &[b"x"], c"/nonexistent", write.as_fd()).unwrap_err();
        assert_eq!((nowhere.step, nowhere.error.kind()), (Step::WorkingDirectory, io::ErrorKind::NotFound));
    }
}
