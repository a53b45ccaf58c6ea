//! Talking to the kernel, and attacks on the kernel itself.

#![allow(
    unsafe_code,
    reason = "attacks need system calls that no library offers, with arguments that none would pass"
)]
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "this module is one exception, explained at its three blocks"
)]

use std::ffi::CString;
use std::io;

use crate::Outcome;

/// Makes any system call.
///
/// What the kernel does with the arguments is the attack's business: it passes addresses of its own memory, which live
/// until the call returns, or numbers.
pub(crate) fn call(number: libc::c_long, arguments: &[usize]) -> Result<i64, i32> {
    let mut six = [0; 6];
    six[..arguments.len()].copy_from_slice(arguments);
    // SAFETY: see above; nothing here depends on memory that the kernel could change behind the compiler's back,
    // because results are read from buffers whose addresses escaped.
    let done = unsafe { libc::syscall(number, six[0], six[1], six[2], six[3], six[4], six[5]) };
    if done < 0 { Err(errno()) } else { Ok(done) }
}

/// A system call of the 32-bit world, as old programs make it.
pub(crate) fn call_32_bit(number: u32) -> u32 {
    let answer: u32;
    // SAFETY: the call takes no pointer. The registers that the other calling convention uses are named.
    unsafe {
        std::arch::asm!(
            "push rbx", "xor ebx, ebx", "int 0x80", "pop rbx",
            inlateout("eax") number => answer, in("ecx") 0, in("edx") 0,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _,
        );
    }
    answer
}

/// Forks. The child runs `act`, whose value becomes its exit code.
pub(crate) fn fork(act: impl FnOnce() -> i32) -> Result<i32, i32> {
    // SAFETY: this program has one thread wherever it forks, so that the child has a whole world.
    match unsafe { libc::fork() } {
        -1 => Err(errno()),
        0 => {
            let code = act();
            let _ = call(libc::SYS_exit_group, &[code as usize]);
            unreachable!("nobody returns from exit_group")
        }
        pid => Ok(pid),
    }
}

/// Waits for a child and returns its raw status.
pub(crate) fn wait(pid: i32) -> Result<i32, i32> {
    let mut status = 0i32;
    call(libc::SYS_wait4, &[pid as usize, (&raw mut status) as usize, 0, 0])?;
    Ok(std::hint::black_box(status))
}

pub(crate) fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

pub(crate) fn text(text: &str) -> CString {
    CString::new(text).expect("attacks name no path with a zero")
}

pub(crate) fn address<T>(of: &T) -> usize {
    std::ptr::from_ref(of) as usize
}

pub(crate) fn done(outcome: Result<i64, i32>) -> Outcome {
    outcome.map(|value| value.to_string())
}

/// The first call that is not refused, or the error number of the last.
fn first_gain(calls: &[(libc::c_long, &[usize])]) -> Outcome {
    let mut last = 0;
    for (number, arguments) in calls {
        match call(*number, arguments) {
            Ok(value) => return Ok(format!("call {number} returned {value}")),
            Err(libc::EPERM) => last = libc::EPERM,
            // Anything but a plain refusal means that the kernel looked at the arguments.
            Err(errno) => return Ok(format!("call {number} was reached: errno {errno}")),
        }
    }
    Err(last)
}

