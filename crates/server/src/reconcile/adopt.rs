//! What a start finds: sandboxes that are still wanted are taken over with everything that runs in them.

use std::collections::BTreeMap;
use std::sync::Arc;

use cubicle_backend::State;
use cubicle_model::lease::LeaseEnd;
use cubicle_model::{Fault, Lease, LeaseId, LeaseStatus, SandboxState};
use cubicle_store::{AfterLease, LeaseFilter, Page};
use tracing::{info, warn};

use crate::app::App;
use crate::app::leases::Gifts;
use crate::app::live::Leased;

pub(crate) async fn adopt(app: &Arc<App>) -> Result<(), Fault> {
    app.store.join(app.node, app.settings.address.clone(), app.now()).await?;
    let seen = app.own_sandboxes().await?;
    let rows = app.store.standing_sandboxes(app.node).await?;
    let leases = active_leases(app).await?;
    let unprepared: BTreeMap<LeaseId, serde_json::Value> =
        app.store.unprepared(app.node).await?.into_iter().collect();
    let mut adopted = 0;
    for row in &rows {
        let ready = seen.get(&row.id) == Some(&State::Ready);
        let lease = row.lease.and_then(|lease| leases.get(&lease));
        if let (Some(lease), true) = (lease, ready && row.state == SandboxState::Leased) {
            let leased = app.live.admit(lease, row.id);
            adopted += 1;
            // Nobody has been told of a lease that was not prepared, so that nothing has run in its sandbox.
            let gifts = unprepared
                .get(&lease.id)
                .cloned()
                .map(|gifts| serde_json::from_value::<Gifts>(gifts).unwrap_or_default());
            let (app, lease) = (Arc::clone(app), lease.id);
            app.tasks.clone().spawn(async move { app.take_over(&leased, lease, gifts).await });
        }
    }
    for id in seen.keys().filter(|id| !rows.iter().any(|row| row.id == **id)) {
        app.advance_soon(*id);
    }
    for row in &rows {
        let settled = seen.get(&row.id) == Some(&State::Ready)
            && matches!(row.state, SandboxState::Idle | SandboxState::Leased);
        if !settled {
            app.advance_soon(row.id);
        }
    }
    app.follow_running_execs(&leases).await?;
    if adopted > 0 || !rows.is_empty() {
        info!(adopted, known = rows.len(), found = seen.len(), "took over what an earlier server left");
    }
    Ok(())
}

async fn active_leases(app: &App) -> Result<BTreeMap<LeaseId, Lease>, Fault> {
    let filter = LeaseFilter { status: Some(LeaseStatus::Active), ..LeaseFilter::default() };
    let mut all = BTreeMap::new();
    let mut page = Page { after: None, limit: Page::LARGEST };
    loop {
        let leases = app.store.leases(filter.clone(), page.clone()).await?;
        let more = leases.len() > page.limit as usize;
        page.after = leases.last().map(|lease| lease.id.to_string());
        all.extend(leases.into_iter().filter(|lease| lease.node == app.node).map(|lease| (lease.id, lease)));
        if !more {
            return Ok(all);
        }
    }
}

impl App {
    async fn take_over(self: Arc<Self>, leased: &Leased, lease: LeaseId, gifts: Option<Gifts>) {
        let prepared = async {
            if let Some(gifts) = gifts {
                self.backend.bind(leased.sandbox, &gifts.into_binding()).await?;
                self.store.prepared(lease).await?;
            }
            self.guest(leased.sandbox).await
        };
        match prepared.await {
            Ok(guest) => leased.is_ready(guest),
            Err(fault) => {
                warn!(%lease, sandbox = %leased.sandbox, error = %fault, "a lease could not be taken over");
                // Whoever has it is told by its end; the sweep would find it again and again.
                let _ =
                    self.end(self.own_context(), lease, LeaseEnd::SandboxEnded, AfterLease::Destroy).await;
            }
        }
    }
}
