//! The sockets inside of a sandbox that lead to the gateway.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use cubicle_egress::control::ListenerKind;
use cubicle_guest::client::quiet::watch;
use cubicle_guest::client::{Guest, Listening};
use cubicle_model::egress::{Policy, Ports, Scheme, Statement};
use cubicle_model::{Fault, Listener};
use tokio::io::Interest;

/// Where the HTTP proxy and SOCKS5 are.
const PROXY: u16 = 3128;
const DNS: u16 = 53;
/// Ports that programs reach which know of no proxy, beside those that a policy names.
const WEB: [u16; 2] = [80, 443];
/// Of a policy; each is a socket of every sandbox that has it.
const MOST_PORTS: usize = 8;

/// Of one sandbox. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sockets(Vec<(Listener, ListenerKind, Arc<OwnedFd>)>);

impl Sockets {
    /// Those that every sandbox has.
    pub(crate) async fn usual(guest: &Guest) -> Result<Self, Fault> {
        Self::default().with(guest, wanted(&Policy::default())).await
    }

    /// With those that a policy needs beside.
    pub(crate) async fn for_policy(self, guest: &Guest, policy: &Policy) -> Result<Self, Fault> {
        self.with(guest, wanted(policy)).await
    }

    async fn with(mut self, guest: &Guest, wanted: Vec<(Listener, ListenerKind)>) -> Result<Self, Fault> {
        let missing: Vec<_> = wanted
            .into_iter()
            .filter(|(listener, _)| self.0.iter().all(|(there, ..)| there != listener))
            .collect();
        if missing.is_empty() {
            return Ok(self);
        }
        let listeners: Vec<Listener> = missing.iter().map(|(listener, _)| *listener).collect();
        let made = guest.listen(&listeners).await?;
        self.0.extend(missing.into_iter().zip(made).map(|((listener, kind), socket)| {
            let socket = match socket {
                Listening::Tcp(socket) => OwnedFd::from(socket),
                Listening::Udp(socket) => OwnedFd::from(socket),
            };
            (listener, kind, Arc::new(socket))
        }));
        Ok(self)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// A descriptor of each, for the gateway.
    pub(super) fn handed_over(&self) -> io::Result<Vec<(ListenerKind, OwnedFd)>> {
        self.0.iter().map(|(_, kind, socket)| Ok((*kind, socket.try_clone()?))).collect()
    }

    /// Waits until something connects to one of them. Nothing is accepted here.
    pub(super) async fn knock(&self) -> io::Result<()> {
        let watched = self
            .0
            .iter()
            .map(|(_, _, socket)| watch(Arc::clone(socket), Interest::READABLE))
            .collect::<io::Result<Vec<_>>>()?;
        if watched.is_empty() {
            std::future::pending::<()>().await;
        }
        let readable = watched.iter().map(|socket| Box::pin(socket.readable()));
        let (first, ..) = futures_util::future::select_all(readable).await;
        first.map(drop)
    }
}

fn wanted(policy: &Policy) -> Vec<(Listener, ListenerKind)> {
    let ports: BTreeSet<u16> =
        policy.rules.iter().filter_map(named_port).filter(|port| !WEB.contains(port)).collect();
    let forward = |port| (Listener::tcp(port).everywhere(), ListenerKind::Forward);
    let mut all = vec![
        (Listener::tcp(PROXY), ListenerKind::Proxy),
        (Listener::udp(DNS), ListenerKind::DnsUdp),
        (Listener::tcp(DNS), ListenerKind::DnsTcp),
    ];
    all.extend(WEB.into_iter().chain(ports.into_iter().take(MOST_PORTS)).map(forward));
    all
}

/// The port of a rule that names one, where programs that know of no proxy may go.
fn named_port(statement: &Statement) -> Option<u16> {
    let Statement::Rule(rule) = statement else { return None };
    match (rule.verb, rule.target.ports, rule.target.scheme) {
        (cubicle_model::egress::Verb::Allow, Ports::One(port), scheme) if port != PROXY && port != DNS => {
            matches!(scheme, None | Some(Scheme::Tcp | Scheme::Http | Scheme::Https)).then_some(port)
        }
        _ => None,
    }
}

/// Both spellings, as programs differ. `ALL_PROXY` names the HTTP proxy, too: Python's clients fail on `socks5` without a
/// library that is usually missing.
pub(super) fn proxy_variables() -> impl Iterator<Item = (String, String)> {
    let proxy = format!("http://127.0.0.1:{PROXY}");
    let direct = "localhost,127.0.0.1,::1".to_owned();
    [("HTTP_PROXY", &proxy), ("HTTPS_PROXY", &proxy), ("ALL_PROXY", &proxy), ("NO_PROXY", &direct)]
        .into_iter()
        .flat_map(|(name, value)| [(name.to_owned(), value.clone()), (name.to_lowercase(), value.clone())])
        .collect::<Vec<_>>()
        .into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_has_a_socket_for_every_port_that_it_names() {
        let ports = |policy: &str| -> Vec<u16> {
            wanted(&policy.parse().unwrap()).into_iter().map(|(listener, _)| listener.port).collect()
        };
        let usual = [3128, 53, 53, 80, 443];
        assert_eq!(ports("none"), usual);
        assert_eq!(ports("allow a.example; allow *.b.example:*; deny c.example:22"), usual);
        let more =
            ports("allow tcp://db.example:5432; allow tcp://db.example:5432; allow https://a.example:8443");
        assert_eq!(more, [&usual[..], &[5432, 8443]].concat());
        assert_eq!(
            ports("allow tcp://a.example:53; allow a.example:3128"),
            usual,
            "these are the gateway's own"
        );
        let many: String = (6000..6100).map(|port| format!("allow tcp://a.example:{port};")).collect();
        assert_eq!(ports(&many).len(), usual.len() + MOST_PORTS);
    }

    #[test]
    fn programs_find_the_proxy_in_either_spelling() {
        let all: std::collections::BTreeMap<_, _> = proxy_variables().collect();
        for name in ["HTTP_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"] {
            assert_eq!(all[name], "http://127.0.0.1:3128");
        }
        assert_eq!(all["no_proxy"], all["NO_PROXY"]);
    }
}
