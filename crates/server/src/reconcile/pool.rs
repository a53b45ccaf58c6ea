//! Keeps the pools filled and serves the queue.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cubicle_model::pool::{Demand, target};
use cubicle_model::{Fault, Kind, SandboxId, SandboxState, Template, TemplateRef};
use cubicle_store::{NewSandbox, SandboxFilter, Target};
use tokio::time::Instant;
use tracing::{info, warn};

use crate::app::App;

/// Without a wake-up, so that a missed one is not missed for long.
const EVERY: Duration = Duration::from_secs(2);
/// What was just given out is used first: making the next one takes the same cores.
const BREATH: Duration = Duration::from_millis(5);

/// A pool that is larger than it should be is made smaller after so long: demand comes in bursts, and what is made only to be
/// destroyed costs both.
const LINGER: Duration = Duration::from_secs(30);

/// A template in one of its versions.
type Pooled = (TemplateRef, i64);

pub(crate) async fn fill(app: Arc<App>) {
    let mut lingering = Lingering::default();
    loop {
        if let Err(fault) = round(&app, &mut lingering).await {
            warn!(error = %fault, "the pools cannot be filled now");
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        // Dropping the wait loses nothing: every round looks at everything.
        let _ = tokio::time::timeout(EVERY, app.room_changed.notified()).await;
    }
}

async fn round(app: &Arc<App>, lingering: &mut Lingering) -> Result<(), Fault> {
    for promoted in app.store.promote(app.own_context(), app.room()).await? {
        info!(lease = %promoted.lease.id, sandbox = %promoted.sandbox.id, "lease leaves the queue");
        app.promoted(promoted);
        app.tell();
    }
    tokio::time::sleep(BREATH).await;
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
            acquired_per_second: app.metrics.pace.acquired_per_second(&template.at),
            seconds_to_make: app.metrics.pace.seconds_to_make(),
        };
        let should_be = u64::from(target(template.recipe.pool, demand));
        targets.insert((template.at.clone(), template.version), should_be);
        // A pool may be asked to be larger than anything; what does not fit need not be named.
        let missing = should_be.saturating_sub(there).min(app.settings.capacity);
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
    shrink(app, &pooled, &targets, lingering).await
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

/// Since when pools are larger than they should be.
#[derive(Debug, Default)]
struct Lingering(BTreeMap<Pooled, Instant>);

impl Lingering {
    /// How many of each pool are too many, and have been for long enough. Nobody wants those of a template that changed or
    /// was deleted; they go at once.
    fn surplus(
        &mut self,
        pooled: &BTreeMap<Pooled, u64>,
        targets: &BTreeMap<Pooled, u64>,
        now: Instant,
    ) -> BTreeMap<Pooled, u64> {
        let mut surplus = BTreeMap::new();
        let mut still = BTreeMap::new();
        for (key, there) in pooled {
            let Some(should_be) = targets.get(key) else {
                surplus.insert(key.clone(), *there);
                continue;
            };
            // A quarter above its target is left alone.
            let too_many = there.saturating_sub(should_be + should_be / 4);
            if too_many == 0 {
                continue;
            }
            let since = self.0.get(key).copied().unwrap_or(now);
            still.insert(key.clone(), since);
            if now.duration_since(since) >= LINGER {
                surplus.insert(key.clone(), too_many);
            }
        }
        self.0 = still;
        surplus
    }
}

/// Gives up idle sandboxes of templates that changed, were deleted, or want fewer than there are.
async fn shrink(
    app: &Arc<App>,
    pooled: &BTreeMap<Pooled, u64>,
    targets: &BTreeMap<Pooled, u64>,
    lingering: &mut Lingering,
) -> Result<(), Fault> {
    let mut surplus = lingering.surplus(pooled, targets, Instant::now());
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

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(name: &str, version: i64) -> Pooled {
        (TemplateRef { owner: None, name: name.parse().unwrap() }, version)
    }

    #[test]
    fn a_pool_shrinks_when_it_was_too_large_for_long() {
        let (mut lingering, start) = (Lingering::default(), Instant::now());
        let targets = BTreeMap::from([(pool("default", 1), 8)]);
        let mut after = |there: u64, seconds: u64| {
            let pooled = BTreeMap::from([(pool("default", 1), there)]);
            let surplus = lingering.surplus(&pooled, &targets, start + Duration::from_secs(seconds));
            surplus.values().sum::<u64>()
        };
        assert_eq!(after(14, 0), 0);
        assert_eq!(after(14, 29), 0);
        assert_eq!(after(10, 29), 0, "a quarter more is no surplus, and the time begins anew");
        assert_eq!(after(14, 31), 0);
        assert_eq!(after(15, 62), 5);
    }

    #[test]
    fn what_nobody_wants_any_more_goes_at_once() {
        let targets = BTreeMap::from([(pool("default", 2), 8)]);
        let pooled = BTreeMap::from([(pool("default", 1), 4), (pool("default", 2), 8), (pool("gone", 1), 1)]);
        let surplus = Lingering::default().surplus(&pooled, &targets, Instant::now());
        assert_eq!(surplus, BTreeMap::from([(pool("default", 1), 4), (pool("gone", 1), 1)]));
    }
}
