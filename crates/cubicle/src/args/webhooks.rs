//! `cubicle webhooks`: who is told that tasks have ended.

use clap::{Args, Subcommand};
use cubicle_model::{DeliveryId, TaskId, WebhookId};

use super::local::Shape;
use super::texts;

#[derive(Debug, Subcommand)]
pub(crate) enum Webhooks {
    /// Register a receiver; its secret is printed this once
    #[command(after_help = texts::WEBHOOKS_ADD)]
    Add(WebhookAdd),
    /// List receivers, without their secrets
    #[command(visible_alias = "ls")]
    List(Shape),
    /// Remove receivers; what was not delivered yet is withdrawn
    Rm(WebhookIds),
    /// Tell receivers things again, after one answered that it is gone, or was disabled
    Enable(WebhookIds),
    /// Tell receivers nothing until they are enabled again
    Disable(WebhookIds),
    /// Send a receiver a ping, to see whether it hears
    Test(WebhookTest),
    /// List what receivers were told, the newest first, or show every attempt of one delivery
    Deliveries(WebhookDeliveries),
    /// Send deliveries again, also those that were given up
    Replay(WebhookReplay),
}

#[derive(Debug, Args)]
pub(crate) struct WebhookAdd {
    #[command(flatten)]
    pub(crate) shape: Shape,

    /// Where it is told, as https://host.example/path
    #[arg(value_name = "URL")]
    pub(crate) url: String,

    /// What it is told of: worker_completed; may be repeated [default: everything]
    #[arg(long = "event", value_name = "TYPE")]
    pub(crate) events: Vec<String>,

    /// What you call it
    #[arg(long, value_name = "TEXT")]
    pub(crate) description: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct WebhookIds {
    /// The webhooks, as 'cubicle webhooks list' shows them
    #[arg(value_name = "WEBHOOK", required = true)]
    pub(crate) ids: Vec<WebhookId>,
}

#[derive(Debug, Args)]
pub(crate) struct WebhookTest {
    #[command(flatten)]
    pub(crate) shape: Shape,

    /// The webhook, as 'cubicle webhooks list' shows it
    #[arg(value_name = "WEBHOOK")]
    pub(crate) id: WebhookId,
}

#[derive(Debug, Args)]
pub(crate) struct WebhookDeliveries {
    #[command(flatten)]
    pub(crate) shape: Shape,

    /// Only this one, with every attempt
    #[arg(value_name = "DELIVERY", conflicts_with_all = ["webhook", "task", "state"])]
    pub(crate) id: Option<DeliveryId>,

    /// Only to this webhook
    #[arg(long, value_name = "WEBHOOK")]
    pub(crate) webhook: Option<WebhookId>,

    /// Only about this task
    #[arg(long, value_name = "TASK")]
    pub(crate) task: Option<TaskId>,

    /// Only pending, delivered, dead or withdrawn ones
    #[arg(long, value_name = "STATE", value_parser = ["pending", "delivered", "dead", "withdrawn"])]
    pub(crate) state: Option<String>,

    /// The newest of them, at most so many
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) limit: usize,
}

#[derive(Debug, Args)]
pub(crate) struct WebhookReplay {
    /// The deliveries, as 'cubicle webhooks deliveries' shows them
    #[arg(value_name = "DELIVERY", required = true)]
    pub(crate) ids: Vec<DeliveryId>,
}
