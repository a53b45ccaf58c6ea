//! Who asks: tokens of an identity provider (OpenID Connect), checked with its public keys.

mod algorithm;
mod claims;
mod endpoint;
mod jwt;
mod key_ring;
mod key_set;
mod settings;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use cubicle_model::{Fault, Kind, Name, Principal, Proof, Timestamp};
use serde::Deserialize;

use crate::app::App;
use crate::auth::{Refusal, Spender};
use claims::Holder;
use endpoint::{Endpoint, Fetcher};
use jwt::Unverified;
use key_ring::{KeyRing, NoKey};
use key_set::KeySet;
use settings::WhereKeysAre;

pub(crate) use jwt::looks_like_one;
pub use settings::{TokenRequest, TokenSettings};

const MOST_TENANTS_REMEMBERED: usize = 10_000;

/// Why a token opens nothing. Nothing of the token is in it but its algorithm and its type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unacceptable {
    #[error("this server accepts no tokens")]
    NoIssuer,
    #[error("this token is damaged: {0}")]
    Damaged(&'static str),
    #[error("tokens that are signed by '{0}' are not accepted")]
    Algorithm(String),
    #[error("this token is of the type '{0}', which is not one that opens anything")]
    Type(String),
    #[error("this token has a 'crit' header, which is not supported")]
    Critical,
    #[error("this token is not of the issuer '{0}'")]
    Issuer(String),
    #[error("this token is signed with a key that its issuer does not publish")]
    UnknownKey,
    #[error("this token does not say which key it is signed with, and its issuer has several")]
    NoKeyNamed,
    #[error("the signature of this token is wrong")]
    Signature,
    #[error("this token is not for the audience '{0}'")]
    Audience(String),
    #[error("this token expired at {0}")]
    Expired(Timestamp),
    #[error("this token is not valid before {0}")]
    NotYet(Timestamp),
    #[error("this token has no claim '{0}'")]
    MissingClaim(String),
    #[error("the claim '{0}' of this token cannot be used")]
    BadClaim(String),
    #[error(
        "nothing in this token says that it is meant for this server: it has no scope that begins with '{0}'"
    )]
    NotForUs(String),
}

impl Unacceptable {
    pub(crate) fn way_out(&self) -> &'static str {
        match self {
            Self::NoIssuer => "send a key, or start the server with AUTH_TOKEN_ISSUER",
            Self::Algorithm(_) => "sign with RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384 or EdDSA",
            Self::Damaged(_) | Self::Signature => "send the token as its issuer gave it, or ask for another",
            Self::Type(_) | Self::Critical => "send an access token",
            Self::Issuer(_) => {
                "ask that issuer for a token; the server's issuer is AUTH_TOKEN_ISSUER, letter by letter"
            }
            Self::UnknownKey => {
                "ask for a new token; a key that was published just now is found within 10 seconds"
            }
            Self::NoKeyNamed => "have the issuer write 'kid' into the header of its tokens",
            Self::Audience(_) => "ask the issuer for a token with this audience",
            Self::Expired(_) | Self::NotYet(_) => {
                "ask for a new token; if it is new, check the clocks of both hosts"
            }
            Self::MissingClaim(_) | Self::BadClaim(_) => {
                "have the issuer write it, or name another claim in the server's settings"
            }
            Self::NotForUs(_) => {
                "ask the issuer for such a scope, or name the audience of its tokens in the server's CUBICLE_TOKEN_AUDIENCE"
            }
        }
    }
}

/// What the server knows of the issuer and of those who came with its tokens.
#[derive(Debug)]
pub(crate) struct Tokens {
    settings: TokenSettings,
    keys: KeyRing,
    /// Tenants are never removed, so whoever was there still is.
    tenants: Mutex<HashSet<Name>>,
}

impl Tokens {
    pub(crate) fn new(settings: TokenSettings) -> Self {
        Self { settings, keys: KeyRing::default(), tenants: Mutex::default() }
    }

    pub(crate) fn issuer(&self) -> &str {
        &self.settings.issuer
    }

    /// The holder of a token that is good now.
    async fn check(&self, text: &str, now: Timestamp) -> Result<Holder, Refusal> {
        let token = Unverified::parse(text)?;
        // First, so that a token of somebody else does not make us ask the issuer for its key.
        if token.alleged_issuer() != Some(&self.settings.issuer) {
            return Err(Unacceptable::Issuer(self.settings.issuer.clone()).into());
        }
        let key = self.keys.find(token.key_id.as_deref(), token.algorithm).await?;
        Ok(claims::read(&token.verify(&key)?, &self.settings, now)?)
    }
}

