//! Something that somebody wants to reach, as a URL says it, and what would become of it.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use super::web_address::NotAWebAddress;
use super::{
    Allowed, Attempt, Conduct, Denied, Host, NotAHost, Reason, Ruleset, Scheme, Verdict, Via, WebAddress,
};

/// Without the user name, the password and the query that the URL may have had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// `Tcp` for anything that is neither of the web's.
    pub scheme: Scheme,
    pub host: Host,
    pub port: u16,
    path: String,
}

/// What is wrong is told without the text: it may hold a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotWanted {
    #[error(transparent)]
    Web(#[from] NotAWebAddress),
    #[error("a port is missing: write host:port, or https://host")]
    NoPort,
    #[error("the port is not a number from 1 to 65535")]
    Port,
    #[error("the host: {0}")]
    Host(#[from] NotAHost),
}

impl FromStr for Wanted {
    type Err = NotWanted;

    fn from_str(url: &str) -> Result<Self, NotWanted> {
        let place = match url.split_once("://") {
            None => url,
            Some(("tcp", place)) => place,
            Some(_) => {
                let WebAddress { scheme, host, port, path, .. } = url.parse()?;
                let path = if path.is_empty() { "/".to_owned() } else { path };
                return Ok(Self { scheme, host, port, path });
            }
        };
        let (host, port) = place.rsplit_once(':').ok_or(NotWanted::NoPort)?;
        let port = port.parse::<u16>().ok().filter(|port| *port != 0).ok_or(NotWanted::Port)?;
        // A password before the host is not repeated in what is wrong with it.
        let host = match host.contains('@') {
            true => return Err(NotAWebAddress::Form.into()),
            false => host.parse()?,
        };
        Ok(Self { scheme: Scheme::Tcp, host, port, path: String::new() })
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme.name(), self.host)?;
        if self.scheme.default_port() != Some(self.port) {
            write!(f, ":{}", self.port)?;
        }
        f.write_str(&self.path)
    }
}

impl Wanted {
    /// The decisions that the gateway takes, one after the other. TLS comes as a tunnel, and its requests are seen only
    /// where the policy says that they are looked into.
    pub fn decide(&self, rules: &Ruleset, method: &str, address: Option<IpAddr>) -> Result<Allowed, Denied> {
        let verdict = |via| {
            let attempt = Attempt { host: &self.host, port: self.port, via };
            let verdict = match address {
                Some(address) => rules.at_address(&attempt, address),
                None => rules.by_name(&attempt),
            };
            match verdict {
                Verdict::Allow(allowed) => Ok(allowed),
                Verdict::Deny(denied) => Err(denied),
                #[allow(unreachable_patterns, reason = "a verdict that is not known yet is a denial")]
                _ => Err(Denied {
                    what: format!("{}:{}", self.host, self.port),
                    reason: Reason::NotAllowed { near: None },
                    remedy: None,
                }),
            }
        };
        let request = Via::Request { scheme: self.scheme, method, path: &self.path };
        match self.scheme {
            Scheme::Http => verdict(request),
            Scheme::Tcp => verdict(Via::Tunnel),
            Scheme::Https => match verdict(Via::Tunnel)? {
                Allowed { conduct: Conduct::Inspected, .. } => verdict(request),
                allowed => Ok(allowed),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_that_cannot_be_read_is_refused_without_its_password() {
        for url in [
            "example.org",
            "ftp://ada:hunter2@a.example/",
            "a.example:0",
            "ada:hunter2@a.example:443",
            "https://",
        ] {
            let why = url.parse::<Wanted>().unwrap_err().to_string();
            assert!(!why.contains("hunter2"), "{why}");
        }
        let wanted: Wanted = "https://ada:hunter2@a.example/x?token=y".parse().unwrap();
        assert_eq!(wanted.to_string(), "https://a.example/x");
        assert_eq!("db.example:5432".parse::<Wanted>().unwrap().to_string(), "tcp://db.example:5432");
    }
}
