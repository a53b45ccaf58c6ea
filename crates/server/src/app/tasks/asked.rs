//! What a task is asked to be, checked before anything is made of it.

use cubicle_model::egress::WebAddress;
use cubicle_model::{Fault, Isolation, Kind, TemplateRef};
use cubicle_store::Task;
use serde::{Deserialize, Serialize};

use super::assignment::provider_of;
use super::{MOST_CONVERSATION, off};
use crate::app::{App, Caller};
use crate::settings::WorkerSettings;

const LONGEST_PROMPT: usize = 1024 * 1024;
const MOST_CONTEXT_FILES: usize = 1000;
const LONGEST_INTERFACE: usize = 50;
const LONGEST_URL: usize = 2048;
const MOST_ARGUMENTS: usize = 1000;
const LARGEST_COMMAND: usize = 128 * 1024;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct TaskRequest {
    pub(crate) task_description: String,
    pub(crate) context_files: Vec<String>,
    pub(crate) model: String,
    pub(crate) timeout_minutes: Option<u32>,
    pub(crate) save_to_shared: bool,
    pub(crate) conversation_id: String,
    pub(crate) interface_type: String,
    pub(crate) user_name: Option<String>,
    pub(crate) notify_url: Option<String>,
    pub(crate) options: Options,
}

/// What is kept of a request beside the columns that every task has.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Options {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) command: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) template: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) provider_model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_turns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_cost_usd: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) repo: Option<String>,
    /// What was asked for, of which some may not have been there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) asked_context_files: Vec<String>,
}

impl Options {
    pub(crate) fn of(task: &Task) -> Result<Self, Fault> {
        serde_json::from_value(task.options.clone()).map_err(|error| {
            Fault::new(Kind::Internal, "the options of a task cannot be read").because(error)
        })
    }

    pub(crate) fn template(&self) -> &str {
        self.template.as_deref().unwrap_or(WorkerSettings::TEMPLATE)
    }
}

impl TaskRequest {
    /// What a task that is there was asked to be.
    pub(super) fn again(task: &Task) -> Result<Self, Fault> {
        let options = Options::of(task)?;
        Ok(Self {
            task_description: task.task_description.clone(),
            context_files: options.asked_context_files.clone(),
            model: task.model.clone(),
            timeout_minutes: Some(task.timeout_minutes),
            save_to_shared: task.save_to_shared,
            conversation_id: task.conversation_id.clone(),
            interface_type: task.interface_type.clone(),
            user_name: task.user_name.clone(),
            notify_url: task.notify_url.clone(),
            options,
        })
    }

    fn check(&self, settings: &WorkerSettings) -> Result<(), Fault> {
        let invalid = |text: String| Err(Fault::new(Kind::Invalid, text));
        let prompt = &self.task_description;
        if prompt.trim().is_empty() || prompt.len() > LONGEST_PROMPT || prompt.contains('\0') {
            return invalid(format!("'task_description' has 1 to {LONGEST_PROMPT} bytes, and no NUL"));
        }
        if !cubicle_worker::AGENTS.contains(&self.model.as_str()) {
            let known = cubicle_worker::AGENTS.join("', '");
            return invalid(format!("'model' is one of '{known}', not '{}'", self.model.escape_default()));
        }
        let command = &self.options.command;
        match (self.model.as_str(), command.is_empty()) {
            ("custom", true) => {
                return Err(Fault::new(Kind::Invalid, "a custom agent needs a 'command'")
                    .hint("name the program and its arguments, as [\"sh\", \"-c\", \"…\"]"));
            }
            ("custom", false) => {}
            (_, false) => {
                return invalid(format!("'command' is for the agent 'custom', not for '{}'", self.model));
            }
            (_, true) => {}
        }
        let size: usize = command.iter().map(String::len).sum();
        if command.len() > MOST_ARGUMENTS
            || size > LARGEST_COMMAND
            || command.iter().any(|word| word.contains('\0'))
        {
            return invalid(format!(
                "'command' has at most {MOST_ARGUMENTS} words and {LARGEST_COMMAND} bytes, and no NUL"
            ));
        }
        let (shortest, longest) = (settings.min_timeout_minutes, settings.max_timeout_minutes);
        if self.timeout_minutes.is_some_and(|minutes| !(shortest..=longest).contains(&minutes)) {
            return invalid(format!("'timeout_minutes' is {shortest} to {longest}"));
        }
        if self.context_files.len() > MOST_CONTEXT_FILES {
            return invalid(format!("a task has at most {MOST_CONTEXT_FILES} context files"));
        }
        let texts = [
            ("conversation_id", Some(&self.conversation_id), MOST_CONVERSATION),
            ("interface_type", Some(&self.interface_type), LONGEST_INTERFACE),
            ("user_name", self.user_name.as_ref(), MOST_CONVERSATION),
            ("provider_model", self.options.provider_model.as_ref(), MOST_CONVERSATION),
        ];
        for (name, text, longest) in texts {
            let fits = |text: &String| (1..=longest).contains(&text.len()) && !text.contains('\0');
            if text.is_some_and(|text| !fits(text)) {
                return invalid(format!("'{name}' has 1 to {longest} bytes, and no NUL"));
            }
        }
        let Options { max_turns, max_tokens, max_cost_usd, .. } = &self.options;
        if *max_turns == Some(0) || *max_tokens == Some(0) {
            return invalid("a budget is at least 1".into());
        }
        if max_cost_usd.is_some_and(|cost| !(cost > 0.0 && cost.is_finite())) {
            return invalid("'max_cost_usd' is more than 0".into());
        }
        if let Some(url) = &self.notify_url {
            let is_web = url.starts_with("http://") || url.starts_with("https://");
            if !is_web
                || url.len() > LONGEST_URL
                || url.contains(|c: char| c.is_whitespace() || c.is_control())
            {
                return invalid("'notify_url' is an http or https URL".into());
            }
        }
        if let Some(repo) = &self.options.repo {
            repository(repo)?;
        }
        Ok(())
    }
}

