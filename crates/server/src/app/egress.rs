//! What sandboxes may reach, what they have reached, and changes of both.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cubicle_egress::Base;
use cubicle_egress::control::TermsText;
use cubicle_guest::client::Guest;
use cubicle_model::egress::{Bill, Host, LeaseEgress, Mode, Policy, Ruleset, SaidBy, Scheme, Wanted};
use cubicle_model::{Binding, ExecId, Fault, Kind, Lease, LeaseId, Name, SandboxId, Scope};
use cubicle_store::{Exec, KeptBill};
use tracing::{debug, warn};

use super::tasks::WEBHOOK_BASE;
use super::{App, Caller};
use crate::egress::{Account, Egress, Outlet, Sockets};

/// Another server may have changed what holds.
const REFRESH: Duration = Duration::from_secs(5);

/// What holds for a lease and what it has used.
#[derive(Debug)]
pub(crate) struct EgressView {
    pub(crate) policy: Policy,
    pub(crate) said_by: SaidBy,
    pub(crate) record: bool,
    pub(crate) bill: Bill,
    /// The smallest policy for what a recorded lease has reached.
    pub(crate) minimal: Option<Policy>,
}

/// Why something may be reached or not.
#[derive(Debug)]
pub(crate) struct Explained {
    pub(crate) allowed: bool,
    pub(crate) explanation: String,
}

/// By what an explanation is made.
#[derive(Debug)]
pub(crate) enum Whose {
    Policy(Policy),
    Lease(LeaseId),
    Template(String),
}

impl App {
    fn egress(&self) -> Result<&Arc<Egress>, Fault> {
        self.egress.as_ref().ok_or_else(|| {
            Fault::new(Kind::Denied, "this server has no egress gateway: its sandboxes have no network")
                .hint("leave 'egress' out")
        })
    }

    /// Refuses a policy that could not be carried out.
    pub(crate) fn check_policy(&self, policy: Option<&Policy>) -> Result<(), Fault> {
        let Some(policy) = policy else { return Ok(()) };
        self.egress()?.resolve(policy).map(drop)
    }

    /// What every sandbox is told in its environment, under what its template says.
    pub(crate) fn egress_environment(&self) -> BTreeMap<String, String> {
        self.egress.iter().flat_map(|egress| egress.environment()).collect()
    }

    /// The sockets of a sandbox that nobody has yet, so that whoever gets it does not wait for them.
    pub(crate) async fn egress_sockets(&self, guest: &Guest) -> Option<Sockets> {
        self.egress.as_ref()?;
        Sockets::usual(guest)
            .await
            .inspect_err(|fault| debug!(error = %fault, "no sockets for egress yet"))
            .ok()
    }

    /// Gives the sandbox of a lease its way out.
    pub(crate) async fn open_egress(
        self: &Arc<Self>,
        lease: &Lease,
        sandbox: SandboxId,
        guest: &Guest,
        sockets: Option<Sockets>,
        earlier: Account,
    ) -> Result<(), Fault> {
        let Some(egress) = &self.egress else { return Ok(()) };
        let (policy, _) = self.policy_of(lease).await?;
        // What the pool made ahead is what most policies need.
        let sockets = sockets.unwrap_or_default().for_policy(guest, &policy).await?;
        let (app, id) = (Arc::clone(self), lease.id);
        egress.open(sandbox, lease.id, sockets, earlier, move || {
            let app = Arc::clone(&app);
            async move { app.terms(id).await }
        });
        Ok(())
    }

    /// What a sandbox needs to trust the gateway under the policy of its lease.
    pub(super) async fn trust_for(&self, lease: &Lease) -> Result<Binding, Fault> {
        let Some(egress) = &self.egress else { return Ok(Binding::default()) };
        let (policy, _) = self.policy_of(lease).await?;
        Ok(match egress.trust(&policy) {
            Some((env, file)) => Binding { env, files: vec![file], ..Binding::default() },
            None => Binding::default(),
        })
    }

