//! Why something is allowed or denied: the gateway's own decision, in words.

use std::fmt::Write;
use std::net::{IpAddr, ToSocketAddrs};

use anstyle::{AnsiColor, Style};
use cubicle_model::Fault;
use cubicle_model::egress::{Allowed, Conduct, Denied, Host, NotWanted, Ruleset, Scheme, Statement, Wanted};
use serde::Serialize;

use crate::args::EgressExplain;
use crate::bundles;
use crate::bundles::policies::default_policy;
use crate::context::Context;
use crate::failure::{Ending, invalid, printable};

/// Something is denied.
const DENIED: i32 = 3;

pub(super) fn explain(args: &EgressExplain, context: &Context) -> Result<Ending, Fault> {
    let (policy, bundles) = match &args.template {
        Some(template) => {
            let found = bundles::found(&context.settings.egress, &context.environment);
            let text = default_policy(template, &context.settings.egress, &found);
            (super::parse(&text, "the policy")?, found.parsed()?)
        }
        None => {
            let policy = super::policy(args.policy.as_deref().unwrap_or("-"))?;
            let bundles = super::bundles_of(&policy, context)?;
            (policy, bundles)
        }
    };
    let rules = super::resolved(&policy, &bundles)?;
    let mut answers = Vec::new();
    for url in &args.urls {
        let wanted: Wanted = url.parse().map_err(unreadable)?;
        let addresses = match (&wanted.host, args.resolve) {
            (Host::Address(address), _) => vec![*address],
            (Host::Name(_), false) => Vec::new(),
            (Host::Name(name), true) => resolve(name.as_str())?,
        };
        answers.push(answer(&rules, &wanted, &args.method, &addresses));
    }
    if args.shape.json {
        super::super::print_json(&answers)?;
    } else {
        super::super::print(&answers.iter().map(Answer::text).collect::<String>())?;
    }
    let all = answers.iter().all(|answer| answer.allowed);
    Ok(Ending::Code(if all { 0 } else { DENIED }))
}

fn unreadable(why: NotWanted) -> Fault {
    invalid(why.to_string())
        .hint("write https://host/path, http://host:port/path, tcp://host:port or host:port")
}

#[derive(Debug, Serialize)]
struct Answer {
    url: String,
    allowed: bool,
    /// The rule that decides; none where the policy decides without one.
    rule: Option<String>,
    bundle: Option<String>,
    why: String,
    /// What would help, or what is to be known beside.
    hint: Option<String>,
    /// Addresses that the name led to, with whether a connection to them is made.
    addresses: Vec<Address>,
}

#[derive(Debug, Serialize)]
struct Address {
    address: IpAddr,
    allowed: bool,
}

fn answer(rules: &Ruleset, wanted: &Wanted, method: &str, addresses: &[IpAddr]) -> Answer {
    let by_address: Vec<(IpAddr, Result<Allowed, Denied>)> =
        addresses.iter().map(|address| (*address, wanted.decide(rules, method, Some(*address)))).collect();
    let by_name = wanted.decide(rules, method, None);
    // The gateway connects to any address that is allowed, so one is enough; without one the first refusal is told.
    let verdict = match by_address.iter().position(|(_, verdict)| verdict.is_ok()) {
        Some(_) => by_name,
        None => by_address.first().map_or(by_name, |(_, verdict)| verdict.clone()),
    };
    let listed = match wanted.host {
        Host::Name(_) => by_address.iter(),
        Host::Address(_) => [].iter(),
    };
    let listed = listed.map(|(address, verdict)| Address { address: *address, allowed: verdict.is_ok() });
    let mut answer = Answer {
        url: wanted.to_string(),
        allowed: verdict.is_ok(),
        rule: None,
        bundle: None,
        why: String::new(),
        hint: None,
        addresses: listed.collect(),
    };
    match verdict {
        Ok(allowed) => answer.allow(wanted, &allowed),
        Err(denied) => {
            answer.why = denied.to_string();
            if let cubicle_model::egress::Reason::Rule(cited)
            | cubicle_model::egress::Reason::NeedsInspection(cited)
            | cubicle_model::egress::Reason::AmbiguousPath(cited) = &denied.reason
            {
                answer.cite(cited);
            }
            answer.hint = denied.remedy;
        }
    }
    answer
}

