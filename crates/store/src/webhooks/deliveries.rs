//! What receivers are told: rows that are made with the fact they tell of, claimed by one server at a time, and kept with
//! what every attempt came to.

use std::collections::BTreeMap;
use std::time::Duration;

use cubicle_model::webhook::{DeliveryState, Next, fair};
use cubicle_model::{DeliveryId, EventId, Fault, Kind, Name, NodeId, Timestamp, WebhookId};
use serde_json::json as data;

use super::{Endpoint, Told, read};
use crate::sql::{Conditions, Row, Sql, values};
use crate::{Context, Page, Store, audit, events, locks, not_found};

/// Among so many that are due a round chooses.
const LOOKED_AT: u64 = 512;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    pub id: DeliveryId,
    pub tenant: Name,
    /// Absent for the address that a task named itself.
    pub endpoint: Option<WebhookId>,
    pub url: String,
    pub event_type: String,
    /// Absent for a trial.
    pub event: Option<EventId>,
    /// What it is about: a task.
    pub subject: String,
    pub conversation: Option<String>,
    pub body: String,
    pub state: DeliveryState,
    pub attempts: u64,
    /// When it is sent again, while it is pending.
    pub next_at: Timestamp,
    pub last_status: Option<u64>,
    pub last_error: Option<String>,
    pub created_at: Timestamp,
    pub ended_at: Option<Timestamp>,
}

/// A delivery that is this server's to send, for some time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claimed {
    pub delivery: Delivery,
    /// The attempt after this many.
    pub tries: u64,
    /// Sealed; absent where the task named the address itself.
    pub endpoint: Option<Endpoint>,
    claim: i64,
}

/// What one attempt came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    pub number: u64,
    pub time: Timestamp,
    pub took: Duration,
    pub status: Option<u64>,
    pub error: Option<String>,
    /// The beginning of what the receiver said.
    pub answer: Option<String>,
}

#[derive(Debug, Clone, Default)]
pub struct DeliveryFilter {
    pub tenant: Option<Name>,
    pub endpoint: Option<WebhookId>,
    pub subject: Option<String>,
    pub state: Option<DeliveryState>,
}

const COLUMNS: &str = "id, tenant, endpoint, url, event_type, event, subject, conversation, body, state, attempts, \
    next_at, last_status, last_error, created_at, ended_at";

impl Store {
    /// Takes deliveries that are due, no more than `most_of_one` of a tenant at a time. Until `lasting` is over nobody else
    /// sends them.
    pub async fn claim_deliveries(
        &self,
        node: NodeId,
        now: Timestamp,
        most: usize,
        most_of_one: u64,
        lasting: Duration,
    ) -> Result<Vec<Claimed>, Fault> {
        self.write(move |sql| {
            let busy = sql.rows(
                "SELECT tenant, COUNT(*) FROM webhook_deliveries WHERE state = 'pending' AND claimed_until > ?1 \
                 GROUP BY tenant",
                values![now],
            )?;
            let busy: BTreeMap<Name, u64> = busy
                .into_iter()
                .map(|mut row| Ok((row.parsed()?, row.unsigned()?)))
                .collect::<Result<_, Fault>>()?;
            let statement = format!(
                "SELECT id, tenant FROM webhook_deliveries WHERE state = 'pending' AND next_at <= ?1 \
                 AND (claimed_until IS NULL OR claimed_until <= ?1) ORDER BY next_at LIMIT ?2{}",
                sql.and_lock_free_ones()
            );
            let due = sql.rows(&statement, values![now, LOOKED_AT])?;
            let due: Vec<(DeliveryId, Name)> = due
                .into_iter()
                .map(|mut row| Ok((row.parsed()?, row.parsed()?)))
                .collect::<Result<_, Fault>>()?;
            let until = after(now, lasting);
            let mut claimed = Vec::new();
            for id in fair(due, &busy, most, most_of_one) {
                sql.run(
                    "UPDATE webhook_deliveries SET claim = claim + 1, claimed_by = ?2, claimed_until = ?3 WHERE id = ?1",
                    values![id, node, until],
                )?;
                let statement = format!("SELECT {COLUMNS}, tries, claim FROM webhook_deliveries WHERE id = ?1");
                let mut row = sql.row(&statement, values![id])?.ok_or_else(|| not_found("delivery"))?;
                let delivery = delivery(&mut row)?;
                let (tries, claim) = (row.unsigned()?, row.int()?);
                let endpoint = match delivery.endpoint {
                    Some(endpoint) => super::one(sql, &delivery.tenant, endpoint)?,
                    None => None,
                };
                claimed.push(Claimed { delivery, tries, endpoint, claim });
            }
            Ok(claimed)
        })
        .await
    }

