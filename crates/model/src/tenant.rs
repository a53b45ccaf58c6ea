//! Those who share a deployment and must not notice each other.

use serde::{Deserialize, Serialize};

use crate::{Name, Timestamp};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tenant {
    pub name: Name,
    pub quota: Quota,
    /// Shares of what is scarce: a tenant of weight 2 gets two sandboxes where one of weight 1 gets one.
    pub weight: u32,
    pub created_at: Timestamp,
    /// Grows with every change.
    pub version: i64,
}

/// What a tenant may have at one time; absent means as much as there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Quota {
    pub leases: Option<u64>,
    /// Thousandths of a core, of all leases together.
    pub millicpus: Option<u64>,
    /// Bytes, of all leases together.
    pub memory: Option<u64>,
    pub execs: Option<u64>,
}

/// What a tenant has now, or what one more lease would add.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    pub leases: u64,
    pub millicpus: u64,
    pub memory: u64,
    pub execs: u64,
}

/// A quota that would be exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exceeded {
    pub what: &'static str,
    pub limit: u64,
    pub used: u64,
    pub asked: u64,
}

impl Quota {
    pub fn allows(&self, used: &Usage, more: &Usage) -> Result<(), Exceeded> {
        let all = [
            ("leases", self.leases, used.leases, more.leases),
            ("CPU (thousandths of a core)", self.millicpus, used.millicpus, more.millicpus),
            ("memory (bytes)", self.memory, used.memory, more.memory),
            ("running execs", self.execs, used.execs, more.execs),
        ];
        for (what, limit, used, asked) in all {
            let Some(limit) = limit else { continue };
            if asked > 0 && used.saturating_add(asked) > limit {
                return Err(Exceeded { what, limit, used, asked });
            }
        }
        Ok(())
    }
}

impl Exceeded {
    /// Whether it would be exceeded even by a tenant that has nothing.
    pub fn for_ever(&self) -> bool {
        self.asked > self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_is_reached_but_not_exceeded() {
        let quota = Quota { leases: Some(2), memory: Some(100), ..Quota::default() };
        let one = Usage { leases: 1, memory: 40, ..Usage::default() };
        assert!(quota.allows(&one, &one).is_ok());
        let two = Usage { leases: 2, memory: 80, ..Usage::default() };
        assert_eq!(quota.allows(&two, &one).unwrap_err().what, "leases");
        let big = Usage { leases: 1, memory: 101, ..Usage::default() };
        let exceeded = quota.allows(&Usage::default(), &big).unwrap_err();
        assert!(exceeded.for_ever());
    }

    #[test]
    fn what_is_not_asked_for_is_not_refused() {
        let quota = Quota { execs: Some(0), ..Quota::default() };
        assert!(quota.allows(&Usage::default(), &Usage { leases: 1, ..Usage::default() }).is_ok());
    }
}
