//! Accepts what comes from a sandbox, and finds out which protocol it is.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, UdpSocket};
use tokio::time::timeout;

use crate::gateway::Listeners;
use crate::http::Scene;
use crate::outlet::{Outlet, Room};
use crate::stream::{Ahead, Stream};
use crate::{connect, dns, forward, http, socks};

/// How long the gateway waits before it accepts again after it could not, as when it is out of file descriptors.
const BREATH: Duration = Duration::from_millis(100);

/// Starts a task for every listener. All of them end with the outlet.
pub(crate) fn start(outlet: &Arc<Outlet>, listeners: Listeners) -> io::Result<()> {
    let Listeners { proxy, forward, dns_udp, dns_tcp } = listeners;
    let tcp = |listeners: Vec<std::net::TcpListener>| -> io::Result<Vec<TcpListener>> {
        let make = |listener: std::net::TcpListener| {
            // Otherwise a small message waits for the acknowledgement of the one before it. What is accepted inherits this.
            rustix::net::sockopt::set_tcp_nodelay(&listener, true)?;
            listener.set_nonblocking(true)?;
            TcpListener::from_std(listener)
        };
        listeners.into_iter().map(make).collect()
    };
    let (proxy, forward, dns_tcp) = (tcp(proxy)?, tcp(forward)?, tcp(dns_tcp)?);
    let mut sockets = Vec::new();
    for socket in dns_udp {
        socket.set_nonblocking(true)?;
        sockets.push(UdpSocket::from_std(socket)?);
    }
    for listener in proxy {
        spawn(outlet, accept(Arc::clone(outlet), listener, serve_proxy));
    }
    for listener in forward {
        spawn(outlet, accept(Arc::clone(outlet), listener, serve_forward));
    }
    for listener in dns_tcp {
        spawn(outlet, accept(Arc::clone(outlet), listener, serve_dns));
    }
    for socket in sockets {
        spawn(outlet, dns::serve_udp(Arc::clone(outlet), socket));
    }
    Ok(())
}

/// Work for a sandbox: it is dropped when the sandbox is detached.
pub(crate) fn spawn(outlet: &Arc<Outlet>, work: impl Future<Output = ()> + Send + 'static) {
    let ended = outlet.ended.clone();
    outlet.tasks.spawn(async move {
        // Nothing of a detached sandbox has to be finished: its bill counts as it goes.
        tokio::select! {
            () = work => {}
            () = ended.cancelled() => {}
        }
    });
}

async fn accept(outlet: Arc<Outlet>, listener: TcpListener, serve: fn(&Arc<Outlet>, Stream)) {
    let mut complained = false;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                serve(&outlet, stream.into());
                complained = false;
            }
            Err(error) => {
                if !std::mem::replace(&mut complained, true) {
                    tracing::warn!(sandbox = %outlet.sandbox(), %error, "egress cannot accept connections");
                }
                tokio::time::sleep(BREATH).await;
            }
        }
    }
}

/// Takes a place among the open connections, or says to the client that there is none.
fn enter(outlet: &Arc<Outlet>, stream: Stream) -> Option<(Room, Stream)> {
    match outlet.enter() {
        Ok(room) => Some((room, stream)),
        Err(refusal) => {
            outlet.refused("any host", &refusal);
            match Arc::clone(&outlet.goodbyes).try_acquire_owned() {
                // What it has sent must be read, or the end of the connection overtakes the answer.
                Ok(turn) => spawn(outlet, async move {
                    let _turn = turn;
                    stream.say_goodbye(&refusal.answer()).await;
                }),
                // Too many at once get no task: one try, and the connection ends.
                Err(_) => {
                    let _ = stream.try_write(&refusal.answer());
                }
            }
            None
        }
    }
}

pub(crate) fn serve_proxy(outlet: &Arc<Outlet>, stream: Stream) {
    let Some((room, stream)) = enter(outlet, stream) else { return };
    let own = Arc::clone(outlet);
    spawn(outlet, async move {
        let _room = room;
        proxy(own, stream).await;
    });
}

fn serve_forward(outlet: &Arc<Outlet>, stream: Stream) {
    let Some((room, stream)) = enter(outlet, stream) else { return };
    let own = Arc::clone(outlet);
    spawn(outlet, async move {
        let _room = room;
        forward::serve(own, stream).await;
    });
}

fn serve_dns(outlet: &Arc<Outlet>, stream: Stream) {
    let Some((room, stream)) = enter(outlet, stream) else { return };
    let own = Arc::clone(outlet);
    spawn(outlet, async move {
        let _room = room;
        dns::serve_tcp(own, stream).await;
    });
}

/// HTTP and SOCKS5 come to the same port, and the first bytes tell which it is.
async fn proxy(outlet: Arc<Outlet>, stream: Stream) {
    const CONNECT: &[u8] = b"CONNECT ";
    let mut first = Vec::new();
    let decided = timeout(outlet.shared().limits.head_deadline, async {
        while read_more(&stream, &mut first).await? {
            if first.len() >= CONNECT.len() || !CONNECT.starts_with(&first) {
                return Ok(true);
            }
        }
        io::Result::Ok(false)
    });
    match decided.await {
        Ok(Ok(true)) => {}
        Ok(_) | Err(_) => return,
    }
    match first[0] {
        0x05 => socks::serve(outlet, stream, first).await,
        _ if first.starts_with(CONNECT) => connect::serve(outlet, stream, first).await,
        _ => http::serve(outlet, Ahead::new(first, stream), Scene::Proxy).await,
    }
}

/// Reads what has come, and says whether the stream goes on. No memory is held while nothing comes.
pub(crate) async fn read_more(stream: &Stream, into: &mut Vec<u8>) -> io::Result<bool> {
    loop {
        stream.readable().await?;
        let mut piece = [0; 2048];
        match stream.try_read_all(&mut piece) {
            Ok((0, _)) => return Ok(false),
            Ok((length, _)) => {
                into.extend_from_slice(&piece[..length]);
                return Ok(true);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}
