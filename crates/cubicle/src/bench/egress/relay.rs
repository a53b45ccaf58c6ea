//! A bare copying relay: as little as can stand between two sockets, in a process of its own as the gateway is.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;

use cubicle_model::{Fault, Kind};
use rustix::process::{Signal, set_parent_process_death_signal};
use tokio::net::TcpStream;

use super::way::Process;
use crate::bench::baseline::{not_started, program};
use crate::failure::Ending;

/// Starts the relay, and says where it listens.
pub(super) fn start(to: SocketAddr) -> Result<(Process, SocketAddr), Fault> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(super::broken)?;
    let at = listener.local_addr().map_err(super::broken)?;
    let mut command = program("/proc/self/exe");
    command.arg("bench-relay").arg(to.to_string()).stdin(OwnedFd::from(listener));
    let child = command.spawn().map_err(|error| not_started(&command, error))?;
    Ok((Process(child), at))
}

/// The relay itself: accepts from the listener on its standard input until it is ended.
pub(crate) fn relay(to: SocketAddr) -> Result<Ending, Fault> {
    let failed = |error: io::Error| Fault::new(Kind::Internal, "the relay cannot go on").because(error);
    // Whoever measures may be killed.
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|errno| failed(errno.into()))?;
    let stdin =
        rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3).map_err(|errno| failed(errno.into()))?;
    let listener = TcpListener::from(stdin);
    listener.set_nonblocking(true).map_err(failed)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener).map_err(failed)?;
        loop {
            let (client, _) = listener.accept().await.map_err(failed)?;
            // A connection that breaks ends, and nothing else.
            tokio::spawn(async move { _ = copy(client, to).await });
        }
    })
}

async fn copy(mut client: TcpStream, to: SocketAddr) -> io::Result<()> {
    let mut upstream = TcpStream::connect(to).await?;
    client.set_nodelay(true)?;
    upstream.set_nodelay(true)?;
    tokio::io::copy_bidirectional(&mut client, &mut upstream).await?;
    Ok(())
}
