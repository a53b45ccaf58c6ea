//! Who gets a sandbox now, who waits, and who is told to come back.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use crate::tenant::Exceeded;
use crate::{LeaseId, Name, Quota, Timestamp, Usage};

/// Everything that decides about one acquire, read in the same transaction that carries out the verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Situation {
    /// Ready sandboxes of its template that it may have.
    pub idle: u64,
    /// How many more sandboxes fit on this node.
    pub room: u64,
    /// Ready sandboxes of other templates beyond what their pools must keep.
    pub spare: u64,
    /// Leases that wait on this node.
    pub waiting: u64,
    pub longest_queue: u64,
    /// Whether it is content to wait.
    pub may_wait: bool,
    pub quota: Quota,
    pub used: Usage,
    pub asked: Usage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Takes a ready sandbox.
    Warm,
    /// Gets a new one; `in_place_of_spare` gives up a ready one of another template for it.
    Cold {
        in_place_of_spare: bool,
    },
    /// Waits as number so many, counted from 1.
    Wait {
        position: u64,
    },
    /// No room now.
    Full,
    OverQuota(Exceeded),
}

pub fn admit(situation: &Situation) -> Verdict {
    if let Err(exceeded) = situation.quota.allows(&situation.used, &situation.asked) {
        return Verdict::OverQuota(exceeded);
    }
    // Nobody overtakes those who wait for room; a ready sandbox of another template does not help them.
    if situation.idle > 0 {
        return Verdict::Warm;
    }
    if situation.waiting == 0 {
        if situation.room > 0 {
            return Verdict::Cold { in_place_of_spare: false };
        }
        if situation.spare > 0 {
            return Verdict::Cold { in_place_of_spare: true };
        }
    }
    if situation.may_wait && situation.waiting < situation.longest_queue {
        return Verdict::Wait { position: situation.waiting + 1 };
    }
    Verdict::Full
}

/// A lease in the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    pub lease: LeaseId,
    pub tenant: Name,
    pub since: Timestamp,
}

/// A tenant's part in what is scarce.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    pub active: u64,
    pub weight: u32,
}

/// The queue in the order in which it will be served: always the tenant that has least for its weight, and within a
/// tenant whoever came first.
pub fn order(waiting: &[Waiting], shares: &BTreeMap<Name, Share>) -> Vec<LeaseId> {
    let mut lines: BTreeMap<&Name, Vec<&Waiting>> = BTreeMap::new();
    for one in waiting {
        lines.entry(&one.tenant).or_default().push(one);
    }
    for line in lines.values_mut() {
        // The longest waiting last, where it can be popped.
        line.sort_by_key(|one| std::cmp::Reverse((one.since, one.lease)));
    }
    let mut active: BTreeMap<&Name, Share> = lines
        .keys()
        .map(|tenant| (*tenant, shares.get(*tenant).copied().unwrap_or(Share { active: 0, weight: 1 })))
        .collect();
    let mut order = Vec::with_capacity(waiting.len());
    while let Some(tenant) = lines
        .iter()
        .filter(|(_, line)| !line.is_empty())
        .min_by(|(a, a_line), (b, b_line)| {
            let since = |line: &[&Waiting]| line.last().map(|one| (one.since, one.lease));
            compare(active[*a], active[*b]).then_with(|| since(a_line).cmp(&since(b_line)))
        })
        .map(|(tenant, _)| *tenant)
    {
        let next = lines.get_mut(tenant).and_then(Vec::pop).expect("the line is not empty");
        order.push(next.lease);
        active.get_mut(tenant).expect("every line has a share").active += 1;
    }
    order
}

/// By what each would have for its weight with one more.
fn compare(a: Share, b: Share) -> Ordering {
    let weigh = |share: Share, by: Share| u128::from(share.active + 1) * u128::from(by.weight.max(1));
    weigh(a, b).cmp(&weigh(b, a))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_situation_has_its_verdict() {
        let some = Situation { longest_queue: 2, ..Situation::default() };
        let one = Usage { leases: 1, ..Usage::default() };
        let none_left = Quota { leases: Some(0), ..Quota::default() };
        let table = [
            (Situation { idle: 1, ..some }, Verdict::Warm),
            (Situation { idle: 1, waiting: 1, ..some }, Verdict::Warm),
            (Situation { room: 1, ..some }, Verdict::Cold { in_place_of_spare: false }),
            (Situation { spare: 1, ..some }, Verdict::Cold { in_place_of_spare: true }),
            (Situation { ..some }, Verdict::Full),
            (Situation { may_wait: true, ..some }, Verdict::Wait { position: 1 }),
            (Situation { room: 1, waiting: 1, may_wait: true, ..some }, Verdict::Wait { position: 2 }),
            (Situation { room: 1, waiting: 1, ..some }, Verdict::Full),
            (Situation { waiting: 2, may_wait: true, ..some }, Verdict::Full),
            (
                Situation { idle: 1, quota: none_left, asked: one, ..some },
                Verdict::OverQuota(Exceeded { what: "leases", limit: 0, used: 0, asked: 1 }),
            ),
        ];
        for (situation, expected) in table {
            assert_eq!(admit(&situation), expected, "{situation:?}");
        }
    }

    fn waiting(tenant: &str, number: u8) -> Waiting {
        Waiting {
            lease: LeaseId::from_random([number; 16]),
            tenant: tenant.parse().unwrap(),
            since: Timestamp::from_second(number.into()).unwrap(),
        }
    }

    fn served(queue: &[Waiting], shares: &[(&str, u64, u32)]) -> String {
        let shares = shares
            .iter()
            .map(|(name, active, weight)| (name.parse().unwrap(), Share { active: *active, weight: *weight }))
            .collect();
        let tenant = |id: &LeaseId| queue.iter().find(|one| one.lease == *id).unwrap().tenant.to_string();
        order(queue, &shares).iter().map(tenant).collect()
    }

    #[test]
    fn a_tenant_with_a_long_queue_does_not_starve_another() {
        let mut queue: Vec<_> = (1..=6).map(|number| waiting("a", number)).collect();
        queue.push(waiting("b", 7));
        assert_eq!(served(&queue, &[]), "abaaaaa");
        assert_eq!(served(&queue, &[("a", 4, 1)]), "baaaaaa");
    }

    #[test]
    fn weight_counts() {
        let queue: Vec<_> =
            (1..=4).map(|n| waiting("a", n)).chain((5..=8).map(|n| waiting("b", n))).collect();
        assert_eq!(served(&queue, &[("a", 0, 1), ("b", 0, 3)]), "bbabbaaa");
    }

    #[test]
    fn within_a_tenant_the_first_is_first() {
        let queue = [waiting("a", 3), waiting("a", 1), waiting("a", 2)];
        let order = order(&queue, &BTreeMap::new());
        assert_eq!(order, [queue[1].lease, queue[2].lease, queue[0].lease]);
    }
}
