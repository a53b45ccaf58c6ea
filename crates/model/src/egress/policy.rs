//! A policy as it was written: a mode, rules, references to bundles, a budget.

use std::fmt;
use std::str::FromStr;

use super::syntax::{self, SyntaxError};
use super::{Budget, Bundles, OwnAddresses, Rule, Ruleset};
use crate::Name;

/// What a sandbox may reach, in the words of whoever wrote it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Policy {
    pub mode: Mode,
    pub rules: Vec<Statement>,
    pub budget: Budget,
}

/// What holds where no rule says anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Mode {
    /// No network at all.
    None,
    /// Only what a rule allows.
    #[default]
    Allowlist,
    /// Everything on the internet that no rule denies.
    Open,
}

impl Mode {
    pub const ALL: [Self; 3] = [Self::None, Self::Allowlist, Self::Open];

    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Allowlist => "allowlist",
            Self::Open => "open",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Statement {
    Rule(Rule),
    Bundle(Name),
}

/// A policy refers to a bundle that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnresolvedBundle {
    #[error("there is no bundle '@{name}'; there are: {known}")]
    Unknown { name: Name, known: String },
    #[error("the bundle '@{0}' is empty: nothing is configured for it on this host")]
    Empty(Name),
}

impl Policy {
    /// No network at all.
    pub fn none() -> Self {
        Self { mode: Mode::None, ..Self::default() }
    }

    /// Puts the rules of the bundles in place of their names. After this, decisions need nothing else.
    pub fn resolve(&self, bundles: &Bundles, own: &OwnAddresses) -> Result<Ruleset, UnresolvedBundle> {
        let mut rules = Vec::new();
        for statement in &self.rules {
            match statement {
                Statement::Rule(rule) => rules.push((rule.clone(), None)),
                Statement::Bundle(name) => {
                    let bundle = bundles.get(name).ok_or_else(|| UnresolvedBundle::Unknown {
                        name: name.clone(),
                        known: bundles.names().map(|name| format!("@{name}")).collect::<Vec<_>>().join(", "),
                    })?;
                    if bundle.is_empty() {
                        return Err(UnresolvedBundle::Empty(name.clone()));
                    }
                    rules.extend(bundle.iter().map(|rule| (rule.clone(), Some(name.clone()))));
                }
            }
        }
        Ok(Ruleset::new(self.mode, rules, self.budget, own.clone()))
    }
}

impl FromStr for Policy {
    type Err = SyntaxError;

    fn from_str(text: &str) -> Result<Self, SyntaxError> {
        syntax::parse_policy(text)
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.mode.name())?;
        for rule in &self.rules {
            writeln!(f, "{rule}")?;
        }
        self.budget.fmt(f)
    }
}

impl fmt::Display for Statement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(rule) => rule.fmt(f),
            Self::Bundle(name) => write!(f, "allow @{name}"),
        }
    }
}

as_text!(Policy);
