//! Sandboxes as they should be. Every change of state names the generation that it was decided on.

use std::collections::BTreeMap;

use cubicle_model::lease::LeaseEnd;
use cubicle_model::{
    Fault, Isolation, Lease, LeaseId, Name, NodeId, Sandbox, SandboxId, SandboxState, TemplateRef, UserName,
};
use serde_json::json;

use crate::leases::{AfterLease, EndedLease, Target};
use crate::sql::{Conditions, Row, Sql, Value, json as as_json, values};
use crate::{Context, Page, Store, events, leases, locks, not_found, queue, stale};

/// A sandbox for the pool.
#[derive(Debug, Clone)]
pub struct NewSandbox {
    pub id: SandboxId,
    pub target: Target,
}

#[derive(Debug, Clone, Default)]
pub struct SandboxFilter {
    pub tenant: Option<Name>,
    pub user: Option<UserName>,
    pub state: Option<SandboxState>,
    /// Also those of which nothing is left.
    pub gone: bool,
}

const COLUMNS: &str = "id, node, template, template_version, isolation, state, tenant, user_name, lease, created_at, \
    ready_at, ended_at, ended_because, generation";

/// Something may be left of it on its host.
const STANDING: &str = "state IN ('creating', 'idle', 'leased', 'teardown')";

impl Store {
    /// Notes sandboxes that the pool wants, as far as there is room beside those who wait for it, and returns them.
    pub async fn want_sandboxes(
        &self,
        context: Context,
        wanted: Vec<NewSandbox>,
        most: u64,
    ) -> Result<Vec<Sandbox>, Fault> {
        self.write(move |sql| {
            locks::node(sql, context.node)?;
            let taken = standing(sql, context.node)? + queue::length(sql, context.node)?;
            let room = most.saturating_sub(taken);
            let fitting = wanted.iter().take(usize::try_from(room).unwrap_or(usize::MAX));
            fitting.map(|new| insert(sql, &context, new.id, &new.target, None)).collect()
        })
        .await
    }

    pub async fn sandbox(&self, id: SandboxId) -> Result<Option<Sandbox>, Fault> {
        self.read(move |sql| sandbox(sql, id)).await
    }

    pub async fn sandboxes(&self, filter: SandboxFilter, page: Page) -> Result<Vec<Sandbox>, Fault> {
        self.read(move |sql| list(sql, &filter, &page)).await
    }

    /// Everything of a node of which something may be left on its host.
    pub async fn standing_sandboxes(&self, node: NodeId) -> Result<Vec<Sandbox>, Fault> {
        self.read(move |sql| {
            let statement =
                format!("SELECT {COLUMNS} FROM sandboxes WHERE node = ?1 AND {STANDING} ORDER BY id");
            sql.rows(&statement, values![node])?.into_iter().map(read).collect()
        })
        .await
    }

    /// By which recipe it was to be made.
    pub async fn target(&self, id: SandboxId) -> Result<Target, Fault> {
        self.read(move |sql| {
            let row = sql.row(
                "SELECT template, template_version, isolation, limits FROM sandboxes WHERE id = ?1",
                values![id],
            )?;
            let mut row = row.ok_or_else(|| not_found("sandbox"))?;
            Ok(Target {
                template: row.parsed()?,
                version: row.int()?,
                isolation: row.parsed()?,
                limits: row.json()?,
            })
        })
        .await
    }

    /// It is ready: idle, or its lease's.
    pub async fn welcome(&self, context: Context, id: SandboxId, generation: i64) -> Result<Sandbox, Fault> {
        self.write(move |sql| {
            let before = fenced(sql, &context, id, generation, &[SandboxState::Creating])?;
            let state = match before.lease {
                Some(_) => SandboxState::Leased,
                None => SandboxState::Idle,
            };
            let statement = format!(
                "UPDATE sandboxes SET state = ?2, ready_at = ?3, generation = generation + 1 WHERE id = ?1 \
                 RETURNING {COLUMNS}"
            );
            let sandbox = changed(sql, &statement, values![id, state.name(), context.now])?;
            tell(sql, &context, &sandbox, "ready")?;
            Ok(sandbox)
        })
        .await
    }

