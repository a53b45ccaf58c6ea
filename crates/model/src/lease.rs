//! The exclusive right to one sandbox, with a time to live that heartbeats renew.

use serde::{Deserialize, Serialize};

use crate::egress::LeaseEgress;
use crate::{LeaseId, Name, NodeId, SandboxId, TemplateRef, Timestamp, Usage, UserName};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum LeaseStatus {
    /// Waits for room; it has no sandbox yet.
    Queued,
    Active,
    /// Its time was over, or its sandbox ended.
    Expired,
    /// Given back.
    Released,
}

impl LeaseStatus {
    pub const ALL: [Self; 4] = [Self::Queued, Self::Active, Self::Expired, Self::Released];

    pub fn name(self) -> &'static str {
        match self {
            Self::Queued => "QUEUED",
            Self::Active => "ACTIVE",
            Self::Expired => "EXPIRED",
            Self::Released => "RELEASED",
        }
    }

    pub fn has_ended(self) -> bool {
        matches!(self, Self::Expired | Self::Released)
    }
}

/// Why a lease ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaseEnd {
    /// Its owner gave it back.
    Released,
    /// No heartbeat came in time.
    TimeToLive,
    /// Its sandbox ended: a crash, its deadline, or out of memory.
    SandboxEnded,
    /// Its sandbox could not be made.
    CouldNotBeMade,
    /// An administrator ended it.
    Revoked,
}

impl LeaseEnd {
    pub const ALL: [Self; 5] =
        [Self::Released, Self::TimeToLive, Self::SandboxEnded, Self::CouldNotBeMade, Self::Revoked];

    pub fn name(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::TimeToLive => "time_to_live",
            Self::SandboxEnded => "sandbox_ended",
            Self::CouldNotBeMade => "could_not_be_made",
            Self::Revoked => "revoked",
        }
    }

    pub fn status(self) -> LeaseStatus {
        match self {
            Self::Released | Self::Revoked => LeaseStatus::Released,
            Self::TimeToLive | Self::SandboxEnded | Self::CouldNotBeMade => LeaseStatus::Expired,
        }
    }
}

/// How a lease came to its sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Admission {
    /// A ready sandbox of the pool.
    Warm,
    /// A sandbox made for it.
    Cold,
    /// It had to wait for room.
    Queued,
}

impl Admission {
    pub const ALL: [Self; 3] = [Self::Warm, Self::Cold, Self::Queued];

    pub fn name(self) -> &'static str {
        match self {
            Self::Warm => "warm",
            Self::Cold => "cold",
            Self::Queued => "queued",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    pub id: LeaseId,
    pub tenant: Name,
    pub user: UserName,
    /// With `request` and the user, what makes a repeated acquire the same one.
    pub workflow: String,
    pub request: String,
    pub template: TemplateRef,
    pub sandbox: Option<SandboxId>,
    pub node: NodeId,
    pub status: LeaseStatus,
    pub admission: Admission,
    pub ttl_seconds: u32,
    /// How often its owner means to send heartbeats.
    pub heartbeat_seconds: Option<u32>,
    pub created_at: Timestamp,
    pub expires_at: Timestamp,
    pub ended_at: Option<Timestamp>,
    pub ended_because: Option<LeaseEnd>,
    /// What it counts for in its tenant's quota.
    pub counts: Usage,
    /// Made for one exec and released with it.
    pub one_shot: bool,
    pub egress: LeaseEgress,
    /// Grows with every change.
    pub version: i64,
}

/// Why a heartbeat was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotRenewed {
    #[error("the lease has ended ({})", .0.name())]
    Ended(LeaseStatus),
    #[error("the lease's time is over")]
    TooLate,
}

