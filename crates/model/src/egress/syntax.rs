//! The text of a policy. Statements stand on lines of their own or are parted by `;`, and `#` begins a comment:
//!
//! ```text
//! allowlist                              # or none, or open; allowlist when nothing is said
//! allow @python                          # a bundle of the operator
//! allow *.example.org                    # ports 80 and 443
//! allow tcp://db.example.org:5432        # any protocol
//! allow GET,HEAD https://api.example.org/v1/**
//! allow 10.1.0.0/16:8000-8999
//! allow mcp.example.org private          # even where it leads to a private address
//! deny  old.example.org
//! inspect api.example.org                # TLS ends in the gateway, which reads the requests
//! limit connections 64
//! limit requests 50/s
//! limit sent 1G; limit received 10G
//! ```

use std::fmt;

use super::budget::Budget;
use super::host::WhyNotAHost;
use super::network::NotANetwork;
use super::path::PathPattern;
use super::{
    Host, HostName, Methods, Mode, Network, Policy, Ports, Rule, Scheme, Statement, Target, Verb, Whom,
};
use crate::Name;
use crate::limits::ByteSize;

const LONGEST_TEXT: usize = 64 * 1024;
const MOST_STATEMENTS: usize = 1024;
const LONGEST_METHOD: usize = 32;

/// A policy that cannot be read: where, and why. Lines and columns count from one, columns in characters.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct SyntaxError {
    pub line: usize,
    pub column: usize,
    pub problem: Problem,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error("a policy has at most {LONGEST_TEXT} bytes and {MOST_STATEMENTS} statements")]
    TooLong,
    #[error("'{0}' is not a statement: expected allow, deny, inspect, limit, none, allowlist or open")]
    UnknownStatement(String),
    #[error("the mode (none, allowlist or open) is said once, before the rules")]
    LateMode,
    #[error("a policy of 'none' has no network and therefore no rules")]
    RuleOfNone,
    #[error("'{0}' of what? a host, a network or a URL is missing")]
    NoTarget(&'static str),
    #[error("{0}")]
    Host(WhyNotAHost),
    #[error(
        "a wildcard is '*', or stands once in the first part of a name: *.example.org, api-*.example.org"
    )]
    Wildcard,
    #[error("{0}")]
    Network(NotANetwork),
    #[error("a network stands alone, without a scheme; under a scheme write one address")]
    NetworkUnderScheme,
    #[error("'{0}' is not a port: expected a number from 1 to 65535, a range 8000-8999, or *")]
    Port(String),
    #[error("tcp:// needs a port, as in tcp://db.example.org:5432")]
    NoPort,
    #[error("'{0}' is not a scheme of rules: expected http, https or tcp")]
    Scheme(String),
    #[error("a rule holds no user name or password; bind a secret to the host instead")]
    UserInfo,
    #[error("a rule holds no query; rules end with the path")]
    Query,
    #[error("'{0}' is not a method: write them in capitals, parted by commas, as in GET,HEAD")]
    Method(String),
    #[error("methods and paths need http:// or https:// before the host")]
    NotHttp,
    #[error("the path can be read in more than one way: no '//', '.', '..', encoded slashes or spaces")]
    Path,
    #[error("'{0}' is not the name of a bundle: 1 to 63 of a-z, 0-9 and '-'")]
    BundleName(String),
    #[error("bundles are only allowed; to deny or inspect, name the hosts")]
    BundleVerb,
    #[error("a bundle does not refer to bundles")]
    BundleInBundle,
    #[error("only rules can stand in a bundle")]
    NotARule,
    #[error("'private' belongs behind a rule that allows a host by name")]
    Private,
    #[error("'inspect' takes a host and a port; requests are chosen by allow and deny")]
    InspectsRequests,
    #[error("'{0}' is one word too many")]
    Trailing(String),
    #[error("a limit is one of: connections N, requests N/s, sent SIZE, received SIZE")]
    Limit,
    #[error("this limit was said before")]
    LimitTwice,
}

impl fmt::Display for SyntaxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}: {}", self.line, self.column, self.problem)
    }
}

/// A problem and the byte of the text that it begins at.
type Parsed<T> = Result<T, (usize, Problem)>;

pub(super) fn parse_policy(text: &str) -> Result<Policy, SyntaxError> {
    policy(text).map_err(|(at, problem)| position(text, at, problem))
}

