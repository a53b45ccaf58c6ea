//! Who asks: keys of this server, and tokens of an identity provider.

mod allowance;
pub(crate) mod secret;
pub(crate) mod tokens;

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cubicle_model::{Fault, Kind, Principal, Proof, Scope};
use cubicle_store::Key;
use tokio::time::{Duration, Instant};

use crate::app::App;
pub(crate) use allowance::{Allowances, Spender};
use secret::hash_of_secret;
use tokens::Unacceptable;

/// A key that another server revoked is honoured for at most so long.
const FRESH: Duration = Duration::from_secs(2);
/// Secrets that were tried of late, known or not.
const MOST_REMEMBERED: usize = 10_000;

/// Keys that were used of late, by the hash of their secret.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    known: Mutex<HashMap<String, (Option<Key>, Instant)>>,
}

impl Keys {
    fn known(&self) -> MutexGuard<'_, HashMap<String, (Option<Key>, Instant)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn forget(&self) {
        self.known().clear();
    }
}

/// Why a request has no caller.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// Nobody, or nobody known.
    Unknown(&'static str),
    Token(Unacceptable),
    TooMany(Duration),
    Fault(Fault),
}

impl App {
    /// The caller that a key or a token stands for.
    pub(crate) async fn authenticate(&self, secret: &str) -> Result<Principal, Refusal> {
        match tokens::looks_like_one(secret) {
            true => self.authenticate_token(secret).await,
            false => self.authenticate_key(secret).await,
        }
    }

    async fn authenticate_key(&self, secret: &str) -> Result<Principal, Refusal> {
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
        if !key.is_valid(self.wall_now()) {
            return Err(Refusal::Unknown("this key has expired or was revoked"));
        }
        let rate = key.requests_per_second.unwrap_or(self.settings.requests_per_second);
        self.allowances.spend(Spender::Key(key.id), rate).map_err(Refusal::TooMany)?;
        Ok(Principal { tenant: key.tenant, user: key.user, scopes: key.scopes, proof: Proof::Key(key.id) })
    }

    /// Everybody, where the server was started without keys.
    pub(crate) fn everybody(&self) -> Result<Principal, Fault> {
        let name = |text: &str| text.parse().map_err(|error| Fault::new(Kind::Internal, format!("{error}")));
        Ok(Principal {
            tenant: name("default")?,
            user: "local".parse().map_err(|error| Fault::new(Kind::Internal, format!("{error}")))?,
            scopes: Scope::ALL.into_iter().collect(),
            proof: Proof::Nothing,
        })
    }
}
