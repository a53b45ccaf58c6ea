//! Where the attacks take place: a backend of its own, two sandboxes that outlast most attacks, and the state of the
//! host that no attack may change.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use cubicle_backend::Backend;
use cubicle_backend_local::{LocalBackend, Options};
use cubicle_guest::client::{ClientError, ExecStream, Guest, Outcome, OutputLimits, WriteFile};
use cubicle_guest::journal::Kind;
use cubicle_model::receipt::Cgroups;
use cubicle_model::{
    Command, ExecSpec, Exit, Isolation, Lifetime, LimitRequest, Limits, Medium, Placement, Root, SandboxId,
    Trust,
};
use serde::Deserialize;

/// Only a hang gets there.
pub(crate) const BOUND: Duration = Duration::from_secs(60);
const INTRUDER: &str = "/tmp/intruder";

/// Shared by the tests that run at the same time; the last one to leave takes it down.
static OPEN: Mutex<Weak<Arena>> = Mutex::new(Weak::new());

pub(crate) struct Arena {
    pub(crate) backend: LocalBackend,
    /// Where most attacks are made from.
    pub(crate) attacker: SandboxId,
    /// Another sandbox of the same backend.
    pub(crate) neighbour: SandboxId,
    host: HostState,
    runtime: tokio::runtime::Runtime,
    directory: tempfile::TempDir,
}

/// What an attack came to, in the intruder's words.
#[derive(Debug, Deserialize)]
pub(crate) struct Report {
    gained: bool,
    #[serde(default)]
    got: String,
    #[serde(default)]
    errno: i32,
}

impl Report {
    /// The attack was refused by one of these errors.
    #[track_caller]
    pub(crate) fn refused(&self, with: &[i32]) {
        assert!(!self.gained, "the attack succeeded: {}", self.got);
        assert!(
            with.contains(&self.errno),
            "refused, but with error {} instead of one of {with:?}",
            self.errno
        );
    }

    /// What the attack could see.
    #[track_caller]
    pub(crate) fn saw(&self) -> &str {
        assert!(self.gained, "refused with error {}, where something was to be seen", self.errno);
        &self.got
    }

    /// Refused, or there was nothing.
    #[track_caller]
    pub(crate) fn nothing(&self) {
        assert!(!self.gained || self.got.is_empty(), "the attack got: {}", self.got);
    }

    /// Two numbers that an exhausting attack counts: how much it got and the error that stopped it.
    #[track_caller]
    pub(crate) fn counted(&self) -> (u64, i32) {
        let (count, errno) = self.saw().split_once(' ').expect("two numbers");
        (count.parse().expect("a count"), errno.parse().expect("an error number"))
    }
}

/// Says why a test was not made.
pub(crate) fn skip(because: impl std::fmt::Display) {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {because}");
}

impl Arena {
    /// `None` where this host cannot make sandboxes.
    pub(crate) fn enter() -> Option<Arc<Self>> {
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(arena) = open.upgrade() {
            return Some(arena);
        }
        match Self::build() {
            Ok(arena) => {
                let arena = Arc::new(arena);
                *open = Arc::downgrade(&arena);
                Some(arena)
            }
            Err(because) => {
                drop(open);
                skip(because);
                None
            }
        }
    }

    /// The same, for attacks that only make sense where each sandbox has users of its own.
    pub(crate) fn enter_as_root() -> Option<Arc<Self>> {
        let arena = Self::enter()?;
        if arena.backend.facts().privileged {
            return Some(arena);
        }
        skip("an ordinary user has one user id for all of its sandboxes");
        None
    }

