//! Receivers of a tenant, what they were told, and what workers tell us.

use std::sync::Arc;

use cubicle_egress::secret::Secret;
use cubicle_model::webhook::{EventType, Receiver};
use cubicle_model::{DeliveryId, EventId, Fault, Kind, Name, Scope, SecretName, WebhookId};
use cubicle_store::{
    Actor, Attempt, Context, Delivery, DeliveryFilter, Endpoint, EndpointChange, NewEndpoint, Page,
};
use cubicle_worker::Completion;
use serde_json::json;
use tracing::info;

use super::{App, Caller};
use crate::auth::Spender;
use crate::secrets::Whose;
use crate::webhooks::{Call, Unheard, new_secret};

const LONGEST_DESCRIPTION: usize = 256;
/// Short ones can be guessed.
const SHORTEST_SECRET: usize = 16;
const LONGEST_SECRET: usize = 512;
/// What a trial is called. No task has ended.
const TRIAL: &str = "ping";
/// Refused calls that the audit log takes in a second: whoever makes them needs no key.
const REFUSALS_PER_SECOND: u32 = 5;

/// What an endpoint is asked to be.
#[derive(Debug)]
pub(crate) struct EndpointRequest {
    pub(crate) url: String,
    pub(crate) events: Option<Vec<String>>,
    pub(crate) description: Option<String>,
    pub(crate) enabled: bool,
    /// Absent has one made.
    pub(crate) secret: Option<Secret>,
}

impl App {
    /// A receiver, and its secret, which nobody can see again.
    pub(crate) async fn create_webhook(
        self: &Arc<Self>,
        caller: &Caller,
        asked: EndpointRequest,
    ) -> Result<(Endpoint, String), Fault> {
        caller.must(Scope::Manage)?;
        self.receiver(&asked.url)?;
        let events = event_types(asked.events)?;
        let description = described(asked.description.unwrap_or_default())?;
        let secret = match asked.secret {
            Some(secret) => own_secret(&secret)?,
            None => new_secret(self.surroundings.bits()),
        };
        let id = WebhookId::from_random(self.surroundings.bits());
        let new = NewEndpoint {
            id,
            tenant: caller.tenant().clone(),
            url: asked.url,
            events,
            description,
            enabled: asked.enabled,
            sealed: self.seal_webhook(caller.tenant(), id, secret.as_bytes())?,
        };
        let (app, context) = (Arc::clone(self), caller.context(self));
        let made = self.to_its_end(async move { app.store.create_endpoint(context, new).await }).await?;
        self.tell();
        Ok((made, secret))
    }

    pub(crate) async fn webhooks(&self, caller: &Caller, page: Page) -> Result<Vec<Endpoint>, Fault> {
        caller.must(Scope::Manage)?;
        self.store.endpoints(caller.tenant().clone(), page).await
    }

    pub(crate) async fn webhook(&self, caller: &Caller, id: WebhookId) -> Result<Endpoint, Fault> {
        caller.must(Scope::Manage)?;
        let found = self.store.endpoint(caller.tenant().clone(), id).await?;
        found.ok_or_else(|| Fault::new(Kind::NotFound, format!("there is no webhook {id}")))
    }

    pub(crate) async fn change_webhook(
        &self,
        caller: &Caller,
        id: WebhookId,
        change: EndpointChange,
    ) -> Result<Endpoint, Fault> {
        caller.must(Scope::Manage)?;
        if let Some(url) = &change.url {
            self.receiver(url)?;
        }
        if let Some(description) = &change.description {
            described(description.clone())?;
        }
        let changed =
            self.store.change_endpoint(caller.context(self), caller.tenant().clone(), id, change).await?;
        self.tell();
        Ok(changed)
    }

    pub(crate) async fn remove_webhook(&self, caller: &Caller, id: WebhookId) -> Result<(), Fault> {
        caller.must(Scope::Manage)?;
        self.store.delete_endpoint(caller.context(self), caller.tenant().clone(), id).await?;
        self.tell();
        Ok(())
    }

