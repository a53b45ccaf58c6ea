//! Moves what was committed from the log into the file, beside the writer, so that no transaction waits for it.
//!
//! The writer starts the log anew when everything in it has been moved. Under a steady load that moment never comes by
//! itself, so from some size on the writer moves the rest between two transactions; by then it is little.

use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use cubicle_model::Fault;
use rusqlite::Connection;

use crate::driver::spawn;

/// Pages of the log from which on it is moved: 4 MB.
const WORTH_MOVING: i32 = 1000;
/// Pages from which on the writer sees to it: 24 MB.
const TOO_MANY: i32 = 6000;

pub(super) struct Checkpoints {
    /// How long the log is, in pages.
    pages: Arc<AtomicI32>,
    /// At which length it was moved last.
    asked_at: i32,
    wake: SyncSender<()>,
    /// Held by whoever moves it: SQLite lets only one, and sends others away.
    moving: Arc<Mutex<()>>,
}

/// `connection` is used for nothing else.
pub(super) fn start(connection: Connection) -> Result<Checkpoints, Fault> {
    // A wake-up that waits already covers the next one too.
    let (wake, woken) = sync_channel(1);
    let moving = Arc::<Mutex<()>>::default();
    spawn("store-checkpoint", {
        let moving = Arc::clone(&moving);
        move || {
            while woken.recv().is_ok() {
                checkpoint(&connection, &moving);
            }
        }
    })?;
    Ok(Checkpoints { pages: Arc::default(), asked_at: 0, wake, moving })
}

impl Checkpoints {
    /// Learns from the writer's connection how long the log is; SQLite itself no longer moves it there.
    pub(super) fn watch(&self, connection: &mut Connection) -> rusqlite::Result<()> {
        let pages = Arc::clone(&self.pages);
        connection.wal_hook(Some(move |_: &mut rusqlite::hooks::Wal, length| {
            pages.store(length, Ordering::Relaxed);
            Ok(())
        }))
    }

    /// Whether the next commit has to move the log itself, which takes a while.
    pub(super) fn are_due(&self) -> bool {
        self.pages.load(Ordering::Relaxed) >= TOO_MANY
    }

    pub(super) fn after_commit(&mut self, connection: &Connection) {
        let length = self.pages.load(Ordering::Relaxed);
        if length < self.asked_at {
            // The log began anew.
            self.asked_at = 0;
        }
        if length >= TOO_MANY && length - self.asked_at >= WORTH_MOVING {
            self.asked_at = length;
            checkpoint(connection, &self.moving);
        } else if length - self.asked_at >= WORTH_MOVING {
            self.asked_at = length;
            let _ = self.wake.try_send(());
        }
    }
}

/// As far as no reader needs the older state. What fails now is done the next time.
fn checkpoint(connection: &Connection, moving: &Mutex<()>) {
    let _alone = moving.lock().unwrap_or_else(PoisonError::into_inner);
    let _ = connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
}
