//! The recipe of a sandbox.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::egress::Policy;
use crate::name::NotAName;
use crate::pool::PoolSpec;
use crate::{
    Isolation, Lifetime, LimitRequest, Limits, Medium, Name, Placement, Root, SandboxId, Timestamp, Trust,
};

/// Which template: everybody's, or one tenant's own.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TemplateRef {
    pub owner: Option<Name>,
    pub name: Name,
}

impl fmt::Display for TemplateRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.owner {
            Some(owner) => write!(f, "{owner}/{}", self.name),
            None => write!(f, "{}", self.name),
        }
    }
}

impl FromStr for TemplateRef {
    type Err = NotAName;

    fn from_str(text: &str) -> Result<Self, NotAName> {
        Ok(match text.split_once('/') {
            Some((owner, name)) => Self { owner: Some(owner.parse()?), name: name.parse()? },
            None => Self { owner: None, name: text.parse()? },
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    pub at: TemplateRef,
    pub recipe: Recipe,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    /// Grows with every change; a pooled sandbox of an older version is replaced.
    pub version: i64,
}

/// What a template says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Recipe {
    pub root: Root,
    pub trust: Trust,
    /// Absent takes what the trust asks for.
    pub isolation: Option<Isolation>,
    pub limits: LimitRequest,
    pub env: BTreeMap<String, String>,
    pub reuse: Reuse,
    pub pool: PoolSpec,
    /// Languages beside those that every sandbox knows: the command of each, with `{file}` where the code's file goes.
    pub languages: BTreeMap<String, Vec<String>>,
    /// Python packages that code finds which names none of its own.
    pub requirements: Vec<String>,
    /// What its sandboxes may reach. Absent takes what the operator says for a template of this name.
    pub egress: Option<Policy>,
}

impl Default for Recipe {
    fn default() -> Self {
        Self {
            root: Root::Host,
            trust: Trust::default(),
            isolation: None,
            limits: LimitRequest::default(),
            env: BTreeMap::new(),
            reuse: Reuse::Never,
            pool: PoolSpec::default(),
            languages: BTreeMap::new(),
            requirements: Vec::new(),
            egress: None,
        }
    }
}

/// What becomes of a sandbox when its lease ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reuse {
    /// It is destroyed, and the pool gets a fresh one.
    #[default]
    Never,
    /// It is kept as it is, for the same user.
    SameUser,
    /// Its processes are ended and its workspace is emptied; caches are kept, for the same tenant.
    EnvCache,
}

/// A recipe that contradicts itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadRecipe {
    #[error(transparent)]
    Limit(#[from] crate::limits::LimitTooSmall),
    #[error(transparent)]
    Isolation(#[from] crate::isolation::TooWeak),
    #[error(
        "a pool of {size} cannot keep {min_idle} idle: min_idle is at most size, and size at most ceiling ({ceiling})"
    )]
    Pool { size: u32, min_idle: u32, ceiling: u32 },
    #[error("'{0}' cannot be the name of a variable")]
    Variable(String),
    #[error("the language '{0}' needs a command with '{{file}}' where the code's file goes")]
    Language(String),
    #[error("the root filesystem '{0}' is not an absolute path")]
    Root(String),
}

impl Recipe {
    pub fn check(&self) -> Result<(), BadRecipe> {
        self.limits()?;
        self.isolation()?;
        let PoolSpec { size, min_idle, ceiling } = self.pool;
        if min_idle > size || size > ceiling {
            return Err(BadRecipe::Pool { size, min_idle, ceiling });
        }
        if let Some(name) = self.env.keys().find(|name| !is_variable_name(name)) {
            return Err(BadRecipe::Variable(name.clone()));
        }
        let is_language = |(name, command): &(&String, &Vec<String>)| {
            let good_name = (1..=64).contains(&name.len()) && name.bytes().all(|c| c.is_ascii_graphic());
            good_name && !command[..].is_empty() && command.iter().any(|part| part.contains("{file}"))
        };
        if let Some((name, _)) = self.languages.iter().find(|language| !is_language(language)) {
            return Err(BadRecipe::Language(name.clone()));
        }
        match &self.root {
            Root::Directory(path) if !path.is_absolute() => Err(BadRecipe::Root(path.display().to_string())),
            Root::Directory(_) | Root::Host => Ok(()),
        }
    }

    pub fn limits(&self) -> Result<Limits, BadRecipe> {
        Ok(Limits::parse(&self.limits)?)
    }

    pub fn isolation(&self) -> Result<Isolation, BadRecipe> {
        Ok(crate::isolation::choose(self.trust, self.isolation)?)
    }

    /// A sandbox by this recipe, with some limits changed.
    pub fn placement(
        &self,
        id: SandboxId,
        changed: &LimitRequest,
        labels: BTreeMap<String, String>,
    ) -> Result<Placement, BadRecipe> {
        Ok(Placement {
            id,
            lifetime: Lifetime::Durable,
            isolation: self.isolation()?,
            trust: self.trust,
            root: self.root.clone(),
            workspace: Medium::Memory,
            limits: self.limits()?.changed_by(changed)?,
            env: self.env.clone(),
            labels,
        })
    }
}

/// Whether a process can be given a variable of this name.
pub fn is_variable_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(['=', '\0'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_survives_text() {
        for text in ["default", "acme/python"] {
            assert_eq!(text.parse::<TemplateRef>().unwrap().to_string(), text);
        }
        assert!("a/b/c".parse::<TemplateRef>().is_err());
    }

    #[test]
    fn an_empty_recipe_is_the_default_one() {
        let recipe: Recipe = serde_json::from_str("{}").unwrap();
        assert_eq!(recipe, Recipe::default());
        assert_eq!(recipe.check(), Ok(()));
    }

    #[test]
    fn a_recipe_that_contradicts_itself_is_refused_by_name() {
        let table = [
            (r#"{"limits": {"memory": 1}}"#, "memory limit"),
            (r#"{"trust": "low", "isolation": "namespaces"}"#, "too weak"),
            (r#"{"pool": {"size": 1, "min_idle": 2, "ceiling": 8}}"#, "min_idle is at most size"),
            (r#"{"env": {"A=B": "1"}}"#, "name of a variable"),
            (r#"{"languages": {"ruby": []}}"#, "where the code's file goes"),
            (r#"{"languages": {"ruby": ["ruby"]}}"#, "where the code's file goes"),
            (r#"{"languages": {"": ["ruby", "{file}"]}}"#, "where the code's file goes"),
            (r#"{"root": {"directory": "rel"}}"#, "absolute"),
        ];
        for (json, expected) in table {
            let refusal = serde_json::from_str::<Recipe>(json).unwrap().check().unwrap_err().to_string();
            assert!(refusal.contains(expected), "{refusal}");
        }
    }
}
