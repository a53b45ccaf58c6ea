//! System calls that no sandbox may reach, for trying whether it is so.

use std::io;

/// A call that is tried with zeros for arguments: whoever reaches it gets another error than a refusal, but no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forbidden {
    pub name: &'static str,
    number: libc::c_long,
}

macro_rules! forbidden {
    ($($name:literal $number:ident),* $(,)?) => {
        pub const ALL: &[Forbidden] = &[$(Forbidden { name: $name, number: libc::$number }),*];
    };
}

forbidden!(
    "ptrace" SYS_ptrace,
    "mount" SYS_mount,
    "pivot_root" SYS_pivot_root,
    "open_tree" SYS_open_tree,
    "fsopen" SYS_fsopen,
    "setns" SYS_setns,
    "bpf" SYS_bpf,
    "perf_event_open" SYS_perf_event_open,
    "io_uring_setup" SYS_io_uring_setup,
    "userfaultfd" SYS_userfaultfd,
    "keyctl" SYS_keyctl,
    "add_key" SYS_add_key,
    "init_module" SYS_init_module,
    "finit_module" SYS_finit_module,
    "kexec_load" SYS_kexec_load,
    "open_by_handle_at" SYS_open_by_handle_at,
    "process_vm_readv" SYS_process_vm_readv,
    "clock_settime" SYS_clock_settime,
    "quotactl" SYS_quotactl,
    "iopl" SYS_iopl,
    "syslog" SYS_syslog,
);

impl Forbidden {
    /// Makes the call. `Err` with `EPERM` or `ENOSYS` is what a sandbox should give.
    pub fn attempt(self) -> io::Result<()> {
        // SAFETY: the number is one of the list above; each of those checks its arguments, and with zeros either fails
        // or changes nothing in this process.
        let done = unsafe { libc::syscall(self.number, 0, 0, 0, 0, 0, 0) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}
