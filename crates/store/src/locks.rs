//! Who may change what at the same time.
//!
//! A transaction takes its locks in one order, so that no two wait for each other: tenants by name, the node, then leases,
//! sandboxes and execs. Whoever holds a tenant knows that none of its leases begins or ends; whoever holds a node, that none
//! of its sandboxes is made or given away, and that its audit log does not grow. SQLite has one writer and needs none of it.

use std::collections::BTreeSet;

use cubicle_model::{Fault, Name, NodeId};

use crate::sql::{Sql, damaged, values};

/// Nobody else acquires or ends leases of this tenant until the transaction ends.
pub(crate) fn tenant(sql: &mut dyn Sql, name: &Name) -> Result<(), Fault> {
    match sql.and_lock() {
        "" => Ok(()),
        lock => {
            let statement = format!("SELECT name FROM tenants WHERE name = ?1{lock}");
            // One that does not exist is missed by whoever reads it.
            sql.row(&statement, values![name]).map(drop)
        }
    }
}

/// Nobody else makes or takes sandboxes on this node until the transaction ends.
pub(crate) fn node(sql: &mut dyn Sql, node: NodeId) -> Result<(), Fault> {
    match sql.and_lock() {
        "" => Ok(()),
        lock => {
            let row = sql.row(&format!("SELECT id FROM nodes WHERE id = ?1{lock}"), values![node])?;
            row.map(drop).ok_or_else(|| damaged("this node has not joined"))
        }
    }
}

/// Several tenants, and then the node.
pub(crate) fn tenants_and_node(sql: &mut dyn Sql, tenants: &BTreeSet<Name>, on: NodeId) -> Result<(), Fault> {
    for name in tenants {
        tenant(sql, name)?;
    }
    node(sql, on)
}
