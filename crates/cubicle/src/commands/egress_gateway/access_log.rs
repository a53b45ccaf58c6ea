//! The access log as a file. Lines are written by a thread of their own: neither a slow disk nor a full one holds up what
//! goes out of a sandbox. What could not be written is counted and told.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use cubicle_egress::{AccessLine, AccessLog};
use cubicle_model::{Fault, Kind};

/// Lines that wait for the disk; further ones are left out.
const MOST_WAITING: usize = 4096;
/// Lines that are written at once.
const BATCH: u64 = 512;
/// How often the file is looked at: one that was moved away, as logrotate does, is made anew.
const LOOK: Duration = Duration::from_secs(1);
/// How long the last lines may take when the gateway ends.
const LAST_LINES: Duration = Duration::from_secs(2);

pub(super) struct AccessLogFile {
    lines: SyncSender<String>,
    left_out: Arc<AtomicU64>,
    ended: Receiver<()>,
}

impl AccessLogFile {
    /// Opens the file, or makes it. That it cannot be is told now, and not with the first request.
    pub(super) fn open(path: &Path) -> Result<Self, Fault> {
        let unusable = |error: io::Error| {
            Fault::new(Kind::Denied, format!("the access log {} cannot be written", path.display()))
                .because(error)
                .hint("name another file, or leave egress.access_log out")
        };
        let writer = std::path::absolute(path).and_then(Writer::new).map_err(unusable)?;
        let (lines, waiting) = sync_channel(MOST_WAITING);
        let (end, ended) = sync_channel(1);
        let left_out = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&left_out);
        std::thread::Builder::new()
            .name("access-log".into())
            .spawn(move || {
                writer.write_all(&waiting, &count);
                // Nobody waits for it unless the gateway ends.
                _ = end.send(());
            })
            .map_err(unusable)?;
        Ok(Self { lines, left_out, ended })
    }

    pub(super) fn log(&self) -> AccessLog {
        let (lines, left_out) = (self.lines.clone(), Arc::clone(&self.left_out));
        Arc::new(move |line: &AccessLine| {
            if lines.try_send(format!("{line}\n")).is_err() {
                left_out.fetch_add(1, Relaxed);
            }
        })
    }

    /// Waits a moment until what was told is written.
    pub(super) fn finish(self) {
        drop(self.lines);
        // Where a task still holds the log, or the disk hangs, the process ends without the last lines.
        _ = self.ended.recv_timeout(LAST_LINES);
    }
}

struct Writer {
    path: PathBuf,
    file: File,
    looked: Instant,
    /// Whether a line was written in part, so that the next one needs a line of its own.
    torn: bool,
    complained: bool,
}

impl Writer {
    fn new(path: PathBuf) -> io::Result<Self> {
        let file = open(&path)?;
        Ok(Self { path, file, looked: Instant::now(), torn: false, complained: false })
    }

    /// Writes until nobody can tell a line any more.
    fn write_all(mut self, waiting: &Receiver<String>, left_out: &AtomicU64) {
        while let Ok(mut batch) = waiting.recv() {
            let mut count = 1;
            while count < BATCH
                && let Ok(line) = waiting.try_recv()
            {
                batch.push_str(&line);
                count += 1;
            }
            self.look();
            match self.write(batch.as_bytes()) {
                Ok(()) => self.complained = false,
                Err(error) => {
                    left_out.fetch_add(count, Relaxed);
                    if !std::mem::replace(&mut self.complained, true) {
                        tracing::error!(file = %self.path.display(), %error, "the access log cannot be written");
                    }
                }
            }
            let missing = if self.complained { 0 } else { left_out.swap(0, Relaxed) };
            if missing > 0 {
                tracing::warn!(file = %self.path.display(), missing, "lines are missing in the access log");
            }
        }
    }

    fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        if self.torn {
            self.file.write_all(b"\n")?;
            self.torn = false;
        }
        while !bytes.is_empty() {
            match self.file.write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(length) => {
                    self.torn = bytes[length - 1] != b'\n';
                    bytes = &bytes[length..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Goes on in a new file when this one was moved away or removed.
    fn look(&mut self) {
        if self.looked.elapsed() < LOOK && !self.complained {
            return;
        }
        self.looked = Instant::now();
        let identity = |metadata: io::Result<std::fs::Metadata>| {
            metadata.ok().map(|metadata| (metadata.dev(), metadata.ino()))
        };
        if identity(std::fs::metadata(&self.path)) != identity(self.file.metadata()) {
            // Where that does not work, the old file is better than none.
            if let Ok(file) = open(&self.path) {
                (self.file, self.torn) = (file, false);
            }
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    std::fs::OpenOptions::new().append(true).create(true).mode(0o640).open(path)
}

#[cfg(test)]
mod tests {
    use cubicle_model::{SandboxId, Timestamp};

    use super::*;

    fn line(port: u16) -> AccessLine {
        AccessLine {
            sandbox: SandboxId::from_random([0; 16]),
            at: Timestamp::from_second(1_700_000_000).unwrap(),
            host: "a.example".parse().unwrap(),
            port,
            method: Some("GET"),
            status: Some(200),
            bytes_sent: 1,
            bytes_received: 2,
            milliseconds: 3,
        }
    }

    #[test]
    fn every_line_is_in_the_file_when_the_log_has_ended() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        for port in 1..=2 {
            let file = AccessLogFile::open(&path).unwrap();
            let log = file.log();
            log(&line(port));
            log(&line(port));
            drop(log);
            file.finish();
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let ports: Vec<&str> = text.lines().map(|line| &line[..11]).collect();
        assert_eq!(ports, ["a.example:1", "a.example:1", "a.example:2", "a.example:2"]);
        assert!(AccessLogFile::open(&directory.path().join("no/log")).is_err());
    }

    #[test]
    fn a_file_that_was_moved_away_is_made_anew() {
        let directory = tempfile::tempdir().unwrap();
        let (path, moved) = (directory.path().join("log"), directory.path().join("log.1"));
        let mut writer = Writer::new(path.clone()).unwrap();
        writer.write(b"one\n").unwrap();
        std::fs::rename(&path, &moved).unwrap();
        // As if a while had passed.
        writer.complained = true;
        writer.look();
        writer.write(b"two\n").unwrap();
        assert_eq!(std::fs::read_to_string(&moved).unwrap(), "one\n");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "two\n");
    }

    #[test]
    fn a_full_disk_costs_lines_and_nothing_else() {
        let file = AccessLogFile::open(Path::new("/dev/full")).unwrap();
        let (log, left_out) = (file.log(), Arc::clone(&file.left_out));
        for _ in 0..MOST_WAITING * 2 {
            log(&line(1));
        }
        drop(log);
        file.finish();
        assert_eq!(left_out.load(Relaxed), MOST_WAITING as u64 * 2);
    }

    #[test]
    fn a_torn_line_is_ended_before_the_next_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let mut writer = Writer::new(path.clone()).unwrap();
        writer.write(b"half a li").unwrap();
        writer.write(b"whole\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "half a li\nwhole\n");
    }
}
