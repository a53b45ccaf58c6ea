//! Attacks on the kernel, the clock, the machine, and on the filter that stands before them.

use cubicle_model::Exit;
use rustix::io::Errno;

use crate::arena::{Arena, SYSCTLS, intruder};

const EPERM: i32 = Errno::PERM.raw_os_error();
const ENOSYS: i32 = Errno::NOSYS.raw_os_error();
const EROFS: i32 = Errno::ROFS.raw_os_error();
const EACCES: i32 = Errno::ACCESS.raw_os_error();
const ENOENT: i32 = Errno::NOENT.raw_os_error();

#[test]
fn sandbox_cannot_write_sysctls() {
    let Some(arena) = Arena::enter() else { return };
    for name in SYSCTLS.iter().chain(&["vm/drop_caches", "kernel/kptr_restrict", "kernel/ns_last_pid"]) {
        let path = format!("/proc/sys/{name}");
        arena.attack_from(arena.attacker, &["write", &path, "1"]).refused(&[EROFS, EACCES, EPERM, ENOENT]);
    }
    arena.unharmed();
}

#[test]
fn sandbox_cannot_choose_the_program_that_takes_core_dumps() {
    let Some(arena) = Arena::enter() else { return };
    let report = arena.attack(&["write", "/proc/sys/kernel/core_pattern", "|/workspace/handler"]);
    report.refused(&[EROFS, EACCES]);
}

#[test]
fn sandbox_cannot_register_a_binary_format() {
    let Some(arena) = Arena::enter() else { return };
    let rule = ":intruder:E::intruder::/workspace/handler:";
    arena.attack(&["write", "/proc/sys/fs/binfmt_misc/register", rule]).refused(&[ENOENT, EROFS, EACCES]);
}

#[test]
fn sandbox_cannot_press_magic_keys() {
    let Some(arena) = Arena::enter() else { return };
    // The key that shows a help text: where this works, every other key does.
    arena.attack(&["write", "/proc/sysrq-trigger", "h"]).refused(&[EROFS, EACCES, EPERM, ENOENT]);
}

#[test]
fn sandbox_cannot_read_the_memory_of_the_kernel() {
    let Some(arena) = Arena::enter() else { return };
    for path in ["/proc/kcore", "/dev/mem", "/dev/kmem", "/dev/port", "/proc/vmcore"] {
        arena.attack_from(arena.attacker, &["read", path]).nothing();
    }
    arena.unharmed();
}

#[test]
fn sandbox_cannot_learn_addresses_of_the_kernel() {
    let Some(arena) = Arena::enter() else { return };
    for path in ["/proc/kallsyms", "/proc/modules", "/proc/vmallocinfo", "/proc/iomem", "/proc/timer_list"] {
        arena.attack_from(arena.attacker, &["read", path]).nothing();
    }
    arena.unharmed();
}

#[test]
fn sandbox_cannot_read_the_log_of_the_kernel() {
    let Some(arena) = Arena::enter() else { return };
    arena.attack(&["kernel-log"]).refused(&[EPERM]);
    arena.attack(&["read", "/dev/kmsg"]).refused(&[ENOENT]);
    arena.attack(&["read", "/proc/kmsg"]).nothing();
}

#[test]
fn sandbox_cannot_read_what_proc_tells_of_the_host() {
    let Some(arena) = Arena::enter() else { return };
    let files = [
        "cmdline",
        "partitions",
        "diskstats",
        "slabinfo",
        "interrupts",
        "softirqs",
        "ioports",
        "keys",
        "key-users",
        "kpagecount",
        "kpageflags",
        "kpagecgroup",
        "mdstat",
        "sched_debug",
        "latency_stats",
        "bootconfig",
        "pagetypeinfo",
    ];
    for name in files {
        arena.attack_from(arena.attacker, &["read", &format!("/proc/{name}")]).nothing();
    }
    for name in ["acpi", "asound", "bus", "driver", "fs", "irq", "pressure", "scsi", "dynamic_debug"] {
        arena.attack_from(arena.attacker, &["list", &format!("/proc/{name}")]).nothing();
    }
    arena.unharmed();
}

#[test]
fn sandbox_cannot_set_triggers_on_the_pressure_of_the_host() {
    let Some(arena) = Arena::enter() else { return };
    for name in ["cpu", "io", "memory"] {
        let path = format!("/proc/pressure/{name}");
        arena
            .attack_from(arena.attacker, &["pressure-trigger", &path])
            .refused(&[EROFS, EACCES, EPERM, ENOENT]);
    }
    arena.unharmed();
}

#[test]
fn sandbox_cannot_use_bpf() {
    let Some(arena) = Arena::enter() else { return };
    arena.attack(&["bpf-map"]).refused(&[EPERM]);
}

#[test]
fn sandbox_cannot_use_performance_events() {
    let Some(arena) = Arena::enter() else { return };
    arena.attack(&["perf"]).refused(&[EPERM]);
}

#[test]
fn sandbox_cannot_use_io_uring() {
    let Some(arena) = Arena::enter() else { return };
    arena.attack(&["io-uring"]).refused(&[EPERM]);
}

