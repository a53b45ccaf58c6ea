//! One rule of a policy.

use std::collections::BTreeSet;
use std::fmt;

use super::path::{Path, PathPattern};
use super::{Host, HostName, Network};

/// What is allowed, denied or looked into.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rule {
    pub verb: Verb,
    pub methods: Methods,
    pub target: Target,
    pub path: Option<PathPattern>,
    /// The host may be on a private network.
    pub private: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verb {
    Allow,
    Deny,
    /// The gateway may end TLS to this host in itself, to read the requests.
    Inspect,
}

impl Verb {
    pub const ALL: [Self; 3] = [Self::Allow, Self::Deny, Self::Inspect];

    pub fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Inspect => "inspect",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Target {
    pub scheme: Option<Scheme>,
    pub whom: Whom,
    pub ports: Ports,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scheme {
    /// Any protocol on one port.
    Tcp,
    Http,
    Https,
}

impl Scheme {
    pub const ALL: [Self; 3] = [Self::Tcp, Self::Http, Self::Https];

    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    pub fn default_port(self) -> Option<u16> {
        match self {
            Self::Tcp => None,
            Self::Http => Some(80),
            Self::Https => Some(443),
        }
    }
}

/// Which hosts a rule is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Whom {
    /// `*`: every host, by name or address.
    Any,
    Name(HostName),
    /// `*.example.org`: what lies below the name, at any depth.
    Below(HostName),
    /// `api-*.example.org`: one label with a fixed beginning and end, right below the name.
    Label {
        before: Box<str>,
        after: Box<str>,
        parent: HostName,
    },
    Network(Network),
}

impl Whom {
    pub fn covers(&self, host: &Host) -> bool {
        match (self, host) {
            (Self::Any, _) => true,
            (Self::Name(name), Host::Name(given)) => name == given,
            (Self::Below(parent), Host::Name(given)) => given.is_below(parent),
            (Self::Label { before, after, parent }, Host::Name(given)) => {
                given.split_first().is_some_and(|(label, rest)| {
                    let inner = label.strip_prefix(&**before).and_then(|label| label.strip_suffix(&**after));
                    rest == parent.as_str() && inner.is_some_and(|inner| !inner.is_empty())
                })
            }
            (Self::Network(network), Host::Address(address)) => network.contains(*address),
            (Self::Network(_), Host::Name(_)) | (_, Host::Address(_)) => false,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Ports {
    /// None was written: 80 and 443 for `allow`, 443 for `inspect`, all for `deny`.
    Unsaid,
    One(u16),
    Range(u16, u16),
    Any,
}

impl Ports {
    pub fn cover(self, verb: Verb, port: u16) -> bool {
        match self {
            Self::Unsaid => match verb {
                Verb::Allow => port == 80 || port == 443,
                Verb::Inspect => port == 443,
                Verb::Deny => true,
            },
            Self::One(only) => only == port,
            Self::Range(first, last) => (first..=last).contains(&port),
            Self::Any => true,
        }
    }
}

/// The methods that a rule is about; empty for all of them.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Methods(BTreeSet<Box<str>>);

impl Methods {
    pub fn new(methods: impl IntoIterator<Item = impl Into<Box<str>>>) -> Self {
        Self(methods.into_iter().map(Into::into).collect())
    }

    pub fn is_all(&self) -> bool {
        self.0.is_empty()
    }

    pub fn cover(&self, method: &str) -> bool {
        self.is_all() || self.0.contains(method)
    }
}

impl Rule {
    /// A rule that allows everything at this host and port.
    pub fn allowing(host: &Host, port: u16, scheme: Option<Scheme>) -> Self {
        let whom = match host {
            Host::Name(name) => Whom::Name(name.clone()),
            Host::Address(address) => Whom::Network(Network::of(*address)),
        };
        let scheme = scheme.or(match port {
            80 => Some(Scheme::Http),
            443 => Some(Scheme::Https),
            _ => None,
        });
        Self {
            verb: Verb::Allow,
            methods: Methods::default(),
            target: Target { scheme, whom, ports: Ports::One(port) },
            path: None,
            private: false,
        }
    }

    /// Whether host and port are what the rule is about, whatever is said to them.
    pub fn covers(&self, host: &Host, port: u16) -> bool {
        self.target.ports.cover(self.verb, port) && self.target.whom.covers(host)
    }

    /// Whether the rule can only be applied to a request that can be read.
    pub fn needs_requests(&self) -> bool {
        !self.methods.is_all() || self.path.is_some()
    }

    /// Whether the rule is about requests that come by this scheme.
    pub fn is_about(&self, scheme: Scheme) -> bool {
        self.target.scheme.is_none_or(|own| own == Scheme::Tcp || own == scheme)
    }

    /// Whether method and path are what the rule is about.
    pub fn fits(&self, method: &str, path: &Path) -> bool {
        self.methods.cover(method) && self.path.as_ref().is_none_or(|pattern| pattern.fits(path))
    }

    /// Whether the rule names one request, down to its path.
    pub fn is_one_request(&self) -> bool {
        !self.methods.is_all() && self.path.as_ref().is_some_and(PathPattern::is_exact)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.verb.name())?;
        if !self.methods.is_all() {
            let methods: Vec<_> = self.methods.0.iter().map(|method| &**method).collect();
            write!(f, "{} ", methods.join(","))?;
        }
        self.target.fmt(f)?;
        if let Some(path) = &self.path {
            path.fmt(f)?;
        }
        if self.private { f.write_str(" private") } else { Ok(()) }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(scheme) = self.scheme {
            write!(f, "{}://", scheme.name())?;
        }
        let default = self.scheme.and_then(Scheme::default_port);
        let unsaid =
            self.ports == Ports::Unsaid || default.is_some_and(|port| self.ports == Ports::One(port));
        match &self.whom {
            Whom::Any => f.write_str("*")?,
            Whom::Name(name) => name.fmt(f)?,
            Whom::Below(parent) => write!(f, "*.{parent}")?,
            Whom::Label { before, after, parent } => write!(f, "{before}*{after}.{parent}")?,
            Whom::Network(network) if network.is_ipv6() && (!unsaid || self.scheme.is_some()) => {
                write!(f, "[{network}]")?;
            }
            Whom::Network(network) => network.fmt(f)?,
        }
        match self.ports {
            _ if unsaid => Ok(()),
            Ports::Unsaid => Ok(()),
            Ports::One(port) => write!(f, ":{port}"),
            Ports::Range(first, last) => write!(f, ":{first}-{last}"),
            Ports::Any => f.write_str(":*"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_cover_whole_labels_only() {
        let parent: HostName = "example.org".parse().unwrap();
        let label = Whom::Label { before: "api-".into(), after: "".into(), parent: parent.clone() };
        let below = Whom::Below(parent);
        for (host, by_label, by_below) in [
            ("api-1.example.org", true, true),
            ("api-.example.org", false, false),
            ("api-1.x.example.org", false, true),
            ("example.org", false, false),
            ("evilexample.org", false, false),
            ("api-1.example.org.evil.example", false, false),
        ] {
            let Ok(host) = host.parse::<Host>() else { continue };
            assert_eq!(label.covers(&host), by_label, "{host}");
            assert_eq!(below.covers(&host), by_below, "{host}");
        }
    }

    #[test]
    fn a_port_that_is_not_written_means_the_web_for_allow_and_everything_for_deny() {
        for (verb, port, expected) in [
            (Verb::Allow, 80, true),
            (Verb::Allow, 443, true),
            (Verb::Allow, 22, false),
            (Verb::Inspect, 443, true),
            (Verb::Inspect, 80, false),
            (Verb::Deny, 22, true),
        ] {
            assert_eq!(Ports::Unsaid.cover(verb, port), expected, "{verb:?} {port}");
        }
    }
}
