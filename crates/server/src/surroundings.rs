//! Time, randomness, the environment and the end of the world, as the outermost layer gives them.

use std::fmt;
use std::sync::Arc;

use cubicle_model::Timestamp;
use cubicle_store::Random;

/// The value of a variable, where it is set.
pub type Variables = Arc<dyn Fn(&str) -> Option<Vec<u8>> + Send + Sync>;

#[derive(Clone)]
pub struct Surroundings {
    /// Decides how long things last. It never jumps, see `cubicle_model::clock`.
    pub clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    /// What the host takes for the time now, for dates that somebody else named.
    pub wall_clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    pub random: Random,
    /// A variable that the server was started with.
    pub variable: Variables,
    /// Called at every step between two facts, where a test can end the process.
    pub at_step: Arc<dyn Fn(&'static str) + Send + Sync>,
}

impl Surroundings {
    /// To the millisecond, as everything is stored.
    pub(crate) fn now(&self) -> Timestamp {
        let now = (self.clock)();
        Timestamp::from_millisecond(now.as_millisecond()).unwrap_or(now)
    }

    pub(crate) fn bits<const N: usize>(&self) -> [u8; N] {
        let mut bits = [0; N];
        (self.random)(&mut bits);
        bits
    }
}

impl fmt::Debug for Surroundings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Surroundings")
    }
}
