//! What a worker is told: a few arguments, and everything else as `TASK_*` variables.

use std::collections::BTreeMap;

use cubicle_model::TaskId;

/// The server writes it as arguments and variables; `run-task` reads it back from these.
#[derive(Debug, Clone, PartialEq)]
pub struct Assignment {
    pub task_id: TaskId,
    /// `--run-task`: the prompt, as `/task/prompt.md`. Its directory is the task's.
    pub prompt: String,
    /// `--webhook`: where completion is told; absent where nobody is told.
    pub webhook: Option<String>,
    /// `TASK_AGENT`: `claude`, `gemini` or `custom`.
    pub agent: String,
    /// `TASK_AGENT_HOME`: where the agent's program is, as `/mnt/agents/claude`.
    pub agent_home: Option<String>,
    /// `TASK_MODEL`: the provider's model; absent means the agent's own default.
    pub model: Option<String>,
    /// `TASK_COMMAND`: of a custom agent, a list in JSON.
    pub command: Vec<String>,
    /// `TASK_REPO`: cloned to `repo/` in the task's directory before the agent starts, as `URL` or `URL@REF`.
    pub repo: Option<String>,
    /// `TASK_TIMEOUT_SECONDS`: of the whole.
    pub timeout_seconds: u64,
    /// `TASK_IDLE_SECONDS`: without any event of the agent.
    pub idle_seconds: u64,
    /// `TASK_MAX_TURNS`, `TASK_MAX_TOKENS`, `TASK_MAX_COST_USD`.
    pub max_turns: Option<u64>,
    pub max_tokens: Option<u64>,
    pub max_cost_usd: Option<f64>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotAnAssignment(String);

const DEFAULT_TIMEOUT: u64 = 30 * 60;
const DEFAULT_IDLE: u64 = 10 * 60;

impl Assignment {
    pub fn arguments(&self) -> Vec<String> {
        let mut arguments = vec!["--run-task".into(), self.prompt.clone()];
        if let Some(webhook) = &self.webhook {
            arguments.extend(["--webhook".into(), webhook.clone()]);
        }
        arguments.extend(["--task-id".into(), self.task_id.to_string()]);
        arguments
    }

    pub fn variables(&self) -> BTreeMap<String, String> {
        let mut variables = BTreeMap::from([
            ("TASK_ID".into(), self.task_id.to_string()),
            ("TASK_AGENT".into(), self.agent.clone()),
            ("TASK_TIMEOUT_SECONDS".into(), self.timeout_seconds.to_string()),
            ("TASK_IDLE_SECONDS".into(), self.idle_seconds.to_string()),
        ]);
        let mut put = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                variables.insert(name.into(), value);
            }
        };
        put("TASK_AGENT_HOME", self.agent_home.clone());
        put("TASK_MODEL", self.model.clone());
        put("TASK_REPO", self.repo.clone());
        put("TASK_MAX_TURNS", self.max_turns.map(|turns| turns.to_string()));
        put("TASK_MAX_TOKENS", self.max_tokens.map(|tokens| tokens.to_string()));
        put("TASK_MAX_COST_USD", self.max_cost_usd.map(|cost| cost.to_string()));
        if !self.command.is_empty() {
            put("TASK_COMMAND", Some(serde_json::json!(self.command).to_string()));
        }
        variables
    }

    /// From the arguments without the program's name, and the environment.
    pub fn read(
        arguments: &[String],
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, NotAnAssignment> {
        let (mut prompt, mut webhook, mut task_id) = (None, None, variable("TASK_ID"));
        let mut rest = arguments.iter();
        while let Some(name) = rest.next() {
            let slot = match name.as_str() {
                "--run-task" => &mut prompt,
                "--webhook" => &mut webhook,
                "--task-id" => &mut task_id,
                other => {
                    return Err(NotAnAssignment(format!(
                        "unknown argument '{other}': expected --run-task, --webhook, --task-id"
                    )));
                }
            };
            let value = rest.next().ok_or_else(|| NotAnAssignment(format!("{name} needs a value")))?;
            *slot = Some(value.clone());
        }
        let task_id = task_id.ok_or_else(|| NotAnAssignment("--task-id is missing".into()))?;
        Ok(Self {
            task_id: task_id.parse().map_err(|error| NotAnAssignment(format!("--task-id: {error}")))?,
            prompt: prompt.ok_or_else(|| NotAnAssignment("--run-task is missing".into()))?,
            webhook,
            agent: variable("TASK_AGENT").unwrap_or_else(|| "claude".into()),
            agent_home: variable("TASK_AGENT_HOME"),
            model: variable("TASK_MODEL"),
            command: parsed(&variable, "TASK_COMMAND", |text| serde_json::from_str(text).ok())?
                .unwrap_or_default(),
            repo: variable("TASK_REPO"),
            timeout_seconds: number(&variable, "TASK_TIMEOUT_SECONDS")?.unwrap_or(DEFAULT_TIMEOUT),
            idle_seconds: number(&variable, "TASK_IDLE_SECONDS")?.unwrap_or(DEFAULT_IDLE),
            max_turns: number(&variable, "TASK_MAX_TURNS")?,
            max_tokens: number(&variable, "TASK_MAX_TOKENS")?,
            max_cost_usd: number(&variable, "TASK_MAX_COST_USD")?,
        })
    }
}

fn number<T: std::str::FromStr>(
    variable: &impl Fn(&str) -> Option<String>,
    name: &str,
) -> Result<Option<T>, NotAnAssignment> {
    parsed(variable, name, |text| text.parse().ok())
}

fn parsed<T>(
    variable: &impl Fn(&str) -> Option<String>,
    name: &str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, NotAnAssignment> {
    let Some(text) = variable(name) else { return Ok(None) };
    match parse(&text) {
        Some(value) => Ok(Some(value)),
        None => Err(NotAnAssignment(format!("{name}='{text}' cannot be read"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assignment() -> Assignment {
        Assignment {
            task_id: TaskId::from_random([7; 16]),
            prompt: "/task/prompt.md".into(),
            webhook: Some("http://127.0.0.1:1/api/webhooks/worker-complete".into()),
            agent: "custom".into(),
            agent_home: None,
            model: Some("m".into()),
            command: vec!["sh".into(), "-c".into(), "echo 'a b'".into()],
            repo: Some("https://git.example.org/a.git@main".into()),
            timeout_seconds: 60,
            idle_seconds: 5,
            max_turns: Some(3),
            max_tokens: None,
            max_cost_usd: Some(0.25),
        }
    }

    #[test]
    fn an_assignment_survives_arguments_and_variables() {
        let told = assignment();
        let variables = told.variables();
        let read = Assignment::read(&told.arguments(), |name| variables.get(name).cloned());
        assert_eq!(read.unwrap(), told);
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let arguments = assignment().arguments();
        let read = |variable: &'static str| {
            Assignment::read(&arguments, move |name| (name == variable).then(|| "x".into()))
        };
        for name in ["TASK_COMMAND", "TASK_TIMEOUT_SECONDS", "TASK_MAX_COST_USD"] {
            assert!(read(name).unwrap_err().to_string().contains(name));
        }
        let unknown = Assignment::read(&["--prompt".into(), "x".into()], |_| None);
        assert!(unknown.unwrap_err().to_string().contains("--prompt"));
    }
}
