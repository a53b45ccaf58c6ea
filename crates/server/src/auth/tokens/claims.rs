//! From what a token claims to who it stands for.

use std::collections::BTreeSet;

use cubicle_model::{Name, Scope, Timestamp, UserName};
use serde_json::Value;

use super::Unacceptable;
use super::settings::{Claim, TokenSettings};

/// Clocks differ a little.
const LEEWAY_SECONDS: i64 = 30;
const DEFAULT_TENANT: &str = "default";

/// Whoever holds a token, as far as its issuer knows. Whether there is such a tenant is not its issuer's to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Holder {
    pub(super) tenant: Name,
    pub(super) user: UserName,
    pub(super) scopes: BTreeSet<Scope>,
    pub(super) expires_at: Timestamp,
}

/// Reads the claims of a token whose signature is good.
pub(super) fn read(claims: &Value, rules: &TokenSettings, now: Timestamp) -> Result<Holder, Unacceptable> {
    if claims["iss"].as_str() != Some(&rules.issuer) {
        return Err(Unacceptable::Issuer(rules.issuer.clone()));
    }
    if let Some(audience) = &rules.audience
        && !is_for(&claims["aud"], audience)
    {
        return Err(Unacceptable::Audience(audience.clone()));
    }
    let expires_at = moment(claims, "exp")?.ok_or_else(|| missing("exp"))?;
    if now.as_second() >= expires_at.as_second().saturating_add(LEEWAY_SECONDS) {
        return Err(Unacceptable::Expired(expires_at));
    }
    if let Some(from) = moment(claims, "nbf")?
        && now.as_second() < from.as_second().saturating_sub(LEEWAY_SECONDS)
    {
        return Err(Unacceptable::NotYet(from));
    }
    Ok(Holder {
        tenant: tenant(claims, rules)?,
        user: text(claims, &rules.user_claim)?.parse().map_err(|_| bad(&rules.user_claim.0))?,
        scopes: scopes(claims, rules)?,
        expires_at,
    })
}

fn is_for(audience: &Value, us: &str) -> bool {
    match audience {
        Value::String(one) => one == us,
        Value::Array(several) => several.iter().any(|one| one == us),
        _ => false,
    }
}

/// Seconds since 1970, of which a fraction may be given. One that is out of all range is as far away as can be.
fn moment(claims: &Value, name: &'static str) -> Result<Option<Timestamp>, Unacceptable> {
    let Some(given) = claims.get(name).filter(|value| !value.is_null()) else { return Ok(None) };
    let seconds = given.as_i64().map_or_else(|| given.as_f64(), |whole| Some(whole as f64));
    let seconds = seconds.filter(|seconds| seconds.is_finite()).ok_or_else(|| bad(name))?;
    // A cast from f64 saturates.
    let at = Timestamp::from_second(seconds.floor() as i64);
    Ok(Some(at.unwrap_or(if seconds < 0.0 { Timestamp::MIN } else { Timestamp::MAX })))
}

/// A token without the claim that says its tenant belongs to none, and above all not to the default one.
fn tenant(claims: &Value, rules: &TokenSettings) -> Result<Name, Unacceptable> {
    match &rules.tenant_claim {
        Some(claim) => text(claims, claim)?.parse().map_err(|_| bad(&claim.0)),
        None => DEFAULT_TENANT.parse().map_err(|_| bad(DEFAULT_TENANT)),
    }
}

/// Those of ours that the token names. A token that names one has no others, also where we do not know it.
fn scopes(claims: &Value, rules: &TokenSettings) -> Result<BTreeSet<Scope>, Unacceptable> {
    let mut ours = rules
        .scope_claims
        .iter()
        .filter_map(|claim| claim.of(claims))
        .flat_map(words)
        .filter_map(|word| word.strip_prefix(&rules.scope_prefix))
        .peekable();
    if ours.peek().is_some() {
        return Ok(ours.filter_map(|name| name.parse().ok()).collect());
    }
    if rules.audience.is_none() {
        return Err(Unacceptable::NotForUs(rules.scope_prefix.clone()));
    }
    Ok(rules.default_scopes.clone())
}

/// One text with spaces (RFC 8693), or a list.
fn words(value: &Value) -> Vec<&str> {
    match value {
        Value::String(text) => text.split_whitespace().collect(),
        Value::Array(list) => list.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

fn text<'a>(claims: &'a Value, claim: &Claim) -> Result<&'a str, Unacceptable> {
    let value = claim.of(claims).ok_or_else(|| missing(&claim.0))?;
    value.as_str().ok_or_else(|| bad(&claim.0))
}

fn missing(claim: &str) -> Unacceptable {
    Unacceptable::MissingClaim(claim.to_owned())
}

fn bad(claim: &str) -> Unacceptable {
    Unacceptable::BadClaim(claim.to_owned())
}
