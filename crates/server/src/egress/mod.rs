//! The way out of this node's sandboxes: who has which sockets, and the gateway that serves them.
//!
//! A sandbox's sockets are handed to the gateway when something first connects to one of them, so that a sandbox that uses
//! no network costs none. Before that, and while a gateway that died is started again, connections wait: nobody accepts
//! them, so that nothing leaves without a policy. What holds is read from the store whenever the gateway is told.

mod gateway;
mod outlet;
mod settings;
mod sockets;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cubicle_egress::control::{Common, TermsText};
use cubicle_model::egress::{
    Bundles, OwnAddress, OwnAddresses, Policy, Ruleset, Statement, SyntaxError, UnresolvedBundle, Verb,
};
use cubicle_model::{Fault, FileToWrite, Kind, LeaseId, Name, SandboxId, TemplateRef};

use tokio::sync::Notify;

use gateway::Gateway;
pub(crate) use outlet::{Account, Outlet};
pub use settings::{EgressSettings, StartGateway, StartedGateway};
pub(crate) use sockets::Sockets;

/// Inside of a sandbox whose policy has hosts inspected.
const CERTIFICATES: &str = "/home/agent/.cubicle/certificates.pem";
const TRUST_VARIABLES: [&str; 9] = [
    "SSL_CERT_FILE",
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "PIP_CERT",
    "NODE_EXTRA_CA_CERTS",
    "NPM_CONFIG_CAFILE",
    "GIT_SSL_CAINFO",
    "CARGO_HTTP_CAINFO",
    "AWS_CA_BUNDLE",
];

#[derive(Debug)]
pub(crate) struct Egress {
    /// What a template's sandboxes may reach that says nothing itself, by the template's name.
    policies: BTreeMap<Name, Policy>,
    environment: BTreeMap<String, String>,
    /// Certificates that a sandbox trusts whose policy has hosts inspected.
    trusted: Option<Arc<str>>,
    common: Common,
    bundles: Bundles,
    own: OwnAddresses,
    gateway: Gateway,
    outlets: Mutex<HashMap<SandboxId, Arc<Outlet>>>,
    /// What holds may have changed.
    pub(crate) look_again: Notify,
}

impl Egress {
    pub(crate) fn new(settings: EgressSettings) -> Result<Self, Fault> {
        let EgressSettings { start, bundles, own, policies, environment, trusted } = settings;
        let mut read = Bundles::default();
        for (name, text) in &bundles {
            let wrong =
                |error: SyntaxError| Fault::new(Kind::Invalid, format!("in the bundle '@{name}': {error}"));
            read.define(name.clone(), text).map_err(wrong)?;
        }
        let addresses = own.iter().map(|(address, port)| OwnAddress { address: *address, port: *port });
        let addresses = OwnAddresses::new(addresses);
        let common = Common { bundles, own };
        Ok(Self {
            policies,
            environment,
            trusted: trusted.map(Into::into),
            gateway: Gateway::new(start, common.clone()),
            common,
            bundles: read,
            own: addresses,
            outlets: Mutex::default(),
            look_again: Notify::new(),
        })
    }

    /// What a sandbox's programs are told: where the proxy is, and what the operator adds.
    pub(crate) fn environment(&self) -> impl Iterator<Item = (String, String)> {
        let own = self.environment.iter().map(|(name, value)| (name.clone(), value.clone()));
        sockets::proxy_variables().chain(own)
    }

    /// What a sandbox is given so that it trusts the gateway, where a policy has hosts inspected. Every client has its own
    /// variable for that.
    pub(crate) fn trust(&self, policy: &Policy) -> Option<(BTreeMap<String, String>, FileToWrite)> {
        let inspects = policy
            .rules
            .iter()
            .any(|statement| matches!(statement, Statement::Rule(rule) if rule.verb == Verb::Inspect));
        let trusted = self.trusted.as_ref().filter(|_| inspects)?;
        let file =
            FileToWrite { path: CERTIFICATES.to_owned(), bytes: trusted.as_bytes().to_vec(), mode: 0o644 };
        let variables = TRUST_VARIABLES.iter().map(|name| ((*name).to_owned(), CERTIFICATES.to_owned()));
        Some((variables.collect(), file))
    }

    /// The text of every bundle.
    pub(crate) fn bundles(&self) -> &BTreeMap<Name, String> {
        &self.common.bundles
    }

    /// What holds for a template that says nothing itself.
    pub(crate) fn usual(&self, template: &TemplateRef) -> Policy {
        let said = self.policies.get(&template.name);
        said.or_else(|| {
            self.policies.iter().find(|(name, _)| name.as_str() == "default").map(|(_, policy)| policy)
        })
        .cloned()
        .unwrap_or_default()
    }

    /// The rules of a policy, or why it cannot be used.
    pub(crate) fn resolve(&self, policy: &Policy) -> Result<Ruleset, Fault> {
        policy.resolve(&self.bundles, &self.own).map_err(|error: UnresolvedBundle| {
            let hint = match &error {
                UnresolvedBundle::Unknown { .. } => "'cubicle egress bundles' prints what there is",
                UnresolvedBundle::Empty(_) => "'cubicle egress bundles' prints what to set for it",
            };
            Fault::new(Kind::Invalid, error.to_string()).hint(hint)
        })
    }

    /// Gives a sandbox its way out: `terms` says what holds, whenever a gateway has to be told.
    pub(crate) fn open<Terms: Future<Output = Result<TermsText, Fault>> + Send>(
        self: &Arc<Self>,
        sandbox: SandboxId,
        lease: LeaseId,
        sockets: Sockets,
        earlier: Account,
        terms: impl Fn() -> Terms + Send + Sync + 'static,
    ) {
        let outlet = Arc::new(Outlet::new(sandbox, lease, sockets, earlier));
        if let Some(before) = self.outlets().insert(sandbox, Arc::clone(&outlet)) {
            before.closed.cancel();
        }
        let egress = Arc::clone(self);
        // Ends when the outlet is closed.
        tokio::spawn(async move { outlet::keep(outlet, &egress.gateway, terms).await });
    }

    /// Ends what is open. None where the sandbox has no way out.
    pub(crate) async fn close(&self, sandbox: SandboxId) -> Option<Account> {
        let outlet = self.outlets().remove(&sandbox)?;
        Some(outlet.close(&self.gateway).await)
    }

    /// When this returns, what holds now holds for everything that the sandbox has open.
    pub(crate) async fn change(&self, outlet: &Outlet, terms: TermsText) -> Result<(), Fault> {
        outlet.change(&self.gateway, terms).await
    }

    pub(crate) async fn account(&self, outlet: &Outlet) -> Account {
        outlet.account(&self.gateway).await
    }

    pub(crate) fn outlet(&self, sandbox: SandboxId) -> Option<Arc<Outlet>> {
        self.outlets().get(&sandbox).cloned()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Outlet>> {
        self.outlets().values().cloned().collect()
    }

    fn outlets(&self) -> MutexGuard<'_, HashMap<SandboxId, Arc<Outlet>>> {
        self.outlets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
