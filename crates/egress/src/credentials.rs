//! Adds secrets to the requests that may carry them, on the way out.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cubicle_model::egress::{Host, HostName, Scheme};
use hyper::header::{AUTHORIZATION, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::http::uri::PathAndQuery;

use crate::refusal::Refusal;
use crate::secret::Secret;

/// Which secret goes to which host, and in which form.
#[derive(Debug, Clone)]
pub struct Credential {
    /// What the secret is called; its value may be missing or change.
    pub name: String,
    /// None while the secret is not set: requests to the host are refused, rather than sent without it.
    pub secret: Option<Secret>,
    /// The whole name: a credential has no wildcards, so that no other host can look like it.
    pub host: HostName,
    pub port: u16,
    pub form: Form,
    /// Without this the secret goes over TLS only.
    pub even_plain: bool,
}

/// How a request carries a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Form {
    /// `Authorization: Bearer …`
    Bearer,
    /// The value alone in a header, as in `x-api-key: …`
    Header(HeaderName),
    /// `Authorization: Basic …`, with this user name.
    Basic { user: String },
    /// A parameter of the query.
    Query(String),
}

/// Adds every secret that is bound to the host. Says whether there was one.
pub(crate) fn inject(
    credentials: &[Credential],
    scheme: Scheme,
    host: &Host,
    port: u16,
    request: &mut Parts,
) -> Result<bool, Refusal> {
    let Host::Name(host) = host else { return Ok(false) };
    let mut injected = false;
    for credential in credentials {
        let meant = credential.host == *host
            && credential.port == port
            && (scheme == Scheme::Https || credential.even_plain);
        if !meant {
            continue;
        }
        let missing = || Refusal::SecretMissing { secret: credential.name.clone(), host: host.clone() };
        let secret = credential.secret.as_ref().ok_or_else(missing)?;
        credential.form.add(secret.reveal(), request).ok_or_else(missing)?;
        injected = true;
    }
    Ok(injected)
}

impl Form {
    /// None when the value cannot stand where it belongs, as with a line feed in a header.
    fn add(&self, value: &[u8], request: &mut Parts) -> Option<()> {
        let header = |bytes: &[u8]| {
            let mut value = HeaderValue::from_bytes(bytes).ok()?;
            value.set_sensitive(true);
            Some(value)
        };
        // What the client sent under the same name is replaced: clients insist on sending some key.
        match self {
            Self::Bearer => {
                request.headers.insert(AUTHORIZATION, header(&[b"Bearer ", value].concat())?);
            }
            Self::Header(name) => {
                request.headers.insert(name.clone(), header(value)?);
            }
            Self::Basic { user } => {
                let encoded = STANDARD.encode([user.as_bytes(), b":", value].concat());
                request.headers.insert(AUTHORIZATION, header(format!("Basic {encoded}").as_bytes())?);
            }
            Self::Query(parameter) => {
                let (path, query) = (request.uri.path(), request.uri.query().unwrap_or_default());
                let other = |pair: &&str| pair.split('=').next() != Some(parameter) && !pair.is_empty();
                let mut pairs: Vec<String> = query.split('&').filter(other).map(str::to_owned).collect();
                pairs.push(format!("{}={}", percent(parameter.as_bytes()), percent(value)));
                let target: PathAndQuery = format!("{path}?{}", pairs.join("&")).parse().ok()?;
                let mut uri = std::mem::take(&mut request.uri).into_parts();
                uri.path_and_query = Some(target);
                request.uri = hyper::Uri::from_parts(uri).ok()?;
            }
        }
        Some(())
    }
}

fn percent(bytes: &[u8]) -> String {
    let keep = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~".contains(byte);
    bytes
        .iter()
        .map(|byte| if keep(byte) { char::from(*byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(uri: &str) -> Parts {
        hyper::Request::get(uri)
            .header("authorization", "Bearer placeholder")
            .body(())
            .unwrap()
            .into_parts()
            .0
    }

    fn credential(form: Form) -> Credential {
        Credential {
            name: "KEY".into(),
            secret: Some(Secret::new("s3cr&t")),
            host: "api.example".parse().unwrap(),
            port: 443,
            form,
            even_plain: false,
        }
    }

    fn injected(form: Form, uri: &str) -> Parts {
        let mut parts = request(uri);
        let host = "api.example".parse().unwrap();
        assert!(inject(&[credential(form)], Scheme::Https, &host, 443, &mut parts).unwrap());
        parts
    }

    #[test]
    fn every_form_replaces_what_the_client_sent() {
        let bearer = injected(Form::Bearer, "/v1");
        assert_eq!(bearer.headers.get_all("authorization").iter().collect::<Vec<_>>(), ["Bearer s3cr&t"]);
        assert!(bearer.headers["authorization"].is_sensitive());
        let header = injected(Form::Header(HeaderName::from_static("x-api-key")), "/v1");
        assert_eq!(header.headers["x-api-key"], "s3cr&t");
        let basic = injected(Form::Basic { user: "u".into() }, "/v1");
        assert_eq!(basic.headers["authorization"], "Basic dTpzM2NyJnQ=");
        for (given, expected) in
            [("/v1", "/v1?key=s3cr%26t"), ("/v1?a=1&key=x&b=2", "/v1?a=1&b=2&key=s3cr%26t")]
        {
            assert_eq!(injected(Form::Query("key".into()), given).uri, expected);
        }
    }

    #[test]
    fn a_secret_goes_to_its_host_over_tls_alone() {
        let credentials = [credential(Form::Bearer)];
        for (scheme, host, port) in [
            (Scheme::Http, "api.example", 443),
            (Scheme::Https, "api.example", 8443),
            (Scheme::Https, "api.example.evil.example", 443),
            (Scheme::Https, "xapi.example", 443),
            (Scheme::Https, "xn--api-example", 443),
            (Scheme::Https, "93.184.216.34", 443),
        ] {
            let mut parts = request("/");
            assert!(
                !inject(&credentials, scheme, &host.parse().unwrap(), port, &mut parts).unwrap(),
                "{host}"
            );
            assert_eq!(parts.headers["authorization"], "Bearer placeholder");
        }
    }

    #[test]
    fn a_missing_or_impossible_secret_is_a_refusal() {
        let host = "api.example".parse().unwrap();
        for secret in [None, Some(Secret::new("a\r\nx: y"))] {
            let credentials = [Credential { secret, ..credential(Form::Bearer) }];
            let refusal = inject(&credentials, Scheme::Https, &host, 443, &mut request("/")).unwrap_err();
            assert_eq!(refusal.to_string(), "the secret 'KEY', which is bound to api.example, is not set");
        }
    }
}
