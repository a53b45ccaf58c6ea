//! The servers that share this database.

use cubicle_model::audit::Head;
use cubicle_model::{Fault, NodeId, Timestamp};

use crate::Store;
use crate::sql::{Sql, values};

impl Store {
    /// A server starts, for the first time or again.
    pub async fn join(&self, node: NodeId, address: String, now: Timestamp) -> Result<(), Fault> {
        self.write(move |sql| join(sql, node, &address, now)).await
    }

    /// Where a node can be reached, and when it was seen last.
    pub async fn node(&self, node: NodeId) -> Result<Option<(String, Timestamp)>, Fault> {
        self.read(move |sql| {
            let row = sql.row("SELECT address, seen_at FROM nodes WHERE id = ?1", values![node])?;
            row.map(|mut row| Ok((row.text()?, row.time()?))).transpose()
        })
        .await
    }
}

fn join(sql: &mut dyn Sql, node: NodeId, address: &str, now: Timestamp) -> Result<(), Fault> {
    let head = Head::empty(node);
    sql.run(
        "INSERT INTO nodes (id, address, seen_at, audit_seq, audit_hash) VALUES (?1, ?2, ?3, ?4, ?5) \
         ON CONFLICT (id) DO UPDATE SET address = ?2, seen_at = ?3",
        values![node, address, now, head.seq, head.hash],
    )?;
    Ok(())
}
