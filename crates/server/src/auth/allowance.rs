//! How many requests somebody may make in a second.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use cubicle_model::{KeyId, Name, UserName};
use tokio::time::{Duration, Instant};

/// Those who are counted at one time; whoever has all of their allowance left need not be.
const MOST_COUNTED: usize = 10_000;

/// Whose requests are counted together.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Spender {
    Key(KeyId),
    /// The subject of tokens, however many of them it has.
    Subject(Name, UserName),
    /// All of those who have said nothing that is known.
    Nobody,
}

#[derive(Debug, Default)]
pub(crate) struct Allowances {
    buckets: Mutex<HashMap<Spender, Bucket>>,
}

/// Requests that may still be made: refilled all the time, up to a second's worth.
#[derive(Debug)]
struct Bucket {
    left: f64,
    at: Instant,
    rate: f64,
}

impl Bucket {
    fn left_at(&self, now: Instant) -> f64 {
        (self.left + (now - self.at).as_secs_f64() * self.rate).min(self.rate)
    }
}

impl Allowances {
    /// Takes one request; says how long to wait where nothing is left.
    pub(crate) fn spend(&self, spender: Spender, per_second: u32) -> Result<(), Duration> {
        let rate = f64::from(per_second.max(1));
        let now = Instant::now();
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= MOST_COUNTED && !buckets.contains_key(&spender) {
            buckets.retain(|_, bucket| bucket.left_at(now) < bucket.rate);
        }
        let bucket = buckets.entry(spender).or_insert(Bucket { left: rate, at: now, rate });
        bucket.rate = rate;
        bucket.left = bucket.left_at(now);
        bucket.at = now;
        if bucket.left < 1.0 {
            return Err(Duration::from_secs_f64((1.0 - bucket.left) / rate));
        }
        bucket.left -= 1.0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u8) -> Spender {
        Spender::Key(KeyId::from_random([number; 16]))
    }

    fn subject(name: &str) -> Spender {
        Spender::Subject("acme".parse().unwrap(), name.parse().unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_or_a_subject_may_make_so_many_requests_and_then_has_to_wait() {
        for (one, another) in [(key(1), key(2)), (subject("ada"), subject("eve")), (subject("ada"), key(1))] {
            let allowances = Allowances::default();
            for _ in 0..5 {
                assert!(allowances.spend(one.clone(), 5).is_ok());
            }
            let wait = allowances.spend(one.clone(), 5).unwrap_err();
            assert!(allowances.spend(another, 5).is_ok(), "another one has its own allowance");
            tokio::time::advance(wait).await;
            assert!(allowances.spend(one.clone(), 5).is_ok());
            assert!(allowances.spend(one, 5).is_err());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_spends_nothing_is_forgotten_and_whoever_does_is_not() {
        let allowances = Allowances::default();
        for number in 0..MOST_COUNTED {
            allowances.spend(subject(&number.to_string()), 1).unwrap();
        }
        tokio::time::advance(Duration::from_secs(2)).await;
        allowances.spend(subject("0"), 1).unwrap();
        allowances.spend(subject("new"), 1).unwrap();
        assert_eq!(allowances.buckets.lock().unwrap().len(), 2);
        assert!(allowances.spend(subject("0"), 1).is_err());
    }
}
