//! The gateway that lives, started when it is needed. It knows nothing that it was not told: a new one begins with nothing.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use cubicle_egress::control::{Common, Remote};
use cubicle_model::{Fault, Kind};
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;
use tracing::{info, warn};

use super::settings::{StartGateway, StartedGateway};

/// One that died this soon is not started again at once.
const SHORT_LIFE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

pub(super) struct Gateway {
    start: StartGateway,
    common: Common,
    living: watch::Sender<Option<Living>>,
    /// One at a time starts it.
    turn: Mutex<Turn>,
}

#[derive(Clone)]
pub(super) struct Living {
    /// Grows with every gateway.
    pub(super) number: u64,
    pub(super) remote: Arc<Remote>,
}

#[derive(Default)]
struct Turn {
    number: u64,
    started: Option<Instant>,
    pause: Duration,
}

impl Gateway {
    pub(super) fn new(start: StartGateway, common: Common) -> Self {
        Self { start, common, living: watch::Sender::new(None), turn: Mutex::default() }
    }

    /// The gateway that lives; one is started where there is none.
    pub(super) async fn living(&self) -> Result<Living, Fault> {
        if let Some(living) = self.found() {
            return Ok(living);
        }
        let mut turn = self.turn.lock().await;
        if let Some(living) = self.found() {
            return Ok(living);
        }
        turn.breathe().await;
        let cannot =
            |error| Fault::new(Kind::Unavailable, "the egress gateway cannot be started").because(error);
        let StartedGateway { control, ended } = (self.start)().map_err(cannot)?;
        let remote = Arc::new(Remote::new(control).map_err(cannot)?);
        remote.common(self.common.clone()).await?;
        turn.number += 1;
        let living = Living { number: turn.number, remote };
        self.living.send_replace(Some(living.clone()));
        info!(number = living.number, "egress gateway started");
        let (number, told) = (living.number, self.living.clone());
        // Ends with the gateway.
        tokio::spawn(async move {
            ended.await;
            if forget(&told, number) {
                warn!(number, "egress gateway ended; the next connection starts another");
            }
        });
        Ok(living)
    }

    /// The gateway that lives, if one does.
    pub(super) fn found(&self) -> Option<Living> {
        self.living.borrow().clone()
    }

    /// A gateway that does not answer is of no use any more. Without its control plane it ends.
    pub(super) fn discard(&self, number: u64) {
        if forget(&self.living, number) {
            warn!(number, "egress gateway does not answer and is given up");
        }
    }

    /// Waits until this gateway is not the living one any more.
    pub(super) async fn gone(&self, number: u64) {
        let mut living = self.living.subscribe();
        let is_another =
            |living: &Option<Living>| living.as_ref().is_none_or(|living| living.number != number);
        // The sender lives as long as this does.
        let _ = living.wait_for(is_another).await;
    }
}

fn forget(living: &watch::Sender<Option<Living>>, number: u64) -> bool {
    living.send_if_modified(|living| {
        let same = living.as_ref().is_some_and(|living| living.number == number);
        if same {
            *living = None;
        }
        same
    })
}

impl Turn {
    /// A gateway that dies again and again is started ever more slowly.
    async fn breathe(&mut self) {
        let short = self.started.is_some_and(|started| started.elapsed() < SHORT_LIFE + self.pause);
        self.pause = match short {
            true => (self.pause * 2).clamp(Duration::from_millis(50), LONGEST_PAUSE),
            false => Duration::ZERO,
        };
        if !self.pause.is_zero() {
            tokio::time::sleep(self.pause).await;
        }
        self.started = Some(Instant::now());
    }
}

impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gateway").finish_non_exhaustive()
    }
}
