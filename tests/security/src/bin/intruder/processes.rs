//! Attacks on other processes, on pid 1 above all, and on what ends processes.

use std::io::Write;
use std::os::fd::AsRawFd;

use crate::Outcome;
use crate::kernel::{address, call, done, fork, text, wait};

const LOCKS: usize = 10;

pub(crate) fn attack(name: &str, arguments: &[&str]) -> Option<Outcome> {
    Some(match (name, arguments) {
        ("trace", [pid]) => {
            let pid: usize = pid.parse().ok()?;
            const ATTACH: usize = 16;
            const SEIZE: usize = 0x4206;
            match call(libc::SYS_ptrace, &[SEIZE, pid, 0, 0]) {
                Ok(_) => Ok("seized".into()),
                Err(_) => done(call(libc::SYS_ptrace, &[ATTACH, pid, 0, 0])),
            }
        }
        ("trace-own-child", []) => with_child(|child| done(call(libc::SYS_ptrace, &[16, child, 0, 0]))),
        ("be-traced", []) => done(call(libc::SYS_ptrace, &[0, 0, 0, 0])),
        ("other-memory", [pid]) => other_memory(pid.parse().ok()?),
        ("own-child-memory", []) => with_child(other_memory),
        ("take-descriptor", [pid]) => {
            let pid: usize = pid.parse().ok()?;
            match call(libc::SYS_pidfd_open, &[pid, 0]) {
                Ok(process) => {
                    let taken = (0..16)
                        .find(|number| call(libc::SYS_pidfd_getfd, &[process as usize, *number, 0]).is_ok());
                    taken.map(|number| number.to_string()).ok_or(libc::EPERM)
                }
                Err(errno) => Err(errno),
            }
        }
        ("compare", [pid]) => {
            let own = std::process::id() as usize;
            done(call(libc::SYS_kcmp, &[own, pid.parse().ok()?, 0, 0, 0]))
        }
        ("advise", []) => done(call(libc::SYS_process_madvise, &[0, 0, 0, 0, 0])),
        ("signal-all-kinds", [pid]) => {
            let pid: usize = pid.parse().ok()?;
            let accepted = (1..=64usize)
                .filter(|signal| {
                    let info = [0u32; 32];
                    let plain = call(libc::SYS_kill, &[pid, *signal]).is_ok();
                    let thread = call(libc::SYS_tgkill, &[pid, pid, *signal]).is_ok();
                    let queued = call(libc::SYS_rt_sigqueueinfo, &[pid, *signal, address(&info)]).is_ok();
                    let by_descriptor = call(libc::SYS_pidfd_open, &[pid, 0])
                        .and_then(|process| {
                            let sent = call(libc::SYS_pidfd_send_signal, &[process as usize, *signal, 0, 0]);
                            let _ = call(libc::SYS_close, &[process as usize]);
                            sent
                        })
                        .is_ok();
                    plain || thread || queued || by_descriptor
                })
                .count();
            if accepted == 0 { Err(libc::EPERM) } else { Ok(accepted.to_string()) }
        }
        ("signal", [pid, signal]) => {
            let pid: i32 = pid.parse().ok()?;
            done(call(libc::SYS_kill, &[pid as usize, signal.parse().ok()?]))
        }
        ("open-process", [pid]) => done(call(libc::SYS_pidfd_open, &[pid.parse().ok()?, 0])),
        ("limits-of", [pid]) => {
            let pid: usize = pid.parse().ok()?;
            let none: [u64; 2] = [0, 0];
            // Files, processor time, descriptors, processes: each would blind or end the one it is set for.
            let resources = [("fsize", 1), ("nofile", 7), ("nproc", 6), ("as", 9)];
            let set = resources
                .iter()
                .find(|(_, number)| call(libc::SYS_prlimit64, &[pid, *number, address(&none), 0]).is_ok());
            set.map(|(name, _)| (*name).into()).ok_or(libc::EPERM)
        }
        ("priority-of", [pid]) => {
            let pid: usize = pid.parse().ok()?;
            let none = [0u32; 1];
            let idle = 5;
            let changes = [
                ("nice", call(libc::SYS_setpriority, &[0, pid, 19])),
                ("policy", call(libc::SYS_sched_setscheduler, &[pid, idle, address(&none)])),
                ("io", call(libc::SYS_ioprio_set, &[1, pid, 3 << 13])),
            ];
            let changed: Vec<&str> =
                changes.iter().filter(|(_, done)| done.is_ok()).map(|(name, _)| *name).collect();
            if changed.is_empty() { Err(libc::EPERM) } else { Ok(changed.join(", ")) }
        }
        ("own-priority", []) => {
            let first = [1u32; 1];
            let changes = [
                ("nice", call(libc::SYS_setpriority, &[0, 0, (-20i32) as usize])),
                ("fifo", call(libc::SYS_sched_setscheduler, &[0, 1, address(&first)])),
                ("round robin", call(libc::SYS_sched_setscheduler, &[0, 2, address(&first)])),
                ("io", call(libc::SYS_ioprio_set, &[1, 0, 1 << 13])),
            ];
            let changed: Vec<&str> =
                changes.iter().filter(|(_, done)| done.is_ok()).map(|(name, _)| *name).collect();
            if changed.is_empty() { Err(libc::EPERM) } else { Ok(changed.join(", ")) }
        }
        ("change-tag", []) => change_tag(),
        ("raise-limits", []) => {
            let most = [u64::MAX, u64::MAX];
            let raised: Vec<String> = [
                ("nofile", 7usize),
                ("core", 4),
                ("memlock", 8),
                ("rtprio", 14),
                ("nice", 13),
                ("msgqueue", 12),
            ]
            .iter()
            .filter(|(_, number)| {
                call(libc::SYS_prlimit64, &[0, *number, address(&most), 0]).is_ok()
                    || call(libc::SYS_setrlimit, &[*number, address(&most)]).is_ok()
            })
            .map(|(name, _)| (*name).to_owned())
            .collect();
            if raised.is_empty() { Err(libc::EPERM) } else { Ok(raised.join(", ")) }
        }
        ("lock-memory", [bytes]) => {
            let memory = vec![1u8; bytes.parse().ok()?];
            done(call(libc::SYS_mlock, &[memory.as_ptr() as usize, memory.len()]))
        }
        // A child that crashes: whether the kernel says that it dumped its memory somewhere.
        ("crash", [directory]) => {
            let _ = std::env::set_current_dir(directory);
            let child = fork(|| {
                let _ = call(libc::SYS_kill, &[std::process::id() as usize, libc::SIGQUIT as usize]);
                0
            });
            match child.and_then(wait) {
                Ok(status) if libc::WCOREDUMP(status) => Ok("dumped".into()),
                Ok(status) if libc::WIFSIGNALED(status) => Err(libc::EPERM),
                Ok(status) => Ok(format!("did not crash: {status}")),
                Err(errno) => Ok(format!("not started: {errno}")),
            }
        }
        ("daemon", [_token]) => {
            daemonise();
            Ok("started".into())
        }
        // Does what shells do in the background, but as a child of this program's parent.
        ("sibling", [_token]) => {
            let flags = (libc::CLONE_PARENT | libc::SIGCHLD) as usize;
            match call(libc::SYS_clone, &[flags, 0, 0, 0, 0]) {
                Ok(0) => live_on(),
                other => {
                    std::thread::sleep(std::time::Duration::from_secs(60));
                    done(other)
                }
            }
        }
        // The first thread ends and another one stays: the process then looks dead to a careless look at /proc.
        ("headless", [_token]) => {
            std::thread::spawn(live_on::<()>);
            let _ = call(libc::SYS_exit, &[0]);
            Err(0)
        }
        ("stop-everybody", []) => {
            let _ = std::io::stdout().write_all(b"begun\n");
            let _ = std::io::stdout().flush();
            ignore_polite_signals();
            loop {
                let _ = call(libc::SYS_kill, &[usize::MAX, libc::SIGSTOP as usize]);
            }
        }
        ("freeze-file-threads", []) => {
            let tasks = std::fs::read_dir("/proc/1/task").map(|tasks| tasks.count());
            match tasks {
                Ok(count) => Ok(count.to_string()),
                Err(error) => Err(error.raw_os_error().unwrap_or(0)),
            }
        }
        ("descriptors", []) => {
            let own = std::fs::File::open("/proc/self/fd").map(|directory| directory.as_raw_fd());
            let mut found: Vec<String> = (0..1024)
                .filter(|number| Ok(*number) != own.as_ref().map(|fd| *fd as usize).map_err(|_| ()))
                .filter_map(|number| {
                    let target = std::fs::read_link(format!("/proc/self/fd/{number}")).ok()?;
                    Some(format!("{number}={}", target.display()))
                })
                .collect();
            found.sort();
            Ok(found.join(" "))
        }
        _ => return None,
    })
}

