//! Follows a process tree from one system call to the next and kills one of its processes at a chosen one.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs;
use std::io::Write;
use std::process::Child;

use nix::errno::Errno;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// What a process is in the making of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Role {
    Caller,
    Launcher,
    /// Builds the root that sandboxes share.
    Builder,
    /// From its first moment on, when it is an embryo that nobody has asked for.
    Pid1,
    /// Whatever runs inside; nobody here kills it.
    Workload,
}

/// Where to kill: just before the `nth` system call of a role, counted from 1, of all or of one kind.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Point {
    pub(crate) role: Role,
    pub(crate) call: Option<u64>,
    pub(crate) nth: usize,
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.call {
            Some(call) => write!(f, "{:?} before its system call {call}, time {}", self.role, self.nth),
            None => write!(f, "{:?} before its system call number {}", self.role, self.nth),
        }
    }
}

/// What became of a traced tree.
#[derive(Debug)]
pub(crate) enum Traced {
    /// The point was reached and the process killed. The rest of the tree runs on, untraced.
    Killed,
    /// The first process ended before the point was reached. How many calls each role had made by then.
    Ended { calls: BTreeMap<Role, usize> },
}

/// The shell command that a tree begins with: it waits for a line, so that it can be followed from its first call on.
pub(crate) const GATE: &str = r#"read _ && exec "$@""#;

/// Follows what was started behind the gate with its input piped. Must be called in the thread that started it: the
/// kernel reports to that thread, and lets go of everything when it ends.
pub(crate) fn trace(child: &mut Child, point: Option<Point>) -> Traced {
    let first = Pid::from_raw(child.id() as i32);
    let options = Options::PTRACE_O_TRACESYSGOOD
        | Options::PTRACE_O_TRACECLONE
        | Options::PTRACE_O_TRACEFORK
        | Options::PTRACE_O_TRACEVFORK
        | Options::PTRACE_O_TRACEEXEC;
    ptrace::seize(first, options).expect("a child may be traced");
    ptrace::interrupt(first).expect("the child waits at the gate");
    let mut gate = child.stdin.take().expect("the input is piped");
    gate.write_all(b"\n").expect("the child waits at the gate");
    drop(gate);

    let mut tree = Tree::default();
    loop {
        let flags = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
        match waitpid(None, Some(flags)) {
            Ok(WaitStatus::PtraceSyscall(pid)) => {
                if let Some(at) = tree.count(pid)
                    && point.is_some_and(|point| at.is(point))
                {
                    // What it is killed before does not happen any more.
                    kill(pid, Signal::SIGKILL).expect("the process is stopped");
                    return Traced::Killed;
                }
                go_on(pid, None);
            }
            Ok(WaitStatus::PtraceEvent(pid, _, _)) => {
                tree.forget_role(pid);
                go_on(pid, None);
            }
            Ok(WaitStatus::Stopped(pid, signal)) => go_on(pid, Some(signal)),
            Ok(WaitStatus::Exited(pid, _) | WaitStatus::Signaled(pid, ..)) if pid == first => {
                return Traced::Ended { calls: tree.calls };
            }
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => panic!("the tree got lost: {error}"),
        }
    }
}

/// A process may be killed by others while it is stopped.
fn go_on(pid: Pid, signal: Option<Signal>) {
    match ptrace::syscall(pid, signal) {
        Ok(()) | Err(Errno::ESRCH) => {}
        Err(error) => panic!("process {pid} cannot go on: {error}"),
    }
}

#[derive(Debug, Default)]
struct Tree {
    roles: HashMap<Pid, Role>,
    calls: BTreeMap<Role, usize>,
    kinds: HashMap<(Role, u64), usize>,
}

/// One system call that is about to be made.
struct At {
    role: Role,
    call: u64,
    nth: usize,
    nth_of_its_kind: usize,
}

impl At {
    fn is(&self, point: Point) -> bool {
        self.role == point.role
            && match point.call {
                Some(call) => self.call == call && self.nth_of_its_kind == point.nth,
                None => self.nth == point.nth,
            }
    }
}

impl Tree {
    /// `None` where a call returns, or its process is gone.
    fn count(&mut self, pid: Pid) -> Option<At> {
        let entry = ptrace::syscall_info(pid).ok()?.op == nix::libc::PTRACE_SYSCALL_INFO_ENTRY;
        let call = ptrace::getregs(pid).ok()?.orig_rax;
        let role = match self.roles.get(&pid) {
            Some(role) => *role,
            None => *self.roles.entry(pid).or_insert(role_of(pid)?),
        };
        if !entry {
            return None;
        }
        let nth = self.calls.entry(role).or_default();
        *nth += 1;
        let of_its_kind = self.kinds.entry((role, call)).or_default();
        *of_its_kind += 1;
        Some(At { role, call, nth: *nth, nth_of_its_kind: *of_its_kind })
    }

    /// Another program, or another process under a number that was used before.
    fn forget_role(&mut self, pid: Pid) {
        self.roles.remove(&pid);
    }
}

fn role_of(pid: Pid) -> Option<Role> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let inner: Vec<&str> = field("NSpid:")?.split_whitespace().skip(1).collect();
    match inner.last() {
        Some(&"1") => return Some(Role::Pid1),
        Some(_) => return Some(Role::Workload),
        None => {}
    }
    if !is_launcher(field("Tgid:")?) {
        return Some(Role::Caller);
    }
    Some(if is_launcher(field("PPid:")?) { Role::Builder } else { Role::Launcher })
}

fn is_launcher(pid: &str) -> bool {
    fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(b"cubicle-launcher\0"))
}
