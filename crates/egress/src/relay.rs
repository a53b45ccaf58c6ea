//! Carries bytes in both directions, without looking at them and without memory while nothing moves.

mod pipes;

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::bill::Tally;
use crate::refusal::Spent;
use crate::stream::Stream;
use pipes::{Lent, Pipes};

const LARGE: usize = 256 * 1024;
const SMALL: usize = 8 * 1024;
/// This many large buffers are used at the same time; who finds none takes a small one.
const MOST_LARGE: usize = 32;
/// Where this much has come at once, more is likely to follow, and the kernel moves it without copies.
const MUCH: usize = 64 * 1024;

/// Buffers that are lent while bytes move. Idle tunnels, of which there are most, have none.
#[derive(Debug)]
pub(crate) struct Buffers {
    idle: Mutex<Vec<Box<[u8]>>>,
    /// How many large ones may still be made.
    left: Mutex<usize>,
    pipes: Pipes,
}

impl Default for Buffers {
    fn default() -> Self {
        Self { idle: Mutex::default(), left: Mutex::new(MOST_LARGE), pipes: Pipes::default() }
    }
}

impl Buffers {
    fn borrow(&self) -> Box<[u8]> {
        if let Some(buffer) = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop() {
            return buffer;
        }
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let size = if *left > 0 { LARGE } else { SMALL };
        *left = left.saturating_sub(1);
        vec![0; size].into_boxed_slice()
    }

    fn give_back(&self, buffer: Box<[u8]>) {
        if buffer.len() == LARGE {
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(buffer);
        }
    }
}

/// A buffer that goes back also when the work that uses it is dropped.
struct Borrowed<'a> {
    buffers: &'a Buffers,
    buffer: Box<[u8]>,
}

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        self.buffers.give_back(std::mem::take(&mut self.buffer));
    }
}

/// When bytes moved last, in either direction, and whether one has ended.
struct Moved {
    began: Instant,
    milliseconds: AtomicU64,
    ended: AtomicBool,
}

impl Moved {
    fn new() -> Self {
        Self { began: Instant::now(), milliseconds: AtomicU64::new(0), ended: AtomicBool::new(false) }
    }

    /// One direction has ended, and the other may go on. After the second both connections are closed in any case.
    fn end(&self, to: &Stream) {
        if !self.ended.swap(true, Relaxed) {
            // A side that is gone already needs no telling.
            let _ = to.close_write();
        }
    }

    fn now(&self) {
        self.milliseconds.store(u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX), Relaxed);
    }

    fn last(&self) -> Instant {
        self.began + Duration::from_millis(self.milliseconds.load(Relaxed))
    }
}

/// How a tunnel came to its end.
#[derive(Debug)]
pub(crate) enum End {
    Closed,
    Idle,
    Spent(Spent),
    Broken,
}

/// Relays until both sides have closed, nothing moves for too long, the budget is used up, or one side breaks.
pub(crate) async fn relay(
    client: &Stream,
    upstream: &Stream,
    tally: &Tally,
    buffers: &Buffers,
    idle: Duration,
) -> End {
    let moved = Moved::new();
    let outwards = pump(client, upstream, buffers, &moved, |bytes| tally.sent(bytes));
    let inwards = pump(upstream, client, buffers, &moved, |bytes| tally.received(bytes));
    let silence = async {
        loop {
            let deadline = moved.last() + idle;
            tokio::time::sleep_until(deadline).await;
            if moved.last() + idle <= deadline {
                return;
            }
        }
    };
    let both = async {
        match tokio::try_join!(outwards, inwards) {
            Ok(_) => End::Closed,
            Err(end) => end,
        }
    };
    // Whichever ends first ends the tunnel; what the others hold is dropped with them.
    tokio::select! {
        end = both => end,
        () = silence => End::Idle,
    }
}

