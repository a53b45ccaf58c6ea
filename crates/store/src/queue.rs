//! Leases that wait for room, and who of them is next.

use std::collections::{BTreeMap, BTreeSet};

use cubicle_model::admission::{Share, Waiting, order};
use cubicle_model::lease::{LeaseStatus, until};
use cubicle_model::{Fault, Isolation, Kind, Lease, LeaseId, LimitRequest, Name, NodeId, Sandbox, SandboxId};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use crate::leases::{Room, Target, tell};
use crate::sql::{Sql, damaged, values};
use crate::{Context, Store, audit, leases, locks, sandboxes, tenants};

/// A lease that waited and has a sandbox now.
#[derive(Debug, Clone, PartialEq)]
pub struct Promoted {
    pub lease: Lease,
    pub sandbox: Sandbox,
    pub binding: Json,
    /// A ready sandbox that had to make room.
    pub evicted: Option<SandboxId>,
}

/// What a waiting lease waits for.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Parked {
    template: String,
    version: i64,
    isolation: Isolation,
    limits: LimitRequest,
    binding: Json,
}

impl Parked {
    pub(crate) fn new(target: &Target, binding: &Json) -> Self {
        Self {
            template: target.template.to_string(),
            version: target.version,
            isolation: target.isolation,
            limits: target.limits,
            binding: binding.clone(),
        }
    }

    pub(crate) fn text(&self) -> Result<String, Fault> {
        serde_json::to_string(self)
            .map_err(|error| Fault::new(Kind::Internal, "a lease cannot be parked").because(error))
    }

    pub(crate) fn into_binding(self) -> Json {
        self.binding
    }

    fn target(&self) -> Result<Target, Fault> {
        let template = self.template.parse().map_err(|_| damaged("a lease waits for no template"))?;
        Ok(Target { template, version: self.version, isolation: self.isolation, limits: self.limits })
    }
}

impl Store {
    /// Gives sandboxes to those who wait, as far as there is room, the tenant with the least first.
    pub async fn promote(&self, context: Context, room: Room) -> Result<Vec<Promoted>, Fault> {
        self.write(move |sql| promote(sql, &context, &room)).await
    }

    /// The place of a waiting lease, counted from 1; none where it does not wait.
    pub async fn position(&self, node: NodeId, lease: LeaseId) -> Result<Option<u64>, Fault> {
        self.read(move |sql| {
            let line = line(sql, node)?;
            Ok(line.iter().position(|one| *one == lease).map(|index| index as u64 + 1))
        })
        .await
    }
}

pub(crate) fn length(sql: &mut dyn Sql, node: NodeId) -> Result<u64, Fault> {
    let statement = "SELECT COUNT(*) FROM leases WHERE node = ?1 AND status = 'QUEUED'";
    sql.number(statement, values![node]).map(i64::unsigned_abs)
}

/// The queue in the order in which it will be served.
fn line(sql: &mut dyn Sql, node: NodeId) -> Result<Vec<LeaseId>, Fault> {
    let rows = sql.rows(
        "SELECT id, tenant, created_at FROM leases WHERE node = ?1 AND status = 'QUEUED'",
        values![node],
    )?;
    let waiting: Vec<Waiting> = rows
        .into_iter()
        .map(|mut row| Ok(Waiting { lease: row.parsed()?, tenant: row.parsed()?, since: row.time()? }))
        .collect::<Result<_, Fault>>()?;
    in_order(sql, &waiting)
}

fn in_order(sql: &mut dyn Sql, waiting: &[Waiting]) -> Result<Vec<LeaseId>, Fault> {
    let mut shares = BTreeMap::new();
    for Waiting { tenant: name, .. } in waiting {
        if !shares.contains_key(name) {
            let (tenant, usage) = (tenants::tenant(sql, name)?, tenants::usage(sql, name)?);
            shares.insert(name.clone(), Share { active: usage.leases, weight: tenant.weight });
        }
    }
    Ok(order(waiting, &shares))
}

