//! Ends TLS in the gateway, for hosts that a policy names. Certificates come from an authority of this deployment,
//! which only its sandboxes trust.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use cubicle_model::egress::{Host, Scheme};
use cubicle_model::{Fault, Kind, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::http::{self, Scene};
use crate::outlet::Outlet;
use crate::stream::{Ahead, Stream};

const NAME: &str = "Cubicle egress authority";
const AUTHORITY_YEARS: i64 = 10;
const LEAF_DAYS: i64 = 30;
/// A certificate is used no longer than this, so that the gateway may run for ever.
const RENEW_SECONDS: i64 = 7 * 24 * 3600;
const MOST_LEAVES: usize = 512;

/// Issues certificates for inspected hosts.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    certificate_pem: String,
    leaves: Mutex<HashMap<Host, (i64, Arc<ServerConfig>)>>,
}

/// What an authority is kept as: its certificate, which sandboxes trust, and its key, which nobody sees.
#[derive(Clone)]
pub struct AuthorityFiles {
    pub certificate_pem: String,
    pub key_pem: String,
}

impl Authority {
    /// Makes a new authority.
    pub fn generate(now: Timestamp) -> Result<AuthorityFiles, Fault> {
        let key = KeyPair::generate().map_err(failed)?;
        let mut params = issuer_params()?;
        let (year, month, of_month) = day(now, jiff::Span::new().days(-1))?;
        params.not_before = rcgen::date_time_ymd(year, month, of_month);
        let (year, month, of_month) = day(now, jiff::Span::new().years(AUTHORITY_YEARS))?;
        params.not_after = rcgen::date_time_ymd(year, month, of_month);
        let certificate = params.self_signed(&key).map_err(failed)?;
        Ok(AuthorityFiles { certificate_pem: certificate.pem(), key_pem: key.serialize_pem() })
    }

    pub fn load(files: &AuthorityFiles) -> Result<Self, Fault> {
        let unusable = |what: &str| {
            Fault::new(Kind::Invalid, format!("the egress authority's {what} cannot be used"))
                .hint("remove both of its files, and a new one is made")
        };
        let key = KeyPair::from_pem(&files.key_pem).map_err(|error| unusable("key").because(error))?;
        let certificate = CertificateDer::from_pem_slice(files.certificate_pem.as_bytes())
            .map_err(|error| unusable("certificate").because(error))?;
        let own = key.public_key_raw();
        if !certificate.windows(own.len()).any(|part| part == own) {
            return Err(unusable("certificate, which is not for its key,"));
        }
        let issuer = Issuer::new(issuer_params()?, key);
        Ok(Self {
            issuer,
            certificate,
            certificate_pem: files.certificate_pem.clone(),
            leaves: Mutex::default(),
        })
    }

    /// What sandboxes are given to trust.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// TLS as the host, with a certificate that is made when it is first needed.
    fn config(&self, host: &Host, now: Timestamp) -> Result<Arc<ServerConfig>, Fault> {
        let seconds = now.as_second();
        let fresh = |made: i64| (0..RENEW_SECONDS).contains(&(seconds - made));
        {
            let leaves = self.leaves.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((_, config)) = leaves.get(host).filter(|(made, _)| fresh(*made)) {
                return Ok(Arc::clone(config));
            }
        }
        let config = Arc::new(self.issue(host, now)?);
        let mut leaves = self.leaves.lock().unwrap_or_else(PoisonError::into_inner);
        if leaves.len() >= MOST_LEAVES {
            leaves.clear();
        }
        leaves.insert(host.clone(), (seconds, Arc::clone(&config)));
        Ok(config)
    }

