//! What a server is told of egress: bundles, policies, how to start the gateway, and what sandboxes trust.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::Child;
use std::sync::Arc;

use cubicle_model::egress::Policy;
use cubicle_model::{Fault, Kind, Timestamp};
use cubicle_server::{EgressSettings, StartedGateway};

use crate::bundles;
use crate::context::Context;
use crate::gateway::{self, Options};
use crate::settings;

/// Templates that have a policy when nobody wrote one; every other has that of `default`.
const NAMED: [&str; 6] = ["default", "python", "task", "worker", "agent", "workflow"];

/// `home` is where the gateway's authority is kept, `listen` where the control plane is.
pub(super) async fn settings(
    context: &Context,
    home: &Path,
    listen: SocketAddr,
    log: Option<String>,
    now: Timestamp,
) -> Result<EgressSettings, Fault> {
    let said = context.settings.egress.clone();
    if let Some(log) = &said.access_log {
        // The gateway would say so only when something first connects.
        let opened = std::fs::OpenOptions::new().create(true).append(true).open(log);
        opened.map_err(|error| {
            Fault::new(Kind::Denied, format!("the access log {} cannot be written", log.display()))
                .because(error)
                .hint("name a file that the server's own user can write to in egress.access_log")
        })?;
    }
    let found = find_bundles(&said, context).await?;
    let authority = home.join("egress");
    let own_certificate = gateway::ensure_authority(&authority, now)?.certificate_pem;
    let options = Options {
        name: Some(format!("cubicle-{}", listen.port())),
        authority: Some(authority),
        extra_roots: said.extra_roots.clone(),
        access_log: said.access_log.clone(),
        log,
    };
    let environment = context.environment.clone();
    let mut policies = BTreeMap::new();
    for name in NAMED {
        let text = bundles::policies::default_policy(name, &said, &found);
        let policy: Policy = text.parse().map_err(|error| {
            Fault::new(Kind::Internal, format!("the default policy of '{name}' cannot be read: {error}"))
        })?;
        policies
            .insert(name.parse().map_err(|error| Fault::new(Kind::Internal, format!("{error}")))?, policy);
    }
    Ok(EgressSettings {
        start: Arc::new(move || started(gateway::spawn(&options, &environment)?)),
        bundles: found.texts(),
        own: own_addresses(listen),
        policies,
        environment: found.variables().clone(),
        trusted: Some(trusted(said.extra_roots.as_deref(), &own_certificate)?),
    })
}

/// Reads files and may start programs.
async fn find_bundles(said: &settings::Egress, context: &Context) -> Result<bundles::Found, Fault> {
    let (said, environment) = (said.clone(), context.environment.clone());
    tokio::task::spawn_blocking(move || bundles::found(&said, &environment))
        .await
        .map_err(|error| Fault::new(Kind::Internal, "finding the bundles panicked").because(error))
}

/// A thread waits for the gateway, so that nothing is left of one that ended.
fn started((mut child, control): (Child, std::os::unix::net::UnixStream)) -> io::Result<StartedGateway> {
    let (tell, told) = tokio::sync::oneshot::channel();
    std::thread::Builder::new().name("gateway".into()).stack_size(64 * 1024).spawn(move || {
        let _ = child.wait();
        // Nobody may want to know any more.
        let _ = tell.send(());
    })?;
    let ended = async move {
        let _ = told.await;
    };
    Ok(StartedGateway { control, ended: Box::pin(ended) })
}

/// Where the control plane can be reached; on all addresses, it is at every one of this host.
fn own_addresses(listen: SocketAddr) -> Vec<(IpAddr, Option<u16>)> {
    let port = Some(listen.port());
    match listen.ip() {
        ip if ip.is_unspecified() => {
            let loopback: [IpAddr; 2] =
                [std::net::Ipv4Addr::LOCALHOST.into(), std::net::Ipv6Addr::LOCALHOST.into()];
            // The unspecified address makes the gateway find out at every attempt whether it leads to this host.
            [ip].into_iter().chain(loopback).chain(interfaces()).map(|address| (address, port)).collect()
        }
        ip => vec![(ip, port)],
    }
}

/// The addresses that this host uses towards others, by asking the kernel which one it would take. Nothing is sent.
fn interfaces() -> impl Iterator<Item = IpAddr> {
    let probes = [("0.0.0.0:0", "192.0.2.1:9"), ("[::]:0", "[2001:db8::1]:9")];
    probes.into_iter().filter_map(|(from, to)| {
        let socket = std::net::UdpSocket::bind(from).ok()?;
        socket.connect(to).ok()?;
        Some(socket.local_addr().ok()?.ip())
    })
}

/// What a sandbox trusts whose policy has hosts inspected: what the host trusts, what the operator adds, and the authority.
fn trusted(extra: Option<&Path>, own: &str) -> Result<String, Fault> {
    /// Where distributions keep them, in one file.
    const USUAL: [&str; 3] =
        ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem"];
    let mut all = USUAL.iter().find_map(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
    if let Some(path) = extra {
        let unreadable = |error| {
            Fault::new(Kind::Invalid, format!("the certificates in {} cannot be read", path.display()))
                .because(error)
                .hint("check egress.extra_roots")
        };
        all.push_str(&std::fs::read_to_string(path).map_err(unreadable)?);
    }
    all.push_str(own);
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_on_every_address_is_refused_at_each_of_them() {
        assert_eq!(own_addresses("10.0.0.1:80".parse().unwrap()), [("10.0.0.1".parse().unwrap(), Some(80))]);
        let all = own_addresses("0.0.0.0:7878".parse().unwrap());
        assert!(all.contains(&("0.0.0.0".parse().unwrap(), Some(7878))), "{all:?}");
        assert!(all.contains(&("127.0.0.1".parse().unwrap(), Some(7878))), "{all:?}");
        assert!(all.contains(&("::1".parse().unwrap(), Some(7878))), "{all:?}");
    }
}
