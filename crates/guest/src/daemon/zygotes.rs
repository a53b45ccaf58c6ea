//! Interpreters that are ready: started ahead, inside the sandbox, as the workload.
//!
//! A zygote imports what its environment names and then forks whenever it is asked to. The process that comes of it
//! waits, as a child of this one, for a job: it is tagged as the exec that it becomes, recorded, and told to go. Whatever
//! fails on the way, the exec starts as any other does.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use cubicle_sys::spawn::{self, Program, Spawn, Strings};
use cubicle_sys::{clock, signal, socket};
use rustix::event::epoll::EventFlags;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, sockopt};

use super::connection::Phase;
use super::execute::{COLD_PY, ZYGOTE_PY};
use super::http::Refusal;
use super::launch;
use super::routes::{Answer, to_value};
use super::server::{Server, Token};
use super::timers::Due;
use super::tree::{self, Tag};
use crate::wire::execute::{WarmRequest, Warmed};

/// Each keeps an interpreter and a fork of it in memory.
const MOST_ZYGOTES: usize = 2;
/// Imports may take long; one that takes longer is not worth waiting for.
const START_NANOS: u64 = 60_000_000_000;
/// A fork that was asked for comes within a few milliseconds.
const FORK_PATIENCE: Duration = Duration::from_millis(100);
/// An environment whose zygotes end that often gets no others.
const MOST_ENDS: u32 = 8;
/// The kernel takes about 200 KiB in one message.
const LONGEST_JOB: usize = 128 * 1024;
/// Tags of zygotes are above those of all execs: a tag can only be lowered.
const FIRST_TAG: u32 = u32::MAX - 0x00ff_ffff;

/// Variables that an interpreter reads only when it starts, or that decide which one starts.
const READ_AT_START: [&str; 6] = ["HOME", "PATH", "LANG", "LANGUAGE", "GLIBC_TUNABLES", "VIRTUAL_ENV"];
/// The same, by how they begin; some are read by libraries when they are imported.
const READ_AT_START_PREFIXES: [&str; 14] = [
    "PYTHON",
    "LD_",
    "LC_",
    "MALLOC_",
    "OMP_",
    "KMP_",
    "GOMP_",
    "OPENBLAS_",
    "MKL_",
    "BLIS_",
    "NUMEXPR_",
    "MPL",
    "CUDA_",
    "ARROW_",
];

#[derive(Debug, Default)]
pub(super) struct Zygotes {
    all: Vec<Zygote>,
    made: u32,
    ends: BTreeMap<Option<String>, u32>,
    because: BTreeMap<Option<String>, &'static str>,
}

#[derive(Debug)]
struct Zygote {
    number: u32,
    environment: Option<String>,
    python: String,
    /// What it was started with, of what is read at the start.
    variables: BTreeMap<String, String>,
    pid: i32,
    control: OwnedFd,
    is_ready: bool,
    standby: Option<Standby>,
    used: u64,
}

/// A fork that waits for a job. Its pid is known when it waits.
#[derive(Debug)]
struct Standby {
    line: OwnedFd,
    pid: Option<i32>,
}

/// Which interpreter would run what.
#[derive(Debug)]
pub(super) struct WarmStart {
    pub(super) environment: Option<String>,
    pub(super) python: String,
    /// With the code.
    pub(super) file: String,
}

/// A process that becomes an exec when it is told to go.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) pid: i32,
    zygote: u32,
    line: OwnedFd,
}

impl Held {
    /// One that was killed meanwhile does not hear it; its end is seen as that of any exec.
    pub(super) fn go(&self) {
        let _ = rustix::net::send(&self.line, b"go", SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    }
}

impl Zygotes {
    fn position(&self, number: u32) -> Option<usize> {
        self.all.iter().position(|zygote| zygote.number == number)
    }

    fn of(&self, environment: Option<&str>) -> Option<&Zygote> {
        self.all.iter().find(|zygote| zygote.environment.as_deref() == environment)
    }

    pub(super) fn is_warming(&self) -> bool {
        self.all.iter().any(|zygote| !zygote.is_ready)
    }

    /// A fork that ended is not given a job; its pid may be another process's from now on.
    pub(super) fn note_reaped(&mut self, pid: i32) {
        for zygote in &mut self.all {
            if zygote.standby.as_ref().is_some_and(|standby| standby.pid == Some(pid)) {
                zygote.standby = None;
            }
            if zygote.pid == pid {
                zygote.pid = 0;
            }
        }
    }

