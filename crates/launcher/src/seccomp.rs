//! Which system calls a sandbox may make.
//!
//! Everything that a kernel of today knows is allowed unless it is refused here; numbers that kernels of tomorrow add
//! are refused as unknown. The filter is a search tree over ranges of numbers, because the kernel runs it once per
//! number when it is installed and then for every call that depends on arguments.

use cubicle_sys::seccomp::Instruction;
use cubicle_sys::spawn::Permit;

/// What the filter answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Allow,
    /// Fails with this error number.
    Refuse(i32),
    /// Depends on arguments.
    Look(Rule),
}

/// A rule over the arguments of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// `clone` without new namespaces.
    NoNamespaces,
    /// Unix and routing sockets, and of IPv4 and IPv6 what programs use: others make the kernel load modules.
    OrdinarySockets,
    /// Pairs of Unix sockets (`socketpair`).
    UnixSockets,
    /// No typing into a terminal (`TIOCSTI`), no console tricks (`TIOCLINUX`), no other line discipline (`TIOCSETD`).
    NoTyping,
    /// The rlimit that tags an exec's processes cannot be set (`setrlimit`).
    KeepTag,
    /// It can be set only with a permit (`prlimit64`).
    TagWithPermit,
    /// Only the ordinary execution domain.
    OrdinaryPersonality,
}

/// The rlimit that `sandboxd` tags execs with; the kernel itself has not used it since 2.4.
const RLIMIT_LOCKS: u32 = 10;
/// The newest call that was looked at when this list was made (`file_setattr`).
const NEWEST_KNOWN: u32 = 469;

const EPERM: i32 = libc::EPERM;
const ENOSYS: i32 = libc::ENOSYS;

#[cfg(target_arch = "x86_64")]
const REFUSED: &[i64] = &[
    // Other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_kcmp,
    libc::SYS_pidfd_getfd,
    // Mounts, roots and namespaces.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    467, // open_tree_attr
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_fanotify_init,
    libc::SYS_fanotify_mark,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    // The kernel itself.
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_lookup_dcookie,
    libc::SYS_syslog,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    // The machine.
    libc::SYS_reboot,
    libc::SYS_acct,
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_vhangup,
    libc::SYS_mbind,
    libc::SYS_migrate_pages,
    libc::SYS_move_pages,
    libc::SYS_set_mempolicy,
    // Left over from other times.
    libc::SYS_modify_ldt,
    libc::SYS_uselib,
    libc::SYS_ustat,
    libc::SYS_sysfs,
    libc::SYS__sysctl,
    libc::SYS_nfsservctl,
];

/// What the filter says to a system call of this number.
pub fn verdict(number: u32) -> Verdict {
    if number > NEWEST_KNOWN {
        return Verdict::Refuse(ENOSYS);
    }
    match i64::from(number) {
        // Its flags lie in memory where no filter can see them. Libraries fall back to `clone`.
        libc::SYS_clone3 => Verdict::Refuse(ENOSYS),
        libc::SYS_clone => Verdict::Look(Rule::NoNamespaces),
        libc::SYS_socket => Verdict::Look(Rule::OrdinarySockets),
        libc::SYS_socketpair => Verdict::Look(Rule::UnixSockets),
        libc::SYS_ioctl => Verdict::Look(Rule::NoTyping),
        libc::SYS_setrlimit => Verdict::Look(Rule::KeepTag),
        libc::SYS_prlimit64 => Verdict::Look(Rule::TagWithPermit),
        libc::SYS_personality => Verdict::Look(Rule::OrdinaryPersonality),
        refused if REFUSED.contains(&refused) => Verdict::Refuse(EPERM),
        _ => Verdict::Allow,
    }
}

