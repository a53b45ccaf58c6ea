//! Which loopback address stands for which name, inside of one sandbox.

use std::collections::HashMap;
use std::net::Ipv4Addr;

use cubicle_model::egress::HostName;

/// The first address; the sandbox's own servers are elsewhere in 127.0.0.0/8.
const FIRST: u32 = Ipv4Addr::new(127, 128, 0, 1).to_bits();
/// A client can make up names below a wildcard without end.
const MOST: usize = 8192;

/// Addresses are given in the order in which names are asked for, and never to another name.
#[derive(Debug, Default)]
pub(crate) struct Addresses {
    by_name: HashMap<HostName, u32>,
    names: Vec<HostName>,
}

impl Addresses {
    /// The address of a name; none when there are too many names.
    pub(crate) fn address(&mut self, name: &HostName) -> Option<Ipv4Addr> {
        let index = match self.by_name.get(name) {
            Some(index) => *index,
            None if self.names.len() >= MOST => return None,
            None => {
                let index = u32::try_from(self.names.len()).ok()?;
                self.names.push(name.clone());
                self.by_name.insert(name.clone(), index);
                index
            }
        };
        Some(Ipv4Addr::from_bits(FIRST + index))
    }

    pub(crate) fn name(&self, address: Ipv4Addr) -> Option<HostName> {
        let index = address.to_bits().checked_sub(FIRST)?;
        self.names.get(usize::try_from(index).ok()?).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_its_address_and_an_address_its_name() {
        let mut addresses = Addresses::default();
        let name = |text: &str| text.parse::<HostName>().unwrap();
        let first = addresses.address(&name("a.example")).unwrap();
        let second = addresses.address(&name("b.example")).unwrap();
        assert_eq!(first, Ipv4Addr::new(127, 128, 0, 1));
        assert_ne!(first, second);
        assert_eq!(addresses.address(&name("a.example")), Some(first));
        assert_eq!(addresses.name(second), Some(name("b.example")));
        for other in [Ipv4Addr::LOCALHOST, Ipv4Addr::new(127, 128, 0, 3), Ipv4Addr::BROADCAST] {
            assert_eq!(addresses.name(other), None);
        }
    }

    #[test]
    fn made_up_names_end_at_a_bound() {
        let mut addresses = Addresses::default();
        for index in 0..MOST {
            assert!(addresses.address(&format!("h{index}.example").parse().unwrap()).is_some());
        }
        assert_eq!(addresses.address(&"one-more.example".parse().unwrap()), None);
        assert!(addresses.address(&"h0.example".parse().unwrap()).is_some());
    }
}
