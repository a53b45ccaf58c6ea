//! What happened, per tenant and in order. Written with the rows it tells of, so that the table is the bus.

use cubicle_model::{Event, EventId, Fault, Name, Timestamp};
use serde_json::Value as Json;

use crate::Store;
use crate::sql::{Conditions, Row, Sql, damaged, values};

impl Store {
    /// What happened after a seq, oldest first; of one subject only where it is named.
    pub async fn events(
        &self,
        tenant: Name,
        subject: Option<String>,
        after: i64,
        limit: u32,
    ) -> Result<Vec<Event<Json>>, Fault> {
        self.read(move |sql| {
            let rows = Conditions::default()
                .and("tenant = ? AND seq > ?", values![&tenant, after])
                .and_if("subject = ?", subject.as_ref())
                .select(sql, "id, seq, kind, subject, time, data", "events", "seq", limit.into())?;
            rows.into_iter().map(event).collect()
        })
        .await
    }

    /// The seq of the newest event of a tenant.
    pub async fn newest_event(&self, tenant: Name) -> Result<i64, Fault> {
        self.read(move |sql| {
            let row = sql.row("SELECT event_seq FROM tenants WHERE name = ?1", values![&tenant])?;
            row.map_or(Ok(0), |mut row| row.int())
        })
        .await
    }

    /// Forgets events that are older, some at a time.
    pub async fn forget_events(&self, before: Timestamp) -> Result<u64, Fault> {
        let tenants: Vec<Name> = self
            .read(|sql| {
                let rows = sql.rows("SELECT name FROM tenants ORDER BY name", &[])?;
                rows.into_iter().map(|mut row| row.parsed()).collect()
            })
            .await?;
        let mut sum = 0;
        for tenant in tenants {
            // The oldest are the first; an index by time would cost every writer for this alone.
            let some = "DELETE FROM events WHERE tenant = ?3 AND seq IN (SELECT seq FROM \
                (SELECT seq, time FROM events WHERE tenant = ?3 ORDER BY seq LIMIT ?2) AS oldest WHERE time < ?1)";
            sum += self.forget_in_parts(some, before, Some(tenant)).await?;
        }
        Ok(sum)
    }
}

pub(crate) fn emit(
    sql: &mut dyn Sql,
    tenant: &Name,
    now: Timestamp,
    kind: &str,
    subject: &str,
    data: &Json,
) -> Result<(), Fault> {
    let mut series = Series::take(sql, tenant)?;
    series.emit(sql, now, kind, subject, data)?;
    series.put_back(sql)
}

/// A tenant's events in the hands of one transaction, for several of them.
pub(crate) struct Series {
    tenant: Name,
    seq: i64,
}

impl Series {
    pub(crate) fn take(sql: &mut dyn Sql, tenant: &Name) -> Result<Self, Fault> {
        let lock = sql.and_lock();
        let statement = format!("SELECT event_seq FROM tenants WHERE name = ?1{lock}");
        let row = sql.row(&statement, values![tenant])?;
        let seq = row.ok_or_else(|| damaged("an event belongs to no tenant"))?.int()?;
        Ok(Self { tenant: tenant.clone(), seq })
    }

    pub(crate) fn emit(
        &mut self,
        sql: &mut dyn Sql,
        now: Timestamp,
        kind: &str,
        subject: &str,
        data: &Json,
    ) -> Result<(), Fault> {
        let id = EventId::from_random(sql.fresh());
        self.emit_as(sql, id, now, kind, subject, data)
    }

    /// Under an id that was chosen before.
    pub(crate) fn emit_as(
        &mut self,
        sql: &mut dyn Sql,
        id: EventId,
        now: Timestamp,
        kind: &str,
        subject: &str,
        data: &Json,
    ) -> Result<(), Fault> {
        self.seq += 1;
        sql.run(
            "INSERT INTO events (tenant, seq, id, kind, subject, time, data) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
            values![&self.tenant, self.seq, id, kind, subject, now, data.to_string()],
        )
        .map(drop)
    }

    pub(crate) fn put_back(self, sql: &mut dyn Sql) -> Result<(), Fault> {
        let statement = "UPDATE tenants SET event_seq = ?2 WHERE name = ?1";
        sql.run(statement, values![&self.tenant, self.seq]).map(drop)
    }
}

fn event(mut row: Row) -> Result<Event<Json>, Fault> {
    Ok(Event {
        id: row.parsed()?,
        seq: row.int()?,
        kind: row.text()?,
        subject: row.text()?,
        time: row.time()?,
        data: row.json()?,
    })
}
