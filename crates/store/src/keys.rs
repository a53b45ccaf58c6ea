//! Keys of the API. Only the hash of a secret is kept.

use std::collections::BTreeSet;

use cubicle_model::{Fault, KeyId, Name, Scope, Timestamp, UserName};

use crate::sql::{Conditions, Row, Sql, json, values};
use crate::{Context, Page, Store, audit, not_found, tenants};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    pub id: KeyId,
    pub tenant: Name,
    pub user: UserName,
    /// What its maker calls it.
    pub label: String,
    pub scopes: BTreeSet<Scope>,
    pub requests_per_second: Option<u32>,
    pub created_at: Timestamp,
    pub expires_at: Option<Timestamp>,
    pub revoked_at: Option<Timestamp>,
}

impl Key {
    pub fn is_valid(&self, now: Timestamp) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|end| now < end)
    }
}

const COLUMNS: &str =
    "id, tenant, user_name, label, scopes, requests_per_second, created_at, expires_at, revoked_at";

impl Store {
    /// `hash` is of the secret, in hexadecimal.
    pub async fn create_key(&self, context: Context, key: Key, hash: String) -> Result<Key, Fault> {
        self.write_durably(move |sql| {
            tenants::tenant(sql, &key.tenant)?;
            sql.run(
                "INSERT INTO keys (id, tenant, user_name, label, hash, scopes, requests_per_second, created_at, \
                 expires_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
                values![
                    key.id,
                    &key.tenant,
                    &key.user,
                    &key.label,
                    &hash,
                    json(&key.scopes)?,
                    key.requests_per_second,
                    context.now,
                    key.expires_at,
                ],
            )?;
            audit::append(sql, &context, "key.create", &key.id.to_string(), "ok", Some(key.label.clone()))?;
            one(sql, "id = ?1", &key.id.to_string())?.ok_or_else(|| not_found("key"))
        })
        .await
    }

    /// The key whose secret has this hash, whether or not it is still valid.
    pub async fn key_by_hash(&self, hash: String) -> Result<Option<Key>, Fault> {
        self.read(move |sql| one(sql, "hash = ?1", &hash)).await
    }

    pub async fn key(&self, id: KeyId) -> Result<Option<Key>, Fault> {
        self.read(move |sql| one(sql, "id = ?1", &id.to_string())).await
    }

    /// Of one tenant, or of all.
    pub async fn keys(&self, tenant: Option<Name>, page: Page) -> Result<Vec<Key>, Fault> {
        self.read(move |sql| {
            let rows = Conditions::default()
                .and("id > ?", values![page.after()])
                .and_if("tenant = ?", tenant.as_ref())
                .select(sql, COLUMNS, "keys", "id", page.one_more())?;
            rows.into_iter().map(read).collect()
        })
        .await
    }

    /// A key that was revoked before stays as it is.
    pub async fn revoke_key(&self, context: Context, id: KeyId) -> Result<Key, Fault> {
        self.write_durably(move |sql| {
            let changed = sql.run(
                "UPDATE keys SET revoked_at = ?2 WHERE id = ?1 AND revoked_at IS NULL",
                values![id, context.now],
            )?;
            if changed > 0 {
                audit::append(sql, &context, "key.revoke", &id.to_string(), "ok", None)?;
            }
            one(sql, "id = ?1", &id.to_string())?.ok_or_else(|| not_found("key"))
        })
        .await
    }
}

fn one(sql: &mut dyn Sql, which: &str, value: &str) -> Result<Option<Key>, Fault> {
    sql.row(&format!("SELECT {COLUMNS} FROM keys WHERE {which}"), values![value])?.map(read).transpose()
}

fn read(mut row: Row) -> Result<Key, Fault> {
    Ok(Key {
        id: row.parsed()?,
        tenant: row.parsed()?,
        user: row.parsed()?,
        label: row.text()?,
        scopes: row.json()?,
        requests_per_second: row.optional_unsigned()?.map(|rate| u32::try_from(rate).unwrap_or(u32::MAX)),
        created_at: row.time()?,
        expires_at: row.optional_time()?,
        revoked_at: row.optional_time()?,
    })
}
