//! Pseudo-terminals.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;

/// The two ends of a new terminal.
#[derive(Debug)]
pub struct Pair {
    /// What is written here is typed, what is read here was printed. Does not block.
    pub controller: OwnedFd,
    pub terminal: OwnedFd,
}

/// Makes a terminal of that size. It belongs to the user as whom the calling thread acts on files.
pub fn open(rows: u16, columns: u16) -> io::Result<Pair> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let controller = rustix::pty::openpt(flags)?;
    rustix::pty::unlockpt(&controller)?;
    let terminal = rustix::pty::ioctl_tiocgptpeer(&controller, flags)?;
    rustix::io::ioctl_fionbio(&controller, true)?;
    let pair = Pair { controller, terminal };
    resize(std::os::fd::AsFd::as_fd(&pair.controller), rows, columns)?;
    Ok(pair)
}

pub fn resize(terminal: BorrowedFd<'_>, rows: u16, columns: u16) -> io::Result<()> {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    Ok(rustix::termios::tcsetwinsize(terminal, size)?)
}
