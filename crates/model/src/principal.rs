//! Who asks, and what they may do.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::isolation::UnknownName;
use crate::{KeyId, Name, Timestamp, UserName};

/// One right. A key or a token has some of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// See what the tenant has: leases, sandboxes, execs, files, events.
    Read,
    /// Acquire leases, run things in them, write files.
    Run,
    /// Change the tenant's templates, keys, secrets and artifacts; read its audit log.
    Manage,
    /// Act for other users of the tenant.
    ActForOthers,
    /// Everything, for every tenant: tenants, quotas, all keys, all audit logs.
    Admin,
}

impl Scope {
    pub const ALL: [Self; 5] = [Self::Read, Self::Run, Self::Manage, Self::ActForOthers, Self::Admin];

    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Run => "run",
            Self::Manage => "manage",
            Self::ActForOthers => "act_for_others",
            Self::Admin => "admin",
        }
    }
}

impl FromStr for Scope {
    type Err = UnknownName;

    fn from_str(given: &str) -> Result<Self, UnknownName> {
        Self::ALL.into_iter().find(|scope| scope.name() == given).ok_or_else(|| {
            UnknownName::new("scope", given, "'read', 'run', 'manage', 'act_for_others' or 'admin'")
        })
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Whoever a request comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    pub tenant: Name,
    pub user: UserName,
    pub scopes: BTreeSet<Scope>,
    pub proof: Proof,
}

/// What a caller showed to be believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    Key(KeyId),
    /// A token of an identity provider.
    Token {
        expires_at: Timestamp,
    },
    /// For a server without keys.
    Nothing,
}

impl Principal {
    pub fn key(&self) -> Option<KeyId> {
        match self.proof {
            Proof::Key(id) => Some(id),
            Proof::Token { .. } | Proof::Nothing => None,
        }
    }

    pub fn may(&self, scope: Scope) -> bool {
        self.scopes.contains(&scope) || self.scopes.contains(&Scope::Admin)
    }

    /// Whether it may do something in the name of this user.
    pub fn may_act_as(&self, user: &UserName) -> bool {
        *user == self.user || self.may(Scope::ActForOthers)
    }
}
