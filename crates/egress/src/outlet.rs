//! One sandbox's way out: what it may reach, what it is given on the way, and what it has used.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cubicle_model::SandboxId;
use cubicle_model::egress::recording::Seen;
use cubicle_model::egress::{
    Allowed, Attempt, Bill, Bucket, Denied, Host, HostName, Reason, Recording, Ruleset, Scheme, Verdict, Via,
};
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::bill::Ledger;
use crate::credentials::Credential;
use crate::dns::Addresses;
use crate::gateway::Shared;
use crate::http::Pool;
use crate::redact::{Redaction, Shapes};
use crate::refusal::{Refusal, Spent};

/// What holds for one sandbox now. It is replaced as a whole.
#[derive(Debug, Clone)]
pub struct Terms {
    pub policy: Ruleset,
    pub credentials: Vec<Credential>,
    pub bases: Vec<Base>,
    /// Allow what no rule denies, and note it.
    pub record: bool,
}

impl Terms {
    /// A policy alone.
    pub fn of(policy: Ruleset) -> Self {
        Self { policy, credentials: Vec::new(), bases: Vec::new(), record: false }
    }
}

/// A plain-HTTP address inside that stands for a service outside: `http://NAME.egress.internal` for `https://HOST`.
#[derive(Debug, Clone)]
pub struct Base {
    /// The first part of the virtual host's name.
    pub name: String,
    pub scheme: Scheme,
    pub host: Host,
    pub port: u16,
}

/// Terms with what follows from them.
#[derive(Debug)]
pub(crate) struct Agreed {
    pub(crate) policy: Ruleset,
    pub(crate) credentials: Vec<Credential>,
    pub(crate) bases: Vec<Base>,
    record: bool,
    /// Masks bound secrets that come back.
    pub(crate) echoes: Redaction,
}

impl From<Terms> for Agreed {
    fn from(terms: Terms) -> Self {
        let Terms { policy, credentials, bases, record } = terms;
        let echoes = Redaction::new(
            credentials.iter().filter_map(|credential| credential.secret.as_ref()),
            Shapes::none(),
        );
        let policy = if record { policy.for_recording() } else { policy };
        Self { policy, credentials, bases, record, echoes }
    }
}

#[derive(Debug)]
pub(crate) struct Outlet {
    sandbox: SandboxId,
    shared: Arc<Shared>,
    terms: watch::Sender<Arc<Agreed>>,
    ledger: Ledger,
    recording: Mutex<Recording>,
    rate: Mutex<Option<(u64, Bucket)>>,
    began: Instant,
    connections: AtomicUsize,
    lookups: Mutex<HashMap<HostName, (Instant, Vec<IpAddr>)>>,
    addresses: Mutex<Addresses>,
    pool: Pool,
    /// For clients that are told that there is no room for them.
    pub(crate) goodbyes: Arc<Semaphore>,
    /// Every task that works for this sandbox.
    pub(crate) tasks: TaskTracker,
    pub(crate) ended: CancellationToken,
}

/// How long an answer of a name server is used again. Addresses are checked whenever they are used, so this is about
/// speed alone.
const LOOKUP_TTL: Duration = Duration::from_secs(5);
const MOST_LOOKUPS: usize = 256;
const MOST_GOODBYES: usize = 16;

impl Outlet {
    pub(crate) fn new(sandbox: SandboxId, shared: Arc<Shared>, terms: Terms) -> Self {
        Self {
            sandbox,
            terms: watch::Sender::new(Arc::new(terms.into())),
            ledger: Ledger::default(),
            recording: Mutex::default(),
            rate: Mutex::default(),
            began: Instant::now(),
            connections: AtomicUsize::new(0),
            lookups: Mutex::default(),
            addresses: Mutex::default(),
            pool: Pool::new(shared.limits.idle_upstream),
            goodbyes: Arc::new(Semaphore::new(MOST_GOODBYES)),
            tasks: TaskTracker::new(),
            ended: CancellationToken::new(),
            shared,
        }
    }

