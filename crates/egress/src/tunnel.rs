//! A tunnel to one host and port, in whatever way the client asked for it.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use cubicle_model::egress::{Allowed, Attempt, Conduct, Host, HostName, Scheme, Via};
use tokio::time::timeout;

use crate::bill::Tally;
use crate::hello::{self, Hello};
use crate::http::{self, Scene};
use crate::intercept;
use crate::listen::read_more;
use crate::outlet::{Agreed, Outlet};
use crate::refusal::{BadRequest, Refusal};
use crate::relay::{self, End};
use crate::socks;
use crate::stream::{Ahead, Stream};
use crate::upstream;

const TLS_HANDSHAKE: u8 = 0x16;
/// How long a message that could be half a request is waited for.
const AMBIGUOUS: Duration = Duration::from_millis(200);

/// How the client asked, and so how it is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    Connect,
    Socks,
    /// The client knows of no proxy and expects no answer.
    Silent,
}

impl Manner {
    async fn accept(self, client: &Stream, patience: Duration) -> io::Result<()> {
        match self {
            Self::Connect => relay::write_ahead(client, b"HTTP/1.1 200 Connected\r\n\r\n", patience).await,
            Self::Socks => relay::write_ahead(client, &socks::reply(0), patience).await,
            Self::Silent => Ok(()),
        }
    }

    async fn refuse(self, client: Stream, refusal: &Refusal) {
        match self {
            Self::Connect => client.say_goodbye(&refusal.answer()).await,
            Self::Socks => client.say_goodbye(&socks::reply(refusal.socks())).await,
            Self::Silent => drop(client),
        }
    }
}

/// Carries a tunnel to its end, or refuses it.
pub(crate) async fn open(
    outlet: Arc<Outlet>,
    client: Stream,
    first: Vec<u8>,
    host: Host,
    port: u16,
    manner: Manner,
) {
    let tunnel = Tunnel { outlet, host, port, manner };
    if let Some((client, refusal, accepted)) = tunnel.run(client, first).await {
        tunnel.outlet.refused(&format!("{}:{}", tunnel.host, tunnel.port), &refusal);
        match accepted {
            None => manner.refuse(client, &refusal).await,
            // The client takes the tunnel for open; it is answered in the protocol that it speaks there.
            Some(Speaks::Tls(_)) => client.say_goodbye(&hello::ALERT).await,
            Some(Speaks::Http) => client.say_goodbye(&refusal.answer()).await,
            Some(Speaks::Other | Speaks::Upstream) => drop(client),
        }
    }
}

struct Tunnel {
    outlet: Arc<Outlet>,
    host: Host,
    port: u16,
    manner: Manner,
}

/// Which side speaks first, and what the client speaks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Speaks {
    /// With the name that it asks for.
    Tls(Option<String>),
    Http,
    Other,
    Upstream,
}

/// The client, why it is refused, and what it spoke in case that it was accepted before.
type Refused = (Stream, Refusal, Option<Speaks>);