    fn issue(&self, host: &Host, now: Timestamp) -> Result<ServerConfig, Fault> {
        let name = match host {
            Host::Name(name) => name.to_string(),
            Host::Address(address) => address.to_string(),
        };
        let key = KeyPair::generate().map_err(failed)?;
        let mut params = CertificateParams::new([name.clone()]).map_err(failed)?;
        params.distinguished_name = DistinguishedName::new();
        // A common name has at most 64 characters; the name that counts is the alternative one.
        params.distinguished_name.push(DnType::CommonName, name.chars().take(64).collect::<String>());
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        // Clocks of sandboxes are the host's, but a day of slack costs nothing.
        let (year, month, of_month) = day(now, jiff::Span::new().days(-1))?;
        params.not_before = rcgen::date_time_ymd(year, month, of_month);
        let (year, month, of_month) = day(now, jiff::Span::new().days(LEAF_DAYS))?;
        params.not_after = rcgen::date_time_ymd(year, month, of_month);
        let leaf = params.signed_by(&key, &self.issuer).map_err(failed)?;
        let key = PrivateKeyDer::try_from(key.serialize_der()).map_err(|error| failed(error.to_owned()))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(failed)?
            .with_no_client_auth()
            .with_single_cert(vec![leaf.der().clone(), self.certificate.clone()], key)
            .map_err(failed)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}

fn failed(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Fault {
    Fault::new(Kind::Internal, "a certificate cannot be made").because(error)
}

fn issuer_params() -> Result<CertificateParams, Fault> {
    let mut params = CertificateParams::new(Vec::<String>::new()).map_err(failed)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, NAME);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

/// The day that is this far from now.
fn day(now: Timestamp, span: jiff::Span) -> Result<(i32, u8, u8), Fault> {
    let date = now.to_zoned(jiff::tz::TimeZone::UTC).date().checked_add(span).map_err(failed)?;
    Ok((i32::from(date.year()), date.month().unsigned_abs(), date.day().unsigned_abs()))
}

/// Serves a client as the host that it asked for, and decides its requests one by one.
pub(crate) async fn serve(
    outlet: &Arc<Outlet>,
    authority: &Authority,
    client: Ahead<Stream>,
    host: &Host,
    port: u16,
) {
    let shared = outlet.shared();
    let config = match authority.config(host, (shared.outside.clock)()) {
        Ok(config) => config,
        Err(error) => {
            tracing::error!(sandbox = %outlet.sandbox(), %host, ?error, "egress cannot inspect");
            return;
        }
    };
    let accepting = TlsAcceptor::from(config).accept(client);
    // A client that does not trust the authority hangs up here.
    let Ok(Ok(stream)) = timeout(shared.limits.head_deadline, accepting).await else { return };
    let scene = Scene::Fixed { scheme: Scheme::Https, host: host.clone(), port };
    http::serve(Arc::clone(outlet), stream, scene).await;
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authority")
    }
}

impl fmt::Debug for AuthorityFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AuthorityFiles")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_authority_can_be_kept_and_loaded() {
        let now = Timestamp::from_second(1_750_000_000).unwrap();
        let files = Authority::generate(now).unwrap();
        let authority = Authority::load(&files).unwrap();
        let host: Host = "a.example".parse().unwrap();
        let first = authority.config(&host, now).unwrap();
        assert!(Arc::ptr_eq(&first, &authority.config(&host, now).unwrap()));
        let later = Timestamp::from_second(1_750_000_000 + RENEW_SECONDS).unwrap();
        assert!(!Arc::ptr_eq(&first, &authority.config(&host, later).unwrap()));
        assert!(!format!("{files:?}{authority:?}").contains("PRIVATE"));
    }

    #[test]
    fn a_certificate_with_another_key_is_refused() {
        let now = Timestamp::from_second(1_750_000_000).unwrap();
        let (one, other) = (Authority::generate(now).unwrap(), Authority::generate(now).unwrap());
        let mixed = AuthorityFiles { key_pem: other.key_pem, ..one.clone() };
        assert!(Authority::load(&mixed).unwrap_err().to_string().contains("not for its key"));
        let broken = AuthorityFiles { key_pem: "x".into(), ..one };
        assert!(Authority::load(&broken).unwrap_err().way_out().is_some());
    }
}