    /// Notes what an attempt came to. Says whether the claim still held: otherwise somebody else has it now, or it is gone,
    /// and nothing is noted.
    pub async fn note_attempt(
        &self,
        context: Context,
        claimed: Claimed,
        attempt: Attempt,
        next: Next,
    ) -> Result<bool, Fault> {
        self.write(move |sql| {
            let Delivery { id, tenant, .. } = &claimed.delivery;
            if matches!(next, Next::Dead | Next::Gone) {
                locks::tenant(sql, tenant)?;
                locks::node(sql, context.node)?;
            }
            let (state, next_at) = match next {
                Next::Delivered => (DeliveryState::Delivered, context.now),
                Next::Again { after: pause } => (DeliveryState::Pending, after(context.now, pause)),
                Next::Dead | Next::Gone => (DeliveryState::Dead, context.now),
            };
            let ended = (state != DeliveryState::Pending).then_some(context.now);
            let changed = sql.run(
                "UPDATE webhook_deliveries SET state = ?3, attempts = attempts + 1, tries = tries + 1, next_at = ?4, \
                 claimed_by = NULL, claimed_until = NULL, last_status = ?5, last_error = ?6, ended_at = ?7 \
                 WHERE id = ?1 AND claim = ?2 AND state = 'pending'",
                values![
                    *id,
                    claimed.claim,
                    state.name(),
                    next_at,
                    attempt.status,
                    attempt.error.clone(),
                    ended,
                ],
            )?;
            if changed == 0 {
                return Ok(false);
            }
            sql.run(
                "INSERT INTO webhook_attempts (delivery, number, time, took_ms, status, error, answer) \
                 SELECT id, attempts, ?2, ?3, ?4, ?5, ?6 FROM webhook_deliveries WHERE id = ?1",
                values![
                    *id,
                    attempt.time,
                    u64::try_from(attempt.took.as_millis()).unwrap_or(u64::MAX),
                    attempt.status,
                    attempt.error.clone(),
                    attempt.answer.clone(),
                ],
            )?;
            if matches!(next, Next::Dead | Next::Gone) {
                gave_up(sql, &context, &claimed, &attempt, next == Next::Gone)?;
            }
            Ok(true)
        })
        .await
    }

    /// What a server that ended in between had under way is due again.
    pub async fn release_claims(&self, node: NodeId) -> Result<u64, Fault> {
        self.write(move |sql| {
            sql.run(
                "UPDATE webhook_deliveries SET claim = claim + 1, claimed_by = NULL, claimed_until = NULL \
                 WHERE claimed_by = ?1 AND state = 'pending'",
                values![node],
            )
        })
        .await
    }

    /// When the next delivery is due.
    pub async fn next_delivery(&self) -> Result<Option<Timestamp>, Fault> {
        self.read(|sql| {
            let statement = "SELECT next_at FROM webhook_deliveries WHERE state = 'pending' AND claimed_by IS NULL \
                ORDER BY next_at LIMIT 1";
            sql.row(statement, &[])?.map(|mut row| row.time()).transpose()
        })
        .await
    }