impl App {
    /// Fetches the issuer's keys until the server stops.
    pub(crate) fn follow_issuer(self: &Arc<Self>) {
        let app = Arc::clone(self);
        let stopping = self.stopping.clone();
        // Dropped while it fetches or waits; neither leaves anything behind.
        tokio::spawn(stopping.run_until_cancelled_owned(async move {
            let Some(tokens) = &app.tokens else { return };
            let fetcher = Fetcher::default();
            tokens.keys.keep_fresh(|| fetch(&fetcher, &tokens.settings)).await;
        }));
    }

    /// The caller that a token stands for.
    pub(super) async fn authenticate_token(&self, token: &str) -> Result<Principal, Refusal> {
        let tokens = self.tokens.as_ref().ok_or(Unacceptable::NoIssuer)?;
        let holder = tokens.check(token, self.wall_now()).await?;
        let spender = Spender::Subject(holder.tenant.clone(), holder.user.clone());
        self.allowances.spend(spender, self.settings.requests_per_second).map_err(Refusal::TooMany)?;
        self.tenant_must_exist(tokens, &holder.tenant).await.map_err(Refusal::Fault)?;
        Ok(Principal {
            tenant: holder.tenant,
            user: holder.user,
            scopes: holder.scopes,
            proof: Proof::Token { expires_at: holder.expires_at },
        })
    }

    /// A tenant has quotas, which somebody decides on: none is made because a token names it.
    async fn tenant_must_exist(&self, tokens: &Tokens, name: &Name) -> Result<(), Fault> {
        let remembered = || tokens.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        if remembered().contains(name) {
            return Ok(());
        }
        match self.store.tenant(name.clone()).await {
            Ok(_) => {}
            Err(fault) if fault.kind() == Kind::NotFound => {
                return Err(Fault::new(
                    Kind::Denied,
                    format!("this token is of the tenant '{name}', which is not known here"),
                )
                .hint(format!("an administrator makes it with 'cubicle tenant create {name}'")));
            }
            Err(fault) => return Err(fault),
        }
        let mut tenants = remembered();
        if tenants.len() >= MOST_TENANTS_REMEMBERED {
            tenants.clear();
        }
        tenants.insert(name.clone());
        Ok(())
    }
}

/// The keys that the issuer has now.
async fn fetch(fetcher: &Fetcher, settings: &TokenSettings) -> Result<KeySet, Fault> {
    let discovered;
    let at = match &settings.keys {
        WhereKeysAre::Jwks(at) => at,
        WhereKeysAre::Discovery(at) => {
            discovered = read_discovery(&fetcher.get(at).await?, at, &settings.issuer)?;
            &discovered
        }
    };
    KeySet::parse(&fetcher.get(at).await?)
        .map_err(|error| Fault::new(Kind::Unavailable, format!("{at} is no use: {error}")).because(error))
}

/// Where an issuer that describes itself says that its keys are.
fn read_discovery(text: &[u8], from: &Endpoint, issuer: &str) -> Result<Endpoint, Fault> {
    #[derive(Deserialize)]
    struct Description {
        issuer: String,
        jwks_uri: String,
    }
    let useless = |why: &str| Fault::new(Kind::Unavailable, format!("{from} is no use: {why}"));
    let description: Description = serde_json::from_slice(text)
        .map_err(|error| useless("it does not describe an issuer").because(error))?;
    if description.issuer != issuer {
        let said = description.issuer.escape_default();
        return Err(useless(&format!("it describes the issuer '{said}', and not '{issuer}'"))
            .hint(format!("if that is the one you mean, write AUTH_TOKEN_ISSUER={said}")));
    }
    let keys = Endpoint::parse(&description.jwks_uri).map_err(|error| useless(&error.to_string()))?;
    if keys.is_weaker_than(from) {
        return Err(useless("it says that its keys are at an address that is not encrypted"));
    }
    Ok(keys)
}

impl From<Unacceptable> for Refusal {
    fn from(why: Unacceptable) -> Self {
        Self::Token(why)
    }
}

impl From<NoKey> for Refusal {
    fn from(why: NoKey) -> Self {
        match why {
            NoKey::Unknown(why) => Self::Token(why),
            NoKey::Unavailable(fault) => Self::Fault(fault),
        }
    }
}
