//! Addresses that are refused unless a rule names them: whatever leads to the host itself, to the networks around it, or
//! to a cloud's metadata, in every form that an address can take.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::Network;

/// Why an address is refused unless it is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Standing {
    Unspecified,
    Loopback,
    Private,
    /// Carrier-grade address translation, which clouds use between their machines.
    Shared,
    LinkLocal,
    Metadata,
    Multicast,
    /// Not in use on the internet.
    Reserved,
    /// An IPv4 address inside of an IPv6 address.
    Embedded,
    ControlPlane,
}

impl Standing {
    /// What the address is, as it stands in a sentence.
    pub fn what(self) -> &'static str {
        match self {
            Self::Unspecified => "the unspecified address",
            Self::Loopback => "a loopback address of the host",
            Self::Private => "a private address",
            Self::Shared => "an address of a carrier's or a cloud's inner network",
            Self::LinkLocal => "a link-local address",
            Self::Metadata => "a cloud metadata address",
            Self::Multicast => "a multicast address",
            Self::Reserved => "a reserved address",
            Self::Embedded => "an IPv4 address in an IPv6 form",
            Self::ControlPlane => "an address of the control plane",
        }
    }

    /// Whether a rule for a host name can admit such an address by the word `private`.
    pub fn is_admitted_as_private(self) -> bool {
        match self {
            // Reserved ranges are what laboratories without an internet use for their mirrors.
            Self::Loopback | Self::Private | Self::Shared | Self::Reserved => true,
            Self::Unspecified
            | Self::LinkLocal
            | Self::Metadata
            | Self::Multicast
            | Self::Embedded
            | Self::ControlPlane => false,
        }
    }

    /// Whether a rule for a network that lies in the refused range can admit the address.
    pub fn is_admitted_by_network(self) -> bool {
        !matches!(self, Self::Unspecified | Self::Multicast | Self::ControlPlane)
    }
}

/// The refused range that holds the address, and why it is refused. Metadata addresses are ranges of one address, so
/// that only a rule for exactly that address lies within.
pub fn refused(address: IpAddr) -> Option<(Standing, Network)> {
    let listed = METADATA
        .iter()
        .map(|network| (Standing::Metadata, *network))
        .chain(RANGES.iter().copied())
        .find(|(_, network)| network.contains(address));
    listed.or_else(|| match address {
        IpAddr::V6(v6) if is_isatap(v6) => Some((Standing::Embedded, Network::of(address))),
        // Only this range has been given out.
        IpAddr::V6(_) if !GLOBAL_V6.contains(address) => Some((Standing::Reserved, Network::of(address))),
        _ => None,
    })
}

/// The IPv4 address inside of an IPv6 address, for the forms whose place in it is fixed.
pub fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let [_, b, c, _, _, _, g, h] = address.segments();
    let joined = |high: u16, low: u16| Ipv4Addr::from_bits((u32::from(high) << 16) | u32::from(low));
    let inside = |network: &Network| network.contains(IpAddr::V6(address));
    if inside(&SIX_TO_FOUR) {
        return Some(joined(b, c));
    }
    if inside(&TEREDO) {
        return Some(joined(!g, !h));
    }
    let at_the_end =
        [&MAPPED, &COMPATIBLE, &TRANSLATED, &NAT64].into_iter().any(inside) || is_isatap(address);
    at_the_end.then(|| joined(g, h))
}

fn is_isatap(address: Ipv6Addr) -> bool {
    let [_, _, _, _, e, f, _, _] = address.segments();
    (e == 0 || e == 0x200) && f == 0x5efe
}

/// Where the control plane itself listens, told by whoever runs it. With the unspecified address it listens on every
/// address of its host, and only who asks the host can tell which these are.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OwnAddresses(Vec<OwnAddress>);

/// One address of the control plane; without a port, all of its ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnAddress {
    pub address: IpAddr,
    pub port: Option<u16>,
}

impl OwnAddresses {
    pub fn new(addresses: impl IntoIterator<Item = OwnAddress>) -> Self {
        Self(addresses.into_iter().collect())
    }

    pub fn include(&self, address: IpAddr, port: u16) -> bool {
        let inner = match address {
            IpAddr::V6(v6) => embedded(v6).map(IpAddr::V4),
            IpAddr::V4(_) => None,
        };
        self.0.iter().any(|own| {
            (own.address == address || Some(own.address) == inner) && own.port.is_none_or(|own| own == port)
        })
    }

