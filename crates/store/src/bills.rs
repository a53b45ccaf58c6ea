//! What leases and execs reached outside, kept as long as they are.

use cubicle_model::egress::Bill;
use cubicle_model::{Fault, Name, NodeId, SandboxId, Timestamp, UserName};

use crate::Store;
use crate::sql::{Row, json, values};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptBill {
    /// The id of a lease or an exec.
    pub subject: String,
    pub tenant: Name,
    pub user: UserName,
    pub sandbox: SandboxId,
    /// Where the sandbox is or was.
    pub node: NodeId,
    pub bill: Bill,
    pub updated_at: Timestamp,
}

impl Store {
    /// Takes the place of an earlier bill of the same subject: a bill counts from the beginning.
    pub async fn put_bill(&self, kept: KeptBill) -> Result<(), Fault> {
        self.write(move |sql| {
            sql.run(
                "INSERT INTO bills (subject, tenant, user_name, sandbox, node, bill, updated_at) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) \
                 ON CONFLICT (subject) DO UPDATE SET bill = excluded.bill, updated_at = excluded.updated_at",
                values![
                    &kept.subject,
                    &kept.tenant,
                    &kept.user,
                    kept.sandbox,
                    kept.node,
                    json(&kept.bill)?,
                    kept.updated_at,
                ],
            )
            .map(drop)
        })
        .await
    }

    pub async fn bill(&self, subject: String) -> Result<Option<KeptBill>, Fault> {
        self.read(move |sql| {
            let row = sql.row(
                "SELECT subject, tenant, user_name, sandbox, node, bill, updated_at FROM bills WHERE subject = ?1",
                values![&subject],
            )?;
            row.map(read).transpose()
        })
        .await
    }
}

fn read(mut row: Row) -> Result<KeptBill, Fault> {
    Ok(KeptBill {
        subject: row.text()?,
        tenant: row.parsed()?,
        user: row.parsed()?,
        sandbox: row.parsed()?,
        node: row.parsed()?,
        bill: row.json()?,
        updated_at: row.time()?,
    })
}
