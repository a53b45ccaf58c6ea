//! What happened to execs and is yet to be told: in events, in the audit log, and in their rows.
//!
//! An exec is noted before it starts, and nobody waits for more than that: how it ended is in its journal, and a server that
//! is killed in between tells what its rows and the journals say. So the rest is done for many execs together.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cubicle_model::{Fault, Kind, LeaseId};
use cubicle_store::{Exec, Finished, Untold};
use tokio::sync::Notify;
use tracing::{Span, warn};

use super::App;

/// Until something is told, unless somebody asks earlier. Answers go out first.
const PAUSE: Duration = Duration::from_millis(2);
/// When the store cannot be reached.
const RETRY: Duration = Duration::from_millis(500);

#[derive(Debug, Default)]
pub(crate) struct Tidings {
    waiting: Mutex<Untold>,
    /// What the end of a lease is a part of, for its trace.
    spans: Mutex<HashMap<LeaseId, Span>>,
    wake: Notify,
    /// One at a time, so that whoever asks knows that everything before was told.
    turn: tokio::sync::Mutex<()>,
}

impl Tidings {
    fn waiting(&self) -> MutexGuard<'_, Untold> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spans(&self) -> MutexGuard<'_, HashMap<LeaseId, Span>> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Told with its end, or as soon as somebody says `soon`: nobody is woken up before it has reached its sandbox.
    pub(super) fn has_begun(&self, exec: &Exec) {
        self.waiting().begun.push((exec.id, exec.tenant.clone()));
    }

    /// What waits is told in a moment.
    pub(super) fn soon(&self) {
        self.wake.notify_one();
    }

    /// The end tells of the start as well.
    pub(super) fn has_ended(&self, finished: Finished, span: Span) {
        if let Some(lease) = finished.lease {
            self.spans().insert(lease, span);
        }
        let mut waiting = self.waiting();
        waiting.begun.retain(|(id, _)| *id != finished.exec);
        waiting.finished.push(finished);
        drop(waiting);
        self.wake.notify_one();
    }

    fn put_back(&self, untold: Untold) {
        let mut waiting = self.waiting();
        waiting.begun.splice(..0, untold.begun);
        waiting.finished.splice(..0, untold.finished);
    }
}

impl App {
    /// Tells as things happen, until the server stops.
    pub(crate) async fn tell_tidings(self: Arc<Self>) {
        loop {
            self.tidings.wake.notified().await;
            tokio::time::sleep(PAUSE).await;
            if self.settle().await.is_err() {
                tokio::time::sleep(RETRY).await;
                self.tidings.wake.notify_one();
            }
        }
    }

    /// Tells everything that is known by now.
    pub(crate) async fn settle(self: &Arc<Self>) -> Result<(), Fault> {
        if self.tidings.waiting().is_empty() && self.tidings.turn.try_lock().is_ok() {
            return Ok(());
        }
        let app = Arc::clone(self);
        self.to_its_end(async move { app.tell_all().await }).await
    }

    async fn tell_all(self: &Arc<Self>) -> Result<(), Fault> {
        let _turn = self.tidings.turn.lock().await;
        let untold = std::mem::take(&mut *self.tidings.waiting());
        if untold.is_empty() {
            return Ok(());
        }
        match self.tell_of(untold.clone()).await {
            Ok(()) => return Ok(()),
            Err(fault) if fault.kind() == Kind::Unavailable => {
                warn!(error = %fault, "what happened to execs cannot be told now");
                self.tidings.put_back(untold);
                return Err(fault);
            }
            Err(_) => {}
        }
        // One of them is in the way of the others.
        let begun = untold.begun.into_iter().map(|one| Untold { begun: vec![one], ..Untold::default() });
        let finished =
            untold.finished.into_iter().map(|one| Untold { finished: vec![one], ..Untold::default() });
        for one in begun.chain(finished) {
            if let Err(fault) = self.tell_of(one.clone()).await {
                // The journal has it; the next start tells it.
                warn!(?one, error = %fault, "what happened to an exec cannot be told");
            }
        }
        Ok(())
    }

    async fn tell_of(self: &Arc<Self>, untold: Untold) -> Result<(), Fault> {
        let any_end = !untold.finished.is_empty();
        let over: Vec<LeaseId> = untold.finished.iter().filter_map(|one| one.lease).collect();
        let released = self.store.tell_execs(self.own_context(), untold).await?;
        if any_end {
            self.step("exec_end_noted");
        }
        self.tell();
        for ended in &released {
            self.step("lease_ended");
            let span = self.tidings.spans().remove(&ended.lease.id).unwrap_or_else(Span::none);
            span.in_scope(|| self.ended(ended));
        }
        // A lease that was forgotten meanwhile is not among the released ones.
        self.tidings.spans().retain(|lease, _| !over.contains(lease));
        Ok(())
    }
}
