//! Acquire, renew and end leases. Whoever gets a sandbox is decided by `model::admission`, on what is read in the same
//! transaction.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cubicle_model::admission::{Situation, Verdict, admit};
use cubicle_model::egress::LeaseEgress;
use cubicle_model::lease::{Admission, Lease, LeaseEnd, LeaseStatus, until};
use cubicle_model::tenant::Exceeded;
use cubicle_model::{
    Fault, Isolation, Kind, LeaseId, LimitRequest, Name, NodeId, Sandbox, SandboxId, TemplateRef, Timestamp,
    Usage, UserName,
};
use serde_json::{Value as Json, json};

use crate::execs::{self, Begun, Exec, Owner, Planned};
use crate::sql::{Conditions, Row, Sql, Value, damaged, json as stored, values};
use crate::{Context, Page, Store, audit, events, locks, not_found, queue, sandboxes, tenants};

/// What is asked for. The ids are used if it is granted.
#[derive(Debug, Clone)]
pub struct Acquire {
    pub lease: LeaseId,
    pub sandbox: SandboxId,
    pub tenant: Name,
    pub user: UserName,
    pub workflow: String,
    pub request: String,
    /// Of everything that was asked for, to tell a repeated request from another one with the same name.
    pub fingerprint: String,
    pub target: Target,
    pub counts: Usage,
    pub ttl_seconds: u32,
    pub heartbeat_seconds: Option<u32>,
    pub one_shot: bool,
    pub may_wait: bool,
    /// A ready sandbox cannot be given what is asked for.
    pub must_be_new: bool,
    /// Ready sandboxes that are tried before any other, in this order.
    pub preferred: Vec<SandboxId>,
    /// What the sandbox is given before it is handed out; null where that is nothing. Kept until `prepared`.
    pub binding: Json,
    pub egress: LeaseEgress,
    pub room: Room,
}

/// By which recipe a sandbox is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub template: TemplateRef,
    pub version: i64,
    pub isolation: Isolation,
    /// Over the template's own.
    pub limits: LimitRequest,
}

/// What fits on a node.
#[derive(Debug, Clone, Default)]
pub struct Room {
    pub sandboxes: u64,
    pub longest_queue: u64,
    /// How many ready sandboxes of a template are not given up for others.
    pub kept: BTreeMap<TemplateRef, u32>,
}

#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "one per request, looked at once")]
pub enum Acquired {
    Granted {
        lease: Lease,
        sandbox: Sandbox,
        /// A ready sandbox that had to make room.
        evicted: Option<SandboxId>,
    },
    Waits {
        lease: Lease,
        position: u64,
    },
    /// The same was asked for before; this is what came of it.
    Repeated {
        lease: Lease,
    },
    Full {
        waiting: u64,
    },
    OverQuota(Exceeded),
}

/// What becomes of the sandbox when its lease ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterLease {
    Destroy,
    KeepForUser,
    KeepForTenant,
}

#[derive(Debug, Clone, PartialEq)]
pub struct EndedLease {
    pub lease: Lease,
    /// As it is afterwards.
    pub sandbox: Option<Sandbox>,
    /// Not set where the lease had ended before.
    pub just_now: bool,
}

#[derive(Debug, Clone, Default)]
pub struct LeaseFilter {
    pub tenant: Option<Name>,
    pub user: Option<UserName>,
    pub status: Option<LeaseStatus>,
    pub workflow: Option<String>,
}

/// A node ends its own leases. Its clock may differ from that of another, which therefore waits so long before it takes it for
/// gone.
const ANOTHER_NODES: Duration = Duration::from_secs(2 * 3600);

const COLUMNS: &str = "id, tenant, user_name, workflow, request, template, sandbox, node, status, admission, \
    ttl_seconds, heartbeat_seconds, created_at, expires_at, ended_at, ended_because, millicpus, memory, one_shot, \
    egress, version";

impl Store {
    /// Idempotent for (tenant, user, workflow, request).
    pub async fn acquire(&self, context: Context, ask: Acquire) -> Result<Acquired, Fault> {
        self.write(move |sql| acquire(sql, &context, &ask)).await
    }

