//! What a sandbox may reach when nobody says so, by the name of its template.

use cubicle_model::egress::Rule;

use super::Found;
use crate::settings::Egress;

const PROVIDERS: [&str; 3] = ["anthropic", "google", "openai"];

/// The policy of a template that has none of its own, as text. A bundle that is empty here is left out with a remark: a
/// policy that a person writes must say what it can keep, but one that nobody wrote must not stop every sandbox.
pub(crate) fn default_policy(template: &str, settings: &Egress, found: &Found) -> String {
    match template {
        "task" | "worker" => allowlist(&PROVIDERS, found),
        "agent" => allowlist(&[&PROVIDERS[..], &["git"]].concat(), found),
        "workflow" => open(settings),
        _ => allowlist(&["python"], found),
    }
}

fn allowlist(bundles: &[&str], found: &Found) -> String {
    let mut text = String::from("allowlist\n");
    for name in bundles {
        if found.is_empty_bundle(name) {
            text.push_str(&format!("# @{name} is left out: nothing is configured for it on this host\n"));
        } else {
            text.push_str(&format!("allow @{name}\n"));
        }
    }
    text
}

/// Everything on the internet, and the two services that a workflow is given, wherever they are.
fn open(settings: &Egress) -> String {
    let services = [&settings.mcp_base_url, &settings.obj_url].into_iter().flatten();
    let mut rules: Vec<Rule> = services.map(|service| service.rule(true)).collect();
    rules.sort();
    rules.dedup();
    let rules: String = rules.iter().map(|rule| format!("{rule}\n")).collect();
    format!("open\n{rules}")
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use cubicle_model::egress::{Attempt, Host, OwnAddresses, Policy, Ruleset, Scheme, Verdict, Via};

    use super::*;
    use crate::bundles::{Bundle, FIXED};

    fn found(python: &str) -> Found {
        let mut found = Found::default();
        for (name, rules) in FIXED.into_iter().chain([("python", python)]) {
            found.put(name, Bundle { rules: rules.to_owned(), from: String::new() });
        }
        found
    }

    fn ruleset(template: &str, settings: &Egress, found: &Found) -> Ruleset {
        let policy: Policy = default_policy(template, settings, found).parse().unwrap();
        policy.resolve(&found.parsed().unwrap(), &OwnAddresses::default()).unwrap()
    }

    #[test]
    fn every_template_reaches_what_its_kind_needs_and_no_more() {
        let found = found("allow https://index.example");
        let hosts =
            ["index.example", "api.anthropic.com", "api.openai.com", "github.com", "elsewhere.example"];
        for (template, expected) in [
            ("default", [true, false, false, false, false]),
            ("python", [true, false, false, false, false]),
            ("some-other", [true, false, false, false, false]),
            ("task", [false, true, true, false, false]),
            ("agent", [false, true, true, true, false]),
            ("workflow", [true, true, true, true, true]),
        ] {
            let rules = ruleset(template, &Egress::default(), &found);
            for (host, expected) in hosts.into_iter().zip(expected) {
                let host: Host = host.parse().unwrap();
                let attempt = Attempt { host: &host, port: 443, via: Via::Tunnel };
                let allowed = matches!(rules.by_name(&attempt), Verdict::Allow(_));
                assert_eq!(allowed, expected, "{template} {host}");
            }
        }
    }

    #[test]
    fn a_workflow_reaches_its_two_services_where_they_are_private_and_nothing_else_there() {
        let settings = Egress {
            mcp_base_url: Some("http://mcp.example:9000/mcp".parse().unwrap()),
            obj_url: Some("https://10.1.2.3:9443/bucket".parse().unwrap()),
            ..Egress::default()
        };
        let rules = ruleset("workflow", &settings, &Found::default());
        let private: IpAddr = "10.1.2.3".parse().unwrap();
        for (host, port, scheme, expected) in [
            ("mcp.example", 9000, Scheme::Http, true),
            ("10.1.2.3", 9443, Scheme::Https, true),
            ("mcp.example", 9001, Scheme::Http, false),
            ("10.1.2.3", 9444, Scheme::Https, false),
            ("other.example", 9000, Scheme::Http, false),
        ] {
            let host: Host = host.parse().unwrap();
            let via = Via::Request { scheme, method: "GET", path: "/x" };
            let verdict = rules.at_address(&Attempt { host: &host, port, via }, private);
            assert_eq!(matches!(verdict, Verdict::Allow(_)), expected, "{host}:{port}");
        }
    }

    #[test]
    fn an_empty_bundle_does_not_stop_the_sandboxes_of_a_template() {
        let found = found("");
        let text = default_policy("default", &Egress::default(), &found);
        assert!(text.contains("# @python is left out"), "{text}");
        ruleset("default", &Egress::default(), &found);
    }
}
