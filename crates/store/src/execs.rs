//! Which exec is whose, and how it ended. What an exec printed is in its journal.

use cubicle_model::{
    ExecId, Exit, Fault, Kind, LeaseId, LeaseStatus, Name, NodeId, SandboxId, Timestamp, Usage, UserName,
};
use serde_json::{Value as Json, json};

use crate::sql::{Conditions, Row, Sql, json as as_json, values};
use crate::{Context, Page, Store, audit, events, leases, not_found, tenants};

#[derive(Debug, Clone, PartialEq)]
pub struct Exec {
    pub id: ExecId,
    pub sandbox: SandboxId,
    pub lease: LeaseId,
    pub tenant: Name,
    pub user: UserName,
    /// Of everything that was asked for, to tell a repeated request from another one with the same id.
    pub fingerprint: String,
    /// What was run, as it was asked for.
    pub command: Json,
    pub created_at: Timestamp,
    pub ended: Option<Ended>,
}

/// How an exec ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    pub at: Timestamp,
    pub exit: Exit,
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
    pub duration_us: u64,
}

#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "one per request, looked at once")]
pub enum Begun {
    /// Nobody asked for it before.
    New,
    /// The same id and the same command came before.
    Repeated(Exec),
}

#[derive(Debug, Clone, Default)]
pub struct ExecFilter {
    pub tenant: Option<Name>,
    pub sandbox: Option<SandboxId>,
    pub running: Option<bool>,
}

const COLUMNS: &str = "id, sandbox, lease, tenant, user_name, fingerprint, command, created_at, ended_at, exit, \
    stdout_bytes, stderr_bytes, duration_us";

impl Store {
    /// Notes an exec that is about to start. Refused unless its lease is active and its tenant may have one more.
    pub async fn begin_exec(&self, context: Context, exec: Exec) -> Result<Begun, Fault> {
        self.write(move |sql| begin(sql, &context, &exec)).await
    }

    /// Notes how it ended; the first report counts.
    pub async fn end_exec(&self, context: Context, id: ExecId, ended: Ended) -> Result<(), Fault> {
        self.write(move |sql| end(sql, &context, id, ended)).await
    }

    pub async fn exec(&self, id: ExecId) -> Result<Option<Exec>, Fault> {
        self.read(move |sql| exec(sql, id)).await
    }

    pub async fn execs(&self, filter: ExecFilter, page: Page) -> Result<Vec<Exec>, Fault> {
        self.read(move |sql| list(sql, &filter, &page)).await
    }

    /// Execs of a node's sandboxes of which no end is known.
    pub async fn running_execs(&self, node: NodeId) -> Result<Vec<Exec>, Fault> {
        self.read(move |sql| {
            let statement = format!(
                "SELECT {COLUMNS} FROM execs WHERE ended_at IS NULL \
                 AND sandbox IN (SELECT id FROM sandboxes WHERE node = ?1) ORDER BY id"
            );
            sql.rows(&statement, values![node])?.into_iter().map(read).collect()
        })
        .await
    }
}