    fn build() -> Result<Self, String> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .map_err(|error| error.to_string())?;
        let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
        // Sandboxes have other users, who must at least get to what is theirs.
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(directory.path(), open).map_err(|error| error.to_string())?;
        let shared = directory.path().join("shared");
        std::fs::create_dir(&shared).map_err(|error| error.to_string())?;
        let host = HostState::take();
        let mut options = Options::new(directory.path().join("data"));
        options.mountable.push(shared);
        let (backend, attacker, neighbour) = runtime.block_on(async {
            let backend = LocalBackend::open(options).await.map_err(|fault| fault.to_string())?;
            let probed = backend.probe().await;
            let level = probed.level(Isolation::Namespaces).ok_or("the level is not probed")?;
            if let Some(unmet) = level.unmet.first() {
                return Err(format!("no sandbox can be made here: {}", unmet.because));
            }
            let (attacker, neighbour) = (fresh_id(), fresh_id());
            for id in [attacker, neighbour] {
                backend.ensure(&placement(id)).await.map_err(|fault| fault.to_string())?;
                arm(&backend.guest(id)).await.map_err(|error| error.to_string())?;
            }
            Ok((backend, attacker, neighbour))
        })?;
        Ok(Self { backend, attacker, neighbour, host, runtime, directory })
    }

    /// A directory of the host that may be mounted into sandboxes.
    pub(crate) fn shared(&self) -> PathBuf {
        self.directory.path().join("shared")
    }

    pub(crate) fn data_directory(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    pub(crate) fn guest(&self, id: SandboxId) -> Guest {
        self.backend.guest(id)
    }

    pub(crate) fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(async {
            match tokio::time::timeout(BOUND, future).await {
                Ok(done) => done,
                Err(_) => panic!("nothing came for {BOUND:?}"),
            }
        })
    }

    /// Makes an attack from the usual place and checks that the host and the sandbox are unharmed.
    #[track_caller]
    pub(crate) fn attack(&self, arguments: &[&str]) -> Report {
        let report = self.attack_from(self.attacker, arguments);
        self.unharmed();
        report
    }

    #[track_caller]
    pub(crate) fn attack_from(&self, sandbox: SandboxId, arguments: &[&str]) -> Report {
        let outcome = self.run(sandbox, &intruder(arguments));
        report(&outcome)
    }

    #[track_caller]
    pub(crate) fn run(&self, sandbox: SandboxId, spec: &ExecSpec) -> Outcome {
        let outcome = self.wait(self.guest(sandbox).run(spec, OutputLimits::default()));
        outcome.expect("the guest runs the attack")
    }

    #[track_caller]
    pub(crate) fn shell(&self, sandbox: SandboxId, script: &str) -> Outcome {
        let spec = ExecSpec { timeout_seconds: Some(40.0), ..ExecSpec::new(Command::Shell(script.into())) };
        self.run(sandbox, &spec)
    }

    /// Starts an attack that goes on, and waits until its first line of output.
    #[track_caller]
    pub(crate) fn begin(&self, sandbox: SandboxId, arguments: &[&str]) -> (ExecStream, String) {
        let guest = self.guest(sandbox);
        self.wait(async {
            let mut stream = guest.exec(&intruder(arguments)).await.expect("the attack starts");
            let mut line = Vec::new();
            while !line.contains(&b'\n') {
                let frame =
                    stream.next().await.expect("the guest answers").expect("the attack has not ended");
                if frame.kind == Kind::Stdout {
                    line.extend_from_slice(frame.bytes);
                }
            }
            (stream, String::from_utf8_lossy(&line).trim().to_owned())
        })
    }

    #[track_caller]
    pub(crate) fn end(&self, sandbox: SandboxId, attack: &ExecStream) {
        self.wait(self.guest(sandbox).end(attack.exec_id(), Some(Duration::ZERO)))
            .expect("an attack can be ended");
    }

    /// A sandbox for an attack that may damage it.
    pub(crate) fn fresh(&self, limits: LimitRequest) -> Fresh<'_> {
        self.place(Placement {
            limits: Limits::parse(&limits).expect("possible limits"),
            ..placement(fresh_id())
        })
    }

    #[track_caller]
    pub(crate) fn place(&self, placement: Placement) -> Fresh<'_> {
        let id = placement.id;
        self.wait(async {
            self.backend.ensure(&placement).await.expect("a sandbox can be made");
            arm(&self.backend.guest(id)).await.expect("a program can be put into it");
        });
        Fresh { arena: self, id }
    }

    /// Nothing of the host changed, and the sandboxes and their launcher are alive.
    #[track_caller]
    pub(crate) fn unharmed(&self) {
        self.host.assert_unchanged();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("the host has mounts");
        let here = self.directory.path().display().to_string();
        assert!(!mounts.contains(&here), "a mount of a sandbox shows on the host");
        let launcher = format!("/proc/{}", self.backend.launcher_pid());
        assert!(Path::new(&launcher).exists(), "the launcher is gone");
        for id in [self.attacker, self.neighbour] {
            self.answers(id);
        }
    }

    /// Pid 1 of this sandbox is alive and does what it is asked.
    #[track_caller]
    pub(crate) fn answers(&self, id: SandboxId) {
        let health = self.wait(self.guest(id).health());
        assert_eq!(health.expect("pid 1 answers").sandbox, id);
    }

    /// Whether this host limits memory, processes and processors by cgroups.
    pub(crate) fn has_cgroups(&self) -> bool {
        self.backend.facts().cgroups != Cgroups::None
    }
}