/// The rules of a bundle: as in a policy, but without mode, limits and other bundles.
pub(super) fn parse_rules(text: &str) -> Result<Vec<Rule>, SyntaxError> {
    let rules = || {
        let mut rules = Vec::new();
        for words in statements(text)? {
            match statement(&words)? {
                Parsable::Rule(rule) => rules.push(rule),
                Parsable::Bundle(_) => return Err((words[0].at, Problem::BundleInBundle)),
                Parsable::Mode(_) | Parsable::Limit(..) => return Err((words[0].at, Problem::NotARule)),
            }
        }
        Ok(rules)
    };
    rules().map_err(|(at, problem)| position(text, at, problem))
}

fn position(text: &str, at: usize, problem: Problem) -> SyntaxError {
    let before = &text[..text.floor_char_boundary(at)];
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    SyntaxError {
        line: before.matches('\n').count() + 1,
        column: before[line_start..].chars().count() + 1,
        problem,
    }
}

/// A word of the text and the byte it begins at.
#[derive(Clone, Copy)]
struct Word<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Word<'a> {
    fn from(self, offset: usize) -> Self {
        Self { text: &self.text[offset..], at: self.at + offset }
    }

    fn split_once(self, separator: &str) -> Option<(Self, Self)> {
        let at = self.text.find(separator)?;
        Some((Self { text: &self.text[..at], at: self.at }, self.from(at + separator.len())))
    }

    fn shown(self) -> String {
        self.text.chars().take(80).collect()
    }
}

fn statements(text: &str) -> Parsed<Vec<Vec<Word<'_>>>> {
    if text.len() > LONGEST_TEXT {
        return Err((0, Problem::TooLong));
    }
    let mut statements = Vec::new();
    let mut line_start = 0;
    for line in text.split_inclusive('\n') {
        let mut words: Vec<Word<'_>> = Vec::new();
        let mut rest = Word { text: line, at: line_start };
        line_start += line.len();
        loop {
            let skip = rest.text.len() - rest.text.trim_start().len();
            rest = rest.from(skip);
            let end = rest.text.find(|c: char| c.is_whitespace() || c == ';').unwrap_or(rest.text.len());
            let ends = rest.text.is_empty() || rest.text.starts_with('#');
            if (ends || end == 0) && !words.is_empty() {
                statements.push(std::mem::take(&mut words));
            }
            if ends {
                break;
            }
            if end == 0 {
                rest = rest.from(1);
            } else {
                words.push(Word { text: &rest.text[..end], at: rest.at });
                rest = rest.from(end);
            }
        }
        if statements.len() > MOST_STATEMENTS {
            return Err((line_start - line.len(), Problem::TooLong));
        }
    }
    Ok(statements)
}

enum Parsable {
    Mode(Mode),
    Rule(Rule),
    Bundle(Name),
    Limit(Limit, u64),
}

#[derive(Clone, Copy)]
enum Limit {
    Connections,
    Requests,
    Sent,
    Received,
}

fn policy(text: &str) -> Parsed<Policy> {
    let mut mode = Mode::Allowlist;
    let mut rules = Vec::new();
    let mut budget = Budget::default();
    for (index, words) in statements(text)?.into_iter().enumerate() {
        let at = words[0].at;
        match statement(&words)? {
            Parsable::Mode(said) if index == 0 => mode = said,
            Parsable::Mode(_) => return Err((at, Problem::LateMode)),
            Parsable::Rule(_) | Parsable::Bundle(_) if mode == Mode::None => {
                return Err((at, Problem::RuleOfNone));
            }
            Parsable::Rule(rule) => rules.push(Statement::Rule(rule)),
            Parsable::Bundle(name) => rules.push(Statement::Bundle(name)),
            Parsable::Limit(limit, value) => {
                let slot = match limit {
                    Limit::Connections => &mut budget.connections,
                    Limit::Requests => &mut budget.requests_per_second,
                    Limit::Sent => &mut budget.bytes_sent,
                    Limit::Received => &mut budget.bytes_received,
                };
                if slot.replace(value).is_some() {
                    return Err((at, Problem::LimitTwice));
                }
            }
        }
    }
    Ok(Policy { mode, rules, budget })
}