pub(crate) fn attack(name: &str, arguments: &[&str]) -> Option<Outcome> {
    Some(match name {
        "bpf-map" => {
            let attributes: [u32; 16] = [2, 4, 4, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            done(call(libc::SYS_bpf, &[0, address(&attributes), 64]))
        }
        "perf" => {
            let mut attributes = [0u32; 32];
            // A software clock of this very process: the least that can be asked for.
            (attributes[0], attributes[1]) = (1, 128);
            done(call(libc::SYS_perf_event_open, &[address(&attributes), 0, usize::MAX, usize::MAX, 0]))
        }
        "io-uring" => {
            let parameters = [0u32; 30];
            first_gain(&[
                (libc::SYS_io_uring_setup, &[4, address(&parameters)]),
                (libc::SYS_io_uring_enter, &[0, 1, 0, 0, 0, 0]),
                (libc::SYS_io_uring_register, &[0, 0, 0, 0]),
            ])
        }
        "userfaultfd" => done(call(libc::SYS_userfaultfd, &[1])),
        "keys" => {
            let (kind, description, payload) = (text("user"), text("intruder"), *b"secret");
            first_gain(&[
                (
                    libc::SYS_add_key,
                    &[
                        kind.as_ptr() as usize,
                        description.as_ptr() as usize,
                        address(&payload),
                        6,
                        (-3i32) as usize,
                    ],
                ),
                (libc::SYS_request_key, &[kind.as_ptr() as usize, description.as_ptr() as usize, 0, 0]),
                (libc::SYS_keyctl, &[0, (-4i32) as usize, 1]),
            ])
        }
        "kexec" => first_gain(&[
            (libc::SYS_kexec_load, &[0, 0, 0, 0]),
            (libc::SYS_kexec_file_load, &[0, 0, 0, 0, 0]),
        ]),
        "modules" => {
            let (image, options, victim) = (*b"\x7fELF not a module", text(""), text("intruder_module"));
            first_gain(&[
                (libc::SYS_init_module, &[address(&image), image.len(), options.as_ptr() as usize]),
                (libc::SYS_finit_module, &[0, options.as_ptr() as usize, 0]),
                (libc::SYS_delete_module, &[victim.as_ptr() as usize, libc::O_NONBLOCK as usize]),
            ])
        }
        "clock" => {
            let mut now = [0i64; 2];
            let _ = call(libc::SYS_clock_gettime, &[libc::CLOCK_REALTIME as usize, (&raw mut now) as usize]);
            let now = std::hint::black_box(now);
            let time = [now[0], now[1] / 1000];
            let mut adjustment = [0u8; 256];
            // ADJ_TICK of the value that it has anyway.
            adjustment[0..4].copy_from_slice(&0x4000u32.to_ne_bytes());
            first_gain(&[
                (libc::SYS_clock_settime, &[libc::CLOCK_REALTIME as usize, address(&now)]),
                (libc::SYS_settimeofday, &[address(&time), 0]),
                (libc::SYS_adjtimex, &[address(&adjustment)]),
                (libc::SYS_clock_adjtime, &[0, address(&adjustment)]),
            ])
        }
        "hostname" => {
            let name = *b"taken-over";
            first_gain(&[
                (libc::SYS_sethostname, &[address(&name), name.len()]),
                (libc::SYS_setdomainname, &[address(&name), name.len()]),
            ])
        }
        // Switches the reaction to Ctrl-Alt-Del; on a host where it worked it would do nothing else.
        "reboot" => done(call(libc::SYS_reboot, &[0xfee1_dead, 672_274_793, 0])),
        "ports" => first_gain(&[(libc::SYS_iopl, &[3]), (libc::SYS_ioperm, &[0x80, 1, 1])]),
        "accounting" => {
            let file = text("/tmp/accounting");
            let _ = std::fs::write("/tmp/accounting", "");
            done(call(libc::SYS_acct, &[file.as_ptr() as usize]))
        }
        "swap" => {
            let file = text("/tmp/swap");
            let _ = std::fs::write("/tmp/swap", [0; 8192]);
            first_gain(&[
                (libc::SYS_swapon, &[file.as_ptr() as usize, 0]),
                (libc::SYS_swapoff, &[file.as_ptr() as usize]),
            ])
        }
        "quota" => first_gain(&[
            (libc::SYS_quotactl, &[0x0080_0001, 0, 0, 0]),
            (libc::SYS_quotactl_fd, &[0, 0x0080_0001, 0, 0]),
        ]),
        "kernel-log" => {
            let buffer = [0u8; 64];
            done(call(libc::SYS_syslog, &[3, address(&buffer), 64]))
        }
        "numa" => first_gain(&[
            (libc::SYS_mbind, &[0, 0, 0, 0, 0, 0]),
            (libc::SYS_migrate_pages, &[0, 0, 0, 0]),
            (libc::SYS_move_pages, &[0, 0, 0, 0, 0, 0]),
            (libc::SYS_set_mempolicy, &[0, 0, 0]),
        ]),
        "ldt" => {
            let buffer = [0u8; 64];
            done(call(libc::SYS_modify_ldt, &[0, address(&buffer), 64]))
        }
        "relics" => first_gain(&[
            (libc::SYS_uselib, &[0]),
            (libc::SYS_ustat, &[0, 0]),
            (libc::SYS_sysfs, &[3]),
            (libc::SYS_vhangup, &[]),
            (libc::SYS_lookup_dcookie, &[0, 0, 0]),
        ]),
        "fanotify" => {
            first_gain(&[(libc::SYS_fanotify_init, &[0, 0]), (libc::SYS_fanotify_mark, &[0, 1, 2, 0, 0])])
        }
        "x32-call" => done(call(0x4000_0000 | libc::SYS_getpid, &[])),
        "32-bit-call" => Ok(call_32_bit(20).to_string()),
        "future-calls" => {
            let reached: Vec<String> = (470..600)
                .filter_map(|number| match call(number, &[]) {
                    Err(libc::ENOSYS) => None,
                    other => Some(format!("{number}: {other:?}")),
                })
                .collect();
            if reached.is_empty() { Err(libc::ENOSYS) } else { Ok(reached.join(", ")) }
        }
        "personality" => {
            // No randomisation of addresses, and the oldest memory layout.
            done(call(libc::SYS_personality, &[0x0040_0000 | 0x0020_0000]))
        }
        "stack-filters" => stack_filters(arguments),
        "landlock" => {
            let attributes: [u64; 1] = [1 << 1];
            let rules = call(libc::SYS_landlock_create_ruleset, &[address(&attributes), 8, 0]);
            if let Ok(rules) = rules {
                let _ = call(libc::SYS_landlock_restrict_self, &[rules as usize, 0]);
            }
            crate::mounts::attack("mount-tmpfs", &["/workspace"])?
        }
        "clear-no-new-privs" => {
            let cleared = call(libc::SYS_prctl, &[libc::PR_SET_NO_NEW_PRIVS as usize, 0, 0, 0, 0]);
            match call(libc::SYS_prctl, &[libc::PR_GET_NO_NEW_PRIVS as usize, 0, 0, 0, 0]) {
                Ok(0) => Ok("cleared".into()),
                _ => Err(cleared.err().unwrap_or(0)),
            }
        }
        _ => return None,
    })
}

/// Installs a filter of its own that answers every call with the given verdict, and then tries to mount.
fn stack_filters(arguments: &[&str]) -> Outcome {
    let verdict: u32 = match arguments {
        ["allow"] => 0x7fff_0000,
        // Without a tracer the kernel answers ENOSYS, unless an older filter said something stronger.
        ["trace-mount"] => 0x7ff0_0000,
        _ => return Err(libc::EINVAL),
    };
    #[repr(C)]
    struct Program {
        length: u16,
        instructions: usize,
    }
    let instruction = |code: u64, operand: u32| code | u64::from(operand) << 32;
    let instructions: Vec<u64> = match arguments {
        ["allow"] => vec![instruction(0x06, verdict)],
        _ => vec![
            instruction(0x20, 0),
            // mount, or one instruction further.
            instruction(0x15 | 1 << 24, libc::SYS_mount as u32),
            instruction(0x06, verdict),
            instruction(0x06, 0x7fff_0000),
        ],
    };
    let program = Program { length: instructions.len() as u16, instructions: instructions.as_ptr() as usize };
    call(libc::SYS_seccomp, &[1, 0, address(&program)])?;
    std::hint::black_box(program.length);
    match crate::mounts::attack("mount-tmpfs", &["/workspace"]) {
        Some(outcome) => outcome,
        None => Err(libc::EINVAL),
    }
}
