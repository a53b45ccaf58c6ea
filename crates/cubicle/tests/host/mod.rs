//! What the black-box tests need from the host: a data directory, processes, and a terminal.

use std::cell::RefCell;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_cubicle");
/// Long enough for any host; only a hang gets there.
const BOUND: Duration = Duration::from_secs(60);

/// A data directory of its own on a host where the default isolation works.
pub(crate) struct Host {
    directory: tempfile::TempDir,
}

impl Host {
    /// `None` where the host cannot run sandboxes; the test that asks is counted as skipped.
    pub(crate) fn new() -> Option<Self> {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        // The unprivileged part of cubicle must get to its own directory below.
        let readable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(directory.path(), readable).expect("the directory is ours");
        let host = Self { directory };
        let doctor = host.cubicle(&["doctor"]);
        if doctor.status.code() == Some(0) {
            return Some(host);
        }
        let said =
            String::from_utf8_lossy(&doctor.stdout).into_owned() + &String::from_utf8_lossy(&doctor.stderr);
        let why = said.split_whitespace().collect::<Vec<_>>().join(" ");
        let test = std::thread::current().name().unwrap_or("a test").to_owned();
        // Not captured by the test runner, so that the skip is seen and counted.
        let _ =
            writeln!(std::io::stderr(), "skipped: {test}: the default isolation does not work here: {why}");
        None
    }

    pub(crate) fn scratch(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn data_dir(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    pub(crate) fn command(&self, program: &str, arguments: &[&str]) -> Command {
        #[expect(clippy::disallowed_methods, reason = "a black-box test starts the program that it tests")]
        let mut command = Command::new(program);
        command.args(arguments).env("CUBICLE_DATA_DIR", self.data_dir());
        command
    }

    /// Runs `cubicle` to its end without input.
    pub(crate) fn cubicle(&self, arguments: &[&str]) -> Output {
        let mut command = self.command(BINARY, arguments);
        command.stdin(Stdio::null()).output().expect("the built program starts")
    }

    /// Runs `cubicle run` to its end without input.
    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.cubicle(&[&["run"], arguments].concat())
    }

    /// Starts `cubicle` with its stdout piped.
    pub(crate) fn start(&self, arguments: &[&str], stdin: Stdio) -> Child {
        self.start_program(BINARY, arguments, stdin)
    }

    pub(crate) fn start_program(&self, program: &str, arguments: &[&str], stdin: Stdio) -> Child {
        let mut command = self.command(program, arguments);
        command.stdin(stdin).stdout(Stdio::piped()).spawn().expect("the program starts")
    }

    /// Starts a program of which only its effects matter.
    pub(crate) fn start_quietly(&self, program: &str, arguments: &[&str], stdin: Stdio) -> Child {
        let mut command = self.command(program, arguments);
        command.stdin(stdin).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the program starts")
    }

    /// Starts `cubicle` on a terminal.
    pub(crate) fn start_on(&self, terminal: &Terminal, arguments: &[&str]) -> Child {
        let end = || Stdio::from(terminal.user_end.try_clone().expect("a descriptor can be duplicated"));
        let mut command = self.command(BINARY, arguments);
        command.stdin(end()).stdout(end()).stderr(end()).spawn().expect("the program starts")
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // What a failed test kept must not outlive it.
        self.cubicle(&["rm", "--all"]);
        self.cubicle(&["gc"]);
    }
}

pub(crate) fn send(child: &Child, signal: i32) {
    let pid = Pid::from_raw(child.id() as i32).expect("a child has a pid");
    let signal = Signal::from_named_raw(signal).expect("a signal with a name");
    kill_process(pid, signal).expect("the child is there");
}

/// Whether this process, and so whatever it starts, ignores a signal: a shell without job control does so to the
/// background.
pub(crate) fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").expect("a process has a status");
    let mask =
        status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("the status names signals");
    let mask = u64::from_str_radix(mask.trim(), 16).expect("a mask is a number");
    mask & (1 << (signal - 1)) != 0
}

/// Waits for the end, with a bound.
pub(crate) fn wait(child: &mut Child) -> ExitStatus {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("the child is ours") {
            return status;
        }
        if start.elapsed() > BOUND {
            child.kill().expect("the child is ours");
            panic!("the program did not end within {BOUND:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A terminal with a person at it: what is typed goes in, what is shown is read.
pub(crate) struct Terminal {
    person_end: OwnedFd,
    user_end: OwnedFd,
    shown: RefCell<Vec<u8>>,
}

impl Terminal {
    pub(crate) fn open(rows: u16, columns: u16) -> Self {
        let person_end = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("the host has terminals");
        grantpt(&person_end).expect("the terminal is ours");
        unlockpt(&person_end).expect("the terminal is ours");
        let name = ptsname(&person_end, Vec::new()).expect("the terminal has a name");
        let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY;
        let user_end =
            rustix::fs::open(name.as_c_str(), flags, rustix::fs::Mode::empty()).expect("it can be opened");
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&user_end, size).expect("the terminal is ours");
        Self { person_end, user_end, shown: RefCell::default() }
    }

    /// Everything that raw mode changes.
    pub(crate) fn mode(&self) -> String {
        let mode = tcgetattr(&self.user_end).expect("the terminal is ours");
        format!(
            "{:?} {:?} {:?} {:?}",
            mode.input_modes, mode.output_modes, mode.control_modes, mode.local_modes
        )
    }

    pub(crate) fn type_keys(&self, keys: &str) {
        rustix::io::write(&self.person_end, keys.as_bytes()).expect("the terminal takes keys");
    }

    /// What was shown by the last look.
    pub(crate) fn shown(&self) -> String {
        String::from_utf8_lossy(&self.shown.borrow()).into_owned()
    }

    /// Waits until the text is shown, with a bound.
    pub(crate) fn expect(&self, text: &str) {
        let start = Instant::now();
        loop {
            let so_far = String::from_utf8_lossy(&self.shown.borrow()).into_owned();
            if so_far.contains(text) {
                return;
            }
            assert!(start.elapsed() < BOUND, "'{text}' was not shown, but: {so_far}");
            let mut ready = [rustix::event::PollFd::new(&self.person_end, rustix::event::PollFlags::IN)];
            let pause = rustix::event::Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
            if rustix::event::poll(&mut ready, Some(&pause)).is_ok_and(|count| count > 0) {
                let mut buffer = [0; 4096];
                let read = rustix::io::read(&self.person_end, &mut buffer).unwrap_or(0);
                self.shown.borrow_mut().extend_from_slice(&buffer[..read]);
            }
        }
    }
}
