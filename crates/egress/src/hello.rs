//! The name that a TLS client asks for, read from its hello without answering it.

use rustls::server::Acceptor;

/// A fatal alert: the name is not recognised.
pub(crate) const ALERT: [u8; 7] = [0x15, 0x03, 0x03, 0x00, 0x02, 0x02, 0x70];

/// Reads a hello as its bytes come.
#[derive(Default)]
pub(crate) struct Hello {
    acceptor: Acceptor,
    read: usize,
}

impl Hello {
    /// Takes all bytes that have come so far. Nothing while the hello is not complete; then the name, if it is a
    /// hello at all, and if it has one.
    pub(crate) fn read(&mut self, bytes: &[u8]) -> Option<Option<Option<String>>> {
        while self.read < bytes.len() {
            let mut rest = &bytes[self.read..];
            match self.acceptor.read_tls(&mut rest) {
                Ok(taken) if taken > 0 => self.read += taken,
                _ => return Some(None),
            }
            match self.acceptor.accept() {
                Ok(None) => {}
                Ok(Some(accepted)) => {
                    return Some(Some(accepted.client_hello().server_name().map(str::to_owned)));
                }
                Err(_) => return Some(None),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    pub(crate) fn hello_for(name: &str) -> Vec<u8> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        let name = rustls::pki_types::ServerName::try_from(name.to_owned()).unwrap();
        let mut client = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn the_name_is_read_however_the_hello_is_cut() {
        let bytes = hello_for("api.example");
        for piece in [1, 7, bytes.len()] {
            let mut hello = Hello::default();
            let mut read = None;
            for end in (piece..bytes.len()).step_by(piece).chain([bytes.len()]) {
                read = hello.read(&bytes[..end]);
                assert!(read.is_none() || end == bytes.len(), "{piece} {end}");
            }
            assert_eq!(read, Some(Some(Some("api.example".into()))), "{piece}");
        }
        assert_eq!(Hello::default().read(&hello_for("93.184.216.34")), Some(Some(None)));
    }

    #[test]
    fn what_is_no_hello_is_told_apart() {
        assert_eq!(Hello::default().read(b"\x16\x03\x01\x00\x05hello"), Some(None));
        assert_eq!(Hello::default().read(b"\x16\x03\x01\xff\xffhello"), Some(None));
    }
}