fn promote(sql: &mut dyn Sql, context: &Context, room: &Room) -> Result<Vec<Promoted>, Fault> {
    let node = context.node;
    let rows =
        sql.rows("SELECT DISTINCT tenant FROM leases WHERE node = ?1 AND status = 'QUEUED'", values![node])?;
    let held: BTreeSet<Name> = rows.into_iter().map(|mut row| row.parsed()).collect::<Result<_, Fault>>()?;
    if held.is_empty() {
        return Ok(Vec::new());
    }
    locks::tenants_and_node(sql, &held, node)?;
    let mut queued: BTreeMap<LeaseId, (Lease, Parked)> = leases::queued(sql, node)?
        .into_iter()
        // A tenant that has come since the locks were taken is served the next time.
        .filter(|(lease, _)| held.contains(&lease.tenant) && !lease.is_over(context.now))
        .map(|(lease, parked)| (lease.id, (lease, parked)))
        .collect();
    let waiting: Vec<Waiting> = queued
        .values()
        .map(|(lease, _)| Waiting { lease: lease.id, tenant: lease.tenant.clone(), since: lease.created_at })
        .collect();
    let mut promoted = Vec::new();
    for id in in_order(sql, &waiting)? {
        let Some((lease, parked)) = queued.remove(&id) else { continue };
        let tenant = tenants::tenant(sql, &lease.tenant)?;
        // Its tenant has got as much as it may have in the meantime; others need not wait for that.
        if tenant.quota.allows(&tenants::usage_for(sql, &tenant)?, &lease.counts).is_err() {
            continue;
        }
        let target = parked.target()?;
        let Some((sandbox, evicted)) = place(sql, context, room, &lease, &target)? else { continue };
        let lease = Lease {
            status: LeaseStatus::Active,
            sandbox: Some(sandbox.id),
            expires_at: until(context.now, lease.ttl_seconds),
            version: lease.version + 1,
            ..lease
        };
        let kept = (!parked.binding.is_null()).then(|| parked.text()).transpose()?;
        sql.run(
            "UPDATE leases SET status = ?2, sandbox = ?3, expires_at = ?4, version = ?5, binding = ?6 WHERE id = ?1",
            values![lease.id, lease.status.name(), sandbox.id, lease.expires_at, lease.version, kept],
        )?;
        tell(sql, context, &lease)?;
        audit::append(sql, context, "lease.promote", &lease.id.to_string(), "ok", None)?;
        promoted.push(Promoted { lease, sandbox, binding: parked.binding, evicted });
    }
    Ok(promoted)
}

/// A sandbox for a lease that waited: a ready one, a new one, or a new one in the place of one that nobody needs.
fn place(
    sql: &mut dyn Sql,
    context: &Context,
    room: &Room,
    lease: &Lease,
    target: &Target,
) -> Result<Option<(Sandbox, Option<SandboxId>)>, Fault> {
    let wanted = sandboxes::Wanted { target, tenant: &lease.tenant, user: &lease.user };
    if let Some(ready) = sandboxes::ready_for(sql, context.node, wanted, &[])? {
        let sandbox = sandboxes::take(sql, ready, &lease.tenant, &lease.user, lease.id)?;
        return Ok(Some((sandbox, None)));
    }
    let mut evicted = None;
    if sandboxes::standing(sql, context.node)? >= room.sandboxes {
        evicted = sandboxes::spare(sql, context.node, target, &room.kept)?;
        let Some(spare) = evicted else { return Ok(None) };
        sandboxes::evict(sql, spare)?;
    }
    let id = SandboxId::from_random(sql.fresh());
    let owner = (&lease.tenant, &lease.user, lease.id);
    let sandbox = sandboxes::insert(sql, context, id, target, Some(owner))?;
    Ok(Some((sandbox, evicted)))
}
