use super::*;
use crate::egress::{Bundles, OwnAddress, Policy};

fn ruleset(policy: &str) -> Ruleset {
    let mut bundles = Bundles::default();
    bundles.define("python".parse().unwrap(), "allow index.example; allow files.example").unwrap();
    bundles.define("empty".parse().unwrap(), "").unwrap();
    let own = OwnAddresses::new([OwnAddress { address: "198.41.0.4".parse().unwrap(), port: Some(7070) }]);
    policy.parse::<Policy>().unwrap().resolve(&bundles, &own).unwrap()
}

fn host(text: &str) -> Host {
    text.parse().unwrap()
}

/// `host:port` is a tunnel; `GET http://host:port/path` a request.
fn decide(rules: &Ruleset, what: &str, address: Option<&str>) -> Verdict {
    let (method, place) = what.split_once(' ').map_or((None, what), |(method, url)| (Some(method), url));
    let (scheme, place) = match place.split_once("://") {
        Some(("http", rest)) => (Scheme::Http, rest),
        Some((_, rest)) => (Scheme::Https, rest),
        None => (Scheme::Https, place),
    };
    let (place, path) = place.find('/').map_or((place, "/"), |at| place.split_at(at));
    let (name, port) = place.rsplit_once(':').unwrap();
    let host = host(name);
    let via = method.map_or(Via::Tunnel, |method| Via::Request { scheme, method, path });
    let attempt = Attempt { host: &host, port: port.parse().unwrap(), via };
    match address {
        Some(address) => rules.at_address(&attempt, address.parse().unwrap()),
        None => rules.by_name(&attempt),
    }
}

fn is_allowed(policy: &str, what: &str, address: Option<&str>) -> bool {
    matches!(decide(&ruleset(policy), what, address), Verdict::Allow(_))
}

#[test]
fn the_decision_by_name_is_this_table() {
    for (policy, what, expected) in [
        ("none", "a.example:443", false),
        ("open", "a.example:443", true),
        ("open", "93.184.216.34:25", true),
        ("open; deny *:25", "93.184.216.34:25", false),
        ("open; deny *:25", "a.example:25", false),
        ("open; deny evil.example", "evil.example:8443", false),
        ("open; deny *.evil.example", "a.evil.example:443", false),
        ("open; deny *.evil.example", "evil.example:443", true),
        ("", "a.example:443", false),
        ("allow a.example", "a.example:443", true),
        ("allow a.example", "a.example:80", true),
        ("allow a.example", "a.example:22", false),
        ("allow a.example", "b.example:443", false),
        ("allow a.example", "xa.example:443", false),
        ("allow a.example", "a.example.evil.example:443", false),
        ("allow *.a.example", "b.a.example:443", true),
        ("allow *.a.example", "a.example:443", false),
        ("allow a.example:*", "a.example:22", true),
        ("allow a.example:8000-8010", "a.example:8005", true),
        ("allow a.example:8000-8010", "a.example:8011", false),
        ("allow tcp://a.example:5432", "a.example:5432", true),
        ("allow tcp://a.example:5432", "a.example:443", false),
        ("allow https://a.example", "a.example:443", true),
        ("allow https://a.example", "a.example:80", false),
        ("allow https://a.example", "GET http://a.example:443/", false),
        ("allow http://a.example", "GET http://a.example:80/", true),
        ("allow 93.184.216.0/24", "93.184.216.34:443", true),
        ("allow 93.184.216.0/24", "93.184.217.34:443", false),
        // A name is not allowed by what it may lead to: to find out, it would have to be asked for.
        ("allow 93.184.216.0/24", "a.example:443", false),
        // Deny wins, in whatever order.
        ("allow *.example; deny a.example", "a.example:443", false),
        ("deny a.example; allow *.example", "a.example:443", false),
        ("deny a.example; allow *.example", "b.example:443", true),
        ("allow a.example; deny a.example:80", "a.example:443", true),
        ("allow a.example; deny a.example:80", "a.example:80", false),
        // Bundles.
        ("allow @python", "index.example:443", true),
        ("allow @python", "other.example:443", false),
        ("@python; deny index.example", "index.example:443", false),
        // Requests.
        ("allow GET http://a.example", "GET http://a.example:80/x", true),
        ("allow GET http://a.example", "POST http://a.example:80/x", false),
        ("allow GET http://a.example", "get http://a.example:80/x", false),
        ("allow http://a.example/v1/**", "GET http://a.example:80/v1/x", true),
        ("allow http://a.example/v1/**", "GET http://a.example:80/v2/x", false),
        ("allow http://a.example/v1/**", "GET http://a.example:80/v1/../v2/x", false),
        ("allow http://a.example/v1/**", "GET http://a.example:80/v1/%2e%2e/v2", false),
        ("allow a.example; deny http://a.example/admin/**", "GET http://a.example:80/x", true),
        ("allow a.example; deny http://a.example/admin/**", "GET http://a.example:80/admin/x", false),
        ("allow a.example; deny http://a.example/admin/**", "GET http://a.example:80/%61dmin/x", false),
        ("allow a.example; deny http://a.example/admin/**", "GET http://a.example:80//admin/x", false),
        ("allow a.example", "GET http://a.example:80//x/../y", true),
        // A tunnel shows no requests.
        ("allow GET https://a.example", "a.example:443", false),
        ("allow GET https://a.example; inspect a.example", "a.example:443", true),
        ("allow a.example; deny POST https://a.example", "a.example:443", false),
        ("allow a.example; deny POST https://a.example; inspect a.example", "a.example:443", true),
        (
            "allow a.example; deny POST https://a.example; inspect a.example",
            "POST https://a.example:443/",
            false,
        ),
        ("allow GET http://a.example", "a.example:80", true),
        // To look into requests is no leave to make them.
        ("inspect a.example", "a.example:443", false),
    ] {
        assert_eq!(is_allowed(policy, what, None), expected, "{policy} | {what}");
    }
}

