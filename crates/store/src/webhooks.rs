//! Who is told that a task has ended: endpoints that a tenant registered, and the listener that every task has.

mod deliveries;

use cubicle_model::webhook::EventType;
use cubicle_model::{EventId, Fault, Kind, Name, TaskId, Timestamp, WebhookId};
use serde_json::json as data;

use crate::sql::{Conditions, Row, Sql, damaged, json, values};
use crate::{Context, Page, Store, audit, events, locks, not_found, tenants};

pub(crate) use deliveries::enqueue;
pub use deliveries::{Attempt, Claimed, Delivery, DeliveryFilter};

/// Each of them is told of everything.
const MOST_OF_A_TENANT: i64 = 50;

/// A receiver that a tenant registered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    pub id: WebhookId,
    pub tenant: Name,
    pub url: String,
    pub events: Vec<EventType>,
    pub description: String,
    pub enabled: bool,
    /// Its secret, as whoever has the key made it.
    pub sealed: String,
    pub created_by: String,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

#[derive(Debug, Clone)]
pub struct NewEndpoint {
    pub id: WebhookId,
    pub tenant: Name,
    pub url: String,
    pub events: Vec<EventType>,
    pub description: String,
    pub enabled: bool,
    pub sealed: String,
}

/// What becomes of an endpoint; what is absent stays.
#[derive(Debug, Clone, Default)]
pub struct EndpointChange {
    pub url: Option<String>,
    pub description: Option<String>,
    pub enabled: Option<bool>,
}

/// Whoever waits for a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listener {
    pub task: TaskId,
    pub tenant: Name,
    pub conversation: String,
    pub notify_url: Option<String>,
}

/// The end of a task, as others are told of it.
#[derive(Debug, Clone)]
pub struct Told {
    pub tenant: Name,
    pub task: TaskId,
    /// The event of the same transaction.
    pub event: EventId,
    pub event_type: EventType,
    /// The task's last status.
    pub status: String,
    /// What is sent, in JSON.
    pub body: String,
    /// Counts where the task has no listener.
    pub notify_url: Option<String>,
}

/// What a call of a worker came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heard {
    pub event: EventId,
    /// As which the task has ended.
    pub status: String,
    /// Whether this call was the one that told of it.
    pub is_new: bool,
}

const COLUMNS: &str =
    "id, tenant, url, events, description, enabled, sealed, created_by, created_at, updated_at";

impl Store {
    pub async fn create_endpoint(&self, context: Context, new: NewEndpoint) -> Result<Endpoint, Fault> {
        self.write_durably(move |sql| {
            tenants::tenant_alone(sql, &new.tenant)?;
            let count = sql.number(
                "SELECT COUNT(*) FROM webhook_endpoints WHERE tenant = ?1",
                values![&new.tenant],
            )?;
            if count >= MOST_OF_A_TENANT {
                let text = format!("a tenant has at most {MOST_OF_A_TENANT} webhooks");
                return Err(Fault::new(Kind::Full, text).hint("remove some that nobody needs"));
            }
            let names: Vec<_> = new.events.iter().map(|event| event.name()).collect();
            sql.run(
                "INSERT INTO webhook_endpoints (id, tenant, url, events, description, enabled, sealed, created_by, \
                 created_at, updated_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?9)",
                values![
                    new.id,
                    &new.tenant,
                    &new.url,
                    json(&names)?,
                    &new.description,
                    new.enabled,
                    &new.sealed,
                    &context.actor.name,
                    context.now,
                ],
            )?;
            tell(sql, &context, "webhook.created", &new.tenant, new.id)?;
            one(sql, &new.tenant, new.id)?.ok_or_else(|| not_found("webhook"))
        })
        .await
    }

    pub async fn endpoint(&self, tenant: Name, id: WebhookId) -> Result<Option<Endpoint>, Fault> {
        self.read(move |sql| one(sql, &tenant, id)).await
    }

    pub async fn endpoints(&self, tenant: Name, page: Page) -> Result<Vec<Endpoint>, Fault> {
        self.read(move |sql| {
            let rows = Conditions::default()
                .and("tenant = ? AND id > ?", values![&tenant, page.after()])
                .select(sql, COLUMNS, "webhook_endpoints", "id", page.one_more())?;
            rows.into_iter().map(read).collect()
        })
        .await
    }

    pub async fn change_endpoint(
        &self,
        context: Context,
        tenant: Name,
        id: WebhookId,
        change: EndpointChange,
    ) -> Result<Endpoint, Fault> {
        self.write_durably(move |sql| {
            locks::tenant(sql, &tenant)?;
            let before = one(sql, &tenant, id)?.ok_or_else(|| not_found("webhook"))?;
            let url = change.url.clone().unwrap_or_else(|| before.url.clone());
            let description = change.description.clone().unwrap_or_else(|| before.description.clone());
            let enabled = change.enabled.unwrap_or(before.enabled);
            if (&url, &description, enabled) == (&before.url, &before.description, before.enabled) {
                return Ok(before);
            }
            sql.run(
                "UPDATE webhook_endpoints SET url = ?3, description = ?4, enabled = ?5, updated_at = ?6 \
                 WHERE tenant = ?1 AND id = ?2",
                values![&tenant, id, &url, &description, enabled, context.now],
            )?;
            tell(sql, &context, "webhook.changed", &tenant, id)?;
            one(sql, &tenant, id)?.ok_or_else(|| not_found("webhook"))
        })
        .await
    }

