//! Environments that a sandbox builds by itself, with the `uv` that it has inside: one at a time, as the workload, as an
//! exec like any other, so that its journal tells what went wrong.

use std::collections::BTreeMap;

use cubicle_model::{Command, Exit, Stdin};
use cubicle_sys::clock;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::environments::now;
use super::execute::check::{self, Checked};
use super::http::{Head, Refusal};
use super::launch;
use super::routes::{Answer, to_value};
use super::server::Server;
use super::spec::CheckedSpec;
use crate::wire::execute::{Cache, CreateEnvironment, EnvUsed, Environment};

/// Below the home directory of the workload.
const PLACE: &str = ".envs";
const TIMEOUT_NANOS: u64 = 1_500_000_000_000;
/// Of what `uv` says when it fails.
const LONGEST_REASON: usize = 600;

/// Arguments: the directory, the address of an index or nothing, and the requirements. Prints the version and then the
/// packages.
const SCRIPT: &str = r#"
directory=$1 index=$2; shift 2
rm -rf -- "$directory" && mkdir -p -- "${directory%/*}" &&
uv venv -q --python python3 "$directory" 1>&2 || exit
if [ $# -gt 0 ]; then
    uv pip install -q --compile-bytecode --python "$directory/bin/python" ${index:+--default-index "$index"} -- "$@" 1>&2 || exit
fi
"$directory/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' &&
uv pip freeze -q --python "$directory/bin/python"
"#;

#[derive(Debug, Default)]
pub(super) struct Building {
    current: Option<Build>,
    /// What each environment that was built here consists of.
    built: BTreeMap<String, Vec<String>>,
    failed: BTreeMap<String, String>,
    millis: BTreeMap<String, f64>,
}

#[derive(Debug)]
struct Build {
    exec: u32,
    name: String,
    requirements: Vec<String>,
    directory: String,
    began: u64,
}

/// What is done when an environment is there.
#[derive(Debug)]
pub(super) enum Afterwards {
    Tell,
    Execute(Head, Box<Checked>),
}

impl Building {
    pub(super) fn is_under_way(&self) -> bool {
        self.current.is_some()
    }

    pub(super) fn forget(&mut self, name: &str) -> bool {
        self.built.remove(name).is_some()
    }
}

impl Server {
    /// `POST /envs`. The answer is that of the environment, when it is there.
    pub(super) fn create_environment(
        &mut self,
        request: CreateEnvironment,
        keep_alive: bool,
    ) -> Result<Answer, Refusal> {
        check::check_environment_name(&request.name)?;
        check::check_requirements(&request.requirements)?;
        if let Some(index) = &request.python_index {
            check::check_index(index)?;
        }
        if let Some(there) = self.environments.get(&request.name)
            && !self.is_built_otherwise(&request.name, &request.requirements)
        {
            return Ok(Answer::Json(200, to_value(there)));
        }
        self.build(&request.name, request.requirements, request.python_index.as_deref())?;
        Ok(Answer::building(request.name, Afterwards::Tell, keep_alive))
    }

    /// Which environment code runs in, where that is there already. None: it is being built.
    pub(super) fn environment_for(
        &mut self,
        checked: &mut Checked,
    ) -> Result<Option<Option<EnvUsed>>, Refusal> {
        if checked.requirements.is_empty() && checked.env_name.is_none() {
            return Ok(Some(None));
        }
        let name = match checked.env_name.take() {
            Some(name) => name,
            None => name_of(&checked.requirements, checked.python_index.as_deref()),
        };
        checked.env_name = Some(name.clone());
        let is_there = self.environments.get(&name).is_some();
        if checked.requirements.is_empty() && !is_there {
            return Err(self.environments.not_found(&name));
        }
        let differs =
            !checked.requirements.is_empty() && self.is_built_otherwise(&name, &checked.requirements);
        if is_there && !differs {
            let millis = self.building.millis.remove(&name);
            let cache = if millis.is_some() { Cache::Miss } else { Cache::Hit };
            return Ok(Some(Some(EnvUsed { name, cache, build_ms: millis.unwrap_or(0.0) })));
        }
        self.build(&name, checked.requirements.clone(), checked.python_index.as_deref())?;
        Ok(None)
    }

    /// One that the host attached is what the host says it is.
    fn is_built_otherwise(&self, name: &str, requirements: &[String]) -> bool {
        self.building.built.get(name).is_some_and(|built| *built != sorted(requirements))
    }

    fn build(&mut self, name: &str, requirements: Vec<String>, index: Option<&str>) -> Result<(), Refusal> {
        let requirements = sorted(&requirements);
        if let Some(current) = &self.building.current {
            if current.name == name && current.requirements == requirements {
                return Ok(());
            }
            return Err(Refusal::new(
                429,
                "env_building",
                "another environment is being built in this sandbox",
            )
            .hint("try again when it is there"));
        }
        let path = self.settings.env.get("PATH").map_or(launch::DEFAULT_PATH, String::as_str);
        if !path.split(':').any(|place| std::path::Path::new(place).join("uv").is_file()) {
            let message = "this sandbox has no environment with these requirements, and no uv to build one";
            return Err(Refusal::new(422, "env_unavailable", message).hint(
                "a host that manages the sandbox attaches environments; alone it needs uv (pip install uv) in its PATH",
            ));
        }
        if self.environments.get(name).is_some() {
            self.remove_environment(name)?;
        }
        let home = self.settings.env.get("HOME").map_or("/home/agent", String::as_str);
        let directory = format!("{}/{PLACE}/{name}", home.trim_end_matches('/'));
        let fixed = ["/bin/sh", "-c", SCRIPT, "build", &directory, index.unwrap_or_default()];
        let arguments = fixed.map(str::to_owned).into_iter().chain(requirements.iter().cloned()).collect();
        let shown =
            ["uv", "pip", "install"].map(str::to_owned).into_iter().chain(requirements.iter().cloned());
        let spec = CheckedSpec {
            exec_id: None,
            command: Command::Argv(shown.collect()),
            arguments,
            cwd: "/".into(),
            env: BTreeMap::from([("UV_NO_PROGRESS".into(), "1".into())]),
            stdin: Stdin::Closed,
            tty: None,
            timeout_nanos: Some(TIMEOUT_NANOS),
        };
        let exec = self.launch(&spec)?;
        self.building.failed.remove(name);
        self.building.current =
            Some(Build { exec, name: name.to_owned(), requirements, directory, began: clock::boot_nanos() });
        Ok(())
    }

    /// Takes over what was built, when its exec has come to its exit.
    pub(super) fn notice_built(&mut self) {
        let Some(build) = &self.building.current else { return };
        let Some(exec) = self.execs.get(build.exec) else { return };
        let (Some(exit), Some(end)) = (exec.exit, exec.exit_end) else { return };
        let (stdout, stderr) = super::execute::texts(&self.journal, exec, end);
        let Some(build) = self.building.current.take() else { return };
        let mut lines = stdout.lines();
        match (exit, lines.next()) {
            (Exit::Code(0), Some(version)) => {
                let environment = Environment {
                    name: build.name.clone(),
                    packages: lines.map(str::to_owned).collect(),
                    python_version: version.to_owned(),
                    created_at: now(),
                    last_used_at: now(),
                    python: format!("{}/bin/python", build.directory),
                    modules: Vec::new(),
                    key: name_of(&build.requirements, None),
                };
                let millis = clock::boot_nanos().saturating_sub(build.began) as f64 / 1e6;
                self.building.millis.insert(build.name.clone(), millis);
                self.building.built.insert(build.name, build.requirements);
                self.environments.insert(environment);
            }
            _ => {
                let tail: Vec<char> = stderr.trim().chars().rev().take(LONGEST_REASON).collect();
                let reason: String = tail.into_iter().rev().collect();
                let reason = if reason.is_empty() { format!("uv ended with {exit:?}") } else { reason };
                self.building.failed.insert(build.name, reason);
                self.discard(&build.directory);
            }
        }
    }

    /// What came of a build that a connection waits for; None while it goes on.
    pub(super) fn built(&self, name: &str) -> Option<Result<Value, Refusal>> {
        if self.building.current.as_ref().is_some_and(|build| build.name == name) {
            return None;
        }
        if let Some(environment) = self.environments.get(name) {
            return Some(Ok(to_value(environment)));
        }
        let reason = self.building.failed.get(name).cloned().unwrap_or_else(|| "it was removed".into());
        Some(Err(Refusal::new(
            422,
            "env_build_failed",
            format!("the environment {name:?} cannot be built: {reason}"),
        )
        .hint("check the requirements, and whether the sandbox may reach the package index")))
    }

    /// Removes the directory of an environment that was built here.
    pub(super) fn discard_built(&mut self, name: &str, python: &str) {
        if self.building.forget(name)
            && let Some(directory) = python.strip_suffix("/bin/python")
        {
            self.discard(directory);
        }
    }

    fn discard(&mut self, directory: &str) {
        let arguments: Vec<String> = ["rm", "-rf", "--", directory].map(str::to_owned).into();
        let spec = CheckedSpec {
            exec_id: None,
            command: Command::Argv(arguments.clone()),
            arguments,
            cwd: "/".into(),
            env: BTreeMap::new(),
            stdin: Stdin::Closed,
            tty: None,
            timeout_nanos: Some(TIMEOUT_NANOS),
        };
        // What stays takes room of the sandbox only, and is replaced by the next one of its name.
        let _ = self.launch(&spec);
    }
}

fn sorted(requirements: &[String]) -> Vec<String> {
    let mut sorted: Vec<String> =
        requirements.iter().map(|requirement| requirement.trim().to_owned()).collect();
    sorted.sort_unstable();
    sorted.dedup();
    sorted
}

/// The same requirements have the same name, in whatever order.
fn name_of(requirements: &[String], index: Option<&str>) -> String {
    let mut hash = Sha256::new();
    for requirement in sorted(requirements) {
        hash.update(requirement.as_bytes());
        hash.update(b"\n");
    }
    hash.update(index.unwrap_or_default().as_bytes());
    let digits: String = hash.finalize().iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    format!("env-{digits}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_requirements_have_the_same_name() {
        let name = |requirements: &[&str], index| {
            name_of(&requirements.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>(), index)
        };
        assert_eq!(name(&["b", "a "], None), name(&["a", "b", "a"], None));
        assert_ne!(name(&["a"], None), name(&["a"], Some("https://index.example")));
        assert!(check::check_environment_name(&name(&["a"], None)).is_ok());
    }
}
