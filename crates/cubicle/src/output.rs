//! Where a command's output goes: to the caller's own streams, byte for byte, or into memory.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Most that is kept of each stream for a JSON result.
const MOST_KEPT: usize = 16 * 1024 * 1024;
/// As much as a pipe that is ready takes without blocking.
const NEVER_BLOCKS: usize = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    Stdout,
    Stderr,
}

/// Takes what the command prints.
#[derive(Debug)]
pub(crate) enum Output {
    PassOn,
    Keep(Kept),
}

/// Output in memory, up to a bound.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) truncated: bool,
}

impl Output {
    pub(crate) async fn take(&mut self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::PassOn => pass_on(stream, bytes).await,
            Self::Keep(kept) => {
                kept.take(stream, bytes);
                Ok(())
            }
        }
    }
}

impl Kept {
    fn take(&mut self, stream: Stream, bytes: &[u8]) {
        let kept = match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        };
        let room = MOST_KEPT - kept.len();
        self.truncated |= bytes.len() > room;
        kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }
}

/// Writes everything. A reader that does not read holds up the output, but not signals or input: what might block is
/// written by a thread.
async fn pass_on(stream: Stream, bytes: &[u8]) -> io::Result<()> {
    if bytes.len() <= NEVER_BLOCKS && is_ready(stream) {
        return write_all(stream, bytes);
    }
    let bytes = bytes.to_vec();
    tokio::task::spawn_blocking(move || write_all(stream, &bytes)).await.map_err(io::Error::other)?
}

fn descriptor(stream: Stream) -> BorrowedFd<'static> {
    match stream {
        Stream::Stdout => rustix::stdio::stdout(),
        Stream::Stderr => rustix::stdio::stderr(),
    }
}

fn is_ready(stream: Stream) -> bool {
    let descriptor = descriptor(stream);
    let mut interest = [PollFd::new(&descriptor, PollFlags::OUT)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut interest, Some(&at_once)).is_ok_and(|ready| ready > 0)
}

/// The descriptor may be non-blocking when another program made it so; then a full one is waited for.
fn write_all(stream: Stream, mut bytes: &[u8]) -> io::Result<()> {
    let descriptor = descriptor(stream);
    while !bytes.is_empty() {
        match rustix::io::write(descriptor, bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                _ = poll(&mut [PollFd::new(&descriptor, PollFlags::OUT)], None);
            }
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_has_a_bound_and_says_when_it_was_reached() {
        let mut kept = Kept::default();
        kept.take(Stream::Stdout, &vec![b'a'; MOST_KEPT - 1]);
        kept.take(Stream::Stderr, b"other");
        assert!(!kept.truncated);
        kept.take(Stream::Stdout, b"bc");
        assert!(kept.truncated);
        assert_eq!((kept.stdout.len(), kept.stdout.last(), kept.stderr.len()), (MOST_KEPT, Some(&b'b'), 5));
    }
}
