use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use super::super::Unacceptable;
use super::super::algorithm::Algorithm;
use super::super::jwt::{Unverified, looks_like_one};
use super::super::key_set::{KeySet, NotAKeySet};
use super::{key_set_text, vectors};

fn keys() -> KeySet {
    KeySet::parse(vectors().to_string().as_bytes()).unwrap()
}

fn tokens() -> Vec<(String, String)> {
    let all = vectors()["tokens"].as_object().unwrap().clone();
    all.into_iter().map(|(name, token)| (name, token.as_str().unwrap().to_owned())).collect()
}

fn check(token: &str, keys: &KeySet) -> Result<Value, Unacceptable> {
    let token = Unverified::parse(token)?;
    let key = keys.find(token.key_id.as_deref(), token.algorithm).ok_or(Unacceptable::UnknownKey)?;
    token.verify(key)
}

/// Another header or other claims under an old signature.
fn altered(token: &str, header: Option<Value>, claims: Option<Value>) -> String {
    let parts: Vec<_> = token.split('.').collect();
    let part = |value: Option<Value>, old: &str| {
        value.map_or(old.to_owned(), |value| URL_SAFE_NO_PAD.encode(value.to_string()))
    };
    format!("{}.{}.{}", part(header, parts[0]), part(claims, parts[1]), parts[2])
}

#[test]
fn every_accepted_algorithm_is_verified_as_another_implementation_signs() {
    assert_eq!(tokens().len(), 9);
    for (name, token) in tokens() {
        assert!(looks_like_one(&token));
        let claims = check(&token, &keys()).unwrap_or_else(|why| panic!("{name}: {why}"));
        assert_eq!(claims["sub"], "ada", "{name}");
    }
}

#[test]
fn a_token_that_was_changed_anywhere_is_refused() {
    for (name, token) in tokens() {
        let claims = json!({ "iss": "https://id.example.org", "sub": "eve", "exp": 2_000_000_000 });
        assert_eq!(
            check(&altered(&token, None, Some(claims)), &keys()),
            Err(Unacceptable::Signature),
            "{name}"
        );
        let (signed, signature) = token.rsplit_once('.').unwrap();
        let mut bytes = URL_SAFE_NO_PAD.decode(signature).unwrap();
        for place in [0, bytes.len() / 2, bytes.len() - 1] {
            bytes[place] ^= 1;
            let forged = format!("{signed}.{}", URL_SAFE_NO_PAD.encode(&bytes));
            assert_eq!(check(&forged, &keys()), Err(Unacceptable::Signature), "{name}");
            bytes[place] ^= 1;
        }
        let cut = format!("{signed}.{}", URL_SAFE_NO_PAD.encode(&bytes[..bytes.len() - 1]));
        assert_eq!(check(&cut, &keys()), Err(Unacceptable::Signature), "{name}");
        assert_eq!(check(&format!("{signed}."), &keys()), Err(Unacceptable::Signature), "{name}");
    }
}

#[test]
fn a_signature_counts_for_the_algorithm_and_the_key_that_made_it_alone() {
    let keys = keys();
    for (made_by, token) in tokens() {
        let (signed, signature) = token.rsplit_once('.').unwrap();
        let signature = URL_SAFE_NO_PAD.decode(signature).unwrap();
        let own = Unverified::parse(&token).unwrap();
        for (named, _) in tokens() {
            let named = Algorithm::named(&named).unwrap();
            for kid in ["rsa", "p256", "p384", "ed"] {
                let accepted = keys
                    .find(Some(kid), named)
                    .is_some_and(|key| key.has_signed(named, signed.as_bytes(), &signature));
                let expected = named == own.algorithm && own.key_id.as_deref() == Some(kid);
                assert_eq!(accepted, expected, "{made_by} as {named:?} by {kid}");
            }
        }
    }
}

#[test]
fn shared_secrets_and_no_signature_at_all_are_not_accepted() {
    let (_, token) = tokens().remove(0);
    for name in
        ["none", "None", "NONE", "HS256", "HS384", "HS512", "ES256K", "ES512", "rs256", "", "A\"\\\u{7f}B"]
    {
        let refused = check(&altered(&token, Some(json!({ "alg": name, "kid": "rsa" })), None), &keys());
        assert!(matches!(refused, Err(Unacceptable::Algorithm(_))), "{name}: {refused:?}");
    }
    let shown = check(&altered(&token, Some(json!({ "alg": "A\"\\\u{7f}B" })), None), &keys()).unwrap_err();
    assert_eq!(shown, Unacceptable::Algorithm("AB".into()));
}

