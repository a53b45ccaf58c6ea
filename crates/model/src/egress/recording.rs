//! What a recorded run reached, and the smallest policy that would have let it.

use std::collections::{BTreeMap, BTreeSet};

use super::{Host, Methods, Mode, Policy, Rule, Scheme, Statement};

const MOST_PLACES: usize = 4096;
const MOST_METHODS: usize = 16;

/// The places that one sandbox reached while it was recorded.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Recording {
    places: BTreeMap<(Host, u16), Reached>,
    /// Places that were not noted, as their number is bounded.
    pub unlisted: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Reached {
    tunnels: bool,
    /// By scheme, as the same port may speak both.
    methods: BTreeMap<Scheme, BTreeSet<Box<str>>>,
    private: bool,
    inspected: bool,
}

/// How a place was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen<'a> {
    Tunnel,
    Request { scheme: Scheme, method: &'a str, inspected: bool },
}

impl Recording {
    /// Notes what was reached; `private` when the address was one that the rule had to name.
    pub fn note(&mut self, host: &Host, port: u16, seen: Seen<'_>, private: bool) {
        let key = (host.clone(), port);
        if self.places.len() >= MOST_PLACES && !self.places.contains_key(&key) {
            self.unlisted = self.unlisted.saturating_add(1);
            return;
        }
        let reached = self.places.entry(key).or_default();
        reached.private |= private;
        match seen {
            Seen::Tunnel => reached.tunnels = true,
            Seen::Request { scheme, method, inspected } => {
                reached.inspected |= inspected;
                let methods = reached.methods.entry(scheme).or_default();
                let known = method.bytes().all(|c| c.is_ascii_uppercase() || c == b'-') && method.len() <= 32;
                if known && methods.len() < MOST_METHODS {
                    methods.insert(method.into());
                } else {
                    // A method that no rule can name is allowed with all others.
                    reached.tunnels = true;
                }
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The smallest allowlist under which all of this would have been allowed. Methods are named where every request
    /// could be read; paths are not, as they change from run to run.
    pub fn minimal_policy(&self) -> Policy {
        let mut rules = Vec::new();
        for ((host, port), reached) in &self.places {
            let inspect = reached.inspected && !reached.tunnels;
            for rule in reached.rules(host, *port) {
                rules.push(Statement::Rule(rule));
            }
            if inspect {
                let mut rule = Rule::allowing(host, *port, None);
                rule.verb = super::Verb::Inspect;
                rule.target.scheme = None;
                rules.push(Statement::Rule(rule));
            }
        }
        Policy { mode: Mode::Allowlist, rules, ..Policy::default() }
    }
}

impl Reached {
    fn rules(&self, host: &Host, port: u16) -> Vec<Rule> {
        let private = self.private && matches!(host, Host::Name(_));
        if self.tunnels {
            // Without a scheme, so that requests and tunnels are both covered.
            let mut rule = Rule { private, ..Rule::allowing(host, port, None) };
            if !self.methods.is_empty() {
                rule.target.scheme = None;
            }
            return vec![rule];
        }
        let rules = self.methods.iter().map(|(scheme, methods)| Rule {
            methods: Methods::new(methods.iter().cloned()),
            private,
            ..Rule::allowing(host, port, Some(*scheme))
        });
        rules.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_becomes_the_smallest_policy() {
        let host = |text: &str| text.parse::<Host>().unwrap();
        let mut recording = Recording::default();
        let request = |scheme, method, inspected| Seen::Request { scheme, method, inspected };
        recording.note(&host("b.example"), 443, Seen::Tunnel, false);
        recording.note(&host("b.example"), 443, Seen::Tunnel, false);
        recording.note(&host("a.example"), 80, request(Scheme::Http, "GET", false), false);
        recording.note(&host("a.example"), 80, request(Scheme::Http, "POST", false), false);
        recording.note(&host("c.example"), 443, request(Scheme::Https, "GET", true), false);
        recording.note(&host("db.example"), 5432, Seen::Tunnel, true);
        recording.note(&host("93.184.216.34"), 8443, Seen::Tunnel, false);
        assert_eq!(
            recording.minimal_policy().to_string(),
            "allowlist\nallow GET,POST http://a.example\nallow https://b.example\nallow GET https://c.example\n\
             inspect c.example:443\nallow db.example:5432 private\nallow 93.184.216.34:8443\n"
        );
    }

    #[test]
    fn the_number_of_places_is_bounded() {
        let mut recording = Recording::default();
        for index in 0..MOST_PLACES + 5 {
            let host = format!("h{index}.example").parse().unwrap();
            recording.note(&host, 443, Seen::Tunnel, false);
        }
        assert_eq!((recording.places.len(), recording.unlisted), (MOST_PLACES, 5));
    }
}
