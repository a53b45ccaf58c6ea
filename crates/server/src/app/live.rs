//! The sandboxes of this node that somebody has, and the ready ones of the pool: what a request needs to know without
//! asking the store.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use cubicle_guest::client::Guest;
use cubicle_model::route::{Candidate, Standing};
use cubicle_model::{Fault, Kind, Lease, LeaseId, Name, SandboxId, TemplateRef, UserName};
use cubicle_store::Owner;
use tokio::sync::watch;

use super::code::attached::Attached;
use crate::egress::Sockets;

/// Until a sandbox that is being made is ready.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(crate) struct Live {
    leased: Mutex<HashMap<SandboxId, Arc<Leased>>>,
    /// Ready sandboxes that nobody has yet.
    warm: Mutex<HashMap<SandboxId, Warm>>,
    /// Of both.
    attached: Mutex<HashMap<SandboxId, Arc<Attached>>>,
}

/// What whoever gets a ready sandbox does not have to wait for.
#[derive(Debug)]
pub(crate) struct Warm {
    pub(crate) template: TemplateRef,
    /// Whom it is kept for; nobody in particular in the pool.
    pub(crate) kept_for: Option<(Name, Option<UserName>)>,
    pub(crate) guest: Guest,
    /// Its sockets for egress.
    pub(crate) sockets: Option<Sockets>,
}

/// A sandbox that somebody has.
#[derive(Debug)]
pub(crate) struct Leased {
    pub(crate) sandbox: SandboxId,
    pub(crate) lease: LeaseId,
    pub(crate) tenant: Name,
    pub(crate) user: UserName,
    pub(crate) template: TemplateRef,
    guest: OnceLock<Guest>,
    phase: watch::Sender<Phase>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Is being made or bound.
    Preparing,
    Ready,
    /// Its lease ended.
    Over,
}

impl Leased {
    pub(crate) fn new(lease: &Lease, sandbox: SandboxId) -> Arc<Self> {
        Arc::new(Self {
            sandbox,
            lease: lease.id,
            tenant: lease.tenant.clone(),
            user: lease.user.clone(),
            template: lease.template.clone(),
            guest: OnceLock::new(),
            phase: watch::Sender::new(Phase::Preparing),
        })
    }

    /// Whose exec it is that runs here.
    pub(crate) fn owner(&self) -> Owner<'_> {
        Owner { lease: self.lease, tenant: &self.tenant, user: &self.user }
    }

    pub(crate) fn is_ready(&self, guest: Guest) {
        // A lease that was adopted and prepared at the same time has the same sandbox, and either connection will do.
        let _ = self.guest.set(guest);
        self.phase.send_if_modified(|phase| {
            let preparing = *phase == Phase::Preparing;
            if preparing {
                *phase = Phase::Ready;
            }
            preparing
        });
    }

    /// The guest that it had, whatever became of its lease.
    pub(crate) fn last_guest(&self) -> Option<Guest> {
        self.guest.get().cloned()
    }

    /// The guest, as soon as the sandbox is ready.
    pub(crate) async fn guest(&self) -> Result<Guest, Fault> {
        if *self.phase.borrow() == Phase::Ready
            && let Some(guest) = self.guest.get()
        {
            return Ok(guest.clone());
        }
        let mut phase = self.phase.subscribe();
        let settled = phase.wait_for(|phase| !matches!(phase, Phase::Preparing));
        match tokio::time::timeout(PATIENCE, settled).await {
            Ok(Ok(phase)) if *phase == Phase::Ready => self.last_guest().ok_or_else(over),
            Ok(_) => Err(over()),
            Err(_) => Err(Fault::new(Kind::Unavailable, "the sandbox is still being made").hint("try again")),
        }
    }
}

fn over() -> Fault {
    Fault::new(Kind::Conflict, "the lease of this sandbox is over").hint("acquire a new lease")
}

impl Live {
    fn leased(&self) -> MutexGuard<'_, HashMap<SandboxId, Arc<Leased>>> {
        self.leased.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn warm(&self) -> MutexGuard<'_, HashMap<SandboxId, Warm>> {
        self.warm.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, id: SandboxId) -> Option<Arc<Leased>> {
        self.leased().get(&id).cloned()
    }

    /// Everything that somebody has, with its template.
    pub(crate) fn all(&self) -> Vec<(SandboxId, TemplateRef)> {
        self.leased().iter().map(|(id, leased)| (*id, leased.template.clone())).collect()
    }

    /// The entry of a lease; the one that is there, if it is.
    pub(crate) fn admit(&self, lease: &Lease, sandbox: SandboxId) -> Arc<Leased> {
        Arc::clone(self.leased().entry(sandbox).or_insert_with(|| Leased::new(lease, sandbox)))
    }

    /// The lease has ended: nothing new begins in the sandbox.
    pub(crate) fn leave(&self, id: SandboxId) -> Option<Arc<Leased>> {
        let leased = self.leased().remove(&id)?;
        leased.phase.send_replace(Phase::Over);
        Some(leased)
    }

    /// What a sandbox has attached.
    pub(crate) fn attached(&self, id: SandboxId) -> Arc<Attached> {
        let mut attached = self.attached.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(attached.entry(id).or_default())
    }

    /// Of every environment that is attached somewhere.
    pub(crate) fn attached_keys(&self) -> BTreeSet<String> {
        let attached = self.attached.lock().unwrap_or_else(PoisonError::into_inner);
        attached.values().flat_map(|attached| attached.keys()).collect()
    }

    /// Nothing is left of it.
    pub(crate) fn forget(&self, id: SandboxId) {
        self.warm().remove(&id);
        self.attached.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }

    /// Ready sandboxes as whoever looks for a fitting one sees them.
    pub(crate) fn candidates(&self, tenant: &Name, user: &UserName) -> Vec<Candidate> {
        let warm = self.warm();
        let candidates = warm.iter().map(|(id, warm)| {
            let attached = self.attached(*id);
            let is_for_caller = warm
                .kept_for
                .as_ref()
                .is_none_or(|(of, whose)| of == tenant && whose.as_ref().is_none_or(|whose| whose == user));
            Candidate {
                id: *id,
                template: warm.template.clone(),
                environments: attached.keys(),
                interpreters: attached.interpreters(),
                standing: if warm.kept_for.is_some() { Standing::Kept } else { Standing::Fresh },
                is_for_caller,
            }
        });
        candidates.collect()
    }

    /// Those of the pool, with what they have attached.
    pub(crate) fn pooled(&self) -> Vec<(SandboxId, TemplateRef, Guest, Arc<Attached>)> {
        let leased: BTreeSet<SandboxId> = self.leased().keys().copied().collect();
        let fresh = |(id, warm): (&SandboxId, &Warm)| {
            // Somebody may have taken it while it was being noted.
            let pooled = warm.kept_for.is_none() && !leased.contains(id);
            pooled.then(|| (*id, warm.template.clone(), warm.guest.clone(), self.attached(*id)))
        };
        self.warm().iter().filter_map(fresh).collect()
    }

    pub(crate) fn keep_warm(&self, id: SandboxId, warm: Warm) {
        self.warm().insert(id, warm);
    }

    pub(crate) fn take_warm(&self, id: SandboxId) -> Option<Warm> {
        self.warm().remove(&id)
    }
}
