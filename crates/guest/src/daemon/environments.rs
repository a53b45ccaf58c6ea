//! The environments that this sandbox has: which interpreter with which packages code can ask for.

use std::collections::BTreeMap;

use cubicle_model::Timestamp;
use cubicle_sys::clock;
use serde_json::json;

use super::execute::check::check_environment_name;
use super::http::Refusal;
use super::routes::{Answer, to_value};
use super::server::Server;
use crate::wire::execute::{Environment, EnvironmentList};

/// More than a host attaches to one sandbox.
const MOST_ENVIRONMENTS: usize = 64;
const LONGEST_PATH: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct Environments {
    by_name: BTreeMap<String, Environment>,
}

impl Environments {
    pub(super) fn get(&self, name: &str) -> Option<&Environment> {
        self.by_name.get(name)
    }

    pub(super) fn list(&self) -> Vec<Environment> {
        self.by_name.values().cloned().collect()
    }

    /// The environment by that name, used now.
    pub(super) fn used(&mut self, name: &str) -> Option<&Environment> {
        let environment = self.by_name.get_mut(name)?;
        environment.last_used_at = now();
        Some(environment)
    }

    pub(super) fn insert(&mut self, environment: Environment) {
        self.by_name.insert(environment.name.clone(), environment);
    }

    fn names(&self) -> String {
        self.by_name.keys().cloned().collect::<Vec<_>>().join(", ")
    }

    pub(super) fn not_found(&self, name: &str) -> Refusal {
        let refusal = Refusal::new(404, "env_not_found", format!("this sandbox has no environment {name:?}"));
        match self.by_name.is_empty() {
            true => refusal.hint("name requirements to have one made"),
            false => refusal.hint(format!("it has {}", self.names())),
        }
    }
}

impl Server {
    pub(super) fn list_environments(&self) -> Answer {
        Answer::Json(200, to_value(&EnvironmentList { environments: self.environments.list() }))
    }

    /// The host has attached an environment. Its name may have been another one's before.
    pub(super) fn attach_environment(&mut self, name: &str, given: Environment) -> Result<Answer, Refusal> {
        check_environment_name(name)?;
        if given.name != name {
            return Err(Refusal::invalid(format!(
                "the environment calls itself {:?}, not {name:?}",
                given.name
            )));
        }
        let python = &given.python;
        if !python.starts_with('/') || python.contains('\0') || python.len() > LONGEST_PATH {
            return Err(Refusal::invalid("python is not the absolute path of an interpreter"));
        }
        if given.modules.iter().any(|module| !is_module(module)) {
            return Err(Refusal::invalid("modules has something that is not the name of a module"));
        }
        let before = self.environments.by_name.get(name);
        if before.is_none() && self.environments.by_name.len() >= MOST_ENVIRONMENTS {
            let message = format!("this sandbox has {MOST_ENVIRONMENTS} environments already");
            return Err(
                Refusal::new(429, "too_many_environments", message).hint("remove one that is not used")
            );
        }
        let is_another = before.is_some_and(|before| {
            (&before.key, &before.python, &before.modules) != (&given.key, &given.python, &given.modules)
        });
        let status = if before.is_some() { 200 } else { 201 };
        let answer = to_value(&given);
        self.building.forget(name);
        if is_another {
            self.end_zygotes_of(name);
        }
        self.environments.by_name.insert(name.to_owned(), given);
        Ok(Answer::Json(status, answer))
    }

    pub(super) fn remove_environment(&mut self, name: &str) -> Result<Answer, Refusal> {
        if self.environments.get(name).is_none() {
            return Err(self.environments.not_found(name));
        }
        if self.execs.iter().any(|exec| exec.exit.is_none() && exec.environment() == Some(name)) {
            return Err(Refusal::new(409, "env_in_use", format!("code runs in the environment {name:?}"))
                .hint("wait for it to end, or end it"));
        }
        let removed = self.environments.by_name.remove(name);
        self.end_zygotes_of(name);
        if let Some(removed) = removed {
            self.discard_built(name, &removed.python);
        }
        Ok(Answer::Json(200, json!({})))
    }
}

pub(super) fn now() -> Timestamp {
    let micros = i64::try_from(clock::unix_micros()).unwrap_or(i64::MAX);
    Timestamp::from_microsecond(micros).unwrap_or(Timestamp::MAX)
}

fn is_module(name: &str) -> bool {
    let is_part = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    name.len() <= 200 && name.split('.').all(is_part)
}

#[cfg(test)]
mod tests {
    use super::is_module;

    #[test]
    fn only_names_of_modules_are_imported() {
        for good in ["pandas", "matplotlib.pyplot", "_x1"] {
            assert!(is_module(good), "{good}");
        }
        for bad in ["", "a.", ".a", "a-b", "a b", "os;x", "1a", "a\n"] {
            assert!(!is_module(bad), "{bad:?}");
        }
    }
}
