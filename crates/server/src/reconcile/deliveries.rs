//! Sends what receivers are to be told. A round claims what is due; each attempt notes what it came to, and when it is tried
//! again. Whoever is killed in between sends the same delivery again, under the same id.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cubicle_model::webhook::{Attempted, Next, Receiver, next};
use cubicle_model::{Fault, Timestamp};
use cubicle_store::{Attempt, Claimed};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tracing::{info, warn};

use crate::app::App;
use crate::webhooks::{NotSent, Sent, headers};

/// Attempts under way, of everybody and of one tenant.
const MOST: usize = 32;
const MOST_OF_A_TENANT: u64 = 8;
/// What others wrote is noticed after this time.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// Where more is due than may be under way.
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);

/// For ever. At the start nothing is under way, whatever an earlier process of this node claimed.
pub(super) async fn deliver(app: Arc<App>) {
    let room = Arc::new(Semaphore::new(MOST));
    loop {
        let pause = match round(&app, &room).await {
            Ok(pause) => pause,
            Err(fault) => {
                warn!(error = %fault, "deliveries cannot be looked at now; the next round comes");
                LONGEST_PAUSE
            }
        };
        // Either way the next round begins.
        _ = tokio::time::timeout(pause, app.webhooks.woken()).await;
    }
}

/// Begins what can be begun, and says when to look again.
async fn round(app: &Arc<App>, room: &Arc<Semaphore>) -> Result<Duration, Fault> {
    let now = app.now();
    let until = |due: Timestamp| {
        let wait = Duration::try_from(due.duration_since(now)).unwrap_or_default();
        wait.clamp(SHORTEST_PAUSE, LONGEST_PAUSE)
    };
    // Reading costs nobody anything; a claim is a write.
    let Some(due) = app.store.next_delivery().await? else { return Ok(LONGEST_PAUSE) };
    let free = room.available_permits();
    if due > now || free == 0 {
        return Ok(until(due));
    }
    // Nobody else sends it while an attempt could still be under way.
    let lasting = app.settings.webhooks.timeout * 2 + Duration::from_secs(20);
    let claimed = app.store.claim_deliveries(app.node, now, free, MOST_OF_A_TENANT, lasting).await?;
    let is_idle = claimed.is_empty();
    for one in claimed {
        let Ok(permit) = Arc::clone(room).try_acquire_owned() else { break };
        let app = Arc::clone(app);
        app.tasks.clone().spawn(async move { attempt(&app, one, permit).await });
    }
    Ok(if is_idle { SHORTEST_PAUSE } else { Duration::ZERO })
}

async fn attempt(app: &App, claimed: Claimed, permit: OwnedSemaphorePermit) {
    app.step("delivery_claimed");
    let (started, time) = (Instant::now(), app.now());
    let outcome = send(app, &claimed).await;
    let took = started.elapsed();
    app.step("delivery_sent");
    let attempted = match &outcome {
        Ok(sent) => Attempted::Answered { status: sent.status, retry_after: sent.retry_after },
        Err(_) => Attempted::Failed,
    };
    let tries = u32::try_from(claimed.tries).unwrap_or(u32::MAX).saturating_add(1);
    let chance = f64::from(u16::from_le_bytes(app.surroundings.bits())) / f64::from(u16::MAX);
    let next = next(attempted, tries, &app.settings.webhooks.pauses, chance);
    let name = match next {
        Next::Delivered => "delivered",
        Next::Again { .. } => "retried",
        Next::Dead => "dead",
        Next::Gone => "gone",
    };
    app.metrics.webhook_attempt(name, took);
    let id = claimed.delivery.id;
    let attempt = noted(time, took, &outcome);
    let (status, error) = (attempt.status, attempt.error.clone());
    let noting = || {
        let (context, claimed, attempt) = (app.own_context(), claimed.clone(), attempt.clone());
        app.store.note_attempt(context, claimed, attempt, next)
    };
    match app.insist(noting).await {
        Ok(true) => match next {
            Next::Delivered => info!(delivery = %id, status, ?took, "a webhook was delivered"),
            Next::Again { after } => {
                info!(delivery = %id, status, error, ?after, "a webhook is tried again later");
            }
            Next::Dead | Next::Gone => {
                warn!(delivery = %id, status, error, tries, "a webhook was given up; it can be replayed");
                app.tell();
            }
        },
        Ok(false) => info!(delivery = %id, "a delivery was replayed or withdrawn while it was sent"),
        Err(fault) => warn!(delivery = %id, error = %fault, "what a webhook came to cannot be noted"),
    }
    drop(permit);
    // There is room again, and a tenant has one less under way.
    app.webhooks.wake();
}

fn noted(time: Timestamp, took: Duration, outcome: &Result<Sent, Unsent>) -> Attempt {
    let (status, error, answer) = match outcome {
        Ok(sent) => (Some(u64::from(sent.status)), None, Some(sent.answer.clone())),
        Err(why) => (None, Some(why.to_string().replace('\0', "\u{fffd}")), None),
    };
    Attempt { number: 0, time, took, status, error, answer: answer.filter(|answer| !answer.is_empty()) }
}

/// Why nothing was sent.
#[derive(Debug, thiserror::Error)]
enum Unsent {
    #[error("{0}")]
    NotSent(#[from] NotSent),
    #[error("{0}")]
    Receiver(#[from] cubicle_model::webhook::NotAReceiver),
    #[error("{0}")]
    Secret(String),
    #[error("{0}")]
    Masks(#[from] Fault),
}

async fn send(app: &App, claimed: &Claimed) -> Result<Sent, Unsent> {
    let Claimed { delivery, endpoint, .. } = claimed;
    let (url, secrets) = match endpoint {
        Some(endpoint) => {
            let secret = app.open_webhook(endpoint).map_err(Unsent::Secret)?;
            (&endpoint.url, vec![secret.reveal().to_vec()])
        }
        None => {
            let secrets = app.settings.webhooks.secrets.iter().map(|secret| secret.reveal().to_vec());
            (&delivery.url, secrets.collect())
        }
    };
    let to: Receiver = url.parse()?;
    // What a worker wrote leaves as everything else does.
    let mut body = delivery.body.clone();
    app.masks(&delivery.tenant).await?.known.text(&mut body);
    let now = app.wall_now();
    let mut headers = headers(&secrets, &delivery.id.to_string(), now.as_second(), body.as_bytes());
    headers.push(("x-webhook-source", cubicle_worker::completion::SOURCE.to_owned()));
    let visible =
        |text: &&String| (1..=256).contains(&text.len()) && text.bytes().all(|c| c.is_ascii_graphic());
    if let Some(conversation) = delivery.conversation.as_ref().filter(visible) {
        headers.push(("x-conversation-id", conversation.clone()));
    }
    Ok(app.webhooks.sender.post(&to, &headers, Bytes::from(body), now).await?)
}