fn with_child(act: impl FnOnce(usize) -> Outcome) -> Outcome {
    let child = fork(|| {
        std::thread::sleep(std::time::Duration::from_secs(20));
        0
    })?;
    let outcome = act(child as usize);
    let _ = call(libc::SYS_kill, &[child as usize, libc::SIGKILL as usize]);
    let _ = wait(child);
    outcome
}

fn other_memory(pid: usize) -> Outcome {
    let mut buffer = [0u8; 16];
    let here = [(&raw mut buffer) as usize, 16];
    // An address that both programs have, when they are the same one.
    let there = [address(&HERE), 16];
    let calls = [libc::SYS_process_vm_readv, libc::SYS_process_vm_writev];
    let reached = calls
        .iter()
        .find(|number| call(**number, &[pid, address(&here), 1, address(&there), 1, 0]) != Err(libc::EPERM));
    std::hint::black_box(buffer);
    reached.map(|number| number.to_string()).ok_or(libc::EPERM)
}

static HERE: [u8; 16] = [7; 16];

fn tag() -> String {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    limits.lines().find(|line| line.starts_with("Max file locks")).unwrap_or_default().to_owned()
}

fn change_tag() -> Outcome {
    let before = tag();
    let parent = std::os::unix::process::parent_id() as usize;
    let mut accepted = Vec::new();
    for value in [[0u64, 0], [1, 1], [0, u64::MAX], [u64::MAX, u64::MAX]] {
        let value = address(&value);
        let own = std::process::id() as usize;
        let tries = [
            call(libc::SYS_setrlimit, &[LOCKS, value]),
            call(libc::SYS_setrlimit, &[LOCKS | 1 << 32, value]),
            call(libc::SYS_prlimit64, &[0, LOCKS, value, 0]),
            call(libc::SYS_prlimit64, &[own, LOCKS, value, 0, 0, 0]),
            call(libc::SYS_prlimit64, &[0, LOCKS | 1 << 32, value, 0]),
            call(libc::SYS_prlimit64, &[parent, LOCKS, value, 0]),
            call(libc::SYS_prlimit64, &[0, LOCKS, value, 0, usize::MAX, usize::MAX]),
        ];
        accepted
            .extend(tries.iter().enumerate().filter(|(_, done)| done.is_ok()).map(|(at, _)| at.to_string()));
    }
    let after = tag();
    if accepted.is_empty() && before == after {
        Err(libc::EPERM)
    } else {
        Ok(format!("{accepted:?}: {before} → {after}"))
    }
}

fn ignore_polite_signals() {
    // The kernel's form: handler, flags, restorer, mask. Handler 1 is to ignore.
    let ignore: [u64; 4] = [1, 0, 0, 0];
    for signal in [libc::SIGTERM, libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGPIPE] {
        let _ = call(libc::SYS_rt_sigaction, &[signal as usize, address(&ignore), 0, 8]);
    }
}

fn live_on<T>() -> T {
    ignore_polite_signals();
    loop {
        std::thread::sleep(std::time::Duration::from_secs(1));
    }
}

/// Forks twice, with a session of its own between, another name and no descriptor left.
fn daemonise() {
    let _ = fork(|| {
        let _ = call(libc::SYS_setsid, &[]);
        let _ = fork(|| {
            let _ = call(libc::SYS_setsid, &[]);
            let name = text("kworker/0:1");
            let _ = call(libc::SYS_prctl, &[libc::PR_SET_NAME as usize, name.as_ptr() as usize, 0, 0, 0]);
            let _ = call(libc::SYS_close_range, &[0, u32::MAX as usize, 0]);
            let _ = std::env::set_current_dir("/");
            live_on()
        });
        0
    })
    .and_then(wait);
}