fn statement(words: &[Word<'_>]) -> Parsed<Parsable> {
    let (first, rest) = words.split_first().expect("a statement has a word");
    if let Some(name) = first.text.strip_prefix('@') {
        let bundle = bundle(name, first.at + 1)?;
        return nothing_more(rest).map(|()| bundle);
    }
    if let Some(mode) = Mode::ALL.into_iter().find(|mode| mode.name() == first.text) {
        return nothing_more(rest).map(|()| Parsable::Mode(mode));
    }
    if first.text == "limit" {
        return limit(*first, rest);
    }
    let verb = Verb::ALL.into_iter().find(|verb| verb.name() == first.text);
    let Some(verb) = verb else { return Err((first.at, Problem::UnknownStatement(first.shown()))) };
    let end = first.at + first.text.len();
    match rest {
        [word, rest @ ..] if word.text.starts_with('@') => {
            if verb != Verb::Allow {
                return Err((word.at, Problem::BundleVerb));
            }
            let bundle = bundle(&word.text[1..], word.at + 1)?;
            nothing_more(rest).map(|()| bundle)
        }
        _ => rule(verb, rest, end).map(Parsable::Rule),
    }
}

fn nothing_more(rest: &[Word<'_>]) -> Parsed<()> {
    rest.first().map_or(Ok(()), |word| Err((word.at, Problem::Trailing(word.shown()))))
}

fn bundle(name: &str, at: usize) -> Parsed<Parsable> {
    let wrong = |_| (at, Problem::BundleName(name.chars().take(80).collect()));
    name.parse().map(Parsable::Bundle).map_err(wrong)
}

fn limit(word: Word<'_>, rest: &[Word<'_>]) -> Parsed<Parsable> {
    let [what, value, rest @ ..] = rest else { return Err((word.at, Problem::Limit)) };
    let (limit, number) = match what.text {
        "connections" => (Limit::Connections, plain_number(value.text)),
        "requests" => (Limit::Requests, value.text.strip_suffix("/s").and_then(plain_number)),
        "sent" => (Limit::Sent, value.text.parse::<ByteSize>().ok().map(|size| size.0)),
        "received" => (Limit::Received, value.text.parse::<ByteSize>().ok().map(|size| size.0)),
        _ => return Err((what.at, Problem::Limit)),
    };
    let number = number.ok_or((value.at, Problem::Limit))?;
    nothing_more(rest).map(|()| Parsable::Limit(limit, number))
}

fn plain_number(text: &str) -> Option<u64> {
    text.parse().ok().filter(|_| text.bytes().all(|c| c.is_ascii_digit()))
}

fn rule(verb: Verb, words: &[Word<'_>], end: usize) -> Parsed<Rule> {
    let is_methods = |text: &str| text.bytes().all(|c| c.is_ascii_uppercase() || c == b',' || c == b'-');
    let (given_methods, rest) = match words {
        [word, rest @ ..]
            if is_methods(word.text) && rest.first().is_some_and(|next| next.text != "private") =>
        {
            (Some(*word), rest)
        }
        _ => (None, words),
    };
    let Some((given, rest)) = rest.split_first() else { return Err((end, Problem::NoTarget(verb.name()))) };
    let methods = given_methods.map_or(Ok(Methods::default()), methods)?;
    let (target, path) = target(*given)?;
    let is_http = matches!(target.scheme, Some(Scheme::Http | Scheme::Https));
    if let Some(word) = given_methods.filter(|_| !is_http) {
        return Err((word.at, Problem::NotHttp));
    }
    if verb == Verb::Inspect && (given_methods.is_some() || path.is_some() || target.scheme.is_some()) {
        return Err((given_methods.unwrap_or(*given).at, Problem::InspectsRequests));
    }
    let (private, rest) = match rest {
        [word, rest @ ..] if word.text == "private" => {
            // An address needs the word only to say that it is the control plane's own.
            let fitting = match target.whom {
                Whom::Any => false,
                Whom::Network(_) => is_http,
                Whom::Name(_) | Whom::Below(_) | Whom::Label { .. } => true,
            };
            if verb != Verb::Allow || !fitting {
                return Err((word.at, Problem::Private));
            }
            (true, rest)
        }
        _ => (false, rest),
    };
    nothing_more(rest)?;
    Ok(Rule { verb, methods, target, path, private })
}

fn methods(word: Word<'_>) -> Parsed<Methods> {
    let mut methods = Vec::new();
    let mut at = word.at;
    for method in word.text.split(',') {
        if method.is_empty() || method.len() > LONGEST_METHOD {
            return Err((at, Problem::Method(method.chars().take(80).collect())));
        }
        at += method.len() + 1;
        methods.push(method);
    }
    Ok(Methods::new(methods))
}

fn target(word: Word<'_>) -> Parsed<(Target, Option<PathPattern>)> {
    match word.split_once("://") {
        Some((scheme, rest)) => url(scheme, rest),
        None => Ok((place(word)?, None)),
    }
}

fn url(scheme: Word<'_>, rest: Word<'_>) -> Parsed<(Target, Option<PathPattern>)> {
    let known = Scheme::ALL.into_iter().find(|known| known.name() == scheme.text);
    let Some(known) = known else { return Err((scheme.at, Problem::Scheme(scheme.shown()))) };
    let end = rest.text.find('/').unwrap_or(rest.text.len());
    let (place, path) = (Word { text: &rest.text[..end], at: rest.at }, rest.from(end));
    if let Some(at) = place.text.find('@') {
        return Err((place.at + at, Problem::UserInfo));
    }
    if let Some(at) = rest.text.find(['?', '#']) {
        return Err((rest.at + at, Problem::Query));
    }
    let (whom, port) = parted(place)?;
    let whom = match whom.text.strip_prefix('[') {
        Some(_) => address(whom)?,
        None if whom.text.parse::<std::net::Ipv4Addr>().is_ok() => address(whom)?,
        None => named(whom)?,
    };
    if path.text.starts_with('/')
        && matches!(whom, Whom::Network(_))
        && path.text[1..].bytes().all(|c| c.is_ascii_digit())
        && path.text.len() > 1
    {
        return Err((place.at, Problem::NetworkUnderScheme));
    }
    let ports = match (port, known.default_port()) {
        (Some(port), _) => ports(port)?,
        (None, Some(port)) => Ports::One(port),
        (None, None) => return Err((place.at + place.text.len(), Problem::NoPort)),
    };
    // A URL that was copied ends with a slash, which says no more than no path.
    let path = match path.text {
        "" | "/" => None,
        _ if known == Scheme::Tcp => return Err((path.at, Problem::NotHttp)),
        text => Some(PathPattern::parse(text).map_err(|_| (path.at, Problem::Path))?),
    };
    Ok((Target { scheme: Some(known), whom, ports }, path))
}

/// A host, an address or a network without a scheme.
fn place(word: Word<'_>) -> Parsed<Target> {
    let unsaid = |whom| Target { scheme: None, whom, ports: Ports::Unsaid };
    // Without brackets an IPv6 network takes the whole word, as a port could not be told from it.
    if !word.text.starts_with('[') && word.text.matches(':').count() > 1 {
        return network(word).map(unsaid);
    }
    let (whom, port) = parted(word)?;
    let is_network = whom.text.starts_with('[')
        || whom.text.contains('/') && whom.text.starts_with(|c: char| c.is_ascii_digit())
        || whom.text.parse::<std::net::Ipv4Addr>().is_ok();
    let whom = if is_network {
        network(Word { text: whom.text.trim_start_matches('[').trim_end_matches(']'), at: whom.at })?
    } else if let Some(at) = whom.text.find('/') {
        return Err((whom.at + at, Problem::NotHttp));
    } else {
        named(whom)?
    };
    Ok(Target { ports: port.map_or(Ok(Ports::Unsaid), ports)?, ..unsaid(whom) })
}

/// Parts the port from what is before it, which may be in brackets.
fn parted(word: Word<'_>) -> Parsed<(Word<'_>, Option<Word<'_>>)> {
    let bracket = if word.text.starts_with('[') { word.text.find(']') } else { None };
    let colon = match bracket {
        Some(bracket) => word.text[bracket..].find(':').map(|colon| bracket + colon),
        None => word.text.find(':'),
    };
    let end = colon.unwrap_or(word.text.len());
    if bracket.is_some_and(|bracket| bracket + 1 != end) || word.text.starts_with('[') && bracket.is_none() {
        return Err((word.at, Problem::Host(WhyNotAHost::OddAddress)));
    }
    Ok((Word { text: &word.text[..end], at: word.at }, colon.map(|colon| word.from(colon + 1))))
}

fn network(word: Word<'_>) -> Parsed<Whom> {
    word.text.parse::<Network>().map(Whom::Network).map_err(|wrong| (word.at, Problem::Network(wrong)))
}

fn address(word: Word<'_>) -> Parsed<Whom> {
    match word.text.parse::<Host>() {
        Ok(Host::Address(address)) => Ok(Whom::Network(Network::of(address))),
        Ok(Host::Name(_)) => Err((word.at, Problem::Host(WhyNotAHost::OddAddress))),
        Err(wrong) => Err((word.at + wrong.at, Problem::Host(wrong.why))),
    }
}

fn named(word: Word<'_>) -> Parsed<Whom> {
    let name = |word: Word<'_>| {
        word.text.parse::<HostName>().map_err(|wrong| (word.at + wrong.at, Problem::Host(wrong.why)))
    };
    if word.text == "*" {
        return Ok(Whom::Any);
    }
    let Some(star) = word.text.find('*') else { return name(word).map(Whom::Name) };
    let wildcard = || (word.at + star, Problem::Wildcard);
    let (label, parent) = word.split_once(".").ok_or_else(wildcard)?;
    let (before, after) = label.text.split_once('*').ok_or_else(wildcard)?;
    if after.contains('*') || parent.text.contains('*') {
        return Err(wildcard());
    }
    let parent = name(parent)?;
    if label.text == "*" {
        return Ok(Whom::Below(parent));
    }
    // What stands in for the wildcard in this check only has to be valid in a label.
    let checked: Result<HostName, _> = format!("{before}x{after}.{parent}").parse();
    checked.map_err(|wrong| (word.at + wrong.at.min(label.text.len()), Problem::Host(wrong.why)))?;
    let lower = |text: &str| text.to_ascii_lowercase().into();
    Ok(Whom::Label { before: lower(before), after: lower(after), parent })
}

fn ports(word: Word<'_>) -> Parsed<Ports> {
    let wrong = || (word.at, Problem::Port(word.shown()));
    let port = |text: &str| {
        let number: Option<u16> = text.parse().ok().filter(|number| *number != 0);
        number.filter(|_| text.bytes().all(|c| c.is_ascii_digit())).ok_or_else(wrong)
    };
    if word.text == "*" {
        return Ok(Ports::Any);
    }
    match word.text.split_once('-') {
        None => port(word.text).map(Ports::One),
        Some((first, last)) => {
            let (first, last) = (port(first)?, port(last)?);
            if first < last { Ok(Ports::Range(first, last)) } else { Err(wrong()) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_read_and_written_in_one_way() {
        for (given, written) in [
            ("allow Example.ORG.", "allow example.org"),
            ("allow *.example.org:8443", "allow *.example.org:8443"),
            ("allow api-*.example.org", "allow api-*.example.org"),
            ("allow *:443", "allow *:443"),
            ("allow example.org:*", "allow example.org:*"),
            ("allow example.org:8000-8999", "allow example.org:8000-8999"),
            ("allow tcp://db.example.org:5432", "allow tcp://db.example.org:5432"),
            ("allow https://example.org/", "allow https://example.org"),
            ("allow https://example.org:443/a/**", "allow https://example.org/a/**"),
            ("allow http://example.org:443", "allow http://example.org:443"),
            ("allow HEAD,GET https://example.org/v1/*", "allow GET,HEAD https://example.org/v1/*"),
            ("deny 10.0.0.0/8", "deny 10.0.0.0/8"),
            ("allow 10.0.0.0/8:5432", "allow 10.0.0.0/8:5432"),
            ("allow fd00::/8", "allow fd00::/8"),
            ("allow [fd00::/8]:443", "allow [fd00::/8]:443"),
            ("allow [fd00::1]", "allow fd00::1"),
            ("allow https://[fd00::1]/x", "allow https://[fd00::1]/x"),
            ("allow 192.0.2.1:80", "allow 192.0.2.1:80"),
            ("allow mcp.example.org:8080 private", "allow mcp.example.org:8080 private"),
            ("inspect *.example.org", "inspect *.example.org"),
        ] {
            let policy = parse_policy(given).unwrap_or_else(|error| panic!("{given}: {error}"));
            assert_eq!(policy.to_string(), format!("allowlist\n{written}\n"), "{given}");
            assert_eq!(parse_policy(&policy.to_string()).unwrap(), policy, "{given}");
        }
    }

    #[test]
    fn statements_stand_on_lines_or_are_parted_by_semicolons() {
        let policy = parse_policy("open; @python ;; # all else\n\tdeny evil.example#x\n;\n").unwrap_err();
        assert_eq!(
            policy.to_string(),
            "line 2, column 19: '#' cannot stand in a host name; write names of other scripts in their xn-- form"
        );
        let policy =
            parse_policy("open; @python ;; # all else\n\tdeny evil.example # x\n;\nlimit sent 1G").unwrap();
        assert_eq!(policy.to_string(), "open\nallow @python\ndeny evil.example\nlimit sent 1G\n");
    }

    #[test]
    fn a_syntax_error_names_its_position() {
        for (given, position, says) in [
            ("permit example.org", (1, 1), "'permit' is not a statement"),
            ("allow", (1, 6), "'allow' of what?"),
            ("allow a.example\nallow  b_c.example", (2, 9), "'_' cannot stand"),
            ("allow bücher.example", (1, 8), "xn-- form"),
            ("allow 0x7f.1", (1, 12), "only one spelling"),
            ("allow 10.1.2.3/8", (1, 7), "write 10.0.0.0/8"),
            ("allow 10.0.0.0/33", (1, 7), "neither an address nor a network"),
            ("allow example.org:0", (1, 19), "'0' is not a port"),
            ("allow example.org:99999", (1, 19), "'99999' is not a port"),
            ("allow example.org:90-80", (1, 19), "'90-80' is not a port"),
            ("allow tcp://db.example", (1, 23), "needs a port"),
            ("allow ftp://x.example", (1, 7), "'ftp' is not a scheme"),
            ("allow https://a:b@x.example", (1, 18), "user name"),
            ("allow https://x.example/a?b=c", (1, 26), "no query"),
            ("allow GET x.example", (1, 7), "need http://"),
            ("allow GET,,PUT https://x.example", (1, 11), "'' is not a method"),
            ("allow x.example/path", (1, 16), "need http://"),
            ("allow https://x.example/a/../b", (1, 24), "more than one way"),
            ("allow a.*.example", (1, 9), "a wildcard"),
            ("allow **.example", (1, 7), "a wildcard"),
            ("allow a*", (1, 8), "a wildcard"),
            ("allow @Python", (1, 8), "'Python' is not the name of a bundle"),
            ("deny @python", (1, 6), "only allowed"),
            ("none\nallow x.example", (2, 1), "no rules"),
            ("allow x.example; open", (1, 18), "said once"),
            ("deny x.example private", (1, 16), "'private' belongs"),
            ("allow 10.0.0.0/8 private", (1, 18), "'private' belongs"),
            ("allow x.example please", (1, 17), "'please' is one word too many"),
            ("inspect GET https://x.example", (1, 9), "'inspect' takes"),
            ("limit speed 3", (1, 7), "a limit is one of"),
            ("limit requests 3", (1, 16), "a limit is one of"),
            ("limit connections 3\nlimit connections 4", (2, 1), "said before"),
            ("allow https://10.0.0.0/8", (1, 15), "stands alone"),
            ("allow [::1", (1, 7), "only one spelling"),
        ] {
            let error = parse_policy(given).expect_err(given);
            assert_eq!((error.line, error.column), position, "{given}: {error}");
            assert!(error.to_string().contains(says), "{given}: {error}");
        }
    }

    #[test]
    fn a_bundle_holds_rules_only() {
        assert_eq!(parse_rules("allow a.example; allow b.example\n").unwrap().len(), 2);
        for (given, says) in
            [("open", "only rules"), ("limit sent 1", "only rules"), ("@other", "does not refer")]
        {
            assert!(parse_rules(given).unwrap_err().to_string().contains(says), "{given}");
        }
    }

    #[test]
    fn a_text_without_end_is_refused() {
        assert!(parse_policy(&"#".repeat(LONGEST_TEXT + 1)).is_err());
        assert!(parse_policy(&"deny a\n".repeat(MOST_STATEMENTS + 1)).is_err());
    }
}