    /// Tells an endpoint something, to see whether it hears.
    pub(crate) async fn try_webhook(&self, caller: &Caller, id: WebhookId) -> Result<Delivery, Fault> {
        caller.must(Scope::Manage)?;
        let body =
            json!({ "event_type": TRIAL, "source": cubicle_worker::completion::SOURCE, "webhook_id": id });
        let tenant = caller.tenant().clone();
        let made =
            self.store.try_endpoint(caller.context(self), tenant, id, TRIAL.into(), body.to_string()).await?;
        self.webhooks.wake();
        Ok(made)
    }

    /// The newest first.
    pub(crate) async fn deliveries(
        &self,
        caller: &Caller,
        filter: DeliveryFilter,
        page: Page,
    ) -> Result<Vec<Delivery>, Fault> {
        caller.must(Scope::Manage)?;
        let filter = DeliveryFilter { tenant: Some(caller.tenant().clone()), ..filter };
        self.store.deliveries(filter, page).await
    }

    pub(crate) async fn delivery(
        &self,
        caller: &Caller,
        id: DeliveryId,
    ) -> Result<(Delivery, Vec<Attempt>), Fault> {
        caller.must(Scope::Manage)?;
        let found = self.store.delivery(id).await?;
        found
            .filter(|(delivery, _)| delivery.tenant == *caller.tenant())
            .ok_or_else(|| Fault::new(Kind::NotFound, format!("there is no delivery {id}")))
    }

    pub(crate) async fn replay(&self, caller: &Caller, id: DeliveryId) -> Result<Delivery, Fault> {
        caller.must(Scope::Manage)?;
        let replayed = self.store.replay_delivery(caller.context(self), caller.tenant().clone(), id).await?;
        self.webhooks.wake();
        Ok(replayed)
    }

    /// The address of a receiver that somebody names, as far as it can be told whether it may be one.
    pub(crate) fn receiver(&self, url: &str) -> Result<Receiver, Fault> {
        let invalid = |error: String| Fault::new(Kind::Invalid, error);
        let receiver: Receiver = url.parse().map_err(|error| invalid(format!("{error}")))?;
        self.webhooks.sender.check(&receiver).map_err(|refused| {
            Fault::new(Kind::Denied, refused.to_string())
                .hint("the operator can name it in 'webhooks.allow', as host, host:port or network")
        })?;
        Ok(receiver)
    }

    /// Says who the secret of an endpoint is for: a sealed text that is moved to another row cannot be opened there.
    fn of_webhook(id: WebhookId) -> Result<SecretName, Fault> {
        let name = format!("webhook.{id}");
        name.parse().map_err(|error| Fault::new(Kind::Internal, "a webhook has no secret").because(error))
    }

    fn seal_webhook(&self, tenant: &Name, id: WebhookId, secret: &[u8]) -> Result<String, Fault> {
        let name = Self::of_webhook(id)?;
        let whose = Whose { tenant, name: &name, version: 0 };
        let sealed = self.settings.sealing_keys.seal(whose, secret, self.surroundings.bits());
        sealed.ok_or_else(|| Fault::new(Kind::Internal, "the secret cannot be sealed"))
    }

    /// Or why it cannot be had.
    pub(crate) fn open_webhook(&self, endpoint: &Endpoint) -> Result<Secret, String> {
        let name = Self::of_webhook(endpoint.id).map_err(|fault| fault.to_string())?;
        let whose = Whose { tenant: &endpoint.tenant, name: &name, version: 0 };
        let opened = self.settings.sealing_keys.open(whose, &endpoint.sealed);
        opened.map_err(|why| format!("the secret of this webhook cannot be opened: {why}"))
    }

    /// Puts every secret under the first key, so that the others can be given up.
    pub(crate) async fn reseal_webhooks(&self) -> Result<(), Fault> {
        for endpoint in self.store.sealed_endpoints().await? {
            if self.settings.sealing_keys.is_of_first_key(&endpoint.sealed) {
                continue;
            }
            match self.open_webhook(&endpoint) {
                Ok(secret) => {
                    let anew = self.seal_webhook(&endpoint.tenant, endpoint.id, secret.reveal())?;
                    self.store.reseal_endpoint(endpoint.id, endpoint.sealed, anew).await?;
                    info!(webhook = %endpoint.id, "the secret of a webhook was put under the newest key");
                }
                Err(because) => {
                    tracing::warn!(webhook = %endpoint.id, because, "the secret of a webhook cannot be opened");
                }
            }
        }
        Ok(())
    }
}

