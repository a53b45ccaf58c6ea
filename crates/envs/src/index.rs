//! Where packages come from.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use cubicle_model::egress::{Attempt, Ruleset, Scheme, Verdict, Via, WebAddress};
use cubicle_model::{Fault, Kind};

/// An index that the operator named. It may hold a user name and a password, which only uv is told.
#[derive(Clone, PartialEq, Eq)]
pub struct Index {
    address: WebAddress,
    whole: String,
}

impl Index {
    pub fn address(&self) -> &WebAddress {
        &self.address
    }
}

impl FromStr for Index {
    type Err = <WebAddress as FromStr>::Err;

    fn from_str(given: &str) -> Result<Self, Self::Err> {
        Ok(Self { address: given.parse()?, whole: given.trim().to_owned() })
    }
}

impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Index({})", self.address)
    }
}

/// Indexes of the operator. Without a default index it is the one that uv has built in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Indexes {
    pub default_index: Option<Index>,
    pub extra_indices: Vec<Index>,
    /// Hosts whose certificates are not checked, as `host` or `host:port`.
    pub trusted_hosts: Vec<String>,
    /// Directories of this host with wheels.
    pub find_links: Vec<PathBuf>,
    /// Use nothing but the directories.
    pub no_index: bool,
}

/// An index that a request named and that the egress decision allows. There is no other way to make one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedIndex {
    address: WebAddress,
    proxy: Option<WebAddress>,
}

impl AllowedIndex {
    /// Decides by name and for every address that the name leads to. What the index links to, and addresses that the name
    /// leads to a moment later, are not decided on here: `through` the gateway they are.
    pub fn decide(address: &WebAddress, rules: &Ruleset, leads_to: &[IpAddr]) -> Result<Self, Fault> {
        let denied = |why: String| {
            Fault::new(Kind::Denied, format!("the package index {address} may not be reached: {why}")).hint(
                "leave python_index out, or ask the operator to allow its host in the policy or in \
                 sandbox.python_index",
            )
        };
        let via = match address.scheme {
            Scheme::Https => Via::Tunnel,
            scheme => Via::Request { scheme, method: "GET", path: &address.path },
        };
        let attempt = Attempt { host: &address.host, port: address.port, via };
        if leads_to.is_empty() {
            return Err(denied("its name leads to no address".into()));
        }
        let verdicts = std::iter::once(rules.by_name(&attempt))
            .chain(leads_to.iter().map(|at| rules.at_address(&attempt, *at)));
        for verdict in verdicts {
            match verdict {
                Verdict::Allow(_) => {}
                _ => return Err(denied("the egress policy does not allow it".into())),
            }
        }
        Ok(Self { address: address.clone(), proxy: None })
    }

    /// The same, reached through a proxy that decides on every connection.
    #[must_use]
    pub fn through(self, proxy: WebAddress) -> Self {
        Self { proxy: Some(proxy), ..self }
    }

    pub fn address(&self) -> &WebAddress {
        &self.address
    }
}

/// Where one resolution gets packages from: the operator's indexes, or one that a request named and no other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    Operator(Indexes),
    Request(AllowedIndex),
}

impl Source {
    /// What the key of an environment says of it: no password, and nothing that changes without the index changing.
    pub(crate) fn identity(&self) -> String {
        match self {
            Self::Request(index) => format!("request {}", shown(&index.address)),
            Self::Operator(indexes) => {
                let mut parts = Vec::new();
                if indexes.no_index {
                    parts.push("no index".to_owned());
                } else {
                    let first = indexes.default_index.as_ref().map(|index| shown(&index.address));
                    parts.push(first.unwrap_or_else(|| "built in".to_owned()));
                    parts.extend(indexes.extra_indices.iter().map(|index| shown(&index.address)));
                }
                parts.extend(indexes.find_links.iter().map(|path| format!("links {}", path.display())));
                parts.join(" ")
            }
        }
    }

    pub(crate) fn arguments(&self) -> Vec<String> {
        let Self::Operator(indexes) = self else { return Vec::new() };
        let mut arguments = Vec::new();
        if indexes.no_index {
            arguments.push("--no-index".to_owned());
        }
        for path in &indexes.find_links {
            arguments.extend(["--find-links".to_owned(), path.display().to_string()]);
        }
        for host in &indexes.trusted_hosts {
            arguments.extend(["--allow-insecure-host".to_owned(), host.clone()]);
        }
        arguments
    }

