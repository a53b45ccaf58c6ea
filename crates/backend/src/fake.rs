//! A host in memory: sandboxes that take no kernel and no time, for tests of whatever uses a backend.

mod given;
mod guest;
mod receipt;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use cubicle_guest::client::Listening;
use cubicle_guest::hello::Key;
use cubicle_model::receipt::{Amendment, SecretsInside};
use cubicle_model::{
    Binding, Fault, Isolation, Kind, Lifetime, Limits, Listener, Medium, Mount, Placement, Receipt, Root,
    SandboxId, Trust,
};

use crate::{
    Backend, Bound, Capabilities, Consumption, GuestStream, JournalBytes, Level, Met, Probed, Seen, State,
    Swept, Unmet,
};
use receipt::{limits_by_name, receipt};

pub use guest::{Script, Scripted, View};

/// What survives the processes that use it. Cheap to clone; all clones are the same host.
#[derive(Clone)]
pub struct FakeHost {
    shared: Arc<Shared>,
}

struct Shared {
    clock: Box<dyn Fn() -> Duration + Send + Sync>,
    script: Script,
    capabilities: Capabilities,
    state: Mutex<HostState>,
}

#[derive(Default)]
struct HostState {
    sandboxes: BTreeMap<SandboxId, Sandbox>,
    /// Processes that have the host open; a bound sandbox ends with its owner.
    owners: BTreeSet<u64>,
    next_owner: u64,
}

struct Sandbox {
    placement: Placement,
    owner: u64,
    /// Alive while somebody makes it; half-made when it is dead and `ready` is not set.
    making: Weak<()>,
    ready: bool,
    ended: bool,
    deadline: Duration,
    limits: Limits,
    env: BTreeMap<String, String>,
    files: BTreeMap<String, Vec<u8>>,
    mounts: Vec<Mount>,
    secrets: SecretsInside,
    /// Each on a port of the host that is free, which stands for the one inside.
    listeners: BTreeMap<Listener, Listening>,
    execs: guest::Execs,
    /// Ends with the sandbox: the guest's connections hold the other side.
    alive: tokio::sync::watch::Sender<bool>,
}

/// Time that a test moves by hand.
#[derive(Debug, Clone, Default)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    pub fn now(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::SeqCst))
    }

    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(u64::try_from(by.as_micros()).unwrap_or(u64::MAX), Ordering::SeqCst);
    }
}

/// A small durable or bound sandbox, for tests that do not care what is in it.
pub fn placement(random: [u8; 16], lifetime: Lifetime) -> Placement {
    Placement {
        id: SandboxId::from_random(random),
        lifetime,
        isolation: Isolation::Namespaces,
        trust: Trust::Medium,
        root: Root::Host,
        workspace: Medium::Memory,
        limits: Limits::default(),
        env: BTreeMap::new(),
        labels: BTreeMap::new(),
    }
}

impl Default for FakeHost {
    /// A host whose clock stands still and whose guests know only the built-in commands.
    fn default() -> Self {
        Self::new(|| Duration::ZERO, Arc::new(|_, _| None), Self::everything())
    }
}

impl FakeHost {
    pub fn new(
        clock: impl Fn() -> Duration + Send + Sync + 'static,
        script: Script,
        capabilities: Capabilities,
    ) -> Self {
        let shared = Shared { clock: Box::new(clock), script, capabilities, state: Mutex::default() };
        Self { shared: Arc::new(shared) }
    }

    /// Capabilities of a host that can do everything.
    pub fn everything() -> Capabilities {
        Capabilities {
            durable: true,
            binds_late: ["env", "files", "limits", "mounts", "listeners", "secrets"].map(String::from).into(),
            limits: limits_by_name(&Limits::default())
                .map(|(name, _)| (name.to_owned(), Ok("the fake host".to_owned())))
                .into(),
        }
    }

    /// Opens the host as one more process would. Dropping the backend is the end of that process.
    pub fn open(&self) -> FakeBackend {
        let mut state = self.shared.locked();
        let owner = state.next_owner;
        state.next_owner += 1;
        state.owners.insert(owner);
        FakeBackend { shared: self.shared.clone(), owner }
    }

    /// Everything that a sandbox has on the host, by name.
    pub fn leftovers(&self) -> Vec<String> {
        self.shared.locked().sandboxes.keys().map(ToString::to_string).collect()
    }
}

impl fmt::Debug for FakeHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeHost").field("sandboxes", &self.leftovers()).finish_non_exhaustive()
    }
}