/// Where a repository is, without the ref.
pub(super) fn repository(text: &str) -> Result<WebAddress, Fault> {
    let wrong = |why: &str| {
        Fault::new(Kind::Invalid, format!("'repo' cannot be used: {why}")).hint(
            "write https://host/path, or https://host/path@ref; keys for it are set with 'cubicle secrets'",
        )
    };
    if text.len() > LONGEST_URL || text.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(wrong("it is not a URL"));
    }
    let (_, rest) = text.split_once("://").ok_or_else(|| wrong("it is not a URL"))?;
    let host = rest.split('/').next().unwrap_or_default();
    if host.contains('@') {
        return Err(wrong("it holds a user name or a password"));
    }
    let reference = text.rfind('@').filter(|at| text[*at..].len() > 1);
    let url = reference.map_or(text, |at| &text[..at]);
    url.parse().map_err(|error| wrong(&format!("{error}")))
}

impl App {
    /// Everything that can be known of a task before it waits: a refusal now is better than a failure later.
    pub(super) async fn check_task(
        &self,
        caller: &Caller,
        asked: &TaskRequest,
    ) -> Result<TaskRequest, Fault> {
        let settings = &self.settings.workers;
        if !settings.enabled || settings.program.is_none() {
            return Err(off());
        }
        asked.check(settings)?;
        let template = self.find_template(caller.tenant(), asked.options.template()).await?;
        let isolation =
            template.recipe.isolation().map_err(|bad| Fault::new(Kind::Invalid, bad.to_string()))?;
        if settings.require_gvisor && isolation != Isolation::Gvisor {
            return Err(Fault::new(
                Kind::Denied,
                format!(
                    "workers must run under gVisor here, and the template '{}' does not",
                    template.at.name
                ),
            )
            .hint("install runsc, or set 'require_gvisor' to false in [ai_worker_config]"));
        }
        self.check_agent(caller, &asked.model, &template.at, &template.recipe.env).await?;
        let mut checked = asked.clone();
        checked.options.asked_context_files = asked.context_files.clone();
        Ok(checked)
    }

    async fn check_agent(
        &self,
        caller: &Caller,
        agent: &str,
        template: &TemplateRef,
        env: &std::collections::BTreeMap<String, String>,
    ) -> Result<(), Fault> {
        let Some(provider) = provider_of(agent) else { return Ok(()) };
        if (self.settings.workers.agents)(agent)?.is_none() {
            return Err(Fault::new(
                Kind::Denied,
                format!("the agent '{agent}' is not installed on this host"),
            )
            .hint(format!("'cubicle agents install {agent}' brings it")));
        }
        if env.contains_key(provider.base_variable) {
            return Ok(());
        }
        if self.egress.is_none() {
            return Err(Fault::new(
                Kind::Denied,
                format!("'{agent}' cannot reach its provider: there is no gateway"),
            )
            .hint("leave egress.enabled = false out"));
        }
        let bound = self.credentials_for(caller.tenant(), template).await?;
        let has_base =
            bound.iter().any(|bound| bound.base.as_ref().is_some_and(|base| base.name == provider.base));
        match has_base {
            true => Ok(()),
            false => Err(Fault::new(Kind::Denied, format!("there is no key for '{agent}'")).hint(format!(
                "'cubicle secrets set {}' keeps one outside of sandboxes",
                provider.key_variable
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repository_is_a_url_with_or_without_a_ref() {
        for (text, host) in [
            ("https://git.example/a/b", "git.example"),
            ("https://git.example/a/b@main", "git.example"),
            ("https://git.example/a/b.git@v1.2", "git.example"),
            ("http://localhost:8080/a@feature/x", "localhost"),
        ] {
            let found = repository(text).unwrap();
            assert_eq!(found.host.to_string(), host, "{text}");
        }
        for bad in
            ["", "git@git.example:a/b", "https://me:pw@git.example/a", "ssh://git.example/a", "https://a b/c"]
        {
            assert!(repository(bad).is_err(), "{bad}");
        }
    }
}
