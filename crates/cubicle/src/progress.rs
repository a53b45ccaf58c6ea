//! How far long work is, on a terminal; elsewhere nothing.

use std::io::{IsTerminal, Write};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::Instant;

/// Work that is done before is not worth a line.
const SOON: Duration = Duration::from_millis(500);
const EVERY: Duration = Duration::from_millis(100);

/// Counts bytes and shows them in one line, which goes away at the end.
#[derive(Debug)]
pub(crate) struct Progress {
    visible: bool,
    total: Option<u64>,
    done: u64,
    started: Instant,
    shown: Option<Instant>,
}

impl Progress {
    pub(crate) fn new(quiet: bool, total: Option<u64>) -> Self {
        let visible = !quiet && std::io::stderr().is_terminal();
        Self { visible, total, done: 0, started: Instant::now(), shown: None }
    }

    pub(crate) fn add(&mut self, bytes: usize) {
        self.done += bytes as u64;
        let now = Instant::now();
        let due = self.shown.map_or(self.started + SOON, |shown| shown + EVERY);
        if self.visible && now >= due {
            self.shown = Some(now);
            // Nothing can be told to a user whose stderr is gone.
            _ = write!(std::io::stderr(), "\r\x1b[K{}", self.line(now - self.started));
        }
    }

    fn line(&self, elapsed: Duration) -> String {
        let mebibytes = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
        let rate = self.done as f64 / elapsed.as_secs_f64().max(0.001);
        let done = mebibytes(self.done);
        let rate = mebibytes(rate as u64);
        match self.total.filter(|total| *total > 0) {
            Some(total) => {
                let percent = self.done.min(total) * 100 / total;
                format!("{percent:>3}%  {done} of {}  {rate}/s", mebibytes(total))
            }
            None => format!("{done}  {rate}/s"),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown.is_some() {
            _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

/// A reader whose bytes are counted.
#[derive(Debug)]
pub(crate) struct Counted<R> {
    pub(crate) reader: R,
    pub(crate) progress: Progress,
}

impl<R: AsyncRead + Unpin> AsyncRead for Counted<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.reader).poll_read(context, buffer);
        self.progress.add(buffer.filled().len() - before);
        polled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_far_it_is_and_how_fast() {
        let progress =
            |total| Progress { visible: false, total, done: 3 << 20, started: Instant::now(), shown: None };
        assert_eq!(
            progress(Some(4 << 20)).line(Duration::from_secs(2)),
            " 75%  3.0 MiB of 4.0 MiB  1.5 MiB/s"
        );
        assert_eq!(progress(None).line(Duration::from_secs(3)), "3.0 MiB  1.0 MiB/s");
    }
}
