use std::collections::BTreeSet;

use cubicle_model::{Scope, Timestamp};
use serde_json::{Value, json};

use super::super::Unacceptable;
use super::super::claims::{Holder, read};
use super::super::settings::TokenSettings;
use super::{ISSUER, settings};

const NOW: i64 = 1_800_000_000;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// Good claims, with some of them replaced; null removes one.
fn claims(changes: Value) -> Value {
    let mut all = json!({ "iss": ISSUER, "sub": "ada", "aud": "cubicle", "exp": NOW + 300 });
    for (name, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => drop(all.as_object_mut().unwrap().remove(name)),
            value => all[name] = value.clone(),
        }
    }
    all
}

fn check(changes: Value, rules: &TokenSettings) -> Result<Holder, Unacceptable> {
    read(&claims(changes), rules, at(NOW))
}

fn scopes(names: &[Scope]) -> BTreeSet<Scope> {
    names.iter().copied().collect()
}

#[test]
fn a_good_token_stands_for_its_subject() {
    let holder = check(json!({}), &settings(|_| {})).unwrap();
    let expected = Holder {
        tenant: "default".parse().unwrap(),
        user: "ada".parse().unwrap(),
        scopes: scopes(&[Scope::Read, Scope::Run]),
        expires_at: at(NOW + 300),
    };
    assert_eq!(holder, expected);
}

#[test]
fn issuer_and_audience_are_compared_letter_by_letter() {
    let rules = settings(|_| {});
    for bad in
        [json!("https://id.example.org/"), json!("https://ID.example.org"), json!([ISSUER]), Value::Null]
    {
        let refused = check(json!({ "iss": bad }), &rules);
        assert_eq!(refused, Err(Unacceptable::Issuer(ISSUER.into())), "{bad}");
    }
    for bad in
        [json!("cubicles"), json!(["a", "b"]), json!([]), json!({ "cubicle": 1 }), json!(1), Value::Null]
    {
        let refused = check(json!({ "aud": bad }), &rules);
        assert_eq!(refused, Err(Unacceptable::Audience("cubicle".into())), "{bad}");
    }
    for good in [json!("cubicle"), json!(["a", "cubicle"])] {
        assert!(check(json!({ "aud": good }), &rules).is_ok(), "{good}");
    }
}

#[test]
fn a_token_is_good_from_its_beginning_to_its_end_give_or_take_thirty_seconds() {
    let rules = settings(|_| {});
    let table = [
        (json!({ "exp": NOW - 29 }), Ok(())),
        (json!({ "exp": NOW - 30 }), Err(Unacceptable::Expired(at(NOW - 30)))),
        (json!({ "exp": NOW as f64 - 29.5 }), Err(Unacceptable::Expired(at(NOW - 30)))),
        (json!({ "exp": 0 }), Err(Unacceptable::Expired(at(0)))),
        (json!({ "exp": -1e300 }), Err(Unacceptable::Expired(Timestamp::MIN))),
        (json!({ "exp": 1e300 }), Ok(())),
        (json!({ "exp": u64::MAX }), Ok(())),
        (json!({ "exp": null }), Err(Unacceptable::MissingClaim("exp".into()))),
        (json!({ "exp": (NOW + 300).to_string() }), Err(Unacceptable::BadClaim("exp".into()))),
        (json!({ "nbf": NOW + 30 }), Ok(())),
        (json!({ "nbf": NOW + 31 }), Err(Unacceptable::NotYet(at(NOW + 31)))),
        (json!({ "nbf": 1e300 }), Err(Unacceptable::NotYet(Timestamp::MAX))),
        (json!({ "nbf": "soon" }), Err(Unacceptable::BadClaim("nbf".into()))),
        (json!({ "iat": NOW + 1000 }), Ok(())),
    ];
    for (changes, expected) in table {
        assert_eq!(check(changes.clone(), &rules).map(drop), expected, "{changes}");
    }
}