    pub(crate) fn sandbox(&self) -> SandboxId {
        self.sandbox
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    pub(crate) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(crate) fn terms(&self) -> Arc<Agreed> {
        Arc::clone(&self.terms.borrow())
    }

    /// Tells of every change of the terms.
    pub(crate) fn changes(&self) -> watch::Receiver<Arc<Agreed>> {
        self.terms.subscribe()
    }

    pub(crate) fn change(&self, terms: Terms) {
        self.terms.send_replace(Arc::new(terms.into()));
    }

    pub(crate) fn bill(&self) -> Bill {
        self.ledger.bill()
    }

    pub(crate) fn recording(&self) -> Recording {
        self.recording.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The first step of the decision, before anything is resolved.
    pub(crate) fn by_name(&self, terms: &Agreed, attempt: &Attempt<'_>) -> Result<Allowed, Refusal> {
        judged(attempt, terms.policy.by_name(attempt))
    }

    /// The second step, for the address that is about to be used.
    pub(crate) fn at_address(
        &self,
        terms: &Agreed,
        attempt: &Attempt<'_>,
        address: IpAddr,
    ) -> Result<Allowed, Refusal> {
        // Addresses of a host come and go, so that the host is asked anew each time.
        let here = terms.policy.minds_the_host(attempt.port) && self.shared.outside.dial.is_here(address);
        judged(
            attempt,
            match here {
                true => terms.policy.at_own_host(attempt, address),
                false => terms.policy.at_address(attempt, address),
            },
        )
    }

    /// Notes what was reached, when this sandbox is recorded.
    pub(crate) fn record(&self, terms: &Agreed, attempt: &Attempt<'_>, address: IpAddr, inspected: bool) {
        if terms.record {
            let seen = match attempt.via {
                Via::Tunnel => Seen::Tunnel,
                Via::Request { scheme, method, .. } => Seen::Request { scheme, method, inspected },
            };
            let private = cubicle_model::egress::address::refused(address).is_some();
            let mut recording = self.recording.lock().unwrap_or_else(PoisonError::into_inner);
            recording.note(attempt.host, attempt.port, seen, private);
        }
    }

    /// Notes a refusal in the bill, where it is the sandbox's doing.
    pub(crate) fn refused(&self, target: &str, refusal: &Refusal) {
        if let Some(rule) = refusal.rule() {
            self.ledger.deny(target, rule);
            tracing::debug!(sandbox = %self.sandbox, target, %refusal, "egress refused");
        }
    }

    /// One more request or tunnel begins, with a head of this length.
    pub(crate) fn spend_request(&self, terms: &Agreed, head: usize) -> Result<(), Refusal> {
        self.ledger.spend(terms.policy.budget(), head).map_err(Refusal::Budget)?;
        let Some(per_second) = terms.policy.budget().requests_per_second else { return Ok(()) };
        let now = self.began.elapsed();
        let mut rate = self.rate.lock().unwrap_or_else(PoisonError::into_inner);
        if rate.as_ref().is_none_or(|(known, _)| *known != per_second) {
            *rate = Some((per_second, Bucket::new(per_second, now)));
        }
        let (_, bucket) = rate.as_mut().expect("it was just set");
        bucket.take(now).map_err(|wait| {
            Refusal::Budget(Spent::Rate(
                u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).saturating_add(1),
            ))
        })
    }

    /// Room for one more connection, given back when the value is dropped.
    pub(crate) fn enter(self: &Arc<Self>) -> Result<Room, Refusal> {
        let shared = &self.shared;
        let own = self.terms().policy.budget().connections;
        let most = own.map_or(usize::MAX, |own| usize::try_from(own).unwrap_or(usize::MAX));
        let most = most.min(shared.limits.connections_per_sandbox);
        let room = Room(Arc::clone(self));
        let mine = self.connections.fetch_add(1, Relaxed);
        let all = shared.connections.fetch_add(1, Relaxed);
        match () {
            () if mine >= most => Err(Refusal::Budget(Spent::Connections)),
            () if all >= shared.limits.connections => Err(Refusal::Busy),
            () => Ok(room),
        }
    }

    pub(crate) fn looked_up(&self, name: &HostName) -> Option<Vec<IpAddr>> {
        let lookups = self.lookups.lock().unwrap_or_else(PoisonError::into_inner);
        lookups.get(name).filter(|(at, _)| at.elapsed() < LOOKUP_TTL).map(|(_, addresses)| addresses.clone())
    }

    pub(crate) fn keep_lookup(&self, name: &HostName, addresses: &[IpAddr]) {
        let mut lookups = self.lookups.lock().unwrap_or_else(PoisonError::into_inner);
        if lookups.len() >= MOST_LOOKUPS {
            lookups.retain(|_, (at, _)| at.elapsed() < LOOKUP_TTL);
        }
        if lookups.len() < MOST_LOOKUPS {
            lookups.insert(name.clone(), (Instant::now(), addresses.to_vec()));
        }
    }

    /// The loopback addresses that stand for names inside of the sandbox.
    pub(crate) fn with_addresses<T>(&self, use_them: impl FnOnce(&mut Addresses) -> T) -> T {
        use_them(&mut self.addresses.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A verdict that this gateway does not know how to carry out is a denial.
fn judged(attempt: &Attempt<'_>, verdict: Verdict) -> Result<Allowed, Refusal> {
    match verdict {
        Verdict::Allow(allowed) => Ok(allowed),
        Verdict::Deny(denied) => Err(denied.into()),
        _ => Err(Refusal::Policy(Denied {
            what: format!("{}:{}", attempt.host, attempt.port),
            reason: Reason::NotAllowed { near: None },
            remedy: None,
        })),
    }
}

/// The place of one connection among those that may be open.
#[derive(Debug)]
pub(crate) struct Room(Arc<Outlet>);

impl Drop for Room {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Relaxed);
        self.0.shared.connections.fetch_sub(1, Relaxed);
    }
}
