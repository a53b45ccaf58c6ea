//! The name server of the outside: it says where names lead, and remembers what it was asked.

use std::collections::HashMap;
use std::net::{IpAddr, UdpSocket};
use std::sync::{Arc, Mutex};

/// Where it listens. Another address than that of the sandboxes' own, so that nobody mistakes one for the other.
pub(crate) const ADDRESS: &str = "127.0.0.53";

const A: u16 = 1;
const AAAA: u16 = 28;

#[derive(Clone, Default)]
pub(crate) struct NameServer {
    places: Arc<Mutex<HashMap<String, Vec<IpAddr>>>>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl NameServer {
    /// In the network of the thread that calls it.
    pub(crate) fn start() -> Self {
        let server = Self::default();
        let socket = UdpSocket::bind((ADDRESS, 53)).expect("the network is ours");
        let own = server.clone();
        std::thread::spawn(move || {
            let mut bytes = [0; 1500];
            while let Ok((length, from)) = socket.recv_from(&mut bytes) {
                if let Some(reply) = own.reply(&bytes[..length]) {
                    // Whoever asked may be gone.
                    let _ = socket.send_to(&reply, from);
                }
            }
        });
        server
    }

    /// From now on the name leads to these addresses; `*.` is whatever lies below.
    pub(crate) fn set(&self, name: &str, addresses: &[&str]) {
        let addresses = addresses.iter().map(|text| text.parse().expect("an address")).collect();
        self.places.lock().expect("nobody panics with it").insert(name.to_owned(), addresses);
    }

    /// Every name that it was asked for so far.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().expect("nobody panics with it").clone()
    }

    fn addresses(&self, name: &str) -> Option<Vec<IpAddr>> {
        let places = self.places.lock().expect("nobody panics with it");
        let below = || name.split_once('.').and_then(|(_, rest)| places.get(&format!("*.{rest}")));
        places.get(name).or_else(below).cloned()
    }

    fn reply(&self, query: &[u8]) -> Option<Vec<u8>> {
        let (name, end) = name(query.get(12..)?)?;
        let question = query.get(12..12 + end + 4)?;
        let kind = u16::from_be_bytes([question[end], question[end + 1]]);
        self.asked.lock().expect("nobody panics with it").push(name.clone());
        let found = self.addresses(&name);
        let records: Vec<Vec<u8>> = found
            .iter()
            .flatten()
            .filter_map(|address| match (address, kind) {
                (IpAddr::V4(v4), A) => Some(v4.octets().to_vec()),
                (IpAddr::V6(v6), AAAA) => Some(v6.octets().to_vec()),
                _ => None,
            })
            .collect();
        let code = if found.is_some() { 0x80 } else { 0x83 };
        let mut reply = [&query[..2], &[0x81, code, 0, 1, 0, records.len() as u8, 0, 0, 0, 0]].concat();
        reply.extend_from_slice(question);
        for record in records {
            reply.extend_from_slice(&[0xc0, 12]);
            reply.extend_from_slice(&kind.to_be_bytes());
            // Not to be kept: the next answer may be another.
            reply.extend_from_slice(&[0, 1, 0, 0, 0, 0, 0, record.len() as u8]);
            reply.extend_from_slice(&record);
        }
        Some(reply)
    }
}

/// The name at the front, and how many bytes it takes.
fn name(bytes: &[u8]) -> Option<(String, usize)> {
    let (mut labels, mut at) = (Vec::new(), 0);
    loop {
        let length = usize::from(*bytes.get(at)?);
        if length == 0 {
            return Some((labels.join(".").to_ascii_lowercase(), at + 1));
        }
        labels.push(String::from_utf8_lossy(bytes.get(at + 1..at + 1 + length)?).into_owned());
        at += 1 + length;
    }
}