    /// The same for a lease that is for one exec alone. Where a ready sandbox is granted, the exec is noted as well, and
    /// returned: it may start at once.
    pub async fn acquire_for(
        &self,
        context: Context,
        ask: Acquire,
        exec: Planned,
    ) -> Result<(Acquired, Option<Exec>), Fault> {
        self.write(move |sql| {
            let acquired = acquire(sql, &context, &ask)?;
            let Acquired::Granted { lease, sandbox, .. } = &acquired else { return Ok((acquired, None)) };
            // One that has yet to be made may fail to be, and then nothing was to run.
            if lease.admission != Admission::Warm {
                return Ok((acquired, None));
            }
            let owner = Owner { lease: lease.id, tenant: &lease.tenant, user: &lease.user };
            let exec = exec.clone().in_sandbox(sandbox.id, owner, context.now);
            match execs::begin(sql, &context, &exec)? {
                Begun::New => Ok((acquired, Some(exec))),
                Begun::Repeated(_) => Err(damaged("a new lease has an exec already")),
            }
        })
        .await
    }

    pub async fn lease(&self, id: LeaseId) -> Result<Option<Lease>, Fault> {
        self.read(move |sql| lease(sql, id)).await
    }

    pub async fn leases(&self, filter: LeaseFilter, page: Page) -> Result<Vec<Lease>, Fault> {
        self.read(move |sql| list(sql, &filter, &page)).await
    }

    /// A heartbeat. Refused as a conflict where the lease is over.
    pub async fn renew(&self, context: Context, id: LeaseId) -> Result<Lease, Fault> {
        self.write(move |sql| renew(sql, &context, id)).await
    }

    /// Changes what a lease says of egress, from what it says now. Refused as a conflict where the lease is over; without a
    /// change nothing is told.
    pub async fn change_egress(
        &self,
        context: Context,
        id: LeaseId,
        change: impl Fn(&LeaseEgress) -> Result<Option<LeaseEgress>, Fault> + Send + Sync + 'static,
    ) -> Result<Lease, Fault> {
        self.write(move |sql| change_egress(sql, &context, id, &change)).await
    }

    /// Ends a lease; one that has ended before is left as it is.
    pub async fn end_lease(
        &self,
        context: Context,
        id: LeaseId,
        because: LeaseEnd,
        after: AfterLease,
    ) -> Result<EndedLease, Fault> {
        self.write(move |sql| {
            let lease = lease(sql, id)?.ok_or_else(|| not_found("lease"))?;
            locks::tenant(sql, &lease.tenant)?;
            locks::node(sql, context.node)?;
            end(sql, &context, id, because, after)
        })
        .await
    }

    /// Ends leases whose time is over, some at a time: those of this node, and those of nodes that do not do it themselves.
    pub async fn expire_leases(&self, context: Context, most: u32) -> Result<Vec<EndedLease>, Fault> {
        self.write(move |sql| expire(sql, &context, most)).await
    }

    /// The sandbox of a lease has been given what its user brought.
    pub async fn prepared(&self, id: LeaseId) -> Result<(), Fault> {
        self.write(move |sql| {
            sql.run("UPDATE leases SET binding = NULL WHERE id = ?1", values![id]).map(drop)
        })
        .await
    }

    /// Active leases of a node whose sandbox may lack what its user brought, with that.
    pub async fn unprepared(&self, node: NodeId) -> Result<Vec<(LeaseId, Json)>, Fault> {
        self.read(move |sql| {
            let statement = "SELECT id, binding FROM leases WHERE node = ?1 AND status = 'ACTIVE' AND binding IS NOT NULL";
            let rows = sql.rows(statement, values![node])?;
            rows.into_iter()
                .map(|mut row| Ok((row.parsed()?, row.json::<queue::Parked>()?.into_binding())))
                .collect()
        })
        .await
    }

    /// How many leases a node has, by status: active and waiting.
    pub async fn count_leases(&self, node: NodeId) -> Result<(u64, u64), Fault> {
        self.read(move |sql| {
            let mut count = |status: LeaseStatus| {
                let statement = "SELECT COUNT(*) FROM leases WHERE node = ?1 AND status = ?2";
                sql.number(statement, values![node, status.name()]).map(i64::unsigned_abs)
            };
            Ok((count(LeaseStatus::Active)?, count(LeaseStatus::Queued)?))
        })
        .await
    }
}

