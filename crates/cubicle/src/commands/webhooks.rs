//! `cubicle webhooks`: who is told that tasks have ended, and what came of it.

use cubicle_api as api;
use cubicle_api::client::{Client, DeliveryQuery};
use cubicle_model::{DeliveryId, Fault, Timestamp};

use crate::args::{WebhookAdd, WebhookDeliveries, Webhooks};
use crate::context::Context;
use crate::control_plane;
use crate::failure::{Ending, note};
use crate::table::{Table, ago, ahead, or_dash};

pub(crate) async fn webhooks(verb: &Webhooks, context: &Context) -> Result<Ending, Fault> {
    let client = control_plane::client(context)?;
    match verb {
        Webhooks::Add(args) => add(args, &client).await?,
        Webhooks::List(shape) => {
            let mut all = client.webhooks().await?;
            all.sort_by_key(|webhook| webhook.created_at);
            match shape.json {
                true => super::print_json(&all)?,
                false => super::print(&table(&all, Timestamp::now()))?,
            }
        }
        Webhooks::Rm(args) => {
            for id in &args.ids {
                client.delete_webhook(*id).await?;
            }
        }
        Webhooks::Enable(args) | Webhooks::Disable(args) => {
            let enabled = Some(matches!(verb, Webhooks::Enable(_)));
            for id in &args.ids {
                client.change_webhook(*id, &api::ChangeWebhook { enabled, ..Default::default() }).await?;
            }
        }
        Webhooks::Test(args) => {
            let made = client.try_webhook(args.id).await?;
            match args.shape.json {
                true => super::print_json(&made)?,
                false => super::print(&format!("{}\n", made.delivery_id))?,
            }
        }
        Webhooks::Deliveries(args) => deliveries(args, &client).await?,
        Webhooks::Replay(args) => {
            for id in &args.ids {
                client.replay_delivery(*id).await?;
            }
        }
    }
    Ok(super::DONE)
}

async fn add(args: &WebhookAdd, client: &Client) -> Result<(), Fault> {
    let asked = api::CreateWebhook {
        url: args.url.clone(),
        events: Some(args.events.clone()).filter(|events| !events.is_empty()),
        description: args.description.clone(),
        enabled: true,
        secret: None,
    };
    let made = client.create_webhook(&asked).await?;
    if args.shape.json {
        return super::print_json(&made);
    }
    note(&format!("{} is told; its secret is not shown again", made.webhook.webhook_id));
    super::print(&format!("{}\n", made.secret))
}

async fn deliveries(args: &WebhookDeliveries, client: &Client) -> Result<(), Fault> {
    if let Some(id) = args.id {
        return one(id, args.shape.json, client).await;
    }
    let which = DeliveryQuery {
        webhook: args.webhook,
        task: args.task.map(|task| task.to_string()),
        state: args.state.clone(),
    };
    let all = client.deliveries(&which, args.limit).await?;
    match args.shape.json {
        true => super::print_json(&all),
        false => super::print(&delivery_table(&all, Timestamp::now())),
    }
}

async fn one(id: DeliveryId, json: bool, client: &Client) -> Result<(), Fault> {
    let delivery = client.delivery(id).await?;
    if json {
        return super::print_json(&delivery);
    }
    let log = attempt_table(&delivery.log, Timestamp::now());
    super::print(&delivery_table(&[delivery], Timestamp::now()))?;
    super::print(&format!("\n{log}"))
}

fn table(webhooks: &[api::Webhook], now: Timestamp) -> String {
    let mut table = Table::new(["WEBHOOK", "URL", "EVENTS", "ENABLED", "DESCRIPTION", "AGE"]);
    for webhook in webhooks {
        table.row([
            webhook.webhook_id.clone(),
            webhook.url.clone(),
            webhook.events.join(","),
            if webhook.enabled { "yes" } else { "no" }.into(),
            or_dash(Some(webhook.description.clone()).filter(|text| !text.is_empty())),
            ago(webhook.created_at, now),
        ]);
    }
    table.to_string()
}

fn delivery_table(deliveries: &[api::Delivery], now: Timestamp) -> String {
    let mut table =
        Table::new(["DELIVERY", "WEBHOOK", "EVENT", "SUBJECT", "STATE", "ATTEMPTS", "LAST", "AGE", "NEXT"]);
    for one in deliveries {
        let last = one.last_status.map(|status| status.to_string()).or_else(|| one.last_error.clone());
        table.row([
            one.delivery_id.clone(),
            or_dash(one.webhook_id.clone()),
            one.event_type.clone(),
            one.subject.clone(),
            one.state.clone(),
            one.attempts.to_string(),
            or_dash(last),
            ago(one.created_at, now),
            or_dash(one.next_at.map(|next| ahead(next, now))),
        ]);
    }
    table.to_string()
}

fn attempt_table(attempts: &[api::DeliveryAttempt], now: Timestamp) -> String {
    let mut table = Table::new(["ATTEMPT", "AGE", "TOOK", "STATUS", "ERROR", "ANSWER"]);
    for one in attempts {
        table.row([
            one.number.to_string(),
            ago(one.time, now),
            format!("{}ms", one.took_ms),
            or_dash(one.status.map(|status| status.to_string())),
            or_dash(one.error.clone()),
            or_dash(one.answer.clone()),
        ]);
    }
    table.to_string()
}
