//! The end of a server that must not come back: its data directory is gone, and with it whatever a next start would adopt from.

use std::collections::BTreeSet;
use std::sync::Arc;

use cubicle_model::SandboxId;
use futures_util::future::join_all;
use tracing::{info, warn};

use crate::app::App;

/// Destroys every sandbox of this node and says so in the store, which others may share. Nothing here gives up: what fails is
/// left to the deadline of its sandbox.
pub(crate) async fn abandon(app: &Arc<App>) {
    let rows = app.store.standing_sandboxes(app.node).await.unwrap_or_default();
    let seen = app.own_sandboxes().await.unwrap_or_default();
    let all: BTreeSet<SandboxId> = rows.iter().map(|row| row.id).chain(seen.into_keys()).collect();
    info!(sandboxes = all.len(), "destroying what this server made");
    let destroyed = join_all(all.iter().map(|id| app.destroy(*id))).await;
    // What an earlier server made is found by what it has on the host.
    let swept = app.backend.gc().await.map(drop);
    for fault in destroyed.into_iter().chain([swept]).filter_map(Result::err) {
        warn!(error = %fault, "something may be left until its deadline");
    }
    for row in rows {
        if let Err(fault) = app.advance(row.id).await {
            warn!(sandbox = %row.id, error = %fault, "the end of a sandbox cannot be noted");
        }
    }
}