async fn pump(
    from: &Stream,
    to: &Stream,
    buffers: &Buffers,
    moved: &Moved,
    count: impl Fn(usize) -> Result<(), Spent>,
) -> Result<(), End> {
    let broken = |_: io::Error| End::Broken;
    // How much came the last time, until nothing more was there.
    let mut burst = 0;
    loop {
        from.readable().await.map_err(broken)?;
        let is_much = burst >= MUCH;
        burst = 0;
        if is_much
            && let (Stream::Tcp(tcp), Stream::Tcp(to_tcp)) = (from, to)
            && let Some(pipe) = buffers.pipes.borrow()
        {
            match splice(tcp, to_tcp, pipe, moved, &count).await? {
                Some(length) => burst = length,
                None => {
                    moved.end(to);
                    return Ok(());
                }
            }
            continue;
        }
        let mut borrowed = Borrowed { buffers, buffer: buffers.borrow() };
        loop {
            match from.try_read_all(&mut borrowed.buffer) {
                Ok((0, _)) => {
                    moved.end(to);
                    return Ok(());
                }
                Ok((length, is_all)) => {
                    burst += length;
                    moved.now();
                    count(length).map_err(End::Spent)?;
                    write_all(to, &borrowed.buffer[..length], moved).await.map_err(broken)?;
                    // One busy tunnel must not keep the thread from all others.
                    tokio::task::coop::consume_budget().await;
                    if is_all || burst >= MUCH {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => return Err(End::Broken),
            }
        }
    }
}

/// Moves what there is by way of a pipe, and says how much it was; nothing at the end of the stream.
async fn splice(
    from: &TcpStream,
    to: &TcpStream,
    mut pipe: Lent<'_>,
    moved: &Moved,
    count: &impl Fn(usize) -> Result<(), Spent>,
) -> Result<Option<usize>, End> {
    let broken = |_: io::Error| End::Broken;
    let mut all = 0;
    loop {
        match pipe.fill(from) {
            Ok(0) => return Ok(None),
            Ok(length) => {
                all += length;
                moved.now();
                count(length).map_err(End::Spent)?;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Some(all)),
            Err(_) => return Err(End::Broken),
        }
        loop {
            match pipe.empty(to) {
                Ok(left) => {
                    moved.now();
                    if left == 0 {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    to.writable().await.map_err(broken)?;
                }
                Err(_) => return Err(End::Broken),
            }
        }
        tokio::task::coop::consume_budget().await;
    }
}

async fn write_all(to: &Stream, mut bytes: &[u8], moved: &Moved) -> io::Result<()> {
    while !bytes.is_empty() {
        match to.try_write(bytes) {
            Ok(written) => {
                moved.now();
                bytes = &bytes[written..];
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => to.writable().await?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes what was read ahead, before the relay begins.
pub(crate) async fn write_ahead(to: &Stream, bytes: &[u8], patience: Duration) -> io::Result<()> {
    let moved = Moved::new();
    let late = |_| io::Error::from(io::ErrorKind::TimedOut);
    tokio::time::timeout(patience, write_all(to, bytes, &moved))
        .await
        .unwrap_or_else(|elapsed| Err(late(elapsed)))
}

impl From<crate::upstream::Dialed> for Stream {
    fn from(dialed: crate::upstream::Dialed) -> Self {
        let stream: TcpStream = dialed.stream;
        Self::Tcp(stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_buffers_are_few_and_used_again() {
        let buffers = Buffers::default();
        let lent: Vec<_> = (0..MOST_LARGE + 3).map(|_| buffers.borrow()).collect();
        assert_eq!(lent.iter().filter(|buffer| buffer.len() == LARGE).count(), MOST_LARGE);
        lent.into_iter().for_each(|buffer| buffers.give_back(buffer));
        let again: Vec<_> = (0..MOST_LARGE + 3).map(|_| buffers.borrow()).collect();
        assert_eq!(again.iter().filter(|buffer| buffer.len() == LARGE).count(), MOST_LARGE);
    }
}