    /// Addresses are told by variables: everybody on a host can read the arguments of a process.
    pub(crate) fn variables(&self) -> Vec<(&'static str, String)> {
        let mut variables = Vec::new();
        match self {
            Self::Request(index) => {
                variables.push(("UV_DEFAULT_INDEX", index.address.to_string()));
                if let Some(proxy) = &index.proxy {
                    for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
                        variables.push((name, proxy.to_string()));
                    }
                    variables.push(("NO_PROXY", String::new()));
                }
            }
            Self::Operator(indexes) if !indexes.no_index => {
                if let Some(index) = &indexes.default_index {
                    variables.push(("UV_DEFAULT_INDEX", index.whole.clone()));
                }
                if !indexes.extra_indices.is_empty() {
                    let all: Vec<&str> =
                        indexes.extra_indices.iter().map(|index| index.whole.as_str()).collect();
                    variables.push(("UV_INDEX", all.join(" ")));
                }
            }
            Self::Operator(_) => {}
        }
        variables
    }
}

impl Indexes {
    /// Whether the operator has configured this very index, so that naming it is nothing new.
    pub fn include(&self, address: &WebAddress) -> bool {
        let known = self.default_index.iter().chain(&self.extra_indices);
        !self.no_index && known.into_iter().any(|index| shown(&index.address) == shown(address))
    }
}

fn shown(address: &WebAddress) -> String {
    address.to_string().trim_end_matches('/').to_owned()
}

#[cfg(test)]
mod tests {
    use cubicle_model::egress::{Bundles, OwnAddresses, Policy};

    use super::*;

    fn rules(text: &str) -> Ruleset {
        let policy: Policy = text.parse().unwrap();
        policy.resolve(&Bundles::default(), &OwnAddresses::default()).unwrap()
    }

    fn decide(address: &str, rules_text: &str, leads_to: &[&str]) -> Result<AllowedIndex, Fault> {
        let leads_to: Vec<IpAddr> = leads_to.iter().map(|text| text.parse().unwrap()).collect();
        AllowedIndex::decide(&address.parse().unwrap(), &rules(rules_text), &leads_to)
    }

    #[test]
    fn an_index_of_a_request_is_used_only_where_the_egress_decision_allows_it() {
        let allow = "allow https://index.example";
        assert!(decide("https://index.example/simple", allow, &["93.184.216.34"]).is_ok());
        for (address, policy, leads_to) in [
            ("https://other.example/simple", allow, vec!["93.184.216.34"]),
            ("https://index.example/simple", "none", vec!["93.184.216.34"]),
            ("https://index.example/simple", allow, vec![]),
            ("https://index.example/simple", allow, vec!["169.254.169.254"]),
            ("https://index.example/simple", allow, vec!["93.184.216.34", "10.0.0.1"]),
            ("https://index.example:8443/simple", allow, vec!["93.184.216.34"]),
            ("http://127.0.0.1:8080/simple", "open", vec!["127.0.0.1"]),
        ] {
            let fault = decide(address, policy, &leads_to).unwrap_err();
            assert_eq!(fault.kind(), Kind::Denied, "{address} {leads_to:?}");
        }
    }

    #[test]
    fn passwords_of_indexes_are_told_to_uv_and_nobody_else() {
        let indexes = Indexes {
            default_index: Some("https://ada:hunter2@index.example/simple/".parse().unwrap()),
            extra_indices: vec!["https://bob:hunter2@extra.example/simple".parse().unwrap()],
            ..Indexes::default()
        };
        let source = Source::Operator(indexes.clone());
        assert!(!format!("{source:?} {}", source.identity()).contains("hunter2"));
        assert!(!source.arguments().join(" ").contains("hunter2"));
        assert_eq!(source.variables().iter().filter(|(_, value)| value.contains("hunter2")).count(), 2);
        assert!(indexes.include(&"https://index.example/simple".parse().unwrap()));
        assert!(!indexes.include(&"https://index.example/other".parse().unwrap()));
    }

    #[test]
    fn a_request_s_index_stands_alone() {
        let index = decide("https://index.example/simple", "allow https://index.example", &["93.184.216.34"]);
        let source = Source::Request(index.unwrap().through("http://127.0.0.1:3128".parse().unwrap()));
        assert_eq!(source.arguments(), Vec::<String>::new());
        let variables = source.variables();
        assert!(variables.contains(&("UV_DEFAULT_INDEX", "https://index.example/simple".into())));
        assert!(variables.contains(&("HTTPS_PROXY", "http://127.0.0.1:3128".into())));
        assert!(variables.iter().all(|(name, _)| *name != "UV_INDEX"));
    }
}