    /// The same after a restart: what was used before counts on.
    pub(crate) async fn take_over_egress(
        self: &Arc<Self>,
        lease: &Lease,
        sandbox: SandboxId,
        guest: &Guest,
    ) -> Result<(), Fault> {
        if self.egress.is_none() {
            return Ok(());
        }
        let lease = self.without_ended_exec(lease.clone()).await?;
        let earlier = self.kept_account(&lease).await?;
        self.open_egress(&lease, sandbox, guest, None, earlier).await
    }

    /// What the store knows of a lease's use.
    async fn kept_account(&self, lease: &Lease) -> Result<Account, Fault> {
        let kept = self.store.bill(lease.id.to_string()).await?;
        Ok(Account { bill: kept.map(|kept| kept.bill).unwrap_or_default(), minimal: None })
    }

    /// The server may have been killed between the end of an exec and that of its policy.
    async fn without_ended_exec(&self, lease: Lease) -> Result<Lease, Fault> {
        let Some(exec) = lease.egress.during.as_ref().map(|during| during.exec) else { return Ok(lease) };
        let runs = self.store.exec(exec).await?.is_some_and(|exec| exec.ended.is_none());
        match runs {
            true => Ok(lease),
            false => {
                self.store.change_egress(self.own_context(), lease.id, move |now| Ok(now.ending(exec))).await
            }
        }
    }

    /// The lease has ended: so does everything that its sandbox has open, and what it used is kept.
    pub(crate) fn close_egress(self: &Arc<Self>, lease: &Lease) -> Option<Sockets> {
        let (egress, sandbox) = (self.egress.as_ref()?, lease.sandbox?);
        let sockets = egress.outlet(sandbox)?.sockets();
        let (app, egress, lease) = (Arc::clone(self), Arc::clone(egress), lease.clone());
        self.tasks.spawn(async move {
            if let Some(account) = egress.close(sandbox).await {
                app.keep_bill(&lease, sandbox, account.bill).await;
            }
        });
        Some(sockets)
    }

    async fn keep_bill(&self, lease: &Lease, sandbox: SandboxId, bill: Bill) {
        if bill.is_empty() {
            return;
        }
        let kept = KeptBill {
            subject: lease.id.to_string(),
            tenant: lease.tenant.clone(),
            user: lease.user.clone(),
            sandbox,
            node: self.node,
            bill,
            updated_at: self.now(),
        };
        if let Err(fault) = self.insist(|| self.store.put_bill(kept.clone())).await {
            warn!(lease = %lease.id, error = %fault, "what a lease reached cannot be kept");
        }
    }

    /// What the gateway is told of a sandbox: everything from the store, as it is now.
    async fn terms(&self, lease: LeaseId) -> Result<TermsText, Fault> {
        let gone = || Fault::new(Kind::NotFound, format!("there is no lease {lease}"));
        let lease = self.store.lease(lease).await?.ok_or_else(gone)?;
        self.terms_of(&lease).await
    }

    async fn terms_of(&self, lease: &Lease) -> Result<TermsText, Fault> {
        let (policy, _) = self.policy_of(lease).await?;
        let policy = match self.egress()?.resolve(&policy) {
            Ok(_) => policy,
            // A bundle that it names is not there any more. Nothing is better than anything else.
            Err(fault) => {
                warn!(lease = %lease.id, error = %fault, "a policy cannot be carried out, and nothing is allowed");
                Policy::none()
            }
        };
        let bound = self.credentials_for(&lease.tenant, &lease.template).await?;
        let mut bases: Vec<_> = bound.iter().filter_map(|bound| bound.base.clone()).collect();
        let policy = match lease.egress.webhook {
            true => {
                bases.insert(0, self.own_webhook_base());
                self.with_own_webhook(policy)?
            }
            false => policy,
        };
        let credentials: Vec<_> = bound.into_iter().map(|bound| bound.credential).collect();
        Ok(TermsText::new(policy, &credentials, &bases, lease.egress.record))
    }

