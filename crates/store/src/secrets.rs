//! Secrets of tenants. A value comes here sealed; events and the audit log say that it was set, and nothing of it.

use std::collections::BTreeMap;

use cubicle_model::{CredentialBinding, Fault, Kind, Name, SecretName, SecretSource, Timestamp};
use serde_json::json as data;

use crate::sql::{Row, Sql, json, values};
use crate::{Context, Store, audit, events, not_found, stale, tenants};

/// All of a tenant's secrets are held in memory and searched for in every stream.
const MOST_OF_A_TENANT: usize = 500;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredSecret {
    pub tenant: Name,
    pub name: SecretName,
    /// Grows with every change, and is never used again for another value of the tenant.
    pub version: i64,
    pub source: SecretSource,
    /// Of a value, as whoever has the key made it.
    pub sealed: Option<String>,
    pub bindings: Vec<CredentialBinding>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub updated_by: String,
}

/// What a secret is to be.
#[derive(Debug, Clone)]
pub struct NewSecret {
    pub tenant: Name,
    pub name: SecretName,
    pub source: SecretSource,
    pub sealed: Option<String>,
    pub bindings: Vec<CredentialBinding>,
}

/// All secrets of a tenant at one moment. The next change gets the revision after this one as its version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretsOfTenant {
    pub revision: i64,
    pub secrets: Vec<StoredSecret>,
}

const COLUMNS: &str = "tenant, name, version, source, sealed, bindings, created_at, updated_at, updated_by";

impl Store {
    /// Sets or replaces a secret. `version` is the one that it was sealed for: the revision after the one that the caller
    /// saw. If somebody was faster nothing is changed and there is no answer: look again, and seal anew.
    pub async fn put_secret(
        &self,
        context: Context,
        new: NewSecret,
        version: i64,
    ) -> Result<Option<StoredSecret>, Fault> {
        self.write_durably(move |sql| {
            let NewSecret { tenant, name, source, sealed, bindings } = &new;
            tenants::tenant_alone(sql, tenant)?;
            if revision(sql, tenant)? + 1 != version {
                return Ok(None);
            }
            let others = of_tenant(sql, tenant)?;
            let others: Vec<_> = others.iter().filter(|other| other.name != *name).collect();
            if others.len() >= MOST_OF_A_TENANT {
                return Err(Fault::new(
                    Kind::Full,
                    format!("a tenant has at most {MOST_OF_A_TENANT} secrets"),
                )
                .hint("remove some that nobody needs"));
            }
            no_contradiction(bindings, &others)?;
            sql.run(
                "INSERT INTO secrets (tenant, name, version, source, sealed, bindings, created_at, updated_at, \
                 updated_by) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7, ?8) \
                 ON CONFLICT (tenant, name) DO UPDATE SET version = excluded.version, source = excluded.source, \
                 sealed = excluded.sealed, bindings = excluded.bindings, updated_at = excluded.updated_at, \
                 updated_by = excluded.updated_by",
                values![
                    tenant,
                    name,
                    version,
                    json(source)?,
                    sealed.clone(),
                    json(bindings)?,
                    context.now,
                    &context.actor.name,
                ],
            )?;
            changed(sql, tenant, version)?;
            tell(sql, &context, "secret.set", tenant, name, version)?;
            one(sql, tenant, name)
        })
        .await
    }

    pub async fn secret(&self, tenant: Name, name: SecretName) -> Result<Option<StoredSecret>, Fault> {
        self.read(move |sql| one(sql, &tenant, &name)).await
    }

    pub async fn secrets_of(&self, tenant: Name) -> Result<SecretsOfTenant, Fault> {
        self.read(move |sql| {
            Ok(SecretsOfTenant { revision: revision(sql, &tenant)?, secrets: of_tenant(sql, &tenant)? })
        })
        .await
    }

    /// Says which revision the tenant's secrets have now. `version` is the one that the caller saw.
    pub async fn delete_secret(
        &self,
        context: Context,
        tenant: Name,
        name: SecretName,
        version: Option<i64>,
    ) -> Result<i64, Fault> {
        self.write_durably(move |sql| {
            tenants::tenant_alone(sql, &tenant)?;
            let before = one(sql, &tenant, &name)?.ok_or_else(|| not_found("secret"))?;
            if version.is_some_and(|version| version != before.version) {
                return Err(stale("secret"));
            }
            sql.run("DELETE FROM secrets WHERE tenant = ?1 AND name = ?2", values![&tenant, &name])?;
            let revision = revision(sql, &tenant)? + 1;
            changed(sql, &tenant, revision)?;
            tell(sql, &context, "secret.removed", &tenant, &name, before.version)?;
            Ok(revision)
        })
        .await
    }

