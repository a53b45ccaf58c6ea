//! One program in a process group of its own: what it says, line by line, and the watchdogs that end it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

/// A program that is yet to be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Launch {
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<String>,
    /// The whole environment.
    pub(crate) variables: BTreeMap<String, String>,
    pub(crate) directory: PathBuf,
    /// A file that it reads; nothing without one.
    pub(crate) stdin: Option<PathBuf>,
}

/// When a program is ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Watch {
    pub(crate) deadline: Instant,
    /// How long it may say nothing.
    pub(crate) idle: Duration,
    /// Between being asked to end and being killed.
    pub(crate) grace: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    Out,
    Err,
}

/// Why a program was ended from outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cut {
    Cancelled,
    Timeout,
    Idle,
    /// What was used up.
    Budget(String),
}

/// How a program ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ending {
    /// None when a signal ended it.
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) cut: Option<Cut>,
    /// The last of what it wrote to standard error.
    pub(crate) complaints: String,
}

/// A longer line is cut: no agent says anything in one that a reader could use.
const LONGEST_LINE: usize = 8 * 1024 * 1024;
const KEPT_COMPLAINTS: usize = 4096;
/// How long something that left the program's group may hold its output open after it has ended.
const LINGERING: Duration = Duration::from_secs(2);

enum Heard {
    Line(Stream, Vec<u8>),
    Closed,
    Ended(ExitStatus),
    Interrupted,
}

/// Somebody asks this worker to end. Told from a signal, heard by whatever program runs.
#[derive(Debug, Default)]
pub struct Interruption {
    asked: AtomicBool,
    listener: Mutex<Option<SyncSender<Heard>>>,
}

impl std::fmt::Debug for Heard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Heard")
    }
}

impl Interruption {
    pub fn ask(&self) {
        self.asked.store(true, Ordering::SeqCst);
        let listener = self.listener.lock().expect("nobody panics with the lock").clone();
        if let Some(listener) = listener {
            // Gone means that the program has ended, and the flag is seen by the next.
            _ = listener.send(Heard::Interrupted);
        }
    }

    pub(crate) fn was_asked(&self) -> bool {
        self.asked.load(Ordering::SeqCst)
    }

    fn listen(&self, to: Option<SyncSender<Heard>>) {
        *self.listener.lock().expect("nobody panics with the lock") = to;
    }
}

impl Launch {
    /// Runs the program to its end. `on_line` gets every line, without its end, and may end the program by naming a cut.
    /// Nothing of its process group is left afterwards.
    pub(crate) fn run(
        &self,
        watch: Watch,
        interruption: &Interruption,
        mut on_line: impl FnMut(Stream, &[u8]) -> Option<Cut>,
    ) -> io::Result<Ending> {
        #[expect(clippy::disallowed_methods, reason = "running a program is what a worker is for")]
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).env_clear().envs(&self.variables).current_dir(&self.directory);
        let stdin = match &self.stdin {
            Some(path) => File::open(path)?.into(),
            None => Stdio::null(),
        };
        command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn()?;
        let group = Group(i32::try_from(child.id()).ok().and_then(Pid::from_raw));
        let (sender, heard) = sync_channel(64);
        read_lines(child.stdout.take(), Stream::Out, sender.clone());
        read_lines(child.stderr.take(), Stream::Err, sender.clone());
        interruption.listen(Some(sender.clone()));
        thread::spawn(move || {
            // Fails only for somebody else's child.
            if let Ok(status) = child.wait() {
                _ = sender.send(Heard::Ended(status));
            }
        });
        let ending = Attendance::new(watch, &group, interruption.was_asked()).attend(&heard, &mut on_line);
        interruption.listen(None);
        Ok(ending)
    }
}

/// Whatever is left of a program when this is dropped is killed.
struct Group(Option<Pid>);