fn begin(sql: &mut dyn Sql, context: &Context, asked: &Exec) -> Result<Begun, Fault> {
    if let Some(before) = exec(sql, asked.id)? {
        let same = before.fingerprint == asked.fingerprint
            && before.sandbox == asked.sandbox
            && before.tenant == asked.tenant;
        return match same {
            true => Ok(Begun::Repeated(before)),
            false => Err(Fault::new(Kind::Conflict, "this exec id was used before, for something else")
                .hint("use another id for another exec")),
        };
    }
    // Held until the end, so that neither the lease ends nor another exec begins meanwhile.
    let tenant = tenants::tenant_alone(sql, &asked.tenant)?;
    let lease = leases::lease(sql, asked.lease)?
        .filter(|lease| lease.tenant == asked.tenant && lease.sandbox == Some(asked.sandbox))
        .ok_or_else(|| not_found("lease"))?;
    if lease.status != LeaseStatus::Active || lease.is_over(context.now) {
        return Err(
            Fault::new(Kind::Conflict, "the lease of this sandbox is over").hint("acquire a new lease")
        );
    }
    if tenant.quota.execs.is_some() {
        let used = Usage { execs: tenants::running_execs(sql, &asked.tenant)?, ..Usage::default() };
        let one = Usage { execs: 1, ..Usage::default() };
        tenant.quota.allows(&used, &one).map_err(|exceeded| {
            let text =
                format!("the tenant may have {} running execs, and has {}", exceeded.limit, exceeded.used);
            Fault::new(Kind::Full, text).hint("wait until one has ended, or ask for a larger quota")
        })?;
    }
    sql.run(
        "INSERT INTO execs (id, sandbox, lease, tenant, user_name, fingerprint, command, created_at) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        values![
            asked.id,
            asked.sandbox,
            asked.lease,
            &asked.tenant,
            &asked.user,
            &asked.fingerprint,
            asked.command.to_string(),
            context.now,
        ],
    )?;
    let data = json!({ "sandbox_id": asked.sandbox, "lease_id": asked.lease });
    events::emit(sql, &asked.tenant, context.now, "exec.started", &asked.id.to_string(), &data)?;
    let detail = short(&asked.command.to_string());
    audit::append(sql, context, "exec.create", &asked.id.to_string(), "ok", Some(detail))?;
    Ok(Begun::New)
}

/// As much of a command as the audit log keeps; the whole is in the exec's row.
fn short(command: &str) -> String {
    const LONGEST: usize = 512;
    match command.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &command[..end]),
        None => command.into(),
    }
}

fn end(sql: &mut dyn Sql, context: &Context, id: ExecId, ended: Ended) -> Result<(), Fault> {
    let row = sql.row(
        "UPDATE execs SET ended_at = ?2, exit = ?3, stdout_bytes = ?4, stderr_bytes = ?5, duration_us = ?6 \
         WHERE id = ?1 AND ended_at IS NULL RETURNING tenant, sandbox",
        values![
            id,
            ended.at,
            as_json(&ended.exit)?,
            ended.stdout_bytes,
            ended.stderr_bytes,
            ended.duration_us,
        ],
    )?;
    let Some(mut row) = row else { return Ok(()) };
    let (tenant, sandbox): (Name, SandboxId) = (row.parsed()?, row.parsed()?);
    let data = json!({ "sandbox_id": sandbox, "exit": ended.exit });
    events::emit(sql, &tenant, context.now, "exec.ended", &id.to_string(), &data)
}

fn exec(sql: &mut dyn Sql, id: ExecId) -> Result<Option<Exec>, Fault> {
    sql.row(&format!("SELECT {COLUMNS} FROM execs WHERE id = ?1"), values![id])?.map(read).transpose()
}

fn list(sql: &mut dyn Sql, filter: &ExecFilter, page: &Page) -> Result<Vec<Exec>, Fault> {
    let conditions = Conditions::default()
        .and("id > ?", values![page.after()])
        .and_if("tenant = ?", filter.tenant.as_ref())
        .and_if("sandbox = ?", filter.sandbox);
    let conditions = match filter.running {
        None => conditions,
        Some(true) => conditions.and("ended_at IS NULL", &[]),
        Some(false) => conditions.and("ended_at IS NOT NULL", &[]),
    };
    let rows = conditions.select(sql, COLUMNS, "execs", "id", page.one_more())?;
    rows.into_iter().map(read).collect()
}

fn read(mut row: Row) -> Result<Exec, Fault> {
    let mut exec = Exec {
        id: row.parsed()?,
        sandbox: row.parsed()?,
        lease: row.parsed()?,
        tenant: row.parsed()?,
        user: row.parsed()?,
        fingerprint: row.text()?,
        command: row.json()?,
        created_at: row.time()?,
        ended: None,
    };
    if let Some(at) = row.optional_time()? {
        exec.ended = Some(Ended {
            at,
            exit: row.json()?,
            stdout_bytes: row.unsigned()?,
            stderr_bytes: row.unsigned()?,
            duration_us: row.unsigned()?,
        });
    }
    Ok(exec)
}