    /// The newest first.
    pub async fn deliveries(&self, filter: DeliveryFilter, page: Page) -> Result<Vec<Delivery>, Fault> {
        self.read(move |sql| {
            let conditions = Conditions::default()
                .and_if("tenant = ?", filter.tenant.as_ref())
                .and_if("endpoint = ?", filter.endpoint)
                .and_if("subject = ?", filter.subject.as_ref())
                .and_if("state = ?", filter.state.map(DeliveryState::name));
            let conditions = match &page.after {
                Some(cursor) => {
                    let (time, id) = position(cursor)?;
                    conditions.and("(created_at, id) < (?, ?)", values![time, id])
                }
                None => conditions,
            };
            let order = "created_at DESC, id DESC";
            let rows = conditions.select(sql, COLUMNS, "webhook_deliveries", order, page.one_more())?;
            rows.into_iter().map(|mut row| delivery(&mut row)).collect()
        })
        .await
    }

    /// With every attempt, the first one first.
    pub async fn delivery(&self, id: DeliveryId) -> Result<Option<(Delivery, Vec<Attempt>)>, Fault> {
        self.read(move |sql| {
            let Some(delivery) = find(sql, id)? else { return Ok(None) };
            let rows = sql.rows(
                "SELECT number, time, took_ms, status, error, answer FROM webhook_attempts WHERE delivery = ?1 \
                 ORDER BY number",
                values![id],
            )?;
            let attempts = rows.into_iter().map(attempt).collect::<Result<_, Fault>>()?;
            Ok(Some((delivery, attempts)))
        })
        .await
    }

    /// Sends it again, as often as a new one. Receivers know it by its id.
    pub async fn replay_delivery(
        &self,
        context: Context,
        tenant: Name,
        id: DeliveryId,
    ) -> Result<Delivery, Fault> {
        self.write_durably(move |sql| {
            locks::node(sql, context.node)?;
            let before = find(sql, id)?.filter(|delivery| delivery.tenant == tenant);
            let before = before.ok_or_else(|| not_found("delivery"))?;
            if let Some(endpoint) = before.endpoint
                && super::one(sql, &tenant, endpoint)?.is_none()
            {
                return Err(Fault::new(Kind::Conflict, "the webhook of this delivery was removed")
                    .hint("register it again; what happened is told by the task itself"));
            }
            // Whoever sends it right now notes nothing any more.
            sql.run(
                "UPDATE webhook_deliveries SET state = 'pending', tries = 0, next_at = ?2, claim = claim + 1, \
                 claimed_by = NULL, claimed_until = NULL, ended_at = NULL WHERE id = ?1",
                values![id, context.now],
            )?;
            audit::append(sql, &context, "webhook.replayed", &id.to_string(), "ok", None)?;
            find(sql, id)?.ok_or_else(|| not_found("delivery"))
        })
        .await
    }

    /// Tells one endpoint something that did not happen, to see whether it hears.
    pub async fn try_endpoint(
        &self,
        context: Context,
        tenant: Name,
        endpoint: WebhookId,
        event_type: String,
        body: String,
    ) -> Result<Delivery, Fault> {
        self.write_durably(move |sql| {
            locks::node(sql, context.node)?;
            let to = super::one(sql, &tenant, endpoint)?.ok_or_else(|| not_found("webhook"))?;
            let new = New {
                tenant: &tenant,
                endpoint: Some(endpoint),
                url: &to.url,
                event_type: &event_type,
                event: None,
                subject: &endpoint.to_string(),
                conversation: None,
                body: &body,
            };
            let id = insert(sql, context.now, &new)?;
            audit::append(sql, &context, "webhook.tried", &endpoint.to_string(), "ok", Some(id.to_string()))?;
            find(sql, id)?.ok_or_else(|| not_found("delivery"))
        })
        .await
    }

