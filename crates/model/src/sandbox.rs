//! A sandbox as the store knows it, and the next step from what is to what should be.

use serde::{Deserialize, Serialize};

use crate::{Isolation, LeaseId, Name, NodeId, SandboxId, TemplateRef, Timestamp, UserName};

/// What should be. `running` is `leased` with an exec in it and is not stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SandboxState {
    /// Is to be made.
    Creating,
    /// Ready in the pool.
    Idle,
    /// Somebody's.
    Leased,
    /// Is to be destroyed.
    Teardown,
    /// Nothing is left of it but its record and its journal.
    Gone,
}

impl SandboxState {
    pub const ALL: [Self; 5] = [Self::Creating, Self::Idle, Self::Leased, Self::Teardown, Self::Gone];

    pub fn name(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Idle => "idle",
            Self::Leased => "leased",
            Self::Teardown => "teardown",
            Self::Gone => "gone",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sandbox {
    pub id: SandboxId,
    pub node: NodeId,
    pub template: TemplateRef,
    pub template_version: i64,
    pub isolation: Isolation,
    pub state: SandboxState,
    /// Whose it is, or was; of a kept sandbox in the pool, whom it waits for.
    pub tenant: Option<Name>,
    pub user: Option<UserName>,
    pub lease: Option<LeaseId>,
    pub created_at: Timestamp,
    pub ready_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
    pub ended_because: Option<String>,
    /// Grows with every change of its state, so that whoever acts on an older one is refused.
    pub generation: i64,
}

/// What a backend says of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    Absent,
    Ready,
    /// It ended by itself; its journal is still there.
    Ended,
}

/// What was tried before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Attempts {
    pub failures: u32,
    pub last: Option<Timestamp>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// As it should be.
    Nothing,
    /// Ask the backend to make it.
    Make,
    /// It is there: it becomes idle, or its lease's.
    Welcome,
    /// It ended without being asked to, or cannot be made: its lease ends and it is torn down.
    GiveUp,
    /// Keep its journal, then destroy it.
    Destroy,
    /// Nothing is left of it.
    Forget,
    /// Nobody knows it.
    DestroyOrphan,
    /// Not before this moment.
    Wait(Timestamp),
}

/// After so many failures a sandbox is given up.
pub const MOST_FAILURES: u32 = 5;
const FIRST_PAUSE_MS: i64 = 50;

/// The next step for one sandbox. `want` is absent where the store does not know it.
pub fn next(want: Option<SandboxState>, seen: Presence, tried: Attempts, now: Timestamp) -> Step {
    use Presence::{Absent, Ended, Ready};
    use SandboxState::{Creating, Gone, Idle, Leased, Teardown};
    let step = match (want, seen) {
        (None | Some(Gone), Absent) => return Step::Nothing,
        (None | Some(Gone), Ready | Ended) => Step::DestroyOrphan,
        (Some(Creating), Absent) if tried.failures >= MOST_FAILURES => return Step::GiveUp,
        (Some(Creating), Absent) => Step::Make,
        (Some(Creating), Ready) => return Step::Welcome,
        (Some(Creating), Ended) => return Step::GiveUp,
        (Some(Idle | Leased), Ready) => return Step::Nothing,
        (Some(Idle | Leased), Absent | Ended) => return Step::GiveUp,
        (Some(Teardown), Ready | Ended) => Step::Destroy,
        (Some(Teardown), Absent) => return Step::Forget,
    };
    match not_before(tried) {
        Some(moment) if now < moment => Step::Wait(moment),
        _ => step,
    }
}

/// Twice as long after each failure, up to half a minute.
fn not_before(tried: Attempts) -> Option<Timestamp> {
    let doublings = tried.failures.checked_sub(1)?.min(10);
    let pause = (FIRST_PAUSE_MS << doublings).min(30_000);
    Some(tried.last?.saturating_add(jiff::SignedDuration::from_millis(pause)).unwrap_or(Timestamp::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millisecond(ms).unwrap()
    }

    #[test]
    fn every_situation_has_its_step() {
        use Presence::*;
        use SandboxState::*;
        let table = [
            (None, Absent, Step::Nothing),
            (None, Ready, Step::DestroyOrphan),
            (None, Ended, Step::DestroyOrphan),
            (Some(Creating), Absent, Step::Make),
            (Some(Creating), Ready, Step::Welcome),
            (Some(Creating), Ended, Step::GiveUp),
            (Some(Idle), Absent, Step::GiveUp),
            (Some(Idle), Ready, Step::Nothing),
            (Some(Idle), Ended, Step::GiveUp),
            (Some(Leased), Absent, Step::GiveUp),
            (Some(Leased), Ready, Step::Nothing),
            (Some(Leased), Ended, Step::GiveUp),
            (Some(Teardown), Absent, Step::Forget),
            (Some(Teardown), Ready, Step::Destroy),
            (Some(Teardown), Ended, Step::Destroy),
            (Some(Gone), Absent, Step::Nothing),
            (Some(Gone), Ready, Step::DestroyOrphan),
            (Some(Gone), Ended, Step::DestroyOrphan),
        ];
        for (want, seen, expected) in table {
            assert_eq!(next(want, seen, Attempts::default(), at(0)), expected, "{want:?} {seen:?}");
        }
        assert_eq!(table.len(), (SandboxState::ALL.len() + 1) * 3);
    }

    #[test]
    fn a_failed_step_waits_longer_each_time_and_creation_is_given_up() {
        let tried = |failures| Attempts { failures, last: Some(at(1000)) };
        let make =
            |failures, now| next(Some(SandboxState::Creating), Presence::Absent, tried(failures), at(now));
        assert_eq!(make(1, 1000), Step::Wait(at(1050)));
        assert_eq!(make(1, 1050), Step::Make);
        assert_eq!(make(3, 1100), Step::Wait(at(1200)));
        assert_eq!(make(MOST_FAILURES, 1000), Step::GiveUp);
        // What exists on the host is never given up.
        let destroy = |now| next(Some(SandboxState::Teardown), Presence::Ready, tried(100), at(now));
        assert_eq!(destroy(1000), Step::Wait(at(31_000)));
        assert_eq!(destroy(31_000), Step::Destroy);
    }
}
