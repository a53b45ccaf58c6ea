//! Who asks: keys of this server.

pub(crate) mod secret;

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cubicle_model::{Fault, KeyId, Kind, Principal, Scope};
use cubicle_store::Key;
use tokio::time::{Duration, Instant};

use crate::app::App;
use secret::hash_of_secret;

/// A key that another server revoked is honoured for at most so long.
const FRESH: Duration = Duration::from_secs(2);
/// Secrets that were tried of late, known or not.
const MOST_REMEMBERED: usize = 10_000;

/// Keys that were used of late, by the hash of their secret.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    known: Mutex<HashMap<String, (Option<Key>, Instant)>>,
    buckets: Mutex<HashMap<KeyId, Bucket>>,
}

/// Requests that a key may still make: refilled all the time, up to a second's worth.
#[derive(Debug)]
struct Bucket {
    left: f64,
    at: Instant,
}

impl Keys {
    fn known(&self) -> MutexGuard<'_, HashMap<String, (Option<Key>, Instant)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn forget(&self) {
        self.known().clear();
    }

    /// Takes one request from a key's allowance; says how long to wait where nothing is left.
    fn spend(&self, key: KeyId, per_second: u32) -> Result<(), Duration> {
        let rate = f64::from(per_second.max(1));
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let bucket = buckets.entry(key).or_insert(Bucket { left: rate, at: now });
        bucket.left = (bucket.left + (now - bucket.at).as_secs_f64() * rate).min(rate);
        bucket.at = now;
        if bucket.left < 1.0 {
            return Err(Duration::from_secs_f64((1.0 - bucket.left) / rate));
        }
        bucket.left -= 1.0;
        Ok(())
    }
}

/// Why a request has no caller.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// Nobody, or nobody known.
    Unknown(&'static str),
    TooMany(Duration),
    Fault(Fault),
}

impl App {
    /// The caller that a secret stands for.
    pub(crate) async fn authenticate(&self, secret: &str) -> Result<Principal, Refusal> {
        let hash = hash_of_secret(secret);
        let remembered = self.keys.known().get(&hash).filter(|(_, since)| since.elapsed() < FRESH).cloned();
        let key = match remembered {
            Some((key, _)) => key,
            None => {
                let key = self.store.key_by_hash(hash.clone()).await.map_err(Refusal::Fault)?;
                let mut known = self.keys.known();
                if known.len() >= MOST_REMEMBERED {
                    known.clear();
                }
                known.insert(hash, (key.clone(), Instant::now()));
                key
            }
        };
        let key = key.ok_or(Refusal::Unknown("this key is not known here"))?;
        if !key.is_valid(self.now()) {
            return Err(Refusal::Unknown("this key has expired or was revoked"));
        }
        let rate = key.requests_per_second.unwrap_or(self.settings.requests_per_second);
        self.keys.spend(key.id, rate).map_err(Refusal::TooMany)?;
        Ok(Principal { tenant: key.tenant, user: key.user, scopes: key.scopes, key: Some(key.id) })
    }

    /// Everybody, where the server was started without keys.
    pub(crate) fn everybody(&self) -> Result<Principal, Fault> {
        let name = |text: &str| text.parse().map_err(|error| Fault::new(Kind::Internal, format!("{error}")));
        Ok(Principal {
            tenant: name("default")?,
            user: "local".parse().map_err(|error| Fault::new(Kind::Internal, format!("{error}")))?,
            scopes: Scope::ALL.into_iter().collect(),
            key: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_key_may_make_so_many_requests_and_then_has_to_wait() {
        let keys = Keys::default();
        let key = KeyId::from_random([1; 16]);
        for _ in 0..5 {
            assert!(keys.spend(key, 5).is_ok());
        }
        let wait = keys.spend(key, 5).unwrap_err();
        assert!(keys.spend(KeyId::from_random([2; 16]), 5).is_ok(), "another key has its own allowance");
        tokio::time::advance(wait).await;
        assert!(keys.spend(key, 5).is_ok());
        assert!(keys.spend(key, 5).is_err());
    }
}