    pub(super) fn tags(&self) -> Vec<Tag> {
        self.all.iter().map(|zygote| Tag::of(FIRST_TAG + zygote.number)).collect()
    }
}

impl Server {
    /// `POST /warm`.
    pub(super) fn warm(&mut self, request: &WarmRequest, keep_alive: bool) -> Result<Answer, Refusal> {
        let environment = request.environment.clone();
        if let Some(name) = &environment
            && self.environments.get(name).is_none()
        {
            return Err(self.environments.not_found(name));
        }
        self.ensure_zygote(environment.as_deref());
        if request.wait {
            return Ok(Answer::Phase(Phase::Warming { environment, keep_alive }));
        }
        let warmed = self.warmed(environment.as_deref());
        Ok(Answer::Json(200, to_value(&warmed.unwrap_or(Warmed { ready: false, because: None }))))
    }

    /// Whether an interpreter is ready, once that is known.
    pub(super) fn warmed(&self, environment: Option<&str>) -> Option<Warmed> {
        let Some(zygote) = self.zygotes.of(environment) else {
            let because = self.zygotes.because.get(&environment.map(str::to_owned)).copied();
            let because = because.unwrap_or("its interpreter ended").to_owned();
            return Some(Warmed { ready: false, because: Some(because) });
        };
        let waits = zygote.standby.as_ref().is_some_and(|standby| standby.pid.is_some());
        (zygote.is_ready && waits).then_some(Warmed { ready: true, because: None })
    }

    /// Has a zygote of this environment, unless none will do.
    pub(super) fn ensure_zygote(&mut self, environment: Option<&str>) {
        let key = environment.map(str::to_owned);
        let variables = self.variables_of(environment);
        let current =
            self.zygotes.of(environment).map(|zygote| (zygote.number, zygote.variables == variables));
        match current {
            Some((number, true)) => {
                if let Some(at) = self.zygotes.position(number) {
                    self.zygotes.all[at].used = clock::boot_nanos();
                }
                return;
            }
            // It was told other variables since, which a fresh interpreter would have.
            Some((number, false)) => self.end_zygote(number),
            None => {}
        }
        if self.zygotes.ends.get(&key).is_some_and(|ends| *ends >= MOST_ENDS) {
            self.zygotes.because.insert(key, "its interpreters ended too often");
            return;
        }
        while self.zygotes.all.len() >= MOST_ZYGOTES {
            let oldest = self.zygotes.all.iter().min_by_key(|zygote| zygote.used).map(|zygote| zygote.number);
            let Some(oldest) = oldest else { break };
            self.end_zygote(oldest);
        }
        let modules =
            environment.and_then(|name| self.environments.get(name)).map(|found| found.modules.clone());
        self.start_zygote(environment, &modules.unwrap_or_default());
    }

    fn python_of(&self, environment: Option<&str>) -> String {
        let found = environment.and_then(|name| self.environments.get(name));
        found.map_or("python3".to_owned(), |found| found.python.clone())
    }

    fn whole_environment(&self, environment: Option<&str>) -> BTreeMap<String, String> {
        let mut own = BTreeMap::new();
        if environment.is_some() {
            self.enter_environment(&mut own, &self.python_of(environment));
        }
        let mut variables = self.settings.env.clone();
        variables.extend(own);
        variables
    }

    fn variables_of(&self, environment: Option<&str>) -> BTreeMap<String, String> {
        let mut variables = self.whole_environment(environment);
        variables.retain(|name, _| is_read_at_start(name));
        variables
    }

    fn start_zygote(&mut self, environment: Option<&str>, modules: &[String]) {
        let key = environment.map(str::to_owned);
        if self.try_to_start_zygote(environment, modules).is_err() {
            self.zygotes.because.insert(key, "its interpreter cannot be started");
        } else {
            self.zygotes.because.remove(&key);
        }
    }

