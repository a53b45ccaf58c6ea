//! Who may be told: an address that somebody names, and which addresses of networks it may lead to.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use crate::egress::address::{self, Standing};
use crate::egress::{Host, Network, Scheme, WebAddress};

const LONGEST: usize = 2048;
/// Ports below this one, but for those of HTTP, belong to services that speak something else.
const FIRST_PORT_OF_USERS: u16 = 1024;

/// The address of a receiver, as it was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receiver {
    pub scheme: Scheme,
    pub host: Host,
    pub port: u16,
    /// Path and query, which may be a secret of the receiver: neither is told to anybody else.
    pub target: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotAReceiver {
    #[error(
        "the address of a receiver begins with http:// or https:// and has at most {LONGEST} visible characters"
    )]
    Form,
    #[error("the address of a receiver cannot hold a user name or a password")]
    Credentials,
    #[error("the address of a receiver cannot have a fragment ('#')")]
    Fragment,
    #[error("{0}")]
    Address(#[from] crate::egress::web_address::NotAWebAddress),
}

impl FromStr for Receiver {
    type Err = NotAReceiver;

    fn from_str(given: &str) -> Result<Self, NotAReceiver> {
        let visible = |c: char| {
            c.is_ascii_graphic() && !matches!(c, '"' | '<' | '>' | '\\' | '^' | '`' | '{' | '|' | '}')
        };
        if given.len() > LONGEST || !given.chars().all(visible) {
            return Err(NotAReceiver::Form);
        }
        if given.contains('#') {
            return Err(NotAReceiver::Fragment);
        }
        let place = given.split_once("://").map(|(_, rest)| rest).ok_or(NotAReceiver::Form)?;
        let end = place.find(['/', '?']).unwrap_or(place.len());
        let (authority, target) = place.split_at(end);
        if authority.contains('@') {
            return Err(NotAReceiver::Credentials);
        }
        let scheme = &given[..given.len() - place.len()];
        let WebAddress { scheme, host, port, .. } = format!("{scheme}{authority}").parse()?;
        let target = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
        Ok(Self { scheme, host, port, target })
    }
}

impl Receiver {
    /// Host and port, as the header `Host` has them.
    pub fn authority(&self) -> String {
        match self.scheme.default_port() == Some(self.port) {
            true => self.host.to_string(),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

/// What the log may say of it.
impl fmt::Display for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme.name(), self.authority())
    }
}

/// Receivers that the operator names, beside everybody on the internet: `webhooks.allow`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Allowed(Vec<Entry>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Entry {
    Host { host: Host, port: Option<u16> },
    Network(Network),
}

/// Why a receiver is not sent anything.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("{address} is {}, which 'webhooks.allow' does not name", standing.what())]
    Address { address: IpAddr, standing: Standing },
    #[error(
        "port {0} is not one of web servers (80, 443, 1024 and above), and 'webhooks.allow' does not name it"
    )]
    Port(u16),
}

impl FromStr for Allowed {
    type Err = String;

    /// Hosts, hosts with ports, and networks, parted by spaces or commas: `assistant.lan:8000 10.1.0.0/16 [::1]`.
    fn from_str(given: &str) -> Result<Self, String> {
        let words = given.split([' ', ',', '\t', '\n']).filter(|word| !word.is_empty());
        words.map(entry).collect::<Result<_, _>>().map(Self)
    }
}

fn entry(word: &str) -> Result<Entry, String> {
    if word.contains("://") {
        return Err(format!(
            "'{word}' is an address of a web service: write only its host, as in host.example:8000"
        ));
    }
    if word.contains('/') {
        return word.parse().map(Entry::Network).map_err(|error| error.to_string());
    }
    let colon = word.rfind(':').filter(|colon| !word[*colon..].contains(']'));
    let (host, port) = match colon {
        Some(colon) => {
            let port = word[colon + 1..].parse::<u16>().ok().filter(|port| *port != 0);
            (
                &word[..colon],
                Some(port.ok_or_else(|| format!("the port of '{word}' is not a number from 1 to 65535"))?),
            )
        }
        None => (word, None),
    };
    let host = host.parse().map_err(|error| format!("'{word}': {error}"))?;
    Ok(Entry::Host { host, port })
}

