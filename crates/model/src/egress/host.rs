//! What a client may call a host: a name, or an address in its one usual spelling.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

const LONGEST_NAME: usize = 253;
const LONGEST_LABEL: usize = 63;

/// The name of a host: lower case, without the final dot, its labels made of letters, digits and hyphens.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostName(Box<str>);

/// A host as a client names it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Host {
    Name(HostName),
    Address(IpAddr),
}

/// Why something is not a host, and at which byte of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct NotAHost {
    pub at: usize,
    pub why: WhyNotAHost,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WhyNotAHost {
    #[error("a host name is missing")]
    Empty,
    #[error("a host name has at most {LONGEST_NAME} characters")]
    TooLong,
    #[error("a part of a host name has 1 to {LONGEST_LABEL} characters, and no hyphen at its ends")]
    Label,
    #[error("{0:?} cannot stand in a host name; write names of other scripts in their xn-- form")]
    Character(char),
    #[error(
        "an address has only one spelling here: four decimal numbers without leading zeros, or IPv6 in brackets"
    )]
    OddAddress,
}

impl HostName {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this name lies below the other: `a.b.example` lies below `example` and `b.example`, not below itself.
    pub fn is_below(&self, parent: &Self) -> bool {
        self.0.strip_suffix(parent.as_str()).is_some_and(|rest| rest.ends_with('.'))
    }

    /// The first label and the name of what remains, when there is one.
    pub fn split_first(&self) -> Option<(&str, &str)> {
        self.0.split_once('.')
    }
}

impl FromStr for HostName {
    type Err = NotAHost;

    fn from_str(given: &str) -> Result<Self, NotAHost> {
        let refuse = |at, why| Err(NotAHost { at, why });
        let name = given.strip_suffix('.').unwrap_or(given);
        if name.is_empty() {
            return refuse(0, WhyNotAHost::Empty);
        }
        if name.len() > LONGEST_NAME {
            return refuse(LONGEST_NAME, WhyNotAHost::TooLong);
        }
        let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
        if let Some((at, found)) = name.char_indices().find(|(_, c)| !allowed(*c)) {
            return refuse(at, WhyNotAHost::Character(found));
        }
        let mut at = 0;
        for label in name.split('.') {
            let good = (1..=LONGEST_LABEL).contains(&label.len())
                && !label.starts_with('-')
                && !label.ends_with('-');
            if !good {
                return refuse(at, WhyNotAHost::Label);
            }
            at += label.len() + 1;
        }
        // Resolvers read 2130706433, 0x7f.1 and 0177.0.0.1 as addresses, so a name may not end like one.
        let last = name.rsplit('.').next().unwrap_or(name);
        if is_number(last) {
            return refuse(name.len() - last.len(), WhyNotAHost::OddAddress);
        }
        Ok(Self(name.to_ascii_lowercase().into()))
    }
}

fn is_number(label: &str) -> bool {
    let hex = label.strip_prefix("0x").or_else(|| label.strip_prefix("0X"));
    label.bytes().all(|c| c.is_ascii_digit())
        || hex.is_some_and(|rest| rest.bytes().all(|c| c.is_ascii_hexdigit()))
}

impl FromStr for Host {
    type Err = NotAHost;

    /// Reads a name, an IPv4 address, or an IPv6 address in brackets.
    fn from_str(given: &str) -> Result<Self, NotAHost> {
        if let Some(inner) = given.strip_prefix('[') {
            let address = inner.strip_suffix(']').and_then(|inner| inner.parse::<Ipv6Addr>().ok());
            let odd = NotAHost { at: 0, why: WhyNotAHost::OddAddress };
            return address.map(|address| Self::Address(IpAddr::V6(address))).ok_or(odd);
        }
        if let Ok(address) = given.parse::<Ipv4Addr>() {
            return Ok(Self::Address(IpAddr::V4(address)));
        }
        given.parse().map(Self::Name)
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.fmt(f),
            Self::Address(IpAddr::V4(address)) => address.fmt(f),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}

impl From<IpAddr> for Host {
    fn from(address: IpAddr) -> Self {
        Self::Address(address)
    }
}

impl From<HostName> for Host {
    fn from(name: HostName) -> Self {
        Self::Name(name)
    }
}

as_text!(HostName, Host);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_form() {
        for (given, name) in [
            ("Example.ORG", "example.org"),
            ("example.org.", "example.org"),
            ("xn--bcher-kva.example", "xn--bcher-kva.example"),
            ("localhost", "localhost"),
            ("1password.com", "1password.com"),
            ("0x.example", "0x.example"),
        ] {
            assert_eq!(given.parse::<HostName>().unwrap().as_str(), name, "{given}");
        }
    }

    #[test]
    fn what_is_not_a_name_is_refused_at_its_position() {
        for (given, at) in [
            ("", 0),
            (".", 0),
            ("a..b", 2),
            ("-a.example", 0),
            ("a.b-", 2),
            ("bücher.example", 1),
            ("a_b.example", 1),
            ("a b", 1),
            ("evil.example\r\nHost:x", 12),
            ("evil.example\0.good.example", 12),
            ("user@good.example", 4),
            ("good.example%2eevil", 12),
        ] {
            assert_eq!(given.parse::<HostName>().unwrap_err().at, at, "{given:?}");
        }
        assert!("x".repeat(64).parse::<HostName>().is_err());
        assert!(["x"; 127].join(".").parse::<HostName>().is_ok());
        assert!(["x"; 128].join(".").parse::<HostName>().is_err());
    }

    #[test]
    fn an_address_has_one_spelling() {
        for (given, address) in [
            ("127.0.0.1", "127.0.0.1"),
            ("[::1]", "::1"),
            ("[0:0::1]", "::1"),
            ("[::ffff:1.2.3.4]", "::ffff:1.2.3.4"),
        ] {
            assert_eq!(given.parse::<Host>().unwrap(), Host::Address(address.parse().unwrap()), "{given}");
        }
        for odd in [
            "2130706433",
            "0x7f000001",
            "0X7F.1",
            "0177.0.0.1",
            "127.1",
            "127.0.0.01",
            "127.0.0.1.",
            "1.2.3.4.5",
            "example.1",
            "example.0x1f",
            "0x",
            "[::1",
            "[fe80::1%eth0]",
            "[127.0.0.1]",
            "::1",
        ] {
            assert!(odd.parse::<Host>().is_err(), "{odd}");
        }
    }

    #[test]
    fn below_means_a_whole_label() {
        let name = |text: &str| text.parse::<HostName>().unwrap();
        assert!(name("a.example.org").is_below(&name("example.org")));
        assert!(name("a.b.example.org").is_below(&name("example.org")));
        for not in ["example.org", "notexample.org", "example.org.evil.example", "org"] {
            assert!(!name(not).is_below(&name("example.org")), "{not}");
        }
    }
}
