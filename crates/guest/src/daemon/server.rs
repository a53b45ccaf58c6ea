//! The loop: waits for everything at once and passes on what happened.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use cubicle_model::receipt::Amendment;
use cubicle_model::{ExecId, SandboxId};
use cubicle_sys::spawn::Permit;
use cubicle_sys::{clock, memory, signal, spawn};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use rustix::rand::GetRandomFlags;
use serde_json::Value;

use super::building::Building;
use super::connection::{Connection, Phase};
use super::contexts::Contexts;
use super::environments::Environments;
use super::exec::{Execs, Which};
use super::files::stage::Fingerprint;
use super::listeners::Listeners;
use super::oom::OomCounter;
use super::past::Past;
use super::slots::Slots;
use super::timers::{Due, Timers};
use super::tunnel::{Side, Tunnel};
use super::workers::Workers;
use super::zygotes::Zygotes;
use super::{Config, StartError, Workload};
use crate::hello::{self, Key, Nonce};
use crate::journal::{Draft, Journal, Kind};

/// Exit code when the sandbox reached its deadline.
pub const EXIT_DEADLINE: i32 = 75;
/// Exit code when the host has removed the journal, and with it every way to find the sandbox.
pub const EXIT_FORGOTTEN: i32 = 76;
/// Between two looks whether the journal is still there.
const LOOK_NANOS: u64 = 15_000_000_000;
const EXIT_ASKED: i32 = 0;

/// Beside one connection for each exec that may run.
const SPARE_CONNECTIONS: usize = 64;
const EVENTS_AT_ONCE: usize = 32;
const FEATURES: &[&str] =
    &["exec", "files", "journal", "listen", "ports", "accept", "forward", "contexts", "execute"];

/// Whom an event is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Token {
    Listener,
    Lifeline,
    Signals,
    Timers,
    Workers,
    Connection(u64),
    Tunnel(u64, Side),
    Forward(u64),
    Output(u32, Which),
    Input(u32),
    Context(u32),
    Zygote(u32),
    Standby(u32),
}

impl Token {
    /// The kind is in the highest byte, the number below it.
    fn to_u64(self) -> u64 {
        let (kind, number) = match self {
            Self::Listener => (0, 0),
            Self::Lifeline => (1, 0),
            Self::Signals => (2, 0),
            Self::Timers => (3, 0),
            Self::Workers => (4, 0),
            Self::Connection(key) => (5, key),
            Self::Tunnel(key, Side::Host) => (6, key),
            Self::Tunnel(key, Side::Port) => (7, key),
            Self::Output(exec, Which::Stdout) => (8, exec.into()),
            Self::Output(exec, Which::Stderr) => (9, exec.into()),
            Self::Input(exec) => (10, exec.into()),
            Self::Forward(number) => (11, number),
            Self::Context(exec) => (14, exec.into()),
            Self::Zygote(number) => (12, number.into()),
            Self::Standby(number) => (13, number.into()),
        };
        kind << 56 | number
    }

    fn from_u64(token: u64) -> Option<Self> {
        let number = token & 0x00ff_ffff_ffff_ffff;
        Some(match token >> 56 {
            0 => Self::Listener,
            1 => Self::Lifeline,
            2 => Self::Signals,
            3 => Self::Timers,
            4 => Self::Workers,
            5 => Self::Connection(number),
            6 => Self::Tunnel(number, Side::Host),
            7 => Self::Tunnel(number, Side::Port),
            8 => Self::Output(number as u32, Which::Stdout),
            9 => Self::Output(number as u32, Which::Stderr),
            10 => Self::Input(number as u32),
            11 => Self::Forward(number),
            14 => Self::Context(number as u32),
            12 => Self::Zygote(number as u32),
            13 => Self::Standby(number as u32),
            _ => return None,
        })
    }
}

#[derive(Debug)]
pub(super) struct Epoll(OwnedFd);

impl Epoll {
    pub(super) fn add(&self, fd: BorrowedFd<'_>, token: Token, flags: EventFlags) -> io::Result<()> {
        Ok(epoll::add(&self.0, fd, EventData::new_u64(token.to_u64()), flags)?)
    }

    pub(super) fn modify(&self, fd: BorrowedFd<'_>, token: Token, flags: EventFlags) -> io::Result<()> {
        Ok(epoll::modify(&self.0, fd, EventData::new_u64(token.to_u64()), flags)?)
    }

