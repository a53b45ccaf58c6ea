//! Keeps the pools filled and serves the queue.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cubicle_model::pool::{Demand, target};
use cubicle_model::{Fault, Kind, SandboxId, SandboxState, Template};
use cubicle_store::{NewSandbox, SandboxFilter, Target};
use tracing::{info, warn};

use crate::app::App;

/// Without a wake-up, so that a missed one is not missed for long.
const EVERY: Duration = Duration::from_secs(2);

pub(crate) async fn fill(app: Arc<App>) {
    loop {
        if let Err(fault) = round(&app).await {
            warn!(error = %fault, "the pools cannot be filled now");
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        // Dropping the wait loses nothing: every round looks at everything.
        let _ = tokio::time::timeout(EVERY, app.room_changed.notified()).await;
    }
}

async fn round(app: &Arc<App>) -> Result<(), Fault> {
    for promoted in app.store.promote(app.own_context(), app.room()).await? {
        info!(lease = %promoted.lease.id, sandbox = %promoted.sandbox.id, "lease leaves the queue");
        app.promoted(promoted);
        app.tell();
    }
    let templates = app.store.all_templates().await?;
    app.templates.set_kept(
        templates.iter().map(|template| (template.at.clone(), template.recipe.pool.min_idle)).collect(),
    );
    let pooled = app.store.pooled(app.node).await?;
    let mut wanted = Vec::new();
    let mut targets = BTreeMap::new();
    app.templates.remember(&templates);
    for template in &templates {
        let there = pooled.get(&(template.at.clone(), template.version)).copied().unwrap_or(0);
        let demand = Demand {
            acquired_per_second: app.metrics.acquired_per_second(&template.at),
            seconds_to_make: app.metrics.seconds_to_make(),
        };
        let should_be = u64::from(target(template.recipe.pool, demand));
        targets.insert((template.at.clone(), template.version), should_be);
        let missing = should_be.saturating_sub(there);
        for _ in 0..missing {
            wanted.push(NewSandbox {
                id: SandboxId::from_random(app.surroundings.bits()),
                target: pool_target(template)?,
            });
        }
    }
    if !wanted.is_empty() {
        let by_id: BTreeMap<SandboxId, Target> =
            wanted.iter().map(|new: &NewSandbox| (new.id, new.target.clone())).collect();
        let noted = app.store.want_sandboxes(app.own_context(), wanted, app.settings.capacity).await?;
        for sandbox in noted {
            if let Some(target) = by_id.get(&sandbox.id) {
                app.bring_up_for_pool(sandbox, target.clone());
            }
        }
    }
    shrink(app, &pooled, &targets).await
}

fn pool_target(template: &Template) -> Result<Target, Fault> {
    let isolation = template.recipe.isolation().map_err(|bad| Fault::new(Kind::Invalid, bad.to_string()))?;
    Ok(Target {
        template: template.at.clone(),
        version: template.version,
        isolation,
        limits: cubicle_model::LimitRequest::default(),
    })
}

/// Gives up idle sandboxes of templates that changed, were deleted, or want fewer than there are.
async fn shrink(
    app: &Arc<App>,
    pooled: &BTreeMap<(cubicle_model::TemplateRef, i64), u64>,
    targets: &BTreeMap<(cubicle_model::TemplateRef, i64), u64>,
) -> Result<(), Fault> {
    // A pool that demand has made larger shrinks slowly: a quarter above its target is left alone.
    let too_many = |key| {
        let should_be = targets.get(key).copied().unwrap_or(0);
        pooled.get(key).copied().unwrap_or(0).saturating_sub(should_be + should_be / 4)
    };
    let mut surplus: BTreeMap<_, u64> =
        pooled.keys().map(|key| (key.clone(), too_many(key))).filter(|(_, surplus)| *surplus > 0).collect();
    if surplus.is_empty() {
        return Ok(());
    }
    let filter = SandboxFilter { state: Some(SandboxState::Idle), ..SandboxFilter::default() };
    let page = cubicle_store::Page { after: None, limit: cubicle_store::Page::LARGEST };
    for sandbox in app.store.sandboxes(filter, page).await? {
        if sandbox.node != app.node || sandbox.tenant.is_some() {
            continue;
        }
        let key = (sandbox.template.clone(), sandbox.template_version);
        let Some(left) = surplus.get_mut(&key).filter(|left| **left > 0) else { continue };
        let because = "its pool has enough without it".to_owned();
        match app.store.retire(app.own_context(), sandbox.id, sandbox.generation, because).await {
            Ok(()) => {
                *left -= 1;
                app.live.take_warm(sandbox.id);
                app.advance_soon(sandbox.id);
            }
            // Somebody took it in the meantime.
            Err(fault) if fault.kind() == Kind::Conflict => {}
            Err(fault) => return Err(fault),
        }
    }
    Ok(())
}
