//! Whether ended children wait to be asked about.

use std::io;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndedChildren {
    /// They stay until they are waited for.
    Wait,
    /// The kernel forgets them at once; their pidfds still tell of the end.
    Vanish,
}

pub fn set_ended_children(policy: EndedChildren) -> io::Result<()> {
    let disposition = match policy {
        EndedChildren::Wait => libc::SIG_DFL,
        EndedChildren::Vanish => libc::SIG_IGN,
    };
    // SAFETY: neither disposition runs code of ours.
    let previous = unsafe { libc::signal(libc::SIGCHLD, disposition) };
    if previous == libc::SIG_ERR { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Ends this process at once, without running destructors or flushing what a forked copy shares with its maker.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: does not return and touches no memory.
    unsafe { libc::_exit(code) }
}