/// A sandbox that goes when the test is over.
pub(crate) struct Fresh<'a> {
    arena: &'a Arena,
    pub(crate) id: SandboxId,
}

impl Fresh<'_> {
    #[track_caller]
    pub(crate) fn attack(&self, arguments: &[&str]) -> Report {
        let report = self.arena.attack_from(self.id, arguments);
        self.arena.unharmed();
        report
    }

    pub(crate) fn guest(&self) -> Guest {
        self.arena.guest(self.id)
    }
}

impl Drop for Fresh<'_> {
    fn drop(&mut self) {
        let destroyed = self.arena.wait(self.arena.backend.destroy(self.id));
        if !std::thread::panicking() {
            destroyed.expect("a sandbox can be destroyed whatever was done to it");
        }
    }
}

/// Everything an attack could have changed for the whole host.
#[derive(Debug, PartialEq, Eq)]
struct HostState {
    name: String,
    sysctls: Vec<Option<String>>,
    has_intruder_device: bool,
    system_program: Option<(u64, u32, u64)>,
}

pub(crate) const SYSCTLS: &[&str] = &[
    "kernel/core_pattern",
    "kernel/modprobe",
    "kernel/sysrq",
    "kernel/panic",
    "kernel/randomize_va_space",
    "kernel/hostname",
    "kernel/domainname",
    "kernel/ctrl-alt-del",
    "vm/overcommit_memory",
    "vm/swappiness",
    "fs/file-max",
    "fs/suid_dumpable",
    "net/ipv4/ip_forward",
    "net/ipv4/ip_unprivileged_port_start",
    "user/max_user_namespaces",
];

impl HostState {
    fn take() -> Self {
        use std::os::unix::fs::MetadataExt;
        let read = |name: &&str| std::fs::read_to_string(Path::new("/proc/sys").join(name)).ok();
        Self {
            name: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            sysctls: SYSCTLS.iter().map(read).collect(),
            has_intruder_device: Path::new("/sys/class/net/intruder0").exists(),
            system_program: std::fs::metadata("/usr/bin/env").ok().map(|it| (it.ino(), it.mode(), it.len())),
        }
    }

    #[track_caller]
    fn assert_unchanged(&self) {
        assert_eq!(*self, Self::take(), "the host was changed");
    }
}

pub(crate) fn placement(id: SandboxId) -> Placement {
    Placement {
        id,
        lifetime: Lifetime::Bound,
        isolation: Isolation::Namespaces,
        trust: Trust::Medium,
        root: Root::Host,
        workspace: Medium::Memory,
        limits: Limits::default(),
        env: Default::default(),
        labels: Default::default(),
    }
}

pub(crate) fn fresh_id() -> SandboxId {
    let mut bits = [0; 16];
    rustix::rand::getrandom(&mut bits, rustix::rand::GetRandomFlags::empty())
        .expect("the kernel has random bytes");
    SandboxId::from_random(bits)
}

async fn arm(guest: &Guest) -> Result<(), ClientError> {
    let program = std::fs::read(env!("CARGO_BIN_EXE_intruder")).expect("the intruder is built");
    guest.write_file(INTRUDER, &program, WriteFile { mode: Some(0o755), ..WriteFile::default() }).await
}

pub(crate) fn intruder(arguments: &[&str]) -> ExecSpec {
    let argv = std::iter::once(INTRUDER).chain(arguments.iter().copied()).map(str::to_owned).collect();
    ExecSpec { timeout_seconds: Some(40.0), ..ExecSpec::new(Command::Argv(argv)) }
}

#[track_caller]
pub(crate) fn report(outcome: &Outcome) -> Report {
    let shown = String::from_utf8_lossy(&outcome.stdout);
    assert_eq!(
        outcome.exit,
        Exit::Code(0),
        "the intruder could not make its attack: {shown} {}",
        String::from_utf8_lossy(&outcome.stderr)
    );
    serde_json::from_str(shown.lines().last().unwrap_or_default()).expect("the intruder reports in JSON")
}

/// Waits for a condition, with a bound.
#[track_caller]
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < BOUND, "not within {BOUND:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Processes of the host whose command line has this text, with their user.
pub(crate) fn host_processes(token: &str) -> Vec<(u32, u32)> {
    let entries = std::fs::read_dir("/proc").expect("the host has /proc");
    entries
        .filter_map(|entry| {
            let pid: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let has = line.windows(token.len()).any(|window| window == token.as_bytes());
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
            let user =
                status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().next()?.parse();
            has.then_some((pid, user.ok()?))
        })
        .collect()
}

/// A word that is nowhere else on this host.
pub(crate) fn token() -> String {
    fresh_id().to_string()
}
