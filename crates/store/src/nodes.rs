//! The servers that share this database.

use cubicle_model::audit::Head;
use cubicle_model::{ArtifactId, ExecId, Fault, LeaseId, NodeId, SandboxId, TaskId, Timestamp};

use crate::Store;
use crate::sql::{Sql, values};

/// What only one node can do something with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placed {
    Sandbox(SandboxId),
    Lease(LeaseId),
    Exec(ExecId),
    Artifact(ArtifactId),
    Task(TaskId),
}

impl Store {
    /// The node that has something, if anybody has. Of an artifact it is the one that had its sandbox.
    pub async fn node_of(&self, what: Placed) -> Result<Option<NodeId>, Fault> {
        self.read(move |sql| {
            let row = match what {
                Placed::Sandbox(id) => sql.row("SELECT node FROM sandboxes WHERE id = ?1", values![id]),
                Placed::Lease(id) => sql.row("SELECT node FROM leases WHERE id = ?1", values![id]),
                Placed::Exec(id) => sql.row(
                    "SELECT node FROM sandboxes WHERE id = (SELECT sandbox FROM execs WHERE id = ?1)",
                    values![id],
                ),
                Placed::Artifact(id) => sql.row(
                    "SELECT node FROM sandboxes WHERE id = (SELECT subject FROM artifacts WHERE id = ?1)",
                    values![id],
                ),
                Placed::Task(id) => sql.row("SELECT node FROM worker_tasks WHERE task_id = ?1", values![id]),
            }?;
            row.map(|mut row| row.parsed()).transpose()
        })
        .await
    }

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