impl Answer {
    fn allow(&mut self, wanted: &Wanted, allowed: &Allowed) {
        if let Some(cited) = &allowed.rule {
            self.cite(cited);
        }
        self.why = format!("{}:{} is allowed: {allowed}", wanted.host, wanted.port);
        let is_raw = allowed.conduct == Conduct::Raw;
        if wanted.scheme == Scheme::Tcp && !is_raw && matches!(wanted.port, 80 | 443) {
            let rule = Statement::Rule(cubicle_model::egress::Rule::allowing(
                &wanted.host,
                wanted.port,
                Some(Scheme::Tcp),
            ));
            self.hint =
                Some(format!("only TLS and HTTP go through this port; for another protocol add '{rule}'"));
        } else if allowed.conduct == Conduct::Requests && wanted.scheme == Scheme::Tcp {
            self.hint = Some("only HTTP requests go through, and each is decided by itself".to_owned());
        }
    }

    fn cite(&mut self, cited: &cubicle_model::egress::decide::Cited) {
        self.rule = Some(cited.rule.clone());
        self.bundle = cited.bundle.as_ref().map(ToString::to_string);
    }

    fn text(&self) -> String {
        let (colour, word) =
            if self.allowed { (AnsiColor::Green, "allowed") } else { (AnsiColor::Red, "denied ") };
        let style = Style::new().fg_color(Some(colour.into()));
        let mut text = format!("{style}{word}{style:#}  {}\n", printable(&self.url));
        // Writing to a string does not fail.
        _ = writeln!(text, "         {}", printable(&self.why));
        for Address { address, allowed } in &self.addresses {
            let word = if *allowed { "leads to" } else { "leads to, and is refused at," };
            _ = writeln!(text, "         {word} {address}");
        }
        if let Some(hint) = &self.hint {
            _ = writeln!(text, "         {}", printable(hint));
        }
        text
    }
}

fn resolve(name: &str) -> Result<Vec<IpAddr>, Fault> {
    let found = (name, 0).to_socket_addrs().map_err(|error| {
        Fault::new(cubicle_model::Kind::Unavailable, format!("{name} does not resolve"))
            .because(error)
            .hint("check the spelling, or leave --resolve out to decide by the name alone")
    })?;
    let mut addresses: Vec<IpAddr> = Vec::new();
    for address in found.map(|found| found.ip()) {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use cubicle_model::egress::{Bundles, OwnAddresses};

    use cubicle_model::egress::Policy;

    use super::super::policy;
    use super::*;

    fn explained(policy: &str, url: &str, addresses: &[&str]) -> Answer {
        let policy: Policy = policy.parse().unwrap();
        let rules = policy.resolve(&Bundles::default(), &OwnAddresses::default()).unwrap();
        let wanted: Wanted = url.parse().unwrap();
        let mut addresses: Vec<IpAddr> = addresses.iter().map(|address| address.parse().unwrap()).collect();
        if let Host::Address(address) = wanted.host {
            addresses.push(address);
        }
        answer(&rules, &wanted, "GET", &addresses)
    }

    #[test]
    fn what_is_explained_is_what_the_gateway_decides() {
        for (policy, url, addresses, allowed) in [
            ("allow a.example", "https://a.example/x", &[][..], true),
            ("allow a.example", "http://a.example/x", &[], true),
            ("allow a.example", "a.example:443", &[], true),
            ("allow a.example", "a.example:22", &[], false),
            ("allow tcp://a.example:22", "tcp://a.example:22", &[], true),
            ("allow a.example", "https://b.example", &[], false),
            ("none", "https://a.example", &[], false),
            ("open", "https://a.example", &[], true),
            ("open", "http://169.254.169.254/latest", &[], false),
            ("open", "https://a.example", &["10.0.0.1"], false),
            ("open", "https://a.example", &["10.0.0.1", "93.184.216.34"], true),
            ("allow a.example private", "https://a.example", &["10.0.0.1"], true),
            ("allow GET https://a.example/v1/**", "https://a.example/v1/x", &[], false),
            ("allow GET https://a.example/v1/**; inspect a.example", "https://a.example/v1/x", &[], true),
            ("allow GET https://a.example/v1/**; inspect a.example", "https://a.example/v2/x", &[], false),
            ("allow POST http://a.example", "http://a.example", &[], false),
            ("allow x.example", "http://x.example/a//b?c", &[], true),
        ] {
            let answer = explained(policy, url, addresses);
            assert_eq!(answer.allowed, allowed, "{policy} {url} {}", answer.why);
            assert!(answer.allowed || answer.hint.is_some(), "{policy} {url}");
        }
    }

    #[test]
    fn a_password_is_not_shown() {
        assert!(!explained("open", "https://ada:hunter2@a.example/x", &[]).text().contains("hunter2"));
    }

    #[test]
    fn a_word_that_is_no_file_is_not_taken_for_a_policy() {
        assert!(
            policy("/nonexistent/policy.txt").unwrap_err().message().contains("neither a file nor a policy")
        );
        assert!(policy("allow b_c").unwrap_err().message().starts_with("the policy: line 1, column 8"));
        policy("open").unwrap();
        policy("@git").unwrap();
    }
}
