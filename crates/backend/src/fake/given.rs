//! What a fake sandbox is given late and has to keep.

use std::net::{Ipv4Addr, TcpListener, UdpSocket};

use cubicle_guest::client::Listening;
use cubicle_model::placement::SECRETS_DIRECTORY;
use cubicle_model::receipt::SecretsInside;
use cubicle_model::{Fault, Kind, Listener, Protocol, SecretFile, SecretsToGive};

use super::Sandbox;

impl Sandbox {
    pub(super) fn hide(&mut self, given: &SecretsToGive) -> SecretsInside {
        let path = |file: &SecretFile| format!("{SECRETS_DIRECTORY}/{}", file.name);
        self.files.extend(given.files.iter().map(|file| (path(file), file.bytes.clone())));
        self.env.extend(given.env.clone());
        let named = SecretsInside::of(given, true);
        self.secrets.files.extend(named.files.clone());
        self.secrets.env.extend(named.env.clone());
        named
    }

    /// Sockets of these listeners, the same as before for those that are there.
    pub(super) fn listen(&mut self, asked: &[Listener]) -> Result<Vec<Listening>, Fault> {
        let mut listen = |listener: &Listener| {
            if let Some(kept) = self.listeners.get(listener) {
                return kept.try_clone();
            }
            let free = (Ipv4Addr::LOCALHOST, 0);
            let made = match listener.protocol {
                Protocol::Tcp => Listening::Tcp(TcpListener::bind(free)?),
                Protocol::Udp => Listening::Udp(UdpSocket::bind(free)?),
            };
            match &made {
                Listening::Tcp(made) => made.set_nonblocking(true)?,
                Listening::Udp(made) => made.set_nonblocking(true)?,
            }
            let given = made.try_clone();
            self.listeners.insert(*listener, made);
            given
        };
        let cannot = |listener: &Listener, error| {
            Fault::new(Kind::Internal, format!("cannot listen for {listener}")).because(error)
        };
        asked.iter().map(|listener| listen(listener).map_err(|error| cannot(listener, error))).collect()
    }
}
