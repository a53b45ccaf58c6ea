//! Whose tokens are accepted, and what their claims mean here.

use std::collections::BTreeSet;
use std::fmt;

use cubicle_model::{Fault, Kind, Scope};
use serde_json::Value;

use super::endpoint::Endpoint;

const DISCOVERY: &str = "/.well-known/openid-configuration";
const PREFIX: &str = "cubicle:";
const USER_CLAIM: &str = "sub";
const SCOPE_CLAIMS: [&str; 2] = ["scope", "scp"];
const DEFAULT_SCOPES: [Scope; 2] = [Scope::Read, Scope::Run];

/// What whoever starts the server says about tokens; whatever is absent has a default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenRequest {
    pub issuer: Option<String>,
    pub jwks_url: Option<String>,
    pub audience: Option<String>,
    pub user_claim: Option<String>,
    pub tenant_claim: Option<String>,
    pub scope_claim: Option<String>,
    pub scope_prefix: Option<String>,
    pub default_scopes: Option<BTreeSet<Scope>>,
}

impl TokenRequest {
    pub fn over(self, below: Self) -> Self {
        Self {
            issuer: self.issuer.or(below.issuer),
            jwks_url: self.jwks_url.or(below.jwks_url),
            audience: self.audience.or(below.audience),
            user_claim: self.user_claim.or(below.user_claim),
            tenant_claim: self.tenant_claim.or(below.tenant_claim),
            scope_claim: self.scope_claim.or(below.scope_claim),
            scope_prefix: self.scope_prefix.or(below.scope_prefix),
            default_scopes: self.default_scopes.or(below.default_scopes),
        }
    }
}

/// The same, checked and complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenSettings {
    pub(super) issuer: String,
    pub(super) keys: WhereKeysAre,
    pub(super) audience: Option<String>,
    pub(super) user_claim: Claim,
    /// Absent: everybody is of the default tenant.
    pub(super) tenant_claim: Option<Claim>,
    pub(super) scope_claims: Vec<Claim>,
    pub(super) scope_prefix: String,
    /// Of a token that names no scope of ours. Only with an audience: otherwise nothing in such a token says that it is
    /// meant for this server.
    pub(super) default_scopes: BTreeSet<Scope>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum WhereKeysAre {
    Jwks(Endpoint),
    /// Where the issuer describes itself (OpenID Connect Discovery).
    Discovery(Endpoint),
}

impl TokenSettings {
    /// Whose tokens are accepted.
    pub(crate) fn issuer(&self) -> &str {
        &self.issuer
    }

    /// `None` where tokens are not wanted. A setting that would have no effect is a mistake, and never ignored.
    pub fn parse(asked: TokenRequest) -> Result<Option<Self>, Fault> {
        let Some(issuer) = asked.issuer.clone() else {
            return nothing_without_an_issuer(&asked).map(|()| None);
        };
        let keys = match &asked.jwks_url {
            Some(url) => WhereKeysAre::Jwks(Endpoint::parse(url).map_err(|error| {
                Fault::new(Kind::Invalid, format!("JWKS_URL: {error}"))
                    .hint("write it as in https://id.example.org/keys; http:// only for this host itself")
            })?),
            None => {
                let url = format!("{}{DISCOVERY}", issuer.trim_end_matches('/'));
                WhereKeysAre::Discovery(Endpoint::parse(&url).map_err(|error| {
                    Fault::new(Kind::Invalid, format!("AUTH_TOKEN_ISSUER: {error}")).hint(
                        "an issuer that is no https:// address needs JWKS_URL as well, which says where its keys are",
                    )
                })?)
            }
        };
        let scope_prefix = asked.scope_prefix.unwrap_or_else(|| PREFIX.into());
        if asked.audience.is_none() && (asked.default_scopes.is_some() || scope_prefix.is_empty()) {
            let what = if scope_prefix.is_empty() { "scopes without a prefix" } else { "default scopes" };
            return Err(Fault::new(
                Kind::Denied,
                format!(
                    "with {what} and no audience, tokens for other services of this issuer would be accepted"
                ),
            )
            .hint("name the audience of tokens for this server in CUBICLE_TOKEN_AUDIENCE"));
        }
        let default_scopes = match &asked.audience {
            Some(_) => asked.default_scopes.unwrap_or_else(|| DEFAULT_SCOPES.into_iter().collect()),
            None => BTreeSet::new(),
        };
        Ok(Some(Self {
            issuer,
            keys,
            audience: asked.audience,
            user_claim: Claim(asked.user_claim.unwrap_or_else(|| USER_CLAIM.into())),
            tenant_claim: asked.tenant_claim.map(Claim),
            scope_claims: match asked.scope_claim {
                Some(name) => vec![Claim(name)],
                None => SCOPE_CLAIMS.map(|name| Claim(name.into())).into(),
            },
            scope_prefix,
            default_scopes,
        }))
    }
}

