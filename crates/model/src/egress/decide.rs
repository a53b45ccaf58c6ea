//! The decision, in two steps: by name before anything is resolved, so that a refused name is never asked for; and by
//! address when the connection is made, for every address, so that no answer of a name server leads around it.

use std::fmt;
use std::net::IpAddr;

use super::address::{self, Standing};
use super::path::Path;
use super::{Budget, Host, HostName, Mode, OwnAddresses, Rule, Scheme, Verb, Whom};
use crate::Name;

/// What a client wants to reach.
#[derive(Debug, Clone, Copy)]
pub struct Attempt<'a> {
    pub host: &'a Host,
    pub port: u16,
    pub via: Via<'a>,
}

/// What is known of what will be said.
#[derive(Debug, Clone, Copy)]
pub enum Via<'a> {
    /// Bytes that are not read.
    Tunnel,
    /// One HTTP request. The path is as it was sent, without the query.
    Request { scheme: Scheme, method: &'a str, path: &'a str },
}

/// What is done with an attempt. A verdict that a caller does not know is a denial.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    Allow(Allowed),
    Deny(Denied),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allowed {
    /// The rule that allows it; none when the policy is open.
    pub rule: Option<Cited>,
    pub conduct: Conduct,
}

/// How a tunnel is carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conduct {
    /// Any bytes, as the rule says `tcp://`.
    Raw,
    /// As it is: TLS for the host that was named, or plain requests, which are decided one by one.
    Opaque,
    /// Only plain requests, as a rule chooses among them.
    Requests,
    /// TLS ends in the gateway, and its requests are decided one by one.
    Inspected,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denied {
    /// What was tried, as `host:port`.
    pub what: String,
    pub reason: Reason,
    /// A rule that would allow it, where one could.
    pub remedy: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// The policy is `none`.
    NoNetwork,
    /// No rule allows it. A rule for the same host came near.
    NotAllowed {
        near: Option<Cited>,
    },
    Rule(Cited),
    /// The rule chooses among requests, and a tunnel shows none.
    NeedsInspection(Cited),
    /// A rule chooses by path, and servers read this path in different ways.
    AmbiguousPath(Cited),
    Address {
        address: IpAddr,
        standing: Standing,
    },
}

/// A rule as an explanation names it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cited {
    pub rule: String,
    pub bundle: Option<Name>,
}

impl fmt::Display for Cited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}'", self.rule)?;
        self.bundle.as_ref().map_or(Ok(()), |bundle| write!(f, " of @{bundle}"))
    }
}

/// A policy whose bundles are resolved: what decisions are made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ruleset {
    mode: Mode,
    rules: Vec<(Rule, Option<Name>)>,
    budget: Budget,
    own: OwnAddresses,
}

impl Ruleset {
    pub(super) fn new(
        mode: Mode,
        rules: Vec<(Rule, Option<Name>)>,
        budget: Budget,
        own: OwnAddresses,
    ) -> Self {
        Self { mode, rules, budget, own }
    }

    /// Denies everything.
    pub fn none() -> Self {
        Self::new(Mode::None, Vec::new(), Budget::default(), OwnAddresses::default())
    }

    pub fn mode(&self) -> Mode {
        self.mode
    }

    pub fn budget(&self) -> Budget {
        self.budget
    }

    /// The same rules for a recording: what no rule denies is allowed, and addresses that are always refused stay so.
    pub fn for_recording(&self) -> Self {
        Self { mode: Mode::Open, ..self.clone() }
    }

    /// The first step: may this be tried at all?
    pub fn by_name(&self, attempt: &Attempt<'_>) -> Verdict {
        match self.named(attempt) {
            Ok(allowed) => Verdict::Allow(allowed),
            Err(reason) => Verdict::Deny(self.denied(attempt, reason)),
        }
    }

    /// The second step: may it be tried at this address, which the name led to? Includes the first.
    pub fn at_address(&self, attempt: &Attempt<'_>, address: IpAddr) -> Verdict {
        let allowed = self.named(attempt).and_then(|allowed| {
            self.addressed(attempt, &allowed, address)?;
            Ok(allowed)
        });
        match allowed {
            Ok(allowed) => Verdict::Allow(allowed),
            Err(reason) => Verdict::Deny(self.denied(attempt, reason)),
        }
    }

    /// Whether `at_own_host` can be another decision than `at_address`.
    pub fn minds_the_host(&self, port: u16) -> bool {
        self.own.are_everywhere(port)
    }