impl Lease {
    /// What a heartbeat makes of it. A lease whose time is over is not brought back, whether or not somebody has
    /// noticed.
    pub fn renewed(&self, now: Timestamp) -> Result<Self, NotRenewed> {
        if self.status.has_ended() {
            return Err(NotRenewed::Ended(self.status));
        }
        if now >= self.expires_at {
            return Err(NotRenewed::TooLate);
        }
        // A clock that was set back must not shorten what was promised.
        let expires_at = until(now, self.ttl_seconds).max(self.expires_at);
        Ok(Self { expires_at, version: self.version + 1, ..self.clone() })
    }

    /// What its end makes of it; none where it has ended before.
    pub fn ended(&self, because: LeaseEnd, now: Timestamp) -> Option<Self> {
        (!self.status.has_ended()).then(|| Self {
            status: because.status(),
            ended_at: Some(now),
            ended_because: Some(because),
            version: self.version + 1,
            ..self.clone()
        })
    }

    pub fn is_over(&self, now: Timestamp) -> bool {
        !self.status.has_ended() && now >= self.expires_at
    }
}

/// The end of a time to live.
pub fn until(now: Timestamp, ttl_seconds: u32) -> Timestamp {
    now.saturating_add(jiff::SignedDuration::from_secs(ttl_seconds.into())).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn lease(ttl_seconds: u32) -> Lease {
        Lease {
            id: LeaseId::from_random([1; 16]),
            tenant: "acme".parse().unwrap(),
            user: "ada".parse().unwrap(),
            workflow: "w".into(),
            request: "r".into(),
            template: "default".parse().unwrap(),
            sandbox: None,
            node: NodeId::from_random([2; 16]),
            status: LeaseStatus::Active,
            admission: Admission::Warm,
            ttl_seconds,
            heartbeat_seconds: None,
            created_at: at(0),
            expires_at: until(at(0), ttl_seconds),
            ended_at: None,
            ended_because: None,
            counts: Usage::default(),
            one_shot: false,
            egress: LeaseEgress::default(),
            version: 1,
        }
    }

    #[test]
    fn a_heartbeat_in_time_renews_and_a_late_one_does_not_revive() {
        let lease = lease(10);
        assert_eq!(lease.renewed(at(9)).unwrap().expires_at, at(19));
        assert_eq!(lease.renewed(at(10)), Err(NotRenewed::TooLate));
    }

    #[test]
    fn a_clock_that_jumps_back_does_not_shorten_a_lease() {
        let renewed = lease(10).renewed(at(-3600)).unwrap();
        assert_eq!(renewed.expires_at, at(10));
    }

    #[test]
    fn an_end_happens_once() {
        let released = lease(10).ended(LeaseEnd::Released, at(3)).unwrap();
        assert_eq!(released.status, LeaseStatus::Released);
        assert_eq!(released.ended(LeaseEnd::TimeToLive, at(20)), None);
        assert_eq!(released.renewed(at(4)), Err(NotRenewed::Ended(LeaseStatus::Released)));
    }

    proptest! {
        /// A lease against the simplest model: a deadline, and whether it was ended.
        #[test]
        fn a_lease_behaves_as_a_deadline_that_can_be_moved_until_it_has_passed(
            steps in prop::collection::vec((0..40i64, prop::bool::weighted(0.1)), 1..60)
        ) {
            let mut lease = lease(30);
            let (mut now, mut deadline, mut ended) = (0, 30, false);
            for (wait, end) in steps {
                now += wait;
                if end {
                    let outcome = lease.ended(LeaseEnd::Released, at(now));
                    prop_assert_eq!(outcome.is_some(), !ended);
                    ended = true;
                    lease = outcome.unwrap_or(lease);
                } else {
                    let outcome = lease.renewed(at(now));
                    let in_time = !ended && now < deadline;
                    prop_assert_eq!(outcome.is_ok(), in_time);
                    if in_time {
                        deadline = now + 30;
                    }
                    lease = outcome.unwrap_or(lease);
                }
                prop_assert_eq!(lease.is_over(at(now)), !ended && now >= deadline);
                prop_assert_eq!(lease.status.has_ended(), ended);
            }
        }
    }
}