impl Allowed {
    /// Whether a receiver may be sent something at an address that its host leads to. `is_here` says that the address is
    /// one of this very machine.
    pub fn check(&self, receiver: &Receiver, address: IpAddr, is_here: bool) -> Result<(), Refused> {
        let standing = address::refused(address).map(|(standing, _)| standing);
        let standing = standing.or_else(|| is_here.then_some(Standing::Loopback));
        let named = self.0.iter().any(|entry| match entry {
            Entry::Host { host, port } => {
                let admits = match host {
                    // Whoever writes an address means that address.
                    Host::Address(_) => Standing::is_admitted_by_network,
                    Host::Name(_) => Standing::is_admitted_as_private,
                };
                *host == receiver.host
                    && port.is_none_or(|port| port == receiver.port)
                    && standing.is_none_or(admits)
            }
            // Metadata services are reached only by whoever names exactly them.
            Entry::Network(network) => {
                let exactly = network.single().is_some();
                network.contains(address)
                    && standing.is_none_or(|standing| {
                        standing.is_admitted_by_network() && (exactly || standing != Standing::Metadata)
                    })
            }
        });
        match standing {
            _ if named => Ok(()),
            Some(standing) => Err(Refused::Address { address, standing }),
            None if receiver.port < FIRST_PORT_OF_USERS && ![80, 443].contains(&receiver.port) => {
                Err(Refused::Port(receiver.port))
            }
            None => Ok(()),
        }
    }

