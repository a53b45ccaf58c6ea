//! Webhooks: receivers, what they were told, and what a worker says when its task has ended.

use cubicle_model::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::SecretText;

fn enabled() -> bool {
    true
}

/// A receiver that is told of what happens to the tenant's tasks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateWebhook {
    /// Where it is told, by HTTP or HTTPS. Receivers in private networks must be allowed by the operator.
    #[schema(example = "https://assistant.example.com/hooks/cubicle", max_length = 2048)]
    pub url: String,
    /// What it is told of; everything when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = json!(["worker_completed"]), max_items = 16)]
    pub events: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 256)]
    pub description: Option<String>,
    #[serde(default = "enabled")]
    #[schema(default = true)]
    pub enabled: bool,
    /// What deliveries are signed with; one is made when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, min_length = 16, max_length = 512, write_only)]
    pub secret: Option<SecretText>,
}

/// What becomes of a webhook; what is absent stays.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeWebhook {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 2048)]
    pub url: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 256)]
    pub description: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Webhook {
    pub webhook_id: String,
    pub url: String,
    pub events: Vec<String>,
    pub description: String,
    /// False also for a receiver that answered 410 (gone).
    pub enabled: bool,
    pub created_by: String,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    pub updated_at: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NewWebhook {
    #[serde(flatten)]
    pub webhook: Webhook,
    /// Shown this once.
    pub secret: String,
}

/// Something that one receiver is told.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Delivery {
    /// The receiver gets it as `webhook-id`, the same with every attempt.
    pub delivery_id: String,
    /// Absent for the address that a task named itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook_id: Option<String>,
    pub url: String,
    pub event_type: String,
    /// Absent for a trial.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_id: Option<String>,
    /// What it is about: a task.
    pub subject: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation_id: Option<String>,
    /// `pending`, `delivered`, `dead` (given up) or `withdrawn` (its webhook was removed).
    pub state: String,
    pub attempts: u64,
    /// When it is sent, or sent again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub next_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_status: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub ended_at: Option<Timestamp>,
    /// Every attempt; not in lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub log: Vec<DeliveryAttempt>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DeliveryAttempt {
    pub number: u64,
    #[schema(value_type = String, format = DateTime)]
    pub time: Timestamp,
    pub took_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u64>,
    /// Why there was no answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The first kilobyte of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
}

/// What a worker says when its task has ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WorkerCompletion {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^worker_completed$")]
    pub event_type: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^kubernetes$")]
    pub source: Option<String>,
    #[schema(pattern = "^task-[a-z2-7]{26}$")]
    pub task_id: String,
    /// `success`, `failed`, `timeout` or `cancelled`.
    #[schema(pattern = "^(success|failed|timeout|cancelled)$")]
    pub status: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_seconds: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 1000)]
    pub output_files: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_message: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WorkerHeard {
    /// `accepted`.
    pub status: String,
    pub event_id: String,
}