impl Group {
    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.0 {
            // An empty group has ended already.
            _ = kill_process_group(pid, signal);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

struct Attendance<'a> {
    watch: Watch,
    group: &'a Group,
    last_word: Instant,
    cut: Option<Cut>,
    kill_at: Option<Instant>,
    ended: Option<(ExitStatus, Instant)>,
    open_streams: u8,
    complaints: Vec<u8>,
}

impl<'a> Attendance<'a> {
    fn new(watch: Watch, group: &'a Group, interrupted: bool) -> Self {
        let mut attendance = Self {
            watch,
            group,
            last_word: Instant::now(),
            cut: None,
            kill_at: None,
            ended: None,
            open_streams: 2,
            complaints: Vec::new(),
        };
        if interrupted {
            attendance.cut(Cut::Cancelled);
        }
        attendance
    }

    fn attend(
        mut self,
        heard: &Receiver<Heard>,
        on_line: &mut impl FnMut(Stream, &[u8]) -> Option<Cut>,
    ) -> Ending {
        loop {
            if let Some((status, _)) = self.ended
                && self.open_streams == 0
            {
                return self.ending(Some(status));
            }
            let wait = self.next_alarm().saturating_duration_since(Instant::now());
            match heard.recv_timeout(wait) {
                Ok(Heard::Line(stream, line)) => {
                    self.last_word = Instant::now();
                    if stream == Stream::Err {
                        self.complain(&line);
                    }
                    if let Some(cut) = on_line(stream, &line) {
                        self.cut(cut);
                    }
                }
                Ok(Heard::Closed) => self.open_streams -= 1,
                Ok(Heard::Ended(status)) => {
                    // Whatever it left in the background has nobody to work for.
                    self.group.signal(Signal::KILL);
                    self.ended = Some((status, Instant::now()));
                }
                Ok(Heard::Interrupted) => self.cut(Cut::Cancelled),
                Err(RecvTimeoutError::Timeout) => {
                    if self.alarm() {
                        let status = self.ended.map(|(status, _)| status);
                        return self.ending(status);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let status = self.ended.map(|(status, _)| status);
                    return self.ending(status);
                }
            }
        }
    }

    fn next_alarm(&self) -> Instant {
        if let Some((_, since)) = self.ended {
            return since + LINGERING;
        }
        self.kill_at.unwrap_or_else(|| self.watch.deadline.min(self.last_word + self.watch.idle))
    }

    /// True when there is nothing more to wait for.
    fn alarm(&mut self) -> bool {
        let now = Instant::now();
        if self.ended.is_some() {
            // Something that left the group holds the output. It ends with the sandbox.
            return true;
        }
        match self.kill_at {
            Some(at) if now >= at => {
                self.group.signal(Signal::KILL);
                // Killed processes end, but a full pipe in between must not stop the watch.
                self.kill_at = Some(now + Duration::from_secs(1));
            }
            Some(_) => {}
            None if now >= self.watch.deadline => self.cut(Cut::Timeout),
            None if now >= self.last_word + self.watch.idle => self.cut(Cut::Idle),
            None => {}
        }
        false
    }

    /// Asks the program to end. The first reason stays. A budget counts also when the program was faster.
    fn cut(&mut self, why: Cut) {
        let too_late = self.ended.is_some() && !matches!(why, Cut::Budget(_));
        if self.cut.is_none() && !too_late {
            self.cut = Some(why);
            self.kill_at = Some(Instant::now() + self.watch.grace);
            self.group.signal(Signal::TERM);
        }
    }

    fn complain(&mut self, line: &[u8]) {
        self.complaints.extend_from_slice(line);
        self.complaints.push(b'\n');
        let surplus = self.complaints.len().saturating_sub(KEPT_COMPLAINTS);
        self.complaints.drain(..surplus);
    }

    fn ending(self, status: Option<ExitStatus>) -> Ending {
        Ending {
            code: status.and_then(|status| status.code()),
            signal: status.and_then(|status| status.signal()),
            cut: self.cut,
            complaints: String::from_utf8_lossy(&self.complaints).trim().to_owned(),
        }
    }
}

fn read_lines(from: Option<impl Read + Send + 'static>, stream: Stream, to: SyncSender<Heard>) {
    thread::spawn(move || {
        let mut from = from.map(BufReader::new);
        while let Some(line) = from.as_mut().and_then(|from| next_line(from).ok().flatten()) {
            if to.send(Heard::Line(stream, line)).is_err() {
                return;
            }
        }
        _ = to.send(Heard::Closed);
    });
}

/// The next line without its end, cut at the longest; none at the end of the stream.
fn next_line(from: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    let mut any = false;
    loop {
        let piece = match from.fill_buf() {
            Ok(piece) => piece,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if piece.is_empty() {
            return Ok(any.then_some(line));
        }
        any = true;
        let end = piece.iter().position(|byte| *byte == b'\n');
        let taken = end.unwrap_or(piece.len());
        let room = LONGEST_LINE.saturating_sub(line.len());
        line.extend_from_slice(&piece[..taken.min(room)]);
        from.consume(taken + usize::from(end.is_some()));
        if end.is_some() {
            return Ok(Some(line));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Launch {
        Launch {
            program: "/bin/sh".into(),
            arguments: vec!["-c".into(), script.into()],
            variables: BTreeMap::from([("PATH".into(), "/usr/bin:/bin".into())]),
            directory: "/".into(),
            stdin: None,
        }
    }

    fn watch(deadline_ms: u64, idle_ms: u64) -> Watch {
        Watch {
            deadline: Instant::now() + Duration::from_millis(deadline_ms),
            idle: Duration::from_millis(idle_ms),
            grace: Duration::from_millis(200),
        }
    }

    fn lines(script: &str, watch: Watch) -> (Vec<String>, Ending) {
        let mut lines = Vec::new();
        let ending = shell(script).run(watch, &Interruption::default(), |_, line| {
            lines.push(String::from_utf8_lossy(line).into_owned());
            None
        });
        (lines, ending.unwrap())
    }

    #[test]
    fn a_program_says_lines_and_ends() {
        let (lines, ending) = lines("echo a; echo b; printf c; exit 3", watch(60_000, 60_000));
        assert_eq!(lines, ["a", "b", "c"]);
        assert_eq!((ending.code, ending.cut), (Some(3), None));
    }

    #[test]
    fn a_program_that_takes_too_long_or_says_nothing_is_ended_also_when_it_will_not() {
        let stubborn = "trap '' TERM; echo here; while :; do sleep 1; done";
        let (_, ending) = lines(stubborn, watch(300, 60_000));
        assert_eq!((ending.signal, ending.cut), (Some(9), Some(Cut::Timeout)));
        let (_, ending) = lines("echo here; exec sleep 600", watch(60_000, 300));
        assert_eq!((ending.signal, ending.cut), (Some(15), Some(Cut::Idle)));
    }

    #[test]
    fn a_program_ends_when_the_worker_is_asked_to() {
        let interruption = Interruption::default();
        let ending = shell("echo ready; sleep 600")
            .run(watch(60_000, 60_000), &interruption, |_, _| Some(Cut::Budget("tokens".into())))
            .unwrap();
        assert_eq!(ending.cut, Some(Cut::Budget("tokens".into())));
        interruption.ask();
        let ending = shell("sleep 600").run(watch(60_000, 60_000), &interruption, |_, _| None).unwrap();
        assert_eq!(ending.cut, Some(Cut::Cancelled));
    }

    #[test]
    fn a_child_that_keeps_the_output_open_does_not_keep_the_worker() {
        let (lines, ending) = lines("echo out; sleep 600 & exit 0", watch(60_000, 60_000));
        assert_eq!((lines, ending.code), (vec!["out".to_owned()], Some(0)));
    }

    #[test]
    fn a_line_without_end_is_cut() {
        let text = vec![b'x'; LONGEST_LINE + 10];
        let read = next_line(&mut BufReader::new(text.as_slice())).unwrap().unwrap();
        assert_eq!(read.len(), LONGEST_LINE);
    }
}