/// The filter as a program for the kernel. Whoever has the permit can tag processes.
pub fn program(permit: Permit) -> Vec<Instruction> {
    let mut program = vec![
        load(OFFSET_ARCHITECTURE),
        // Anything that is not a native 64-bit call ends the process: the numbers would mean other calls.
        jump(JEQ, AUDIT_ARCHITECTURE, 1, 0),
        give(KILL_PROCESS),
        load(OFFSET_NUMBER),
        jump(JGE, X32_BIT, 0, 1),
        give(KILL_PROCESS),
    ];
    let mut rules = Vec::new();
    search(&ranges(), &mut program, &mut rules);
    for (at, rule) in rules {
        program[at].operand = (program.len() - at - 1) as u32;
        program.extend(check(rule, permit));
    }
    program
}

/// Runs of numbers with the same verdict, each with its first number.
fn ranges() -> Vec<(u32, Verdict)> {
    let mut ranges: Vec<(u32, Verdict)> = Vec::new();
    for number in 0..=NEWEST_KNOWN + 1 {
        let verdict = verdict(number);
        if ranges.last().is_none_or(|(_, last)| *last != verdict) {
            ranges.push((number, verdict));
        }
    }
    ranges
}

fn search(ranges: &[(u32, Verdict)], program: &mut Vec<Instruction>, rules: &mut Vec<(usize, Rule)>) {
    if let [(_, verdict)] = ranges {
        match verdict {
            Verdict::Allow => program.push(give(ALLOW)),
            Verdict::Refuse(error) => program.push(give(refuse_with(*error))),
            Verdict::Look(rule) => {
                rules.push((program.len(), *rule));
                program.push(instruction(JUMP_ALWAYS, 0));
            }
        }
        return;
    }
    let (below, above) = ranges.split_at(ranges.len() / 2);
    let branch = program.len();
    program.push(jump(JGE, above[0].0, 0, 0));
    search(below, program, rules);
    let distance = program.len() - branch - 1;
    program[branch].jump_if_true = u8::try_from(distance).expect("half the ranges fit in one jump");
    search(above, program, rules);
}

fn check(rule: Rule, permit: Permit) -> Vec<Instruction> {
    match rule {
        Rule::NoNamespaces => {
            vec![load(low_half(0)), jump(JSET, NEW_NAMESPACES, 0, 1), give(refuse_with(EPERM)), give(ALLOW)]
        }
        Rule::OrdinarySockets => vec![
            load(low_half(0)),
            jump(JEQ, libc::AF_UNIX as u32, 18, 0),
            jump(JEQ, libc::AF_INET as u32, 5, 0),
            jump(JEQ, libc::AF_INET6 as u32, 4, 0),
            jump(JEQ, libc::AF_NETLINK as u32, 0, 2),
            load(low_half(2)),
            jump(JEQ, libc::NETLINK_ROUTE as u32, 13, 0),
            give(refuse_with(libc::EAFNOSUPPORT)),
            // IPv4 and IPv6: the type without its flags, then the protocol.
            load(low_half(1)),
            instruction(AND, SOCKET_TYPE),
            jump(JEQ, libc::SOCK_RAW as u32, 8, 0),
            jump(JGE, libc::SOCK_RAW as u32, 6, 0),
            load(low_half(2)),
            jump(JEQ, libc::IPPROTO_IP as u32, 6, 0),
            jump(JEQ, libc::IPPROTO_ICMP as u32, 5, 0),
            jump(JEQ, libc::IPPROTO_TCP as u32, 4, 0),
            jump(JEQ, libc::IPPROTO_UDP as u32, 3, 0),
            jump(JEQ, libc::IPPROTO_ICMPV6 as u32, 2, 0),
            give(refuse_with(libc::EPROTONOSUPPORT)),
            give(refuse_with(EPERM)),
            give(ALLOW),
        ],
        Rule::UnixSockets => vec![
            load(low_half(0)),
            jump(JEQ, libc::AF_UNIX as u32, 1, 0),
            give(refuse_with(libc::EAFNOSUPPORT)),
            give(ALLOW),
        ],
        Rule::NoTyping => vec![
            load(low_half(1)),
            jump(JEQ, libc::TIOCSTI as u32, 2, 0),
            jump(JEQ, libc::TIOCLINUX as u32, 1, 0),
            jump(JEQ, libc::TIOCSETD as u32, 0, 1),
            give(refuse_with(EPERM)),
            give(ALLOW),
        ],
        Rule::KeepTag => {
            vec![load(low_half(0)), jump(JEQ, RLIMIT_LOCKS, 0, 1), give(refuse_with(EPERM)), give(ALLOW)]
        }
        Rule::TagWithPermit => {
            let Permit([first, second]) = permit;
            vec![
                load(low_half(1)),
                jump(JEQ, RLIMIT_LOCKS, 0, 13),
                // Without a new value it only reads.
                load(low_half(2)),
                jump(JEQ, 0, 0, 2),
                load(high_half(2)),
                jump(JEQ, 0, 9, 0),
                load(low_half(4)),
                jump(JEQ, first as u32, 0, 6),
                load(high_half(4)),
                jump(JEQ, (first >> 32) as u32, 0, 4),
                load(low_half(5)),
                jump(JEQ, second as u32, 0, 2),
                load(high_half(5)),
                jump(JEQ, (second >> 32) as u32, 1, 0),
                give(refuse_with(EPERM)),
                give(ALLOW),
            ]
        }
        Rule::OrdinaryPersonality => vec![
            load(low_half(0)),
            jump(JEQ, 0, 2, 0),
            jump(JEQ, u32::MAX, 1, 0),
            give(refuse_with(EPERM)),
            give(ALLOW),
        ],
    }
}

