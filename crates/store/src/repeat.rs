//! Creations that may be repeated under the same idempotency key.

use cubicle_model::{Fault, Kind, Name, Timestamp, UserName};

use crate::Store;
use crate::sql::{Sql, Value, values};

/// What became of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Repeat {
    /// It was not used before; it stands for the given subject from now on.
    First,
    /// It stands for this subject.
    Again(String),
}

impl Store {
    /// Reserves an idempotency key for an object that is about to be made under the id `subject`.
    pub async fn once(
        &self,
        tenant: Name,
        user: UserName,
        key: String,
        fingerprint: String,
        subject: String,
        now: Timestamp,
    ) -> Result<Repeat, Fault> {
        self.write(move |sql| {
            let asked = Asked {
                tenant: &tenant,
                user: &user,
                key: &key,
                fingerprint: &fingerprint,
                subject: &subject,
            };
            reserve(sql, &asked, now)
        })
        .await
    }

    /// Forgets what is older: keys, ended leases and execs with their bills, and records of sandboxes that are gone.
    pub async fn forget_before(&self, before: Timestamp) -> Result<u64, Fault> {
        let statements = [
            "DELETE FROM repeatable WHERE (tenant, user_name, idempotency_key) IN \
             (SELECT tenant, user_name, idempotency_key FROM repeatable WHERE created_at < ?1 LIMIT ?2)",
            "DELETE FROM execs WHERE id IN (SELECT id FROM execs WHERE ended_at < ?1 LIMIT ?2)",
            "DELETE FROM leases WHERE id IN (SELECT id FROM leases WHERE ended_at < ?1 LIMIT ?2)",
            "DELETE FROM sandboxes WHERE id IN \
             (SELECT id FROM sandboxes WHERE state = 'gone' AND ended_at < ?1 LIMIT ?2)",
            // A bill goes when nobody can ask for what it belongs to any more.
            "DELETE FROM bills WHERE subject IN (SELECT subject FROM bills WHERE updated_at < ?1 \
             AND NOT EXISTS (SELECT 1 FROM execs WHERE execs.id = bills.subject) \
             AND NOT EXISTS (SELECT 1 FROM leases WHERE leases.id = bills.subject) LIMIT ?2)",
        ];
        let mut sum = 0;
        for statement in statements {
            sum += self.forget_in_parts(statement, before, None).await?;
        }
        Ok(sum)
    }

    /// Deletes in transactions that are short enough for others to come in between.
    pub(crate) async fn forget_in_parts(
        &self,
        statement: &'static str,
        before: Timestamp,
        of: Option<Name>,
    ) -> Result<u64, Fault> {
        const PART: u64 = 500;
        let mut values = values![before, PART].to_vec();
        values.extend(of.map(Value::from));
        let mut sum = 0;
        loop {
            let values = values.clone();
            let deleted = self.write(move |sql| sql.run(statement, &values)).await?;
            sum += deleted;
            if deleted < PART {
                return Ok(sum);
            }
        }
    }
}

/// What a key is to stand for.
pub(crate) struct Asked<'a> {
    pub(crate) tenant: &'a Name,
    pub(crate) user: &'a UserName,
    pub(crate) key: &'a str,
    pub(crate) fingerprint: &'a str,
    pub(crate) subject: &'a str,
}

/// The same within another transaction.
pub(crate) fn reserve(sql: &mut dyn Sql, asked: &Asked<'_>, now: Timestamp) -> Result<Repeat, Fault> {
    let Asked { tenant, user, key, fingerprint, subject } = *asked;
    let row = sql.row(
        "SELECT fingerprint, subject FROM repeatable WHERE tenant = ?1 AND user_name = ?2 AND idempotency_key = ?3",
        values![tenant, user, key],
    )?;
    if let Some(mut row) = row {
        if row.text()? != fingerprint {
            return Err(Fault::new(
                Kind::Conflict,
                "this idempotency key was used before, for something else",
            )
            .hint("use another key for another request"));
        }
        return row.text().map(Repeat::Again);
    }
    sql.run(
        "INSERT INTO repeatable (tenant, user_name, idempotency_key, fingerprint, subject, created_at) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        values![tenant, user, key, fingerprint, subject, now],
    )?;
    Ok(Repeat::First)
}
