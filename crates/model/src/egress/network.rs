//! A range of addresses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// An address and how many of its leading bits count. The other bits are zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotANetwork {
    #[error("'{0}' is neither an address nor a network: write 10.1.2.3, 10.1.0.0/16 or fd00::/8")]
    Form(String),
    #[error("the network has bits behind its prefix: write {0}")]
    HostBits(Network),
}

impl Network {
    pub const fn v4(a: u8, b: u8, c: u8, d: u8, prefix: u8) -> Self {
        Self { address: IpAddr::V4(Ipv4Addr::new(a, b, c, d)), prefix }
    }

    pub const fn v6(segments: [u16; 8], prefix: u8) -> Self {
        let [a, b, c, d, e, f, g, h] = segments;
        Self { address: IpAddr::V6(Ipv6Addr::new(a, b, c, d, e, f, g, h)), prefix }
    }

    /// The network of one address.
    pub const fn of(address: IpAddr) -> Self {
        let prefix = if address.is_ipv4() { 32 } else { 128 };
        Self { address, prefix }
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        truncate(address, self.prefix) == Some(self.address)
    }

    pub fn is_within(&self, other: &Self) -> bool {
        self.prefix >= other.prefix && other.contains(self.address)
    }

    /// The address, when the network is no more than one.
    pub fn single(&self) -> Option<IpAddr> {
        (*self == Self::of(self.address)).then_some(self.address)
    }

    pub fn is_ipv6(&self) -> bool {
        self.address.is_ipv6()
    }
}

/// The address with its other bits zero; nothing when it has fewer bits than that.
fn truncate(address: IpAddr, prefix: u8) -> Option<IpAddr> {
    match address {
        IpAddr::V4(v4) => {
            let rest = 32_u32.checked_sub(u32::from(prefix))?;
            let bits = u32::MAX.checked_shl(rest).unwrap_or(0) & v4.to_bits();
            Some(IpAddr::V4(Ipv4Addr::from_bits(bits)))
        }
        IpAddr::V6(v6) => {
            let rest = 128_u32.checked_sub(u32::from(prefix))?;
            let bits = u128::MAX.checked_shl(rest).unwrap_or(0) & v6.to_bits();
            Some(IpAddr::V6(Ipv6Addr::from_bits(bits)))
        }
    }
}

impl FromStr for Network {
    type Err = NotANetwork;

    fn from_str(given: &str) -> Result<Self, NotANetwork> {
        let refuse = || NotANetwork::Form(given.chars().take(80).collect());
        let (address, prefix) = match given.split_once('/') {
            None => (given, None),
            Some((address, prefix)) => (address, Some(prefix)),
        };
        let address: IpAddr = address.parse().map_err(|_| refuse())?;
        let Some(prefix) = prefix else { return Ok(Self::of(address)) };
        let plain = !prefix.is_empty()
            && prefix.bytes().all(|c| c.is_ascii_digit())
            && (prefix == "0" || !prefix.starts_with('0'));
        let prefix: u8 = prefix.parse().ok().filter(|_| plain).ok_or_else(refuse)?;
        let start = truncate(address, prefix).ok_or_else(refuse)?;
        let network = Self { address: start, prefix };
        if start == address { Ok(network) } else { Err(NotANetwork::HostBits(network)) }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.single() {
            Some(address) => address.fmt(f),
            None => write!(f, "{}/{}", self.address, self.prefix),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_contains_what_shares_its_prefix() {
        let network = |text: &str| text.parse::<Network>().unwrap();
        for (within, address, expected) in [
            ("10.0.0.0/8", "10.255.255.255", true),
            ("10.0.0.0/8", "11.0.0.0", false),
            ("0.0.0.0/0", "255.255.255.255", true),
            ("0.0.0.0/0", "::", false),
            ("::/0", "::ffff:10.0.0.1", true),
            ("10.0.0.0/8", "::ffff:10.0.0.1", false),
            ("192.0.2.1", "192.0.2.1", true),
            ("192.0.2.1", "192.0.2.2", false),
            ("fd00::/8", "fd12::1", true),
        ] {
            assert_eq!(network(within).contains(address.parse().unwrap()), expected, "{address} in {within}");
        }
        assert!(network("10.1.0.0/16").is_within(&network("10.0.0.0/8")));
        assert!(!network("10.0.0.0/7").is_within(&network("10.0.0.0/8")));
        assert!(!network("0.0.0.0/0").is_within(&network("10.0.0.0/8")));
    }

    #[test]
    fn a_network_is_written_in_one_way() {
        for bad in [
            "10.0.0.0/33",
            "10.0.0.0/",
            "10.0.0.0/08",
            "10.0.0/8",
            "10.0.0.0/+8",
            "::/129",
            "010.0.0.0/8",
            "x",
        ] {
            assert!(matches!(bad.parse::<Network>(), Err(NotANetwork::Form(_))), "{bad}");
        }
        let refusal = "10.1.2.3/8".parse::<Network>().unwrap_err().to_string();
        assert_eq!(refusal, "the network has bits behind its prefix: write 10.0.0.0/8");
        for text in ["10.0.0.0/8", "10.1.2.3", "fd00::/8", "::1", "0.0.0.0/0"] {
            assert_eq!(text.parse::<Network>().unwrap().to_string(), text);
        }
    }
}
