//! What a lease says of egress, over what its template says.

use serde::{Deserialize, Serialize};

use super::Policy;
use crate::ExecId;

/// What was asked for with a lease, or changed later. What it does not say is its template's.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LeaseEgress {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<Policy>,
    /// Allow what no rule denies, and note it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub record: bool,
    /// An exec brought a policy of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub during: Option<DuringExec>,
    /// Its worker may tell the control plane that its task has ended, and reach nothing else of it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub webhook: bool,
}

/// A policy that holds while an exec runs. It holds for the whole sandbox, because all of its processes share one network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DuringExec {
    pub exec: ExecId,
    pub policy: Policy,
}

/// Who said what holds now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SaidBy {
    Template,
    Lease,
    Exec,
}

impl SaidBy {
    pub const ALL: [Self; 3] = [Self::Template, Self::Lease, Self::Exec];
}

impl LeaseEgress {
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// The policy that holds now: an exec's own, else the lease's, else the template's.
    pub fn in_force<'a>(&'a self, template: &'a Policy) -> (&'a Policy, SaidBy) {
        match (&self.during, &self.policy) {
            (Some(during), _) => (&during.policy, SaidBy::Exec),
            (None, Some(policy)) => (policy, SaidBy::Lease),
            (None, None) => (template, SaidBy::Template),
        }
    }

    /// With the policy of an exec that begins. None while another exec has one of its own.
    pub fn beginning(&self, exec: ExecId, policy: Policy) -> Option<Self> {
        let free = self.during.as_ref().is_none_or(|during| during.exec == exec);
        free.then(|| Self { during: Some(DuringExec { exec, policy }), ..self.clone() })
    }

    /// Without the policy of an exec that has ended. None where it had none.
    pub fn ending(&self, exec: ExecId) -> Option<Self> {
        let own = self.during.as_ref().is_some_and(|during| during.exec == exec);
        own.then(|| Self { during: None, ..self.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(text: &str) -> Policy {
        text.parse().unwrap()
    }

    #[test]
    fn the_nearest_word_holds() {
        let template = policy("allow a.example");
        let (one, other) = (ExecId::from_random([1; 16]), ExecId::from_random([2; 16]));
        let nothing = LeaseEgress::default();
        assert_eq!(nothing.in_force(&template), (&template, SaidBy::Template));
        let lease = LeaseEgress { policy: Some(policy("open")), ..nothing };
        assert_eq!(lease.in_force(&template), (&policy("open"), SaidBy::Lease));
        let exec = lease.beginning(one, policy("none")).unwrap();
        assert_eq!(exec.in_force(&template), (&policy("none"), SaidBy::Exec));
        assert_eq!(exec.beginning(other, policy("open")), None, "two cannot hold at once");
        assert_eq!(exec.ending(other), None);
        assert_eq!(exec.ending(one), Some(lease));
    }

    #[test]
    fn it_survives_json() {
        let egress = LeaseEgress {
            policy: Some(policy("allow a.example")),
            record: true,
            during: None,
            webhook: true,
        };
        let json = serde_json::to_string(&egress).unwrap();
        assert_eq!(json, r#"{"policy":"allowlist\nallow a.example\n","record":true,"webhook":true}"#);
        assert_eq!(serde_json::from_str::<LeaseEgress>(&json).unwrap(), egress);
        assert_eq!(serde_json::to_string(&LeaseEgress::default()).unwrap(), "{}");
    }
}
