//! Which exec is whose, and how it ended. What an exec printed is in its journal.

use std::collections::BTreeSet;

use cubicle_model::lease::LeaseEnd;
use cubicle_model::{
    ExecId, Exit, Fault, Kind, LeaseId, LeaseStatus, Name, NodeId, SandboxId, Timestamp, Usage, UserName,
};
use serde_json::{Value as Json, json};

use crate::leases::{AfterLease, EndedLease};
use crate::sql::{Conditions, Row, Sql, json as as_json, values};
use crate::{Context, Page, Store, audit, events, leases, locks, not_found, tenants};

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
    /// Why it was never started, where it was not.
    pub refused: Option<String>,
}

/// An exec whose sandbox is not known yet.
#[derive(Debug, Clone, PartialEq)]
pub struct Planned {
    pub id: ExecId,
    pub fingerprint: String,
    pub command: Json,
}

/// The lease that an exec runs under, and whose that is.
#[derive(Debug, Clone, Copy)]
pub struct Owner<'a> {
    pub lease: LeaseId,
    pub tenant: &'a Name,
    pub user: &'a UserName,
}

impl Exec {
    /// What whoever uses the id of an exec for another one is told.
    pub fn id_is_taken() -> Fault {
        Fault::new(Kind::Conflict, "this exec id was used before, for something else")
            .hint("use another id for another exec")
    }
}

impl Planned {
    pub fn in_sandbox(self, sandbox: SandboxId, owner: Owner<'_>, now: Timestamp) -> Exec {
        Exec {
            id: self.id,
            sandbox,
            lease: owner.lease,
            tenant: owner.tenant.clone(),
            user: owner.user.clone(),
            fingerprint: self.fingerprint,
            command: self.command,
            created_at: now,
            ended: None,
            refused: None,
        }
    }
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

/// An exec that has ended, and the lease that was for it alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finished {
    pub exec: ExecId,
    pub tenant: Name,
    pub ended: Ended,
    pub lease: Option<LeaseId>,
}

/// What happened to execs and is not in the store yet, or not told of.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Untold {
    pub begun: Vec<(ExecId, Name)>,
    pub finished: Vec<Finished>,
}

impl Untold {
    pub fn is_empty(&self) -> bool {
        self.begun.is_empty() && self.finished.is_empty()
    }
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
    stdout_bytes, stderr_bytes, duration_us, refused";

impl Store {
    /// Notes an exec that is about to start. Refused unless its lease is active and its tenant may have one more. It is
    /// told of by `tell_execs`, or with its end.
    pub async fn begin_exec(&self, context: Context, exec: Exec) -> Result<Begun, Fault> {
        self.write(move |sql| begin(sql, &context, &exec)).await
    }

    /// Notes how an exec ended; the first report counts.
    pub async fn end_exec(&self, context: Context, id: ExecId, ended: Ended) -> Result<(), Fault> {
        self.write(move |sql| {
            let Some(exec) = exec(sql, id)? else { return Ok(()) };
            let finished = vec![Finished { exec: id, tenant: exec.tenant, ended, lease: None }];
            tell(sql, &context, &Untold { begun: Vec::new(), finished }).map(drop)
        })
        .await
    }

    /// Notes that an exec was never started, and why.
    pub async fn refuse_exec(&self, context: Context, id: ExecId, why: String) -> Result<(), Fault> {
        self.write(move |sql| {
            let Some(exec) = exec(sql, id)?.filter(|exec| exec.ended.is_none()) else { return Ok(()) };
            let ended = Ended {
                at: context.now,
                exit: Exit::NotStarted,
                stdout_bytes: 0,
                stderr_bytes: 0,
                duration_us: 0,
            };
            let finished = vec![Finished { exec: id, tenant: exec.tenant, ended, lease: None }];
            tell(sql, &context, &Untold { begun: Vec::new(), finished })?;
            sql.run("UPDATE execs SET refused = ?2 WHERE id = ?1", values![id, &why]).map(drop)
        })
        .await
    }

    /// Tells of execs that have begun, notes how others ended, and ends the leases that were for those alone.
    pub async fn tell_execs(&self, context: Context, untold: Untold) -> Result<Vec<EndedLease>, Fault> {
        self.write(move |sql| tell(sql, &context, &untold)).await
    }

