//! One AI coding worker that was given a prompt: what is asked of it, and what becomes of it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskStatus {
    /// Waits for a free worker.
    Pending,
    /// Has its place, and its worker is being started.
    Submitted,
    Running,
    Success,
    Failed,
    Timeout,
    Cancelled,
}

impl TaskStatus {
    pub const ALL: [Self; 7] = [
        Self::Pending,
        Self::Submitted,
        Self::Running,
        Self::Success,
        Self::Failed,
        Self::Timeout,
        Self::Cancelled,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Submitted => "submitted",
            Self::Running => "running",
            Self::Success => "success",
            Self::Failed => "failed",
            Self::Timeout => "timeout",
            Self::Cancelled => "cancelled",
        }
    }

    pub fn has_ended(self) -> bool {
        matches!(self, Self::Success | Self::Failed | Self::Timeout | Self::Cancelled)
    }

    /// Takes one of the places that `max_concurrent_workers` counts.
    pub fn is_active(self) -> bool {
        matches!(self, Self::Submitted | Self::Running)
    }

    /// A status only goes forward, and what has ended stays as it ended.
    pub fn may_become(self, next: Self) -> bool {
        match self {
            Self::Pending => next != Self::Pending && next != Self::Success,
            Self::Submitted => next == Self::Running || next.has_ended(),
            Self::Running => next.has_ended(),
            Self::Success | Self::Failed | Self::Timeout | Self::Cancelled => false,
        }
    }
}

/// Tasks in the order in which they get a worker: whoever has the fewest workers is next, and then whoever came first.
/// `waiting` is in the order of arrival, each with whose it is; `active` counts the workers that each has.
pub fn order<Task, Whose: Ord + Clone>(
    waiting: impl IntoIterator<Item = (Task, Whose)>,
    active: &BTreeMap<Whose, u64>,
) -> Vec<Task> {
    let mut queues: BTreeMap<Whose, VecDeque<(usize, Task)>> = BTreeMap::new();
    for (arrived, (task, whose)) in waiting.into_iter().enumerate() {
        queues.entry(whose).or_default().push_back((arrived, task));
    }
    let first = |queue: &VecDeque<(usize, Task)>| queue.front().map(|(arrived, _)| *arrived);
    let mut next: BTreeSet<(u64, usize, Whose)> = queues
        .iter()
        .filter_map(|(whose, queue)| {
            Some((active.get(whose).copied().unwrap_or(0), first(queue)?, whose.clone()))
        })
        .collect();
    let mut ordered = Vec::new();
    while let Some((workers, _, whose)) = next.pop_first() {
        let Some(queue) = queues.get_mut(&whose) else { continue };
        ordered.extend(queue.pop_front().map(|(_, task)| task));
        if let Some(arrived) = first(queue) {
            next.insert((workers + 1, arrived, whose));
        }
    }
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_has_the_fewest_workers_is_next_and_then_whoever_came_first() {
        let check = |waiting: &str, active: &[(char, u64)], expected: &str| {
            // A letter is whose it is, and the tasks are numbered as they came.
            let arrived =
                waiting.chars().enumerate().map(|(number, whose)| (format!("{whose}{number}"), whose));
            let ordered = order(arrived, &active.iter().copied().collect());
            assert_eq!(ordered.join(" "), expected, "{waiting} {active:?}");
        };
        check("", &[('a', 1)], "");
        check("aaa", &[], "a0 a1 a2");
        check("aaabb", &[], "a0 b3 a1 b4 a2");
        check("aab", &[('a', 1)], "b2 a0 a1");
        check("aabc", &[('a', 1), ('b', 3)], "c3 a0 a1 b2");
        check("ba", &[('z', 5)], "b0 a1");
    }

    #[test]
    fn a_task_that_has_ended_stays_as_it_ended() {
        for ended in TaskStatus::ALL.into_iter().filter(|status| status.has_ended()) {
            assert!(TaskStatus::ALL.into_iter().all(|next| !ended.may_become(next)));
        }
    }

    #[test]
    fn a_task_never_goes_back() {
        for (number, status) in TaskStatus::ALL.into_iter().enumerate() {
            for earlier in &TaskStatus::ALL[..=number.min(3)] {
                assert!(
                    !status.may_become(*earlier) || *earlier == TaskStatus::Success,
                    "{status:?} {earlier:?}"
                );
            }
        }
        assert!(!TaskStatus::Pending.may_become(TaskStatus::Success));
    }
}
