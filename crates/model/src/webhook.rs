//! Telling others what happened: which receivers there may be, and when one that did not take a delivery is tried again.

mod receiver;

use std::time::Duration;

pub use receiver::{Allowed, NotAReceiver, Receiver, Refused};

/// What endpoints can be told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EventType {
    /// A task has ended, in whatever way.
    WorkerCompleted,
}

impl EventType {
    pub const ALL: [Self; 1] = [Self::WorkerCompleted];

    pub fn name(self) -> &'static str {
        match self {
            Self::WorkerCompleted => "worker_completed",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeliveryState {
    /// To be sent, for the first time or again.
    Pending,
    Delivered,
    /// Given up; it stays to be looked at and replayed.
    Dead,
    /// Its endpoint was removed before it was sent.
    Withdrawn,
}

impl DeliveryState {
    pub const ALL: [Self; 4] = [Self::Pending, Self::Delivered, Self::Dead, Self::Withdrawn];

    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Delivered => "delivered",
            Self::Dead => "dead",
            Self::Withdrawn => "withdrawn",
        }
    }
}

/// What came of one attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempted {
    /// The receiver answered, and may have said when it wants to be asked again.
    Answered { status: u16, retry_after: Option<Duration> },
    /// Not reached, not in time, or not to be reached.
    Failed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    Delivered,
    Again {
        after: Duration,
    },
    /// Tried often enough.
    Dead,
    /// The receiver does not want to hear of anything any more.
    Gone,
}

/// How long to wait after each attempt that failed. After the last one there is one more attempt.
pub const PAUSES: [Duration; 7] = [
    Duration::from_secs(5),
    Duration::from_secs(30),
    Duration::from_secs(2 * 60),
    Duration::from_secs(10 * 60),
    Duration::from_secs(30 * 60),
    Duration::from_secs(2 * 3600),
    Duration::from_secs(5 * 3600),
];
/// A receiver cannot put a delivery off for longer.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(24 * 3600);

/// What to do after an attempt. `tries` counts it; `chance` is evenly spread from 0 to 1 and keeps receivers that failed
/// together from being tried again together.
pub fn next(attempted: Attempted, tries: u32, pauses: &[Duration], chance: f64) -> Next {
    let wanted = match attempted {
        Attempted::Answered { status: 200..=299, .. } => return Next::Delivered,
        Attempted::Answered { status: 410, .. } => return Next::Gone,
        Attempted::Answered { retry_after, .. } => retry_after.unwrap_or_default(),
        Attempted::Failed => Duration::ZERO,
    };
    let index = usize::try_from(tries.saturating_sub(1)).unwrap_or(usize::MAX);
    match pauses.get(index) {
        // From four fifths of it to six fifths.
        Some(pause) => {
            let spread = pause.mul_f64(0.8 + 0.4 * chance.clamp(0.0, 1.0));
            Next::Again { after: spread.max(wanted).min(LONGEST_PAUSE) }
        }
        None => Next::Dead,
    }
}

/// Which of those that are due are sent now: one of each tenant in turn, so that no tenant's receivers hold up another's.
/// `due` is in the order of time; `busy` says how many of a tenant are under way.
pub fn fair<Delivery, Tenant: Ord + Clone>(
    due: impl IntoIterator<Item = (Delivery, Tenant)>,
    busy: &std::collections::BTreeMap<Tenant, u64>,
    most: usize,
    most_of_one: u64,
) -> Vec<Delivery> {
    let mut taken = busy.clone();
    let mut waiting: Vec<(u64, usize, Delivery)> = due
        .into_iter()
        .enumerate()
        .map(|(arrived, (delivery, tenant))| {
            let turn = taken.entry(tenant).or_default();
            *turn += 1;
            (*turn, arrived, delivery)
        })
        .filter(|(turn, ..)| *turn <= most_of_one)
        .collect();
    waiting.sort_by_key(|(turn, arrived, _)| (*turn, *arrived));
    waiting.into_iter().take(most).map(|(.., delivery)| delivery).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn answered(status: u16, retry_after: Option<u64>) -> Attempted {
        Attempted::Answered { status, retry_after: retry_after.map(Duration::from_secs) }
    }

    #[test]
    fn only_a_receiver_that_took_it_or_is_gone_is_not_tried_again() {
        let after_first = |attempted| next(attempted, 1, &PAUSES, 0.5);
        for status in [200, 201, 202, 204, 299] {
            assert_eq!(after_first(answered(status, None)), Next::Delivered, "{status}");
        }
        assert_eq!(after_first(answered(410, Some(5))), Next::Gone);
        let again = Next::Again { after: Duration::from_secs(5) };
        for status in [100, 199, 301, 302, 307, 400, 401, 404, 408, 429, 500, 503, 999] {
            assert_eq!(after_first(answered(status, None)), again, "{status}");
        }
        assert_eq!(after_first(Attempted::Failed), again);
    }

    #[test]
    fn pauses_grow_are_spread_and_end() {
        let pause = |tries, chance| match next(Attempted::Failed, tries, &PAUSES, chance) {
            Next::Again { after } => after.as_secs_f64(),
            other => panic!("{other:?} after {tries}"),
        };
        for (index, expected) in PAUSES.iter().enumerate() {
            let tries = u32::try_from(index).unwrap() + 1;
            let expected = expected.as_secs_f64();
            for (chance, part) in [(0.0, 0.8), (0.5, 1.0), (1.0, 1.2), (-3.0, 0.8), (7.0, 1.2)] {
                assert!((pause(tries, chance) - expected * part).abs() < 0.001, "{tries} {chance}");
            }
        }
        assert_eq!(next(Attempted::Failed, 8, &PAUSES, 0.5), Next::Dead);
        assert_eq!(next(answered(500, Some(1)), u32::MAX, &PAUSES, 0.5), Next::Dead);
        assert_eq!(next(Attempted::Failed, 1, &[], 0.5), Next::Dead);
    }

    #[test]
    fn a_receiver_is_asked_when_it_said_within_bounds() {
        let check = |asked, tries, expected| {
            let after = Next::Again { after: Duration::from_secs(expected) };
            assert_eq!(next(answered(503, Some(asked)), tries, &PAUSES, 0.5), after, "{asked} after {tries}");
        };
        check(60, 1, 60);
        check(1, 1, 5);
        check(60, 3, 120);
        check(1_000_000, 1, 24 * 3600);
        check(u64::MAX, 7, 24 * 3600);
    }

    #[test]
    fn no_tenant_holds_up_another() {
        let check = |due: &str, busy: &[(char, u64)], most, expected: &str| {
            let due = due.chars().enumerate().map(|(number, tenant)| (format!("{tenant}{number}"), tenant));
            let chosen = fair(due, &busy.iter().copied().collect::<BTreeMap<_, _>>(), most, 3);
            assert_eq!(chosen.join(" "), expected);
        };
        check("", &[], 9, "");
        check("aaaaab", &[], 9, "a0 b5 a1 a2");
        check("aaaaab", &[], 2, "a0 b5");
        check("aaab", &[('a', 3)], 9, "b3");
        check("aaab", &[('a', 2), ('c', 1)], 9, "b3 a0");
    }
}
