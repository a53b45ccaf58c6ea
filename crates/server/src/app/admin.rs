//! Tenants, keys and the audit log.

use std::collections::BTreeSet;

use std::sync::Arc;

use cubicle_model::audit::{Entry, Head};
use cubicle_model::{Fault, KeyId, Kind, Name, Quota, Scope, Tenant, Timestamp, Usage};
use cubicle_store::{AuditFilter, Key, Page, Repeat};

use super::leases::fingerprint;
use super::templates::parse_name;
use super::{App, Caller};
use crate::auth::secret::{KeySecret, hash_of_secret};

const LONGEST_LABEL: usize = 256;
const HEAVIEST: u32 = 1000;

/// What a key is asked to be.
#[derive(Debug, Clone, serde::Serialize)]
pub(crate) struct KeyRequest {
    pub(crate) label: String,
    pub(crate) tenant: Option<String>,
    pub(crate) user: Option<String>,
    pub(crate) scopes: BTreeSet<Scope>,
    pub(crate) requests_per_second: Option<u32>,
    pub(crate) expires_at: Option<Timestamp>,
}

impl App {
    pub(crate) async fn create_tenant(
        &self,
        caller: &Caller,
        name: &str,
        quota: Quota,
        weight: u32,
    ) -> Result<Tenant, Fault> {
        caller.must(Scope::Admin)?;
        check_weight(weight)?;
        self.store.create_tenant(caller.context(self), parse_name(name)?, quota, weight).await
    }

    pub(crate) async fn replace_tenant(
        &self,
        caller: &Caller,
        name: &str,
        quota: Quota,
        weight: u32,
        version: Option<i64>,
    ) -> Result<Tenant, Fault> {
        caller.must(Scope::Admin)?;
        check_weight(weight)?;
        self.store.change_tenant(caller.context(self), parse_name(name)?, quota, weight, version).await
    }

    /// The caller's own tenant, or any for administrators.
    pub(crate) async fn tenant(&self, caller: &Caller, name: &str) -> Result<(Tenant, Usage), Fault> {
        caller.must(Scope::Read)?;
        let name = parse_name(name)?;
        if name != *caller.tenant() && !caller.principal.may(Scope::Admin) {
            return Err(Fault::new(Kind::NotFound, "there is no such tenant"));
        }
        Ok((self.store.tenant(name.clone()).await?, self.store.usage(name).await?))
    }

    pub(crate) async fn tenants(&self, caller: &Caller, page: Page) -> Result<Vec<Tenant>, Fault> {
        caller.must(Scope::Read)?;
        if caller.principal.may(Scope::Admin) {
            return self.store.tenants(page).await;
        }
        Ok(vec![self.store.tenant(caller.tenant().clone()).await?])
    }