    /// What was not sent yet is not sent any more.
    pub async fn delete_endpoint(&self, context: Context, tenant: Name, id: WebhookId) -> Result<(), Fault> {
        self.write_durably(move |sql| {
            locks::tenant(sql, &tenant)?;
            locks::node(sql, context.node)?;
            let changed =
                sql.run("DELETE FROM webhook_endpoints WHERE tenant = ?1 AND id = ?2", values![&tenant, id])?;
            if changed == 0 {
                return Err(not_found("webhook"));
            }
            deliveries::withdraw(sql, id, context.now)?;
            tell(sql, &context, "webhook.removed", &tenant, id)
        })
        .await
    }

    pub async fn sealed_endpoints(&self) -> Result<Vec<Endpoint>, Fault> {
        self.read(|sql| {
            let statement = format!("SELECT {COLUMNS} FROM webhook_endpoints ORDER BY id");
            sql.rows(&statement, &[])?.into_iter().map(read).collect()
        })
        .await
    }

    /// The same secret under another key.
    pub async fn reseal_endpoint(
        &self,
        id: WebhookId,
        before: String,
        sealed: String,
    ) -> Result<bool, Fault> {
        self.write_durably(move |sql| {
            let changed = sql.run(
                "UPDATE webhook_endpoints SET sealed = ?3 WHERE id = ?1 AND sealed = ?2",
                values![id, &before, &sealed],
            )?;
            Ok(changed > 0)
        })
        .await
    }

    /// Says who waits for a task.
    pub async fn listen_for_task(&self, now: Timestamp, listener: Listener) -> Result<(), Fault> {
        self.write_durably(move |sql| listen(sql, now, &listener)).await
    }

    /// A worker says that its task has ended. The first call counts: whatever comes later gets the same event, and changes
    /// nothing.
    pub async fn worker_completed(
        &self,
        context: Context,
        task: TaskId,
        event_type: EventType,
        status: String,
        body: String,
    ) -> Result<Heard, Fault> {
        self.write_durably(move |sql| {
            let whose = "SELECT tenant FROM webhook_listeners WHERE task = ?1";
            let tenant: Name = sql.row(whose, values![task])?.ok_or_else(|| not_found("task"))?.parsed()?;
            // Before the listener is read: whoever ends a task holds its tenant, too.
            let mut series = events::Series::take(sql, &tenant)?;
            let before = "SELECT event, status FROM webhook_listeners WHERE task = ?1";
            let mut row = sql.row(before, values![task])?.ok_or_else(|| not_found("task"))?;
            if let Some(event) = row.optional_parsed()? {
                return Ok(Heard { event, status: row.text()?, is_new: false });
            }
            let event = EventId::from_random(sql.fresh());
            let about = data!({
                "event_type": event_type.name(),
                "source": "kubernetes",
                "task_id": task,
                "status": &status,
            });
            series.emit_as(sql, event, context.now, event_type.name(), &task.to_string(), &about)?;
            series.put_back(sql)?;
            let told = Told {
                tenant,
                task,
                event,
                event_type,
                status: status.clone(),
                body: body.clone(),
                notify_url: None,
            };
            enqueue(sql, context.now, &told)?;
            Ok(Heard { event, status: status.clone(), is_new: true })
        })
        .await
    }

    /// Listeners that were told so long ago.
    pub async fn forget_listeners(&self, before: Timestamp) -> Result<u64, Fault> {
        let some = "DELETE FROM webhook_listeners WHERE task IN (SELECT task FROM webhook_listeners \
            WHERE told_at < ?1 LIMIT ?2)";
        self.forget_in_parts(some, before, None).await
    }
}

/// Within the transaction that makes a task.
pub(crate) fn listen(sql: &mut dyn Sql, now: Timestamp, listener: &Listener) -> Result<(), Fault> {
    sql.run(
        "INSERT INTO webhook_listeners (task, tenant, conversation, notify_url, created_at) \
         VALUES (?1, ?2, ?3, ?4, ?5)",
        values![listener.task, &listener.tenant, &listener.conversation, listener.notify_url.clone(), now,],
    )
    .map(drop)
}

fn tell(sql: &mut dyn Sql, context: &Context, what: &str, tenant: &Name, id: WebhookId) -> Result<(), Fault> {
    let id = id.to_string();
    events::emit(sql, tenant, context.now, what, &id, &data!({ "webhook_id": &id }))?;
    audit::append(sql, context, what, &id, "ok", None)
}

fn one(sql: &mut dyn Sql, tenant: &Name, id: WebhookId) -> Result<Option<Endpoint>, Fault> {
    let statement = format!("SELECT {COLUMNS} FROM webhook_endpoints WHERE tenant = ?1 AND id = ?2");
    sql.row(&statement, values![tenant, id])?.map(read).transpose()
}

fn read(mut row: Row) -> Result<Endpoint, Fault> {
    Ok(Endpoint {
        id: row.parsed()?,
        tenant: row.parsed()?,
        url: row.text()?,
        events: known(&row.json::<Vec<String>>()?)?,
        description: row.text()?,
        enabled: row.flag()?,
        sealed: row.text()?,
        created_by: row.text()?,
        created_at: row.time()?,
        updated_at: row.time()?,
    })
}

fn known(names: &[String]) -> Result<Vec<EventType>, Fault> {
    let event = |name: &String| EventType::ALL.into_iter().find(|event| event.name() == name);
    names.iter().map(|name| event(name).ok_or_else(|| damaged("an unknown type of event"))).collect()
}
