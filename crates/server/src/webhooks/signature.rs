//! Signatures of bodies, in two forms: `X-Webhook-Signature: sha256=HEX` over the raw body, and that of Standard Webhooks,
//! which is also over an id and a time.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cubicle_model::hexadecimal;
use hmac::Mac;

use super::authenticated;

/// What is kept of what a receiver answers.
pub(crate) const LONGEST_ANSWER: usize = 1024;
/// What a secret of Standard Webhooks begins with; the rest is base64.
const PREFIX: &str = "whsec_";
const FORM: &str = "sha256=";
const VERSION: &str = "v1,";
/// How far the time of a call may be from ours: Standard Webhooks leaves it to the receiver, and libraries take this.
const TOLERANCE_SECONDS: i64 = 5 * 60;
/// A header of many signatures is somebody who tries.
const MOST_SIGNATURES: usize = 8;

/// A secret for a new endpoint.
pub(crate) fn new_secret(bits: [u8; 32]) -> String {
    format!("{PREFIX}{}", STANDARD.encode(bits))
}

/// The key that a secret stands for in Standard Webhooks.
fn standard_key(secret: &[u8]) -> Cow<'_, [u8]> {
    let decoded = secret.strip_prefix(PREFIX.as_bytes()).and_then(|rest| STANDARD.decode(rest).ok());
    decoded.map_or(Cow::Borrowed(secret), Cow::Owned)
}

/// What a delivery is sent with. The first secret signs in the older form, which has room for one signature; all of them
/// sign in the other, so that a receiver can change its secret in its own time.
pub(crate) fn headers(
    secrets: &[Vec<u8>],
    id: &str,
    seconds: i64,
    body: &[u8],
) -> Vec<(&'static str, String)> {
    let mut headers = vec![("webhook-id", id.to_owned()), ("webhook-timestamp", seconds.to_string())];
    if let Some(first) = secrets.first() {
        let signature = authenticated(first, &[body]).finalize().into_bytes();
        headers.push(("x-webhook-signature", format!("{FORM}{}", hexadecimal(&signature))));
        let signatures: Vec<_> = secrets.iter().map(|secret| standard(secret, id, seconds, body)).collect();
        headers.push(("webhook-signature", signatures.join(" ")));
    }
    headers
}

fn standard(secret: &[u8], id: &str, seconds: i64, body: &[u8]) -> String {
    let seconds = seconds.to_string();
    let mac = authenticated(&standard_key(secret), &[id.as_bytes(), b".", seconds.as_bytes(), b".", body]);
    format!("{VERSION}{}", STANDARD.encode(mac.finalize().into_bytes()))
}

/// What a call says of its signature.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Signed<'a> {
    /// `X-Webhook-Signature`.
    pub(crate) plain: Option<&'a str>,
    /// `webhook-id`, `webhook-timestamp`, `webhook-signature`.
    pub(crate) standard: Option<(&'a str, &'a str, &'a str)>,
}

impl Signed<'_> {
    /// Whether one of the secrets made one of the signatures, compared in a time that does not depend on what is given.
    pub(crate) fn is_by(&self, secrets: &[Vec<u8>], body: &[u8], now_seconds: i64) -> bool {
        let plain = self.plain.and_then(|header| unhexed(header.trim().strip_prefix(FORM)?));
        if let Some(given) = plain
            && secrets.iter().any(|secret| authenticated(secret, &[body]).verify_slice(&given).is_ok())
        {
            return true;
        }
        let Some((id, time, signatures)) = self.standard else { return false };
        let fresh = |seconds: i64| seconds.abs_diff(now_seconds) <= TOLERANCE_SECONDS.unsigned_abs();
        if !time.parse::<i64>().is_ok_and(fresh) || id.is_empty() {
            return false;
        }
        let given = signatures.split(' ').filter_map(|one| STANDARD.decode(one.strip_prefix(VERSION)?).ok());
        given.take(MOST_SIGNATURES).any(|given| {
            secrets.iter().any(|secret| {
                let parts = [id.as_bytes(), b".", time.as_bytes(), b".", body];
                authenticated(&standard_key(secret), &parts).verify_slice(&given).is_ok()
            })
        })
    }
}

