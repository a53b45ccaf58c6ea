//! Programs that know of no proxy: names lead to loopback addresses inside of the sandbox, and what connects to one of
//! them is taken to the name.

use std::net::IpAddr;
use std::sync::Arc;

use cubicle_model::egress::Host;

use crate::outlet::Outlet;
use crate::stream::Stream;
use crate::tunnel::{self, Manner};

/// Serves a connection whose own address says where it wants to go.
pub(crate) async fn serve(outlet: Arc<Outlet>, client: Stream) {
    let Stream::Tcp(stream) = &client else { return };
    let Ok(local) = stream.local_addr() else { return };
    let IpAddr::V4(address) = local.ip() else { return };
    let Some(name) = outlet.with_addresses(|addresses| addresses.name(address)) else { return };
    tunnel::open(outlet, client, Vec::new(), Host::Name(name), local.port(), Manner::Silent).await;
}