impl Shared {
    fn locked(&self) -> MutexGuard<'_, HostState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state after everything that time and dead owners brought about has happened.
    fn current(&self) -> MutexGuard<'_, HostState> {
        let now = (self.clock)();
        let mut state = self.locked();
        let HostState { sandboxes, owners, .. } = &mut *state;
        for sandbox in sandboxes.values_mut() {
            let orphaned = sandbox.placement.lifetime == Lifetime::Bound && !owners.contains(&sandbox.owner);
            if !sandbox.ended && (orphaned || now >= sandbox.deadline) {
                sandbox.ended = true;
                sandbox.alive.send_replace(false);
            }
        }
        state
    }

    fn with<T>(&self, id: SandboxId, act: impl FnOnce(&mut Sandbox) -> Result<T, Fault>) -> Result<T, Fault> {
        let mut state = self.current();
        let sandbox = state.sandboxes.get_mut(&id).filter(|sandbox| sandbox.ready && !sandbox.ended);
        act(sandbox.ok_or_else(|| {
            Fault::new(Kind::NotFound, format!("there is no running sandbox {id}"))
                .hint("list shows what there is")
        })?)
    }
}

impl Sandbox {
    fn seen(&self) -> Seen {
        Seen {
            id: self.placement.id,
            lifetime: self.placement.lifetime,
            state: if self.ended { State::Ended } else { State::Ready },
            labels: self.placement.labels.clone(),
            receipt: Some(self.receipt()),
        }
    }

    fn receipt(&self) -> Receipt {
        Receipt { secrets: self.secrets.clone(), ..receipt(&self.placement, &self.limits) }
    }
}

/// The fake host as one process sees it.
pub struct FakeBackend {
    shared: Arc<Shared>,
    owner: u64,
}

impl fmt::Debug for FakeBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeBackend").field("owner", &self.owner).finish_non_exhaustive()
    }
}

impl Drop for FakeBackend {
    fn drop(&mut self) {
        self.shared.locked().owners.remove(&self.owner);
        drop(self.shared.current());
    }
}

#[async_trait]
impl Backend for FakeBackend {
    async fn probe(&self) -> Probed {
        let levels = Isolation::ALL.map(|isolation| match isolation {
            Isolation::Namespaces => Level {
                isolation,
                met: vec![Met { check: "the whole plan".into(), found: "carried out in memory".into() }],
                unmet: vec![],
            },
            Isolation::Landlock | Isolation::Gvisor => Level {
                isolation,
                met: vec![],
                unmet: vec![Unmet {
                    check: format!("{isolation} is there"),
                    because: "the fake host has only namespaces".into(),
                    fix: "ask for namespaces".into(),
                }],
            },
        });
        Probed { levels: levels.into(), capabilities: self.shared.capabilities.clone() }
    }

    async fn ensure(&self, place: &Placement) -> Result<Seen, Fault> {
        if place.isolation != Isolation::Namespaces {
            return Err(Fault::new(Kind::Denied, format!("the fake host has no {}", place.isolation))
                .hint("ask for namespaces"));
        }
        if place.lifetime == Lifetime::Durable && !self.shared.capabilities.durable {
            return Err(
                Fault::new(Kind::Denied, "the fake host keeps nothing").hint("ask for a bound sandbox")
            );
        }
        let making = Arc::new(());
        {
            let mut state = self.shared.current();
            // What another call left half-made, or is making, is made anew: nobody has seen it yet.
            if let Some(there) = state.sandboxes.get(&place.id).filter(|there| there.ready) {
                if there.placement != *place {
                    return Err(Fault::new(
                        Kind::Conflict,
                        format!("{} is there with another placement", place.id),
                    )
                    .hint("destroy it first, or use a new id"));
                }
                return Ok(there.seen());
            }
            let deadline = (self.shared.clock)() + Duration::from_secs(place.limits.wall_seconds.value);
            let sandbox = Sandbox {
                placement: place.clone(),
                owner: self.owner,
                making: Arc::downgrade(&making),
                ready: false,
                ended: false,
                deadline,
                limits: place.limits,
                env: place.env.clone(),
                files: BTreeMap::new(),
                mounts: vec![],
                secrets: SecretsInside::default(),
                listeners: BTreeMap::new(),
                execs: guest::Execs::default(),
                alive: tokio::sync::watch::Sender::new(true),
            };
            state.sandboxes.insert(place.id, sandbox);
        }
        // A caller that goes away here leaves something half-made, as it would on a real host.
        tokio::task::yield_now().await;
        let mut state = self.shared.current();
        let sandbox = state
            .sandboxes
            .get_mut(&place.id)
            .ok_or_else(|| Fault::new(Kind::Unavailable, "the sandbox was destroyed while it was made"))?;
        sandbox.ready = true;
        Ok(sandbox.seen())
    }

