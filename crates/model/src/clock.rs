//! A clock for everything that lasts: it never jumps.
//!
//! The clock of a host may be set at any moment, by an hour or by years. What was promised for a minute must then still
//! last a minute, so the time of a server goes on with the time since the host started, and comes back to the host's
//! clock slowly.

use std::time::Duration;

use jiff::SignedDuration;

use crate::Timestamp;

/// What the clocks of a host say at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// What the host takes for the time. It may be set.
    pub wall: Timestamp,
    /// Since the host started, also while it was suspended. It cannot be set.
    pub uptime: Duration,
}

/// A moment as both say it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SteadyClock {
    pub uptime: Duration,
    pub time: Timestamp,
}

/// One part in so many is gained or lost, until it agrees with the host's clock again: an hour in four days.
const SLOWNESS: i128 = 100;
/// A larger difference is no jump but a clock that was never right, as that of a host without a battery.
const NEVER_RIGHT: SignedDuration = SignedDuration::from_hours(24);

impl SteadyClock {
    pub fn new(seen: Reading) -> Self {
        Self { uptime: seen.uptime, time: seen.wall }
    }

    /// The time now. It never goes back, and it is at most a hundredth faster or slower than the time that passes.
    pub fn advance(&mut self, seen: Reading) -> Timestamp {
        // Whoever reads at the same moment may come in the other order.
        let passed = as_signed(seen.uptime.saturating_sub(self.uptime));
        let undisturbed = self.time.saturating_add(passed).unwrap_or(Timestamp::MAX);
        let wrong_by = seen.wall.duration_since(undisturbed);
        self.time = if wrong_by.abs() > NEVER_RIGHT {
            seen.wall
        } else {
            let most = passed.as_nanos() / SLOWNESS;
            let correction = SignedDuration::from_nanos_i128(wrong_by.as_nanos().clamp(-most, most));
            undisturbed.saturating_add(correction).unwrap_or(Timestamp::MAX)
        };
        self.uptime = self.uptime.max(seen.uptime);
        self.time
    }

    /// Whether another one that goes on undisturbed says the same, to the second.
    pub fn agrees_with(&self, other: &Self) -> bool {
        self.offset().saturating_sub(other.offset()).abs() <= SignedDuration::from_secs(1)
    }

    /// By how much the time differs from the time since the host started. It changes only after a jump.
    fn offset(&self) -> SignedDuration {
        self.time.duration_since(Timestamp::UNIX_EPOCH).saturating_sub(as_signed(self.uptime))
    }
}

fn as_signed(duration: Duration) -> SignedDuration {
    SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(second: i64, uptime: u64) -> Reading {
        Reading { wall: Timestamp::from_second(second).unwrap(), uptime: Duration::from_secs(uptime) }
    }

    #[test]
    fn it_agrees_with_a_clock_that_nobody_sets() {
        let mut clock = SteadyClock::new(at(1_000_000, 50));
        for passed in [1, 7, 100, 1_000_000] {
            assert_eq!(
                clock.advance(at(1_000_000 + passed, 50 + passed as u64)).as_second(),
                1_000_000 + passed
            );
        }
    }

    #[test]
    fn a_jump_is_made_good_slowly() {
        for jump in [3600, -3600] {
            let mut clock = SteadyClock::new(at(1_000_000, 0));
            let after = clock.advance(at(1_000_000 + jump, 0));
            assert_eq!(after.as_second(), 1_000_000, "nothing happens at once");
            let later = clock.advance(at(1_000_600 + jump, 600)).as_second();
            assert_eq!(later, 1_000_600 + jump.signum() * 6, "ten minutes later");
            let undisturbed = SteadyClock::new(at(1_000_000, 0));
            assert!(
                !clock.agrees_with(&undisturbed)
                    && SteadyClock::new(at(1_000_600, 600)).agrees_with(&undisturbed)
            );
            let much_later = clock.advance(at(1_400_000 + jump, 400_000)).as_second();
            assert_eq!(much_later, 1_400_000 + jump, "five days later");
        }
    }

    #[test]
    fn a_clock_that_was_never_right_is_set() {
        let mut clock = SteadyClock::new(at(0, 5));
        assert_eq!(clock.advance(at(1_800_000_000, 6)).as_second(), 1_800_000_000);
    }

    #[test]
    fn readings_that_come_in_the_other_order_do_no_harm() {
        let mut clock = SteadyClock::new(at(1_000_000, 0));
        let later = clock.advance(at(1_000_010, 10));
        assert_eq!(clock.advance(at(1_000_009, 9)), later);
        assert_eq!(clock.advance(at(1_000_020, 20)).as_second(), 1_000_020);
    }

    proptest! {
        /// Whatever the host's clock is set to, within a day.
        #[test]
        fn it_never_goes_back_and_what_is_to_last_lasts(
            steps in prop::collection::vec((0..100_000u64, -40_000..40_000i64), 1..50)
        ) {
            let mut clock = SteadyClock::new(at(1_000_000_000, 0));
            let (mut before, mut uptime) = (clock.time, 0);
            for (passed, set_to) in steps {
                uptime += passed;
                let now = clock.advance(at(1_000_000_000 + uptime as i64 + set_to, uptime));
                let measured = now.duration_since(before).as_secs_f64();
                let difference = (measured - passed as f64).abs();
                prop_assert!(measured >= 0.0 && difference <= passed as f64 / 100.0 + 1e-6, "{passed}: {measured}");
                before = now;
            }
        }
    }
}