    /// The second step for an address of the very host on which the control plane runs, and maybe listens on all of them.
    pub fn at_own_host(&self, attempt: &Attempt<'_>, address: IpAddr) -> Verdict {
        let verdict = self.at_address(attempt, address);
        let reached = self.own.are_everywhere(attempt.port) && !self.names_its_request(attempt);
        match verdict {
            Verdict::Allow(_) if reached => {
                let reason = Reason::Address { address, standing: Standing::ControlPlane };
                Verdict::Deny(self.denied(attempt, reason))
            }
            verdict => verdict,
        }
    }

    /// Whether the name may be asked for: whether some port of it can be reached.
    pub fn may_resolve(&self, name: &HostName) -> bool {
        let host = Host::Name(name.clone());
        match self.mode {
            Mode::None => false,
            _ if self.rules.iter().any(|(rule, _)| denies_host(rule, &host)) => false,
            Mode::Open => true,
            Mode::Allowlist => {
                self.rules.iter().any(|(rule, _)| rule.verb == Verb::Allow && rule.target.whom.covers(&host))
            }
        }
    }

    /// The answer in words: the rule, and what would change it.
    pub fn explain(&self, attempt: &Attempt<'_>, addresses: &[IpAddr]) -> String {
        let verdict = addresses
            .iter()
            .map(|address| self.at_address(attempt, *address))
            .find(|verdict| matches!(verdict, Verdict::Deny(_)))
            .unwrap_or_else(|| self.by_name(attempt));
        match verdict {
            Verdict::Allow(allowed) => format!("{}:{} is allowed: {allowed}", attempt.host, attempt.port),
            Verdict::Deny(denied) => match &denied.remedy {
                Some(remedy) => format!("{denied}; {remedy}"),
                None => denied.to_string(),
            },
        }
    }

    fn named(&self, attempt: &Attempt<'_>) -> Result<Allowed, Reason> {
        if self.mode == Mode::None {
            return Err(Reason::NoNetwork);
        }
        let covering = |verb| {
            self.rules
                .iter()
                .filter(move |(rule, _)| rule.verb == verb && rule.covers(attempt.host, attempt.port))
        };
        let inspected = covering(Verb::Inspect).next().is_some();
        match attempt.via {
            Via::Tunnel => {
                let mut conduct = if inspected { Conduct::Inspected } else { Conduct::Opaque };
                for (rule, bundle) in covering(Verb::Deny) {
                    match () {
                        () if !rule.needs_requests() => return Err(Reason::Rule(cite(rule, bundle))),
                        () if inspected => {}
                        () if rule.target.scheme == Some(Scheme::Http) => conduct = Conduct::Requests,
                        () => return Err(Reason::NeedsInspection(cite(rule, bundle))),
                    }
                }
                let mut choosing = None;
                for (rule, bundle) in covering(Verb::Allow) {
                    let plain = rule.target.scheme == Some(Scheme::Http);
                    if !rule.needs_requests() || inspected {
                        let raw = rule.target.scheme == Some(Scheme::Tcp) && conduct == Conduct::Opaque;
                        let conduct = if raw { Conduct::Raw } else { conduct };
                        return Ok(Allowed { rule: Some(cite(rule, bundle)), conduct });
                    }
                    choosing.get_or_insert((plain, cite(rule, bundle)));
                }
                match (self.mode, choosing) {
                    (Mode::Open, _) if conduct == Conduct::Opaque => {
                        Ok(Allowed { rule: None, conduct: Conduct::Raw })
                    }
                    (Mode::Open, _) => Ok(Allowed { rule: None, conduct }),
                    (_, Some((true, rule))) => Ok(Allowed { rule: Some(rule), conduct: Conduct::Requests }),
                    (_, Some((false, rule))) => Err(Reason::NeedsInspection(rule)),
                    (_, None) => Err(self.not_allowed(attempt)),
                }
            }
            Via::Request { scheme, method, path } => {
                let conduct = if inspected { Conduct::Inspected } else { Conduct::Opaque };
                let read = Path::parse(path);
                for verb in [Verb::Deny, Verb::Allow] {
                    for (rule, bundle) in covering(verb).filter(|(rule, _)| rule.is_about(scheme)) {
                        let fits = match &read {
                            Ok(path) => rule.fits(method, path),
                            Err(_) if rule.path.is_none() => rule.methods.cover(method),
                            Err(_) if rule.methods.cover(method) => {
                                return Err(Reason::AmbiguousPath(cite(rule, bundle)));
                            }
                            Err(_) => false,
                        };
                        match verb {
                            _ if !fits => {}
                            Verb::Deny => return Err(Reason::Rule(cite(rule, bundle))),
                            _ => return Ok(Allowed { rule: Some(cite(rule, bundle)), conduct }),
                        }
                    }
                }
                match self.mode {
                    Mode::Open => Ok(Allowed { rule: None, conduct }),
                    _ => Err(self.not_allowed(attempt)),
                }
            }
        }
    }