    /// A key and its secret, which nobody can see again.
    pub(crate) async fn create_key(
        &self,
        caller: &Caller,
        asked: KeyRequest,
        idempotency_key: Option<String>,
    ) -> Result<(Key, KeySecret), Fault> {
        caller.must(Scope::Manage)?;
        let tenant = self.tenant_of(caller, asked.tenant.as_deref())?;
        let user = match (&asked.user, tenant == *caller.tenant()) {
            (Some(user), false) => {
                user.parse().map_err(|error| Fault::new(Kind::Invalid, format!("{error}")))?
            }
            (user, _) => caller.user(user.as_deref())?,
        };
        if asked.label.is_empty()
            || asked.label.len() > LONGEST_LABEL
            || asked.label.contains(char::is_control)
        {
            return Err(Fault::new(
                Kind::Invalid,
                format!("a label has 1 to {LONGEST_LABEL} visible characters"),
            ));
        }
        if asked.scopes.is_empty() {
            return Err(Fault::new(Kind::Invalid, "a key without scopes can do nothing"));
        }
        if let Some(scope) = asked.scopes.iter().find(|scope| !caller.principal.may(**scope)) {
            return Err(Fault::new(
                Kind::Denied,
                format!("a key cannot get the scope '{scope}' from somebody who lacks it"),
            ));
        }
        if asked.requests_per_second == Some(0) {
            return Err(Fault::new(Kind::Invalid, "a key makes at least one request per second"));
        }
        if asked.expires_at.is_some_and(|end| end <= self.wall_now()) {
            return Err(Fault::new(Kind::Invalid, "'expires_at' is over already"));
        }
        let id = KeyId::from_random(self.surroundings.bits());
        if let Some(key) = idempotency_key {
            let (owner, name) = (caller.tenant().clone(), caller.principal.user.clone());
            let print = fingerprint(&asked);
            let once = self.store.once(owner, name, key, print, id.to_string(), self.now()).await?;
            if let Repeat::Again(before) = once {
                return Err(Fault::new(
                    Kind::Conflict,
                    format!("this request made {before} before, whose secret was shown then"),
                )
                .hint("revoke it and make another, if the answer was lost"));
            }
        }
        let secret = KeySecret::from_random(self.surroundings.bits());
        let key = Key {
            id,
            tenant,
            user,
            label: asked.label,
            scopes: asked.scopes,
            requests_per_second: asked.requests_per_second,
            created_at: self.now(),
            expires_at: asked.expires_at,
            revoked_at: None,
        };
        let key = self.store.create_key(caller.context(self), key, hash_of_secret(secret.expose())).await?;
        Ok((key, secret))
    }

    fn tenant_of(&self, caller: &Caller, asked: Option<&str>) -> Result<Name, Fault> {
        let Some(asked) = asked else { return Ok(caller.tenant().clone()) };
        let name = parse_name(asked)?;
        if name != *caller.tenant() {
            caller.must(Scope::Admin)?;
        }
        Ok(name)
    }

    /// A key that exists for the caller.
    pub(crate) async fn key(&self, caller: &Caller, id: KeyId) -> Result<Key, Fault> {
        caller.must(Scope::Read)?;
        let key = self.store.key(id).await?;
        key.filter(|key| caller.sees(&key.tenant, &key.user))
            .ok_or_else(|| Fault::new(Kind::NotFound, format!("there is no key {id}")))
    }

    pub(crate) async fn keys_of(&self, caller: &Caller, page: Page) -> Result<Vec<Key>, Fault> {
        caller.must(Scope::Manage)?;
        let tenant = (!caller.principal.may(Scope::Admin)).then(|| caller.tenant().clone());
        self.store.keys(tenant, page).await
    }

    pub(crate) async fn revoke_key(&self, caller: &Caller, id: KeyId) -> Result<Key, Fault> {
        caller.must(Scope::Manage)?;
        self.key(caller, id).await?;
        let key = self.store.revoke_key(caller.context(self), id).await?;
        self.keys.forget();
        Ok(key)
    }

    pub(crate) async fn audit(
        self: &Arc<Self>,
        caller: &Caller,
        mut filter: AuditFilter,
        page: Page,
    ) -> Result<Vec<Entry>, Fault> {
        caller.must(Scope::Manage)?;
        if !caller.principal.may(Scope::Admin) {
            filter.tenant = Some(caller.tenant().clone());
        }
        self.settle().await?;
        self.store.audit(filter, page).await
    }

    /// All entries of a node in the order of their chain.
    pub(crate) async fn audit_chain(
        self: &Arc<Self>,
        caller: &Caller,
        node: cubicle_model::NodeId,
        after: i64,
        limit: u32,
    ) -> Result<Vec<Entry>, Fault> {
        caller.must(Scope::Admin)?;
        self.settle().await?;
        self.store.audit_chain(node, after, limit).await
    }

    pub(crate) async fn audit_heads(self: &Arc<Self>, caller: &Caller) -> Result<Vec<Head>, Fault> {
        caller.must(Scope::Admin)?;
        self.settle().await?;
        self.store.audit_heads().await
    }
}

fn check_weight(weight: u32) -> Result<(), Fault> {
    if (1..=HEAVIEST).contains(&weight) {
        return Ok(());
    }
    Err(Fault::new(Kind::Invalid, format!("a weight is 1 to {HEAVIEST}")))
}
