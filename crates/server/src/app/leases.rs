//! Acquire, renew and release leases.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use cubicle_guest::client::Guest;
use cubicle_model::egress::LeaseEgress;
use cubicle_model::lease::LeaseEnd;
use cubicle_model::{
    Binding, Fault, FileToWrite, Kind, Lease, LeaseId, LeaseStatus, LimitRequest, Mount, Reuse, Sandbox,
    SandboxId, SandboxState, Scope, SecretName, Template, Usage, hexadecimal,
};
use cubicle_store::{
    Acquire, Acquired, AfterLease, Context, Exec, LeaseFilter, Page, Planned, Promoted, Target,
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tracing::field::display;
use tracing::{Instrument, Span, debug, info, warn};

use super::execs::Afterwards;
use super::live::{Leased, Warm};
use super::{App, Caller};
use crate::egress::Account;
use crate::reconcile::keeper::{GRACE_SECONDS, POOLED_SECONDS};
use crate::spans;

pub(crate) const LONGEST_TTL: u32 = 7 * 24 * 3600;
const LONGEST_LABEL: usize = 256;
/// Of the files and variables that a lease is given.
const LARGEST_BINDING: usize = 16 * 1024 * 1024;

/// What a lease is asked to be, checked.
#[derive(Debug, Clone)]
pub(crate) struct LeaseRequest {
    pub(crate) template: String,
    pub(crate) user: Option<String>,
    pub(crate) workflow: String,
    /// Without one every call is a new one.
    pub(crate) request: Option<String>,
    pub(crate) ttl_seconds: Option<u32>,
    pub(crate) heartbeat_seconds: Option<u32>,
    pub(crate) gifts: Gifts,
    pub(crate) egress: LeaseEgress,
    pub(crate) may_wait: bool,
    pub(crate) one_shot: bool,
    /// Ready sandboxes that are tried before any other.
    pub(crate) preferred: Vec<SandboxId>,
}

/// What a sandbox is given for its user.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Gifts {
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) files: Vec<FileToWrite>,
    pub(crate) limits: LimitRequest,
    #[serde(default)]
    pub(crate) secrets: SecretGifts,
    /// Directories of the host. Only the server itself gives any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) mounts: Vec<Mount>,
}

/// Secrets that a sandbox is given, by their names: values are looked up when they are given, and kept nowhere.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SecretGifts {
    pub(crate) files: BTreeSet<SecretName>,
    pub(crate) env: BTreeMap<String, SecretName>,
}

impl Gifts {
    fn check(&self) -> Result<(), Fault> {
        let invalid = |text: String| Fault::new(Kind::Invalid, text);
        let mut names = self.env.keys().chain(self.secrets.env.keys());
        if let Some(name) = names.find(|name| !cubicle_model::template::is_variable_name(name)) {
            return Err(invalid(format!("'{name}' cannot be the name of a variable")));
        }
        if let Some((name, _)) = self.env.iter().find(|(_, value)| value.contains('\0')) {
            return Err(invalid(format!("the variable '{name}' holds a NUL byte")));
        }
        if let Some(file) = self.files.iter().find(|file| file.path.is_empty() || file.path.contains('\0')) {
            return Err(invalid(format!("'{}' cannot be the path of a file", file.path.escape_default())));
        }
        let size = self.env.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>()
            + self.files.iter().map(|file| file.bytes.len()).sum::<usize>();
        if size > LARGEST_BINDING {
            return Err(invalid(format!(
                "variables and files have {size} bytes together; {LARGEST_BINDING} are possible"
            ))
            .hint("write large files through /files once you have the lease"));
        }
        Ok(())
    }

    /// Sizes of file systems and rlimits are fixed when a sandbox is made.
    fn need_a_new_sandbox(&self) -> bool {
        let limits = &self.limits;
        limits.workspace.is_some()
            || limits.tmp.is_some()
            || limits.open_files.is_some()
            || limits.journal.is_some()
    }

    fn binding(self) -> Binding {
        // How long it lives is the lease's to say.
        let limits = LimitRequest { wall_seconds: None, ..self.limits };
        Binding { env: self.env, files: self.files, limits, mounts: self.mounts, ..Binding::default() }
    }
}

