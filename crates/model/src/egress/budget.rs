//! How much a sandbox may use of what it may reach.

use std::fmt;
use std::time::Duration;

/// Limits of one sandbox; `None` is no limit beside the gateway's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Budget {
    /// Open at the same time.
    pub connections: Option<u64>,
    /// Requests and tunnels that begin in one second, on average.
    pub requests_per_second: Option<u64>,
    /// From the sandbox to the outside, in all.
    pub bytes_sent: Option<u64>,
    pub bytes_received: Option<u64>,
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(connections) = self.connections {
            writeln!(f, "limit connections {connections}")?;
        }
        if let Some(rate) = self.requests_per_second {
            writeln!(f, "limit requests {rate}/s")?;
        }
        for (what, bytes) in [("sent", self.bytes_sent), ("received", self.bytes_received)] {
            if let Some(bytes) = bytes {
                writeln!(f, "limit {what} {}", size(bytes))?;
            }
        }
        Ok(())
    }
}

/// A size in the largest unit that divides it.
fn size(bytes: u64) -> String {
    let units = [(1 << 40, "T"), (1 << 30, "G"), (1 << 20, "M"), (1 << 10, "k")];
    match units.into_iter().find(|(unit, _)| bytes >= *unit && bytes.is_multiple_of(*unit)) {
        Some((unit, letter)) => format!("{}{letter}", bytes / unit),
        None => bytes.to_string(),
    }
}

/// Tokens that come at a steady rate, of which at most one second's worth is saved up.
#[derive(Debug, Clone)]
pub struct Bucket {
    per_second: u64,
    /// In billionths of a token, so that slow rates lose nothing to rounding.
    nanotokens: u128,
    filled: Duration,
}

const ONE: u128 = 1_000_000_000;

impl Bucket {
    /// A full bucket. Moments are counted from any fixed one.
    pub fn new(per_second: u64, now: Duration) -> Self {
        Self { per_second, nanotokens: u128::from(per_second) * ONE, filled: now }
    }

    /// Takes a token; when there is none, says after how long there will be one.
    pub fn take(&mut self, now: Duration) -> Result<(), Duration> {
        let passed = now.saturating_sub(self.filled).as_nanos();
        self.filled = self.filled.max(now);
        let full = u128::from(self.per_second) * ONE;
        self.nanotokens = full.min(self.nanotokens + passed.saturating_mul(u128::from(self.per_second)));
        if let Some(rest) = self.nanotokens.checked_sub(ONE) {
            self.nanotokens = rest;
            return Ok(());
        }
        let missing = ONE - self.nanotokens;
        let wait =
            missing.checked_div(u128::from(self.per_second)).and_then(|nanos| u64::try_from(nanos + 1).ok());
        Err(wait.map_or(Duration::MAX, Duration::from_nanos))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_gives_its_rate_and_saves_one_second() {
        let at = Duration::from_millis;
        let mut bucket = Bucket::new(10, at(0));
        assert_eq!((0..20).filter(|_| bucket.take(at(0)).is_ok()).count(), 10);
        assert_eq!(bucket.take(at(0)), Err(Duration::from_nanos(100_000_001)));
        assert!(bucket.take(at(101)).is_ok());
        assert!(bucket.take(at(150)).is_err());
        // An hour of silence saves no more than a second's worth.
        assert_eq!((0..20).filter(|_| bucket.take(at(3_600_000)).is_ok()).count(), 10);
        // A clock that goes back gives nothing.
        assert!(bucket.take(at(0)).is_err());
    }

    #[test]
    fn a_rate_of_nothing_gives_nothing() {
        assert_eq!(Bucket::new(0, Duration::ZERO).take(Duration::from_secs(9)), Err(Duration::MAX));
    }

    #[test]
    fn sizes_are_written_in_units_that_divide_them() {
        for (bytes, text) in [(0, "0"), (1023, "1023"), (1024, "1k"), (1 << 30, "1G"), (3 << 20, "3M")] {
            assert_eq!(size(bytes), text);
        }
    }
}
