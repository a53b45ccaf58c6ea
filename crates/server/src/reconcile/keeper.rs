//! One sandbox at a time, from what it is to what it should be.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use cubicle_backend::State;
use cubicle_model::lease::LeaseEnd;
use cubicle_model::sandbox::{Attempts, Presence, Step, next};
use cubicle_model::{Fault, Kind, LimitRequest, Sandbox, SandboxId, SandboxState};
use cubicle_store::Target;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::field::display;
use tracing::{Instrument, Span, debug, info, warn};

use crate::app::App;
use crate::app::live::Warm;
use crate::spans;

/// A sandbox outlives its lease by so much, so that its end is always the server's doing and never a surprise.
pub(crate) const GRACE_SECONDS: u64 = 300;
/// How long a sandbox of the pool lives without its server.
pub(crate) const POOLED_SECONDS: u64 = 3600;
/// A sandbox of the pool is replaced when half of its time is over.
const REPLACED_AFTER: i64 = POOLED_SECONDS as i64 / 2;
/// More at once only wait for each other.
const MAKE_AT_ONCE: usize = 8;
/// The kernel hangs when very many filtered processes end together.
const DESTROY_AT_ONCE: usize = 16;

/// Who works on what.
#[derive(Debug)]
pub(crate) struct Keeper {
    turns: Mutex<HashMap<SandboxId, Arc<tokio::sync::Mutex<Attempts>>>>,
    make: Arc<Semaphore>,
    destroy: Arc<Semaphore>,
}

impl Default for Keeper {
    fn default() -> Self {
        Self {
            turns: Mutex::default(),
            make: Arc::new(Semaphore::new(MAKE_AT_ONCE)),
            destroy: Arc::new(Semaphore::new(DESTROY_AT_ONCE)),
        }
    }
}

impl Keeper {
    /// One at a time works on a sandbox, and remembers what failed.
    fn turn(&self, id: SandboxId) -> Arc<tokio::sync::Mutex<Attempts>> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(turns.entry(id).or_default())
    }

    fn forget(&self, id: SandboxId) {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }
}