    /// Whether an exec was ever noted in this sandbox.
    pub async fn ran_anything(&self, sandbox: SandboxId) -> Result<bool, Fault> {
        let statement = "SELECT COUNT(*) FROM (SELECT id FROM execs WHERE sandbox = ?1 LIMIT 1) AS first";
        self.read(move |sql| Ok(sql.number(statement, values![sandbox])? > 0)).await
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

fn tell(sql: &mut dyn Sql, context: &Context, untold: &Untold) -> Result<Vec<EndedLease>, Fault> {
    let Untold { begun, finished } = untold;
    let tenants = begun.iter().map(|(_, tenant)| tenant).chain(finished.iter().map(|one| &one.tenant));
    let tenants: BTreeSet<Name> = tenants.cloned().collect();
    locks::tenants_and_node(sql, &tenants, context.node)?;
    let mut log = audit::Chain::take(sql, context.node)?;
    for tenant in &tenants {
        let mut events = events::Series::take(sql, tenant)?;
        for (id, _) in begun.iter().filter(|(_, of)| of == tenant) {
            tell_of_start(sql, *id, &mut log, &mut events)?;
        }
        for one in finished.iter().filter(|one| one.tenant == *tenant) {
            tell_of_end(sql, context, one, &mut log, &mut events)?;
        }
        events.put_back(sql)?;
    }
    log.put_back(sql)?;
    let mut released = Vec::new();
    for lease in finished.iter().filter_map(|one| one.lease) {
        // One that was forgotten has ended long ago.
        if leases::lease(sql, lease)?.is_some() {
            released.push(leases::end(sql, context, lease, LeaseEnd::Released, AfterLease::Destroy)?);
        }
    }
    Ok(released)
}

/// Once: with the time at which it was noted, and with whoever asked for it.
fn tell_of_start(
    sql: &mut dyn Sql,
    id: ExecId,
    log: &mut audit::Chain,
    events: &mut events::Series,
) -> Result<(), Fault> {
    let row = sql.row(
        "UPDATE execs SET told = 1 WHERE id = ?1 AND told = 0 \
         RETURNING sandbox, lease, command, created_at, origin",
        values![id],
    )?;
    row.map_or(Ok(()), |row| write_start(sql, id, row, log, events).map(drop))
}

/// What is told of a start, from `sandbox, lease, command, created_at, origin` of its row; says which sandbox it is in.
fn write_start(
    sql: &mut dyn Sql,
    id: ExecId,
    mut row: Row,
    log: &mut audit::Chain,
    events: &mut events::Series,
) -> Result<SandboxId, Fault> {
    let (sandbox, lease): (SandboxId, LeaseId) = (row.parsed()?, row.parsed()?);
    let (command, now, actor) = (row.text()?, row.time()?, row.json()?);
    let data = json!({ "sandbox_id": sandbox, "lease_id": lease });
    events.emit(sql, now, "exec.started", &id.to_string(), &data)?;
    let then = Context { node: log.node(), now, actor };
    log.append(sql, &then, "exec.create", &id.to_string(), "ok", Some(short(&command)))?;
    Ok(sandbox)
}

/// The first report of an end counts.
fn tell_of_end(
    sql: &mut dyn Sql,
    context: &Context,
    finished: &Finished,
    log: &mut audit::Chain,
    events: &mut events::Series,
) -> Result<(), Fault> {
    let Finished { exec: id, ended, .. } = finished;
    let values = values![
        *id,
        ended.at,
        as_json(&ended.exit)?,
        ended.stdout_bytes,
        ended.stderr_bytes,
        ended.duration_us,
    ];
    // Most are so short that nothing was told of them yet.
    let row = sql.row(
        "UPDATE execs SET told = 1, ended_at = ?2, exit = ?3, stdout_bytes = ?4, stderr_bytes = ?5, \
         duration_us = ?6 WHERE id = ?1 AND ended_at IS NULL AND told = 0 \
         RETURNING sandbox, lease, command, created_at, origin",
        values,
    )?;
    let sandbox = match row {
        Some(row) => write_start(sql, *id, row, log, events)?,
        None => {
            tell_of_start(sql, *id, log, events)?;
            let row = sql.row(
                "UPDATE execs SET ended_at = ?2, exit = ?3, stdout_bytes = ?4, stderr_bytes = ?5, \
                 duration_us = ?6 WHERE id = ?1 AND ended_at IS NULL RETURNING sandbox",
                values,
            )?;
            let Some(mut row) = row else { return Ok(()) };
            row.parsed()?
        }
    };
    let data = json!({ "sandbox_id": sandbox, "exit": ended.exit });
    events.emit(sql, context.now, "exec.ended", &id.to_string(), &data)
}

pub(crate) fn begin(sql: &mut dyn Sql, context: &Context, asked: &Exec) -> Result<Begun, Fault> {
    if let Some(before) = exec(sql, asked.id)? {
        let same = before.fingerprint == asked.fingerprint
            && before.sandbox == asked.sandbox
            && before.tenant == asked.tenant;
        return match same {
            true => Ok(Begun::Repeated(before)),
            false => Err(Exec::id_is_taken()),
        };
    }
    // Held until the end, so that neither the lease ends nor another exec begins meanwhile.
    let quota = tenants::quota_alone(sql, &asked.tenant)?;
    // As little as is needed of it: every exec reads it.
    let lease = sql.row(
        "SELECT status, expires_at FROM leases WHERE id = ?1 AND tenant = ?2 AND sandbox = ?3",
        values![asked.lease, &asked.tenant, asked.sandbox],
    )?;
    let mut lease = lease.ok_or_else(|| not_found("lease"))?;
    let status = lease.one_of(&LeaseStatus::ALL, LeaseStatus::name)?;
    if status != LeaseStatus::Active || context.now >= lease.time()? {
        return Err(
            Fault::new(Kind::Conflict, "the lease of this sandbox is over").hint("acquire a new lease")
        );
    }
    if quota.execs.is_some() {
        let used = Usage { execs: tenants::running_execs(sql, &asked.tenant)?, ..Usage::default() };
        let one = Usage { execs: 1, ..Usage::default() };
        quota.allows(&used, &one).map_err(|exceeded| {
            let text =
                format!("the tenant may have {} running execs, and has {}", exceeded.limit, exceeded.used);
            Fault::new(Kind::Full, text).hint("wait until one has ended, or ask for a larger quota")
        })?;
    }
    sql.run(
        "INSERT INTO execs (id, sandbox, lease, tenant, user_name, fingerprint, command, created_at, told, origin) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 0, ?9)",
        values![
            asked.id,
            asked.sandbox,
            asked.lease,
            &asked.tenant,
            &asked.user,
            &asked.fingerprint,
            asked.command.to_string(),
            context.now,
            as_json(&context.actor)?,
        ],
    )?;
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
        refused: None,
    };
    if let Some(at) = row.optional_time()? {
        exec.ended = Some(Ended {
            at,
            exit: row.json()?,
            stdout_bytes: row.unsigned()?,
            stderr_bytes: row.unsigned()?,
            duration_us: row.unsigned()?,
        });
        exec.refused = row.optional_text()?;
    }
    Ok(exec)
}