/// For people: whose tokens, and which.
impl fmt::Display for TokenSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.audience {
            Some(audience) => write!(f, "of {} for '{audience}'", self.issuer),
            None => write!(f, "of {} with scopes that begin with '{}'", self.issuer, self.scope_prefix),
        }
    }
}

fn nothing_without_an_issuer(asked: &TokenRequest) -> Result<(), Fault> {
    if asked.jwks_url.is_some() {
        return Err(Fault::new(Kind::Invalid, "JWKS_URL says where keys are, but not whose tokens they check")
            .hint("name the issuer in AUTH_TOKEN_ISSUER, exactly as the 'iss' of its tokens has it, or leave JWKS_URL out"));
    }
    if *asked != TokenRequest::default() {
        return Err(Fault::new(Kind::Invalid, "tokens are configured, but no issuer of them")
            .hint("name the issuer in AUTH_TOKEN_ISSUER, or leave out everything that begins with token_ or CUBICLE_TOKEN_"));
    }
    Ok(())
}

/// The name of a claim, or where it begins with a slash a JSON pointer to one: `/realm_access/roles`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Claim(pub(super) String);

impl Claim {
    pub(super) fn of<'a>(&self, claims: &'a Value) -> Option<&'a Value> {
        match self.0.starts_with('/') {
            true => claims.pointer(&self.0),
            false => claims.get(&self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(pairs: &[(&str, &str)]) -> TokenRequest {
        let get =
            |name: &str| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        TokenRequest {
            issuer: get("issuer"),
            jwks_url: get("jwks_url"),
            audience: get("audience"),
            user_claim: get("user_claim"),
            tenant_claim: get("tenant_claim"),
            scope_claim: get("scope_claim"),
            scope_prefix: get("scope_prefix"),
            default_scopes: get("default_scopes").map(|scope| BTreeSet::from([scope.parse().unwrap()])),
        }
    }

    #[test]
    fn keys_are_where_the_url_says_or_else_where_the_issuer_says() {
        let table = [
            (
                asked(&[("issuer", "https://id.example.org/realms/a/")]),
                "https://id.example.org/realms/a/.well-known/openid-configuration",
            ),
            (
                asked(&[("issuer", "http://127.0.0.1:9000")]),
                "http://127.0.0.1:9000/.well-known/openid-configuration",
            ),
            (
                asked(&[("issuer", "anything"), ("jwks_url", "https://id.example.org/keys?a=b")]),
                "https://id.example.org/keys?a=b",
            ),
        ];
        for (asked, expected) in table {
            let (WhereKeysAre::Jwks(at) | WhereKeysAre::Discovery(at)) =
                TokenSettings::parse(asked).unwrap().unwrap().keys;
            assert_eq!(at.to_string(), expected);
        }
        assert_eq!(TokenSettings::parse(TokenRequest::default()).unwrap(), None);
    }

    #[test]
    fn a_setting_without_effect_or_with_a_dangerous_one_is_refused_with_a_way_out() {
        let issuer = ("issuer", "https://id.example.org");
        let table: &[(&[(&str, &str)], &str)] = &[
            (&[("jwks_url", "https://id.example.org/keys")], "AUTH_TOKEN_ISSUER"),
            (&[("audience", "cubicle")], "AUTH_TOKEN_ISSUER"),
            (&[("tenant_claim", "org")], "AUTH_TOKEN_ISSUER"),
            (&[("issuer", "http://id.example.org")], "JWKS_URL"),
            (&[("issuer", "example")], "JWKS_URL"),
            (&[issuer, ("jwks_url", "http://id.example.org/keys")], "https://"),
            (&[issuer, ("jwks_url", "file:///etc/keys")], "https://"),
            (&[issuer, ("default_scopes", "run")], "CUBICLE_TOKEN_AUDIENCE"),
            (&[issuer, ("scope_prefix", "")], "CUBICLE_TOKEN_AUDIENCE"),
        ];
        for (pairs, way_out) in table {
            let fault = TokenSettings::parse(asked(pairs)).unwrap_err();
            assert!(fault.way_out().is_some_and(|hint| hint.contains(way_out)), "{pairs:?}: {fault:?}");
        }
        let with_audience = [issuer, ("audience", "cubicle"), ("default_scopes", "read")];
        assert!(TokenSettings::parse(asked(&with_audience)).is_ok());
    }

    #[test]
    fn a_claim_is_named_or_pointed_at() {
        let claims =
            serde_json::json!({ "https://example.org/org": "a", "realm_access": { "roles": ["b"] } });
        assert_eq!(Claim("https://example.org/org".into()).of(&claims).unwrap(), "a");
        assert_eq!(Claim("/realm_access/roles".into()).of(&claims).unwrap()[0], "b");
        assert_eq!(Claim("realm_access.roles".into()).of(&claims), None);
    }
}