    /// It ended by itself or cannot be made: its lease ends, and it is torn down.
    pub async fn give_up(
        &self,
        context: Context,
        id: SandboxId,
        generation: i64,
        because: LeaseEnd,
        detail: String,
    ) -> Result<Option<EndedLease>, Fault> {
        self.write(move |sql| {
            let standing = [SandboxState::Creating, SandboxState::Idle, SandboxState::Leased];
            let before = fenced(sql, &context, id, generation, &standing)?;
            let mut ended = match before.lease {
                Some(lease) => Some(leases::end(sql, &context, lease, because, AfterLease::Destroy)?),
                None => None,
            };
            // Its generation has grown with the end of the lease.
            let statement = format!(
                "UPDATE sandboxes SET state = 'teardown', ended_because = ?2, generation = generation + 1 \
                 WHERE id = ?1 RETURNING {COLUMNS}"
            );
            let sandbox = changed(sql, &statement, values![id, &detail])?;
            if let Some(ended) = &mut ended {
                ended.sandbox = Some(sandbox);
            }
            Ok(ended)
        })
        .await
    }

    /// An idle sandbox is no longer wanted.
    pub async fn retire(
        &self,
        context: Context,
        id: SandboxId,
        generation: i64,
        because: String,
    ) -> Result<(), Fault> {
        self.write(move |sql| {
            fenced(sql, &context, id, generation, &[SandboxState::Idle])?;
            tear_down(sql, id, &because)
        })
        .await
    }

    /// Nothing is left of it.
    pub async fn forget(&self, context: Context, id: SandboxId, generation: i64) -> Result<(), Fault> {
        self.write(move |sql| {
            let before = fenced(sql, &context, id, generation, &[SandboxState::Teardown])?;
            sql.run(
                "UPDATE sandboxes SET state = 'gone', ended_at = ?2, generation = generation + 1 WHERE id = ?1",
                values![id, context.now],
            )?;
            tell(sql, &context, &before, "gone")
        })
        .await
    }

    /// How many sandboxes of a node stand, by template and state.
    pub async fn count_sandboxes(
        &self,
        node: NodeId,
    ) -> Result<Vec<(TemplateRef, SandboxState, u64)>, Fault> {
        self.read(move |sql| {
            let statement = format!(
                "SELECT template, state, COUNT(*) FROM sandboxes WHERE node = ?1 AND {STANDING} \
                 GROUP BY template, state ORDER BY template, state"
            );
            let rows = sql.rows(&statement, values![node])?.into_iter();
            rows.map(|mut row| {
                let (template, state) = (row.parsed()?, row.one_of(&SandboxState::ALL, SandboxState::name)?);
                Ok((template, state, row.unsigned()?))
            })
            .collect()
        })
        .await
    }

    /// Idle and coming sandboxes of a node by template and version.
    pub async fn pooled(&self, node: NodeId) -> Result<BTreeMap<(TemplateRef, i64), u64>, Fault> {
        self.read(move |sql| {
            let rows = sql.rows(
                "SELECT template, template_version, COUNT(*) FROM sandboxes \
                 WHERE node = ?1 AND lease IS NULL AND tenant IS NULL AND state IN ('creating', 'idle') \
                 GROUP BY template, template_version",
                values![node],
            )?;
            rows.into_iter().map(|mut row| Ok(((row.parsed()?, row.int()?), row.unsigned()?))).collect()
        })
        .await
    }
}

pub(crate) fn sandbox(sql: &mut dyn Sql, id: SandboxId) -> Result<Option<Sandbox>, Fault> {
    sql.row(&format!("SELECT {COLUMNS} FROM sandboxes WHERE id = ?1"), values![id])?.map(read).transpose()
}

/// A ready sandbox that a user may have: one that was kept for it, or a fresh one of the pool.
/// Which ready sandboxes will do, and for whom.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub(crate) target: &'a Target,
    pub(crate) tenant: &'a Name,
    pub(crate) user: &'a UserName,
}

/// The first of the preferred ones that is still free, or any.
pub(crate) fn ready_for(
    sql: &mut dyn Sql,
    node: NodeId,
    wanted: Wanted<'_>,
    preferred: &[SandboxId],
) -> Result<Option<SandboxId>, Fault> {
    const FITS: &str = "node = ?1 AND state = 'idle' AND template = ?2 AND template_version = ?3 \
         AND (tenant IS NULL OR (tenant = ?4 AND (user_name IS NULL OR user_name = ?5)))";
    let Wanted { target, tenant, user } = wanted;
    let lock = sql.and_lock_free_ones();
    let one = format!("SELECT id FROM sandboxes WHERE {FITS} AND id = ?6{lock}");
    for id in preferred {
        let values = values![node, &target.template, target.version, tenant, user, *id];
        if let Some(mut row) = sql.row(&one, values)? {
            return row.parsed().map(Some);
        }
    }
    let any = format!(
        "SELECT id FROM sandboxes WHERE {FITS} \
         ORDER BY CASE WHEN tenant IS NULL THEN 1 ELSE 0 END, ready_at LIMIT 1{lock}"
    );
    let row = sql.row(&any, values![node, &target.template, target.version, tenant, user])?;
    row.map(|mut row| row.parsed()).transpose()
}

