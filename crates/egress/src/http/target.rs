//! Where a request wants to go. All that it says about that must agree.

use cubicle_model::egress::{Host, HostName, Scheme};
use hyper::header::HOST;
use hyper::{HeaderMap, Uri};

use super::Scene;
use crate::connect::authority;
use crate::outlet::Base;
use crate::refusal::BadRequest;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Target {
    pub(crate) scheme: Scheme,
    pub(crate) host: Host,
    pub(crate) port: u16,
}

impl Target {
    /// As it stands in a Host header.
    pub(super) fn authority(&self) -> String {
        if self.scheme.default_port() == Some(self.port) {
            self.host.to_string()
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

pub(super) fn find(
    scene: &Scene,
    uri: &Uri,
    headers: &HeaderMap,
    bases: &[Base],
    domain: &HostName,
) -> Result<Target, BadRequest> {
    let said = said(uri)?;
    let header = host_header(headers)?;
    let target = match scene {
        Scene::Proxy => match (said, &header) {
            (Some(target), _) => target,
            // A virtual host may be asked for as if the gateway were it.
            (None, Some((host, port))) if is_below(host, domain) => {
                Target { scheme: Scheme::Http, host: host.clone(), port: port.unwrap_or(80) }
            }
            (None, _) => return Err(BadRequest::NotAProxyRequest),
        },
        Scene::Fixed { scheme, host, port } => {
            let fixed = Target { scheme: *scheme, host: host.clone(), port: *port };
            if header.is_none() {
                return Err(BadRequest::NoHost);
            }
            if let Some(said) = said.filter(|said| *said != fixed) {
                return Err(BadRequest::HostMismatch {
                    request: said.authority(),
                    header: fixed.authority(),
                });
            }
            fixed
        }
    };
    if let Some((host, port)) = header {
        let default = target.scheme.default_port().unwrap_or(80);
        if (&host, port.unwrap_or(default)) != (&target.host, target.port) {
            let header = port.map_or_else(|| host.to_string(), |port| format!("{host}:{port}"));
            return Err(BadRequest::HostMismatch { request: target.authority(), header });
        }
    }
    outside(target, bases, domain)
}

/// What the request line says, when it says more than a path.
fn said(uri: &Uri) -> Result<Option<Target>, BadRequest> {
    let scheme = match uri.scheme_str() {
        None if uri.authority().is_none() && uri.path().starts_with('/') => return Ok(None),
        Some("http") => Scheme::Http,
        Some("https") => return Err(BadRequest::HttpsWithoutConnect),
        _ => return Err(BadRequest::NotAProxyRequest),
    };
    let said = uri.authority().ok_or(BadRequest::NotAProxyRequest)?;
    let (host, port) = authority(said.as_str())?;
    Ok(Some(Target { scheme, host, port: port.unwrap_or(80) }))
}

fn host_header(headers: &HeaderMap) -> Result<Option<(Host, Option<u16>)>, BadRequest> {
    let mut values = headers.get_all(HOST).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(_), Some(_)) => Err(BadRequest::NoHost),
        (Some(value), None) => {
            let text = String::from_utf8_lossy(value.as_bytes());
            authority(&text).map(Some)
        }
    }
}

fn is_below(host: &Host, domain: &HostName) -> bool {
    matches!(host, Host::Name(name) if name.is_below(domain))
}

/// A virtual host stands for what is configured for it; everything else for itself.
fn outside(target: Target, bases: &[Base], domain: &HostName) -> Result<Target, BadRequest> {
    let Host::Name(name) = &target.host else { return Ok(target) };
    if !name.is_below(domain) {
        return Ok(target);
    }
    let plain = target.scheme == Scheme::Http && target.port == 80;
    let label =
        name.split_first().filter(|(_, rest)| *rest == domain.as_str() && plain).map(|(label, _)| label);
    let base = bases.iter().find(|base| Some(base.name.as_str()) == label);
    let base = base.ok_or_else(|| BadRequest::NoSuchBase(name.clone()))?;
    Ok(Target { scheme: base.scheme, host: base.host.clone(), port: base.port })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(scene: &Scene, uri: &str, hosts: &[&str]) -> Result<String, BadRequest> {
        let mut headers = HeaderMap::new();
        for host in hosts {
            headers.append(HOST, host.parse().unwrap());
        }
        let bases = [Base {
            name: "api".into(),
            scheme: Scheme::Https,
            host: "api.example".parse().unwrap(),
            port: 443,
        }];
        let domain = "egress.internal".parse().unwrap();
        find(scene, &uri.parse().unwrap(), &headers, &bases, &domain)
            .map(|target| format!("{}://{}:{}", target.scheme.name(), target.host, target.port))
    }

    #[test]
    fn a_proxy_request_names_one_host() {
        for (uri, hosts, expected) in [
            ("http://a.example/x", &["a.example"][..], Some("http://a.example:80")),
            ("http://A.example./x", &["a.example:80"], Some("http://a.example:80")),
            ("http://a.example:8080/", &["a.example:8080"], Some("http://a.example:8080")),
            ("http://a.example/", &[], Some("http://a.example:80")),
            ("http://[2606:4700::1]/", &["[2606:4700::1]"], Some("http://[2606:4700::1]:80")),
            ("http://api.egress.internal/v1", &["api.egress.internal"], Some("https://api.example:443")),
            ("/v1", &["api.egress.internal"], Some("https://api.example:443")),
            ("http://a.example/", &["b.example"], None),
            ("http://a.example/", &["a.example:81"], None),
            ("http://a.example/", &["a.example", "a.example"], None),
            ("http://user@a.example/", &[], None),
            ("http://a.example@evil.example/", &[], None),
            ("https://a.example/", &["a.example"], None),
            ("ftp://a.example/", &[], None),
            ("http://2130706433/", &[], None),
            ("http://0x7f.1/", &[], None),
            ("http://a.example:0/", &[], None),
            ("/x", &["a.example"], None),
            ("*", &["a.example"], None),
            ("a.example:443", &[], None),
            ("http://other.egress.internal/", &["other.egress.internal"], None),
            ("http://x.api.egress.internal/", &[], None),
            ("http://api.egress.internal:8080/", &[], None),
            ("http://egress.internal/", &[], Some("http://egress.internal:80")),
        ] {
            assert_eq!(found(&Scene::Proxy, uri, hosts).ok().as_deref(), expected, "{uri} {hosts:?}");
        }
    }

    #[test]
    fn a_request_in_a_tunnel_is_for_its_host() {
        let scene = Scene::Fixed { scheme: Scheme::Https, host: "a.example".parse().unwrap(), port: 443 };
        for (uri, hosts, good) in [
            ("/x", &["a.example"][..], true),
            ("/x", &["a.example:443"], true),
            ("/x", &["a.example:80"], false),
            ("/x", &["b.example"], false),
            ("/x", &[], false),
            ("/x", &["a.example", "b.example"], false),
            ("http://a.example/", &["a.example"], false),
            ("http://b.example/", &["a.example"], false),
            ("*", &["a.example"], false),
        ] {
            assert_eq!(found(&scene, uri, hosts).is_ok(), good, "{uri} {hosts:?}");
        }
    }
}
