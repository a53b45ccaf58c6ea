//! Tenants and what they may have.

use cubicle_model::{Fault, Kind, LeaseStatus, Name, Quota, Tenant, Usage};

use crate::sql::{Row, Sql, json, values};
use crate::{Context, Page, Store, audit, not_found, stale};

const COLUMNS: &str = "name, quota, weight, created_at, version";

impl Store {
    /// A tenant that exists already is a conflict.
    pub async fn create_tenant(
        &self,
        context: Context,
        name: Name,
        quota: Quota,
        weight: u32,
    ) -> Result<Tenant, Fault> {
        self.write_durably(move |sql| {
            let made = insert(sql, &context, &name, quota, weight)?;
            if !made {
                return Err(Fault::new(Kind::Conflict, format!("there is a tenant '{name}' already")));
            }
            audit::append(sql, &context, "tenant.create", name.as_str(), "ok", None)?;
            tenant(sql, &name)
        })
        .await
    }

    /// Makes the tenant that a server begins with, unless it is there.
    pub async fn ensure_tenant(&self, context: Context, name: Name) -> Result<(), Fault> {
        self.write_durably(move |sql| insert(sql, &context, &name, Quota::default(), 1).map(drop)).await
    }

    pub async fn tenant(&self, name: Name) -> Result<Tenant, Fault> {
        self.read(move |sql| tenant(sql, &name)).await
    }

    pub async fn tenants(&self, page: Page) -> Result<Vec<Tenant>, Fault> {
        self.read(move |sql| {
            let statement = format!("SELECT {COLUMNS} FROM tenants WHERE name > ?1 ORDER BY name LIMIT ?2");
            sql.rows(&statement, values![page.after(), page.one_more()])?.into_iter().map(read).collect()
        })
        .await
    }

    /// `version` is the one that the caller saw; absent means whatever it is.
    pub async fn change_tenant(
        &self,
        context: Context,
        name: Name,
        quota: Quota,
        weight: u32,
        version: Option<i64>,
    ) -> Result<Tenant, Fault> {
        self.write_durably(move |sql| {
            let before = tenant_alone(sql, &name)?;
            if version.is_some_and(|version| version != before.version) {
                return Err(stale("tenant"));
            }
            sql.run(
                "UPDATE tenants SET quota = ?2, weight = ?3, version = version + 1 WHERE name = ?1",
                values![&name, json(&quota)?, weight],
            )?;
            audit::append(sql, &context, "tenant.change", name.as_str(), "ok", None)?;
            tenant(sql, &name)
        })
        .await
    }

    /// What a tenant has now.
    pub async fn usage(&self, name: Name) -> Result<Usage, Fault> {
        self.read(move |sql| usage(sql, &name)).await
    }
}

fn insert(
    sql: &mut dyn Sql,
    context: &Context,
    name: &Name,
    quota: Quota,
    weight: u32,
) -> Result<bool, Fault> {
    let made = sql.run(
        "INSERT INTO tenants (name, quota, weight, created_at, version, event_seq) VALUES (?1, ?2, ?3, ?4, 1, 0) \
         ON CONFLICT (name) DO NOTHING",
        values![name, json(&quota)?, weight, context.now],
    )?;
    Ok(made > 0)
}

pub(crate) fn tenant(sql: &mut dyn Sql, name: &Name) -> Result<Tenant, Fault> {
    let statement = format!("SELECT {COLUMNS} FROM tenants WHERE name = ?1");
    sql.row(&statement, values![name])?.map(read).ok_or_else(|| not_found("tenant"))?
}

/// The same, and nobody else acquires or ends leases of this tenant until the transaction ends.
pub(crate) fn tenant_alone(sql: &mut dyn Sql, name: &Name) -> Result<Tenant, Fault> {
    let statement = format!("SELECT {COLUMNS} FROM tenants WHERE name = ?1{}", sql.and_lock());
    sql.row(&statement, values![name])?.map(read).ok_or_else(|| not_found("tenant"))?
}

/// What a tenant may have, in the same way.
pub(crate) fn quota_alone(sql: &mut dyn Sql, name: &Name) -> Result<Quota, Fault> {
    let statement = format!("SELECT quota FROM tenants WHERE name = ?1{}", sql.and_lock());
    sql.row(&statement, values![name])?.ok_or_else(|| not_found("tenant"))?.json()
}

/// What counts for its quota; nothing is counted that is not limited.
pub(crate) fn usage_for(sql: &mut dyn Sql, tenant: &Tenant) -> Result<Usage, Fault> {
    match tenant.quota == Quota::default() {
        true => Ok(Usage::default()),
        false => usage(sql, &tenant.name),
    }
}

pub(crate) fn usage(sql: &mut dyn Sql, name: &Name) -> Result<Usage, Fault> {
    let row = sql.row(
        "SELECT COUNT(*), CAST(COALESCE(SUM(millicpus), 0) AS BIGINT), CAST(COALESCE(SUM(memory), 0) AS BIGINT) \
         FROM leases WHERE tenant = ?1 AND status = ?2",
        values![name, LeaseStatus::Active.name()],
    )?;
    let mut row = row.ok_or_else(|| not_found("tenant"))?;
    let (leases, millicpus, memory) = (row.unsigned()?, row.unsigned()?, row.unsigned()?);
    Ok(Usage { leases, millicpus, memory, execs: running_execs(sql, name)? })
}

pub(crate) fn running_execs(sql: &mut dyn Sql, name: &Name) -> Result<u64, Fault> {
    let count =
        sql.number("SELECT COUNT(*) FROM execs WHERE tenant = ?1 AND ended_at IS NULL", values![name])?;
    Ok(count.unsigned_abs())
}

fn read(mut row: Row) -> Result<Tenant, Fault> {
    Ok(Tenant {
        name: row.parsed()?,
        quota: row.json()?,
        weight: u32::try_from(row.unsigned()?).unwrap_or(u32::MAX),
        created_at: row.time()?,
        version: row.int()?,
    })
}
