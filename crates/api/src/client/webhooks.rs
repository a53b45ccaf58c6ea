//! Webhooks and their deliveries.

use cubicle_model::{DeliveryId, WebhookId};
use hyper::Method;

use super::query::Query;
use super::{Call, Client, ClientError};
use crate::{ChangeWebhook, CreateWebhook, Delivery, NewWebhook, Webhook};

/// Which deliveries are wanted.
#[derive(Debug, Clone, Default)]
pub struct DeliveryQuery {
    pub webhook: Option<WebhookId>,
    pub task: Option<String>,
    pub state: Option<String>,
}

impl Client {
    pub async fn create_webhook(&self, asked: &CreateWebhook) -> Result<NewWebhook, ClientError> {
        self.answer(Call::json(Method::POST, "/api/v1/webhooks", asked)).await
    }

    pub async fn webhooks(&self) -> Result<Vec<Webhook>, ClientError> {
        self.pages("/api/v1/webhooks", Query::default(), usize::MAX).await
    }

    pub async fn change_webhook(&self, id: WebhookId, asked: &ChangeWebhook) -> Result<Webhook, ClientError> {
        self.answer(Call::json(Method::PATCH, format!("/api/v1/webhooks/{id}"), asked)).await
    }

    pub async fn delete_webhook(&self, id: WebhookId) -> Result<(), ClientError> {
        self.done(Call::new(Method::DELETE, format!("/api/v1/webhooks/{id}"))).await
    }

    pub async fn try_webhook(&self, id: WebhookId) -> Result<Delivery, ClientError> {
        self.answer(Call::new(Method::POST, format!("/api/v1/webhooks/{id}/test"))).await
    }

    /// The newest first, at most so many.
    pub async fn deliveries(&self, which: &DeliveryQuery, most: usize) -> Result<Vec<Delivery>, ClientError> {
        let query = Query::default()
            .maybe("webhook_id", which.webhook)
            .maybe("task_id", which.task.as_ref())
            .maybe("state", which.state.as_ref());
        self.pages("/api/v1/webhooks/deliveries", query, most).await
    }

    /// With every attempt.
    pub async fn delivery(&self, id: DeliveryId) -> Result<Delivery, ClientError> {
        self.get(format!("/api/v1/webhooks/deliveries/{id}")).await
    }

    pub async fn replay_delivery(&self, id: DeliveryId) -> Result<Delivery, ClientError> {
        self.answer(Call::new(Method::POST, format!("/api/v1/webhooks/deliveries/{id}/replay"))).await
    }
}