    fn not_allowed(&self, attempt: &Attempt<'_>) -> Reason {
        let near = self
            .rules
            .iter()
            .find(|(rule, _)| {
                rule.verb == Verb::Allow
                    && rule.target.whom != Whom::Any
                    && rule.target.whom.covers(attempt.host)
            })
            .map(|(rule, bundle)| cite(rule, bundle));
        Reason::NotAllowed { near }
    }

    fn addressed(&self, attempt: &Attempt<'_>, allowed: &Allowed, address: IpAddr) -> Result<(), Reason> {
        let inner = match address {
            IpAddr::V6(v6) => address::embedded(v6).map(IpAddr::V4),
            IpAddr::V4(_) => None,
        };
        for address in [Some(address), inner].into_iter().flatten() {
            self.not_denied(attempt, allowed, address)?;
            self.admitted(attempt, address)?;
        }
        Ok(())
    }

    /// Denies by network hold whatever name led there.
    fn not_denied(&self, attempt: &Attempt<'_>, allowed: &Allowed, address: IpAddr) -> Result<(), Reason> {
        let host = Host::Address(address);
        let denying =
            |(rule, _): &&(Rule, Option<Name>)| rule.verb == Verb::Deny && rule.covers(&host, attempt.port);
        for (rule, bundle) in self.rules.iter().filter(denying) {
            let applies = match attempt.via {
                _ if !rule.needs_requests() => true,
                Via::Request { scheme, method, path } => {
                    let read = Path::parse(path);
                    rule.is_about(scheme) && read.is_ok_and(|path| rule.fits(method, &path))
                }
                Via::Tunnel => matches!(allowed.conduct, Conduct::Raw | Conduct::Opaque),
            };
            if applies {
                return Err(Reason::Rule(cite(rule, bundle)));
            }
        }
        Ok(())
    }

    fn allowing(&self) -> impl Iterator<Item = &Rule> {
        self.rules.iter().map(|(rule, _)| rule).filter(|rule| rule.verb == Verb::Allow)
    }

    /// Whether a rule is for this one request to the control plane.
    fn names_its_request(&self, attempt: &Attempt<'_>) -> bool {
        let fits = |rule: &Rule| match attempt.via {
            Via::Request { scheme, method, path } => {
                rule.is_about(scheme) && Path::parse(path).is_ok_and(|path| rule.fits(method, &path))
            }
            Via::Tunnel => false,
        };
        self.allowing().any(|rule| {
            fits(rule) && rule.private && rule.is_one_request() && rule.covers(attempt.host, attempt.port)
        })
    }

    /// Addresses that are always refused need a rule that names them.
    fn admitted(&self, attempt: &Attempt<'_>, address: IpAddr) -> Result<(), Reason> {
        if self.own.include(address, attempt.port) {
            let standing = Standing::ControlPlane;
            let named = self.names_its_request(attempt);
            return if named { Ok(()) } else { Err(Reason::Address { address, standing }) };
        }
        let Some((standing, range)) = address::refused(address) else { return Ok(()) };
        let by_name =
            |rule: &Rule| standing.is_admitted_as_private() && rule.private && self.applies(rule, attempt);
        // A network that holds more than the refused range was not written with that range in mind.
        let by_network = |rule: &Rule| {
            standing.is_admitted_by_network()
                && rule.covers(&Host::Address(address), attempt.port)
                && matches!(&rule.target.whom, Whom::Network(network) if network.is_within(&range))
        };
        if self.allowing().any(|rule| by_name(rule) || by_network(rule)) {
            Ok(())
        } else {
            Err(Reason::Address { address, standing })
        }
    }

    /// Whether the rule is about this attempt, as far as it can be told from it.
    fn applies(&self, rule: &Rule, attempt: &Attempt<'_>) -> bool {
        let fits = match attempt.via {
            Via::Tunnel => true,
            Via::Request { scheme, method, path } => {
                rule.is_about(scheme)
                    && (!rule.needs_requests()
                        || Path::parse(path).is_ok_and(|path| rule.fits(method, &path)))
            }
        };
        fits && rule.covers(attempt.host, attempt.port)
    }

