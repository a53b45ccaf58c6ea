//! What holds for every policy and every attempt.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::recording::Seen;
use super::*;

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("a.example".to_owned()),
        Just("b.example".to_owned()),
        Just("x.a.example".to_owned()),
        "[a-z]{1,3}(\\.[a-z]{1,3}){0,2}",
    ]
}

fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<u32>().prop_map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits))),
        any::<u128>().prop_map(|bits| IpAddr::V6(Ipv6Addr::from_bits(bits))),
        Just("10.0.0.1".parse().unwrap()),
        Just("127.0.0.1".parse().unwrap()),
        Just("169.254.169.254".parse().unwrap()),
        Just("93.184.216.34".parse().unwrap()),
    ]
}

/// Addresses of ranges that are refused unless they are named.
fn refused_v4() -> impl Strategy<Value = Ipv4Addr> {
    let ranges = [
        "0.0.0.0",
        "127.0.0.0",
        "10.0.0.0",
        "172.16.0.0",
        "192.168.0.0",
        "100.64.0.0",
        "169.254.0.0",
        "224.0.0.0",
    ];
    let inside = (prop::sample::select(ranges.to_vec()), any::<u16>()).prop_map(|(start, offset)| {
        Ipv4Addr::from_bits(start.parse::<Ipv4Addr>().unwrap().to_bits() + u32::from(offset))
    });
    let metadata = ["169.254.169.254", "168.63.129.16", "100.100.100.200", "255.255.255.255"];
    prop_oneof![3 => inside, 1 => prop::sample::select(metadata.to_vec()).prop_map(|text| text.parse().unwrap())]
}

fn place() -> impl Strategy<Value = String> {
    let network = prop_oneof![
        Just("10.0.0.0/8".to_owned()),
        Just("0.0.0.0/0".to_owned()),
        Just("fd00::/8".to_owned()),
        address().prop_map(|address| address.to_string()),
    ];
    let whom = prop_oneof![name(), name().prop_map(|name| format!("*.{name}")), Just("*".to_owned())];
    let port = prop_oneof![
        Just(String::new()),
        Just(":80".into()),
        Just(":443".into()),
        Just(":1-9000".into()),
        Just(":*".into())
    ];
    prop_oneof![4 => (whom, port).prop_map(|(whom, port)| whom + &port), 1 => network]
}

fn target() -> impl Strategy<Value = String> {
    let url = (
        prop_oneof![Just("http"), Just("https")],
        name(),
        prop_oneof![Just(""), Just("/v1/**"), Just("/v1/*"), Just("/a")],
    )
        .prop_map(|(scheme, name, path)| format!("{scheme}://{name}{path}"));
    let methods = prop_oneof![Just(""), Just("GET "), Just("GET,POST ")];
    let request = (methods, url).prop_map(|(methods, url)| format!("{methods}{url}"));
    let tcp = (name(), 1..u16::MAX).prop_map(|(name, port)| format!("tcp://{name}:{port}"));
    prop_oneof![3 => place(), 2 => request, 1 => tcp]
}

fn rule() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => target().prop_map(|target| format!("allow {target}")),
        1 => name().prop_map(|name| format!("allow {name} private")),
        2 => target().prop_map(|target| format!("deny {target}")),
        1 => name().prop_map(|name| format!("inspect {name}")),
    ]
}

fn policy() -> impl Strategy<Value = Policy> {
    let mode = prop_oneof![Just("allowlist"), Just("open")];
    (mode, prop::collection::vec(rule(), 0..8)).prop_map(|(mode, rules)| {
        let text = format!("{mode}\n{}\nlimit sent 4096", rules.join("\n"));
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    })
}

fn resolved(policy: &Policy) -> Ruleset {
    policy.resolve(&Bundles::default(), &OwnAddresses::default()).unwrap()
}

#[derive(Debug, Clone)]
struct Wanted {
    host: Host,
    port: u16,
    request: Option<(Scheme, String, String)>,
    address: IpAddr,
}

impl Wanted {
    fn attempt(&self) -> Attempt<'_> {
        let via = match &self.request {
            None => Via::Tunnel,
            Some((scheme, method, path)) => Via::Request { scheme: *scheme, method, path },
        };
        Attempt { host: &self.host, port: self.port, via }
    }

    fn is_allowed(&self, rules: &Ruleset) -> bool {
        matches!(rules.at_address(&self.attempt(), self.address), Verdict::Allow(_))
    }
}