/// Of hexadecimal digits, in pairs.
pub(super) fn unhexed(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| (byte as char).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pairs = text.as_bytes().chunks_exact(2);
    if !pairs.remainder().is_empty() {
        return None;
    }
    pairs.map(|pair| Some((digit(pair[0])? << 4) | digit(pair[1])?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &[u8] = b"{\"test\": 2432232314}";

    fn plain(header: &str, secrets: &[&str], body: &[u8]) -> bool {
        let secrets: Vec<_> = secrets.iter().map(|secret| secret.as_bytes().to_vec()).collect();
        Signed { plain: Some(header), standard: None }.is_by(&secrets, body, 0)
    }

    #[test]
    fn the_plain_form_is_what_everybody_computes() {
        // From `printf 'what do ya want for nothing?' | openssl dgst -sha256 -hmac Jefe`, which is RFC 4231's second case.
        let known = "sha256=5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
        let body = b"what do ya want for nothing?";
        assert!(plain(known, &["Jefe"], body));
        assert!(plain(&known.to_uppercase().replace("SHA256", "sha256"), &["Jefe"], body));
        assert!(plain(known, &["new", "Jefe"], body), "one of two secrets will do");
        let made = headers(&[b"Jefe".to_vec()], "x", 1, body);
        assert!(made.contains(&("x-webhook-signature", known.to_owned())), "{made:?}");
        for (header, secret, body) in [
            (known, "jefe", &body[..]),
            (known, "Jefe", b"what do ya want for nothing!"),
            (known, "Jefe", b""),
            (&known[7..], "Jefe", body),
            (&known[..known.len() - 2], "Jefe", body),
            ("sha256=", "Jefe", body),
            ("sha1=5bdcc146", "Jefe", body),
            ("sha256=5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec384g", "Jefe", body),
            ("", "Jefe", body),
        ] {
            assert!(!plain(header, &[secret], body), "{header} {secret}");
        }
        assert!(!plain(known, &[], body));
    }

    #[test]
    fn the_standard_form_is_that_of_the_specification() {
        // The example of the Standard Webhooks specification and of its reference libraries.
        let secret = b"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".to_vec();
        let (id, time) = ("msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330");
        let signature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        let is_by = |signatures: &str, time: &str, now: i64, secret: &[u8]| {
            let signed = Signed { plain: None, standard: Some((id, time, signatures)) };
            signed.is_by(&[secret.to_vec()], BODY, now)
        };
        let now = 1_614_265_330;
        assert!(is_by(signature, time, now, &secret));
        assert!(is_by(&format!("v2,abc v1a,xyz v1,AAAA {signature}"), time, now, &secret));
        assert!(is_by(signature, time, now + 299, &secret) && is_by(signature, time, now - 299, &secret));
        for (signatures, time, now, secret) in [
            (signature, time, now + 301, &secret[..]),
            (signature, time, now - 301, &secret),
            (signature, "1614265331", now, &secret),
            (signature, "x", now, &secret),
            (signature, time, now, b"whsec_AAAA"),
            (&signature[3..], time, now, &secret),
            ("v1,", time, now, &secret),
            ("", time, now, &secret),
        ] {
            assert!(!is_by(signatures, time, now, secret), "{signatures} {time} {now}");
        }
        let many = format!("{}{signature}", "v1,AAAA ".repeat(MOST_SIGNATURES));
        assert!(!is_by(&many, time, now, &secret), "nobody tries as often as they like");
        let made = headers(&[secret], id, now, BODY);
        assert!(made.contains(&("webhook-signature", signature.to_owned())), "{made:?}");
    }

    #[test]
    fn what_is_sent_can_be_verified_by_either_secret() {
        let secrets = [new_secret([1; 32]).into_bytes(), b"old".to_vec()];
        let made = headers(&secrets, "dlv-1", 100, BODY);
        let header = |name: &str| made.iter().find(|(known, _)| *known == name).unwrap().1.as_str();
        let standard = (header("webhook-id"), header("webhook-timestamp"), header("webhook-signature"));
        for secret in &secrets {
            let signed = Signed { plain: None, standard: Some(standard) };
            assert!(signed.is_by(std::slice::from_ref(secret), BODY, 100));
        }
        let signed = Signed { plain: Some(header("x-webhook-signature")), standard: None };
        assert!(signed.is_by(&secrets[..1], BODY, 0) && !signed.is_by(&secrets[1..], BODY, 0));
        let unsigned = headers(&[], "dlv-1", 100, BODY);
        assert_eq!(
            unsigned.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
            ["webhook-id", "webhook-timestamp"]
        );
    }
}