const NEW_NAMESPACES: u32 = (libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP
    | 0x80/* CLONE_NEWTIME */) as u32;

/// The part of a socket's type that is not flags.
const SOCKET_TYPE: u32 = 0xf;

// `struct seccomp_data` is number, architecture, instruction pointer, six arguments.
const OFFSET_NUMBER: u32 = 0;
const OFFSET_ARCHITECTURE: u32 = 4;
const AUDIT_ARCHITECTURE: u32 = 0xC000_003E;
const X32_BIT: u32 = 0x4000_0000;

const LOAD_WORD: u16 = 0x20;
const AND: u16 = 0x54;
const JUMP_ALWAYS: u16 = 0x05;
const JEQ: u16 = 0x15;
const JGE: u16 = 0x35;
const JSET: u16 = 0x45;
const RETURN: u16 = 0x06;

const ALLOW: u32 = 0x7fff_0000;
const KILL_PROCESS: u32 = 0x8000_0000;

fn low_half(argument: u8) -> u32 {
    16 + 8 * u32::from(argument)
}

fn high_half(argument: u8) -> u32 {
    low_half(argument) + 4
}

fn refuse_with(error: i32) -> u32 {
    0x0005_0000 | error as u32
}

fn instruction(code: u16, operand: u32) -> Instruction {
    Instruction { code, jump_if_true: 0, jump_if_false: 0, operand }
}

fn load(offset: u32) -> Instruction {
    instruction(LOAD_WORD, offset)
}

fn give(answer: u32) -> Instruction {
    instruction(RETURN, answer)
}

