//! Where a server is.

use std::fmt;
use std::str::FromStr;

use hyper::Uri;

/// The address of a server: `http://127.0.0.1:7878`, or `https://sandboxes.example.com/cubicle`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    pub(super) tls: bool,
    pub(super) host: String,
    pub(super) port: u16,
    /// What stands before every path, without a slash at its end.
    pub(super) prefix: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is not the address of a server: write it as in http://127.0.0.1:7878 or https://sandboxes.example.com"
)]
pub struct NotAnAddress(String);

impl FromStr for Address {
    type Err = NotAnAddress;

    fn from_str(given: &str) -> Result<Self, NotAnAddress> {
        let bad = || NotAnAddress(given.escape_default().to_string());
        let uri: Uri = given.parse().map_err(|_| bad())?;
        let tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(bad()),
        };
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(bad)?;
        let has_more = uri.query().is_some() || uri.authority().is_some_and(|all| all.as_str().contains('@'));
        if has_more {
            return Err(bad());
        }
        let port = uri.port_u16().unwrap_or(if tls { 443 } else { 80 });
        let prefix = uri.path().trim_end_matches('/').to_owned();
        Ok(Self { tls, host: host.to_owned(), port, prefix })
    }
}

impl Address {
    /// As the `Host` header has it.
    pub(super) fn authority(&self) -> String {
        match (self.tls, self.port) {
            (false, 80) | (true, 443) => self.host.clone(),
            (_, port) => format!("{}:{port}", self.host),
        }
    }

    /// The host as the resolver and certificates have it: an IPv6 address without its brackets.
    pub(super) fn bare_host(&self) -> &str {
        self.host.trim_start_matches('[').trim_end_matches(']')
    }

    /// Whether it is on this machine, whoever resolves it.
    pub fn is_loopback(&self) -> bool {
        let host = self.bare_host();
        host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority(), self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_and_shown() {
        let table = [
            ("http://127.0.0.1:7878", "http://127.0.0.1:7878", true),
            ("http://localhost:7878/", "http://localhost:7878", true),
            ("http://[::1]:7878", "http://[::1]:7878", true),
            ("https://box.example.com", "https://box.example.com", false),
            ("https://example.com:8443/cubicle/", "https://example.com:8443/cubicle", false),
        ];
        for (given, shown, loopback) in table {
            let address: Address = given.parse().unwrap();
            assert_eq!((address.to_string().as_str(), address.is_loopback()), (shown, loopback));
        }
        for given in [
            "",
            "localhost",
            "127.0.0.1:7878",
            "ftp://x",
            "http://",
            "http://a@b",
            "http://x/?q=1",
            "http://x y",
        ] {
            assert!(given.parse::<Address>().is_err(), "{given}");
        }
    }
}