    /// The same, as far as it can be known before the host's name is looked up.
    pub fn check_literal(&self, receiver: &Receiver) -> Result<(), Refused> {
        match receiver.host {
            Host::Address(address) => self.check(receiver, address, false),
            Host::Name(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receiver_is_read_as_it_was_given() {
        for (given, authority, target) in [
            ("https://hooks.example/a/b?c=d&e=%20", "hooks.example", "/a/b?c=d&e=%20"),
            ("https://hooks.example", "hooks.example", "/"),
            ("https://hooks.example?x=1", "hooks.example", "/?x=1"),
            ("HTTP://Hooks.Example:80/", "hooks.example", "/"),
            ("http://hooks.example:8080/@me", "hooks.example:8080", "/@me"),
            ("http://[::1]:9000/x", "[::1]:9000", "/x"),
            ("http://127.0.0.1:9000/x", "127.0.0.1:9000", "/x"),
        ] {
            let receiver: Receiver = given.parse().unwrap();
            assert_eq!(
                (receiver.authority().as_str(), receiver.target.as_str()),
                (authority, target),
                "{given}"
            );
            assert!(!receiver.to_string().contains("c=d"), "{receiver}");
        }
    }

    #[test]
    fn what_is_no_receiver_is_refused() {
        let long = format!("https://a.example/{}", "x".repeat(LONGEST));
        for given in [
            "",
            "hooks.example",
            "//hooks.example/",
            "ftp://hooks.example/",
            "file:///etc/passwd",
            "gopher://hooks.example/",
            "https://user:password@hooks.example/",
            "https://@hooks.example/",
            "https://hooks.example@10.0.0.1/",
            "https://hooks.example\\@10.0.0.1/",
            "https://hooks.example/#fragment",
            "https://hooks example/",
            "https://hooks.example/a b",
            "https://hooks.example/a\r\nX: y",
            "https://hooks.example/ä",
            "https:///x",
            "https://hooks.example:0/",
            "https://hooks.example:65536/",
            // Spellings of 127.0.0.1 that resolvers read.
            "http://2130706433/",
            "http://0x7f.1/",
            "http://0177.0.0.1/",
            "http://127.1/",
            "http://[::1/",
            "http://[fe80::1%25eth0]/",
            &long,
        ] {
            assert!(given.parse::<Receiver>().is_err(), "{given}");
        }
    }

    fn refused(allow: &str, url: &str, address: &str) -> Option<Refused> {
        let (allow, receiver): (Allowed, Receiver) = (allow.parse().unwrap(), url.parse().unwrap());
        allow.check(&receiver, address.parse().unwrap(), false).err()
    }

    #[test]
    fn only_the_internet_is_told_unless_the_operator_says_more() {
        for address in ["93.184.216.34", "1.1.1.1", "2606:4700::1111"] {
            assert_eq!(refused("", "https://hooks.example/", address), None, "{address}");
        }
        for address in [
            "0.0.0.0",
            "0.1.2.3",
            "127.0.0.1",
            "127.255.255.254",
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "100.64.0.1",
            "100.127.255.255",
            "169.254.0.1",
            "169.254.169.254",
            "169.254.170.2",
            "100.100.100.200",
            "168.63.129.16",
            "192.0.0.192",
            "192.0.0.1",
            "192.0.2.1",
            "198.18.0.1",
            "198.51.100.1",
            "203.0.113.1",
            "192.88.99.1",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b:1::7f00:1",
            "2002:7f00:1::",
            "2001:0:1:2:3:4:5:6",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "2001:db8::1",
            "2001:10::1",
            "3fff::1",
            "5f00::1",
            "100::1",
        ] {
            let why = refused("", "https://hooks.example/", address);
            assert!(matches!(why, Some(Refused::Address { .. })), "{address}: {why:?}");
        }
    }

    #[test]
    fn an_own_address_counts_as_loopback_whatever_it_looks_like() {
        let receiver: Receiver = "https://hooks.example/".parse().unwrap();
        let own = "93.184.216.34".parse().unwrap();
        assert!(Allowed::default().check(&receiver, own, true).is_err());
        let allowed: Allowed = "hooks.example".parse().unwrap();
        assert_eq!(allowed.check(&receiver, own, true), Ok(()));
    }

    #[test]
    fn services_that_do_not_speak_http_are_not_told_anything() {
        for (port, good) in
            [(80, true), (443, true), (8080, true), (1024, true), (22, false), (25, false), (1023, false)]
        {
            let url = format!("http://hooks.example:{port}/");
            assert_eq!(refused("", &url, "1.1.1.1").is_none(), good, "{port}");
            assert_eq!(refused("hooks.example", &url, "1.1.1.1"), None, "{port}");
        }
    }

    #[test]
    fn what_the_operator_names_is_told_and_nothing_beside_it() {
        let cases = [
            // (allow, url, address, told)
            ("assistant.lan", "http://assistant.lan:8000/", "10.0.0.5", true),
            ("assistant.lan", "http://assistant.lan:8000/", "127.0.0.1", true),
            ("assistant.lan:8000", "http://assistant.lan:8000/", "10.0.0.5", true),
            ("assistant.lan:8001", "http://assistant.lan:8000/", "10.0.0.5", false),
            ("assistant.lan", "http://other.lan:8000/", "10.0.0.5", false),
            ("lan", "http://assistant.lan:8000/", "10.0.0.5", false),
            // A name never leads to a cloud's metadata.
            ("assistant.lan", "http://assistant.lan/", "169.254.169.254", false),
            ("assistant.lan", "http://assistant.lan/", "169.254.1.1", false),
            ("assistant.lan", "http://assistant.lan/", "::ffff:10.0.0.1", false),
            ("localhost", "http://localhost:9/", "127.0.0.1", true),
            ("127.0.0.1:9000", "http://127.0.0.1:9000/", "127.0.0.1", true),
            ("127.0.0.1:9000", "http://127.0.0.1:9001/", "127.0.0.1", false),
            // Another name for an address that is named as a host is another host.
            ("127.0.0.1", "http://rebound.example/", "127.0.0.1", false),
            ("127.0.0.0/8", "http://rebound.example:9/", "127.0.0.1", true),
            ("10.0.0.0/8, 127.0.0.0/8", "http://a.lan:8/", "127.0.0.1", true),
            ("10.0.0.0/8", "http://a.lan/", "10.255.0.1", true),
            ("10.0.0.0/8", "http://a.lan/", "11.0.0.1", true),
            ("10.0.0.0/8", "http://a.lan/", "192.168.0.1", false),
            ("169.254.0.0/16", "http://a.lan/", "169.254.169.254", false),
            ("169.254.0.0/16", "http://a.lan/", "169.254.7.7", true),
            ("0.0.0.0/0", "http://a.lan/", "224.0.0.1", false),
            ("fd00::/8 [::1]:80", "http://[::1]/", "::1", true),
            ("fd00::/8", "http://a.lan/", "fd12::1", true),
        ];
        for (allow, url, address, told) in cases {
            let why = refused(allow, url, address);
            assert_eq!(why.is_none(), told, "'{allow}' and {url} at {address}: {why:?}");
        }
    }

    #[test]
    fn a_list_that_cannot_be_read_is_refused_with_the_word() {
        for (given, word) in [
            ("http://a.example/", "http://a.example/"),
            ("a.example:x", "a.example:x"),
            ("a.example:0", "a.example:0"),
            ("10.0.0.1/8", "10.0.0.0/8"),
            ("a_b.example", "a_b.example"),
            ("ok.example 1.2.3", "1.2.3"),
        ] {
            let error = given.parse::<Allowed>().unwrap_err();
            assert!(error.contains(word), "{given}: {error}");
        }
        assert_eq!("".parse::<Allowed>().unwrap(), Allowed::default());
    }
}
