//! Brings about what should be. Nothing here takes input: each round reads the store and the backend, and takes the steps
//! that `model::sandbox::next` names. A restart, a second server and a missed wake-up all take the same path.

pub(crate) mod abandon;
pub(crate) mod adopt;
mod deliveries;
pub(crate) mod keeper;
mod pool;
mod retention;
mod tasks;

use std::sync::Arc;
use std::time::Duration;

use cubicle_model::Fault;
use tracing::warn;

use crate::app::App;
use crate::app::code::InSandboxes;

/// How late a secret is noticed that another server, or somebody else in a file, has changed.
const SECRETS_EVERY: Duration = Duration::from_secs(2);

/// How late an environment goes whose time is over.
const ENVIRONMENTS_EVERY: Duration = Duration::from_secs(60);

/// Adopts what is there, and starts the loops.
pub(crate) async fn start(app: &Arc<App>) -> Result<(), Fault> {
    adopt::adopt(app).await?;
    if let Some(environments) = &app.environments {
        environments.build_sdists_with(InSandboxes::of(app));
    }
    every(app, "sweep", app.settings.sweep_every, |app| async move { app.sweep().await });
    app.reseal_secrets().await?;
    app.reseal_webhooks().await?;
    every(app, "secrets", SECRETS_EVERY, |app| async move { app.look_at_secrets().await });
    every(app, "retention", Duration::from_secs(60), |app| async move { retention::forget(&app).await });
    // What is left over when it is dropped is noted by the stop.
    tokio::spawn(app.stopping.clone().run_until_cancelled_owned(Arc::clone(app).tell_tidings()));
    tokio::spawn(app.stopping.clone().run_until_cancelled_owned(Arc::clone(app).keep_egress_fresh()));
    tokio::spawn(app.stopping.clone().run_until_cancelled_owned(Arc::clone(app).keep_interpreters_warm()));
    every(app, "environments", ENVIRONMENTS_EVERY, |app| async move { app.sweep_environments().await });
    if app.settings.workers.enabled {
        tasks::remove_unnoted(app).await?;
        tasks::sweep(app).await?;
        every(app, "tasks", app.settings.sweep_every, |app| async move { tasks::sweep(&app).await });
        tokio::spawn(app.stopping.clone().run_until_cancelled_owned(tasks::schedule(Arc::clone(app))));
    }
    every(app, "task retention", Duration::from_secs(60), |app| async move { tasks::forget(&app).await });
    let expiry = Arc::clone(app);
    app.tasks.spawn(async move {
        expiry.stopping.clone().run_until_cancelled_owned(expire_leases(expiry)).await;
    });
    app.store.release_claims(app.node).await?;
    // What is under way is finished by the stop, or claimed again by the next start.
    tokio::spawn(app.stopping.clone().run_until_cancelled_owned(deliveries::deliver(Arc::clone(app))));
    let pools = Arc::clone(app);
    app.tasks.spawn(async move {
        pools.stopping.clone().run_until_cancelled_owned(pool::fill(pools)).await;
    });
    Ok(())
}

/// A loop that goes on after a failure, and ends with the server.
fn every<Round: Future<Output = Result<(), Fault>> + Send>(
    app: &Arc<App>,
    name: &'static str,
    pause: Duration,
    round: impl Fn(Arc<App>) -> Round + Send + 'static,
) {
    let app = Arc::clone(app);
    let stopping = app.stopping.clone();
    let rounds = async move {
        loop {
            tokio::time::sleep(pause).await;
            if let Err(fault) = round(Arc::clone(&app)).await {
                warn!(name, error = %fault, "a round failed; the next one comes");
            }
        }
    };
    // Dropped between two steps of a round; each step is safe to repeat.
    tokio::spawn(stopping.run_until_cancelled_owned(rounds));
}

/// Ends leases as soon as their time is over.
async fn expire_leases(app: Arc<App>) {
    const TOGETHER: u32 = 64;
    const LONGEST_PAUSE: Duration = Duration::from_millis(500);
    loop {
        match app.store.expire_leases(app.own_context(), TOGETHER).await {
            Ok(ended) => {
                let more = ended.len() == TOGETHER as usize;
                for one in &ended {
                    app.ended(one);
                }
                if more {
                    continue;
                }
            }
            Err(fault) => warn!(error = %fault, "leases cannot be expired now"),
        }
        // A lease that begins now lives at least a second, so that it is not missed by more than this pause.
        tokio::time::sleep(LONGEST_PAUSE).await;
    }
}