    /// Whether it listens at this port on every address of its host.
    pub fn are_everywhere(&self, port: u16) -> bool {
        self.0.iter().any(|own| own.address.is_unspecified() && own.port.is_none_or(|own| own == port))
    }
}

const MAPPED: Network = Network::v6([0, 0, 0, 0, 0, 0xffff, 0, 0], 96);
const COMPATIBLE: Network = Network::v6([0; 8], 96);
const TRANSLATED: Network = Network::v6([0, 0, 0, 0, 0xffff, 0, 0, 0], 96);
const NAT64: Network = Network::v6([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 96);
const NAT64_LOCAL: Network = Network::v6([0x64, 0xff9b, 1, 0, 0, 0, 0, 0], 48);
const SIX_TO_FOUR: Network = Network::v6([0x2002, 0, 0, 0, 0, 0, 0, 0], 16);
const TEREDO: Network = Network::v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 32);
const GLOBAL_V6: Network = Network::v6([0x2000, 0, 0, 0, 0, 0, 0, 0], 3);

/// Services by which a machine in a cloud asks who it is, and is given credentials.
const METADATA: &[Network] = &[
    // Amazon, Google, Microsoft, DigitalOcean and others; then Amazon's time, names, containers and pods.
    Network::v4(169, 254, 169, 254, 32),
    Network::v4(169, 254, 169, 123, 32),
    Network::v4(169, 254, 169, 253, 32),
    Network::v4(169, 254, 170, 2, 32),
    Network::v4(169, 254, 170, 23, 32),
    Network::v6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254], 128),
    Network::v6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x253], 128),
    Network::v6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x123], 128),
    Network::v6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23], 128),
    // Google over IPv6.
    Network::v6([0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254], 128),
    // Microsoft's wire server has a public address.
    Network::v4(168, 63, 129, 16, 32),
    // Alibaba, Oracle, Scaleway.
    Network::v4(100, 100, 100, 200, 32),
    Network::v4(192, 0, 0, 192, 32),
    Network::v4(169, 254, 42, 42, 32),
    Network::v6([0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42], 128),
];