    /// For a descriptor that lives on elsewhere; closing one removes it by itself.
    pub(super) fn remove(&self, fd: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.0, fd);
    }
}

pub(super) struct Settings {
    pub(super) sandbox: SandboxId,
    pub(super) key: Key,
    pub(super) workload: Workload,
    pub(super) env: BTreeMap<String, String>,
    pub(super) secrets: PathBuf,
    pub(super) max_execs: usize,
    pub(super) max_executes: usize,
    pub(super) builtin_exe: Option<OwnedFd>,
    pub(super) permit: Permit,
}

/// Keys and environments are not for printing.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings").field("sandbox", &self.sandbox).finish_non_exhaustive()
    }
}

#[derive(Debug)]
pub(super) struct Server {
    pub(super) settings: Settings,
    pub(super) epoll: Epoll,
    pub(super) journal: Journal,
    pub(super) execs: Execs,
    pub(super) contexts: Contexts,
    pub(super) timers: Timers,
    pub(super) connections: Slots<Connection>,
    pub(super) parked: VecDeque<u64>,
    pub(super) tunnels: Slots<Tunnel>,
    pub(super) listeners: Listeners,
    pub(super) workers: Workers,
    pub(super) oom: OomCounter,
    pub(super) receipt: Option<String>,
    pub(super) amendments: Vec<Amendment>,
    pub(super) deadline: u64,
    /// Execs whose first process ended or whose output closed since the last look.
    pub(super) unsettled: Vec<u32>,
    /// What is read from pipes goes through it; there only while execs run that print much.
    pub(super) buffer: Vec<u8>,
    pub(super) null: Option<Arc<OwnedFd>>,
    /// When the first of those streams goes on whose exec has only just begun.
    pub(super) held_until: Option<u64>,
    pub(super) environments: Environments,
    pub(super) building: Building,
    /// Executes whose files a thread is writing.
    pub(super) staging: Vec<ExecId>,
    /// Files that the last answer to an execute told of.
    pub(super) told: Vec<Fingerprint>,
    pub(super) started: u64,
    pub(super) zygotes: Zygotes,
    /// Some reader has more to get at once.
    pub(super) has_more: bool,
    listener: Option<OwnedFd>,
    lifeline: Option<OwnedFd>,
    signals: OwnedFd,
}

impl Server {
    pub(super) fn new(config: Config) -> Result<Self, StartError> {
        let doing = |doing| move |source: io::Error| StartError::System { doing, source };
        let mut past = Past::default();
        let journal = Journal::open(config.journal, config.journal_limit, |offset, header, payload| {
            past.note(offset, header, payload);
        })?;
        let epoll = epoll::create(CreateFlags::CLOEXEC)
            .map_err(|error| doing("make the event queue")(error.into()))?;
        let epoll = Epoll(epoll);
        let timers = Timers::new().map_err(doing("make a timer"))?;
        let signals = signal::descriptor().map_err(doing("make a signal descriptor"))?;
        let now = clock::boot_nanos();
        let mut server = Self {
            settings: Settings {
                sandbox: config.sandbox,
                key: config.key,
                workload: config.workload,
                env: config.env,
                secrets: config.secrets,
                max_execs: config.max_execs,
                max_executes: config.max_executes,
                builtin_exe: config.builtin_exe,
                permit: config.permit,
            },
            epoll,
            journal,
            execs: Execs::default(),
            contexts: Contexts::default(),
            timers,
            connections: Slots::new(),
            parked: VecDeque::new(),
            tunnels: Slots::new(),
            listeners: Listeners::default(),
            workers: Workers::default(),
            oom: OomCounter::new(config.oom_events),
            receipt: config.receipt,
            amendments: Vec::new(),
            deadline: now,
            unsettled: Vec::new(),
            buffer: Vec::new(),
            null: None,
            held_until: None,
            environments: Environments::default(),
            building: Building::default(),
            staging: Vec::new(),
            told: Vec::new(),
            started: now,
            zygotes: Zygotes::default(),
            has_more: false,
            listener: config.listener,
            lifeline: config.lifeline,
            signals,
        };
        server.adopt(past).map_err(doing("complete an earlier journal"))?;
        server.write_first_records(&config.place).map_err(doing("write the journal"))?;
        server.set_deadline(config.deadline_seconds);
        // A journal that never had one cannot lose it.
        if server.journal.has_a_name() {
            server.timers.add(now + LOOK_NANOS, Due::Look);
        }
        server.watch_sources().map_err(doing("watch a descriptor"))?;
        for stream in config.connections {
            server.welcome(stream).map_err(doing("greet the host"))?;
        }
        Ok(server)
    }

