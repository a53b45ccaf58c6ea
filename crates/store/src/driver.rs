//! What carries transactions to a database.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use async_trait::async_trait;
use cubicle_model::{Fault, Kind};
use tokio::sync::oneshot;

use crate::sql::Sql;

/// What an acknowledged write survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durability {
    /// The end of every process of ours.
    Crash,
    /// Also the loss of power: for what nobody could make again.
    PowerLoss,
}

/// A transaction. It may be run more than once when the database asks for it; only the last run counts.
pub(crate) type Work = Arc<dyn Fn(&mut dyn Sql) -> Result<(), Fault> + Send + Sync>;

/// Work for a thread, and who waits for it.
pub(crate) struct Job {
    pub(crate) durability: Durability,
    pub(crate) work: Work,
    pub(crate) done: oneshot::Sender<Result<(), Fault>>,
}

impl Job {
    /// Whoever asked may have gone; the work is done all the same.
    pub(crate) fn answer(self, outcome: Result<(), Fault>) {
        let _ = self.done.send(outcome);
    }
}

/// Runs the work. A panic in it is the failure of that work alone.
pub(crate) fn carry_out(work: &Work, sql: &mut dyn Sql) -> Result<(), Fault> {
    catch_unwind(AssertUnwindSafe(|| work(sql)))
        .unwrap_or_else(|_| Err(Fault::new(Kind::Internal, "a transaction panicked")))
}

/// A thread of the store. It ends when nobody can send it work any more.
pub(crate) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), Fault> {
    let thread = thread::Builder::new().name(name.into()).stack_size(512 * 1024);
    thread.spawn(body).map(drop).map_err(|error| Fault::new(Kind::Internal, "start the store").because(error))
}

/// The same failure for one more of those whom it struck.
pub(crate) fn again(reason: &Fault) -> Fault {
    let fault = Fault::new(reason.kind(), reason.message());
    match reason.way_out() {
        Some(hint) => fault.hint(hint),
        None => fault,
    }
}

#[async_trait]
pub(crate) trait Driver: Send + Sync {
    /// All of the work, or nothing of it. `Unavailable` means that the outcome is unknown.
    async fn write(&self, durability: Durability, work: Work) -> Result<(), Fault>;

    /// Work that changes nothing. It sees everything that was acknowledged before.
    async fn read(&self, work: Work) -> Result<(), Fault>;
}

/// Where a transaction leaves its result.
pub(crate) struct Outcome<T>(Arc<Mutex<Option<T>>>);

impl<T: Send + 'static> Outcome<T> {
    /// The work that fills the outcome.
    pub(crate) fn of(
        work: impl Fn(&mut dyn Sql) -> Result<T, Fault> + Send + Sync + 'static,
    ) -> (Self, Work) {
        let slot = Arc::new(Mutex::new(None));
        let outcome = Self(Arc::clone(&slot));
        let work = move |sql: &mut dyn Sql| {
            let result = work(sql)?;
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
            Ok(())
        };
        (outcome, Arc::new(work))
    }

    pub(crate) fn take(self) -> Result<T, Fault> {
        let result = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        result.ok_or_else(|| Fault::new(Kind::Internal, "a transaction ended without a result"))
    }
}
