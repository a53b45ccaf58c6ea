//! Secrets of tenants as this server holds them: opened, with where they go. The store says what there is, and files and
//! variables of the server are looked at again and again.

mod providers;
mod seal;
mod source;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cubicle_egress::Base;
use cubicle_egress::credentials::{Credential, Form};
use cubicle_egress::redact::SHORTEST_SECRET;
use cubicle_egress::secret::Secret;
use cubicle_model::credential::{self, InForce};
use cubicle_model::egress::{Host, Scheme};
use cubicle_model::{CredentialBinding, Fault, Name, SecretName, SecretSource, TemplateRef, Timestamp};
use cubicle_store::StoredSecret;
use tokio::sync::watch;
use tracing::{info, warn};

pub(crate) use providers::usual_binding;
pub(crate) use seal::Whose;
pub use seal::{NotSealingKeys, SealingKeys};
pub(crate) use source::LARGEST_VALUE;

use crate::app::App;

/// The tenant that keys in the server's environment are for.
const TENANT_OF_ENVIRONMENT: &str = "default";

/// A secret as this server has it now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) name: SecretName,
    /// 0 for the key of a provider that only the environment names.
    pub(crate) version: i64,
    pub(crate) source: SecretSource,
    pub(crate) bindings: Vec<CredentialBinding>,
    /// Or why it cannot be had now.
    pub(crate) value: Result<Secret, String>,
    /// Absent for what is not in the store.
    pub(crate) record: Option<Record>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) created_at: Timestamp,
    pub(crate) updated_at: Timestamp,
    pub(crate) updated_by: String,
}

impl Held {
    /// What whoever set it should know.
    pub(crate) fn warning(&self) -> Option<String> {
        let length = self.value.as_ref().ok()?.reveal().len();
        (length < SHORTEST_SECRET).then(|| {
            format!(
                "it is shorter than {SHORTEST_SECRET} bytes, so that it is not masked in output: ordinary text would be"
            )
        })
    }
}

/// All secrets of a tenant, by name, as of a revision of the store.
#[derive(Debug)]
pub(crate) struct Holding {
    pub(crate) revision: i64,
    pub(crate) secrets: Vec<Held>,
}

/// A secret that goes out from a sandbox, and how programs inside reach its host.
#[derive(Debug, Clone)]
pub(crate) struct Bound {
    pub(crate) credential: Credential,
    pub(crate) base: Option<Base>,
}

/// How often the secrets of each tenant were seen to change; absent means never.
pub(crate) type Changes = BTreeMap<Name, u64>;

#[derive(Debug, Default)]
pub(crate) struct Secrets {
    known: Mutex<Known>,
    changes: watch::Sender<Changes>,
}

#[derive(Debug, Default)]
struct Known {
    holdings: HashMap<Name, Arc<Holding>>,
    /// What was read before such a revision is too old to be kept.
    newest: HashMap<Name, i64>,
}

impl Secrets {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells of every change: whoever gave a sandbox its credentials gives them again. Subscribe, or note the number, before
    /// asking for credentials.
    pub(crate) fn changes(&self) -> watch::Receiver<Changes> {
        self.changes.subscribe()
    }

    /// How often the secrets of a tenant were seen to change.
    pub(crate) fn changes_of(&self, tenant: &Name) -> u64 {
        self.changes.borrow().get(tenant).copied().unwrap_or_default()
    }

    /// The secrets of a tenant are not what they were.
    pub(crate) fn changed(&self, tenant: &Name, revision: i64) {
        let mut known = self.known();
        let newest = known.newest.entry(tenant.clone()).or_default();
        *newest = revision.max(*newest);
        known.holdings.remove(tenant);
        drop(known);
        self.changes.send_modify(|changes| *changes.entry(tenant.clone()).or_default() += 1);
    }

    /// Keeps what was read, unless a change was noticed in the meantime. Says whether it did.
    fn keep(&self, tenant: &Name, holding: &Arc<Holding>) -> bool {
        let mut known = self.known();
        let is_new = known.newest.get(tenant).is_none_or(|newest| *newest <= holding.revision);
        if is_new {
            known.holdings.insert(tenant.clone(), Arc::clone(holding));
        }
        is_new
    }
}

impl App {
    /// What is added to requests from sandboxes of a template.
    pub(crate) async fn credentials_for(
        &self,
        tenant: &Name,
        template: &TemplateRef,
    ) -> Result<Vec<Bound>, Fault> {
        let holding = self.holding(tenant).await?;
        // What somebody set goes before what the environment happens to hold.
        let (stored, found): (Vec<_>, Vec<_>) =
            holding.secrets.iter().partition(|held| held.record.is_some());
        let all = stored.into_iter().chain(found);
        let bindings = all.flat_map(|held| held.bindings.iter().map(move |binding| (held, binding)));
        Ok(credential::in_force(bindings, &template.name).iter().filter_map(bound).collect())
    }

    /// What is masked in everything that leaves towards people of a tenant.
    pub(crate) async fn secret_values(&self, tenant: &Name) -> Result<Vec<(SecretName, Secret)>, Fault> {
        let holding = self.holding(tenant).await?;
        let value = |held: &Held| Some((held.name.clone(), held.value.as_ref().ok()?.clone()));
        Ok(holding.secrets.iter().filter_map(value).collect())
    }