#[test]
fn the_decision_by_address_is_this_table() {
    for (policy, what, address, expected) in [
        ("open", "a.example:443", "93.184.216.34", true),
        ("allow a.example", "a.example:443", "93.184.216.34", true),
        ("allow a.example", "b.example:443", "93.184.216.34", false),
        ("allow a.example", "a.example:443", "127.0.0.1", false),
        ("allow a.example", "a.example:443", "169.254.169.254", false),
        ("allow a.example", "a.example:443", "::ffff:10.0.0.1", false),
        ("allow a.example", "a.example:443", "::ffff:93.184.216.34", false),
        ("open", "a.example:443", "10.0.0.1", false),
        ("open", "10.0.0.1:443", "10.0.0.1", false),
        ("open", "0.0.0.0:443", "0.0.0.0", false),
        // Named.
        ("allow a.example private", "a.example:443", "10.0.0.1", true),
        ("allow a.example private", "a.example:443", "127.0.0.1", true),
        ("allow a.example private", "a.example:443", "100.64.0.1", true),
        ("allow a.example private", "a.example:443", "fd00::1", true),
        ("allow a.example private", "a.example:443", "169.254.169.254", false),
        ("allow a.example private", "a.example:443", "fd00:ec2::254", false),
        ("allow a.example private", "a.example:443", "169.254.1.1", false),
        ("allow a.example private", "a.example:443", "0.0.0.0", false),
        ("allow a.example private", "a.example:443", "::ffff:10.0.0.1", false),
        ("open; allow a.example private", "b.example:443", "10.0.0.1", false),
        ("allow a.example; allow a.example:8080 private", "a.example:443", "10.0.0.1", false),
        ("allow 10.0.0.0/8", "10.0.0.1:443", "10.0.0.1", true),
        ("allow 10.0.0.0/8", "10.0.0.1:22", "10.0.0.1", false),
        ("allow a.example; allow 10.0.0.0/8", "a.example:443", "10.0.0.1", true),
        ("allow 0.0.0.0/0", "10.0.0.1:443", "10.0.0.1", false),
        ("allow 0.0.0.0/0", "93.184.216.34:443", "93.184.216.34", true),
        ("allow 169.254.0.0/16", "169.254.169.254:80", "169.254.169.254", false),
        ("allow 169.254.169.254:80", "169.254.169.254:80", "169.254.169.254", true),
        ("allow 0.0.0.0", "0.0.0.0:80", "0.0.0.0", false),
        ("allow 224.0.0.1", "224.0.0.1:80", "224.0.0.1", false),
        // An IPv4 address in an IPv6 form needs both to be named.
        ("allow 64:ff9b::/96", "[64:ff9b::8.8.8.8]:443", "64:ff9b::8.8.8.8", true),
        ("allow 64:ff9b::/96", "[64:ff9b::10.0.0.1]:443", "64:ff9b::10.0.0.1", false),
        ("allow 64:ff9b::/96; allow 10.0.0.0/8", "[64:ff9b::10.0.0.1]:443", "64:ff9b::10.0.0.1", true),
        // Denied networks, whatever the name.
        ("open; deny 93.184.216.0/24", "a.example:443", "93.184.216.34", false),
        ("open; allow 64:ff9b::/96; deny 93.184.216.0/24", "a.example:443", "64:ff9b::93.184.216.34", false),
        ("allow a.example private; deny 10.0.0.0/8", "a.example:443", "10.0.0.1", false),
        // The control plane.
        ("open", "a.example:7070", "198.41.0.4", false),
        ("open", "a.example:7071", "198.41.0.4", true),
        ("open; allow 198.41.0.4:7070", "198.41.0.4:7070", "198.41.0.4", false),
        ("open; allow cp.example:7070 private", "GET http://cp.example:7070/", "198.41.0.4", false),
        (
            "allow POST http://cp.example:7070/hook/1 private",
            "POST http://cp.example:7070/hook/1",
            "198.41.0.4",
            true,
        ),
        (
            "allow POST http://cp.example:7070/hook/1 private",
            "GET http://cp.example:7070/hook/1",
            "198.41.0.4",
            false,
        ),
        (
            "allow POST http://cp.example:7070/hook/1 private",
            "POST http://cp.example:7070/hook/2",
            "198.41.0.4",
            false,
        ),
        (
            "allow POST http://cp.example:7070/hook/* private",
            "POST http://cp.example:7070/hook/1",
            "198.41.0.4",
            false,
        ),
        ("allow POST http://cp.example:7070/hook/1 private", "cp.example:7070", "198.41.0.4", false),
    ] {
        assert_eq!(is_allowed(policy, what, Some(address)), expected, "{policy} | {what} at {address}");
    }
}