    /// Where the worker of a task finds this server.
    fn own_webhook_base(&self) -> Base {
        let at = self.settings.workers.at;
        let host = Host::Address(at.ip());
        Base { name: WEBHOOK_BASE.into(), scheme: Scheme::Http, host, port: at.port() }
    }

    /// With the one request to this server that the worker of a task may make.
    fn with_own_webhook(&self, policy: Policy) -> Result<Policy, Fault> {
        let (at, path) = (self.settings.workers.at, &self.settings.webhooks.path);
        let rule: Policy = format!("allow POST http://{at}{path} private").parse().map_err(|error| {
            Fault::new(Kind::Internal, "the way to the own webhook cannot be allowed").because(error)
        })?;
        Ok(match policy.mode {
            Mode::None => rule,
            Mode::Allowlist | Mode::Open => Policy { rules: [policy.rules, rule.rules].concat(), ..policy },
        })
    }

    async fn policy_of(&self, lease: &Lease) -> Result<(Policy, SaidBy), Fault> {
        let usual = self.template_policy(&lease.tenant, &lease.template).await?;
        let (policy, said_by) = lease.egress.in_force(&usual);
        Ok((policy.clone(), said_by))
    }

    /// What would hold for a lease, where there is a gateway at all.
    pub(super) async fn policy_for(
        &self,
        tenant: &Name,
        template: &cubicle_model::TemplateRef,
        said: &LeaseEgress,
    ) -> Result<Option<Policy>, Fault> {
        if self.egress.is_none() {
            return Ok(None);
        }
        let usual = self.template_policy(tenant, template).await?;
        Ok(Some(said.in_force(&usual).0.clone()))
    }

    async fn template_policy(
        &self,
        tenant: &Name,
        template: &cubicle_model::TemplateRef,
    ) -> Result<Policy, Fault> {
        let said = match self.find_template(tenant, template.name.as_str()).await {
            Ok(found) => found.recipe.egress,
            Err(fault) if fault.kind() == Kind::NotFound => None,
            Err(fault) => return Err(fault),
        };
        match said {
            Some(policy) => Ok(policy),
            None => Ok(self.egress()?.usual(template)),
        }
    }

    /// Compares what every sandbox at the gateway was told with what holds now: a template, a secret or a lease may have
    /// been changed, also by another server. What was used is kept, too.
    pub(crate) async fn refresh_egress(self: &Arc<Self>) {
        let Some(egress) = &self.egress else { return };
        for outlet in egress.all() {
            // One that cannot be told must not keep the others from it.
            if let Err(fault) = self.refresh(egress, &outlet).await {
                let sandbox = outlet.sandbox;
                warn!(%sandbox, error = %fault, "the gateway cannot be told what holds now; the next round comes");
            }
        }
    }

    async fn refresh(self: &Arc<Self>, egress: &Egress, outlet: &Outlet) -> Result<(), Fault> {
        if !outlet.was_used().await {
            return Ok(());
        }
        let lease = self.store.lease(outlet.lease).await?;
        let Some(lease) = lease.filter(|lease| !lease.status.has_ended()) else { return Ok(()) };
        if !outlet.holds(&self.terms_of(&lease).await?).await {
            self.apply(&lease).await?;
        }
        let bill = egress.account(outlet).await.bill;
        if outlet.is_news(&bill).await {
            self.keep_bill(&lease, outlet.sandbox, bill).await;
        }
        Ok(())
    }

    /// Refreshes now and then, and whenever a template or a secret was changed here.
    pub(crate) async fn keep_egress_fresh(self: Arc<Self>) {
        let Some(egress) = self.egress.clone() else { return };
        let mut secrets = self.secrets.changes();
        loop {
            // Dropping any of them loses nothing: a round looks at everything.
            tokio::select! {
                () = tokio::time::sleep(REFRESH) => {}
                () = egress.look_again.notified() => {}
                _ = secrets.changed() => {}
            }
            self.refresh_egress().await;
        }
    }