    async fn observe(&self, id: SandboxId) -> Result<Option<Seen>, Fault> {
        Ok(self.shared.current().sandboxes.get(&id).filter(|sandbox| sandbox.ready).map(Sandbox::seen))
    }

    async fn list(&self) -> Result<Vec<Seen>, Fault> {
        Ok(self
            .shared
            .current()
            .sandboxes
            .values()
            .filter(|sandbox| sandbox.ready)
            .map(Sandbox::seen)
            .collect())
    }

    async fn bind(&self, id: SandboxId, late: &Binding) -> Result<Bound, Fault> {
        for (what, used) in parts(late) {
            if used && !self.shared.capabilities.binds_late.iter().any(|can| can == what) {
                return Err(Fault::new(Kind::Denied, format!("{what} cannot be bound to a ready sandbox"))
                    .hint("make a new sandbox with them"));
            }
        }
        self.shared.with(id, |sandbox| {
            let before = sandbox.receipt().limits;
            sandbox.limits = sandbox
                .limits
                .changed_by(&late.limits)
                .map_err(|small| Fault::new(Kind::Invalid, small.to_string()))?;
            sandbox.env.extend(late.env.clone());
            sandbox.files.extend(late.files.iter().map(|file| (file.path.clone(), file.bytes.clone())));
            sandbox.mounts.extend(late.mounts.iter().cloned());
            let listeners = sandbox.listen(&late.listeners)?;
            let now = sandbox.receipt().limits;
            let limits = now.into_iter().filter(|limit| !before.contains(limit)).collect();
            let secrets = sandbox.hide(&late.secrets);
            Ok(Bound { amendment: Amendment { limits, mounts: Vec::new(), secrets }, listeners })
        })
    }

    async fn connect(&self, id: SandboxId) -> Result<GuestStream, Fault> {
        let (ours, theirs) = tokio::net::UnixStream::pair()
            .map_err(|error| Fault::new(Kind::Internal, "cannot make a socket pair").because(error))?;
        let key = key(id);
        let alive = self.shared.with(id, |sandbox| Ok(sandbox.alive.subscribe()))?;
        // The task ends with its connection or with its sandbox; it has nothing to report to anybody.
        tokio::spawn(guest::serve(theirs, id, key.clone(), Arc::downgrade(&self.shared), alive));
        Ok(GuestStream { stream: ours, key })
    }

    async fn journal(&self, id: SandboxId) -> Result<Option<JournalBytes>, Fault> {
        let state = self.shared.current();
        let sandbox = state.sandboxes.get(&id).filter(|sandbox| sandbox.ready);
        Ok(sandbox.map(|sandbox| -> JournalBytes { Box::new(std::io::Cursor::new(sandbox.execs.journal())) }))
    }

    async fn consumption(&self, id: SandboxId) -> Result<Option<Consumption>, Fault> {
        let state = self.shared.current();
        let sandbox = state.sandboxes.get(&id).filter(|sandbox| sandbox.ready && !sandbox.ended);
        // Its guest is a task of this process.
        Ok(sandbox.map(|_| Consumption { processes: Some(1), ..Consumption::default() }))
    }

    async fn destroy(&self, id: SandboxId) -> Result<(), Fault> {
        if let Some(sandbox) = self.shared.current().sandboxes.remove(&id) {
            sandbox.alive.send_replace(false);
        }
        Ok(())
    }

    async fn gc(&self) -> Result<Swept, Fault> {
        let mut state = self.shared.current();
        let before = state.sandboxes.len();
        state.sandboxes.retain(|_, sandbox| {
            let half_made = !sandbox.ready && sandbox.making.strong_count() == 0;
            let ended_with_its_owner = sandbox.ended && sandbox.placement.lifetime == Lifetime::Bound;
            !half_made && !ended_with_its_owner
        });
        Ok(Swept { sandboxes: before - state.sandboxes.len(), ..Swept::default() })
    }
}

fn key(id: SandboxId) -> Key {
    Key::derive(b"the fake host keeps no secrets", id)
}

/// The parts of a binding by the names in `Capabilities::binds_late`, and whether each is used.
pub(crate) fn parts(late: &Binding) -> [(&'static str, bool); 6] {
    [
        ("env", !late.env.is_empty()),
        ("files", !late.files.is_empty()),
        ("limits", late.limits != Default::default()),
        ("mounts", !late.mounts.is_empty()),
        ("listeners", !late.listeners.is_empty()),
        ("secrets", !late.secrets.is_empty()),
    ]
}
