//! The append-only log of deeds, one chain per node.

use cubicle_model::audit::{Deed, Entry, Head, chain};
use cubicle_model::{Fault, Kind, Name, NodeId, Timestamp};

use crate::sql::{Conditions, Row, Sql, damaged, values};
use crate::{Context, Page, Store};

/// Which entries are wanted. Pages are in the order of time.
#[derive(Debug, Clone, Default)]
pub struct AuditFilter {
    pub tenant: Option<Name>,
    pub actor: Option<String>,
    pub action: Option<String>,
    pub subject: Option<String>,
    pub since: Option<Timestamp>,
    pub until: Option<Timestamp>,
}

const COLUMNS: &str =
    "node, seq, time, tenant, actor, api_key, action, subject, origin, request, outcome, detail, hash";

impl Store {
    /// Appends one deed that changed nothing else, as a refusal does.
    pub async fn record(
        &self,
        context: Context,
        action: String,
        subject: String,
        outcome: String,
        detail: Option<String>,
    ) -> Result<(), Fault> {
        self.write(move |sql| append(sql, &context, &action, &subject, &outcome, detail.clone())).await
    }

    pub async fn audit(&self, filter: AuditFilter, page: Page) -> Result<Vec<Entry>, Fault> {
        self.read(move |sql| list(sql, &filter, &page)).await
    }

    /// All entries of a node in the order of their chain, from a seq on.
    pub async fn audit_chain(&self, node: NodeId, after: i64, limit: u32) -> Result<Vec<Entry>, Fault> {
        self.read(move |sql| {
            let statement =
                format!("SELECT {COLUMNS} FROM audit WHERE node = ?1 AND seq > ?2 ORDER BY seq LIMIT ?3");
            sql.rows(&statement, values![node, after, limit])?.iter_mut().map(entry).collect()
        })
        .await
    }

    pub async fn audit_heads(&self) -> Result<Vec<Head>, Fault> {
        self.read(|sql| {
            let rows = sql.rows("SELECT id, audit_seq, audit_hash FROM nodes ORDER BY id", &[])?;
            rows.into_iter()
                .map(|mut row| Ok(Head { node: row.parsed()?, seq: row.int()?, hash: row.text()? }))
                .collect()
        })
        .await
    }
}

/// Appends within the transaction that does the deed, so that neither is there without the other.
pub(crate) fn append(
    sql: &mut dyn Sql,
    context: &Context,
    action: &str,
    subject: &str,
    outcome: &str,
    detail: Option<String>,
) -> Result<(), Fault> {
    let mut chain = Chain::take(sql, context.node)?;
    chain.append(sql, context, action, subject, outcome, detail)?;
    chain.put_back(sql)
}

/// A node's chain in the hands of one transaction, for several entries.
pub(crate) struct Chain {
    head: Head,
}

impl Chain {
    pub(crate) fn take(sql: &mut dyn Sql, node: NodeId) -> Result<Self, Fault> {
        let lock = sql.and_lock();
        let statement = format!("SELECT audit_seq, audit_hash FROM nodes WHERE id = ?1{lock}");
        let row = sql.row(&statement, values![node])?;
        let mut row = row.ok_or_else(|| damaged("this node has not joined"))?;
        Ok(Self { head: Head { node, seq: row.int()?, hash: row.text()? } })
    }

    pub(crate) fn append(
        &mut self,
        sql: &mut dyn Sql,
        context: &Context,
        action: &str,
        subject: &str,
        outcome: &str,
        detail: Option<String>,
    ) -> Result<(), Fault> {
        let actor = &context.actor;
        let deed = Deed {
            time: context.now,
            tenant: actor.tenant.as_ref().map(ToString::to_string),
            actor: actor.name.clone(),
            key: actor.key.map(|key| key.to_string()),
            action: action.into(),
            subject: subject.into(),
            from: actor.from.clone(),
            request: actor.request.map(|request| request.to_string()),
            outcome: outcome.into(),
            detail,
        };
        let Entry { node, seq, deed, hash, .. } = chain(&self.head, deed);
        sql.run(
            "INSERT INTO audit (node, seq, time, tenant, actor, api_key, action, subject, origin, request, outcome, \
             detail, hash) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
            values![
                node,
                seq,
                deed.time,
                deed.tenant,
                deed.actor,
                deed.key,
                deed.action,
                deed.subject,
                deed.from,
                deed.request,
                deed.outcome,
                deed.detail,
                hash.as_str(),
            ],
        )?;
        self.head = Head { node, seq, hash };
        Ok(())
    }

    pub(crate) fn node(&self) -> NodeId {
        self.head.node
    }

    pub(crate) fn put_back(self, sql: &mut dyn Sql) -> Result<(), Fault> {
        let Head { node, seq, hash } = self.head;
        sql.run("UPDATE nodes SET audit_seq = ?2, audit_hash = ?3 WHERE id = ?1", values![node, seq, hash])
            .map(drop)
    }
}

fn list(sql: &mut dyn Sql, filter: &AuditFilter, page: &Page) -> Result<Vec<Entry>, Fault> {
    let conditions = Conditions::default()
        .and_if("tenant = ?", filter.tenant.as_ref())
        .and_if("actor = ?", filter.actor.as_ref())
        .and_if("action = ?", filter.action.as_ref())
        .and_if("subject = ?", filter.subject.as_ref())
        .and_if("time >= ?", filter.since)
        .and_if("time <= ?", filter.until);
    let conditions = match &page.after {
        Some(cursor) => {
            let (time, node, seq) = position(cursor)?;
            conditions.and("(time, node, seq) > (?, ?, ?)", values![time, node, seq])
        }
        None => conditions,
    };
    let rows = conditions.select(sql, COLUMNS, "audit", "time, node, seq", page.one_more())?;
    rows.into_iter().map(|mut row| entry(&mut row)).collect()
}

/// A cursor is a time in milliseconds, a node and a seq: `1763430000000/node-…/42`.
fn position(cursor: &str) -> Result<(i64, &str, i64), Fault> {
    let mut parts = cursor.splitn(3, '/');
    let number = |part: Option<&str>| part.and_then(|part| part.parse().ok());
    let found = (number(parts.next()), parts.next(), number(parts.next()));
    match found {
        (Some(time), Some(node), Some(seq)) => Ok((time, node, seq)),
        _ => Err(Fault::new(Kind::Invalid, "this is not where a page of the audit log ends")
            .hint("begin without a cursor")),
    }
}

fn entry(row: &mut Row) -> Result<Entry, Fault> {
    Ok(Entry {
        node: row.parsed()?,
        seq: row.int()?,
        deed: Deed {
            time: row.time()?,
            tenant: row.optional_text()?,
            actor: row.text()?,
            key: row.optional_text()?,
            action: row.text()?,
            subject: row.text()?,
            from: row.optional_text()?,
            request: row.optional_text()?,
            outcome: row.text()?,
            detail: row.optional_text()?,
        },
        detail_sha256: None,
        hash: row.text()?,
    })
}
