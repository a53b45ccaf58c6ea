//! One sandbox's way out: its sockets, whether the gateway has them, and what was used so far.

use std::sync::{Arc, Mutex, PoisonError};

use cubicle_egress::control::TermsText;
use cubicle_model::egress::{Bill, Policy};
use cubicle_model::{Fault, Kind, LeaseId, SandboxId};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::gateway::{Gateway, Living};
use super::sockets::Sockets;

#[derive(Debug)]
pub(crate) struct Outlet {
    pub(crate) sandbox: SandboxId,
    pub(crate) lease: LeaseId,
    sockets: Mutex<Sockets>,
    /// There are more sockets to watch.
    more: Notify,
    /// One at a time talks to the gateway of it.
    link: tokio::sync::Mutex<Link>,
    pub(super) closed: CancellationToken,
}

/// What the gateway was told, and what it told.
#[derive(Debug, Default)]
struct Link {
    attached: Option<Attached>,
    /// Of gateways before this one.
    earlier: Account,
    /// Of this one, when it was asked last.
    latest: Account,
    /// What the store has.
    kept: Bill,
}

#[derive(Debug)]
struct Attached {
    number: u64,
    told: TermsText,
    /// How many sockets it has.
    sockets: usize,
}

/// What a sandbox has used, and what it would have needed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) bill: Bill,
    /// The smallest policy for what it reached, where it is recorded.
    pub(crate) minimal: Option<Policy>,
}

impl Account {
    fn add(&mut self, other: Self) {
        self.bill.add(other.bill);
        match (&mut self.minimal, other.minimal) {
            (Some(own), Some(other)) => {
                let new =
                    other.rules.into_iter().filter(|rule| !own.rules.contains(rule)).collect::<Vec<_>>();
                own.rules.extend(new);
            }
            (own @ None, other) => *own = other,
            (Some(_), None) => {}
        }
    }
}

impl Outlet {
    pub(super) fn new(sandbox: SandboxId, lease: LeaseId, sockets: Sockets, earlier: Account) -> Self {
        Self {
            sandbox,
            lease,
            sockets: Mutex::new(sockets),
            more: Notify::new(),
            link: tokio::sync::Mutex::new(Link { earlier, ..Link::default() }),
            closed: CancellationToken::new(),
        }
    }

