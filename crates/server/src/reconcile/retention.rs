//! Forgets what has been kept long enough.

use std::time::Duration;

use cubicle_model::{Fault, Timestamp};
use cubicle_store::ArtifactKind;
use tracing::info;

use crate::app::App;

const TOGETHER: u32 = 256;

pub(crate) async fn forget(app: &App) -> Result<(), Fault> {
    let before = earlier(app.now(), app.settings.record_retention);
    let forgotten = app.store.forget_before(before).await? + app.store.forget_events(before).await?;
    let told = app.store.forget_deliveries(before).await? + app.store.forget_listeners(before).await?;
    let forgotten = forgotten + told;
    let artifacts = app.store.expired_artifacts(app.now(), TOGETHER).await?;
    for artifact in &artifacts {
        // The bytes first: a row without bytes would promise what is not there any more.
        app.blobs.remove(&artifact.location).await?;
        app.store.delete_artifact(app.own_context(), artifact.id).await?;
        if artifact.kind == ArtifactKind::Journal {
            app.metrics.journal_forgotten(artifact.size);
        }
    }
    if forgotten > 0 || !artifacts.is_empty() {
        info!(records = forgotten, artifacts = artifacts.len(), "forgot what was kept long enough");
    }
    Ok(())
}

fn earlier(now: Timestamp, by: Duration) -> Timestamp {
    let by = jiff::SignedDuration::try_from(by).unwrap_or(jiff::SignedDuration::MAX);
    now.saturating_sub(by).unwrap_or(Timestamp::MIN)
}