pub(crate) fn take(
    sql: &mut dyn Sql,
    id: SandboxId,
    tenant: &Name,
    user: &UserName,
    lease: LeaseId,
) -> Result<Sandbox, Fault> {
    let statement = format!(
        "UPDATE sandboxes SET state = 'leased', tenant = ?2, user_name = ?3, lease = ?4, generation = generation + 1 \
         WHERE id = ?1 AND state = 'idle' RETURNING {COLUMNS}"
    );
    let row = sql.row(&statement, values![id, tenant, user, lease])?;
    row.map(read).ok_or_else(|| stale("sandbox"))?
}

pub(crate) fn insert(
    sql: &mut dyn Sql,
    context: &Context,
    id: SandboxId,
    target: &Target,
    owner: Option<(&Name, &UserName, LeaseId)>,
) -> Result<Sandbox, Fault> {
    sql.run(
        "INSERT INTO sandboxes (id, node, template, template_version, isolation, limits, state, tenant, user_name, lease, \
         created_at, generation) VALUES (?1, ?2, ?3, ?4, ?5, ?6, 'creating', ?7, ?8, ?9, ?10, 1)",
        values![
            id,
            context.node,
            &target.template,
            target.version,
            target.isolation.name(),
            as_json(&target.limits)?,
            owner.map(|owner| owner.0),
            owner.map(|owner| owner.1),
            owner.map(|owner| owner.2),
            context.now,
        ],
    )?;
    Ok(Sandbox {
        id,
        node: context.node,
        template: target.template.clone(),
        template_version: target.version,
        isolation: target.isolation,
        state: SandboxState::Creating,
        tenant: owner.map(|owner| owner.0.clone()),
        user: owner.map(|owner| owner.1.clone()),
        lease: owner.map(|owner| owner.2),
        created_at: context.now,
        ready_at: None,
        ended_at: None,
        ended_because: None,
        generation: 1,
    })
}

/// How many sandboxes of a node use its room.
pub(crate) fn standing(sql: &mut dyn Sql, node: NodeId) -> Result<u64, Fault> {
    let statement = format!("SELECT COUNT(*) FROM sandboxes WHERE node = ?1 AND {STANDING}");
    sql.number(&statement, values![node]).map(i64::unsigned_abs)
}

/// A ready sandbox that makes room for one of `wanted`, which none of the ready ones can be: one that its pool can do without,
/// or else one that was kept for somebody.
pub(crate) fn spare(
    sql: &mut dyn Sql,
    node: NodeId,
    wanted: &Target,
    kept: &BTreeMap<TemplateRef, u32>,
) -> Result<Option<SandboxId>, Fault> {
    let rows = sql.rows(
        "SELECT template, COUNT(*), MIN(template_version) FROM sandboxes \
         WHERE node = ?1 AND state = 'idle' AND tenant IS NULL GROUP BY template ORDER BY template",
        values![node],
    )?;
    for mut row in rows {
        let (template, idle, oldest): (TemplateRef, u64, i64) = (row.parsed()?, row.unsigned()?, row.int()?);
        let outdated = template == wanted.template && oldest < wanted.version;
        if !outdated && idle <= kept.get(&template).copied().unwrap_or(0).into() {
            continue;
        }
        let statement = format!(
            "SELECT id FROM sandboxes WHERE node = ?1 AND state = 'idle' AND template = ?2 AND tenant IS NULL \
             ORDER BY template_version, ready_at LIMIT 1{}",
            sql.and_lock_free_ones()
        );
        if let Some(mut row) = sql.row(&statement, values![node, &template])? {
            return row.parsed().map(Some);
        }
    }
    let statement = format!(
        "SELECT id FROM sandboxes WHERE node = ?1 AND state = 'idle' AND tenant IS NOT NULL ORDER BY ready_at LIMIT 1{}",
        sql.and_lock_free_ones()
    );
    sql.row(&statement, values![node])?.map(|mut row| row.parsed()).transpose()
}

/// A spare one makes room.
pub(crate) fn evict(sql: &mut dyn Sql, id: SandboxId) -> Result<(), Fault> {
    tear_down(sql, id, "its room was needed")
}

fn tear_down(sql: &mut dyn Sql, id: SandboxId, because: &str) -> Result<(), Fault> {
    sql.run(
        "UPDATE sandboxes SET state = 'teardown', ended_because = ?2, generation = generation + 1 WHERE id = ?1",
        values![id, because],
    )?;
    Ok(())
}

