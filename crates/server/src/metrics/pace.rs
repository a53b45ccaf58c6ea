//! Means of late that the server itself goes by: how fast leases are asked for, how long sandboxes take, how long leases
//! live.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cubicle_model::TemplateRef;
use tokio::time::Instant;

/// The newest counts so much.
const WEIGHT: f64 = 0.1;

#[derive(Debug, Default)]
pub(crate) struct Pace {
    seen: Mutex<Seen>,
}

/// Exponential means.
#[derive(Debug, Default)]
struct Seen {
    lease_seconds: Option<f64>,
    seconds_to_make: Option<f64>,
    /// When a template was acquired last, and the mean time between two acquires.
    acquired: HashMap<TemplateRef, (Instant, f64)>,
}

impl Pace {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more lease of a template was asked for.
    pub(crate) fn asked_for(&self, template: &TemplateRef) {
        let mut seen = self.seen();
        let now = Instant::now();
        match seen.acquired.get_mut(template) {
            Some((last, mean)) => {
                *mean += WEIGHT * ((now - *last).as_secs_f64() - *mean);
                *last = now;
            }
            None => {
                seen.acquired.insert(template.clone(), (now, 60.0));
            }
        }
    }

    pub(crate) fn acquired_per_second(&self, template: &TemplateRef) -> f64 {
        let seen = self.seen();
        let Some((last, mean)) = seen.acquired.get(template) else { return 0.0 };
        // A pause that is longer than the mean is news, too.
        1.0 / mean.max(last.elapsed().as_secs_f64()).max(0.0001)
    }

    pub(crate) fn made(&self, took: Duration) {
        let took = took.as_secs_f64();
        let mut seen = self.seen();
        let mean = seen.seconds_to_make.get_or_insert(took);
        *mean += WEIGHT * (took - *mean);
    }

    pub(crate) fn seconds_to_make(&self) -> f64 {
        self.seen().seconds_to_make.unwrap_or(0.0)
    }

    pub(crate) fn lease_ended(&self, lived: f64) {
        let mut seen = self.seen();
        let mean = seen.lease_seconds.get_or_insert(lived);
        *mean += WEIGHT * (lived - *mean);
    }

    pub(crate) fn mean_lease_seconds(&self) -> Option<f64> {
        self.seen().lease_seconds
    }
}