    fn try_to_start_zygote(&mut self, environment: Option<&str>, modules: &[String]) -> io::Result<()> {
        let python = self.python_of(environment);
        let env = self.whole_environment(environment);
        let (control, child) = line()?;
        let null = rustix::fs::open(c"/dev/null", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        let number = self.zygotes.made;
        let arguments = [python.as_str(), "-c", ZYGOTE_PY, COLD_PY];
        let arguments = arguments.into_iter().chain(modules.iter().map(String::as_str)).map(str::as_bytes);
        let variables: Vec<String> = env.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let path = env.get("PATH").map_or(launch::DEFAULT_PATH, String::as_str);
        let candidates = launch::candidates(&python, path);
        let candidates: Vec<&std::ffi::CStr> = candidates.iter().map(std::ffi::CString::as_c_str).collect();
        let spawned = spawn::spawn(&Spawn {
            program: Program::FirstOf(&candidates),
            arguments: &Strings::new(arguments),
            environment: &Strings::new(variables.iter().map(String::as_bytes)),
            working_directory: c"/",
            stdio: [child.as_fd(), null.as_fd(), null.as_fd()],
            has_terminal: false,
            ids: self.settings.workload.ids(),
            tag: Some(spawn::Tag { value: Tag::of(FIRST_TAG + number).0, permit: self.settings.permit }),
        });
        let pid = spawned.map_err(|failed| failed.error)?;
        self.zygotes.made += 1;
        self.epoll.add(control.as_fd(), Token::Zygote(number), EventFlags::IN)?;
        let mut variables = env;
        variables.retain(|name, _| is_read_at_start(name));
        let used = clock::boot_nanos();
        self.zygotes.all.push(Zygote {
            number,
            environment: environment.map(str::to_owned),
            python,
            variables,
            pid,
            control,
            is_ready: false,
            standby: None,
            used,
        });
        self.timers.add(used + START_NANOS, Due::Zygote(number));
        Ok(())
    }

    /// A zygote said something, or ended.
    pub(super) fn hear_zygote(&mut self, number: u32) {
        let Some(at) = self.zygotes.position(number) else { return };
        let mut said = [0; 16];
        let zygote = &mut self.zygotes.all[at];
        match rustix::io::read(&zygote.control, &mut said) {
            Ok(5) if said.starts_with(b"ready") => {
                zygote.is_ready = true;
                self.ask_for_standby(number);
            }
            // Modules were installed since; one that is started now sees them.
            Ok(5) if said.starts_with(b"stale") => {
                let environment = zygote.environment.clone();
                self.end_zygote(number);
                self.ensure_zygote(environment.as_deref());
            }
            Ok(7) if said.starts_with(b"threads") => {
                let environment = zygote.environment.clone();
                self.end_zygote(number);
                self.start_zygote(environment.as_deref(), &[]);
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            // Also what it should not say: then it is not what was started.
            Ok(_) | Err(_) => {
                let (key, was_ready) = (zygote.environment.clone(), zygote.is_ready);
                let because = if was_ready {
                    "its interpreter was ended"
                } else {
                    "its interpreter ended before it was ready"
                };
                *self.zygotes.ends.entry(key.clone()).or_default() += 1;
                self.zygotes.because.insert(key, because);
                self.end_zygote(number);
            }
        }
    }

    fn ask_for_standby(&mut self, number: u32) {
        let Some(at) = self.zygotes.position(number) else { return };
        let ask = || -> io::Result<OwnedFd> {
            let (ours, theirs) = line()?;
            sockopt::set_socket_passcred(&ours, true)?;
            socket::send_with(self.zygotes.all[at].control.as_fd(), b"fork", theirs.as_fd())?;
            self.epoll.add(ours.as_fd(), Token::Standby(number), EventFlags::IN)?;
            Ok(ours)
        };
        let asked = ask();
        self.zygotes.all[at].standby = asked.ok().map(|line| Standby { line, pid: None });
    }

    /// A fork waits for its job, or ended.
    pub(super) fn hear_standby(&mut self, number: u32) {
        let Some(at) = self.zygotes.position(number) else { return };
        let zygote = &mut self.zygotes.all[at];
        let Some(standby) = &mut zygote.standby else { return };
        match hear_pid(standby.line.as_fd()) {
            Ok(Some(pid)) => {
                standby.pid = Some(pid);
                // Nothing more is expected of it before it has its job; only its end would be heard.
                self.epoll.remove(standby.line.as_fd());
            }
            Ok(None) => {}
            Err(_) => zygote.standby = None,
        }
    }

    /// Takes a process that waits and gives it a job, which it does not begin yet. None: start it as any other.
    pub(super) fn hold_warm(
        &mut self,
        warm: &WarmStart,
        cwd: &str,
        env: &BTreeMap<&str, &str>,
        stdio: [BorrowedFd<'_>; 3],
        tag: Tag,
    ) -> Option<Held> {
        let zygote = self.zygotes.of(warm.environment.as_deref())?;
        let fits = zygote.python == warm.python
            && env.iter().filter(|(name, _)| is_read_at_start(name)).count() == zygote.variables.len()
            && zygote.variables.iter().all(|(name, value)| env.get(name.as_str()) == Some(&value.as_str()));
        if !fits || !zygote.is_ready {
            return None;
        }
        let number = zygote.number;
        if zygote.standby.is_none() {
            self.ask_for_standby(number);
        }
        self.wait_for_standby(number);
        let at = self.zygotes.position(number)?;
        let Standby { line, pid } = self.zygotes.all[at].standby.take()?;
        self.zygotes.all[at].used = clock::boot_nanos();
        let mut job = format!("{}\0{cwd}", warm.file).into_bytes();
        for (name, value) in env {
            job.extend_from_slice(format!("\0{name}={value}").as_bytes());
        }
        let permit = self.settings.permit;
        let hold = || {
            let pid = pid.filter(|pid| is_child(*pid))?;
            if job.len() > LONGEST_JOB || socket::send_with_all(line.as_fd(), &job, &stdio).ok()? != job.len()
            {
                return None;
            }
            spawn::tag(pid, spawn::Tag { value: tag.0, permit }, self.settings.workload.ids()).ok()?;
            Some(pid)
        };
        match hold() {
            Some(pid) => Some(Held { pid, zygote: number, line }),
            None => {
                if let Some(pid) = pid {
                    let _ = signal::send(pid, tree::SIGKILL);
                }
                self.ask_for_standby(number);
                None
            }
        }
    }

    /// Lets a held process go, and has the next one made.
    pub(super) fn let_go(&mut self, held: &Held) {
        held.go();
        self.ask_for_standby(held.zygote);
    }

    /// One that was asked for is worth a short wait: it comes sooner than a fresh interpreter.
    fn wait_for_standby(&mut self, number: u32) {
        let Some(at) = self.zygotes.position(number) else { return };
        let Some(standby) = &self.zygotes.all[at].standby else { return };
        if standby.pid.is_some() {
            return;
        }
        let mut polled = [PollFd::new(&standby.line, PollFlags::IN)];
        let patience = rustix::event::Timespec { tv_sec: 0, tv_nsec: FORK_PATIENCE.subsec_nanos().into() };
        if matches!(rustix::event::poll(&mut polled, Some(&patience)), Ok(1..)) {
            self.hear_standby(number);
        }
    }

    pub(super) fn end_zygotes_of(&mut self, environment: &str) {
        if let Some(number) = self.zygotes.of(Some(environment)).map(|zygote| zygote.number) {
            self.end_zygote(number);
        }
        self.zygotes.ends.remove(&Some(environment.to_owned()));
    }

    /// One that is not ready in time never will be.
    pub(super) fn end_slow_zygote(&mut self, number: u32) {
        let Some(at) = self.zygotes.position(number) else { return };
        if !self.zygotes.all[at].is_ready {
            let key = self.zygotes.all[at].environment.clone();
            *self.zygotes.ends.entry(key.clone()).or_default() += 1;
            self.zygotes.because.insert(key, "its interpreter was not ready in time");
            self.end_zygote(number);
        }
    }

    fn end_zygote(&mut self, number: u32) {
        let Some(at) = self.zygotes.position(number) else { return };
        let zygote = self.zygotes.all.remove(at);
        let own = Some(zygote.pid).filter(|pid| *pid > 0);
        for pid in own.into_iter().chain(zygote.standby.and_then(|standby| standby.pid)) {
            let _ = signal::send(pid, tree::SIGKILL);
        }
        // Whatever else has its tag: forks that did not wait yet, and what an import started.
        tree::kill(Tag::of(FIRST_TAG + number));
    }
}

/// Both ends of a line on which messages keep their limits. Ours does not wait.
fn line() -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    rustix::io::ioctl_fionbio(&ours, true)?;
    Ok((ours, theirs))
}

fn hear_pid(line: BorrowedFd<'_>) -> io::Result<Option<i32>> {
    match socket::receive_from_process(line, &mut [0; 16]) {
        Ok((0, _) | (_, None)) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok((_, Some(pid))) => Ok(Some(pid)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether it lives and will be reaped here: only then its exit comes from the kernel.
fn is_child(pid: i32) -> bool {
    use rustix::process::{Pid, WaitId, WaitIdOptions};
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let Some(pid) = Pid::from_raw(pid) else { return false };
    matches!(rustix::process::waitid(WaitId::Pid(pid), options), Ok(None))
}

fn is_read_at_start(name: &str) -> bool {
    READ_AT_START.contains(&name) || READ_AT_START_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_that_change_how_an_interpreter_starts_are_known() {
        for name in ["PYTHONPATH", "LD_PRELOAD", "LC_ALL", "LANG", "PATH", "HOME", "OMP_NUM_THREADS"] {
            assert!(is_read_at_start(name), "{name}");
        }
        for name in ["OUTPUT_DIR", "API_KEY", "TZ", "LANDLORD"] {
            assert!(!is_read_at_start(name), "{name}");
        }
    }

    #[test]
    fn tags_of_zygotes_are_above_those_of_execs() {
        assert!(Tag::of(FIRST_TAG).0 > Tag::of(1_000_000_000).0);
    }
}