impl App {
    /// A worker says that its task has ended. `actor` is who called.
    pub(crate) async fn hear(self: &Arc<Self>, actor: Actor, call: Call<'_>) -> Result<EventId, Unheard> {
        let now = self.wall_now().as_second();
        let checked = call.check(&self.settings.webhooks, &self.settings.link_secret, now);
        let (subject, outcome) = match checked {
            Ok(completion) => {
                let (subject, status) = (completion.task_id.to_string(), completion.status.name());
                let app = Arc::clone(self);
                let said = async move { app.worker_said(completion.task_id, completion).await };
                let outcome = self.to_its_end(said).await.map_err(Unheard::Fault);
                let result = match &outcome {
                    Ok(_) => "accepted",
                    Err(Unheard::Fault(fault)) if fault.kind() == Kind::Conflict => "late",
                    Err(_) => "failed",
                };
                self.metrics.webhook_call(result);
                info!(task = subject, status, outcome = result, "a worker told the end of its task");
                let deed = self.audited(actor, &subject, result, Some(status.to_owned()));
                deed.await?;
                return outcome;
            }
            Err(why) => (String::new(), why),
        };
        self.metrics.webhook_call(outcome.name());
        info!(from = actor.from, outcome = outcome.name(), "a call of a worker was refused");
        // What anybody can have written is bounded; the log and the metrics have the rest.
        if self.webhooks.refused.spend(Spender::Nobody, REFUSALS_PER_SECOND).is_ok() {
            self.audited(actor, &subject, outcome.name(), None).await?;
        }
        Err(outcome)
    }

    async fn audited(
        &self,
        actor: Actor,
        subject: &str,
        outcome: &str,
        detail: Option<String>,
    ) -> Result<(), Fault> {
        let context = Context { node: self.node, now: self.now(), actor };
        self.store.record(context, "webhook.called".into(), subject.into(), outcome.into(), detail).await
    }
}

fn event_types(asked: Option<Vec<String>>) -> Result<Vec<EventType>, Fault> {
    let Some(asked) = asked else { return Ok(EventType::ALL.to_vec()) };
    let names = || EventType::ALL.map(EventType::name).join(", ");
    let one = |name: &String| {
        let known = EventType::ALL.into_iter().find(|event| event.name() == name);
        known.ok_or_else(|| {
            Fault::new(Kind::Invalid, format!("there is no type of event '{name}'"))
                .hint(format!("there are: {}", names()))
        })
    };
    let mut events = asked.iter().map(one).collect::<Result<Vec<_>, _>>()?;
    events.sort();
    events.dedup();
    if events.is_empty() {
        return Err(Fault::new(Kind::Invalid, "a webhook is told of at least one type of event")
            .hint(format!("there are: {}", names())));
    }
    Ok(events)
}

fn described(text: String) -> Result<String, Fault> {
    if text.len() > LONGEST_DESCRIPTION || text.contains(char::is_control) {
        let text = format!("a description has at most {LONGEST_DESCRIPTION} visible characters");
        return Err(Fault::new(Kind::Invalid, text));
    }
    Ok(text)
}

fn own_secret(secret: &Secret) -> Result<String, Fault> {
    let text = std::str::from_utf8(secret.reveal()).ok().filter(|text| {
        (SHORTEST_SECRET..=LONGEST_SECRET).contains(&text.len()) && text.bytes().all(|c| c.is_ascii_graphic())
    });
    text.map(str::to_owned).ok_or_else(|| {
        let text = format!("a secret has {SHORTEST_SECRET} to {LONGEST_SECRET} visible characters");
        Fault::new(Kind::Invalid, text).hint("leave it out, and one is made")
    })
}

/// What receivers are sent.
pub(crate) fn body(completion: &Completion) -> Result<String, Fault> {
    serde_json::to_string(completion)
        .map_err(|error| Fault::new(Kind::Internal, "a completion has no JSON form").because(error))
}