    /// What was read before, where that still holds.
    pub(crate) async fn holding(&self, tenant: &Name) -> Result<Arc<Holding>, Fault> {
        if let Some(holding) = self.secrets.known().holdings.get(tenant) {
            return Ok(Arc::clone(holding));
        }
        loop {
            let holding = Arc::new(self.read_secrets(tenant).await?);
            if self.secrets.keep(tenant, &holding) {
                return Ok(holding);
            }
        }
    }

    /// What there is right now.
    pub(crate) async fn read_secrets(&self, tenant: &Name) -> Result<Holding, Fault> {
        let stored = self.store.secrets_of(tenant.clone()).await?;
        let mut secrets = Vec::with_capacity(stored.secrets.len());
        for secret in stored.secrets {
            secrets.push(self.held(secret).await);
        }
        if tenant.as_str() == TENANT_OF_ENVIRONMENT {
            let is_set = |name: &str| source::from_variable(name, self.variable(name)).is_ok();
            for (name, binding) in providers::found(is_set) {
                if secrets.iter().all(|held| held.name != name) {
                    secrets.push(self.key_of_provider(name, binding));
                }
            }
            secrets.sort_by(|one, two| one.name.cmp(&two.name));
        }
        Ok(Holding { revision: stored.revision, secrets })
    }

    pub(crate) async fn held(&self, stored: StoredSecret) -> Held {
        let StoredSecret { tenant, name, version, source, sealed, bindings, .. } = stored;
        let value = match &source {
            SecretSource::Value => {
                let whose = Whose { tenant: &tenant, name: &name, version };
                let opened = self.settings.sealing_keys.open(whose, sealed.as_deref().unwrap_or_default());
                opened.map_err(|why| why.to_string())
            }
            SecretSource::File(path) => source::from_file(path).await,
            SecretSource::Environment(variable) => source::from_variable(variable, self.variable(variable)),
        };
        let record = Some(Record {
            created_at: stored.created_at,
            updated_at: stored.updated_at,
            updated_by: stored.updated_by,
        });
        Held { name, version, source, bindings, value, record }
    }

    fn key_of_provider(&self, name: SecretName, binding: CredentialBinding) -> Held {
        let value = source::from_variable(name.as_str(), self.variable(name.as_str()));
        let source = SecretSource::Environment(name.to_string());
        Held { name, version: 0, source, bindings: vec![binding], value, record: None }
    }

    fn variable(&self, name: &str) -> Option<Vec<u8>> {
        (self.surroundings.variable)(name)
    }

    /// Notices what other servers changed in the store, and somebody else in files.
    pub(crate) async fn look_at_secrets(&self) -> Result<(), Fault> {
        let known: Vec<(Name, Arc<Holding>)> = {
            let known = self.secrets.known();
            known.holdings.iter().map(|(tenant, holding)| (tenant.clone(), Arc::clone(holding))).collect()
        };
        if known.is_empty() {
            return Ok(());
        }
        let revisions = self.store.secret_revisions().await?;
        for (tenant, holding) in known {
            let is_old = revisions.get(&tenant).is_some_and(|revision| *revision > holding.revision);
            let has_files = holding.secrets.iter().any(|held| matches!(held.source, SecretSource::File(_)));
            if is_old || has_files {
                let now = self.read_secrets(&tenant).await?;
                if now.secrets == holding.secrets {
                    self.secrets.keep(&tenant, &Arc::new(now));
                } else {
                    info!(%tenant, revision = now.revision, "secrets were changed elsewhere");
                    self.secrets.changed(&tenant, now.revision);
                }
            }
        }
        Ok(())
    }

    /// Puts every value under the first key, so that the others can be given up; says which cannot be opened at all.
    pub(crate) async fn reseal_secrets(&self) -> Result<(), Fault> {
        let keys = &self.settings.sealing_keys;
        for stored in self.store.sealed_secrets().await? {
            let StoredSecret { tenant, name, version, sealed: Some(sealed), .. } = stored else { continue };
            if keys.is_of_first_key(&sealed) {
                continue;
            }
            let whose = Whose { tenant: &tenant, name: &name, version };
            match keys.open(whose, &sealed) {
                Ok(value) => {
                    let Some(anew) = keys.seal(whose, value.reveal(), self.surroundings.bits()) else {
                        continue;
                    };
                    self.store.reseal_secret(tenant.clone(), name.clone(), version, anew).await?;
                    info!(%tenant, secret = %name, version, "a secret was put under the newest key");
                }
                Err(because) => {
                    warn!(%tenant, secret = %name, version, %because, "a secret cannot be opened");
                }
            }
        }
        Ok(())
    }
}

/// Absent only for a form that no request could have, which the model refuses.
fn bound(held: &InForce<'_, &Held>) -> Option<Bound> {
    let InForce { key, binding, base } = held;
    let form = match &binding.form {
        credential::Form::Bearer => Form::Bearer,
        credential::Form::Header(name) => Form::Header(name.parse().ok()?),
        credential::Form::Basic { user } => Form::Basic { user: user.clone() },
        credential::Form::Query(parameter) => Form::Query(parameter.clone()),
    };
    let credential = Credential {
        name: key.name.to_string(),
        secret: key.value.as_ref().ok().cloned(),
        host: binding.host.clone(),
        port: binding.port,
        form,
        even_plain: binding.even_plain,
    };
    let base = base.map(|base| Base {
        name: base.to_string(),
        scheme: if binding.even_plain { Scheme::Http } else { Scheme::Https },
        host: Host::Name(binding.host.clone()),
        port: binding.port,
    });
    Some(Bound { credential, base })
}
