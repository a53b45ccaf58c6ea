//! Whoever issues the certificates of the outside.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::PrivateKeyDer;

pub(crate) struct Issuing {
    issuer: Issuer<'static, KeyPair>,
    /// What a client trusts who trusts this issuer, as PEM.
    pub(crate) root: String,
}

impl Issuing {
    pub(crate) fn new(name: &str) -> Self {
        let key = KeyPair::generate().expect("keys can be made");
        let mut params = CertificateParams::new(Vec::<String>::new()).expect("no name is a good list");
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root = params.self_signed(&key).expect("it can be signed").pem();
        Self { issuer: Issuer::new(params, key), root }
    }

    /// A server with a certificate for these names that is valid today.
    pub(crate) fn server(&self, names: &[&str]) -> Arc<rustls::ServerConfig> {
        self.server_until(names, 2040)
    }

    pub(crate) fn server_until(&self, names: &[&str], year: i32) -> Arc<rustls::ServerConfig> {
        let key = KeyPair::generate().expect("keys can be made");
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("they are names");
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        let leaf = params.signed_by(&key, &self.issuer).expect("it can be signed").der().clone();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("ring has them")
            .with_no_client_auth()
            .with_single_cert(vec![leaf], PrivateKeyDer::try_from(key.serialize_der()).expect("a key"))
            .expect("the certificate is for its key");
        Arc::new(config)
    }
}