fn acquire(sql: &mut dyn Sql, context: &Context, ask: &Acquire) -> Result<Acquired, Fault> {
    let tenant = tenants::tenant_alone(sql, &ask.tenant)?;
    if let Some(lease) = repeated(sql, ask)? {
        return Ok(Acquired::Repeated { lease });
    }
    locks::node(sql, context.node)?;
    let candidate = match ask.must_be_new {
        true => None,
        false => {
            let wanted = sandboxes::Wanted { target: &ask.target, tenant: &ask.tenant, user: &ask.user };
            sandboxes::ready_for(sql, context.node, wanted, &ask.preferred)?
        }
    };
    let waiting = queue::length(sql, context.node)?;
    let mut situation = Situation {
        idle: candidate.is_some().into(),
        waiting,
        longest_queue: ask.room.longest_queue,
        may_wait: ask.may_wait,
        quota: tenant.quota,
        used: tenants::usage_for(sql, &tenant)?,
        asked: Usage { leases: 1, execs: 0, ..ask.counts },
        ..Situation::default()
    };
    let mut spare = None;
    if situation.idle == 0 {
        situation.room = ask.room.sandboxes.saturating_sub(sandboxes::standing(sql, context.node)?);
        if situation.room == 0 {
            spare = sandboxes::spare(sql, context.node, &ask.target, &ask.room.kept)?;
            situation.spare = spare.is_some().into();
        }
    }
    let (admission, status, sandbox, evicted) = match admit(&situation) {
        Verdict::OverQuota(exceeded) => return Ok(Acquired::OverQuota(exceeded)),
        Verdict::Full => return Ok(Acquired::Full { waiting }),
        Verdict::Wait { position } => {
            let lease = insert(sql, context, ask, Admission::Queued, LeaseStatus::Queued, None)?;
            return Ok(Acquired::Waits { lease, position });
        }
        Verdict::Warm => {
            let ready = candidate.ok_or_else(|| damaged("a ready sandbox vanished"))?;
            let sandbox = sandboxes::take(sql, ready, &ask.tenant, &ask.user, ask.lease)?;
            (Admission::Warm, LeaseStatus::Active, sandbox, None)
        }
        Verdict::Cold { in_place_of_spare } => {
            let evicted = match spare.filter(|_| in_place_of_spare) {
                Some(spare) => {
                    sandboxes::evict(sql, spare)?;
                    Some(spare)
                }
                None => None,
            };
            let owner = (&ask.tenant, &ask.user, ask.lease);
            let sandbox = sandboxes::insert(sql, context, ask.sandbox, &ask.target, Some(owner))?;
            (Admission::Cold, LeaseStatus::Active, sandbox, evicted)
        }
    };
    let lease = insert(sql, context, ask, admission, status, Some(sandbox.id))?;
    Ok(Acquired::Granted { lease, sandbox, evicted })
}

fn repeated(sql: &mut dyn Sql, ask: &Acquire) -> Result<Option<Lease>, Fault> {
    let statement = format!(
        "SELECT fingerprint, {COLUMNS} FROM leases \
         WHERE tenant = ?1 AND user_name = ?2 AND workflow = ?3 AND request = ?4"
    );
    let before = sql.row(&statement, values![&ask.tenant, &ask.user, &ask.workflow, &ask.request])?;
    let Some(mut row) = before else { return Ok(None) };
    if row.text()? != ask.fingerprint {
        return Err(Fault::new(Kind::Conflict, "this request was made before and asked for something else")
            .hint("use another request id for another request"));
    }
    read(row).map(Some)
}

fn insert(
    sql: &mut dyn Sql,
    context: &Context,
    ask: &Acquire,
    admission: Admission,
    status: LeaseStatus,
    sandbox: Option<SandboxId>,
) -> Result<Lease, Fault> {
    let expires_at = until(context.now, ask.ttl_seconds);
    let unfinished = status == LeaseStatus::Queued || !ask.binding.is_null();
    let parked = unfinished.then(|| queue::Parked::new(&ask.target, &ask.binding).text()).transpose()?;
    sql.run(
        "INSERT INTO leases (id, tenant, user_name, workflow, request, fingerprint, template, sandbox, node, status, \
         admission, ttl_seconds, heartbeat_seconds, created_at, expires_at, millicpus, memory, one_shot, binding, egress, version) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, 1)",
        values![
            ask.lease,
            &ask.tenant,
            &ask.user,
            &ask.workflow,
            &ask.request,
            &ask.fingerprint,
            &ask.target.template,
            sandbox,
            context.node,
            status.name(),
            admission.name(),
            ask.ttl_seconds,
            ask.heartbeat_seconds,
            context.now,
            expires_at,
            ask.counts.millicpus,
            ask.counts.memory,
            ask.one_shot,
            parked,
            written(&ask.egress)?,
        ],
    )?;
    let lease = Lease {
        id: ask.lease,
        tenant: ask.tenant.clone(),
        user: ask.user.clone(),
        workflow: ask.workflow.clone(),
        request: ask.request.clone(),
        template: ask.target.template.clone(),
        sandbox,
        node: context.node,
        status,
        admission,
        ttl_seconds: ask.ttl_seconds,
        heartbeat_seconds: ask.heartbeat_seconds,
        created_at: context.now,
        expires_at,
        ended_at: None,
        ended_because: None,
        counts: Usage { leases: 1, execs: 0, ..ask.counts },
        one_shot: ask.one_shot,
        egress: ask.egress.clone(),
        version: 1,
    };
    tell(sql, context, &lease)?;
    audit::append(sql, context, "lease.acquire", &lease.id.to_string(), "ok", Some(admission.name().into()))?;
    Ok(lease)
}