#[test]
fn the_user_is_the_subject_or_the_claim_that_was_named() {
    let rules = settings(|_| {});
    for bad in [json!(""), json!("a\nb"), json!(7), json!(["ada"]), json!("x".repeat(257))] {
        assert_eq!(check(json!({ "sub": bad }), &rules), Err(Unacceptable::BadClaim("sub".into())), "{bad}");
    }
    assert_eq!(check(json!({ "sub": null }), &rules), Err(Unacceptable::MissingClaim("sub".into())));
    let rules = settings(|asked| asked.user_claim = Some("/profile/mail".into()));
    let holder = check(json!({ "profile": { "mail": "ada@example.org" } }), &rules).unwrap();
    assert_eq!(holder.user.as_str(), "ada@example.org");
    assert_eq!(check(json!({}), &rules), Err(Unacceptable::MissingClaim("/profile/mail".into())));
}

#[test]
fn a_token_without_the_claim_of_its_tenant_is_of_none() {
    let rules = settings(|asked| asked.tenant_claim = Some("org".into()));
    assert_eq!(check(json!({ "org": "acme" }), &rules).unwrap().tenant.as_str(), "acme");
    assert_eq!(check(json!({}), &rules), Err(Unacceptable::MissingClaim("org".into())));
    for bad in [json!(""), json!("Acme Inc."), json!(["acme"]), json!("../default")] {
        assert_eq!(check(json!({ "org": bad }), &rules), Err(Unacceptable::BadClaim("org".into())), "{bad}");
    }
}

#[test]
fn scopes_are_the_words_with_our_prefix_and_never_more() {
    let rules = settings(|_| {});
    let usual = scopes(&[Scope::Read, Scope::Run]);
    let table = [
        (json!({ "scope": "openid cubicle:read profile" }), scopes(&[Scope::Read])),
        (json!({ "scp": ["cubicle:run", "cubicle:manage"] }), scopes(&[Scope::Run, Scope::Manage])),
        (json!({ "scope": "cubicle:read", "scp": "cubicle:run" }), usual.clone()),
        (json!({ "scope": ["cubicle:admin"] }), scopes(&[Scope::Admin])),
        // Names of somebody else, and of nobody.
        (json!({ "scope": "openid" }), usual.clone()),
        (json!({ "scope": "read manage admin" }), usual.clone()),
        (json!({ "scope": 7 }), usual),
        // It names a scope of ours, so the default is not meant, even where we know no such scope.
        (json!({ "scope": "cubicle:fly" }), scopes(&[])),
        (json!({ "scope": "cubicle:" }), scopes(&[])),
        (json!({ "scope": "cubicle:READ" }), scopes(&[])),
    ];
    for (changes, expected) in table {
        assert_eq!(check(changes.clone(), &rules).unwrap().scopes, expected, "{changes}");
    }
    let rules = settings(|asked| {
        asked.scope_claim = Some("/realm_access/roles".into());
        asked.scope_prefix = Some("sandbox-".into());
        asked.default_scopes = Some(scopes(&[Scope::Read]));
    });
    let roles = json!({ "realm_access": { "roles": ["sandbox-run"] }, "scope": "cubicle:admin" });
    assert_eq!(check(roles, &rules).unwrap().scopes, scopes(&[Scope::Run]));
    assert_eq!(check(json!({}), &rules).unwrap().scopes, scopes(&[Scope::Read]));
}

#[test]
fn without_an_audience_a_token_must_name_a_scope_of_ours() {
    let rules = settings(|asked| asked.audience = None);
    for changes in [json!({}), json!({ "scope": "openid profile" }), json!({ "aud": "wiki" })] {
        assert_eq!(check(changes, &rules), Err(Unacceptable::NotForUs("cubicle:".into())));
    }
    let holder = check(json!({ "aud": "whatever", "scope": "cubicle:read" }), &rules).unwrap();
    assert_eq!(holder.scopes, scopes(&[Scope::Read]));
}
