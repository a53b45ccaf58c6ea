//! Which environments have to go.

use std::time::Duration;

use cubicle_model::Timestamp;

use crate::EnvKey;

/// How many environments are kept, for how long, and how large they may be together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    pub most: usize,
    /// Since it was last used.
    pub ttl: Duration,
    pub bytes: u64,
}

impl Default for Budget {
    fn default() -> Self {
        Self { most: 100, ttl: Duration::from_secs(7 * 24 * 3600), bytes: 5 << 30 }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    pub key: EnvKey,
    pub bytes: u64,
    pub last_used: Timestamp,
    pub in_use: bool,
}

/// What has to go, in order: what nobody has used for too long, then the longest unused until the rest fits. What is in use
/// stays, even when that is too much.
pub fn evict(candidates: &[Candidate], budget: &Budget, now: Timestamp) -> Vec<EnvKey> {
    let mut idle: Vec<&Candidate> = candidates.iter().filter(|candidate| !candidate.in_use).collect();
    idle.sort_by(|a, b| (a.last_used, &a.key).cmp(&(b.last_used, &b.key)));
    let mut count = candidates.len();
    let mut bytes = candidates.iter().fold(0_u64, |sum, candidate| sum.saturating_add(candidate.bytes));
    let mut going = Vec::new();
    for candidate in idle {
        let unused = now.duration_since(candidate.last_used);
        let expired = Duration::try_from(unused).is_ok_and(|unused| unused > budget.ttl);
        if !expired && count <= budget.most && bytes <= budget.bytes {
            break;
        }
        going.push(candidate.key.clone());
        count -= 1;
        bytes = bytes.saturating_sub(candidate.bytes);
    }
    going
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn candidate(number: u8, bytes: u64, last_used: i64, in_use: bool) -> Candidate {
        Candidate { key: EnvKey::of(&[number]), bytes, last_used: at(last_used), in_use }
    }

    #[test]
    fn the_longest_unused_goes_first() {
        let all = [candidate(1, 10, 30, false), candidate(2, 10, 10, false), candidate(3, 10, 20, false)];
        let budget = Budget { most: 2, ttl: Duration::from_secs(1000), bytes: 100 };
        assert_eq!(evict(&all, &budget, at(40)), [EnvKey::of(&[2])]);
        let budget = Budget { most: 10, bytes: 15, ..budget };
        assert_eq!(evict(&all, &budget, at(40)), [EnvKey::of(&[2]), EnvKey::of(&[3])]);
    }

    #[test]
    fn what_is_in_use_stays_although_it_is_old_and_too_large() {
        let all = [candidate(1, 1000, 0, true), candidate(2, 1, 90, false)];
        let budget = Budget { most: 1, ttl: Duration::from_secs(10), bytes: 10 };
        assert_eq!(evict(&all, &budget, at(100)), [EnvKey::of(&[2])]);
    }

    #[test]
    fn what_was_not_used_for_too_long_goes_although_there_is_room() {
        let all = [candidate(1, 1, 0, false), candidate(2, 1, 95, false)];
        let budget = Budget { most: 10, ttl: Duration::from_secs(10), bytes: 100 };
        assert_eq!(evict(&all, &budget, at(100)), [EnvKey::of(&[1])]);
        // A clock that went back makes nothing old.
        assert_eq!(evict(&all, &budget, at(-100)), []);
    }

    proptest! {
        #[test]
        fn only_what_must_go_goes_and_never_what_is_in_use(
            shapes in prop::collection::vec((0_u64..100, 0_i64..100, any::<bool>()), 0..30),
            most in 0_usize..20,
            bytes in 0_u64..1000,
            ttl in 0_u64..120,
        ) {
            let all: Vec<Candidate> = shapes.iter().enumerate()
                .map(|(n, (bytes, used, in_use))| candidate(u8::try_from(n).unwrap(), *bytes, *used, *in_use))
                .collect();
            let budget = Budget { most, ttl: Duration::from_secs(ttl), bytes };
            let now = at(100);
            let going = evict(&all, &budget, now);
            let stays: Vec<&Candidate> = all.iter().filter(|c| !going.contains(&c.key)).collect();
            let is_old = |c: &Candidate| 100 - c.last_used.as_second() > i64::try_from(ttl).unwrap();
            let fits = |kept: &[&Candidate]| kept.len() <= most && kept.iter().map(|c| c.bytes).sum::<u64>() <= bytes;
            prop_assert!(all.iter().filter(|c| c.in_use).all(|c| !going.contains(&c.key)));
            prop_assert!(stays.iter().all(|c| c.in_use || !is_old(c)));
            prop_assert!(fits(&stays) || stays.iter().all(|c| c.in_use));
            // The last one to go had to: it was old, or without it the rest did not fit.
            if let Some(last) = going.last() {
                let last = all.iter().find(|c| c.key == *last).unwrap();
                let mut with = stays.clone();
                with.push(last);
                prop_assert!(is_old(last) || !fits(&with));
                prop_assert!(stays.iter().all(|c| c.in_use || c.last_used >= last.last_used));
            }
        }
    }
}