#[test]
fn the_rule_says_how_a_tunnel_is_carried() {
    for (policy, what, expected) in [
        ("allow a.example", "a.example:443", Conduct::Opaque),
        ("allow tcp://a.example:443", "a.example:443", Conduct::Raw),
        ("open", "a.example:443", Conduct::Raw),
        ("allow a.example; inspect a.example", "a.example:443", Conduct::Inspected),
        ("open; inspect a.example", "a.example:443", Conduct::Inspected),
        ("allow GET http://a.example", "a.example:80", Conduct::Requests),
        ("allow a.example; deny POST http://a.example", "a.example:80", Conduct::Requests),
        ("open; deny POST http://a.example", "a.example:80", Conduct::Requests),
        ("allow tcp://a.example:80; deny POST http://a.example", "a.example:80", Conduct::Requests),
    ] {
        let Verdict::Allow(allowed) = decide(&ruleset(policy), what, None) else {
            panic!("{policy} | {what}")
        };
        assert_eq!(allowed.conduct, expected, "{policy} | {what}");
    }
}

#[test]
fn an_explanation_names_the_rule_and_the_way_out() {
    for (policy, what, address, expected) in [
        (
            "none",
            "a.example:443",
            None,
            "a.example:443 is denied: this sandbox has no network (its policy is 'none'); give the sandbox a policy with 'allowlist' and rules",
        ),
        (
            "",
            "a.example:443",
            None,
            "a.example:443 is denied: no rule of the policy allows it; to allow it, add 'allow https://a.example' to the policy",
        ),
        (
            "allow a.example",
            "a.example:22",
            None,
            "a.example:22 is denied: no rule of the policy allows it; the rule 'allow a.example' comes near; to allow it, add 'allow a.example:22' to the policy",
        ),
        (
            "allow @python",
            "index.example:443",
            None,
            "index.example:443 is allowed: by the rule 'allow index.example' of @python",
        ),
        ("open", "a.example:443", None, "a.example:443 is allowed: the policy is open"),
        (
            "open; deny *.example",
            "a.example:443",
            None,
            "a.example:443 is denied by the rule 'deny *.example'",
        ),
        (
            "allow a.example",
            "a.example:443",
            Some("169.254.169.254"),
            "a.example:443 is denied: 169.254.169.254 is a cloud metadata address, refused unless a rule names it; if that is meant, add 'allow https://169.254.169.254' to the policy",
        ),
        (
            "allow a.example",
            "a.example:443",
            Some("10.0.0.1"),
            "a.example:443 is denied: 10.0.0.1 is a private address, refused unless a rule names it; if that is meant, add 'allow https://a.example private' to the policy",
        ),
        (
            "open",
            "a.example:7070",
            Some("198.41.0.4"),
            "a.example:7070 is denied: 198.41.0.4 is an address of the control plane",
        ),
        (
            "allow a.example; deny POST https://a.example",
            "a.example:443",
            None,
            "a.example:443 is denied: the rule 'deny POST https://a.example' chooses among requests, and a tunnel shows none; add 'inspect a.example' to the policy",
        ),
        (
            "allow a.example; inspect a.example",
            "a.example:443",
            None,
            "a.example:443 is allowed: by the rule 'allow a.example'; TLS ends in the gateway, and its requests are decided one by one",
        ),
    ] {
        let (name, port) = what.rsplit_once(':').unwrap();
        let host = host(name);
        let attempt = Attempt { host: &host, port: port.parse().unwrap(), via: Via::Tunnel };
        let addresses: Vec<_> = address.iter().map(|address: &&str| address.parse().unwrap()).collect();
        assert_eq!(ruleset(policy).explain(&attempt, &addresses), expected);
    }
}