    /// How often the secrets of each tenant have changed.
    pub async fn secret_revisions(&self) -> Result<BTreeMap<Name, i64>, Fault> {
        self.read(|sql| {
            let rows = sql.rows("SELECT tenant, revision FROM secret_revisions", &[])?;
            rows.into_iter().map(|mut row| Ok((row.parsed()?, row.int()?))).collect()
        })
        .await
    }

    /// Those of all tenants whose value is here.
    pub async fn sealed_secrets(&self) -> Result<Vec<StoredSecret>, Fault> {
        self.read(|sql| {
            let statement =
                format!("SELECT {COLUMNS} FROM secrets WHERE sealed IS NOT NULL ORDER BY tenant, name");
            sql.rows(&statement, &[])?.into_iter().map(read).collect()
        })
        .await
    }

    /// The same value under another key. Says whether that version is still there.
    pub async fn reseal_secret(
        &self,
        tenant: Name,
        name: SecretName,
        version: i64,
        sealed: String,
    ) -> Result<bool, Fault> {
        self.write_durably(move |sql| {
            let changed = sql.run(
                "UPDATE secrets SET sealed = ?4 WHERE tenant = ?1 AND name = ?2 AND version = ?3",
                values![&tenant, &name, version, &sealed],
            )?;
            Ok(changed > 0)
        })
        .await
    }
}

/// A request carries one secret in one place, so that nobody has to guess which.
fn no_contradiction(bindings: &[CredentialBinding], others: &[&StoredSecret]) -> Result<(), Fault> {
    let theirs = others.iter().flat_map(|other| other.bindings.iter().map(|binding| (&other.name, binding)));
    for (name, binding) in theirs {
        if let Some(why) = bindings.iter().find_map(|own| own.contradicts(binding)) {
            return Err(Fault::new(Kind::Conflict, format!("the secret '{name}' {why}"))
                .hint("bind one of them to other templates, or remove one"));
        }
    }
    Ok(())
}

fn tell(
    sql: &mut dyn Sql,
    context: &Context,
    what: &str,
    tenant: &Name,
    name: &SecretName,
    version: i64,
) -> Result<(), Fault> {
    let about = data!({ "name": name, "version": version });
    events::emit(sql, tenant, context.now, what, name.as_str(), &about)?;
    audit::append(sql, context, what, name.as_str(), "ok", Some(format!("version {version}")))
}

fn revision(sql: &mut dyn Sql, tenant: &Name) -> Result<i64, Fault> {
    let row = sql.row("SELECT revision FROM secret_revisions WHERE tenant = ?1", values![tenant])?;
    row.map_or(Ok(0), |mut row| row.int())
}

fn changed(sql: &mut dyn Sql, tenant: &Name, revision: i64) -> Result<(), Fault> {
    sql.run(
        "INSERT INTO secret_revisions (tenant, revision) VALUES (?1, ?2) \
         ON CONFLICT (tenant) DO UPDATE SET revision = excluded.revision",
        values![tenant, revision],
    )
    .map(drop)
}

fn one(sql: &mut dyn Sql, tenant: &Name, name: &SecretName) -> Result<Option<StoredSecret>, Fault> {
    let statement = format!("SELECT {COLUMNS} FROM secrets WHERE tenant = ?1 AND name = ?2");
    sql.row(&statement, values![tenant, name])?.map(read).transpose()
}

fn of_tenant(sql: &mut dyn Sql, tenant: &Name) -> Result<Vec<StoredSecret>, Fault> {
    let rows = sql.rows(&format!("SELECT {COLUMNS} FROM secrets WHERE tenant = ?1"), values![tenant])?;
    let mut secrets = rows.into_iter().map(read).collect::<Result<Vec<_>, Fault>>()?;
    // Databases disagree on the order of texts.
    secrets.sort_by(|one, two| one.name.cmp(&two.name));
    Ok(secrets)
}

fn read(mut row: Row) -> Result<StoredSecret, Fault> {
    Ok(StoredSecret {
        tenant: row.parsed()?,
        name: row.parsed()?,
        version: row.int()?,
        source: row.json()?,
        sealed: row.optional_text()?,
        bindings: row.json()?,
        created_at: row.time()?,
        updated_at: row.time()?,
        updated_by: row.text()?,
    })
}
