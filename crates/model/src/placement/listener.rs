//! Ports inside a sandbox that belong to the host.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};

use serde::{Deserialize, Serialize};

/// A port inside a sandbox whose connections or datagrams are taken outside of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Listener {
    pub protocol: Protocol,
    pub address: ListenAddress,
    /// 0 is any free one, another one each time.
    pub port: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    Tcp,
    Udp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ListenAddress {
    /// 127.0.0.1.
    Loopback,
    /// Every address that the sandbox has: all of 127.0.0.0/8, so that each name can have one of its own.
    Everywhere,
}

impl Listener {
    /// On the loopback address alone.
    pub fn tcp(port: u16) -> Self {
        Self { protocol: Protocol::Tcp, address: ListenAddress::Loopback, port }
    }

    /// On the loopback address alone.
    pub fn udp(port: u16) -> Self {
        Self { protocol: Protocol::Udp, ..Self::tcp(port) }
    }

    pub fn everywhere(self) -> Self {
        Self { address: ListenAddress::Everywhere, ..self }
    }

    /// What it is bound to inside.
    pub fn socket_address(self) -> SocketAddrV4 {
        let address = match self.address {
            ListenAddress::Loopback => Ipv4Addr::LOCALHOST,
            ListenAddress::Everywhere => Ipv4Addr::UNSPECIFIED,
        };
        SocketAddrV4::new(address, self.port)
    }
}

impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = match self.protocol {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
        };
        write!(f, "{protocol} {}", self.socket_address())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_says_where_it_is() {
        assert_eq!(Listener::udp(53).to_string(), "udp 127.0.0.1:53");
        assert_eq!(Listener::tcp(443).everywhere().to_string(), "tcp 0.0.0.0:443");
        let text = r#"{"protocol":"tcp","address":"everywhere","port":443}"#;
        assert_eq!(serde_json::from_str::<Listener>(text).unwrap(), Listener::tcp(443).everywhere());
        assert_eq!(serde_json::to_string(&Listener::tcp(443).everywhere()).unwrap(), text);
    }
}
