//! What there is at the moment, for whoever scrapes it.

use std::time::Duration;

use cubicle_backend::Consumption;
use cubicle_model::{Fault, TemplateRef};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::App;
use crate::metrics::Snapshot;

/// Anybody may ask for the metrics, and as often as they like; what costs as much as there are sandboxes is done this
/// often at most.
const FRESH: Duration = Duration::from_secs(5);

type Consumed = Vec<(TemplateRef, Consumption)>;

/// What leased sandboxes used when somebody asked last.
#[derive(Debug, Default)]
pub(crate) struct Census {
    /// Held while it is taken, so that it is taken once for all who ask.
    last: Mutex<Option<(Instant, Consumed)>>,
}

impl App {
    pub(crate) async fn snapshot(&self) -> Result<Snapshot, Fault> {
        let (_, waiting_leases) = self.store.count_leases(self.node).await?;
        let (waiting_tasks, running_tasks) = self.store.count_tasks(self.node).await?;
        Ok(Snapshot {
            waiting_leases,
            waiting_tasks,
            running_tasks,
            capacity: self.settings.capacity,
            sandboxes: self.store.count_sandboxes(self.node).await?,
            consumed: self.consumed().await,
        })
    }

    async fn consumed(&self) -> Consumed {
        let mut last = self.census.last.lock().await;
        if let Some((at, consumed)) = &*last
            && at.elapsed() < FRESH
        {
            return consumed.clone();
        }
        let mut consumed = Vec::new();
        for (id, template) in self.live.all() {
            // One that ends just now is nobody's any more.
            if let Ok(Some(uses)) = self.backend.consumption(id).await {
                consumed.push((template, uses));
            }
            tokio::task::yield_now().await;
        }
        *last = Some((Instant::now(), consumed.clone()));
        consumed
    }
}
