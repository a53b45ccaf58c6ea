//! Gives waiting tasks their workers, goes on with those that an earlier server began, and removes what was kept long enough.

use std::sync::Arc;
use std::time::Duration;

use cubicle_model::{ExecId, Fault, Timestamp};
use cubicle_store::Page;
use tracing::{info, warn};

use crate::app::App;

/// Without a wake-up, so that a missed one is not missed for long.
const EVERY: Duration = Duration::from_secs(2);
const TOGETHER: u32 = 100;

/// A round whenever there may be something to do.
pub(crate) async fn schedule(app: Arc<App>) {
    loop {
        if let Err(fault) = round(&app).await {
            warn!(error = %fault, "tasks cannot be given workers now");
        }
        // Dropping the wait loses nothing: every round looks at everything.
        let _ = tokio::time::timeout(EVERY, app.workers.something_to_do.notified()).await;
    }
}

async fn round(app: &Arc<App>) -> Result<(), Fault> {
    let most = app.settings.workers.max_concurrent_workers;
    loop {
        let exec = ExecId::from_random(app.surroundings.bits());
        let Some(task) = app.store.submit_next_task(app.own_context(), most, exec).await? else { break };
        app.step("task_submitted");
        app.tell();
        app.attend_soon(task);
    }
    Ok(())
}

/// Tasks that nobody attends to: their server was killed, or could not reach the store.
pub(crate) async fn sweep(app: &Arc<App>) -> Result<(), Fault> {
    for task in app.store.active_tasks(app.node).await? {
        app.attend_soon(task);
    }
    app.release_leftovers().await
}

/// Directories without a row: their server was killed before it noted the task. Nobody is served yet, so that none of them
/// is about to be noted.
pub(crate) async fn remove_unnoted(app: &Arc<App>) -> Result<(), Fault> {
    let mut page = Page { after: None, limit: Page::LARGEST };
    loop {
        let tenants = app.store.tenants(page.clone()).await?;
        let more = tenants.len() > page.limit as usize;
        page.after = tenants.last().map(|tenant| tenant.name.to_string());
        for tenant in tenants {
            app.remove_unnoted_tasks(&tenant.name).await?;
        }
        if !more {
            return Ok(());
        }
    }
}

/// Tasks whose time is over, the directory first: a row without one would promise what is not there any more.
pub(crate) async fn forget(app: &Arc<App>) -> Result<(), Fault> {
    let kept = app.settings.workers.task_retention;
    let kept = jiff::SignedDuration::try_from(kept).unwrap_or(jiff::SignedDuration::MAX);
    let before = app.now().saturating_sub(kept).unwrap_or(Timestamp::MIN);
    let old = app.store.old_tasks(app.node, before, TOGETHER).await?;
    let mut gone = Vec::new();
    for (tenant, id) in old {
        match app.remove_task_directory(&tenant, id).await {
            Ok(()) => gone.push(id),
            Err(fault) => warn!(task = %id, error = %fault, "the directory of a task cannot be removed"),
        }
    }
    app.step("task_directories_removed");
    if !gone.is_empty() {
        let tasks = app.store.forget_tasks(gone).await?;
        info!(tasks, "forgot tasks that were kept long enough");
    }
    Ok(())
}
