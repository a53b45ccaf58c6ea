//! Answers names inside of a sandbox. It asks nobody: an allowed name gets a loopback address of its own, on which the
//! gateway listens, and the real address is looked up when something connects. So a name carries nothing out.

mod addresses;
pub mod message;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use cubicle_model::egress::HostName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UdpSocket;
use tokio::time::timeout;

pub(crate) use addresses::Addresses;
use message::{Answer, Query};

use crate::outlet::Outlet;
use crate::stream::Stream;

const LONGEST_MESSAGE: usize = 4096;

pub(crate) async fn serve_udp(outlet: Arc<Outlet>, socket: UdpSocket) {
    let mut bytes = vec![0; LONGEST_MESSAGE];
    loop {
        match socket.recv_from(&mut bytes).await {
            Ok((length, from)) => {
                if let Some(reply) = reply(&outlet, &bytes[..length]) {
                    // A reply that cannot be sent is as good as one that was lost on the way.
                    let _ = socket.send_to(&reply, from).await;
                }
            }
            // As when a client is gone before its reply.
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

pub(crate) async fn serve_tcp(outlet: Arc<Outlet>, mut stream: Stream) {
    let patience = outlet.shared().limits.head_deadline;
    loop {
        let exchange = timeout(patience, async {
            let length = usize::from(stream.read_u16().await?);
            if length > LONGEST_MESSAGE {
                return Err(io::Error::from(io::ErrorKind::InvalidData));
            }
            let mut bytes = vec![0; length];
            stream.read_exact(&mut bytes).await?;
            let reply = reply(&outlet, &bytes).ok_or(io::ErrorKind::InvalidData)?;
            let length = u16::try_from(reply.len()).map_err(|_| io::ErrorKind::InvalidData)?;
            stream.write_all(&[&length.to_be_bytes()[..], &reply].concat()).await
        });
        if !matches!(exchange.await, Ok(Ok(()))) {
            return;
        }
    }
}

/// The reply to one message; none to what is not even a question.
fn reply(outlet: &Outlet, bytes: &[u8]) -> Option<Vec<u8>> {
    let query = match message::parse(bytes) {
        Ok(query) => query,
        Err(malformed) => return malformed.reply(),
    };
    let answer = decide(outlet, &query);
    Some(query.reply(answer))
}

fn decide(outlet: &Outlet, query: &Query<'_>) -> Answer {
    let Ok(name) = query.name().parse::<HostName>() else { return Answer::NoSuchName };
    if name.as_str() == "localhost" {
        return Answer::localhost(query.wants_v4());
    }
    let terms = outlet.terms();
    let is_base = |name: &HostName| {
        let label = name.split_first().filter(|(_, rest)| *rest == outlet.shared().domain.as_str());
        label.is_some_and(|(label, _)| terms.bases.iter().any(|base| base.name == label))
    };
    if !is_base(&name) && !terms.policy.may_resolve(&name) {
        outlet.ledger().deny(name.as_str(), "name not allowed".into());
        return Answer::NoSuchName;
    }
    if !query.wants_v4() {
        return Answer::Nothing;
    }
    match outlet.with_addresses(|addresses| addresses.address(&name)) {
        Some(address) => Answer::Address(address),
        None => Answer::Full,
    }
}
