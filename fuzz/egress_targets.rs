//! What the fuzz targets of the gateway do with their input. The fuzzer and the plain test `fuzz_smoke` share it.

use std::net::IpAddr;

use cubicle_egress::dns::message::{self, Answer};
use cubicle_egress::socks::{self, Parsed};
use cubicle_model::egress::{Attempt, Bundles, Host, OwnAddresses, Policy, Scheme, Verdict, Via};

/// A message is read the same however it comes, and takes no more than there is.
pub(crate) fn egress_socks(bytes: &[u8]) {
    fn check<T: PartialEq + std::fmt::Debug>(bytes: &[u8], parse: fn(&[u8]) -> Parsed<T>) {
        let whole = parse(bytes);
        if let Ok(Some((_, length))) = &whole {
            assert!(*length <= bytes.len() && *length <= socks::LONGEST);
            assert_eq!(parse(&bytes[..*length]), whole);
            assert!((0..*length).all(|cut| parse(&bytes[..cut]) == Ok(None)));
        }
        if whole == Ok(None) {
            assert!(bytes.len() < socks::LONGEST);
        }
    }
    check(bytes, socks::parse_greeting);
    check(bytes, socks::parse_request);
}

/// A question is answered with its own number and its own words; what is none gets no more than a head.
pub(crate) fn egress_dns(bytes: &[u8]) {
    match message::parse(bytes) {
        Err(malformed) => {
            if let Some(reply) = malformed.reply() {
                assert_eq!((reply.len(), &reply[..2]), (12, &bytes[..2]));
            }
        }
        Ok(query) => {
            assert!(query.name().len() <= 255 && query.name().is_ascii());
            for answer in
                [Answer::Address([127, 128, 0, 1].into()), Answer::Nothing, Answer::NoSuchName, Answer::Full]
            {
                let reply = query.reply(answer);
                assert!(reply.len() <= 512 && reply[..2] == bytes[..2] && reply[2] & 0x80 != 0);
                assert_eq!(
                    message::parse(&reply).map(drop).map_err(|malformed| malformed.reply()),
                    Err(None)
                );
            }
        }
    }
}

/// A policy that is read is written and read again as the same, and no decision by it panics or lets a metadata
/// address through that it does not name.
pub(crate) fn egress_policy(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let policy = match text.parse::<Policy>() {
        Ok(policy) => policy,
        Err(error) => {
            assert!(error.line >= 1 && error.line <= text.matches('\n').count() + 1);
            let line = text.split('\n').nth(error.line - 1).unwrap_or_default();
            assert!(error.column >= 1 && error.column <= line.chars().count() + 1, "{error}");
            return;
        }
    };
    assert_eq!(policy.to_string().parse(), Ok(policy.clone()));
    let Ok(rules) = policy.resolve(&Bundles::default(), &OwnAddresses::default()) else { return };
    let metadata = IpAddr::from([169, 254, 169, 254]);
    for host in ["a.example", "10.0.0.1", "[::1]"] {
        let host: Host = host.parse().unwrap();
        for via in [Via::Tunnel, Via::Request { scheme: Scheme::Http, method: "GET", path: "/a/../b" }] {
            let attempt = Attempt { host: &host, port: 80, via };
            let _ = rules.by_name(&attempt);
            let _ = rules.explain(&attempt, &[metadata]);
            let reached = matches!(rules.at_address(&attempt, metadata), Verdict::Allow(_));
            assert!(!reached || text.contains("169.254.169.254") || text.contains("a9fe"), "{text}");
        }
    }
}