    fn denied(&self, attempt: &Attempt<'_>, reason: Reason) -> Denied {
        let what = format!("{}:{}", attempt.host, attempt.port);
        let scheme = match attempt.via {
            Via::Request { scheme, .. } => Some(scheme),
            Via::Tunnel => None,
        };
        let rule = Rule::allowing(attempt.host, attempt.port, scheme);
        let remedy = match &reason {
            Reason::NoNetwork => Some("give the sandbox a policy with 'allowlist' and rules".into()),
            Reason::NotAllowed { .. } => Some(format!("to allow it, add '{rule}' to the policy")),
            Reason::Rule(_) => None,
            Reason::NeedsInspection(_) => {
                Some(format!("add 'inspect {}' to the policy", inspectable(attempt)))
            }
            Reason::AmbiguousPath(_) => {
                Some("send the path without '//', '.', '..' and encoded slashes".into())
            }
            Reason::Address { standing, address } => match standing {
                Standing::Unspecified | Standing::Multicast | Standing::ControlPlane => None,
                _ if standing.is_admitted_as_private() && matches!(attempt.host, Host::Name(_)) => {
                    Some(format!("if that is meant, add '{rule} private' to the policy"))
                }
                _ => Some(format!(
                    "if that is meant, add 'allow {}' to the policy",
                    Rule::allowing(&Host::Address(*address), attempt.port, None).target
                )),
            },
        };
        Denied { what, reason, remedy }
    }
}

fn inspectable(attempt: &Attempt<'_>) -> String {
    if attempt.port == 443 { attempt.host.to_string() } else { format!("{}:{}", attempt.host, attempt.port) }
}

/// Whether the rule denies every port of the host.
fn denies_host(rule: &Rule, host: &Host) -> bool {
    let all = matches!(rule.target.ports, super::Ports::Unsaid | super::Ports::Any);
    rule.verb == Verb::Deny && all && !rule.needs_requests() && rule.target.whom.covers(host)
}

fn cite(rule: &Rule, bundle: &Option<Name>) -> Cited {
    Cited { rule: rule.to_string(), bundle: bundle.clone() }
}

impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.rule {
            Some(rule) => write!(f, "by the rule {rule}")?,
            None => f.write_str("the policy is open")?,
        }
        match self.conduct {
            Conduct::Raw | Conduct::Opaque => Ok(()),
            Conduct::Requests => f.write_str("; its requests are decided one by one"),
            Conduct::Inspected => {
                f.write_str("; TLS ends in the gateway, and its requests are decided one by one")
            }
        }
    }
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = &self.what;
        match &self.reason {
            Reason::NoNetwork => {
                write!(f, "{what} is denied: this sandbox has no network (its policy is 'none')")
            }
            Reason::NotAllowed { near: None } => {
                write!(f, "{what} is denied: no rule of the policy allows it")
            }
            Reason::NotAllowed { near: Some(rule) } => {
                write!(f, "{what} is denied: no rule of the policy allows it; the rule {rule} comes near")
            }
            Reason::Rule(rule) => write!(f, "{what} is denied by the rule {rule}"),
            Reason::NeedsInspection(rule) => {
                write!(f, "{what} is denied: the rule {rule} chooses among requests, and a tunnel shows none")
            }
            Reason::AmbiguousPath(rule) => {
                write!(
                    f,
                    "{what} is denied: the rule {rule} chooses by path, and this path can be read in two ways"
                )
            }
            Reason::Address { address, standing: Standing::ControlPlane } => {
                write!(f, "{what} is denied: {address} is an address of the control plane")
            }
            Reason::Address { address, standing } => {
                write!(
                    f,
                    "{what} is denied: {address} is {}, refused unless a rule names it",
                    standing.what()
                )
            }
        }
    }
}

impl Denied {
    /// Whether a rule says no, rather than no rule saying yes.
    pub fn is_by_rule(&self) -> bool {
        matches!(self.reason, Reason::Rule(_) | Reason::NeedsInspection(_) | Reason::AmbiguousPath(_))
    }

    /// What decided, in few words: for a bill and a log.
    pub fn rule(&self) -> String {
        match &self.reason {
            Reason::NoNetwork => "none".into(),
            Reason::NotAllowed { .. } => "not allowed".into(),
            Reason::Rule(rule) => rule.rule.clone(),
            Reason::NeedsInspection(rule) => format!("{} (needs inspection)", rule.rule),
            Reason::AmbiguousPath(rule) => format!("{} (ambiguous path)", rule.rule),
            Reason::Address { standing, .. } => format!("always refused: {}", standing.what()),
        }
    }
}

#[cfg(test)]
mod tests;
