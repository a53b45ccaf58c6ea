//! What a start finds: sandboxes that are still wanted are taken over with everything that runs in them.

use std::collections::BTreeMap;
use std::sync::Arc;

use cubicle_backend::State;
use cubicle_model::{Fault, Lease, LeaseId, LeaseStatus, SandboxState};
use cubicle_store::{LeaseFilter, Page};
use tracing::info;

use crate::app::App;
use crate::app::leases::Gifts;
use crate::reconcile::keeper::unsettled;

pub(crate) async fn adopt(app: &Arc<App>) -> Result<(), Fault> {
    app.store.join(app.node, app.settings.address.clone(), app.now()).await?;
    let seen = app.own_sandboxes().await?;
    let rows = app.store.standing_sandboxes(app.node).await?;
    let leases = active_leases(app).await?;
    let mut gifts = app.ungiven().await?;
    let mut adopted = 0;
    for row in &rows {
        let ready = seen.get(&row.id) == Some(&State::Ready);
        let lease = row.lease.and_then(|lease| leases.get(&lease));
        if let (Some(lease), true) = (lease, ready && row.state == SandboxState::Leased) {
            adopted += 1;
            // Before anybody is served, so that nobody takes it for absent.
            app.live.admit(lease, row.id);
            let (app, lease, id) = (Arc::clone(app), lease.clone(), row.id);
            let gifts = gifts.remove(&lease.id);
            app.tasks.clone().spawn(async move { app.take_over(&lease, id, gifts).await });
        }
    }
    for row in rows.iter().filter(|row| row.state == SandboxState::Idle && seen.contains_key(&row.id)) {
        // With what is attached to it, so that none of that is evicted.
        let (app, row) = (Arc::clone(app), row.clone());
        app.tasks.clone().spawn(async move { app.keep_warm(&row).await });
    }
    for id in unsettled(&seen, &rows) {
        app.advance_soon(id);
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
    /// What leases of this node brought and may not have been given.
    pub(crate) async fn ungiven(&self) -> Result<BTreeMap<LeaseId, Gifts>, Fault> {
        let unprepared = self.store.unprepared(self.node).await?;
        Ok(unprepared
            .into_iter()
            .map(|(lease, gifts)| (lease, serde_json::from_value(gifts).unwrap_or_default()))
            .collect())
    }
}