/// A lease, and its place in the queue where it waits.
#[derive(Debug, Clone)]
pub(crate) struct Obtained {
    pub(crate) lease: Lease,
    pub(crate) position: Option<u64>,
}

impl App {
    /// Idempotent for (user, workflow, request). An active lease is returned when its sandbox can be used.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        caller: &Caller,
        asked: LeaseRequest,
    ) -> Result<Obtained, Fault> {
        let (app, caller) = (Arc::clone(self), caller.clone());
        match self.to_its_end(async move { app.acquire_row(&caller, asked, None).await }).await? {
            Granted::Ready { lease, .. } => Ok(Obtained { lease, position: None }),
            Granted::Waits { lease, position } => Ok(Obtained { lease, position: Some(position) }),
            Granted::Ended { lease } => Ok(Obtained { lease, position: None }),
        }
    }

    /// The same, with the sandbox, for whoever sees it through to its end. `exec` is what the lease is for, if it is for
    /// one exec alone.
    pub(crate) async fn acquire_row(
        self: &Arc<Self>,
        caller: &Caller,
        asked: LeaseRequest,
        exec: Option<Planned>,
    ) -> Result<Granted, Fault> {
        let span = spans::acquire(&asked.template);
        let granted = self.grant(caller, asked, exec).instrument(span.clone()).await;
        match &granted {
            Ok(granted) => {
                let lease = granted.lease();
                // Whatever the request does from here on is done with it.
                spans::leased(lease.id, lease.sandbox);
            }
            Err(fault) => spans::failed(&span, fault),
        }
        granted
    }

    async fn grant(
        self: &Arc<Self>,
        caller: &Caller,
        asked: LeaseRequest,
        exec: Option<Planned>,
    ) -> Result<Granted, Fault> {
        caller.must(Scope::Run)?;
        let template = self.find_template(caller.tenant(), &asked.template).await?;
        let ask = self.ask(caller, &template, &asked)?;
        let target = ask.target.clone();
        self.metrics.pace.asked_for(&template.at);
        let started = tokio::time::Instant::now();
        let context = caller.context(self);
        let (acquired, noted) = match exec {
            Some(exec) => self.acquire_for(context, ask, exec).await?,
            None => (self.store.acquire(context, ask).await?, None),
        };
        self.step("lease_acquired");
        self.tell();
        let (lease, sandbox) = match acquired {
            Acquired::Granted { lease, sandbox, evicted } => {
                if let Some(evicted) = evicted {
                    self.advance_soon(evicted);
                }
                // What is for one exec alone has that started first.
                if noted.is_none() {
                    self.room_changed.notify_one();
                }
                (lease, sandbox)
            }
            Acquired::Waits { lease, position } => {
                self.room_changed.notify_one();
                return Ok(Granted::Waits { lease, position });
            }
            Acquired::Repeated { lease } => return self.obtained_before(lease).await,
            Acquired::Full { waiting } => return Err(self.full(waiting)),
            Acquired::OverQuota(exceeded) => {
                let text = format!(
                    "the tenant's quota of {} is {}: {} are used, and {} more were asked for",
                    exceeded.what, exceeded.limit, exceeded.used, exceeded.asked
                );
                let kind = if exceeded.for_ever() { Kind::Denied } else { Kind::Full };
                return Err(Fault::new(kind, text).hint("release a lease, or ask for a larger quota"));
            }
        };
        if let Some(exec) = &noted {
            self.tidings.has_begun(exec);
        }
        spans::leased(lease.id, Some(sandbox.id));
        Span::current().record("admission", display(lease.admission.name()));
        let leased = self.live.admit(&lease, sandbox.id);
        if let Err(fault) = self.prepare(&leased, &lease, sandbox, target, asked.gifts).await {
            if let Some(exec) = noted {
                self.did_not_start(exec, Some(fault.to_string()), Afterwards::Nothing);
            }
            return Err(fault);
        }
        self.metrics.acquired(lease.admission, started.elapsed());
        Ok(Granted::Ready { lease, leased, noted })
    }

    async fn acquire_for(
        self: &Arc<Self>,
        context: Context,
        ask: Acquire,
        exec: Planned,
    ) -> Result<(Acquired, Option<Exec>), Fault> {
        match self.store.acquire_for(context.clone(), ask.clone(), exec.clone()).await {
            // The store may not know yet that others have ended.
            Err(fault) if fault.kind() == Kind::Full => {
                self.settle().await?;
                self.store.acquire_for(context, ask, exec).await
            }
            acquired => acquired,
        }
    }

    fn ask(&self, caller: &Caller, template: &Template, asked: &LeaseRequest) -> Result<Acquire, Fault> {
        let invalid = |text: String| Fault::new(Kind::Invalid, text);
        let user = caller.user(asked.user.as_deref())?;
        let ttl_seconds = asked.ttl_seconds.unwrap_or(self.settings.lease_ttl_seconds);
        if !(1..=LONGEST_TTL).contains(&ttl_seconds) {
            return Err(invalid(format!("a lease lives 1 to {LONGEST_TTL} seconds, not {ttl_seconds}")));
        }
        if asked.heartbeat_seconds.is_some_and(|every| every == 0 || every >= ttl_seconds) {
            return Err(invalid(format!(
                "heartbeats come at least every second and more often than every {ttl_seconds} seconds"
            )));
        }
        for (what, text) in [("workflow", Some(&asked.workflow)), ("request", asked.request.as_ref())] {
            if text.is_some_and(|text| text.len() > LONGEST_LABEL || text.contains('\0')) {
                return Err(invalid(format!("'{what}' has at most {LONGEST_LABEL} bytes and no NUL")));
            }
        }
        asked.gifts.check()?;
        if asked.gifts.secrets != SecretGifts::default() {
            // Whoever has the sandbox can read them, and they are for those who set them.
            caller.must(Scope::Manage)?;
        }
        self.check_policy(asked.egress.policy.as_ref())?;
        let bad = |error: &dyn std::fmt::Display| invalid(error.to_string());
        let limits = template.recipe.limits().map_err(|error| bad(&error))?;
        let limits = limits.changed_by(&asked.gifts.limits).map_err(|error| bad(&error))?;
        let isolation = template.recipe.isolation().map_err(|error| bad(&error))?;
        let lease = LeaseId::from_random(self.surroundings.bits());
        let binding = match asked.gifts == Gifts::default() {
            true => serde_json::Value::Null,
            false => serde_json::to_value(&asked.gifts)
                .map_err(|error| Fault::new(Kind::Internal, "a lease cannot be written").because(error))?,
        };
        Ok(Acquire {
            lease,
            sandbox: SandboxId::from_random(self.surroundings.bits()),
            tenant: caller.tenant().clone(),
            user,
            workflow: asked.workflow.clone(),
            request: asked.request.clone().unwrap_or_else(|| lease.to_string()),
            fingerprint: fingerprint(&(
                &template.at.to_string(),
                ttl_seconds,
                asked.heartbeat_seconds,
                &binding,
                &asked.egress,
            )),
            target: Target {
                template: template.at.clone(),
                version: template.version,
                isolation,
                limits: asked.gifts.limits,
            },
            counts: Usage {
                leases: 1,
                millicpus: limits.millicpus.value,
                memory: limits.memory.value,
                execs: 0,
            },
            ttl_seconds,
            heartbeat_seconds: asked.heartbeat_seconds,
            one_shot: asked.one_shot,
            may_wait: asked.may_wait,
            must_be_new: asked.gifts.need_a_new_sandbox(),
            preferred: asked.preferred.clone(),
            binding,
            egress: asked.egress.clone(),
            room: self.room(),
        })
    }

    /// Makes the sandbox where it is to be made, and gives it what its user brought.
    async fn prepare(
        self: &Arc<Self>,
        leased: &Leased,
        lease: &Lease,
        sandbox: Sandbox,
        target: Target,
        gifts: Gifts,
    ) -> Result<(), Fault> {
        match self.try_to_prepare(lease, sandbox, target, gifts).await {
            Ok(guest) => {
                leased.is_ready(guest);
                Ok(())
            }
            Err(fault) => {
                warn!(lease = %lease.id, sandbox = %leased.sandbox, error = %fault, "sandbox cannot be handed out");
                self.end(self.own_context(), lease.id, LeaseEnd::CouldNotBeMade, AfterLease::Destroy).await?;
                Err(fault)
            }
        }
    }

    async fn try_to_prepare(
        self: &Arc<Self>,
        lease: &Lease,
        sandbox: Sandbox,
        target: Target,
        gifts: Gifts,
    ) -> Result<Guest, Fault> {
        let is_new = sandbox.state == SandboxState::Creating;
        let wanted = u64::from(lease.ttl_seconds) + GRACE_SECONDS;
        let (id, age) = (sandbox.id, lease.created_at.duration_since(sandbox.created_at).as_secs());
        if is_new {
            self.bring_up(&sandbox, &target, wanted).await?;
        }
        let (guest, sockets) = match self.live.take_warm(id) {
            Some(Warm { guest, sockets, .. }) => (guest, sockets),
            None => (self.guest(id).await?, None),
        };
        // A sandbox of the future is of a host whose clock was set; how long it lives is not known then.
        let remaining = u64::try_from(age).map_or(0, |age| POOLED_SECONDS.saturating_sub(age));
        if !is_new && wanted > remaining {
            self.prolong_soon(&guest, id, wanted);
        }
        self.give(lease, id, gifts, is_new).await?;
        self.open_egress(lease, id, &guest, sockets, Account::default()).await?;
        Ok(guest)
    }

    /// A sandbox of the pool lives for long without its server, but not as long as some leases. Nobody has to wait for this:
    /// what is left of its time is a good part of an hour, and whoever takes the lease over does it again.
    fn prolong_soon(&self, guest: &Guest, sandbox: SandboxId, seconds: u64) {
        let guest = guest.clone();
        self.tasks.spawn(async move {
            // A lease that is over by then needs no more time.
            if let Err(error) = guest.set_deadline(Duration::from_secs(seconds)).await {
                debug!(%sandbox, %error, "the time of a sandbox was not prolonged");
            }
        });
    }

    /// Gives a sandbox what its user brought, and notes that it has it. Twice is as good as once.
    async fn give(
        &self,
        lease: &Lease,
        sandbox: SandboxId,
        gifts: Gifts,
        has_its_limits: bool,
    ) -> Result<(), Fault> {
        let kept_in_row = gifts != Gifts::default();
        let gifts = match has_its_limits {
            // It was made with them, and some cannot be given later.
            true => Gifts { limits: LimitRequest::default(), ..gifts },
            false => gifts,
        };
        let secrets = self.secrets_to_give(&lease.tenant, &gifts.secrets).await?;
        let mut binding = gifts.binding();
        binding.secrets = secrets;
        let trust = self.trust_for(lease).await?;
        binding.files.extend(trust.files);
        // What its user says goes before.
        binding.env = trust.env.into_iter().chain(binding.env).collect();
        if binding != Binding::default() {
            self.changing("bind", sandbox, self.backend.bind(sandbox, &binding)).await?;
        }
        self.step("sandbox_bound");
        match kept_in_row {
            true => self.store.prepared(lease.id).await,
            false => Ok(()),
        }
    }

    /// Takes over the sandbox of a lease whose server was killed. Nobody has been told of a lease that was not prepared, so
    /// that nothing has run in its sandbox.
    pub(crate) async fn take_over(self: &Arc<Self>, lease: &Lease, sandbox: SandboxId, gifts: Option<Gifts>) {
        let leased = self.live.admit(lease, sandbox);
        let prepared: Result<Guest, Fault> = async {
            if let Some(gifts) = gifts {
                let made_with = self.store.target(sandbox).await?.limits;
                let has_its_limits = made_with == gifts.limits;
                self.give(lease, sandbox, gifts, has_its_limits).await?;
            }
            let guest = self.guest(sandbox).await?;
            guest.set_deadline(self.time_left(lease)).await?;
            self.take_over_egress(lease, sandbox, &guest).await?;
            self.learn_attached(&guest, sandbox).await?;
            Ok(guest)
        }
        .await;
        match prepared {
            Ok(guest) => leased.is_ready(guest),
            Err(fault) => {
                warn!(lease = %lease.id, %sandbox, error = %fault, "a lease could not be taken over");
                // Whoever has it is told by its end; the sweep would find it again and again.
                let because = LeaseEnd::SandboxEnded;
                let _ = self.end(self.own_context(), lease.id, because, AfterLease::Destroy).await;
            }
        }
    }

    /// How long the sandbox of a lease that is taken over lives without its server.
    fn time_left(&self, lease: &Lease) -> Duration {
        let left = lease.expires_at.duration_since(self.now()).as_secs();
        Duration::from_secs(u64::try_from(left).unwrap_or(0) + GRACE_SECONDS)
    }

    /// What came of the same request before: as soon as its sandbox can be used.
    async fn obtained_before(&self, lease: Lease) -> Result<Granted, Fault> {
        match (lease.status, lease.sandbox) {
            (LeaseStatus::Active, Some(id)) if lease.node == self.node => {
                let leased = self.live.admit(&lease, id);
                leased.guest().await?;
                Ok(Granted::Ready { lease, leased, noted: None })
            }
            (LeaseStatus::Queued, _) => {
                let position = self.store.position(self.node, lease.id).await?.unwrap_or(1);
                Ok(Granted::Waits { lease, position })
            }
            _ => Ok(Granted::Ended { lease }),
        }
    }

    /// A lease that waited has a sandbox.
    pub(crate) fn promoted(self: &Arc<Self>, promoted: Promoted) {
        let Promoted { lease, sandbox, binding, evicted } = promoted;
        if let Some(evicted) = evicted {
            self.advance_soon(evicted);
        }
        let leased = self.live.admit(&lease, sandbox.id);
        let app = Arc::clone(self);
        let span = spans::promote(lease.id, sandbox.id);
        let prepare = async move {
            let gifts = serde_json::from_value(binding).unwrap_or_default();
            // A failure ends the lease, and whoever waits for it sees that.
            if let Ok(target) = app.insist(|| app.store.target(sandbox.id)).await {
                let _ = app.prepare(&leased, &lease, sandbox, target, gifts).await;
            }
        };
        self.tasks.spawn(prepare.instrument(span));
    }

    pub(crate) fn full(&self, waiting: u64) -> Fault {
        let text = format!("all {} sandboxes are in use, and {waiting} leases wait", self.settings.capacity);
        Fault::new(Kind::Full, text).hint("try again later, or ask with \"queue\": true")
    }

    /// Seconds until a lease at this place in the queue will have a sandbox, from what was seen of late.
    pub(crate) fn estimate(&self, position: u64) -> Option<u64> {
        let mean = self.metrics.pace.mean_lease_seconds()?;
        Some((mean * position as f64 / self.settings.capacity.max(1) as f64).ceil() as u64)
    }

    /// A lease that exists for the caller.
    pub(crate) async fn lease(&self, caller: &Caller, id: LeaseId) -> Result<Lease, Fault> {
        let lease = self.store.lease(id).await?;
        lease.filter(|lease| caller.sees(&lease.tenant, &lease.user)).ok_or_else(|| {
            Fault::new(Kind::NotFound, format!("there is no lease {id}"))
                .hint("'cubicle ps' shows what there is")
        })
    }

    pub(crate) async fn leases(
        &self,
        caller: &Caller,
        status: Option<LeaseStatus>,
        workflow: Option<String>,
        page: Page,
    ) -> Result<Vec<Lease>, Fault> {
        caller.must(Scope::Read)?;
        let filter = LeaseFilter {
            tenant: Some(caller.tenant().clone()),
            user: caller.listed_user(),
            status,
            workflow,
        };
        self.store.leases(filter, page).await
    }

    pub(crate) async fn heartbeat(&self, caller: &Caller, id: LeaseId) -> Result<Lease, Fault> {
        caller.must(Scope::Run)?;
        self.lease(caller, id).await?;
        let renewed = self.store.renew(caller.context(self), id).await?;
        if let Some(leased) = renewed.sandbox.and_then(|sandbox| self.live.get(sandbox)) {
            let guest = leased.guest().await?;
            let deadline = Duration::from_secs(u64::from(renewed.ttl_seconds) + GRACE_SECONDS);
            guest.set_deadline(deadline).await?;
        }
        Ok(renewed)
    }

    /// Gives a lease back. What has ended before stays as it is.
    pub(crate) async fn release(self: &Arc<Self>, caller: &Caller, id: LeaseId) -> Result<Lease, Fault> {
        caller.must(Scope::Run)?;
        let lease = self.lease(caller, id).await?;
        if lease.status.has_ended() {
            return Ok(lease);
        }
        let after = self.after(&lease).await;
        self.end(caller.context(self), id, LeaseEnd::Released, after).await
    }

    /// What becomes of the sandbox of a lease that is given back.
    pub(super) async fn after(&self, lease: &Lease) -> AfterLease {
        let template = self.find_template(&lease.tenant, lease.template.name.as_str()).await;
        let reuse = template.map_or(Reuse::Never, |template| template.recipe.reuse);
        let Some(sandbox) = lease.sandbox else { return AfterLease::Destroy };
        match reuse {
            Reuse::Never => AfterLease::Destroy,
            Reuse::SameUser => AfterLease::KeepForUser,
            Reuse::EnvCache => match self.clean(sandbox).await {
                Ok(()) => AfterLease::KeepForTenant,
                Err(fault) => {
                    info!(%sandbox, error = %fault, "sandbox cannot be cleaned and is destroyed");
                    AfterLease::Destroy
                }
            },
        }
    }

    /// Ends a lease and sees to its sandbox.
    pub(crate) async fn end(
        self: &Arc<Self>,
        context: Context,
        id: LeaseId,
        because: LeaseEnd,
        after: AfterLease,
    ) -> Result<Lease, Fault> {
        let ended = self.store.end_lease(context, id, because, after).await?;
        self.step("lease_ended");
        self.ended(&ended);
        Ok(ended.lease)
    }

    /// A lease has ended in the store: its sandbox follows.
    pub(crate) fn ended(self: &Arc<Self>, ended: &cubicle_store::EndedLease) {
        if ended.just_now {
            self.metrics.lease_ended(&ended.lease);
            self.tell();
            info!(lease = %ended.lease.id, because = ended.lease.ended_because.map(LeaseEnd::name), "lease ended");
        }
        let Some(id) = ended.lease.sandbox else { return };
        let leased = self.live.leave(id);
        let sockets = self.close_egress(&ended.lease);
        match &ended.sandbox {
            Some(sandbox) if sandbox.state == SandboxState::Idle => {
                if let Some(guest) = leased.and_then(|leased| leased.last_guest()) {
                    let kept_for = sandbox.tenant.clone().map(|tenant| (tenant, sandbox.user.clone()));
                    let template = sandbox.template.clone();
                    self.live.keep_warm(id, Warm { template, kept_for, guest, sockets });
                }
            }
            _ => self.advance_soon(id),
        }
        self.room_changed.notify_one();
    }
}

/// What came of an acquire.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "one per request, looked at once")]
pub(crate) enum Granted {
    Ready {
        lease: Lease,
        leased: Arc<Leased>,
        /// The exec that it is for, where it is noted already.
        noted: Option<Exec>,
    },
    Waits {
        lease: Lease,
        position: u64,
    },
    /// Of a repeated request whose lease is over, or is another node's.
    Ended {
        lease: Lease,
    },
}

impl Granted {
    fn lease(&self) -> &Lease {
        match self {
            Self::Ready { lease, .. } | Self::Waits { lease, .. } | Self::Ended { lease } => lease,
        }
    }
}

/// The same for the same request, and for no other.
pub(crate) fn fingerprint(of: &impl Serialize) -> String {
    let bytes = serde_json::to_vec(of).unwrap_or_default();
    hexadecimal(&Sha256::digest(bytes)[..16])
}