    /// Of those that have ended, with their attempts.
    pub async fn forget_deliveries(&self, before: Timestamp) -> Result<u64, Fault> {
        const PART: u64 = 500;
        let mut sum = 0;
        loop {
            let forgotten = self
                .write(move |sql| {
                    let rows = sql.rows(
                        "SELECT id FROM webhook_deliveries WHERE ended_at < ?1 ORDER BY ended_at LIMIT ?2",
                        values![before, PART],
                    )?;
                    let mut forgotten = 0;
                    for mut row in rows {
                        let id = row.text()?;
                        // One that was replayed in between stays, and so do its attempts.
                        let gone = sql.run(
                            "DELETE FROM webhook_deliveries WHERE id = ?1 AND ended_at < ?2",
                            values![&id, before],
                        )?;
                        if gone > 0 {
                            sql.run("DELETE FROM webhook_attempts WHERE delivery = ?1", values![&id])?;
                        }
                        forgotten += gone;
                    }
                    Ok(forgotten)
                })
                .await?;
            sum += forgotten;
            if forgotten < PART {
                return Ok(sum);
            }
        }
    }
}

/// Within the transaction that ends a task: one delivery for each endpoint that listens, and one for the address that the
/// task named. Says how many; whoever waited and was told before is not told again.
pub(crate) fn enqueue(sql: &mut dyn Sql, now: Timestamp, told: &Told) -> Result<u64, Fault> {
    let noted = sql.run(
        "UPDATE webhook_listeners SET event = ?2, status = ?3, told_at = ?4 WHERE task = ?1 AND event IS NULL",
        values![told.task, told.event, &told.status, now],
    )?;
    let listener = sql
        .row("SELECT conversation, notify_url FROM webhook_listeners WHERE task = ?1", values![told.task])?;
    let (conversation, notify_url) = match listener {
        Some(_) if noted == 0 => return Ok(0),
        Some(mut row) => (Some(row.text()?), row.optional_text()?),
        None => (None, None),
    };
    let notify_url = notify_url.or_else(|| told.notify_url.clone());
    let statement = format!(
        "SELECT {} FROM webhook_endpoints WHERE tenant = ?1 AND enabled = 1 ORDER BY id",
        super::COLUMNS
    );
    let endpoints = sql.rows(&statement, values![&told.tenant])?;
    let endpoints = endpoints.into_iter().map(read).collect::<Result<Vec<_>, Fault>>()?;
    let listening = endpoints.iter().filter(|endpoint| endpoint.events.contains(&told.event_type));
    let mut targets: Vec<_> = listening.map(|one| (Some(one.id), one.url.clone())).collect();
    // An endpoint has a secret of its own, and goes before the same address without one.
    if let Some(url) = notify_url.filter(|url| targets.iter().all(|(_, known)| known != url)) {
        targets.push((None, url));
    }
    for (endpoint, url) in &targets {
        let new = New {
            tenant: &told.tenant,
            endpoint: *endpoint,
            url,
            event_type: told.event_type.name(),
            event: Some(told.event),
            subject: &told.task.to_string(),
            conversation: conversation.as_deref(),
            body: &told.body,
        };
        insert(sql, now, &new)?;
    }
    Ok(targets.len() as u64)
}

pub(super) fn withdraw(sql: &mut dyn Sql, endpoint: WebhookId, now: Timestamp) -> Result<(), Fault> {
    sql.run(
        "UPDATE webhook_deliveries SET state = 'withdrawn', claim = claim + 1, claimed_by = NULL, \
         claimed_until = NULL, ended_at = ?2 WHERE endpoint = ?1 AND state = 'pending'",
        values![endpoint, now],
    )
    .map(drop)
}

struct New<'a> {
    tenant: &'a Name,
    endpoint: Option<WebhookId>,
    url: &'a str,
    event_type: &'a str,
    event: Option<EventId>,
    subject: &'a str,
    conversation: Option<&'a str>,
    body: &'a str,
}