const RANGES: &[(Standing, Network)] = &[
    (Standing::Unspecified, Network::v4(0, 0, 0, 0, 8)),
    (Standing::Loopback, Network::v4(127, 0, 0, 0, 8)),
    (Standing::Private, Network::v4(10, 0, 0, 0, 8)),
    (Standing::Private, Network::v4(172, 16, 0, 0, 12)),
    (Standing::Private, Network::v4(192, 168, 0, 0, 16)),
    (Standing::Shared, Network::v4(100, 64, 0, 0, 10)),
    (Standing::LinkLocal, Network::v4(169, 254, 0, 0, 16)),
    (Standing::Multicast, Network::v4(224, 0, 0, 0, 4)),
    (Standing::Reserved, Network::v4(192, 0, 0, 0, 24)),
    (Standing::Reserved, Network::v4(192, 0, 2, 0, 24)),
    (Standing::Reserved, Network::v4(192, 88, 99, 0, 24)),
    (Standing::Reserved, Network::v4(198, 18, 0, 0, 15)),
    (Standing::Reserved, Network::v4(198, 51, 100, 0, 24)),
    (Standing::Reserved, Network::v4(203, 0, 113, 0, 24)),
    (Standing::Reserved, Network::v4(240, 0, 0, 0, 4)),
    (Standing::Unspecified, Network::v6([0; 8], 128)),
    (Standing::Loopback, Network::v6([0, 0, 0, 0, 0, 0, 0, 1], 128)),
    (Standing::Embedded, MAPPED),
    (Standing::Embedded, COMPATIBLE),
    (Standing::Embedded, TRANSLATED),
    (Standing::Embedded, NAT64),
    (Standing::Embedded, NAT64_LOCAL),
    (Standing::Embedded, SIX_TO_FOUR),
    (Standing::Embedded, TEREDO),
    (Standing::Private, Network::v6([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7)),
    (Standing::Private, Network::v6([0xfec0, 0, 0, 0, 0, 0, 0, 0], 10)),
    (Standing::LinkLocal, Network::v6([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10)),
    (Standing::Multicast, Network::v6([0xff00, 0, 0, 0, 0, 0, 0, 0], 8)),
    (Standing::Reserved, Network::v6([0x2001, 2, 0, 0, 0, 0, 0, 0], 48)),
    (Standing::Reserved, Network::v6([0x2001, 0x10, 0, 0, 0, 0, 0, 0], 28)),
    (Standing::Reserved, Network::v6([0x2001, 0x20, 0, 0, 0, 0, 0, 0], 28)),
    (Standing::Reserved, Network::v6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32)),
    (Standing::Reserved, Network::v6([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20)),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_range_that_leads_inwards_is_refused() {
        use Standing::*;
        for (address, expected) in [
            ("0.0.0.0", Unspecified),
            ("0.1.2.3", Unspecified),
            ("::", Unspecified),
            ("127.0.0.1", Loopback),
            ("127.255.255.254", Loopback),
            ("::1", Loopback),
            ("10.0.0.1", Private),
            ("172.16.0.1", Private),
            ("172.31.255.255", Private),
            ("192.168.1.1", Private),
            ("fc00::1", Private),
            ("fd12:3456::1", Private),
            ("fec0::1", Private),
            ("100.64.0.1", Shared),
            ("100.127.255.255", Shared),
            ("169.254.1.1", LinkLocal),
            ("fe80::1", LinkLocal),
            ("169.254.169.254", Metadata),
            ("169.254.170.2", Metadata),
            ("100.100.100.200", Metadata),
            ("168.63.129.16", Metadata),
            ("192.0.0.192", Metadata),
            ("fd00:ec2::254", Metadata),
            ("fd20:ce::254", Metadata),
            ("224.0.0.1", Multicast),
            ("239.255.255.250", Multicast),
            ("ff02::1", Multicast),
            ("255.255.255.255", Reserved),
            ("240.0.0.1", Reserved),
            ("203.0.113.7", Reserved),
            ("198.18.0.1", Reserved),
            ("2001:db8::1", Reserved),
            ("100::1", Reserved),
            ("4000::1", Reserved),
            ("::ffff:127.0.0.1", Embedded),
            ("::ffff:8.8.8.8", Embedded),
            ("::127.0.0.1", Embedded),
            ("64:ff9b::a9fe:a9fe", Embedded),
            ("64:ff9b:1::a9fe:a9fe", Embedded),
            ("2002:7f00:1::", Embedded),
            ("2001:0:4136:e378:8000:63bf:3fff:fdd2", Embedded),
            ("2a00:1450::5efe:a00:1", Embedded),
        ] {
            assert_eq!(
                refused(address.parse().unwrap()).map(|(standing, _)| standing),
                Some(expected),
                "{address}"
            );
        }
    }

    #[test]
    fn public_addresses_are_not_refused() {
        for address in [
            "1.1.1.1",
            "8.8.8.8",
            "93.184.216.34",
            "172.15.255.255",
            "172.32.0.0",
            "100.63.255.255",
            "2606:4700::1111",
        ] {
            assert_eq!(refused(address.parse().unwrap()), None, "{address}");
        }
    }

    #[test]
    fn the_inner_address_of_every_form_is_found() {
        for form in [
            "::ffff:10.1.2.3",
            "::10.1.2.3",
            "::ffff:0:10.1.2.3",
            "64:ff9b::10.1.2.3",
            "2002:a01:203::1",
            "2001:0:1:2:3:4:f5fe:fdfc",
            "2a00::5efe:10.1.2.3",
            "2a00::200:5efe:10.1.2.3",
        ] {
            assert_eq!(embedded(form.parse().unwrap()), Some(Ipv4Addr::new(10, 1, 2, 3)), "{form}");
        }
    }

    #[test]
    fn the_control_plane_is_known_in_every_form() {
        let own = OwnAddresses::new([
            OwnAddress { address: "93.184.216.34".parse().unwrap(), port: Some(7070) },
            OwnAddress { address: "10.0.0.2".parse().unwrap(), port: None },
        ]);
        for (address, port, expected) in [
            ("93.184.216.34", 7070, true),
            ("93.184.216.34", 443, false),
            ("::ffff:93.184.216.34", 7070, true),
            ("10.0.0.2", 1, true),
            ("64:ff9b::10.0.0.2", 5432, true),
            ("10.0.0.3", 1, false),
        ] {
            assert_eq!(own.include(address.parse().unwrap(), port), expected, "{address}:{port}");
        }
    }
}
