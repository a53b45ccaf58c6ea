//! The keys of the issuer: fetched in the background, kept while the issuer is down, and asked for again when a token
//! names one that is not there.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use cubicle_model::{Fault, Kind};
use tokio::sync::{Notify, watch};
use tokio::time::{Duration, Instant};
use tracing::{info, warn};

use super::Unacceptable;
use super::algorithm::Algorithm;
use super::key_set::{KeySet, PublicKey};

/// A key that the issuer has withdrawn is honoured for at most so long, while the issuer can be reached.
const REFRESHED_EVERY: Duration = Duration::from_secs(5 * 60);
/// Keys of an issuer that cannot be reached are honoured for at most so long.
const KEPT: Duration = Duration::from_secs(24 * 3600);
/// How soon an issuer is tried again that could not be reached, doubled with every failure.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Tokens that name unknown keys make the server ask the issuer at most so often.
const ASKED_EVERY: Duration = Duration::from_secs(10);
/// Longer than any two rounds, which is what a token with an unknown key may have to wait for.
const PATIENCE: Duration = Duration::from_secs(45);

/// Why a token has no key.
#[derive(Debug)]
pub(super) enum NoKey {
    Unknown(Unacceptable),
    /// Whether the issuer has such a key cannot be found out now.
    Unavailable(Fault),
}

#[derive(Debug, Default)]
pub(super) struct KeyRing {
    known: watch::Sender<Known>,
    /// Wakes whoever fetches.
    wanted: Notify,
    last_asked: Mutex<Option<Asked>>,
}

/// What the rounds of fetching have come to.
#[derive(Debug, Clone, Default)]
struct Known {
    keys: Arc<KeySet>,
    /// When these keys were fetched; absent before the first success.
    fetched_at: Option<Instant>,
    /// Why the last round failed, if it did.
    failure: Option<String>,
    begun: u64,
    ended: u64,
}

/// Somebody asked for another round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Asked {
    at: Instant,
    /// The round that will answer: the first one to begin after the question.
    round: u64,
}

/// What a token with an unknown key has to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// A round of its own.
    Ask(Asked),
    /// The round that somebody else asked for.
    Wait(u64),
    /// Nothing: the issuer was asked a moment ago.
    GiveUp,
}

fn next(known: &Known, last: Option<Asked>, now: Instant) -> Next {
    match last {
        Some(asked) if known.ended < asked.round => Next::Wait(asked.round),
        Some(asked) if now - asked.at < ASKED_EVERY => Next::GiveUp,
        // A round that is under way may have read the keys before the new one was there.
        _ => Next::Ask(Asked { at: now, round: known.begun + 1 }),
    }
}

impl KeyRing {
    /// The key that a token names.
    pub(super) async fn find(&self, id: Option<&str>, algorithm: Algorithm) -> Result<PublicKey, NoKey> {
        // Before the first round has ended nobody knows anything.
        if self.known.borrow().ended == 0 {
            self.wait_for(1).await;
        }
        let known = self.known.borrow().clone();
        if let Some(key) = known.usable()?.find(id, algorithm) {
            return Ok(key.clone());
        }
        let wanted = {
            let mut last = self.last_asked.lock().unwrap_or_else(PoisonError::into_inner);
            let next = next(&self.known.borrow(), *last, Instant::now());
            if let Next::Ask(asked) = next {
                *last = Some(asked);
                self.wanted.notify_one();
            }
            next
        };
        if let Next::Ask(Asked { round, .. }) | Next::Wait(round) = wanted {
            self.wait_for(round).await;
        }
        let known = self.known.borrow().clone();
        match known.usable()?.find(id, algorithm) {
            Some(key) => Ok(key.clone()),
            None if known.failure.is_some() => Err(NoKey::Unavailable(known.unavailable())),
            None if id.is_none() => Err(NoKey::Unknown(Unacceptable::NoKeyNamed)),
            None => Err(NoKey::Unknown(Unacceptable::UnknownKey)),
        }
    }

    async fn wait_for(&self, round: u64) {
        let mut known = self.known.subscribe();
        // A round that never ends shows in what is known afterwards.
        _ = tokio::time::timeout(PATIENCE, known.wait_for(|known| known.ended >= round)).await;
    }

    /// Fetches for ever.
    pub(super) async fn keep_fresh<Round: Future<Output = Result<KeySet, Fault>>>(
        &self,
        fetch: impl Fn() -> Round,
    ) {
        let mut failures = 0;
        loop {
            self.known.send_modify(|known| known.begun += 1);
            let outcome = fetch().await;
            failures = if outcome.is_ok() { 0 } else { failures + 1 };
            self.note(outcome);
            let pause = match failures {
                0 => REFRESHED_EVERY,
                count => LONGEST_PAUSE.min(FIRST_PAUSE * 2u32.saturating_pow(count - 1)),
            };
            // Either way the next round begins; a wish that comes meanwhile is kept.
            _ = tokio::time::timeout(pause, self.wanted.notified()).await;
        }
    }

    fn note(&self, outcome: Result<KeySet, Fault>) {
        self.known.send_modify(|known| {
            known.ended = known.begun;
            match outcome {
                Ok(keys) => {
                    if *known.keys != keys {
                        info!(keys = keys.len(), "the issuer of tokens has these keys now");
                    }
                    known.keys = Arc::new(keys);
                    known.fetched_at = Some(Instant::now());
                    known.failure = None;
                }
                Err(fault) => {
                    warn!(error = %fault, hint = fault.way_out(), "the keys of the issuer of tokens cannot be fetched");
                    known.failure = Some(fault.to_string());
                }
            }
        });
    }
}

impl Known {
    /// Keys that are not too old to be believed.
    fn usable(&self) -> Result<&KeySet, NoKey> {
        match self.fetched_at {
            Some(at) if at.elapsed() < KEPT => Ok(&self.keys),
            _ => Err(NoKey::Unavailable(self.unavailable())),
        }
    }

    fn unavailable(&self) -> Fault {
        let why = self.failure.as_deref().unwrap_or("they are being fetched");
        Fault::new(
            Kind::Unavailable,
            "this token cannot be checked now: the keys of its issuer are not to be had",
        )
        .hint("try again, or use a key of this server; its log says what is wrong with the issuer")
        .because(why)
    }
}