#[test]
fn every_remedy_can_be_added_and_helps() {
    for (policy, what, address) in [
        ("", "a.example:443", "93.184.216.34"),
        ("", "a.example:8443", "93.184.216.34"),
        ("", "GET http://a.example:8080/x", "93.184.216.34"),
        ("", "93.184.216.34:443", "93.184.216.34"),
        ("", "[2606:4700::1111]:853", "2606:4700::1111"),
        ("allow a.example", "a.example:443", "10.0.0.1"),
        ("allow a.example", "a.example:443", "169.254.169.254"),
        ("open", "10.0.0.1:5432", "10.0.0.1"),
        ("allow a.example; deny POST https://a.example", "a.example:443", "93.184.216.34"),
    ] {
        let Verdict::Deny(denied) = decide(&ruleset(policy), what, Some(address)) else {
            panic!("{policy} | {what}")
        };
        let remedy = denied.remedy.unwrap();
        let rule = remedy.split('\'').nth(1).unwrap();
        assert!(is_allowed(&format!("{policy}\n{rule}"), what, Some(address)), "{policy} | {what} | {rule}");
    }
}

#[test]
fn only_names_that_can_be_reached_are_resolved() {
    for (policy, name, expected) in [
        ("none", "a.example", false),
        ("open", "a.example", true),
        ("open; deny a.example", "a.example", false),
        ("open; deny a.example:80", "a.example", true),
        ("allow *.a.example", "b.a.example", true),
        ("allow *.a.example", "b.example", false),
        ("allow tcp://db.example:5432", "db.example", true),
        ("allow 10.0.0.0/8", "a.example", false),
        ("allow *.example; deny a.example", "a.example", false),
    ] {
        assert_eq!(ruleset(policy).may_resolve(&name.parse().unwrap()), expected, "{policy} | {name}");
    }
}

#[test]
fn a_recording_allows_what_is_not_denied_and_keeps_refusing_addresses() {
    let rules = ruleset("allow a.example; deny evil.example").for_recording();
    assert!(matches!(decide(&rules, "b.example:443", Some("93.184.216.34")), Verdict::Allow(_)));
    assert!(matches!(decide(&rules, "evil.example:443", None), Verdict::Deny(_)));
    assert!(matches!(decide(&rules, "b.example:443", Some("169.254.169.254")), Verdict::Deny(_)));
}

#[test]
fn a_bundle_that_cannot_be_used_is_named() {
    let bundles = {
        let mut bundles = Bundles::default();
        bundles.define("empty".parse().unwrap(), "# nothing").unwrap();
        bundles
    };
    for (policy, expected) in [
        ("allow @npm", "there is no bundle '@npm'; there are: @empty"),
        ("allow @empty", "the bundle '@empty' is empty: nothing is configured for it on this host"),
    ] {
        let refusal =
            policy.parse::<Policy>().unwrap().resolve(&bundles, &OwnAddresses::default()).unwrap_err();
        assert_eq!(refusal.to_string(), expected);
    }
}