    /// What holds for a lease is told to the gateway, and holds when this returns.
    async fn apply(self: &Arc<Self>, lease: &Lease) -> Result<(), Fault> {
        let (Some(egress), Some(sandbox)) = (&self.egress, lease.sandbox) else { return Ok(()) };
        let Some(outlet) = egress.outlet(sandbox) else { return Ok(()) };
        let (policy, _) = self.policy_of(lease).await?;
        let guest = match self.live.get(sandbox) {
            Some(leased) => leased.guest().await?,
            None => return Ok(()),
        };
        if let Some((env, file)) = egress.trust(&policy) {
            let trust = Binding { env, files: vec![file], ..Binding::default() };
            self.changing("bind", sandbox, self.backend.bind(sandbox, &trust)).await?;
        }
        outlet.set_sockets(outlet.sockets().for_policy(&guest, &policy).await?);
        egress.change(&outlet, self.terms(lease.id).await?).await
    }

    /// Changes what a lease says of egress, for what is open, too. None takes the template's policy.
    pub(crate) async fn change_egress(
        self: &Arc<Self>,
        caller: &Caller,
        id: LeaseId,
        policy: Option<Policy>,
        record: bool,
    ) -> Result<EgressView, Fault> {
        caller.must(Scope::Run)?;
        self.lease(caller, id).await?;
        self.egress()?;
        self.check_policy(policy.as_ref())?;
        let (app, context) = (Arc::clone(self), caller.context(self));
        self.to_its_end(async move {
            let change = move |now: &LeaseEgress| {
                let new = LeaseEgress { policy: policy.clone(), record, ..now.clone() };
                Ok((new != *now).then_some(new))
            };
            let lease = app.store.change_egress(context, id, change).await?;
            app.apply(&lease).await?;
            app.tell();
            app.view(lease).await
        })
        .await
    }

    pub(crate) async fn egress_of_lease(&self, caller: &Caller, id: LeaseId) -> Result<EgressView, Fault> {
        caller.must(Scope::Read)?;
        let lease = self.lease(caller, id).await?;
        self.view(lease).await
    }

    async fn view(&self, lease: Lease) -> Result<EgressView, Fault> {
        let (policy, said_by) = self.policy_of(&lease).await?;
        let outlet = match (&self.egress, lease.sandbox) {
            (Some(egress), Some(sandbox)) => egress.outlet(sandbox).map(|outlet| (egress, outlet)),
            _ => None,
        };
        let account = match outlet {
            Some((egress, outlet)) if outlet.lease == lease.id => egress.account(&outlet).await,
            _ => self.kept_account(&lease).await?,
        };
        let record = lease.egress.record;
        Ok(EgressView { policy, said_by, record, bill: account.bill, minimal: account.minimal })
    }

    /// What an exec reached; nothing where that was nothing.
    pub(crate) async fn bill_of_exec(self: &Arc<Self>, caller: &Caller, id: ExecId) -> Result<Bill, Fault> {
        let exec = self.exec(caller, id).await?;
        Ok(self.kept_bill(exec.id).await?.unwrap_or_default())
    }

    pub(super) async fn kept_bill(&self, exec: ExecId) -> Result<Option<Bill>, Fault> {
        Ok(self.store.bill(exec.to_string()).await?.map(|kept| kept.bill))
    }

    /// What a sandbox has used when an exec begins.
    pub(super) async fn mark_egress(&self, sandbox: SandboxId) -> Bill {
        match self.egress.as_ref().and_then(|egress| Some((egress, egress.outlet(sandbox)?))) {
            Some((egress, outlet)) if outlet.was_used().await => egress.account(&outlet).await.bill,
            _ => Bill::default(),
        }
    }