impl Tunnel {
    fn attempt(&self) -> Attempt<'_> {
        Attempt { host: &self.host, port: self.port, via: Via::Tunnel }
    }

    async fn run(&self, client: Stream, first: Vec<u8>) -> Option<Refused> {
        let terms = self.outlet.terms();
        let domain = &self.outlet.shared().domain;
        if matches!(&self.host, Host::Name(name) if name.is_below(domain)) {
            return self.requests(client, first).await;
        }
        let allowed = self.outlet.by_name(&terms, &self.attempt());
        let allowed = match allowed.and_then(|allowed| self.outlet.spend_request(&terms, 0).map(|()| allowed))
        {
            Ok(allowed) => allowed,
            Err(refusal) => return Some((client, refusal, None)),
        };
        match allowed.conduct {
            Conduct::Inspected | Conduct::Requests => self.requests(client, first).await,
            // Plain requests are expected here, and each finds its own way.
            Conduct::Opaque if self.port == 80 => {
                self.requests_or_relay(client, first, &terms, allowed).await
            }
            Conduct::Opaque | Conduct::Raw => self.relay(client, first, &terms, allowed).await,
        }
    }

    /// Accepts the client, and reads its requests.
    async fn requests(&self, client: Stream, mut first: Vec<u8>) -> Option<Refused> {
        let limits = &self.outlet.shared().limits;
        self.manner.accept(&client, limits.head_deadline).await.ok()?;
        let speaks = self.look(&client, &mut first, None).await?;
        match speaks {
            Speaks::Http => self.serve(client, first).await,
            Speaks::Tls(ref name) => match (self.same_name(name.as_deref()), &self.outlet.shared().authority)
            {
                (Err(refusal), _) => Some((client, refusal, Some(speaks))),
                (Ok(()), None) => Some((client, BadRequest::NoAuthority.into(), Some(speaks))),
                (Ok(()), Some(authority)) => {
                    let client = Ahead::new(first, client);
                    intercept::serve(&self.outlet, authority, client, &self.host, self.port).await;
                    None
                }
            },
            Speaks::Other | Speaks::Upstream => Some((client, self.other_protocol(), Some(speaks))),
        }
    }

    async fn requests_or_relay(
        &self,
        client: Stream,
        mut first: Vec<u8>,
        terms: &Agreed,
        allowed: Allowed,
    ) -> Option<Refused> {
        let limits = &self.outlet.shared().limits;
        self.manner.accept(&client, limits.head_deadline).await.ok()?;
        let speaks = self.look(&client, &mut first, None).await?;
        match &speaks {
            Speaks::Http => self.serve(client, first).await,
            Speaks::Tls(name) => {
                if let Err(refusal) = self.same_name(name.as_deref()) {
                    return Some((client, refusal, Some(speaks)));
                }
                match upstream::dial(&self.outlet, terms, &self.attempt()).await {
                    Ok(dialed) => self.carry(client, first, dialed, terms, allowed).await,
                    Err(refusal) => return Some((client, refusal, Some(speaks))),
                }
                None
            }
            Speaks::Other | Speaks::Upstream => Some((client, self.other_protocol(), Some(speaks))),
        }
    }

    /// Connects first, so that the client learns in its own protocol when that fails.
    async fn relay(
        &self,
        client: Stream,
        mut first: Vec<u8>,
        terms: &Agreed,
        allowed: Allowed,
    ) -> Option<Refused> {
        let dialed = match upstream::dial(&self.outlet, terms, &self.attempt()).await {
            Ok(dialed) => dialed,
            Err(refusal) => {
                Tally::begin(&self.outlet, &self.host, self.port, None).failed();
                return Some((client, refusal, None));
            }
        };
        self.manner.accept(&client, self.outlet.shared().limits.head_deadline).await.ok()?;
        if allowed.conduct == Conduct::Raw && allowed.rule.is_some() {
            self.carry(client, first, dialed, terms, allowed).await;
            return None;
        }
        let upstream = Stream::Tcp(dialed.stream);
        let speaks = self.look(&client, &mut first, Some(&upstream)).await?;
        let Stream::Tcp(stream) = upstream else { return None };
        let dialed = upstream::Dialed { stream, address: dialed.address };
        let open = allowed.conduct == Conduct::Raw;
        match &speaks {
            Speaks::Tls(name) if open => {
                if let Err(refusal) = self.not_denied(terms, name.as_deref()) {
                    return Some((client, refusal, Some(speaks)));
                }
            }
            Speaks::Tls(name) => {
                if let Err(refusal) = self.same_name(name.as_deref()) {
                    return Some((client, refusal, Some(speaks)));
                }
            }
            _ if open => {}
            Speaks::Http => return self.serve(client, first).await,
            Speaks::Other | Speaks::Upstream if self.is_web() => {
                return Some((client, self.other_protocol(), Some(speaks)));
            }
            Speaks::Other | Speaks::Upstream => {}
        }
        self.carry(client, first, dialed, terms, allowed).await;
        None
    }

    async fn serve(&self, client: Stream, first: Vec<u8>) -> Option<Refused> {
        let scene = Scene::Fixed { scheme: Scheme::Http, host: self.host.clone(), port: self.port };
        http::serve(Arc::clone(&self.outlet), Ahead::new(first, client), scene).await;
        None
    }

    async fn carry(
        &self,
        client: Stream,
        first: Vec<u8>,
        dialed: upstream::Dialed,
        terms: &Agreed,
        allowed: Allowed,
    ) {
        let address = dialed.address;
        let shared = self.outlet.shared();
        self.outlet.record(terms, &self.attempt(), address, false);
        let tally = Tally::begin(&self.outlet, &self.host, self.port, None);
        let upstream: Stream = dialed.into();
        if !first.is_empty() {
            let written = relay::write_ahead(&upstream, &first, shared.limits.idle).await;
            if let (Err(_), _) | (_, Err(_)) = (written, tally.sent(first.len())) {
                tally.failed();
                return;
            }
        }
        drop(first);
        // A change of the terms is waited for as long as the tunnel lives, and dropped with it.
        tokio::select! {
            end = relay::relay(&client, &upstream, &tally, &shared.buffers, shared.limits.idle) => match end {
                End::Closed => {}
                End::Spent(spent) => tally.spent(spent),
                End::Idle | End::Broken => tally.failed(),
            },
            refusal = self.until_denied(address, allowed.conduct) => {
                self.outlet.refused(&format!("{}:{}", self.host, self.port), &refusal);
            }
        }
    }

    /// Waits until new terms no longer allow this tunnel as it is.
    async fn until_denied(&self, address: IpAddr, conduct: Conduct) -> Refusal {
        let mut changes = self.outlet.changes();
        loop {
            // The terms that hold now come first: they may have changed since the tunnel was decided.
            let terms = Arc::clone(&changes.borrow_and_update());
            match self.outlet.at_address(&terms, &self.attempt(), address) {
                Ok(allowed) if allowed.conduct == conduct => {}
                Ok(_) => return BadRequest::Changed.into(),
                Err(refusal) => return refusal,
            }
            if changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// What the client speaks; nothing when it hangs up or keeps silent for too long.
    async fn look(&self, client: &Stream, first: &mut Vec<u8>, upstream: Option<&Stream>) -> Option<Speaks> {
        let limits = &self.outlet.shared().limits;
        if first.is_empty() {
            let speaks = async {
                match upstream {
                    None => read_more(client, first).await.map(|_| None),
                    // Both take nothing before they are done, so that either can be dropped. Readiness alone would not
                    // do: it may be left over from what was read before.
                    Some(upstream) => tokio::select! {
                        read = read_more(client, first) => read.map(|_| None),
                        _ = upstream.peek() => Ok(Some(Speaks::Upstream)),
                    },
                }
            };
            match timeout(limits.idle, speaks).await.ok()?.ok()? {
                Some(speaks) => return Some(speaks),
                None if first.is_empty() => return None,
                None => {}
            }
        }
        let is_tls = first[0] == TLS_HANDSHAKE;
        // Where any protocol may be spoken, one whose first message looks like half a request must not wait long.
        let any_protocol = upstream.is_some() && !self.is_web();
        let patience = if any_protocol && !is_tls { AMBIGUOUS } else { limits.head_deadline };
        let known = timeout(patience, async {
            let mut hello = Hello::default();
            loop {
                let goes_on = match understand(first, &mut hello) {
                    Some(speaks) => return Some(speaks),
                    None if first.len() > limits.head => false,
                    None => read_more(client, first).await.ok()?,
                };
                if !goes_on {
                    // What began as TLS and is none is nothing; other protocols may say less than a request.
                    return (!is_tls).then_some(Speaks::Other);
                }
            }
        });
        match known.await {
            Ok(known) => known,
            Err(_) => (any_protocol && !is_tls).then_some(Speaks::Other),
        }
    }

    fn is_web(&self) -> bool {
        matches!(self.port, 80 | 443)
    }

    /// TLS must be for the host that was asked for.
    fn same_name(&self, tls: Option<&str>) -> Result<(), Refusal> {
        let mismatch = |tls: &str| BadRequest::TlsMismatch {
            asked: self.host.to_string(),
            tls: tls.chars().take(253).collect(),
        };
        match (&self.host, tls) {
            (Host::Name(asked), Some(tls)) if tls.parse::<HostName>().as_ref() == Ok(asked) => Ok(()),
            (Host::Name(_), Some(tls)) => Err(mismatch(tls).into()),
            (Host::Name(_), None) => Err(mismatch("no name").into()),
            (Host::Address(_), None) => Ok(()),
            (Host::Address(_), Some(tls)) => self.not_denied(&self.outlet.terms(), Some(tls)),
        }
    }

    /// Where any name will do, it is still not one that a rule denies.
    fn not_denied(&self, terms: &Agreed, tls: Option<&str>) -> Result<(), Refusal> {
        let Some(Ok(name)) = tls.map(str::parse::<HostName>) else { return Ok(()) };
        let host = Host::Name(name);
        let attempt = Attempt { host: &host, port: self.port, via: Via::Tunnel };
        match self.outlet.by_name(terms, &attempt) {
            Err(Refusal::Policy(denied)) if denied.is_by_rule() => Err(denied.into()),
            _ => Ok(()),
        }
    }

    fn other_protocol(&self) -> Refusal {
        BadRequest::OtherProtocol(self.host.clone(), self.port).into()
    }
}

/// What the first bytes are; nothing while they could still be several things.
fn understand(first: &[u8], hello: &mut Hello) -> Option<Speaks> {
    const LONGEST_METHOD: usize = 20;
    match first {
        [] => None,
        // The preface of HTTP/2 is no request, and the gateway does not read what follows it.
        [b'P', b'R', b'I', b' ', ..] => Some(Speaks::Other),
        [TLS_HANDSHAKE, ..] => hello.read(first).map(|name| name.map_or(Speaks::Other, Speaks::Tls)),
        _ => {
            let method = first.iter().take_while(|byte| byte.is_ascii_uppercase()).count();
            match first.get(method..) {
                Some([]) if method <= LONGEST_METHOD => None,
                Some([b' ']) if (3..=LONGEST_METHOD).contains(&method) => None,
                Some([b' ', b'/' | b'*' | b'h', ..]) if (3..=LONGEST_METHOD).contains(&method) => {
                    Some(Speaks::Http)
                }
                _ => Some(Speaks::Other),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bytes_tell_the_protocol() {
        for (bytes, expected) in [
            (&b""[..], None),
            (b"G", None),
            (b"GET", None),
            (b"GET ", None),
            (b"GET /", Some(Speaks::Http)),
            (b"POST http://x/", Some(Speaks::Http)),
            (b"OPTIONS * HTTP/1.1", Some(Speaks::Http)),
            (b"SSH-2.0-OpenSSH", Some(Speaks::Other)),
            (b"PRI * HTTP/2.0", Some(Speaks::Other)),
            (b"*1\r\n$4\r\nPING", Some(Speaks::Other)),
            (b"SET key 1", Some(Speaks::Other)),
            (b"\x00\x00\x00\x08\x04\xd2\x16\x2f", Some(Speaks::Other)),
            (b"ABCDEFGHIJKLMNOPQRSTUVWXYZ", Some(Speaks::Other)),
            (b"\x16\x03", None),
            (b"\x16garbage that is no hello", Some(Speaks::Other)),
        ] {
            assert_eq!(understand(bytes, &mut Hello::default()), expected, "{bytes:?}");
        }
    }
}