async fn permit(of: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, Fault> {
    let closed = |_| Fault::new(Kind::Unavailable, "the server is stopping");
    Arc::clone(of).acquire_owned().await.map_err(closed)
}

impl App {
    /// Makes a sandbox that the store has just come to want, and welcomes it.
    pub(crate) async fn bring_up(
        &self,
        sandbox: &Sandbox,
        target: &Target,
        seconds: u64,
    ) -> Result<(), Fault> {
        let turn = self.keeper.turn(sandbox.id);
        let mut tried = turn.lock().await;
        if let Err(fault) = self.make(sandbox.id, target, seconds).await {
            *tried = Attempts { failures: tried.failures + 1, last: Some(self.now()) };
            return Err(fault);
        }
        match self.store.welcome(self.own_context(), sandbox.id, sandbox.generation).await {
            Ok(_) => Ok(()),
            // Somebody was faster: the sweep, or its lease has ended.
            Err(fault) if fault.kind() == Kind::Conflict => match self.store.sandbox(sandbox.id).await? {
                Some(now) if matches!(now.state, SandboxState::Idle | SandboxState::Leased) => Ok(()),
                _ => Err(fault),
            },
            Err(fault) => Err(fault),
        }
    }

    /// The same for the pool, in the background.
    pub(crate) fn bring_up_for_pool(self: &Arc<Self>, sandbox: Sandbox, target: Target) {
        let app = Arc::clone(self);
        let span = spans::pool(sandbox.id, &target.template);
        let bring_up = async move {
            match app.bring_up(&sandbox, &target, POOLED_SECONDS).await {
                Ok(()) => app.keep_warm(&sandbox).await,
                Err(fault) => {
                    warn!(error = %fault, "a sandbox of the pool could not be made");
                    app.advance_soon(sandbox.id);
                }
            }
            app.room_changed.notify_one();
        };
        self.tasks.spawn(bring_up.instrument(span));
    }

    /// A connection for whoever gets it; without one the first request makes it.
    pub(crate) async fn keep_warm(&self, sandbox: &Sandbox) {
        let id = sandbox.id;
        if let Ok(guest) = self.guest(id).await
            && guest.health().await.is_ok()
        {
            let sockets = self.egress_sockets(&guest).await;
            // One that an earlier server left may have some.
            let _ = self.learn_attached(&guest, id).await;
            let kept_for = sandbox.tenant.clone().map(|tenant| (tenant, sandbox.user.clone()));
            self.live.keep_warm(id, Warm { template: sandbox.template.clone(), kept_for, guest, sockets });
        }
    }

    async fn make(&self, id: SandboxId, target: &Target, seconds: u64) -> Result<(), Fault> {
        let recipe = self.recipe(&target.template, target.version).await?;
        let changed = LimitRequest { wall_seconds: Some(seconds), ..target.limits };
        let labels = BTreeMap::from([
            ("node".to_owned(), self.node.to_string()),
            ("template".to_owned(), target.template.to_string()),
        ]);
        let place = recipe.placement(id, &changed, labels);
        let mut place = place.map_err(|bad| Fault::new(Kind::Invalid, bad.to_string()))?;
        let said = std::mem::replace(&mut place.env, self.egress_environment());
        place.env.extend(said);
        let _turn = permit(&self.keeper.make).await?;
        let started = tokio::time::Instant::now();
        self.step("sandbox_noted");
        self.changing("create", id, self.backend.ensure(&place)).await?;
        self.live.attached(id).is_new();
        self.step("sandbox_made");
        self.metrics.pace.made(started.elapsed());
        debug!(sandbox = %id, took = ?started.elapsed(), "sandbox made");
        Ok(())
    }

    /// How long the sandbox of a lease, or of the pool, lives without its server.
    async fn seconds_to_live(&self, sandbox: &Sandbox) -> Result<u64, Fault> {
        let lease = match sandbox.lease {
            Some(lease) => self.store.lease(lease).await?,
            None => None,
        };
        Ok(lease.map_or(POOLED_SECONDS, |lease| u64::from(lease.ttl_seconds) + GRACE_SECONDS))
    }

    /// Takes the next steps of a sandbox, in the background.
    pub(crate) fn advance_soon(self: &Arc<Self>, id: SandboxId) {
        let app = Arc::clone(self);
        let advance = async move {
            if let Err(fault) = app.advance(id).await {
                spans::failed(&Span::current(), &fault);
                warn!(error = %fault, "a sandbox is not as it should be; the sweep tries again");
            }
        };
        self.tasks.spawn(advance.instrument(spans::advance(id)));
    }

    /// Takes steps until the sandbox is as it should be, or has to wait.
    pub(crate) async fn advance(self: &Arc<Self>, id: SandboxId) -> Result<(), Fault> {
        let turn = self.keeper.turn(id);
        let mut tried = turn.lock().await;
        loop {
            let sandbox = self.store.sandbox(id).await?;
            if sandbox.as_ref().is_some_and(|sandbox| sandbox.node != self.node) {
                // Its own node sees to it. What is not here may well be there.
                self.keeper.forget(id);
                return Ok(());
            }
            if let Some(lease) = sandbox.as_ref().and_then(|sandbox| sandbox.lease) {
                Span::current().record("lease", display(lease));
            }
            let seen = match self.timed("observe", self.backend.observe(id)).await? {
                None => Presence::Absent,
                Some(seen) if seen.state == State::Ready => Presence::Ready,
                Some(_) => Presence::Ended,
            };
            let step = next(sandbox.as_ref().map(|sandbox| sandbox.state), seen, *tried, self.now());
            let taken = match (step, &sandbox) {
                (Step::Nothing, _) => {
                    if sandbox.is_none_or(|sandbox| sandbox.state == SandboxState::Gone) {
                        self.keeper.forget(id);
                    }
                    return Ok(());
                }
                (Step::Wait(until), _) => {
                    drop(tried);
                    let pause = until.duration_since(self.now()).unsigned_abs();
                    tokio::time::sleep(pause.min(std::time::Duration::from_secs(30))).await;
                    tried = turn.lock().await;
                    continue;
                }
                (Step::DestroyOrphan, _) => self.destroy(id).await,
                (step, Some(sandbox)) => self.take(step, sandbox, seen).await,
                (_, None) => return Ok(()),
            };
            match taken {
                Ok(()) if matches!(step, Step::Destroy | Step::Forget) => {
                    self.keeper.forget(id);
                    return Ok(());
                }
                Ok(()) => *tried = Attempts::default(),
                // Somebody else was faster; what they did is looked at anew.
                Err(fault) if fault.kind() == Kind::Conflict && tried.failures < 3 => {
                    *tried = Attempts { failures: tried.failures + 1, last: Some(self.now()) };
                }
                Err(fault) => {
                    *tried = Attempts { failures: tried.failures + 1, last: Some(self.now()) };
                    info!(?step, error = %fault, "a step failed");
                    if fault.kind() == Kind::Unavailable {
                        return Err(fault);
                    }
                }
            }
        }
    }

    async fn take(self: &Arc<Self>, step: Step, sandbox: &Sandbox, seen: Presence) -> Result<(), Fault> {
        let (id, generation) = (sandbox.id, sandbox.generation);
        match step {
            Step::Make => {
                let target = self.store.target(id).await?;
                self.make(id, &target, self.seconds_to_live(sandbox).await?).await
            }
            Step::Welcome => {
                let welcomed = self.store.welcome(self.own_context(), id, generation).await?;
                self.tell();
                let lease = match welcomed.lease {
                    Some(lease) => self.store.lease(lease).await?,
                    None => {
                        self.keep_warm(sandbox).await;
                        return Ok(());
                    }
                };
                if let Some(lease) = lease {
                    // Whoever asked for it was killed with its server.
                    let gifts = self.ungiven().await?.remove(&lease.id);
                    self.take_over(&lease, id, gifts).await;
                }
                Ok(())
            }
            Step::GiveUp => {
                let (because, detail) = match seen {
                    Presence::Ended => (LeaseEnd::SandboxEnded, "the sandbox ended by itself"),
                    Presence::Absent if sandbox.ready_at.is_some() => {
                        (LeaseEnd::SandboxEnded, "the sandbox is not there any more")
                    }
                    _ => (LeaseEnd::CouldNotBeMade, "the sandbox could not be made"),
                };
                warn!(detail, "sandbox given up");
                self.live.take_warm(id);
                let ended =
                    self.store.give_up(self.own_context(), id, generation, because, detail.into()).await?;
                match ended {
                    Some(ended) => self.ended(&ended),
                    None => self.metrics.failed(because.name()),
                }
                Ok(())
            }
            Step::Destroy => {
                self.live.take_warm(id);
                self.archive(sandbox).await?;
                self.step("journal_noted");
                self.destroy(id).await?;
                self.step("sandbox_destroyed");
                self.forget(id, generation).await
            }
            Step::Forget => self.forget(id, generation).await,
            Step::Nothing | Step::Wait(_) | Step::DestroyOrphan => Ok(()),
        }
    }

    async fn forget(&self, id: SandboxId, generation: i64) -> Result<(), Fault> {
        self.store.forget(self.own_context(), id, generation).await?;
        self.tell();
        self.room_changed.notify_one();
        Ok(())
    }

    pub(crate) async fn destroy(&self, id: SandboxId) -> Result<(), Fault> {
        let _turn = permit(&self.keeper.destroy).await?;
        self.changing("destroy", id, self.backend.destroy(id)).await?;
        self.live.forget(id);
        Ok(())
    }

    /// Compares everything that is with everything that should be.
    pub(crate) async fn sweep(self: &Arc<Self>) -> Result<(), Fault> {
        // What is comes first: whatever is made meanwhile has a row by the time the rows are read.
        let seen = self.own_sandboxes().await?;
        let rows = self.store.standing_sandboxes(self.node).await?;
        for id in unsettled(&seen, &rows) {
            self.advance_soon(id);
        }
        for row in &rows {
            self.replace_if_old(row).await;
        }
        Ok(())
    }

    /// What the backend has of this node. Sandboxes that somebody made by hand in the same data directory are theirs.
    pub(crate) async fn own_sandboxes(&self) -> Result<HashMap<SandboxId, State>, Fault> {
        let node = self.node.to_string();
        let all = self.timed("list", self.backend.list()).await?.into_iter();
        Ok(all
            .filter(|seen| seen.labels.get("node") == Some(&node))
            .map(|seen| (seen.id, seen.state))
            .collect())
    }

    /// Replaces a sandbox that was in the pool for long, well before its deadline.
    async fn replace_if_old(self: &Arc<Self>, sandbox: &Sandbox) {
        let age = self.now().duration_since(sandbox.created_at).as_secs();
        if sandbox.lease.is_some() || age < REPLACED_AFTER {
            return;
        }
        let because = "it was in the pool for long".to_owned();
        // Somebody may have taken it in the meantime.
        if self.store.retire(self.own_context(), sandbox.id, sandbox.generation, because).await.is_ok() {
            self.live.take_warm(sandbox.id);
            self.advance_soon(sandbox.id);
        }
    }
}

/// What may not be as it should be: nobody's, or not there, or not in a state that lasts. Each is looked at again before
/// anything is done.
pub(crate) fn unsettled(seen: &HashMap<SandboxId, State>, rows: &[Sandbox]) -> Vec<SandboxId> {
    let known: HashSet<SandboxId> = rows.iter().map(|row| row.id).collect();
    let orphans = seen.keys().filter(|id| !known.contains(id)).copied();
    let lasting = |row: &&Sandbox| {
        matches!(row.state, SandboxState::Idle | SandboxState::Leased)
            && seen.get(&row.id) == Some(&State::Ready)
    };
    orphans.chain(rows.iter().filter(|row| !lasting(row)).map(|row| row.id)).collect()
}