#[test]
fn sandbox_cannot_use_userfaultfd() {
    let Some(arena) = Arena::enter() else { return };
    arena.attack(&["userfaultfd"]).refused(&[EPERM]);
}

#[test]
fn sandbox_cannot_use_the_keys_of_the_kernel() {
    let Some(arena) = Arena::enter() else { return };
    arena.attack(&["keys"]).refused(&[EPERM]);
}

#[test]
fn sandbox_cannot_load_another_kernel() {
    let Some(arena) = Arena::enter() else { return };
    arena.attack(&["kexec"]).refused(&[EPERM]);
}

#[test]
fn sandbox_cannot_load_or_remove_modules() {
    let Some(arena) = Arena::enter() else { return };
    arena.attack(&["modules"]).refused(&[EPERM]);
}

#[test]
fn sandbox_cannot_set_the_clock() {
    let Some(arena) = Arena::enter() else { return };
    arena.attack(&["clock"]).refused(&[EPERM]);
}

#[test]
fn sandbox_cannot_change_the_host_name() {
    let Some(arena) = Arena::enter() else { return };
    arena.attack(&["hostname"]).refused(&[EPERM]);
    assert_eq!(arena.attack(&["read", "/proc/sys/kernel/hostname"]).saw(), "sandbox\n");
}

#[test]
fn sandbox_cannot_restart_the_machine() {
    let Some(arena) = Arena::enter() else { return };
    arena.attack(&["reboot"]).refused(&[EPERM]);
}

#[test]
fn sandbox_cannot_use_ports_of_the_machine() {
    let Some(arena) = Arena::enter() else { return };
    arena.attack(&["ports"]).refused(&[EPERM]);
}

#[test]
fn sandbox_cannot_switch_swap_quota_or_accounting() {
    let Some(arena) = Arena::enter() else { return };
    for attack in ["swap", "quota", "accounting"] {
        arena.attack(&[attack]).refused(&[EPERM]);
    }
}

#[test]
fn sandbox_cannot_watch_whole_file_systems() {
    let Some(arena) = Arena::enter() else { return };
    arena.attack(&["fanotify"]).refused(&[EPERM]);
}

#[test]
fn sandbox_cannot_use_calls_of_other_times() {
    let Some(arena) = Arena::enter() else { return };
    for attack in ["ldt", "relics", "numa"] {
        arena.attack(&[attack]).refused(&[EPERM]);
    }
}

#[test]
fn sandbox_cannot_use_calls_of_the_future() {
    let Some(arena) = Arena::enter() else { return };
    arena.attack(&["future-calls"]).refused(&[ENOSYS]);
}

#[test]
fn sandbox_cannot_make_x32_calls() {
    let Some(arena) = Arena::enter() else { return };
    let outcome = arena.run(arena.attacker, &intruder(&["x32-call"]));
    assert_eq!(outcome.exit, Exit::Signal(31), "{}", String::from_utf8_lossy(&outcome.stdout));
    arena.unharmed();
}

#[test]
fn sandbox_cannot_make_32_bit_calls() {
    let Some(arena) = Arena::enter() else { return };
    let outcome = arena.run(arena.attacker, &intruder(&["32-bit-call"]));
    // Kernels without the 32-bit world answer with a fault of their own.
    let ended = [Exit::Signal(31), Exit::Signal(11)];
    assert!(ended.contains(&outcome.exit), "{}", String::from_utf8_lossy(&outcome.stdout));
    arena.unharmed();
}

#[test]
fn sandbox_cannot_switch_off_address_randomisation() {
    let Some(arena) = Arena::enter() else { return };
    arena.attack(&["personality"]).refused(&[EPERM]);
}

#[test]
fn sandbox_cannot_weaken_the_filter_with_another_filter() {
    let Some(arena) = Arena::enter() else { return };
    arena.attack(&["stack-filters", "allow"]).refused(&[EPERM]);
    // A tracer that is not there would give ENOSYS; the older refusal goes first.
    arena.attack(&["stack-filters", "trace-mount"]).refused(&[EPERM]);
}

#[test]
fn sandbox_cannot_weaken_the_filter_with_landlock() {
    let Some(arena) = Arena::enter() else { return };
    arena.attack(&["landlock"]).refused(&[EPERM]);
}

#[test]
fn sandbox_cannot_allow_itself_new_privileges() {
    let Some(arena) = Arena::enter() else { return };
    arena.attack(&["clear-no-new-privs"]).refused(&[Errno::INVAL.raw_os_error()]);
    let status = arena.attack(&["status", "NoNewPrivs", "Seccomp"]).saw().to_owned();
    assert_eq!(status, "NoNewPrivs: 1; Seccomp: 2");
}

#[test]
fn sandbox_cannot_find_a_control_group() {
    let Some(arena) = Arena::enter() else { return };
    let agents = || std::fs::read_to_string("/sys/fs/cgroup/memory/release_agent").ok();
    let before = agents();
    assert_eq!(arena.attack(&["find-control-groups"]).saw(), "");
    let own = arena.attack(&["read", "/proc/self/cgroup"]).saw().to_owned();
    for line in own.lines() {
        assert!(!line.contains("cubicle"), "the sandbox sees where its control group is: {line}");
    }
    assert_eq!(agents(), before);
}
