//! How strongly code is kept apart, and how much the code is trusted.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A level of isolation. Ordered from the weakest to the strongest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// Landlock, seccomp and rlimits, without namespaces: for hosts that refuse namespaces.
    Landlock,
    /// Namespaces, a read-only root, no capabilities, seccomp and limits.
    Namespaces,
    /// The same inside gVisor: the workload does not talk to the host kernel.
    Gvisor,
}

impl Isolation {
    pub const ALL: [Self; 3] = [Self::Landlock, Self::Namespaces, Self::Gvisor];

    pub fn name(self) -> &'static str {
        match self {
            Self::Landlock => "landlock",
            Self::Namespaces => "namespaces",
            Self::Gvisor => "gvisor",
        }
    }
}

/// Trust in the code. High trust needs the least isolation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trust {
    Low,
    #[default]
    Medium,
    High,
}

impl Trust {
    pub const ALL: [Self; 3] = [Self::Low, Self::Medium, Self::High];

    pub fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }

    /// What code of this trust gets when nothing is asked for by name.
    pub fn default_isolation(self) -> Isolation {
        match self {
            Self::Low => Isolation::Gvisor,
            Self::Medium | Self::High => Isolation::Namespaces,
        }
    }

    /// The weakest isolation that may serve code of this trust, even when it is asked for by name.
    pub fn weakest_isolation(self) -> Isolation {
        match self {
            Self::Low => Isolation::Gvisor,
            Self::Medium => Isolation::Namespaces,
            Self::High => Isolation::Landlock,
        }
    }
}

/// The isolation for code of this trust, or a refusal: a weaker level than the trust allows is never given.
pub fn choose(trust: Trust, asked: Option<Isolation>) -> Result<Isolation, TooWeak> {
    let chosen = asked.unwrap_or_else(|| trust.default_isolation());
    if chosen < trust.weakest_isolation() { Err(TooWeak { trust, asked: chosen }) } else { Ok(chosen) }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("isolation '{asked}' is too weak for {trust} trust: it needs at least '{}'", trust.weakest_isolation())]
pub struct TooWeak {
    pub trust: Trust,
    pub asked: Isolation,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown {what} '{given}': expected {expected}")]
pub struct UnknownName {
    what: &'static str,
    given: String,
    expected: &'static str,
}

impl UnknownName {
    pub(crate) fn new(what: &'static str, given: &str, expected: &'static str) -> Self {
        Self { what, given: given.into(), expected }
    }
}

impl FromStr for Isolation {
    type Err = UnknownName;

    fn from_str(given: &str) -> Result<Self, UnknownName> {
        Self::ALL
            .into_iter()
            .find(|level| level.name() == given)
            .ok_or_else(|| UnknownName::new("isolation", given, "'gvisor', 'namespaces' or 'landlock'"))
    }
}

impl FromStr for Trust {
    type Err = UnknownName;

    fn from_str(given: &str) -> Result<Self, UnknownName> {
        Self::ALL
            .into_iter()
            .find(|trust| trust.name() == given)
            .ok_or_else(|| UnknownName::new("trust", given, "'low', 'medium' or 'high'"))
    }
}

impl fmt::Display for Isolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trust_decides_the_isolation() {
        use Isolation::*;
        let table = [
            (Trust::Low, None, Ok(Gvisor)),
            (Trust::Low, Some(Namespaces), Err(())),
            (Trust::Medium, None, Ok(Namespaces)),
            (Trust::Medium, Some(Gvisor), Ok(Gvisor)),
            (Trust::Medium, Some(Landlock), Err(())),
            (Trust::High, None, Ok(Namespaces)),
            (Trust::High, Some(Landlock), Ok(Landlock)),
        ];
        for (trust, asked, expected) in table {
            assert_eq!(choose(trust, asked).map_err(|_| ()), expected, "{trust} {asked:?}");
        }
    }

    #[test]
    fn a_refusal_names_the_level_that_is_needed() {
        let refusal = choose(Trust::Low, Some(Isolation::Namespaces)).unwrap_err().to_string();
        assert_eq!(refusal, "isolation 'namespaces' is too weak for low trust: it needs at least 'gvisor'");
    }
}