    fn watch_sources(&self) -> io::Result<()> {
        let sources = [
            (self.listener.as_ref(), Token::Listener),
            (self.lifeline.as_ref(), Token::Lifeline),
            (Some(&self.signals), Token::Signals),
        ];
        for (source, token) in sources {
            if let Some(source) = source {
                rustix::io::ioctl_fionbio(source, true)?;
                self.epoll.add(source.as_fd(), token, EventFlags::IN)?;
            }
        }
        self.epoll.add(self.timers.descriptor(), Token::Timers, EventFlags::IN)
    }

    fn write_first_records(&mut self, place: &Value) -> io::Result<()> {
        let place = place.to_string();
        match &self.receipt {
            None => self.journal.append(&[draft(0, Kind::Place, place.as_bytes())])?,
            Some(receipt) => self.journal.append(&[
                draft(0, Kind::Place, place.as_bytes()),
                draft(0, Kind::Receipt, receipt.as_bytes()),
            ])?,
        };
        Ok(())
    }

    /// Goes on until the sandbox ends; returns only when waiting itself fails.
    pub(super) fn run(&mut self) -> StartError {
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS_AT_ONCE);
        loop {
            events.clear();
            let nanos = match (self.has_more, self.held_until) {
                (true, _) => Some(0),
                // At least a little, so that a clock that stands still does not make this loop spin.
                (false, Some(due)) => Some(due.saturating_sub(clock::boot_nanos()).max(10_000)),
                (false, None) => None,
            };
            let timeout = nanos.map(|nanos| rustix::event::Timespec {
                tv_sec: (nanos / 1_000_000_000) as i64,
                tv_nsec: (nanos % 1_000_000_000) as i64,
            });
            self.has_more = false;
            match epoll::wait(&self.epoll.0, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    return StartError::System { doing: "wait for events", source: error.into() };
                }
            }
            for event in &events {
                if let Some(token) = Token::from_u64(event.data.u64()) {
                    self.dispatch(token, event.flags);
                }
            }
            self.settle_cells();
            self.settle();
            self.notice_built();
            self.deliver();
            self.watch_forwarded();
        }
    }

    fn dispatch(&mut self, token: Token, flags: EventFlags) {
        match token {
            Token::Listener => self.welcome_all(),
            // Nobody writes to a lifeline: whatever happens on it is its end.
            Token::Lifeline => self.end_sandbox(EXIT_ASKED),
            Token::Signals => self.read_signals(),
            Token::Timers => self.handle_timers(),
            Token::Workers => self.take_back_from_workers(),
            Token::Connection(key) => self.drive(key, flags),
            Token::Tunnel(key, side) => self.drive_tunnel(key, side, flags),
            Token::Forward(number) => self.take_in(number as usize),
            Token::Output(exec, which) => {
                self.read_output(exec, which);
            }
            Token::Input(exec) => self.write_input(exec),
            Token::Context(exec) => self.drive_context(exec, flags),
            Token::Zygote(number) => self.hear_zygote(number),
            Token::Standby(number) => self.hear_standby(number),
        }
    }

    fn read_signals(&mut self) {
        let Ok(pending) = signal::read_pending(self.signals.as_fd()) else { return };
        // A process of the sandbox has no say in this; outside of it is whoever has no pid here.
        if pending.asked_to_end_by.is_some_and(|sender| sender == 0 || std::process::id() != 1) {
            self.end_sandbox(EXIT_ASKED);
        }
        self.reap();
    }

    /// Reaps every child that ended, also those that were orphaned to us.
    pub(super) fn reap(&mut self) {
        while let Some(reaped) = spawn::reap_any() {
            self.zygotes.note_reaped(reaped.pid);
            if let Some(number) = self.execs.note_reaped(reaped) {
                self.drain_output(number);
                self.interpreter_ended(number);
                self.unsettled.push(number);
            }
        }
    }

    fn handle_timers(&mut self) {
        let now = clock::boot_nanos();
        while let Some(due) = self.timers.take(now) {
            match due {
                Due::Deadline if now >= self.deadline => self.end_sandbox(EXIT_DEADLINE),
                Due::Deadline => {}
                Due::Hello(key) => self.drop_silent(key),
                Due::Connect(key) => self.give_up_connecting(key),
                Due::Timeout(exec) => self.timeout_is_over(exec),
                Due::Cell(exec) => self.cell_is_due(exec),
                Due::Ending(exec) => self.go_on_ending(exec),
                Due::Zygote(number) => self.end_slow_zygote(number),
                Due::Unwritten | Due::Forward => {}
                Due::Look if !self.journal.has_a_name() => self.end_sandbox(EXIT_FORGOTTEN),
                Due::Look => {
                    self.timers.add(now + LOOK_NANOS, Due::Look);
                    // What execs since the last look took of it.
                    memory::release_unused_stack();
                }
            }
        }
    }

    pub(super) fn set_deadline(&mut self, seconds: u64) {
        self.timers.remove(self.deadline, Due::Deadline);
        self.deadline =
            clock::boot_nanos().saturating_add(seconds.saturating_mul(1_000_000_000)).min(i64::MAX as u64);
        self.timers.add(self.deadline, Due::Deadline);
    }

    fn end_sandbox(&mut self, code: i32) -> ! {
        self.kill_everything();
        self.forget_all_code();
        std::process::exit(code)
    }

    fn welcome_all(&mut self) {
        loop {
            let Some(listener) = &self.listener else { return };
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::accept_with(listener, flags) {
                Ok(stream) => {
                    // A connection that ends while it is greeted is its own affair.
                    let _ = self.welcome(stream);
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(_) => return,
            }
        }
    }

    /// Speaks first on a new connection.
    fn welcome(&mut self, stream: OwnedFd) -> io::Result<()> {
        rustix::io::ioctl_fionbio(&stream, true)?;
        let nonce = Nonce(self.random());
        let hello_due = clock::boot_nanos() + hello::PATIENCE_SECONDS * 1_000_000_000;
        let mut connection = Connection::new(stream, Phase::Greeting { nonce, hello_due }, Vec::new());
        if self.connections.len() >= self.settings.max_execs + SPARE_CONNECTIONS {
            let refusal = hello::Refusal {
                code: "too_many_connections".into(),
                message: "the sandbox has as many connections as it takes: close some first".into(),
            };
            connection.outbox().extend(hello::line(&hello::ServerAnswer::Error(refusal)));
            connection.flush()?;
            return Ok(());
        }
        connection.outbox().extend(hello::line(&hello::greet(self.settings.sandbox, FEATURES, nonce)));
        connection.flush()?;
        let key = self.add_connection(connection)?;
        self.timers.add(hello_due, Due::Hello(key));
        Ok(())
    }

    pub(super) fn add_connection(&mut self, mut connection: Connection) -> io::Result<u64> {
        connection.watched = EventFlags::IN;
        let key = self.connections.insert(connection);
        let Some(connection) = self.connections.take(key) else { return Ok(key) };
        let watched = self.epoll.add(connection.fd(), Token::Connection(key), EventFlags::IN);
        match watched {
            Ok(()) => {
                self.connections.put_back(key, connection);
                Ok(key)
            }
            Err(error) => {
                self.connections.free(key);
                Err(error)
            }
        }
    }

    pub(super) fn random<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        // The kernel's source is ready long before anything runs here, and gives this few bytes at once.
        let filled = rustix::rand::getrandom(&mut bytes[..], GetRandomFlags::empty());
        assert_eq!(filled, Ok(N), "the kernel gives random bytes");
        bytes
    }

    /// Sends an exec what is waiting for its standard input.
    pub(super) fn write_input(&mut self, number: u32) {
        let Some(live) = self.execs.live_mut(number) else { return };
        let is_left = live.input.write();
        let was_watched = live.input.watched;
        let Some(fd) = live.input.fd() else { return };
        let token = Token::Input(number);
        let watched = match (is_left, was_watched) {
            (true, false) => self.epoll.add(fd, token, EventFlags::OUT).is_ok(),
            (false, true) => {
                self.epoll.remove(fd);
                false
            }
            (_, unchanged) => unchanged,
        };
        live.input.watched = watched;
    }
}

/// A record of this moment that belongs to no stream.
pub(super) fn draft(exec: u32, kind: Kind, payload: &[u8]) -> Draft<'_> {
    Draft { kind, exec, time_us: clock::unix_micros(), stream_offset: 0, payload }
}