#[test]
fn a_header_that_asks_for_more_or_is_of_another_kind_is_refused() {
    let (_, token) = tokens().remove(0);
    let with = |header: Value| check(&altered(&token, Some(header), None), &keys()).unwrap_err();
    assert_eq!(
        with(json!({ "alg": "RS256", "kid": "rsa", "crit": ["b64"], "b64": false })),
        Unacceptable::Critical
    );
    for bad in ["logout+jwt", "dpop+jwt", "secevent+jwt", ""] {
        assert_eq!(with(json!({ "alg": "RS256", "typ": bad })), Unacceptable::Type(bad.into()));
    }
    for good in ["JWT", "jwt", "at+jwt", "application/at+jwt", "AT+JWT"] {
        assert_eq!(with(json!({ "alg": "RS256", "kid": "rsa", "typ": good })), Unacceptable::Signature);
    }
    // A key that a token brings along is nobody's.
    let own = vectors()["keys"][0].clone();
    let header = json!({ "alg": "RS256", "kid": "eve", "jwk": own, "jku": "https://evil.example", "x5u": "https://evil.example" });
    assert_eq!(with(header), Unacceptable::UnknownKey);
}

#[test]
fn damaged_tokens_are_refused_and_nothing_else_is_taken_for_one() {
    let (_, token) = tokens().remove(0);
    let [header, claims, signature]: [&str; 3] = token.split('.').collect::<Vec<_>>().try_into().unwrap();
    let no_object = URL_SAFE_NO_PAD.encode("[1]");
    let damaged = [
        format!("x.{claims}.{signature}"),
        format!("{claims}.{claims}.{signature}"),
        format!("{header}.x.{signature}"),
        format!("{header}.{no_object}.{signature}"),
        format!("{header}.{claims}.x"),
        format!("{header}.{claims}.{}", "A".repeat(20_000)),
        format!("{}.{claims}.{signature}", URL_SAFE_NO_PAD.encode(r#"{"alg":"RS256","alg":"none"}"#)),
    ];
    for text in damaged {
        assert!(looks_like_one(&text));
        assert!(matches!(check(&text, &keys()), Err(Unacceptable::Damaged(_))), "{text}");
    }
    for text in ["", ".", "..", "a..b", "a.b", "a.b.c.d", "a.b.c=", "a b.c.d", "cub_abc", "ä.b.c"] {
        assert!(!looks_like_one(text), "{text}");
    }
    assert!(
        looks_like_one(&format!("{header}.{claims}.")),
        "a token without a signature is refused as a token"
    );
}

#[test]
fn keys_that_cannot_check_tokens_are_left_out_of_a_set() {
    let (usable, unusable) = (vectors()["keys"].clone(), vectors()["unusable"].clone());
    let (usable, unusable) = (usable.as_array().unwrap(), unusable.as_array().unwrap());
    for key in unusable {
        let alone = KeySet::parse(key_set_text(std::slice::from_ref(key)).as_bytes());
        assert_eq!(alone, Err(NotAKeySet::NothingUsable), "{key}");
    }
    let mixed = KeySet::parse(key_set_text(&[unusable.as_slice(), usable].concat()).as_bytes()).unwrap();
    assert_eq!(mixed.len(), usable.len());
    for bad in ["", "[]", "{}", r#"{"keys": 1}"#, "<html>"] {
        assert_eq!(KeySet::parse(bad.as_bytes()), Err(NotAKeySet::Unreadable), "{bad}");
    }
    let many = vec![usable[0].clone(); 101];
    assert_eq!(KeySet::parse(key_set_text(&many).as_bytes()), Err(NotAKeySet::TooMany));
}

#[test]
fn a_key_is_found_by_its_id_or_by_being_the_only_one_that_fits() {
    let keys = keys();
    assert!(keys.find(Some("rsa"), Algorithm::Ps512).is_some());
    assert!(keys.find(Some("rsa"), Algorithm::Es256).is_none());
    assert!(keys.find(Some("nobody"), Algorithm::Rs256).is_none());
    assert!(keys.find(None, Algorithm::Rs256).is_some());
    let mut two = vectors()["keys"].as_array().unwrap().clone();
    let mut second = two[0].clone();
    second["kid"] = "second".into();
    second["alg"] = "RS256".into();
    two.push(second);
    let two = KeySet::parse(key_set_text(&two).as_bytes()).unwrap();
    assert!(two.find(None, Algorithm::Rs256).is_none(), "two fit");
    assert!(two.find(None, Algorithm::Rs512).is_some(), "the second is for RS256 alone");
    assert!(two.find(Some("second"), Algorithm::Rs512).is_none());
}