fn jump(code: u16, operand: u32, jump_if_true: u8, jump_if_false: u8) -> Instruction {
    Instruction { code, jump_if_true, jump_if_false, operand }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERMIT: Permit = Permit([0x1111_2222_3333_4444, 0x5555_6666_7777_8888]);

    /// What the kernel would answer: a plain interpreter of the instructions that the filter uses.
    fn answer(program: &[Instruction], number: u32, architecture: u32, arguments: [u64; 6]) -> u32 {
        let word = |offset: u32| match offset {
            OFFSET_NUMBER => number,
            OFFSET_ARCHITECTURE => architecture,
            _ => {
                let argument = arguments[((offset - 16) / 8) as usize];
                if offset.is_multiple_of(8) { argument as u32 } else { (argument >> 32) as u32 }
            }
        };
        let (mut at, mut accumulator) = (0, 0);
        loop {
            let now = program[at];
            at += 1;
            let branch = |holds: bool| usize::from(if holds { now.jump_if_true } else { now.jump_if_false });
            match now.code {
                LOAD_WORD => accumulator = word(now.operand),
                AND => accumulator &= now.operand,
                JUMP_ALWAYS => at += now.operand as usize,
                JEQ => at += branch(accumulator == now.operand),
                JGE => at += branch(accumulator >= now.operand),
                JSET => at += branch(accumulator & now.operand != 0),
                RETURN => return now.operand,
                other => panic!("unexpected instruction {other:#x}"),
            }
        }
    }

    fn native(number: i64, arguments: &[u64]) -> u32 {
        let mut six = [0; 6];
        six[..arguments.len()].copy_from_slice(arguments);
        answer(&program(PERMIT), number as u32, AUDIT_ARCHITECTURE, six)
    }

    #[test]
    fn the_program_says_what_the_verdict_says_for_every_number() {
        let program = program(PERMIT);
        for number in 0..600 {
            let expected = match verdict(number) {
                Verdict::Allow => ALLOW,
                Verdict::Refuse(error) => refuse_with(error),
                Verdict::Look(_) => continue,
            };
            assert_eq!(answer(&program, number, AUDIT_ARCHITECTURE, [0; 6]), expected, "number {number}");
        }
    }

    #[test]
    fn calls_of_another_architecture_end_the_process() {
        assert_eq!(answer(&program(PERMIT), 0, 0x4000_0003, [0; 6]), KILL_PROCESS);
        assert_eq!(answer(&program(PERMIT), X32_BIT | 1, AUDIT_ARCHITECTURE, [0; 6]), KILL_PROCESS);
    }

    #[test]
    fn arguments_decide_where_they_should() {
        let refused = refuse_with(EPERM);
        let family = refuse_with(libc::EAFNOSUPPORT);
        let protocol = refuse_with(libc::EPROTONOSUPPORT);
        let stream = (libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) as u64;
        let table: &[(i64, &[u64], u32)] = &[
            (libc::SYS_clone, &[libc::SIGCHLD as u64], ALLOW),
            (libc::SYS_clone, &[libc::CLONE_NEWUSER as u64], refused),
            (libc::SYS_clone, &[0x0001_1200_0000_0000 | libc::CLONE_NEWNET as u64], refused),
            (libc::SYS_socket, &[libc::AF_UNIX as u64], ALLOW),
            (libc::SYS_socket, &[libc::AF_INET as u64, stream, 0], ALLOW),
            (libc::SYS_socket, &[libc::AF_INET as u64, stream, libc::IPPROTO_TCP as u64], ALLOW),
            (
                libc::SYS_socket,
                &[libc::AF_INET as u64, libc::SOCK_DGRAM as u64, libc::IPPROTO_UDP as u64],
                ALLOW,
            ),
            (
                libc::SYS_socket,
                &[libc::AF_INET as u64, libc::SOCK_DGRAM as u64, libc::IPPROTO_ICMP as u64],
                ALLOW,
            ),
            (libc::SYS_socket, &[libc::AF_INET as u64, libc::SOCK_RAW as u64, 255], refused),
            (libc::SYS_socket, &[libc::AF_INET6 as u64, libc::SOCK_RAW as u64, 58], refused),
            (libc::SYS_socket, &[libc::AF_INET as u64, stream, libc::IPPROTO_SCTP as u64], protocol),
            (libc::SYS_socket, &[libc::AF_INET as u64, stream, libc::IPPROTO_MPTCP as u64], protocol),
            (libc::SYS_socket, &[libc::AF_INET6 as u64, libc::SOCK_SEQPACKET as u64, 0], protocol),
            (libc::SYS_socket, &[libc::AF_INET as u64, 6, libc::IPPROTO_DCCP as u64], protocol),
            (libc::SYS_socket, &[libc::AF_INET6 as u64, stream], ALLOW),
            (libc::SYS_socketpair, &[libc::AF_UNIX as u64, libc::SOCK_SEQPACKET as u64], ALLOW),
            (libc::SYS_socketpair, &[libc::AF_INET as u64, stream], family),
            (libc::SYS_socketpair, &[libc::AF_VSOCK as u64, stream], family),
            (libc::SYS_socket, &[libc::AF_NETLINK as u64, 3, libc::NETLINK_ROUTE as u64], ALLOW),
            (libc::SYS_socket, &[libc::AF_NETLINK as u64, 3, libc::NETLINK_AUDIT as u64], family),
            (libc::SYS_socket, &[libc::AF_PACKET as u64], family),
            (libc::SYS_socket, &[libc::AF_VSOCK as u64], family),
            (libc::SYS_socket, &[libc::AF_ALG as u64], family),
            (libc::SYS_ioctl, &[0, libc::TIOCGWINSZ], ALLOW),
            (libc::SYS_ioctl, &[0, libc::TIOCSTI], refused),
            (libc::SYS_ioctl, &[0, 0xffff_ffff_0000_0000 | libc::TIOCSTI], refused),
            (libc::SYS_ioctl, &[0, libc::TIOCLINUX], refused),
            (libc::SYS_ioctl, &[0, libc::TIOCSETD], refused),
            (libc::SYS_setrlimit, &[libc::RLIMIT_NOFILE as u64], ALLOW),
            (libc::SYS_setrlimit, &[u64::from(RLIMIT_LOCKS)], refused),
            (libc::SYS_prlimit64, &[0, u64::from(RLIMIT_LOCKS), 0], ALLOW),
            (libc::SYS_prlimit64, &[0, u64::from(RLIMIT_LOCKS), 0x1000], refused),
            (libc::SYS_prlimit64, &[0, u64::from(RLIMIT_LOCKS), 0x7f00_0000_0000], refused),
            (libc::SYS_prlimit64, &[0, u64::from(RLIMIT_LOCKS), 0x1000, 0, PERMIT.0[0], PERMIT.0[1]], ALLOW),
            (libc::SYS_prlimit64, &[0, u64::from(RLIMIT_LOCKS), 0x1000, 0, PERMIT.0[0], 0], refused),
            (
                libc::SYS_prlimit64,
                &[0, u64::from(RLIMIT_LOCKS), 0x1000, 0, PERMIT.0[0], PERMIT.0[1] ^ (1 << 63)],
                refused,
            ),
            (
                libc::SYS_prlimit64,
                &[0, u64::from(RLIMIT_LOCKS), 0x1000, 0, PERMIT.0[0] ^ 1, PERMIT.0[1]],
                refused,
            ),
            (libc::SYS_prlimit64, &[0, libc::RLIMIT_NOFILE as u64, 0x1000], ALLOW),
            (libc::SYS_personality, &[0], ALLOW),
            (libc::SYS_personality, &[0xffff_ffff], ALLOW),
            (libc::SYS_personality, &[0x0040_0000], refused),
        ];
        for (number, arguments, expected) in table {
            assert_eq!(native(*number, arguments), *expected, "call {number} with {arguments:x?}");
        }
    }

    #[test]
    fn what_programs_need_every_day_is_allowed() {
        for number in [
            libc::SYS_read,
            libc::SYS_execve,
            libc::SYS_fork,
            libc::SYS_vfork,
            libc::SYS_mmap,
            libc::SYS_mprotect,
            libc::SYS_futex,
            libc::SYS_epoll_pwait2,
            libc::SYS_statx,
            libc::SYS_seccomp,
            libc::SYS_memfd_create,
            libc::SYS_landlock_create_ruleset,
            libc::SYS_mknodat,
            libc::SYS_rseq,
            libc::SYS_copy_file_range,
        ] {
            assert_eq!(verdict(number as u32), Verdict::Allow, "call {number}");
        }
    }
}
