//! `cubicle egress-gateway`: the way out of all sandboxes, as a process of its own. It is started by a server, is told
//! everything over the socket that is its standard input, and ends when that closes.

mod access_log;

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cubicle_egress::redact::Shapes;
use cubicle_egress::{Authority, Gateway, Limits, Outside, SystemDial, SystemNames, control, roots};
use cubicle_model::{Fault, Kind, Timestamp};
use cubicle_server::LogMasks;
use rustix::net::{AddressFamily, SocketType, sockopt};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs};
use tokio::runtime::Handle;

use crate::args::EgressGateway;
use crate::failure::Ending;
use crate::{gateway, limits};
use access_log::AccessLogFile;

/// The runtime is interrupted for every deadline that comes before the next one it knows of. With this one, which comes before
/// those of connections, that never happens.
const TICK: Duration = Duration::from_secs(1);
/// Descriptors that are not connections: listeners, files, the runtime's own.
const OTHER_DESCRIPTORS: usize = 512;

pub(crate) fn egress_gateway(args: &EgressGateway) -> Result<Ending, Fault> {
    crate::log::start(args.log.as_deref(), None, LogMasks::new(Shapes::usual()))?;
    let control = control_socket()?;
    let authority = args.authority.as_deref().map(gateway::read_authority).transpose()?;
    let authority = authority.as_ref().map(Authority::load).transpose()?;
    let extra_roots = args.extra_roots.as_deref().map(read).transpose()?;
    // What reads hostile input needs no rights at all: its sockets are given to it. Threads inherit this, so none is
    // started before.
    give_up_rights()?;
    let access_log = args.access_log.as_deref().map(AccessLogFile::open).transpose()?;
    let limits = within(limits::allow_many_descriptors());
    let outside = Outside {
        names: Arc::new(SystemNames),
        dial: Arc::new(SystemDial),
        roots: Arc::new(roots(extra_roots.as_deref())?),
        clock: Arc::new(Timestamp::now),
        log: access_log.as_ref().map(AccessLogFile::log),
    };
    let unstarted = |error: std::io::Error| Fault::new(Kind::Internal, "cannot start").because(error);
    let runtimes =
        (0..threads()).map(|_| start_runtime()).collect::<Result<Vec<_>, _>>().map_err(unstarted)?;
    let gateway = Gateway::new(&args.name, limits, outside, authority)?.spread_over(runtimes);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(unstarted)?;
    let served = runtime.block_on(control::serve(gateway, control));
    if let Some(log) = access_log {
        log.finish();
    }
    served.map_err(|error| {
        Fault::new(Kind::Invalid, "the control socket carried something else than calls").because(error)
    })?;
    Ok(Ending::Code(0))
}

/// One per core, as sandboxes are shared out among them; more than a few have never anything to do.
fn threads() -> usize {
    const MOST: usize = 8;
    std::thread::available_parallelism().map_or(1, usize::from).min(MOST)
}

/// A runtime with one thread, which ends with the process.
fn start_runtime() -> std::io::Result<Handle> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    std::thread::Builder::new().name("egress".into()).spawn(move || {
        runtime.block_on(async {
            loop {
                tokio::time::sleep(TICK).await;
            }
        });
    })?;
    Ok(handle)
}

fn control_socket() -> Result<UnixStream, Fault> {
    let stdin = rustix::stdio::stdin();
    let is_control = sockopt::socket_domain(stdin).is_ok_and(|domain| domain == AddressFamily::UNIX)
        && sockopt::socket_type(stdin).is_ok_and(|kind| kind == SocketType::STREAM);
    if !is_control {
        return Err(Fault::new(Kind::Invalid, "the gateway is driven over a socket on its standard input")
            .hint("'cubicle up' starts it; there is no need to do so by hand"));
    }
    let own = rustix::io::fcntl_dupfd_cloexec(stdin, 3);
    own.map(UnixStream::from)
        .map_err(|errno| Fault::new(Kind::Internal, "the control socket cannot be used").because(errno))
}

fn give_up_rights() -> Result<(), Fault> {
    let failed = |errno: rustix::io::Errno| {
        Fault::new(Kind::Internal, "the gateway cannot give up its rights").because(errno)
    };
    set_no_new_privs(true).map_err(failed)?;
    // Its memory holds secrets: no dump is written, and no process of the same user looks into it.
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(failed)?;
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
        .map_err(failed)
}

/// No more connections than there are descriptors for: each takes one on either side.
fn within(descriptors: u64) -> Limits {
    let limits = Limits::default();
    let descriptors = usize::try_from(descriptors).unwrap_or(usize::MAX);
    let connections = descriptors.saturating_sub(OTHER_DESCRIPTORS) / 2;
    Limits { connections: limits.connections.min(connections.max(16)), ..limits }
}

fn read(path: &Path) -> Result<String, Fault> {
    std::fs::read_to_string(path)
        .map_err(|error| Fault::new(Kind::Invalid, format!("cannot read {}", path.display())).because(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_fit_into_the_descriptors() {
        let most = Limits::default().connections;
        for (descriptors, connections) in
            [(u64::MAX, most), (1_048_576, most), (4096, 1792), (1024, 256), (100, 16)]
        {
            assert_eq!(within(descriptors).connections, connections);
        }
    }
}