/// Its lease has ended: it is torn down, or kept. One that is not ready yet cannot be kept.
pub(crate) fn leave(
    sql: &mut dyn Sql,
    context: &Context,
    id: SandboxId,
    lease: &Lease,
    after: AfterLease,
) -> Result<Option<Sandbox>, Fault> {
    if let Some(user) = match after {
        AfterLease::Destroy => None,
        AfterLease::KeepForUser => Some(Some(&lease.user)),
        AfterLease::KeepForTenant => Some(None),
    } {
        let statement = format!(
            "UPDATE sandboxes SET state = 'idle', user_name = ?3, lease = NULL, ready_at = ?4, \
             generation = generation + 1 WHERE id = ?1 AND lease = ?2 AND state = 'leased' RETURNING {COLUMNS}"
        );
        if let Some(row) = sql.row(&statement, values![id, lease.id, user, context.now])? {
            return read(row).map(Some);
        }
    }
    let statement = format!(
        "UPDATE sandboxes SET state = 'teardown', ended_because = ?3, generation = generation + 1 \
         WHERE id = ?1 AND lease = ?2 AND state IN ('creating', 'leased') RETURNING {COLUMNS}"
    );
    let because = lease.ended_because.map_or("ended", LeaseEnd::name);
    sql.row(&statement, values![id, lease.id, because])?.map(read).transpose()
}

fn changed(sql: &mut dyn Sql, statement: &str, values: &[Value]) -> Result<Sandbox, Fault> {
    sql.row(statement, values)?.map(read).ok_or_else(|| not_found("sandbox"))?
}

/// The sandbox as the caller saw it, or a conflict. Nobody else changes it until the transaction ends.
fn fenced(
    sql: &mut dyn Sql,
    context: &Context,
    id: SandboxId,
    generation: i64,
    expected: &[SandboxState],
) -> Result<Sandbox, Fault> {
    let check = |sandbox: Sandbox| match sandbox.generation == generation && expected.contains(&sandbox.state)
    {
        true => Ok(sandbox),
        false => Err(stale("sandbox")),
    };
    let seen = check(sandbox(sql, id)?.ok_or_else(|| not_found("sandbox"))?)?;
    if sql.and_lock().is_empty() {
        return Ok(seen);
    }
    // Its lease ends and its events are told under locks that come first. In this generation it has no other tenant.
    if let Some(tenant) = &seen.tenant {
        locks::tenant(sql, tenant)?;
        locks::node(sql, context.node)?;
    }
    let statement = format!("SELECT {COLUMNS} FROM sandboxes WHERE id = ?1{}", sql.and_lock());
    check(changed(sql, &statement, values![id])?)
}

/// An event for whoever has it; the pool has no listeners.
fn tell(sql: &mut dyn Sql, context: &Context, sandbox: &Sandbox, what: &str) -> Result<(), Fault> {
    let (Some(tenant), Some(lease)) = (&sandbox.tenant, sandbox.lease) else { return Ok(()) };
    let data = json!({ "lease_id": lease, "because": sandbox.ended_because });
    events::emit(sql, tenant, context.now, &format!("sandbox.{what}"), &sandbox.id.to_string(), &data)
}

fn list(sql: &mut dyn Sql, filter: &SandboxFilter, page: &Page) -> Result<Vec<Sandbox>, Fault> {
    let conditions = Conditions::default()
        .and("id > ?", values![page.after()])
        .and_if("tenant = ?", filter.tenant.as_ref())
        .and_if("user_name = ?", filter.user.as_ref())
        .and_if("state = ?", filter.state.map(SandboxState::name));
    let conditions = match filter.gone || filter.state.is_some() {
        true => conditions,
        false => conditions.and(STANDING, &[]),
    };
    let rows = conditions.select(sql, COLUMNS, "sandboxes", "id", page.one_more())?;
    rows.into_iter().map(read).collect()
}

fn read(mut row: Row) -> Result<Sandbox, Fault> {
    Ok(Sandbox {
        id: row.parsed()?,
        node: row.parsed()?,
        template: row.parsed()?,
        template_version: row.int()?,
        isolation: row.parsed::<Isolation>()?,
        state: row.one_of(&SandboxState::ALL, SandboxState::name)?,
        tenant: row.optional_parsed()?,
        user: row.optional_parsed()?,
        lease: row.optional_parsed()?,
        created_at: row.time()?,
        ready_at: row.optional_time()?,
        ended_at: row.optional_time()?,
        ended_because: row.optional_text()?,
        generation: row.int()?,
    })
}
