//! One AI coding worker that was given a prompt: what is asked of it, and what becomes of it.

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

#[cfg(test)]
mod tests {
    use super::*;

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