    /// What it used since. Execs that run at the same time share one network, and each other's lines.
    pub(super) async fn egress_since(&self, exec: &Exec, mark: &Bill) -> Option<Bill> {
        let bill = self.mark_egress(exec.sandbox).await.since(mark);
        if bill.is_empty() {
            return None;
        }
        let kept = KeptBill {
            subject: exec.id.to_string(),
            tenant: exec.tenant.clone(),
            user: exec.user.clone(),
            sandbox: exec.sandbox,
            node: self.node,
            bill: bill.clone(),
            updated_at: self.now(),
        };
        if let Err(fault) = self.store.put_bill(kept).await {
            warn!(exec = %exec.id, error = %fault, "what an exec reached cannot be kept");
        }
        Some(bill)
    }

    /// The policy of an exec holds before the exec starts, for the whole sandbox.
    pub(super) async fn begin_policy(
        self: &Arc<Self>,
        lease: LeaseId,
        exec: ExecId,
        policy: Policy,
    ) -> Result<(), Fault> {
        let change = move |now: &LeaseEgress| {
            let busy = || {
                Fault::new(Kind::Conflict, "another exec in this sandbox has a policy of its own")
                    .hint("wait for its end, or acquire another lease: all of a sandbox shares one network")
            };
            now.beginning(exec, policy.clone()).map(Some).ok_or_else(busy)
        };
        let lease = self.store.change_egress(self.own_context(), lease, change).await?;
        self.apply(&lease).await
    }

    /// What held before holds again.
    pub(super) async fn end_policy(self: &Arc<Self>, lease: LeaseId, exec: ExecId) {
        let change = || self.store.change_egress(self.own_context(), lease, move |now| Ok(now.ending(exec)));
        let ended = match self.insist(change).await {
            Ok(lease) => self.apply(&lease).await,
            // The lease is over, and its network with it.
            Err(fault) if matches!(fault.kind(), Kind::Conflict | Kind::NotFound) => Ok(()),
            Err(fault) => Err(fault),
        };
        if let Err(fault) = ended {
            warn!(%lease, %exec, error = %fault, "the policy of an exec outlives it; the next sweep ends it");
        }
    }

    /// Every bundle with its rules.
    pub(crate) fn bundles(&self, caller: &Caller) -> Result<BTreeMap<Name, String>, Fault> {
        caller.must(Scope::Read)?;
        Ok(self.egress()?.bundles().clone())
    }

    /// What would become of a request, and by which rule. Nothing is resolved or reached.
    pub(crate) async fn explain(&self, caller: &Caller, whose: Whose, url: &str) -> Result<Explained, Fault> {
        caller.must(Scope::Read)?;
        let policy = match whose {
            Whose::Policy(policy) => policy,
            Whose::Lease(id) => self.policy_of(&self.lease(caller, id).await?).await?.0,
            Whose::Template(name) => {
                let template = self.find_template(caller.tenant(), &name).await?;
                self.template_policy(caller.tenant(), &template.at).await?
            }
        };
        let rules = self.egress()?.resolve(&policy)?;
        explain(&rules, url)
    }
}

fn explain(rules: &Ruleset, url: &str) -> Result<Explained, Fault> {
    let wanted: Wanted = url.parse().map_err(|error| {
        Fault::new(Kind::Invalid, format!("the URL cannot be read: {error}"))
            .hint("write https://host/path, http://… or tcp://host:port")
    })?;
    let address = match wanted.host {
        Host::Address(address) => Some(address),
        Host::Name(_) => None,
    };
    Ok(match wanted.decide(rules, "GET", address) {
        Ok(allowed) => Explained { allowed: true, explanation: format!("{wanted} is allowed: {allowed}") },
        Err(denied) => {
            let explanation = match &denied.remedy {
                Some(remedy) => format!("{denied}; {remedy}"),
                None => denied.to_string(),
            };
            Explained { allowed: false, explanation }
        }
    })
}