    pub(crate) fn sockets(&self) -> Sockets {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_sockets(&self, sockets: Sockets) {
        *self.sockets.lock().unwrap_or_else(PoisonError::into_inner) = sockets;
        self.more.notify_one();
    }

    /// Hands the sockets to the gateway, with what holds. Says which gateway has them.
    pub(super) async fn attach(&self, gateway: &Gateway, terms: TermsText) -> Result<u64, Fault> {
        let living = gateway.living().await?;
        let mut link = self.link.lock().await;
        self.hand_over(&mut link, gateway, &living, terms).await?;
        Ok(living.number)
    }

    /// Tells the gateway what holds now, where it has the sandbox. When this returns, nothing of before holds any more.
    pub(super) async fn change(&self, gateway: &Gateway, terms: TermsText) -> Result<(), Fault> {
        let mut link = self.link.lock().await;
        let Some((living, attached)) = link.with(gateway) else { return Ok(()) };
        let more = attached.sockets < self.sockets().len();
        if attached.told == terms && !more {
            return Ok(());
        }
        if more {
            // A gateway takes sockets only when it gets a sandbox, so that it gets this one anew.
            let before = given_up(gateway, &living, living.remote.detach(self.sandbox).await)?;
            link.attached = None;
            let minimal = link.latest.minimal.take();
            link.latest = Account::default();
            link.earlier.add(Account { bill: before.unwrap_or_default(), minimal });
            return self.hand_over(&mut link, gateway, &living, terms).await;
        }
        given_up(gateway, &living, living.remote.change(self.sandbox, terms.clone()).await)?;
        if let Some(attached) = &mut link.attached {
            attached.told = terms;
        }
        Ok(())
    }

    async fn hand_over(
        &self,
        link: &mut Link,
        gateway: &Gateway,
        living: &Living,
        terms: TermsText,
    ) -> Result<(), Fault> {
        let sockets = self.sockets();
        let cannot = |error| Fault::new(Kind::Full, "no file descriptor is left for egress").because(error);
        for (kind, socket) in sockets.handed_over().map_err(cannot)? {
            given_up(gateway, living, living.remote.listener(self.sandbox, kind, socket).await)?;
        }
        given_up(gateway, living, living.remote.attach(self.sandbox, terms.clone()).await)?;
        let latest = std::mem::take(&mut link.latest);
        link.earlier.add(latest);
        link.attached = Some(Attached { number: living.number, told: terms, sockets: sockets.len() });
        Ok(())
    }

    /// The gateway that had it is gone.
    pub(super) async fn lost(&self) {
        let mut link = self.link.lock().await;
        link.attached = None;
        let latest = std::mem::take(&mut link.latest);
        link.earlier.add(latest);
    }

    /// What was used so far. Where the gateway does not answer, what was known of it last.
    pub(super) async fn account(&self, gateway: &Gateway) -> Account {
        let mut link = self.link.lock().await;
        if let Some((living, attached)) = link.with(gateway) {
            let record = attached.told.record;
            if let Ok(bill) = given_up(gateway, &living, living.remote.bill(self.sandbox).await) {
                link.latest.bill = bill;
            }
            if record
                && let Ok(minimal) = given_up(gateway, &living, living.remote.recording(self.sandbox).await)
            {
                link.latest.minimal = Some(minimal);
            }
        }
        let mut all = link.earlier.clone();
        all.add(link.latest.clone());
        all
    }

    /// Whether the gateway was told just this; true where no gateway has the sandbox, as the next one is told anew.
    pub(crate) async fn holds(&self, terms: &TermsText) -> bool {
        self.link.lock().await.attached.as_ref().is_none_or(|attached| attached.told == *terms)
    }

    /// Whether the store does not have this yet. It is told once.
    pub(crate) async fn is_news(&self, bill: &Bill) -> bool {
        let mut link = self.link.lock().await;
        let is_news = link.kept != *bill;
        if is_news {
            link.kept = bill.clone();
        }
        is_news
    }

    /// Whether anything was ever handed to a gateway.
    pub(crate) async fn was_used(&self) -> bool {
        let link = self.link.lock().await;
        link.attached.is_some() || link.earlier != Account::default()
    }

    /// Ends everything that is open, and says what was used in all.
    pub(super) async fn close(&self, gateway: &Gateway) -> Account {
        self.closed.cancel();
        // A recording is asked for before its sandbox is let go.
        self.account(gateway).await;
        self.detach(gateway).await
    }

    async fn detach(&self, gateway: &Gateway) -> Account {
        let mut link = self.link.lock().await;
        if let Some((living, _)) = link.with(gateway) {
            let detached = given_up(gateway, &living, living.remote.detach(self.sandbox).await);
            if let Ok(Some(bill)) = detached {
                link.latest.bill = bill;
            }
        }
        link.attached = None;
        let latest = std::mem::take(&mut link.latest);
        link.earlier.add(latest);
        link.earlier.clone()
    }
}

impl Link {
    /// The gateway that has the sandbox, if it still lives.
    fn with(&self, gateway: &Gateway) -> Option<(Living, &Attached)> {
        let attached = self.attached.as_ref()?;
        let living = gateway.found().filter(|living| living.number == attached.number)?;
        Some((living, attached))
    }
}

/// After a call that failed for want of an answer the gateway is of no use.
fn given_up<T>(gateway: &Gateway, living: &Living, outcome: Result<T, Fault>) -> Result<T, Fault> {
    if let Err(fault) = &outcome
        && fault.kind() == Kind::Unavailable
    {
        gateway.discard(living.number);
    }
    outcome
}

/// Keeps a sandbox at the gateway from the first connection on, also when gateways die. Ends when the outlet is closed;
/// between two waits nothing is dropped half-way.
pub(super) async fn keep<Terms: Future<Output = Result<TermsText, Fault>>>(
    outlet: Arc<Outlet>,
    gateway: &Gateway,
    terms: impl Fn() -> Terms,
) {
    const PAUSE: std::time::Duration = std::time::Duration::from_millis(200);
    let closed = outlet.closed.clone();
    loop {
        let sockets = outlet.sockets();
        // Dropped, none of them has accepted anything.
        tokio::select! {
            () = closed.cancelled() => return,
            () = outlet.more.notified() => continue,
            knocked = sockets.knock() => {
                if let Err(error) = knocked {
                    tracing::warn!(sandbox = %outlet.sandbox, %error, "the sockets of a sandbox cannot be watched");
                }
            }
        }
        let attached = match terms().await {
            Ok(terms) => outlet.attach(gateway, terms).await,
            Err(fault) => Err(fault),
        };
        let waited = match attached {
            Ok(number) => closed.run_until_cancelled(gateway.gone(number)).await,
            Err(fault) => {
                tracing::warn!(sandbox = %outlet.sandbox, error = %fault, "a sandbox has no way out now");
                closed.run_until_cancelled(tokio::time::sleep(PAUSE)).await
            }
        };
        if waited.is_none() {
            // It may have been closed while it was handed over.
            outlet.detach(gateway).await;
            return;
        }
        outlet.lost().await;
    }
}