fn insert(sql: &mut dyn Sql, now: Timestamp, new: &New<'_>) -> Result<DeliveryId, Fault> {
    let id = DeliveryId::from_random(sql.fresh());
    sql.run(
        "INSERT INTO webhook_deliveries (id, tenant, endpoint, url, event_type, event, subject, conversation, body, \
         state, attempts, tries, next_at, claim, created_at) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, 'pending', 0, 0, ?10, 0, ?10)",
        values![
            id,
            new.tenant,
            new.endpoint,
            new.url,
            new.event_type,
            new.event,
            new.subject,
            new.conversation,
            new.body,
            now,
        ],
    )?;
    Ok(id)
}

fn gave_up(
    sql: &mut dyn Sql,
    context: &Context,
    claimed: &Claimed,
    attempt: &Attempt,
    is_gone: bool,
) -> Result<(), Fault> {
    let Delivery { id, tenant, endpoint, subject, .. } = &claimed.delivery;
    let about = data!({
        "delivery_id": id,
        "webhook_id": endpoint,
        "subject": subject,
        "status": attempt.status,
        "error": attempt.error,
    });
    events::emit(sql, tenant, context.now, "webhook.delivery_dead", &id.to_string(), &about)?;
    let Some(endpoint) = endpoint.filter(|_| is_gone) else { return Ok(()) };
    let disabled = sql.run(
        "UPDATE webhook_endpoints SET enabled = 0, updated_at = ?3 WHERE tenant = ?1 AND id = ?2 AND enabled = 1",
        values![tenant, endpoint, context.now],
    )?;
    if disabled > 0 {
        let about = data!({ "webhook_id": endpoint, "because": "it answered 410 (gone)" });
        events::emit(sql, tenant, context.now, "webhook.disabled", &endpoint.to_string(), &about)?;
        let detail = Some("it answered 410 (gone)".to_owned());
        audit::append(sql, context, "webhook.disabled", &endpoint.to_string(), "ok", detail)?;
    }
    Ok(())
}

/// A cursor is a time in milliseconds and an id: `1763430000000/dlv-…`.
fn position(cursor: &str) -> Result<(i64, &str), Fault> {
    let parts = cursor.split_once('/').and_then(|(time, id)| Some((time.parse().ok()?, id)));
    parts.ok_or_else(|| {
        Fault::new(Kind::Invalid, "this is not where a page of deliveries ends")
            .hint("begin without a cursor")
    })
}

impl Delivery {
    /// Where a page ends that ends with it.
    pub fn cursor(&self) -> String {
        format!("{}/{}", self.created_at.as_millisecond(), self.id)
    }
}

fn after(now: Timestamp, pause: Duration) -> Timestamp {
    let millis = i64::try_from(pause.as_millis()).unwrap_or(i64::MAX);
    Timestamp::from_millisecond(now.as_millisecond().saturating_add(millis)).unwrap_or(Timestamp::MAX)
}

fn find(sql: &mut dyn Sql, id: DeliveryId) -> Result<Option<Delivery>, Fault> {
    let statement = format!("SELECT {COLUMNS} FROM webhook_deliveries WHERE id = ?1");
    sql.row(&statement, values![id])?.map(|mut row| delivery(&mut row)).transpose()
}

fn delivery(row: &mut Row) -> Result<Delivery, Fault> {
    Ok(Delivery {
        id: row.parsed()?,
        tenant: row.parsed()?,
        endpoint: row.optional_parsed()?,
        url: row.text()?,
        event_type: row.text()?,
        event: row.optional_parsed()?,
        subject: row.text()?,
        conversation: row.optional_text()?,
        body: row.text()?,
        state: row.one_of(&DeliveryState::ALL, DeliveryState::name)?,
        attempts: row.unsigned()?,
        next_at: row.time()?,
        last_status: row.optional_unsigned()?,
        last_error: row.optional_text()?,
        created_at: row.time()?,
        ended_at: row.optional_time()?,
    })
}

fn attempt(mut row: Row) -> Result<Attempt, Fault> {
    Ok(Attempt {
        number: row.unsigned()?,
        time: row.time()?,
        took: Duration::from_millis(row.unsigned()?),
        status: row.optional_unsigned()?,
        error: row.optional_text()?,
        answer: row.optional_text()?,
    })
}