/// An event of what the lease has become.
pub(crate) fn tell(sql: &mut dyn Sql, context: &Context, lease: &Lease) -> Result<(), Fault> {
    let kind = format!("lease.{}", lease.status.name().to_lowercase());
    let data = json!({
        "sandbox_id": lease.sandbox,
        "template": lease.template.name,
        "admission": lease.admission,
        "expires_at": lease.expires_at,
        "because": lease.ended_because,
    });
    events::emit(sql, &lease.tenant, context.now, &kind, &lease.id.to_string(), &data)
}

fn renew(sql: &mut dyn Sql, context: &Context, id: LeaseId) -> Result<Lease, Fault> {
    let lease = lease_alone(sql, id)?.ok_or_else(|| not_found("lease"))?;
    let renewed = lease
        .renewed(context.now)
        .map_err(|refusal| Fault::new(Kind::Conflict, refusal.to_string()).hint("acquire a new lease"))?;
    sql.run(
        "UPDATE leases SET expires_at = ?2, version = ?3 WHERE id = ?1",
        values![id, renewed.expires_at, renewed.version],
    )?;
    Ok(renewed)
}

fn change_egress(
    sql: &mut dyn Sql,
    context: &Context,
    id: LeaseId,
    change: &dyn Fn(&LeaseEgress) -> Result<Option<LeaseEgress>, Fault>,
) -> Result<Lease, Fault> {
    let lease = lease_alone(sql, id)?.ok_or_else(|| not_found("lease"))?;
    if lease.status.has_ended() {
        return Err(Fault::new(Kind::Conflict, format!("{id} has ended")).hint("acquire a new lease"));
    }
    let Some(egress) = change(&lease.egress)? else { return Ok(lease) };
    let changed = Lease { egress, version: lease.version + 1, ..lease };
    sql.run(
        "UPDATE leases SET egress = ?2, version = ?3 WHERE id = ?1",
        values![id, written(&changed.egress)?, changed.version],
    )?;
    // The policy itself is in the row; hosts that somebody reaches are nobody else's business.
    audit::append(sql, context, "egress.change", &id.to_string(), "ok", None)?;
    events::emit(sql, &changed.tenant, context.now, "lease.egress", &id.to_string(), &json!({}))?;
    Ok(changed)
}

/// Most leases say nothing.
fn written(egress: &LeaseEgress) -> Result<Option<Value>, Fault> {
    (!egress.is_default()).then(|| stored(egress)).transpose()
}

fn expire(sql: &mut dyn Sql, context: &Context, most: u32) -> Result<Vec<EndedLease>, Fault> {
    let long_ago = context.now.saturating_sub(ANOTHER_NODES).unwrap_or(Timestamp::MIN);
    let found = sql.rows(
        "SELECT id, tenant FROM leases WHERE status IN ('ACTIVE', 'QUEUED') AND expires_at <= ?1 \
         AND (node = ?2 OR expires_at <= ?3) ORDER BY expires_at LIMIT ?4",
        values![context.now, context.node, long_ago, most],
    )?;
    if found.is_empty() {
        return Ok(Vec::new());
    }
    let over: Vec<(LeaseId, Name)> =
        found.into_iter().map(|mut row| Ok((row.parsed()?, row.parsed()?))).collect::<Result<_, Fault>>()?;
    let tenants: BTreeSet<Name> = over.iter().map(|(_, tenant)| tenant.clone()).collect();
    locks::tenants_and_node(sql, &tenants, context.node)?;
    let mut ended = Vec::with_capacity(over.len());
    for (id, _) in over {
        // A heartbeat, or somebody else, may have come in between.
        match lease_alone(sql, id)? {
            Some(lease) if lease.is_over(context.now) => {
                ended.push(end(sql, context, id, LeaseEnd::TimeToLive, AfterLease::Destroy)?);
            }
            _ => {}
        }
    }
    Ok(ended)
}

