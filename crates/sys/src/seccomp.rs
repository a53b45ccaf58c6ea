//! Installing a filter of system calls.

use std::io;

/// One instruction of classic BPF, as the kernel takes it.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instruction {
    pub code: u16,
    pub jump_if_true: u8,
    pub jump_if_false: u8,
    pub operand: u32,
}

const SECCOMP_SET_MODE_FILTER: libc::c_uint = 1;

/// Installs the filter for this thread and everything it makes from now on. Needs `no_new_privs`.
pub fn install(filter: &[Instruction]) -> io::Result<()> {
    #[repr(C)]
    struct Program {
        length: u16,
        instructions: *const Instruction,
    }
    let length = u16::try_from(filter.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let program = Program { length, instructions: filter.as_ptr() };
    // SAFETY: the program points to `length` instructions that outlive the call; the kernel copies and checks them.
    let done = unsafe { libc::syscall(libc::SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &raw const program) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