fn wanted() -> impl Strategy<Value = Wanted> {
    let scheme = prop_oneof![Just(Scheme::Http), Just(Scheme::Https)];
    let method = prop_oneof![Just("GET".to_owned()), Just("POST".to_owned()), "[A-Za-z]{1,4}"];
    let path = prop_oneof![Just("/v1/x".to_owned()), Just("/a".to_owned()), "/[a-z/.%]{0,8}", ".{0,8}"];
    let port = prop_oneof![Just(80_u16), Just(443), any::<u16>()];
    (
        prop_oneof![3 => name().prop_map(Err), 1 => address().prop_map(Ok)],
        port,
        prop::option::of((scheme, method, path)),
        address(),
    )
        .prop_map(|(host, port, request, address)| match host {
            Ok(address) => Wanted { host: address.into(), port, request, address },
            Err(name) => Wanted { host: name.parse().unwrap(), port, request, address },
        })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn adding_a_deny_never_allows(policy in policy(), deny in target(), at in 0_usize..8, wanted in wanted()) {
        let before = wanted.is_allowed(&resolved(&policy));
        let mut stricter = policy;
        let deny: Policy = format!("deny {deny}").parse().unwrap();
        stricter.rules.insert(at.min(stricter.rules.len()), deny.rules[0].clone());
        prop_assert!(before || !wanted.is_allowed(&resolved(&stricter)));
    }

    #[test]
    fn adding_an_allow_never_denies(policy in policy(), allow in target(), wanted in wanted()) {
        let before = wanted.is_allowed(&resolved(&policy));
        let mut wider = policy;
        wider.rules.extend(format!("allow {allow}").parse::<Policy>().unwrap().rules);
        let ambiguous = wanted.request.as_ref().is_some_and(|(_, _, path)| path::Path::parse(path).is_err());
        prop_assert!(!before || ambiguous || wanted.is_allowed(&resolved(&wider)));
    }

    #[test]
    fn what_is_written_is_read_back(policy in policy()) {
        let written = policy.to_string();
        let read: Policy = written.parse().unwrap();
        prop_assert_eq!(&read, &policy);
        prop_assert_eq!(read.to_string(), written);
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in ".{0,80}") {
        if let Ok(policy) = text.parse::<Policy>() {
            prop_assert_eq!(policy.to_string().parse::<Policy>().unwrap(), policy);
        }
    }

    #[test]
    fn no_text_of_rules_makes_the_parser_panic(text in "(allow|deny|inspect|limit|open|none|@)[ a-z0-9.:/*@\\[\\],#;-]{0,40}") {
        if let Ok(policy) = text.parse::<Policy>() {
            prop_assert_eq!(policy.to_string().parse::<Policy>().unwrap(), policy);
        }
    }

    #[test]
    fn a_decision_never_panics_and_the_second_step_includes_the_first(policy in policy(), wanted in wanted()) {
        let rules = resolved(&policy);
        let named = matches!(rules.by_name(&wanted.attempt()), Verdict::Allow(_));
        prop_assert!(named || !wanted.is_allowed(&rules));
        let _ = rules.explain(&wanted.attempt(), &[wanted.address]);
    }

    #[test]
    fn no_policy_without_addresses_reaches_a_refused_one(policy in policy(), mut wanted in wanted(), v4 in refused_v4()) {
        let mut policy = policy;
        policy.rules.retain(|statement| match statement {
            Statement::Rule(rule) => !rule.private && !matches!(rule.target.whom, Whom::Network(_)),
            Statement::Bundle(_) => true,
        });
        let rules = resolved(&policy);
        let bits = v4.to_bits();
        let [a, b, c, d] = v4.octets();
        let pair = |high: u8, low: u8| u16::from_be_bytes([high, low]);
        let spellings = [
            IpAddr::V4(v4),
            IpAddr::V6(v4.to_ipv6_mapped()),
            IpAddr::V6(Ipv6Addr::from_bits(u128::from(bits))),
            IpAddr::V6(Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, pair(a, b), pair(c, d))),
            IpAddr::V6(Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, pair(a, b), pair(c, d))),
            IpAddr::V6(Ipv6Addr::new(0x2002, pair(a, b), pair(c, d), 0, 0, 0, 0, 1)),
            IpAddr::V6(Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, !pair(a, b), !pair(c, d))),
        ];
        for address in spellings {
            wanted.address = address;
            prop_assert!(!wanted.is_allowed(&rules), "{}", address);
            wanted.host = address.into();
            prop_assert!(!wanted.is_allowed(&rules), "{}", address);
        }
    }

    #[test]
    fn an_address_in_another_spelling_is_no_host(bits in any::<u32>()) {
        let [a, b, c, d] = bits.to_be_bytes();
        for spelling in [
            bits.to_string(),
            format!("{bits:#x}"),
            format!("0{bits:o}"),
            format!("{a}.{}", bits & 0xff_ffff),
            format!("{a}.{b}.{}", bits & 0xffff),
            format!("{a:#x}.{b:#x}.{c:#x}.{d:#x}"),
            format!("0{a:o}.0{b:o}.0{c:o}.0{d:o}"),
            format!("{a:03}.{b:03}.{c:03}.00{d}"),
            format!("{a}.{b}.{c}.{d}."),
        ] {
            prop_assert!(spelling.parse::<Host>().is_err(), "{}", spelling);
        }
    }

    #[test]
    fn what_was_recorded_is_allowed_by_its_minimal_policy(all in prop::collection::vec(wanted(), 0..8)) {
        let mut recording = Recording::default();
        let open = resolved(&"open".parse().unwrap());
        let kept: Vec<_> = all.into_iter().filter(|wanted| wanted.is_allowed(&open)).collect();
        for wanted in &kept {
            let seen = match &wanted.request {
                None => Seen::Tunnel,
                Some((scheme, method, _)) => Seen::Request { scheme: *scheme, method, inspected: *scheme == Scheme::Https },
            };
            recording.note(&wanted.host, wanted.port, seen, false);
        }
        let policy = recording.minimal_policy();
        let rules = resolved(&policy.to_string().parse().unwrap());
        for wanted in &kept {
            prop_assert!(wanted.is_allowed(&rules), "{:?} under {}", wanted, policy);
        }
    }
}