/// The caller holds the tenant and the node.
pub(crate) fn end(
    sql: &mut dyn Sql,
    context: &Context,
    id: LeaseId,
    because: LeaseEnd,
    after: AfterLease,
) -> Result<EndedLease, Fault> {
    let lease = lease_alone(sql, id)?.ok_or_else(|| not_found("lease"))?;
    let Some(ended) = lease.ended(because, context.now) else {
        let sandbox = lease.sandbox.map(|id| sandboxes::sandbox(sql, id)).transpose()?.flatten();
        return Ok(EndedLease { lease, sandbox, just_now: false });
    };
    sql.run(
        "UPDATE leases SET status = ?2, ended_at = ?3, ended_because = ?4, binding = NULL, version = ?5 WHERE id = ?1",
        values![ended.id, ended.status.name(), context.now, because.name(), ended.version],
    )?;
    let sandbox = match ended.sandbox {
        Some(id) => sandboxes::leave(sql, context, id, &ended, after)?,
        None => None,
    };
    tell(sql, context, &ended)?;
    audit::append(sql, context, "lease.end", &ended.id.to_string(), "ok", Some(because.name().into()))?;
    Ok(EndedLease { lease: ended, sandbox, just_now: true })
}

pub(crate) fn lease(sql: &mut dyn Sql, id: LeaseId) -> Result<Option<Lease>, Fault> {
    sql.row(&format!("SELECT {COLUMNS} FROM leases WHERE id = ?1"), values![id])?.map(read).transpose()
}

pub(crate) fn lease_alone(sql: &mut dyn Sql, id: LeaseId) -> Result<Option<Lease>, Fault> {
    let lock = sql.and_lock();
    sql.row(&format!("SELECT {COLUMNS} FROM leases WHERE id = ?1{lock}"), values![id])?.map(read).transpose()
}

/// Leases that wait on a node, with what they wait for.
pub(crate) fn queued(sql: &mut dyn Sql, node: NodeId) -> Result<Vec<(Lease, queue::Parked)>, Fault> {
    let lock = sql.and_lock();
    let statement = format!(
        "SELECT binding, {COLUMNS} FROM leases WHERE node = ?1 AND status = 'QUEUED' ORDER BY created_at{lock}"
    );
    let rows = sql.rows(&statement, values![node])?;
    rows.into_iter()
        .map(|mut row| {
            let parked = row.json()?;
            Ok((read(row)?, parked))
        })
        .collect()
}

fn list(sql: &mut dyn Sql, filter: &LeaseFilter, page: &Page) -> Result<Vec<Lease>, Fault> {
    let rows = Conditions::default()
        .and("id > ?", values![page.after()])
        .and_if("tenant = ?", filter.tenant.as_ref())
        .and_if("user_name = ?", filter.user.as_ref())
        .and_if("status = ?", filter.status.map(LeaseStatus::name))
        .and_if("workflow = ?", filter.workflow.as_ref())
        .select(sql, COLUMNS, "leases", "id", page.one_more())?;
    rows.into_iter().map(read).collect()
}

pub(crate) fn read(mut row: Row) -> Result<Lease, Fault> {
    let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    Ok(Lease {
        id: row.parsed()?,
        tenant: row.parsed()?,
        user: row.parsed()?,
        workflow: row.text()?,
        request: row.text()?,
        template: row.parsed()?,
        sandbox: row.optional_parsed()?,
        node: row.parsed()?,
        status: row.one_of(&LeaseStatus::ALL, LeaseStatus::name)?,
        admission: row.one_of(&Admission::ALL, Admission::name)?,
        ttl_seconds: small(row.unsigned()?),
        heartbeat_seconds: row.optional_unsigned()?.map(small),
        created_at: row.time()?,
        expires_at: row.time()?,
        ended_at: row.optional_time()?,
        ended_because: row.optional_one_of(&LeaseEnd::ALL, LeaseEnd::name)?,
        counts: Usage { leases: 1, millicpus: row.unsigned()?, memory: row.unsigned()?, execs: 0 },
        one_shot: row.flag()?,
        egress: row.optional_json()?.unwrap_or_default(),
        version: row.int()?,
    })
}
